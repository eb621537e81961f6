"""Pairs of nodes for link prediction: links and non-links, some of them held out for validation and testing."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from isthmus.data import matrices, rows
from isthmus.data.folder import degrees
from isthmus.data.party import SPLITS, Pairs, Party
from isthmus.data.pool import Pool, items_per_party, numpy_generator
from isthmus.data.schema import Schema
from isthmus.errors import IsthmusError, PartyFailed, did_you_mean

MOST_TRIES = 100
"""How often held-out links exchange ends until no two of them make a link."""


@dataclass(frozen=True, eq=False)
class HeldOutLinks:
    """A pool without some of its links, and the pairs for validation and testing.

    A link is a pair of different nodes with an edge in any direction; of a typed graph, with one of the relation that
    is asked. Nodes are positions in `ids`, and a pair of nodes i < j is encoded as the number j (j - 1) / 2 + i.

    Arguments:
        pool: the pool without the edges between the nodes of held-out pairs, in both directions and of all relations.
        ids: ids of all nodes, ascending, `[nodes]`.
        links: all links, held out or not, ascending.
        val, test: held-out links and as many non-links, or of a relation fewer where there are none, `[2, pairs]`: the
            encoded pair, and 1 for a link or 0.
        relation: the edge type that is asked, as its position in the schema; none where the graph is not typed.
        ends: of a relation, the nodes at the start and at the end of each link, `[2, links]`.
    """

    pool: Pool
    ids: Tensor
    links: Tensor
    val: Tensor
    test: Tensor
    relation: int | None = None
    ends: Tensor | None = None


def hold_out_links(pool: Pool, *, val: float, test: float, seed: int, relation: str = "") -> HeldOutLinks:
    """Hold out links of a graph, and draw as many pairs without an edge.

    Arguments:
        val, test: share of all links that is held out for each.
        relation: of a typed graph the relation whose links are asked: its name, or its type, such as `a owns b`.

    >>> from isthmus.data.datasets.banks import Banks
    >>> held = hold_out_links(Banks(nodes=100).load(seed=0), val=0.1, test=0.2, seed=0)
    >>> held.links.numel(), held.val.size(1), held.test.size(1), held.pool.party.edges
    (300, 60, 120, 420)
    """
    pool = _with_ids(pool)
    whole = pool.party
    if whole.level != "node" or (pool.whole is None and whole.ids is None):
        has = "many graphs" if whole.level == "graph" else "nodes without ids"
        raise IsthmusError(f"links are held out of one graph with node ids, but the data have {has}: use other data")
    if pool.dated:
        raise IsthmusError(
            "links are held out by chance, and these rows have dates: a prediction would read what happened later; "
            "classify edges with labels (isthmus party new --tables ... --as-edges), or leave out the "
            "tables with dates"
        )
    if val + test >= 1:
        raise IsthmusError(f"val = {val} and test = {test} leave no link to train on: lower one of them")
    asked = _asked(whole.schema, relation)
    ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids.sort().values
    links = _links_of(whole, ids, asked)
    counts = [round(share * links.numel()) for share in (val, test)]
    between = None if asked is None else _directed(whole, ids, asked, links)
    generator = numpy_generator(seed, "pairs")
    held = _sample(links, sum(counts), generator)
    if between is None:
        absent = _absent_pairs(pool, ids, links, held, generator)
        if absent.numel() < held.numel():
            raise IsthmusError(
                f"{held.numel()} links would be held out, but only {absent.numel()} pairs of nodes have no edge: "
                "lower val or test"
            )
        absent = _sample(absent, absent.numel(), generator)
    else:
        ends = between[:, torch.searchsorted(links, held)]
        absent = _mixed_pairs(ends, links, _holders(pool.parties or (), ids), generator)
        if held.numel() and not bool((absent >= 0).any()):
            raise IsthmusError(f"no pair beside the {held.numel()} held-out links has no edge: hold out more links")
    val_pairs, test_pairs = (
        _with_labels(own, others[others >= 0])
        for own, others in zip(held.split(counts), absent.split(counts), strict=True)
    )
    gone = held if asked is None else torch.cat([held, absent[absent >= 0]])
    rest = replace(
        pool,
        whole=None if pool.whole is None else _remove_links(pool.whole, gone, ids),
        parties=None if pool.parties is None else tuple(_remove_links(party, gone, ids) for party in pool.parties),
    )
    return HeldOutLinks(rest, ids, links, val_pairs, test_pairs, asked, between)


def _name_one(ends: Tensor) -> bool:
    """Whether each node at one side of a relation has one link, as rows with a foreign key have."""
    return any(side.unique().numel() == side.numel() for side in ends)


def _asked(schema: Schema | None, relation: str) -> int | None:
    """The edge type that is asked, by its name or type; none of a graph without types."""
    if schema is None:
        if relation:
            raise IsthmusError(
                f"relation = '{relation}' names edges of one type, and the graph has no types: leave it out"
            )
        return None
    named = {" ".join(kind): at for at, kind in enumerate(schema.edge_types)}
    short = [kind[1] for kind in schema.edge_types]
    known = {
        name if short.count(name) == 1 else kind: at for (kind, at), name in zip(named.items(), short, strict=True)
    }
    if not relation:
        raise IsthmusError(
            f"the graph is typed: name the relation whose links are asked, task.relation: {', '.join(known)}"
        )
    if (at := known.get(relation, named.get(relation))) is None:
        raise IsthmusError(f"relation = '{relation}' is none of the graph's: {did_you_mean(relation, known)}")
    return at


def _absent_pairs(pool: Pool, ids: Tensor, links: Tensor, held: Tensor, generator: np.random.Generator) -> Tensor:
    """As many pairs without an edge as links are held out, ascending.

    If no link joins two parties that came with the data, no such pair does: a model could tell them apart by party.
    """
    own, holder = _holders(pool.parties or (), ids)
    low, high = (holder[end] for end in _decode(links))
    if len(own) < 2 or bool((low != high).any()):
        return sample_non_links(ids.numel(), links, held.numel(), generator)
    return _draw_non_links(_Assigned.of(held, holder, own), links, holder, generator).sort().values


def _mixed_pairs(
    ends: Tensor, links: Tensor, held_by: tuple[list[Tensor], Tensor], generator: np.random.Generator
) -> Tensor:
    """For each of some links of a relation a pair that is none: its start, and the end of another of them; -1 if there
    is none.

    So links and other pairs have the same nodes at either side. With random nodes a model could tell links by how many
    links their nodes have: popular ones have more, and a row whose only link is held out has none. Both links are of
    one party, or both across.

    Arguments:
        ends: the nodes at the start and at the end of each, `[2, links]`.
        links: all links, ascending.
        held_by: the nodes of each party, and the first party that holds each node.
    """
    own, holder = held_by
    starts, ends = ends
    homes = _homes(starts, ends, own, holder)
    groups = [each for each in items_per_party(homes + 1, len(own) + 1) if each.numel()]
    mixed, free = ends.clone(), torch.ones_like(starts, dtype=torch.bool)
    for _ in range(MOST_TRIES):
        for group in groups:
            again = group[free[group]]
            if again.numel() and group.numel() > 1:  # of those that fit, some change, too, or the last would never fit
                other = group[torch.from_numpy(generator.integers(group.numel(), size=again.numel()))]
                turn = torch.cat([again, other]).unique()
                mixed[turn] = mixed[turn[torch.from_numpy(generator.permutation(turn.numel()))]]
        codes = _encode(starts, mixed)
        free = (codes < 0) | torch.isin(codes, links) | (_homes(starts, mixed, own, holder) != homes)
        repeated = torch.ones_like(free)
        repeated[_first_of_each(codes)] = False
        free |= repeated
        if not bool(free.any()):
            break
    return torch.where(free, -1, codes)


def _homes(starts: Tensor, ends: Tensor, own: Sequence[Tensor], holder: Tensor) -> Tensor:
    """The first party that holds both nodes of each pair; -1 for pairs across parties, or without parties."""
    home = torch.where(holder[starts] == holder[ends], holder[starts], -1)
    if sum(nodes.numel() for nodes in own) > int((holder >= 0).sum()):  # several parties hold some nodes
        for party, place in enumerate(_positions_in_groups(own, holder.numel())):
            home[(home < 0) & (place[starts] >= 0) & (place[ends] >= 0)] = party
    return home


def _directed(party: Party, ids: Tensor, asked: int, links: Tensor) -> Tensor:
    """The nodes at the start and at the end of an edge of each link, `[2, links]`."""
    at, border, graph = _positions_of(ids, _ids_of(party)), party.border, party.graph
    edges, kinds = [at[graph.edge_index]], [graph.edge_type]
    if border is not None:
        across = torch.stack([_positions_of(ids, border.outer), at[border.inner]])
        edges.append(across if border.leaving is None else torch.where(border.leaving, across.flip(0), across))
        kinds.append(border.edge_type)
    chosen = torch.cat(edges, dim=1)[:, torch.cat(kinds) == asked]
    codes, order = _encode(*chosen).sort(stable=True)
    return chosen[:, order[torch.searchsorted(codes, links)]]


def _holders(parties: Sequence[Party], ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """The positions in `ids` of each party's nodes, and of every node the first party that holds it, -1 for none."""
    own = [_positions_of(ids, _ids_of(party)) for party in parties]
    holder = torch.full((ids.numel(),), -1)
    for party in reversed(range(len(own))):
        holder[own[party]] = party
    return own, holder


def assign_pairs(
    parties: Sequence[Party], held: HeldOutLinks, *, train: float, seed: int, disjoint: float | None = 0.0
) -> list[Party]:
    """Give each party its pairs. The parties are a cut of the pool without the held-out links.

    A pair belongs to the first party that holds its first node; either node is first in half of the pairs. Training
    pairs are links that the parties still have, and pairs without an edge: between a party's own nodes as many as it
    has links there (or all there are), and across parties as many as there are links across; of a relation they are
    mixed as held-out pairs are, see `_mixed_pairs`. Pairs with a node that no party holds are left out.

    Arguments:
        train: share of the remaining links, or of the disjoint ones, to train on.
        disjoint: share of the remaining links that leaves the graph, to train on these alone; None: a half where each
            node at one side of the relation has one link, else none.
    """
    own, holder = _holders(parties, held.ids)
    removed = torch.cat([pairs[0, pairs[1] == 1] for pairs in (held.val, held.test)])
    generator = numpy_generator(seed, "training pairs")
    known = torch.cat([_links_of(party, held.ids, held.relation) for party in parties]).unique()
    if bool(torch.isin(removed, known).any()):
        raise IsthmusError("a party has links that are held out: cut `HeldOutLinks.pool` instead of the full pool")
    if disjoint is None:
        disjoint = 0.5 if held.ends is not None and _name_one(held.ends) else 0.0
    apart = _sample(known, round(disjoint * known.numel()), generator) if disjoint else known[:0]
    links = (
        apart[: round(train * apart.numel())] if disjoint else _sample(known, round(train * known.numel()), generator)
    )
    taken = torch.cat([held.links, held.val[0], held.test[0]]).unique()
    if held.ends is None:
        absent = _draw_non_links(_Assigned.of(links, holder, own), taken, holder, generator)
    else:
        absent = _mixed_pairs(held.ends[:, torch.searchsorted(held.links, links)], taken, (own, holder), generator)
        absent = absent[absent >= 0]
    if disjoint:  # and no edge of another relation joins what is trained on, as none joins what is asked
        parties = [_remove_links(party, torch.cat([apart, absent]), held.ids) for party in parties]
    parts = [_with_labels(links, absent), held.val, held.test]
    codes, y = torch.cat(parts, dim=1)
    split = torch.arange(len(SPLITS)).repeat_interleave(torch.tensor([part.size(1) for part in parts]))
    return _attach(parties, own, held.ids, holder, _Assigned.of(codes, holder, own), y, split)


def _first_of_each(values: Tensor) -> Tensor:
    """The first position of each different value."""
    ordered, order = values.sort(stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[new]


def sample_non_links(nodes: int, taken: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """Random pairs of nodes that are not taken, ascending; all of them if there are fewer than `count`.

    Arguments:
        taken: encoded pairs to leave out, ascending.

    >>> sample_non_links(4, torch.tensor([0, 2, 3]), 9, numpy_generator(0, "example")).tolist()
    [1, 4, 5]
    """
    return _sample_free(nodes * (nodes - 1) // 2, taken, count, generator)


def _sample_free(total: int, taken: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """Random numbers below `total` that are not taken, ascending; all of them if there are fewer than `count`."""
    free = total - taken.numel()
    rank = np.sort(generator.choice(free, min(count, free), replace=False, shuffle=False))
    # taken[k] - k free pairs are below taken[k], so this finds the taken pairs before the free pair of each rank
    below = taken.numpy() - np.arange(taken.numel())
    return torch.from_numpy(rank + np.searchsorted(below, rank, side="right"))


@dataclass(frozen=True, eq=False)
class _Assigned:
    """Pairs with their first and second node, their party (-1: none), and whether that party lacks the second node."""

    first: Tensor
    second: Tensor
    party: Tensor
    across: Tensor

    @classmethod
    def of(cls, codes: Tensor, holder: Tensor, own: Sequence[Tensor]) -> _Assigned:
        ends = torch.stack(_decode(codes))
        turn = ends.sum(0) % 2  # either node is first in half of the pairs, always the same one in a given pair
        first, second = ends.gather(0, torch.stack([turn, 1 - turn]))
        party = torch.where(holder[second] < 0, -1, holder[first])
        across = torch.ones_like(party, dtype=torch.bool)
        positions = _positions_in_groups(own, holder.numel())
        for position, pairs in zip(positions, _split_by_party(party, len(own)), strict=True):
            across[pairs] = position[second[pairs]] < 0
        return cls(first, second, party, across)


def _draw_non_links(links: _Assigned, taken: Tensor, holder: Tensor, generator: np.random.Generator) -> Tensor:
    """As many pairs that are not taken as there are links within each party, and as there are links across."""
    low, high = _decode(taken)
    arriving = torch.bincount(high, minlength=holder.numel())  # pairs are sorted by their second node
    start = arriving.cumsum(0) - arriving
    homes = _split_by_party(holder, int(holder.max()) + 1)
    within = torch.bincount(links.party[~links.across], minlength=len(homes)).tolist()
    parts = []
    for place, home, count in zip(_positions_in_groups(homes, holder.numel()), homes, within, strict=True):
        near = rows.concat_ranges(start[home], arriving[home])
        inside = near[place[low[near]] >= 0]
        own = _encode(place[low[inside]], place[high[inside]]).sort().values
        parts.append(_encode(*(home[end] for end in _decode(sample_non_links(home.numel(), own, count, generator)))))
    count = int((links.across & (links.party >= 0)).sum())
    return torch.cat([*parts, _draw_across(taken, holder, count, generator)])


def _draw_across(taken: Tensor, holder: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """Pairs of nodes of different parties that are not taken."""
    nodes = holder.numel()
    tried, most = 0, nodes * (nodes - 1) // 2 - taken.numel()
    drawn = taken[:0]
    while drawn.numel() < count and tried < most:
        tried = min(2 * max(tried, count), most)
        drawn = sample_non_links(nodes, taken, tried, generator)
        low, high = (holder[end] for end in _decode(drawn))
        drawn = drawn[(low != high) & (low >= 0) & (high >= 0)]
    return _sample(drawn, count, generator)


def _attach(
    parties: Sequence[Party],
    own: Sequence[Tensor],
    ids: Tensor,
    holder: Tensor,
    table: _Assigned,
    y: Tensor,
    split: Tensor,
) -> list[Party]:
    """The parties with their pairs."""
    result = []
    lent = _loans(table, holder, split > 0, len(parties))
    by_party, positions = _split_by_party(table.party, len(parties)), _positions_in_groups(own, ids.numel())
    for party, nodes, mine, position, loans in zip(parties, own, by_party, positions, lent, strict=True):
        second, across = table.second[mine], table.across[mine]
        others = torch.cat([holder[second[across]], loans[1]]).unique()
        pairs = Pairs(
            first=position[table.first[mine]],
            second=ids[second],
            owner=torch.where(across, torch.searchsorted(others, holder[second]), -1),
            owners=tuple(parties[other].name for other in others.tolist()),
            lent=position[loans[2]],
            borrower=torch.searchsorted(others, loans[1]),
        )
        graph = copy.copy(party.graph)
        graph.y, graph.num_nodes = y[mine], party.nodes
        train, val, test = (split[mine] == at for at in range(len(SPLITS)))
        with_pairs = replace(
            party, graph=graph, level="pair", ids=ids[nodes], pairs=pairs, train=train, val=val, test=test
        )
        result.append(with_pairs)
    return result


def _loans(table: _Assigned, holder: Tensor, scored: Tensor, parties: int) -> Sequence[Tensor]:
    """For each party the nodes it lends, `[3, loans]`: lender, borrower, node, sorted by borrower, then node."""
    needed = table.across & scored & (table.party >= 0)
    second = table.second[needed]
    loans = torch.stack([holder[second], table.party[needed], second]).unique(dim=1)
    return [each.contiguous() for each in loans.split(torch.bincount(loans[0], minlength=parties).tolist(), dim=1)]


def _with_ids(pool: Pool) -> Pool:
    """The pool; the nodes of parties without ids are numbered, party after party."""
    parties = pool.parties or ()
    if not parties or parties[0].level != "node" or any(party.ids is not None for party in parties):
        return pool
    starts = itertools.accumulate((party.nodes for party in parties), initial=0)
    numbered = [
        replace(party, ids=first + torch.arange(party.nodes)) for party, first in zip(parties, starts, strict=False)
    ]
    return replace(pool, parties=tuple(numbered))


def _remove_links(party: Party, links: Tensor, ids: Tensor) -> Party:
    """The party without the edges of these pairs, within it and across its border, nor in its nodes' degrees."""
    at, graph, border = _positions_of(ids, _ids_of(party)), copy.copy(party.graph), party.border
    keep = ~torch.isin(_encode(*at[graph.edge_index]), links)
    graph.edge_index, graph.num_nodes = graph.edge_index[:, keep], party.nodes
    graph.update({name: column[keep] for name, column in party.per_edge().items()})
    if border is not None:
        keep = ~torch.isin(_encode(_positions_of(ids, border.outer), at[border.inner]), links)
        border = border.where(keep)
    rest = replace(party, graph=graph, border=border)
    if party.structural is not None and party.structural.numel():
        graph.x = _without_links(party, _neighbours(party, ids) - _neighbours(rest, ids))
    return rest


def _without_links(party: Party, fewer: Tensor) -> Tensor:
    """The features where nodes have so many neighbours fewer; features that follow from edges tell the links."""
    x, columns = party.graph.x, party.structural
    assert columns is not None
    degree = degrees.decode(matrices.to_dense(matrices.from_tensor(x)[:, columns.numpy()]))
    if degree is None:
        raise PartyFailed(
            party.name,
            "some features are declared to follow from edges (structural), so they may tell which links are held out; "
            "only those of --features degree are counted again: leave the others out",
        )
    features = torch.from_numpy(degrees.encode((degree - fewer.numpy()).clip(0))).to(x.dtype)
    if not rows.is_sparse(x):
        return x.index_copy(1, columns, features)
    spread = coo_array(features.numpy())
    spread = coo_array((spread.data, (spread.row, columns.numpy()[spread.col])), shape=tuple(x.shape))
    return matrices.to_tensor(csr_array(matrices.from_tensor(rows.zero_columns(x, columns)) + spread))


def _neighbours(party: Party, ids: Tensor) -> Tensor:
    """From how many different nodes an edge arrives at each node, from within the party or across its border."""
    border, (source, target) = party.border, party.graph.edge_index
    at = _positions_of(ids, _ids_of(party))
    source = at[source]
    if border is not None:
        source, target = torch.cat([source, _positions_of(ids, border.outer)]), torch.cat([target, border.inner])
    arriving = torch.stack([target, source])[:, at[target] != source].unique(dim=1)
    return torch.bincount(arriving[0], minlength=party.nodes)


def _links_of(party: Party, ids: Tensor, asked: int | None) -> Tensor:
    """The links that a party knows, of one edge type where the graph is typed, ascending."""
    at, border = _positions_of(ids, _ids_of(party)), party.border
    codes, kinds = [_encode(*at[party.graph.edge_index])], [party.graph.get("edge_type")]
    if border is not None:
        codes.append(_encode(_positions_of(ids, border.outer), at[border.inner]))
        kinds.append(border.edge_type)
    if asked is not None:
        codes = [code[kind == asked] for code, kind in zip(codes, kinds, strict=True)]
    return _ascending(torch.cat(codes).unique())


def _ascending(codes: Tensor) -> Tensor:
    """The encoded pairs among these, in order."""
    return codes[codes >= 0].sort().values


def _ids_of(party: Party) -> Tensor:
    return torch.arange(party.nodes) if party.ids is None else party.ids


def _positions_of(known: Tensor, ids: Tensor) -> Tensor:
    """Positions of ids in `known`, -1 for others."""
    at = torch.searchsorted(known, ids).clamp(max=known.numel() - 1)
    return torch.where(known[at] == ids, at, -1)


def _positions_in_groups(groups: Sequence[Tensor], nodes: int) -> Iterator[Tensor]:
    """For each group of nodes in turn, every node's position in it, -1 outside; the tensor is reused."""
    place = torch.full((nodes,), -1)
    for group in groups:
        place[group] = torch.arange(group.numel())
        yield place
        place[group] = -1


def _split_by_party(owner: Tensor, parties: int) -> tuple[Tensor, ...]:
    """The positions of each party's items, from the owner of every item, -1 for none."""
    return items_per_party(owner + 1, parties + 1)[1:]


def _sample(codes: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """`count` of these pairs, or all, in random order."""
    return codes[torch.from_numpy(generator.permutation(codes.numel())[:count])]


def _with_labels(links: Tensor, absent: Tensor) -> Tensor:
    """Encoded pairs, and 1 for a link or 0, `[2, pairs]`."""
    y = torch.tensor([1, 0]).repeat_interleave(torch.tensor([links.numel(), absent.numel()]))
    return torch.stack([torch.cat([links, absent]), y])


def _encode(one: Tensor, other: Tensor) -> Tensor:
    """The numbers of pairs of nodes, in any order; -1 if both are the same node or one is -1."""
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    return torch.where((low == high) | (low < 0), -1, high * (high - 1) // 2 + low)


def _decode(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Both nodes of encoded pairs, the lower one first."""
    high = ((1 + (8 * codes + 1).double().sqrt()) / 2).long()
    high -= (high * (high - 1) // 2 > codes).long()  # corrects rounding
    high += (high * (high + 1) // 2 <= codes).long()
    return codes - high * (high - 1) // 2, high
