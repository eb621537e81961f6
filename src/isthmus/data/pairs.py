"""Pairs of nodes to tell apart, made of a graph's links: some are held out, the others trained on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.party import SPLITS, Border, Pairs, Party
from isthmus.data.pool import Pool, items_per_party, numpy_generator
from isthmus.errors import IsthmusError


@dataclass(frozen=True, eq=False)
class HeldOutLinks:
    """A pool without some of its links, and what is asked about in their place.

    A link is two different nodes that an edge joins, whichever way it runs. Nodes are meant by their places in `ids`,
    and a pair of them i < j by the number j (j - 1) / 2 + i.

    Arguments:
        pool: the pool without the edges of the links held out, in either direction.
        ids: ids of all nodes, ascending, `[nodes]`.
        links: all links, held out or not, ascending.
        val, test: the links held out for each and as many pairs of nodes without an edge, `[2, pairs]`: the pair and
            whether it is a link.
    """

    pool: Pool
    ids: Tensor
    links: Tensor
    val: Tensor
    test: Tensor


def hold_out_links(pool: Pool, *, val: float, test: float, seed: int) -> HeldOutLinks:
    """Hold links of a graph out, and draw pairs without an edge to tell them from.

    Arguments:
        val, test: share of all links that is held out for each.

    >>> from isthmus.data.datasets.banks import Banks
    >>> held = hold_out_links(Banks(nodes=100).load(seed=0), val=0.1, test=0.2, seed=0)
    >>> held.links.numel(), held.val.size(1), held.test.size(1), held.pool.party.edges
    (300, 60, 120, 420)
    """
    whole = pool.party
    if whole.level != "node" or (pool.whole is None and whole.ids is None):
        has = "many graphs" if whole.level == "graph" else "nodes without ids"
        raise IsthmusError(f"links are held out of one graph whose nodes have ids, the data are {has}: use other data")
    if val + test >= 1:
        raise IsthmusError(f"val = {val} and test = {test} leave no link to train on: lower one of them")
    ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids.sort().values
    links = _links_of(whole, ids)
    counts = [round(share * links.numel()) for share in (val, test)]
    draw = numpy_generator(seed, "pairs")
    chosen = _some(links, sum(counts), draw)
    without = sample_non_links(ids.numel(), links, sum(counts), draw)
    if without.numel() < chosen.numel():
        raise IsthmusError(
            f"{chosen.numel()} links are to be held out, and only {without.numel()} pairs of nodes have no edge: "
            "lower val or test"
        )
    without = _some(without, without.numel(), draw)
    asked = [_told(*each) for each in zip(chosen.split(counts), without.split(counts), strict=True)]
    left = replace(
        pool,
        whole=None if pool.whole is None else _without(pool.whole, chosen, ids),
        parties=None if pool.parties is None else tuple(_without(party, chosen, ids) for party in pool.parties),
    )
    return HeldOutLinks(left, ids, links, *asked)


def assign_pairs(parties: Sequence[Party], held: HeldOutLinks, *, train: float, seed: int) -> list[Party]:
    """The parties that the pool without these links was cut into, each with the pairs that it is asked about.

    A pair is with the first party that holds its first node; either node is first in half of the pairs. To train on
    there are links that parties still know of, and pairs without an edge: as many between a party's own nodes as it
    has links there (or all that there are), and as many across parties as there are links across. Pairs that end at
    a node of nobody are left out.

    Arguments:
        train: share of the links left that is trained on.
    """
    own = [_at(held.ids, _ids_of(party)) for party in parties]
    holder = torch.full((held.ids.numel(),), -1)
    for party in reversed(range(len(own))):
        holder[own[party]] = party
    gone = torch.cat([pairs[0, pairs[1] == 1] for pairs in (held.val, held.test)])
    draw = numpy_generator(seed, "training pairs")
    known = torch.cat([_links_of(party, held.ids) for party in parties]).unique()
    if bool(torch.isin(gone, known).any()):
        raise IsthmusError("a party still has links that are held out: cut the pool that is without them")
    links = _some(known, round(train * known.numel()), draw)
    without = _without_edge(_Table.of(links, holder, own), held, holder, draw)
    parts = [_told(links, without), held.val, held.test]
    codes, y = torch.cat(parts, dim=1)
    split = torch.arange(len(SPLITS)).repeat_interleave(torch.tensor([part.size(1) for part in parts]))
    return _given(parties, own, held.ids, holder, _Table.of(codes, holder, own), y, split)


def sample_non_links(nodes: int, taken: Tensor, count: int, draw: np.random.Generator) -> Tensor:
    """Pairs of nodes that are not taken, evenly drawn, ascending; all that there are where they are fewer.

    Arguments:
        taken: pairs that are not to be drawn, ascending.

    >>> sample_non_links(4, torch.tensor([0, 2, 3]), 9, numpy_generator(0, "example")).tolist()
    [1, 4, 5]
    """
    free = nodes * (nodes - 1) // 2 - taken.numel()
    rank = np.sort(draw.choice(free, min(count, free), replace=False, shuffle=False))
    # below taken[k] lie taken[k] - k free pairs: so many of the taken ones come before the free pair of a rank
    below = taken.numpy() - np.arange(taken.numel())
    return torch.from_numpy(rank + np.searchsorted(below, rank, side="right"))


@dataclass(frozen=True, eq=False)
class _Table:
    """Pairs with a first and a second node, the party that each is with, and whether that one lacks the second node.

    A pair that is with nobody has party -1.
    """

    first: Tensor
    second: Tensor
    party: Tensor
    across: Tensor

    @classmethod
    def of(cls, codes: Tensor, holder: Tensor, own: Sequence[Tensor]) -> _Table:
        ends = torch.stack(_ends(codes))
        turn = ends.sum(0) % 2  # either is first in half of the pairs, and a pair is always the same way round
        first, second = ends.gather(0, torch.stack([turn, 1 - turn]))
        party = torch.where(holder[second] < 0, -1, holder[first])
        across = torch.ones_like(party, dtype=torch.bool)
        for place, mine in zip(_places(own, holder.numel()), _turns(party, len(own)), strict=True):
            across[mine] = place[second[mine]] < 0
        return cls(first, second, party, across)


def _without_edge(links: _Table, held: HeldOutLinks, holder: Tensor, draw: np.random.Generator) -> Tensor:
    """Pairs to train on that have no edge and are not asked about."""
    taken = torch.cat([held.links, held.val[0], held.test[0]]).unique()
    low, high = _ends(taken)
    arriving = torch.bincount(high, minlength=holder.numel())  # pairs stand by their second node
    start = arriving.cumsum(0) - arriving
    homes = _turns(holder, int(holder.max()) + 1)
    within = torch.bincount(links.party[~links.across], minlength=len(homes)).tolist()
    found = []
    for place, home, count in zip(_places(homes, holder.numel()), homes, within, strict=True):
        near = rows.concat_ranges(start[home], arriving[home])
        inside = near[place[low[near]] >= 0]
        own = _codes(place[low[inside]], place[high[inside]]).sort().values
        found.append(_codes(*(home[end] for end in _ends(sample_non_links(home.numel(), own, count, draw)))))
    count = int((links.across & (links.party >= 0)).sum())
    return torch.cat([*found, _across(taken, holder, count, draw)])


def _across(taken: Tensor, holder: Tensor, count: int, draw: np.random.Generator) -> Tensor:
    """Pairs of different parties' nodes that are not taken."""
    tried, most = 0, holder.numel() * (holder.numel() - 1) // 2 - taken.numel()
    drawn = taken[:0]
    while drawn.numel() < count and tried < most:
        tried = min(2 * max(tried, count), most)
        drawn = sample_non_links(holder.numel(), taken, tried, draw)
        low, high = (holder[end] for end in _ends(drawn))
        drawn = drawn[(low != high) & (low >= 0) & (high >= 0)]
    return _some(drawn, count, draw)


def _given(
    parties: Sequence[Party],
    own: Sequence[Tensor],
    ids: Tensor,
    holder: Tensor,
    table: _Table,
    y: Tensor,
    split: Tensor,
) -> list[Party]:
    """Every party with its pairs."""
    made = []
    lent = _lent(table, holder, split > 0, len(parties))
    turns = _turns(table.party, len(parties))
    for party, held, mine, place, loans in zip(parties, own, turns, _places(own, ids.numel()), lent, strict=True):
        second, across = table.second[mine], table.across[mine]
        others = torch.cat([holder[second[across]], loans[1]]).unique()
        pairs = Pairs(
            first=place[table.first[mine]],
            second=ids[second],
            owner=torch.where(across, torch.searchsorted(others, holder[second]), -1),
            owners=tuple(parties[other].name for other in others.tolist()),
            lent=place[loans[2]],
            borrower=torch.searchsorted(others, loans[1]),
        )
        graph = copy.copy(party.graph)
        graph.y, graph.num_nodes = y[mine], party.nodes
        train, val, test = (split[mine] == at for at in range(len(SPLITS)))
        asked = replace(party, graph=graph, level="pair", ids=ids[held], pairs=pairs, train=train, val=val, test=test)
        made.append(asked)
    return made


def _lent(table: _Table, holder: Tensor, scored: Tensor, parties: int) -> Sequence[Tensor]:
    """For every party who needs what of it to score pairs: rows lender, borrower, node; by borrower, then by node."""
    needed = table.across & scored & (table.party >= 0)
    second = table.second[needed]
    loans = torch.stack([holder[second], table.party[needed], second]).unique(dim=1)
    return [each.contiguous() for each in loans.split(torch.bincount(loans[0], minlength=parties).tolist(), dim=1)]


def _without(party: Party, links: Tensor, ids: Tensor) -> Party:
    """The party without the edges of these links, within it and across its border."""
    at, graph, border = _at(ids, _ids_of(party)), copy.copy(party.graph), party.border
    kept = ~torch.isin(_codes(*at[graph.edge_index]), links)
    graph.edge_index, graph.num_nodes = graph.edge_index[:, kept], party.nodes
    if getattr(graph, "edge_weight", None) is not None:
        graph.edge_weight = graph.edge_weight[kept]
    if border is not None:
        kept = ~torch.isin(_codes(_at(ids, border.outer), at[border.inner]), links)
        weight = None if border.weight is None else border.weight[kept]
        border = Border(border.inner[kept], border.outer[kept], border.owner[kept], border.owners, weight)
    return replace(party, graph=graph, border=border)


def _links_of(party: Party, ids: Tensor) -> Tensor:
    """The links that a party knows of, ascending."""
    at, border = _at(ids, _ids_of(party)), party.border
    codes = [_codes(*at[party.graph.edge_index])]
    if border is not None:
        codes.append(_codes(_at(ids, border.outer), at[border.inner]))
    found = torch.cat(codes).unique()
    return found[found >= 0]


def _ids_of(party: Party) -> Tensor:
    return torch.arange(party.nodes) if party.ids is None else party.ids


def _at(known: Tensor, ids: Tensor) -> Tensor:
    """Places of ids among those known, -1 for others."""
    at = torch.searchsorted(known, ids).clamp(max=known.numel() - 1)
    return torch.where(known[at] == ids, at, -1)


def _places(groups: Sequence[Tensor], nodes: int) -> Iterator[Tensor]:
    """For one group of nodes after another the place of every node in it, -1 outside; one tensor, filled anew."""
    place = torch.full((nodes,), -1)
    for group in groups:
        place[group] = torch.arange(group.numel())
        yield place
        place[group] = -1


def _turns(owner: Tensor, parties: int) -> tuple[Tensor, ...]:
    """What each party has, from an owner for every item, -1 for nobody."""
    return items_per_party(owner + 1, parties + 1)[1:]


def _some(codes: Tensor, count: int, draw: np.random.Generator) -> Tensor:
    """So many of them, or all, in a random order."""
    return codes[torch.from_numpy(draw.permutation(codes.numel())[:count])]


def _told(links: Tensor, without: Tensor) -> Tensor:
    """Pairs and whether each is a link, `[2, pairs]`."""
    y = torch.tensor([1, 0]).repeat_interleave(torch.tensor([links.numel(), without.numel()]))
    return torch.stack([torch.cat([links, without]), y])


def _codes(one: Tensor, other: Tensor) -> Tensor:
    """The numbers of pairs of nodes, in either order; -1 where both are one node, or one is -1."""
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    return torch.where((low == high) | (low < 0), -1, high * (high - 1) // 2 + low)


def _ends(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The way back: both nodes of pairs, the lower one first."""
    high = ((1 + (8 * codes + 1).double().sqrt()) / 2).long()
    high -= (high * (high - 1) // 2 > codes).long()  # where rounding went a step too far
    high += (high * (high + 1) // 2 <= codes).long()
    return codes - high * (high - 1) // 2, high
