"""What layers propagate by on a part of a large graph: rows of the whole graph's matrices.

Layers that propagate by a matrix M (see `Propagations`) get rows of the whole graph's M, not the matrix that follows
from the part. If all edges into a node are in the part, its row is exact. If some were drawn, their entries are
multiplied by (edges into the node) / (drawn edges), so that the row is M's on average over draws, whether M normalises
by degrees (GCN), averages (GraphSAGE) or sums up (GIN). PyG's loaders recompute M on the part instead, where the
outermost nodes have degree 1: a GCN then trains with other coefficients than it is evaluated with.

Of small graphs, of which a batch has some, all edges are there. Rows of one matrix of all graphs are then a matter of
speed: they have the bits that the batch's own matrix would have, in a fifth of the time where graphs have many edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from scipy.sparse import coo_array
from torch import Tensor

from isthmus.data import matrices, rows
from isthmus.data.cohort import Block
from isthmus.data.neighbours import Graphs, Neighbours, NodeRange, SomeGraphs, Subgraph
from isthmus.nn.products import (
    EdgeValues,
    Propagation,
    Propagations,
    has_csr,
    has_sparse,
    mean_edges,
    normalised_edges,
    plain_edges,
    sparse_product,
)


@dataclass(frozen=True)
class Factors:
    """A propagation matrix by its factors: the entry of an edge j -> i with weight w is left_i w right_j.

    Arguments:
        left, right: `[nodes]`, or none for 1.
        loop: entries of the diagonal, `[nodes]`; edges from a node to itself then count for nothing. None: there is
            no diagonal but those edges.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    loop: Tensor | None = None


def factors_of(whole: Neighbours, edges: EdgeValues, dtype: torch.dtype, *, weighted: bool, **options: Any) -> Factors:
    """The factors of the matrix that `edges` gives for a whole graph, with or without its edge weights; cached."""
    key = (edges, dtype, weighted, *sorted(options.items()))
    if key not in whole.factors:
        whole.factors[key] = _FACTORS[edges](whole, whole.weight if weighted else None, dtype, **options)
    factors: Factors = whole.factors[key]
    return factors


def _normalised(
    whole: Neighbours,
    weight: Tensor | None,
    dtype: torch.dtype,
    *,
    improved: bool = False,
    self_loops: bool = True,
) -> Factors:
    loop, degree = None, _absolute_sums(whole, weight, dtype)
    if self_loops:
        # PyG heeds `improved` in weighted graphs only
        loop = degree.new_full((whole.nodes,), 2.0 if improved and weight is not None else 1.0)
        at = (whole.source == whole.target).nonzero().squeeze(1)  # a node's own edge replaces the added one
        own = whole.source[at].long()
        given = degree.new_ones(at.numel()) if weight is None else weight[at].to(dtype)
        degree = degree.index_add(0, own, -given.abs())
        loop[own] = given
        degree = degree + loop.abs()
    scale = degree.pow(-0.5).masked_fill_(degree == 0, 0)
    return Factors(scale, scale, None if loop is None else scale * loop * scale)


def _mean(whole: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> Factors:
    total = _absolute_sums(whole, weight, dtype)
    return Factors(left=torch.where(total > 0, total, 1.0).reciprocal())


def _plain(whole: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> Factors:
    return Factors()


_FACTORS: dict[EdgeValues, Callable[..., Factors]] = {
    normalised_edges: _normalised,
    mean_edges: _mean,
    plain_edges: _plain,
}


def _absolute_sums(whole: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Sum of the absolute weights of the edges into every node."""
    if weight is None:
        return whole.degree.to(dtype)
    total = torch.zeros(whole.nodes, dtype=dtype, device=whole.device)
    return total.index_add_(0, whole.target, weight.abs().to(dtype))


class Hop:
    """The edges that one layer reads in a part of a graph: from rows of its input to rows of its output.

    A layer with a twin gets it in place of `edge_index`.

    Arguments:
        part: the part.
        within: the output has the nodes at most this many hops from the seeds, the input those one hop further; None:
            both have all nodes.
    """

    def __init__(self, part: Subgraph, within: int | None = None) -> None:
        self.part = part
        self._within = within

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor] | None:
        """For every node of the part its row in the input, and in the output; others' numbers mean nothing."""
        if self._within is None:
            return None
        depth = self.part.depth
        return (depth <= self._within + 1).cumsum(0) - 1, (depth <= self._within).cumsum(0) - 1

    def own(self, x: Tensor) -> Tensor:
        """The rows of the layer's input that belong to the nodes of its output."""
        if self._within is None:
            return x
        at = self.part.derived(("own", self._within), self._own)
        return x if at.numel() == x.size(0) else x.index_select(0, at)

    def _own(self) -> Tensor:
        assert self._ends is not None
        assert self._within is not None
        return self._ends[0][self.part.rows_within(self._within)]

    def matrix(
        self, edges: EdgeValues, dtype: torch.dtype, *, weighted: bool = True, **options: Any
    ) -> RowsOfMatrix | Propagation:
        """These rows of the matrix that `edges` gives for the whole graph, with its edge weights or without."""

        def make() -> RowsOfMatrix | Propagation:
            found = self._matrix(edges, dtype, weighted=weighted, **options)
            return found if self.part.kept is None else found.both_ways()

        found: RowsOfMatrix | Propagation = self.part.derived(
            (self._within, edges, dtype, weighted, *sorted(options.items())), make
        )
        return found

    def _matrix(self, edges: EdgeValues, dtype: torch.dtype, *, weighted: bool, **options: Any) -> RowsOfMatrix:
        part = self.part
        weight = part.whole.weight if weighted else None
        factors = factors_of(part.whole, edges, dtype, weighted=weight is not None, **options)
        (source, target), scale, at = part.edge_index, part.scale, part.edges
        if self._within is not None and self._within + 1 < len(part.fan_out):
            inside = (part.depth[target] <= self._within).nonzero().squeeze(1)
            source, target, scale, at = source[inside], target[inside], scale[inside], at[inside]
        values = scale.to(dtype)
        if weight is not None:
            values = values * weight[at].to(dtype)
        if factors.left is not None:
            values = values * factors.left[part.nodes[target]]
        if factors.right is not None:
            values = values * factors.right[part.nodes[source]]
        if factors.loop is not None:
            values = values * (source != target)
            every = torch.arange(part.nodes.numel(), device=values.device)
            every = every if self._within is None else part.rows_within(self._within)
            source, target = torch.cat([source, every]), torch.cat([target, every])
            values = torch.cat([values, factors.loop[part.nodes[every]]])
        shape = (part.nodes.numel(), part.nodes.numel())
        if self._ends is not None:
            source, target = self._ends[0][source], self._ends[1][target]
            shape = (int(self._ends[1][-1]) + 1, int(self._ends[0][-1]) + 1)
        return RowsOfMatrix(source, target, values, shape)


class Hops(Hop):
    """The edges of a part for a whole model: all of them, or layer by layer no more than the seeds' outputs need."""

    def __init__(self, part: Subgraph, *, trims: bool) -> None:
        super().__init__(part)
        self.trims = trims

    @property
    def layouts(self) -> tuple[tuple[int, ...], ...]:
        """Number of rows of each party within each number of hops."""
        found: tuple[tuple[int, ...], ...] = self.part.derived("layouts", self._layouts) if self.trims else ()
        return found

    def _layouts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.part.sizes_within(hops) for hops in range(len(self.part.fan_out)))

    def layer(self, at: int, layers: int) -> Hop:
        """The edges of the layer at this place of a chain of layers, each of which reaches one hop."""
        return Hop(self.part, min(layers - 1 - at, len(self.part.fan_out))) if self.trims else self


class RangeHop:
    """The edges into some nodes that follow each other: a layer's input has all nodes, its output these."""

    def __init__(self, part: NodeRange) -> None:
        self.part = part

    @property
    def layouts(self) -> tuple[tuple[int, ...], ...]:
        return (self.part.own_sizes,)

    def own(self, x: Tensor) -> Tensor:
        return x[self.part.start : self.part.stop]

    def matrix(self, edges: EdgeValues, dtype: torch.dtype, *, weighted: bool = True, **options: Any) -> SliceOfMatrix:
        """These rows of the matrix that `edges` gives for the whole graph."""
        whole, at = self.part.whole, slice(self.part.start, self.part.stop)
        weight = whole.weight if weighted else None
        factors = factors_of(whole, edges, dtype, weighted=weight is not None, **options)
        begin = whole.start[self.part.start : self.part.stop + 1]
        inside = slice(int(begin[0]), int(begin[-1]))
        source, degree = whole.source[inside], begin.diff()
        values = torch.ones(source.numel(), dtype=dtype, device=source.device)
        if weight is not None:
            values *= weight[inside].to(dtype)
        if factors.left is not None:
            values *= factors.left[at].repeat_interleave(degree)
        if factors.right is not None:
            values *= factors.right[source]
        if factors.loop is not None:
            target = torch.arange(at.start, at.stop, dtype=source.dtype, device=source.device)
            values *= source != target.repeat_interleave(degree)
        rows_of_matrix = rows.csr(begin - begin[0], source.long(), values, (degree.numel(), whole.nodes))
        return SliceOfMatrix(rows_of_matrix, None if factors.loop is None else factors.loop[at], at)


class SliceOfMatrix:
    """Rows of a sparse matrix that follow each other, with their part of a diagonal."""

    def __init__(self, matrix: Tensor, diagonal: Tensor | None, at: slice) -> None:
        self.matrix, self.diagonal, self.at = matrix, diagonal, at

    def __matmul__(self, h: Tensor) -> Tensor:
        product = sparse_product(self.matrix, h)
        return product if self.diagonal is None else product + self.diagonal.unsqueeze(1) * h[self.at]


class GraphsHop:
    """The edges of all or some graphs, or of one view of them: a layer's input and output have all their nodes."""

    layouts = ()

    def __init__(self, part: Graphs | SomeGraphs, view: int | None = None) -> None:
        self.part, self.view = part, view

    def edges_of(self, graphs: Graphs | SomeGraphs) -> tuple[Tensor, Tensor | None]:
        """The edges and edge weights of these graphs, or of all, in this view."""
        index, weight, view = graphs.edge_index, graphs.edge_weight, self.view
        if view is None or weight is None:
            return index, weight
        found: tuple[Tensor, Tensor] = graphs.derived(("view", view), lambda: edges_of_view(index, weight, view))
        return found


def edges_of_view(edge_index: Tensor, edge_weight: Tensor, view: int) -> tuple[Tensor, Tensor]:
    """The edges of a view, and their weights; in `edge_weight` `[edges, views]` others have 0 in it."""
    weight = edge_weight[:, view]
    inside = weight != 0
    return edge_index[:, inside], weight[inside]


def graphs_of(block: Block) -> GraphsHop | None:
    """What layers that propagate by matrices get as the edges of small graphs."""
    part = block.part
    if not isinstance(part, Graphs | SomeGraphs):
        return None
    same = block.edge_index is part.edge_index and block.edge_weight is part.edge_weight
    return GraphsHop(part) if same and has_csr(block.edge_index.device) else None


def hops_of(block: Block) -> Hops | RangeHop | None:
    """What layers get as edges if the block is a part of a larger one."""
    if isinstance(block.part, NodeRange):
        return RangeHop(block.part)
    return Hops(block.part, trims=block.trims) if isinstance(block.part, Subgraph) else None


def of_layer(edges: Any, at: int, layers: int) -> Any:
    """What the layer at this place gets as its edges: its own hop of `Hops`, else the same as all others."""
    return edges.layer(at, layers) if isinstance(edges, Hops) else edges


def own_rows(x: Tensor, edges: Any) -> Tensor:
    """The rows of a layer's input that belong to the nodes of its output: all, unless a `Hop` says otherwise."""
    return edges.own(x) if isinstance(edges, Hop | RangeHop) else x


def propagates_first(edges: Any, width: int, out: int) -> bool:
    """Whether (M x) W takes fewer products than M (x W), as far as that can be told without looking at all parties."""
    if isinstance(edges, RangeHop) or (isinstance(edges, Hop) and edges.part.kept is None):
        return True  # the output has far fewer rows than the input, as in a batch
    return width < out or (width == out and isinstance(edges, Hop))


class HopPropagations(Propagations):
    """Propagation matrices of graphs and of hops; those of a hop are kept with its part of the graph, or not."""

    def __call__(
        self, edges: EdgeValues, edge_index: Any, edge_weight: Tensor | None, nodes: int, **options: Any
    ) -> Any:
        if isinstance(edge_index, GraphsHop):
            return self._of_graphs(edges, edge_index, weighted=edge_weight is not None, **options)
        if not isinstance(edge_index, Hop | RangeHop):
            return super().__call__(edges, edge_index, edge_weight, nodes, **options)
        return edge_index.matrix(edges, weighted=edge_weight is not None, **options)

    def _of_graphs(self, edges: EdgeValues, hop: GraphsHop, *, weighted: bool, **options: Any) -> Propagation:
        """The matrix of graphs, kept with them; of some, rows of that of all graphs unless they are most of these."""

        def of(graphs: Graphs | SomeGraphs) -> Propagation:
            if isinstance(graphs, SomeGraphs) and 2 * graphs.edge_index.size(1) <= graphs.whole.edge_index.size(1):
                return kept(graphs.whole).of_graphs(graphs)
            index, weight = hop.edges_of(graphs)
            nodes = int(graphs.nodes.sum()) if isinstance(graphs, Graphs) else graphs.nodes
            return Propagation(*edges(index, weight if weighted else None, nodes, **options), nodes)

        def kept(graphs: Graphs | SomeGraphs) -> Propagation:
            found: Propagation = graphs.derived(key, lambda: of(graphs))
            return found

        key = edges, hop.view, weighted, *sorted(options.items())
        return kept(hop.part)


class RowsOfMatrix:
    """A constant sparse matrix for one product with its gradient; the transpose is made only if backward needs it."""

    def __init__(self, source: Tensor, target: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.source, self.target, self.values, self.shape = source, target, values, shape

    def both_ways(self) -> Propagation:
        """The same for many products."""
        into, nodes = self.shape
        return Propagation(torch.stack([self.source, self.target]), self.values, nodes, into)

    def __matmul__(self, h: Tensor) -> Tensor:
        return _Product.apply(self, h)  # type: ignore[no-untyped-call]

    def product(self, h: Tensor) -> Tensor:
        return _multiply(self.target, self.source, self.values, self.shape, h)

    def backward(self, grad: Tensor) -> Tensor:
        return _multiply(self.source, self.target, self.values, self.shape[::-1], grad)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: RowsOfMatrix, h: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.product(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.backward(grad.contiguous())


def _multiply(row: Tensor, column: Tensor, values: Tensor, shape: tuple[int, ...], h: Tensor) -> Tensor:
    """The product of a matrix, given by its entries, with `h`."""
    if not has_sparse(h.device):
        return h.new_zeros(shape[0], h.size(1)).index_add_(0, row, values.unsqueeze(1) * h[column])
    if h.device.type != "cpu":
        return torch.sparse_coo_tensor(torch.stack([row, column]), values, shape) @ h
    matrix = coo_array((values.numpy(), (row.int().numpy(), column.int().numpy())), shape=shape)
    matrix.has_canonical_format = True  # scipy would sort every row to add up repeated edges, five times the work
    return sparse_product(matrices.to_tensor(matrix.tocsr()), h)
