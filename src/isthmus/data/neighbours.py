"""The in-neighbours of every node, and the subgraphs around some nodes that are read from them.

PyG samples neighbours only with compiled extras (pyg-lib or torch-sparse); here it takes a few tensor operations per
hop, whatever the number of parties.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from isthmus.data import rows

Uniform: TypeAlias = Callable[[int, Sequence[int], int], Tensor]
"""Given a hop, the number of rows of each party and a width: numbers in [0, 1), `[rows, width]`, for every party the
same whichever other parties there are."""


class Neighbours:
    """The edges of a graph sorted by target (CSR): the in-neighbours of every node.

    Edges with the same target keep the order that they have in `edge_index`.

    Arguments:
        edge_index: `[2, edges]`; it may be memory-mapped.
        nodes: number of nodes.
        edge_weight: `[edges]` or none.
        more: other columns of edges by name, in the order of `edge_index`; they are read, not copied.

    Attributes:
        start: where the edges of each target begin, `[nodes + 1]`.
        source: source of every edge, `[edges]`; 4 bytes each.
        weight: weight of every edge, `[edges]`, or none.
        factors: what others derive from the whole graph and cache here.

    >>> near = Neighbours(torch.tensor([[0, 1, 2], [2, 0, 0]]), 3)
    >>> near.start.tolist(), near.source.tolist()
    ([0, 2, 2, 3], [1, 2, 0])
    """

    def __init__(
        self,
        edge_index: Tensor,
        nodes: int,
        edge_weight: Tensor | None = None,
        more: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        order, self.source = _by_target(edge_index, nodes)
        self._more, self._order = dict(more), order if more else None
        self.nodes = nodes
        self.weight = None if edge_weight is None else edge_weight[order.long()]
        self.start = torch.zeros(nodes + 1, dtype=torch.long, device=edge_index.device)
        torch.cumsum(torch.bincount(edge_index[1], minlength=nodes), 0, out=self.start[1:])
        self.factors: dict[Any, Any] = {}

    @property
    def device(self) -> torch.device:
        return self.start.device

    def per_edge(self, at: Tensor) -> dict[str, Any]:
        """The columns of the edges at these positions by name, weights among them."""
        columns = {} if self.weight is None else {"edge_weight": self.weight[at]}
        if self._order is not None:
            given = self._order[at].long()
            columns |= {name: column[given] for name, column in self._more.items()}
        return columns

    @cached_property
    def degree(self) -> Tensor:
        """Number of edges into every node, `[nodes]`."""
        return self.start.diff()

    @property
    def target(self) -> Tensor:
        """Target of every edge, `[edges]`. Computed at every call, not kept."""
        return torch.arange(self.nodes, device=self.device, dtype=torch.int32).repeat_interleave(self.degree)

    def around(
        self, seeds: Tensor, fan_out: Sequence[int | None], sizes: Sequence[int], uniform: Uniform | None = None
    ) -> Subgraph:
        """The subgraph of the edges into the seeds, into the sources of these, and so on.

        Arguments:
            seeds: positions of nodes; the same one may be there twice.
            fan_out: for each hop how many edges into a node are drawn at most, without replacement; None takes all.
            sizes: number of nodes of each party, whose nodes follow each other.
            uniform: where draws come from; not needed if all edges are taken.
        """
        depth = torch.full((self.nodes,), -1, dtype=torch.int16, device=self.device)
        depth[seeds] = 0
        ends = torch.tensor(sizes, device=self.device).cumsum(0)
        frontier, edges, targets = (depth == 0).nonzero().squeeze(1), [], []
        for hop, most in enumerate(fan_out):
            chosen, counts = self._edges_into(frontier, most, ends, partial(uniform or _nothing, hop))
            edges.append(chosen)
            targets.append(frontier.repeat_interleave(counts))
            reached = self.source[chosen].long()
            depth[reached[depth[reached] < 0]] = hop + 1
            frontier = (depth == hop + 1).nonzero().squeeze(1)
        nodes = (depth >= 0).nonzero().squeeze(1)
        at = torch.cat(edges) if edges else nodes[:0]
        target = torch.cat(targets) if targets else nodes[:0]
        position = torch.empty(self.nodes, dtype=torch.long, device=self.device)
        position[nodes] = torch.arange(nodes.numel(), device=self.device)
        edge_index = torch.stack([position[self.source[at].long()], position[target]])
        order = _by_target(edge_index, nodes.numel())[0].long()  # those of a party must follow each other
        return Subgraph(self, nodes, depth[nodes], edge_index[:, order], at[order], tuple(fan_out), _sizes(nodes, ends))

    def _edges_into(
        self, frontier: Tensor, most: int | None, ends: Tensor, uniform: Callable[[Sequence[int], int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Positions of the edges drawn into each node of the frontier, node after node, and how many each has."""
        begin = self.start[frontier]
        degree = self.start[frontier + 1] - begin
        if most is None or not bool((many := degree > most).any()):
            return rows.concat_ranges(begin, degree), degree
        counts = degree.clamp(max=most)
        first = counts.cumsum(0) - counts
        chosen = torch.empty(int(counts.sum()), dtype=torch.long, device=self.device)
        few = ~many
        chosen[rows.concat_ranges(first[few], degree[few])] = rows.concat_ranges(begin[few], degree[few])
        ranks = distinct(degree[many], uniform(_sizes(frontier[many], ends), most))
        chosen[first[many] + torch.arange(most, device=self.device).unsqueeze(1)] = begin[many] + ranks
        return chosen, counts


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Nodes around some seeds, and edges between them.

    Arguments:
        whole: the graph that it is a part of.
        nodes: positions of its nodes in the whole graph, ascending, `[nodes]`.
        depth: how many hops a node is away from the seeds, `[nodes]`; edges into a node of depth d are those of hop d.
        edge_index: its edges between positions in `nodes`, `[2, edges]`.
        edges: positions of these edges in the whole graph, `[edges]`.
        fan_out: most edges into a node by hop; None for all.
        sizes: number of nodes of each party.
        kept: what others derive from it and cache here; None if it is read once, so that nothing is worth keeping.
    """

    whole: Neighbours
    nodes: Tensor
    depth: Tensor
    edge_index: Tensor
    edges: Tensor
    fan_out: tuple[int | None, ...]
    sizes: tuple[int, ...]
    kept: dict[Any, Any] | None = field(default=None, repr=False)

    @property
    def per_edge(self) -> dict[str, Any]:
        """The columns of its edges by name."""
        return self.whole.per_edge(self.edges)

    @cached_property
    def scale(self) -> Tensor:
        """For every edge, into how many edges its target has in the whole graph for each that was drawn, `[edges]`.

        A sum over edges times this is, on average over draws, the sum over all edges of the whole graph.
        """
        drawn = torch.bincount(self.edge_index[1], minlength=self.nodes.numel())
        return (self.whole.degree[self.nodes] / drawn.clamp(min=1))[self.edge_index[1]]

    def derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives; kept under this key if the subgraph is read again and again."""
        if self.kept is None:
            return make()
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def rows_within(self, hops: int) -> Tensor:
        """Positions of the nodes at most this many hops from the seeds, ascending."""
        return (self.depth <= hops).nonzero().squeeze(1)

    def sizes_within(self, hops: int) -> tuple[int, ...]:
        """How many such nodes each party has."""
        inside = (self.depth <= hops).split(self.sizes)
        return tuple(int(part.sum()) for part in inside)

    def rows_of(self, seeds: Tensor, *, among_seeds: bool) -> Tensor:
        """The positions of seeds among all seeds, ascending and each once; or among all nodes."""
        nodes = self.nodes[self.depth == 0] if among_seeds else self.nodes
        return torch.searchsorted(nodes, seeds)


@dataclass(frozen=True, eq=False)
class NodeRange:
    """Some nodes that follow each other, of a graph all of whose nodes' rows are at hand.

    Arguments:
        whole: the graph.
        start, stop: positions of the first node, and of the one behind the last.
        sizes: number of nodes of each party in the whole graph.
    """

    whole: Neighbours
    start: int
    stop: int
    sizes: tuple[int, ...]

    @property
    def own_sizes(self) -> tuple[int, ...]:
        """How many of these nodes each party has."""
        ends = [min(max(end, self.start), self.stop) for end in itertools.accumulate(self.sizes, initial=0)]
        return tuple(after - before for before, after in itertools.pairwise(ends))


class _Kept:
    """Keeps what others derive from it; copies do not, as torch copies no sparse matrices."""

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        return {}

    def derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives; kept under this key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_kept"}


class Graphs(_Kept):
    """Many small graphs, one after another.

    Arguments:
        edge_index: `[2, edges]`, edges of a graph in any place.
        batch: the graph of every node, ascending.
        count: number of graphs.
        edge_weight: `[edges]` or `[edges, views]`, or none.

    Attributes:
        nodes: number of nodes of each graph.
        first: position of the first node of each graph.
    """

    def __init__(self, edge_index: Tensor, batch: Tensor, count: int, edge_weight: Tensor | None) -> None:
        self.edge_index, self.edge_weight = edge_index, edge_weight
        self._batch = batch
        self.nodes = torch.bincount(batch, minlength=count)
        self.first = self.nodes.cumsum(0) - self.nodes

    @cached_property
    def _edges(self) -> tuple[Tensor, Tensor | None]:
        """The number of edges of each graph; the edges in the order of their graphs, or none if they are in order."""
        graph = self._batch[self.edge_index[0]]
        in_order = bool((graph.diff() >= 0).all())
        counts = torch.bincount(graph, minlength=self.nodes.numel())
        return counts, None if in_order else torch.argsort(graph, stable=True)

    def edges_of(self, chosen: Tensor) -> Tensor:
        """Positions of the edges of the chosen graphs, graph after graph."""
        counts, order = self._edges
        at = rows.chosen_ranges(counts, chosen)
        return at if order is None else order.index_select(0, at)

    def some(self, chosen: Tensor, edges: Tensor, edge_weight: Tensor | None) -> SomeGraphs:
        """The chosen graphs with these edges of theirs, see `edges_of`."""
        sizes = self.nodes[chosen]
        shift = sizes.cumsum(0) - sizes - self.first[chosen]
        edge_index = self.edge_index.new_empty(2, edges.numel())
        for end, of_all in zip(edge_index, self.edge_index, strict=True):  # both at once take five times as long
            torch.index_select(of_all, 0, edges, out=end)
        edge_index += shift.repeat_interleave(self._edges[0][chosen])
        return SomeGraphs(self, chosen, shift, edge_index, edge_weight)


@dataclass(frozen=True, eq=False)
class SomeGraphs(_Kept):
    """Some of many small graphs, with all their nodes and edges.

    Arguments:
        whole: all graphs.
        chosen: positions of these.
        shift: by how much the positions of each graph's nodes here are larger than among those of all graphs.
        edge_index: their edges between positions in the nodes of these, graph after graph, `[2, edges]`.
        edge_weight: the weights of these edges, or none.
    """

    whole: Graphs
    chosen: Tensor
    shift: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None

    @cached_property
    def nodes(self) -> int:
        return int(self.whole.nodes[self.chosen].sum())


def distinct(degree: Tensor, uniform: Tensor) -> Tensor:
    """Floyd's algorithm for many rows at once: `k` distinct numbers below each degree, every set as likely.

    It takes k draws per row, however large the degree: a hub costs what others cost.

    Arguments:
        degree: `[rows]`, each larger than k.
        uniform: numbers in [0, 1), `[rows, k]`.

    Returns:
        `[k, rows]`.
    """
    count = uniform.size(1)
    found = degree.new_empty(count, degree.numel())
    for at, draw in enumerate(uniform.t().double()):
        last = degree - count + at  # the number that is taken if the drawn one is there already
        number = (draw * (last + 1)).long().clamp_(max=last)
        twice = (found[:at] == number).any(0)
        found[at] = torch.where(twice, last, number)
    return found


def _nothing(hop: int, sizes: Sequence[int], width: int) -> Tensor:
    raise ValueError("edges are drawn and there is nothing to draw from: pass `uniform`")


def _sizes(nodes: Tensor, ends: Tensor) -> tuple[int, ...]:
    """How many of these nodes, ascending, each party has, given where its nodes end."""
    at = torch.searchsorted(nodes, ends)
    return tuple(torch.diff(at, prepend=at.new_zeros(1)).tolist())


def _by_target(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """The order of the edges by target, and their sources in that order."""
    source, target = edge_index
    if edge_index.device.type != "cpu":
        order = torch.argsort(target, stable=True)
        return order, source[order].int()
    # a matrix with one entry per row: scipy's transpose counts where torch sorts, and keeps the order within a target
    entries = np.arange(source.numel() + 1, dtype=np.int32 if source.numel() < 2**31 - 1 else np.int64)
    shape = (source.numel(), nodes)
    matrix = csr_array((source.int().numpy(), target.numpy().astype(entries.dtype), entries), shape=shape).tocsc()
    return torch.from_numpy(matrix.indices), torch.from_numpy(matrix.data)
