"""Coupled graphs, decoupled: the edges that a party propagates over alone, and those over which it sends sums."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from isthmus.data import matrices
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.errors import PartyFailed


@dataclass(frozen=True, eq=False)
class Coupling:
    """The decoupled graphs of several parties, side by side. Every edge runs both ways.

    A party knows each node of another party that its own nodes are joined to. Each such node has a slot: a row of
    `outer`, in which the party sums up what it sends for that node. Slots are sorted by party, then owner, then id.

    Arguments:
        inner: A + I within the parties, `[nodes, nodes]`.
        outer: edges from own nodes to slots, `[slots, nodes]`.
        degree: for every node 1 + its edges that carry something, within its party and across its border, `[nodes]`.
        ids: ids of the slots' nodes, `[slots]`.
        slots: for every party the slice of its slots for each owner.
        receivers: for every party, by other party, positions of the own nodes that receive a sum from it, by id.
        sizes: nodes of each party.
        added: edges that were added for protection, each counted once.
    """

    inner: Any
    outer: Any
    degree: NDArray[np.float64]
    ids: Ints
    slots: tuple[dict[str, slice], ...]
    receivers: tuple[dict[str, Ints], ...]
    sizes: tuple[int, ...]
    added: int


def decouple(parties: Sequence[Party], *, join_isolated: bool = False, min_neighbours: int = 1) -> Coupling:
    """Decouple the parties' graphs.

    Arguments:
        join_isolated: join each node without a neighbour in its own party to the most similar node there.
        min_neighbours: leave out slots that fewer own nodes are joined to: no sum is sent for them. Both sides know
            the edges between them, so each knows which sums will not come and leaves those edges out of its nodes'
            degrees. Otherwise a node would be divided by neighbours that it never receives anything from.
    """
    inner, outer, degrees, ids, slots, receivers = [], [], [], [], [], []
    added, first = 0, 0
    for party in parties:
        within = _adjacency(party)
        if join_isolated:
            extra = nearest_neighbours(party, within)
            within, added = within + extra, added + extra.nnz // 2
        across, names, numbers = _across(party)
        edges, of_party = _receivers(party, across, names, min_neighbours)
        degrees.append(within.sum(0) + edges)
        receivers.append(of_party)
        enough = np.diff(across.indptr) >= min_neighbours
        across, names, numbers = across[enough], names[enough], numbers[enough]
        new = np.concatenate([[True], names[1:] != names[:-1], [True]])  # owner after owner
        ends: list[int] = np.flatnonzero(new).tolist() if names.size else []
        own = {str(names[at]): slice(first + at, first + end) for at, end in itertools.pairwise(ends)}
        first += numbers.size
        inner.append(within)
        outer.append(across)
        ids.append(numbers)
        slots.append(own)
    return Coupling(
        _block_diagonal(inner),
        _block_diagonal(outer),
        np.concatenate(degrees),
        np.concatenate(ids),
        tuple(slots),
        tuple(receivers),
        tuple(party.nodes for party in parties),
        added,
    )


def ids_across(party: Party, *, min_neighbours: int = 1) -> Ints:
    """Ids of the other parties' nodes that at least so many own nodes are joined to: those of its slots, in order."""
    across, _, numbers = _across(party)
    return numbers[np.diff(across.indptr) >= min_neighbours]


def without_inner_neighbours(party: Party) -> Ints:
    """Positions of the nodes that have no neighbour in their own party."""
    source, target = party.graph.edge_index.numpy()
    other = source != target
    joined = np.zeros(party.nodes, dtype=bool)
    joined[source[other]] = joined[target[other]] = True
    return np.flatnonzero(~joined)


def exposed_nodes(parties: Sequence[Party], coupling: Coupling, at: int, to: Collection[str]) -> Ints:
    """Nodes of the party at position `at` whose features colluding parties may be able to solve for.

    All neighbours that such a node receives anything from (over added edges as well) belong to the colluding parties,
    and the node is part of a sum that is sent to them.

    Arguments:
        to: names of the parties that collude.
    """
    party, first = parties[at], sum(coupling.sizes[:at])
    inner = coupling.inner[first : first + party.nodes].tocoo()
    others = np.zeros(party.nodes, dtype=bool)
    others[inner.row[(inner.col != inner.row + first) & (inner.data != 0)]] = True
    for other, nodes in coupling.receivers[at].items():
        if other not in to:
            others[nodes] = True
    sent = np.zeros(party.nodes, dtype=bool)
    for owner, slots in coupling.slots[at].items():
        if owner in to:
            sent[coupling.outer[slots].indices - first] = True
    return np.flatnonzero(sent & ~others)


def one_way_only(party: str) -> PartyFailed:
    """The error for directed edges."""
    return PartyFailed(
        party,
        "some of its edges do not run back with the same weight, as this method needs: make its folder without "
        "--directed, or its graph by PyG's to_undirected",
    )


def check_both_ways(party: Party) -> None:
    """Refuse a party with an edge that does not run back, with the same weight."""
    if not matrices.run_both_ways(party.graph.edge_index, getattr(party.graph, "edge_weight", None), party.nodes):
        raise one_way_only(party.name)


def nearest_neighbours(party: Party, within: Any) -> Any:
    """Edges, both ways, from each node without a neighbour in its party to the nearest node there.

    The distance is the angular one, D(x, y) = arccos(x y / (|x| |y|)) / pi. A node without features is at right angles
    to all others; ties go to the first node. The node of a party with one node stays as it is.
    """
    isolated = without_inner_neighbours(party)
    if party.nodes < 2 or not isolated.size:
        return csr_array(within.shape)
    x = _unit_rows(matrices.from_tensor(party.graph.x))
    nearest = np.empty(isolated.size, dtype=np.int64)
    for start in range(0, isolated.size, 1024):  # all similarities at once may not fit in memory
        part = isolated[start : start + 1024]
        similarity = x[part] @ x.T
        similarity = np.asarray(similarity.todense() if hasattr(similarity, "todense") else similarity)
        similarity[np.arange(part.size), part] = -np.inf
        nearest[start : start + 1024] = similarity.argmax(1)
    pairs = np.unique(np.sort(np.stack([isolated, nearest]), axis=0), axis=1)
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    return coo_array((np.ones(both.shape[1]), (both[0], both[1])), shape=within.shape).tocsr()


def _unit_rows(x: Any) -> Any:
    sparse = hasattr(x, "tocsr")
    norms = np.sqrt(np.asarray((x.multiply(x) if sparse else x * x).sum(1)).ravel())
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return x.multiply(scale[:, None]).tocsr() if sparse else x * scale[:, None]


def _adjacency(party: Party) -> Any:
    """A + I within the party, `[nodes, nodes]`, row i summing over the edges j -> i."""
    check_both_ways(party)
    loops = np.arange(party.nodes)
    source, target = np.concatenate([party.graph.edge_index.numpy(), np.stack([loops, loops])], axis=1)
    weight = getattr(party.graph, "edge_weight", None)
    values = np.ones(source.size)
    if weight is not None:
        values[: weight.numel()] = weight.double().numpy()
    return coo_array((values, (target, source)), shape=(party.nodes,) * 2).tocsr()


def _across(party: Party) -> tuple[Any, NDArray[Any], Ints]:
    """Edges to other parties' nodes, `[slots, nodes]`, and each slot's owner and id."""
    border = party.border
    if border is None or not len(border):
        return csr_array((0, party.nodes)), np.empty(0, dtype=object), np.empty(0, dtype=np.int64)
    outer, owner = border.outer.numpy(), border.owner.numpy()
    order = np.lexsort((outer, owner))
    new = np.concatenate([[True], (np.diff(outer[order]) != 0) | (np.diff(owner[order]) != 0)])
    slot = np.empty(order.size, dtype=np.int64)
    slot[order] = new.cumsum() - 1
    values = np.ones(order.size) if border.weight is None else border.weight.double().numpy()
    matrix = coo_array((values, (slot, border.inner.numpy())), shape=(int(new.sum()), party.nodes)).tocsr()
    names = np.array(border.owners, dtype=object)
    return matrix, names[owner[order][new]], outer[order][new]


def _receivers(
    party: Party, across: Any, names: NDArray[Any], min_neighbours: int
) -> tuple[NDArray[np.float64], dict[str, Ints]]:
    """For every own node its border edges that carry something, `[nodes]`; and by other party those nodes.

    A node receives a sum from a party that has at least `min_neighbours` of its neighbours.
    """
    edges = across.tocoo()
    owners, owner = np.unique(names, return_inverse=True)
    groups, group, counts = np.unique(
        owner[edges.row] * np.int64(party.nodes) + edges.col, return_inverse=True, return_counts=True
    )
    enough = counts >= min_neighbours
    total = np.bincount(edges.col, edges.data * enough[group], minlength=party.nodes).astype(np.float64)
    sender, nodes = np.divmod(groups[enough], party.nodes)
    if party.ids is not None:
        order = np.lexsort((party.ids.numpy()[nodes], sender))
        sender, nodes = sender[order], nodes[order]
    return total, {str(owners[at]): nodes[sender == at] for at in np.unique(sender)}


def _block_diagonal(blocks: list[Any]) -> Any:
    """One matrix with these along its diagonal. The list loses its blocks, so that not all of them exist twice."""
    entries = np.cumsum([0, *[block.nnz for block in blocks]], dtype=np.int64)
    columns = np.cumsum([0, *[block.shape[1] for block in blocks]], dtype=np.int64)
    lines = np.cumsum([0, *[block.shape[0] for block in blocks]])
    kind = np.int32 if max(entries[-1], columns[-1]) < 2**31 else np.int64  # what scipy would choose
    indices, indptr = np.empty(entries[-1], kind), np.zeros(lines[-1] + 1, kind)
    data = np.empty(entries[-1], np.result_type(*[block.dtype for block in blocks]))
    for at in range(len(blocks)):
        block = blocks.pop(0)
        own = slice(entries[at], entries[at + 1])
        np.add(block.indices, columns[at], out=indices[own], casting="unsafe")
        np.add(block.indptr[1:], entries[at], out=indptr[lines[at] + 1 : lines[at + 1] + 1], casting="unsafe")
        data[own] = block.data
    return csr_array((data, indices, indptr), shape=(int(lines[-1]), int(columns[-1])))
