"""Graphs that are coupled, taken apart (FedCog, section IV-A): what a party propagates alone, and what for others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from isthmus.data import matrices
from isthmus.data.party import Party
from isthmus.errors import PartyFailed

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Coupling:
    """The decoupled graphs of several parties side by side, edges taken both ways.

    A party knows of each other party's node that its own nodes are joined to; such a node gets a row of `outer`, a
    slot. Slots stand party after party, within a party by owner, within an owner by id.

    Arguments:
        inner: A + I within the parties, `[nodes, nodes]`: the internal graph's rows of own nodes.
        outer: edges from own nodes to slots, `[slots, nodes]`: its rows of others' nodes.
        degree: 1 + edges of every node over which something comes, within its party and across its border, `[nodes]`.
        ids: of the slots' nodes, `[slots]`.
        slots: for every party the slice of its slots for each owner.
        heard: for every party, by other party, the positions of the own nodes for which that one sends something, in
            the order of their ids.
        sizes: nodes of each party.
        added: edges that were added for protection, each once.
    """

    inner: Any
    outer: Any
    degree: NDArray[np.float64]
    ids: Ints
    slots: tuple[dict[str, slice], ...]
    heard: tuple[dict[str, Ints], ...]
    sizes: tuple[int, ...]
    added: int


def decoupled(parties: Sequence[Party], *, lnnc: bool = False, least: int = 1) -> Coupling:
    """The decoupled graphs.

    Arguments:
        lnnc: join each node that has no neighbour in its own party to the most similar one there (section IV-E).
        least: slots that fewer own nodes are joined to are left out: nothing is sent for them. As both sides know the
            edges between them, each knows which of the other's sums will not come, and does not count those edges in
            its nodes' degrees: otherwise a node would be divided by neighbours that it never hears of.
    """
    inner, outer, degrees, ids, slots, heard = [], [], [], [], [], []
    added, first = 0, 0
    for party in parties:
        within = _adjacency(party)
        if lnnc:
            extra = nearest_neighbours(party, within)
            within, added = within + extra, added + extra.nnz // 2
        across, names, numbers = _across(party)
        edges, of_party = _heard_of(party, across, names, least)
        degrees.append(within.sum(0) + edges)
        heard.append(of_party)
        enough = np.diff(across.indptr) >= least
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
        tuple(heard),
        tuple(party.nodes for party in parties),
        added,
    )


def without_inner_neighbours(party: Party) -> Ints:
    """Nodes whose neighbours, if they have any, are all with other parties: those that Theorem 2 warns of."""
    source, target = party.graph.edge_index.numpy()
    other = source != target
    joined = np.zeros(party.nodes, dtype=bool)
    joined[source[other]] = joined[target[other]] = True
    return np.flatnonzero(~joined)


def exposed(parties: Sequence[Party], coupling: Coupling, at: int, to: Collection[str]) -> Ints:
    """Nodes of the party at position `at` that Theorem 2 does not protect from other parties that collude.

    All their neighbours that they hear of, edges that were added counted, are nodes of these parties, and something is
    sent to them in which the nodes take part.

    Arguments:
        to: names of those who collude.
    """
    party, first = parties[at], sum(coupling.sizes[:at])
    inner = coupling.inner[first : first + party.nodes].tocoo()
    others = np.zeros(party.nodes, dtype=bool)
    others[inner.row[(inner.col != inner.row + first) & (inner.data != 0)]] = True
    for other, nodes in coupling.heard[at].items():
        if other not in to:
            others[nodes] = True
    told = np.zeros(party.nodes, dtype=bool)
    for owner, slots in coupling.slots[at].items():
        if owner in to:
            told[coupling.outer[slots].indices - first] = True
    return np.flatnonzero(told & ~others)


def nearest_neighbours(party: Party, within: Any) -> Any:
    """LNNC: an edge from each node without a neighbour in its party to the nearest node there by angular distance.

    D(x, y) = arccos(x y / (|x| |y|)) / pi; a node without features is at right angles to all, ties go to the first
    node. A party with one node has nobody to join it to: such a node stays as it is.
    """
    alone = without_inner_neighbours(party)
    if party.nodes < 2 or not alone.size:
        return csr_array(within.shape)
    x = _unit_rows(matrices.from_tensor(party.graph.x))
    nearest = np.empty(alone.size, dtype=np.int64)
    for start in range(0, alone.size, 1024):  # not all similarities at once
        part = alone[start : start + 1024]
        likeness = x[part] @ x.T
        likeness = np.asarray(likeness.todense() if hasattr(likeness, "todense") else likeness)
        likeness[np.arange(part.size), part] = -np.inf
        nearest[start : start + 1024] = likeness.argmax(1)
    pairs = np.unique(np.sort(np.stack([alone, nearest]), axis=0), axis=1)
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    return coo_array((np.ones(both.shape[1]), (both[0], both[1])), shape=within.shape).tocsr()


def _unit_rows(x: Any) -> Any:
    sparse = hasattr(x, "tocsr")
    norms = np.sqrt(np.asarray((x.multiply(x) if sparse else x * x).sum(1)).ravel())
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return x.multiply(scale[:, None]).tocsr() if sparse else x * scale[:, None]


def _adjacency(party: Party) -> Any:
    """A + I within the party, `[nodes, nodes]`, row i summing over the edges j -> i."""
    loops = np.arange(party.nodes)
    source, target = np.concatenate([party.graph.edge_index.numpy(), np.stack([loops, loops])], axis=1)
    weight = getattr(party.graph, "edge_weight", None)
    values = np.ones(source.size)
    if weight is not None:
        values[: weight.numel()] = weight.double().numpy()
    matrix = coo_array((values, (target, source)), shape=(party.nodes,) * 2).tocsr()
    probe = np.cos(loops)  # A v = A' v for some v of no pattern says as much as A = A', and is quick
    if not np.allclose(matrix @ probe, matrix.T @ probe, atol=1e-6 * max(1.0, float(abs(values).max()))):
        raise PartyFailed(
            party.name,
            "its edges run one way only: coupled graphs have them both ways, see PyG's to_undirected",
        )
    return matrix


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


def _heard_of(
    party: Party, across: Any, names: NDArray[Any], least: int
) -> tuple[NDArray[np.float64], dict[str, Ints]]:
    """For every own node the edges over which something comes, `[nodes]`; and by other party which nodes those are.

    Something comes from a party that has at least `least` neighbours of the node.
    """
    edges = across.tocoo()
    owners, owner = np.unique(names, return_inverse=True)
    groups, group, counts = np.unique(
        owner[edges.row] * np.int64(party.nodes) + edges.col, return_inverse=True, return_counts=True
    )
    enough = counts >= least
    total = np.bincount(edges.col, edges.data * enough[group], minlength=party.nodes).astype(np.float64)
    whose, nodes = np.divmod(groups[enough], party.nodes)
    if party.ids is not None:
        order = np.lexsort((party.ids.numpy()[nodes], whose))
        whose, nodes = whose[order], nodes[order]
    return total, {str(owners[at]): nodes[whose == at] for at in np.unique(whose)}


def _block_diagonal(blocks: Sequence[Any]) -> Any:
    """Matrices along the diagonal of one."""
    entries = np.cumsum([0, *[block.nnz for block in blocks]])
    columns = np.cumsum([0, *[block.shape[1] for block in blocks]])
    indptr = np.concatenate([[0], *[block.indptr[1:] + entries[at] for at, block in enumerate(blocks)]])
    indices = np.concatenate([block.indices.astype(np.int64) + columns[at] for at, block in enumerate(blocks)])
    data = np.concatenate([block.data for block in blocks])
    return csr_array((data, indices, indptr), shape=(indptr.size - 1, int(columns[-1])))
