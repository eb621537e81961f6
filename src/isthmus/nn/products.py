"""Products for many parties at once: rows with their party's slice of weights, and propagation over a fixed graph.

Torch and PyG have these only with compiled extras. Parties that follow each other and have about equally many rows
share one `torch.bmm`: with 1,000 parties of 20 rows it takes a third of the time of a `torch.mm` for each. One sparse
product serves all parties when each party's columns are shifted to its slice. A party's numbers have the same bits
whichever other parties are computed with it: that is why rows are filled up as they are.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import torch
from scipy.sparse import coo_array
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import handle_torch_function, has_torch_function
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_remaining_self_loops

from isthmus.data import matrices, rows
from isthmus.data.neighbours import SomeGraphs

EdgeValues: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""Gives a propagation matrix's edges and their values: `normalised_edges`, `plain_edges` or `mean_edges`."""
SCIPY_FROM = 10_000
"""Number of edges from which scipy sorts them faster than torch."""
PRODUCT = 60_000
"""Multiplications that take as long as the call of a product."""
EXACT_ABOVE = 120
"""Rows of a party above which a product rounds in another way if it is filled up."""
LEAST = 400
"""Multiplications from which torch hands a product to a library, which rounds in another way than its own loops."""
ALIGNED = 16
"""Numbers that a processor's cache has in a line."""
FEW = 4
"""Outputs below which some processors' libraries round a product in a way that depends on its other rows."""
STEP = 8
"""What rows are filled up to a multiple of: below `EXACT_ABOVE` the library then rounds a row always alike."""


@dataclass(frozen=True)
class Band:
    """Parties that follow each other and are computed in one call, as if each had `size` rows.

    Arguments:
        parties: their slice.
        rows: the slice of their rows.
        size: rows of each, filled up with zeros.
        places: for every row its place if each party had `size` rows; None: each has.
    """

    parties: slice
    rows: slice
    size: int
    places: Tensor | None = None

    def split(self, of_rows: Tensor) -> Tensor:
        """Rows of all parties: those of this band, `[parties, size, ...]`, filled up with zeros."""
        own = of_rows[self.rows]
        if self.places is not None:
            count = self.parties.stop - self.parties.start
            own = own.new_zeros(count * self.size, *own.shape[1:]).index_copy_(0, self.places, own)
        return own.view(-1, self.size, *own.shape[1:])

    def multiply(self, left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        """A product for each party, `[parties, size, ...]`, plus a bias for each, into its rows of `out`."""
        own, columns = out[self.rows], right.size(2)
        product = torch.bmm(left, right, **({"out": own.view(-1, self.size, columns)} if self.places is None else {}))
        if bias is not None:
            product += bias[self.parties].unsqueeze(1)
        if self.places is not None:
            torch.index_select(product.view(-1, columns), 0, self.places, out=own)


@lru_cache(maxsize=64)
def bands_of(sizes: tuple[int, ...], numbers: int, device: torch.device) -> tuple[Band, ...]:
    """Split parties into bands; those without rows are in none, or count for nothing.

    Neighbours share a band if filling up to the most rows of one of them adds no more products than a call takes. How
    far a party is filled up leaves its numbers' bits alone, so these are the same in every cohort.

    Arguments:
        numbers: in the weights of a party, for each of which a row takes a product.

    >>> [(band.parties, band.size) for band in bands_of((2, 3, 9, 130, 131), 10_000, torch.device("cpu"))]
    [(slice(0, 2, None), 8), (slice(2, 3, None), 16), (slice(3, 4, None), 130), (slice(4, 5, None), 131)]
    >>> [(band.parties, band.size) for band in bands_of((2, 3, 0, 9), 16, torch.device("cpu"))]
    [(slice(0, 4, None), 32)]
    """
    found: list[tuple[slice, slice, int]] = []
    party, row, spare, least = 0, 0, PRODUCT // numbers, filled(-(-LEAST // numbers))
    for size, run in itertools.groupby(sizes, filled):
        own = tuple(run)
        parties, of = slice(party, party + len(own)), slice(row, row + sum(own))
        party, row = parties.stop, of.stop
        size = max(size, least) if size else 0
        if found and found[-1][0].stop == parties.start:
            before, rows_before, most = found[-1]
            larger = max(most, size)
            added = len(own) * (larger - size) + (before.stop - before.start) * (larger - most)
            if size == most or (added <= spare and (larger <= EXACT_ABOVE or not size)):
                found[-1] = slice(before.start, parties.stop), slice(rows_before.start, of.stop), larger
                continue
        if size:
            found.append((parties, of, size))
    return tuple(Band(*each, _places_of(sizes[each[0]], each[2], device)) for each in found)


def filled(size: int) -> int:
    """To how many rows a party with so many is filled up, at least.

    >>> [filled(size) for size in (0, 1, 8, 9, 60, 120, 121)]
    [0, 8, 8, 16, 64, 120, 121]
    """
    return size if size > EXACT_ABOVE else -(-size // STEP) * STEP


def _places_of(sizes: tuple[int, ...], size: int, device: torch.device) -> Tensor | None:
    if all(each == size for each in sizes):
        return None
    return rows.concat_ranges(torch.arange(len(sizes)) * size, torch.tensor(sizes)).to(device)


class GroupedLinear(torch.autograd.Function):
    """`y[rows of p] = x[rows of p] @ weight[p].T + bias[p]`, with the rows ordered by party."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sizes: tuple[int, ...], bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.sizes, ctx.bands = sizes, bands_of(sizes, weight[0].numel(), x.device)
        out = x.new_empty(x.size(0), weight.size(1))
        for band in ctx.bands:
            band.multiply(band.split(x), weight[band.parties].transpose(1, 2), out, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad, grad_x, grad_weight, grad_bias = grad.contiguous(), None, None, None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        for band in ctx.bands:
            slope = band.split(grad)
            if grad_x is not None:
                band.multiply(slope, weight[band.parties], grad_x)
            if grad_weight is not None:
                torch.bmm(slope.transpose(1, 2), band.split(x), out=grad_weight[band.parties])
        if ctx.needs_input_grad[3]:
            grad_bias = _sum_per_party(grad, ctx.sizes)
        return grad_x, grad_weight, None, grad_bias


class PerRow(torch.autograd.Function):
    """Repeat each party's slice for its rows: `[parties, ...] -> [rows, ...]`."""

    @staticmethod
    def forward(ctx: Any, stack: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes = sizes
        return stack.index_select(0, _party_of_rows(sizes, stack.device))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum_per_party(grad, ctx.sizes), None


_party_of_rows = lru_cache(maxsize=64)(rows.party_of_rows)


def _sum_per_party(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    total = values.new_zeros(len(sizes), *values.shape[1:])
    return total.index_add_(0, _party_of_rows(sizes, values.device), values)


class ByInput(torch.autograd.Function):
    """`[parties, out, in] -> [parties * in, out]`."""

    @staticmethod
    def forward(ctx: Any, stack: Tensor) -> Tensor:
        ctx.parties = stack.size(0)
        return transposed(stack).view(-1, stack.size(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return transposed(grad.view(ctx.parties, -1, grad.size(1)))


def transposed(stack: Tensor) -> Tensor:
    """`[parties, a, b] -> [parties, b, a]`, copied; torch transposes one matrix in blocks, a stack number by number."""
    found = stack.new_empty(stack.size(0), stack.size(2), stack.size(1))
    for own, matrix in zip(found, stack, strict=True):
        own.copy_(matrix.t())
    return found


def by_input(stack: Tensor) -> Tensor:
    """Weights of linear layers as the rows that sparse features are multiplied with, party after party."""
    rows_of_inputs: Tensor = ByInput.apply(stack)  # type: ignore[no-untyped-call]
    return rows_of_inputs


def grouped_linear(x: Tensor, weight: Tensor, sizes: tuple[int, ...], bias: Tensor | None = None) -> Tensor:
    """`x[rows of p] @ weight[p].T + bias[p]`; x `[rows, in]`, weight `[parties, out, in]`, bias `[parties, out]`."""
    if has_torch_function((x,)):  # the calls inside are of no interest to a mode such as `PartyDropout`, and many
        return handle_torch_function(grouped_linear, (x,), x, weight, sizes, bias)
    if more := -x.size(1) % ALIGNED:  # the library rounds in another way where a party's numbers begin elsewhere
        x, weight = pad(x, (0, more)), pad(weight, (0, more))
    outputs = weight.size(1)
    if outputs < FEW:
        weight = pad(weight, (0, 0, 0, FEW - outputs))
        bias = None if bias is None else pad(bias, (0, FEW - outputs))
    product: Tensor = GroupedLinear.apply(x, weight, sizes, bias)  # type: ignore[no-untyped-call]
    return product[:, :outputs] if outputs < FEW else product


def per_row(stack: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Each party's slice of `stack` `[parties, ...]`, repeated for its rows."""
    return PerRow.apply(stack, sizes)  # type: ignore[no-untyped-call]


def has_sparse(device: torch.device) -> bool:
    """Whether the device has products with sparse matrices."""
    return device.type in ("cpu", "cuda")


def has_csr(device: torch.device) -> bool:
    """Whether propagation matrices are sparse matrices there, and not lists of edges."""
    return has_sparse(device) and not torch.compiler.is_exporting()


class Propagation:
    """A constant sparse matrix: row i of the product sums over the edges j -> i.

    It stores CSR and its transpose, so that backward needs no conversion. Devices without sparse products (mps) and
    exported programs go edge by edge.

    Arguments:
        nodes: rows of what it is multiplied with.
        into: rows of the product; as many if left out.
    """

    def __init__(self, edge_index: Tensor, values: Tensor, nodes: int, into: int | None = None) -> None:
        source, target = edge_index
        self.shape = (nodes if into is None else into, nodes)
        self._edges: tuple[Tensor, Tensor, Tensor] | None = None
        if has_csr(edge_index.device):
            self._forward, self._backward = _both_ways(source, target, values, self.shape)
        else:
            self._edges = source, target, values

    def of_graphs(self, part: SomeGraphs) -> Propagation:
        """The matrix of some graphs, of a sparse one of all graphs."""
        found = copy.copy(self)
        found.shape = (part.nodes, part.nodes)
        found._forward, at = _some_graphs(self._forward, part)
        if self._runs_both_ways:  # the transpose has its entries in the same places
            crow, col, values = found._forward.crow_indices(), found._forward.col_indices(), self._backward.values()
            found._backward = rows.csr(crow, col, values.index_select(0, at), found.shape)
        else:
            found._backward = _some_graphs(self._backward, part)[0]
        return found

    @cached_property
    def _runs_both_ways(self) -> bool:
        one, other = self._forward, self._backward
        return torch.equal(one.crow_indices(), other.crow_indices()) and torch.equal(
            one.col_indices(), other.col_indices()
        )

    def __matmul__(self, h: Tensor) -> Tensor:
        if self._edges is None:
            return SparseProduct.apply(self._forward, self._backward, h)  # type: ignore[no-untyped-call]
        source, target, values = self._edges
        return h.new_zeros(self.shape[0], h.size(1)).index_add(0, target, values.unsqueeze(1) * h[source])


class SparseProduct(torch.autograd.Function):
    """`matrix @ h` for a constant CSR matrix and its transpose."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transpose: Tensor, h: Tensor) -> Tensor:
        ctx.transpose = transpose
        return sparse_product(matrix, h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        return None, None, sparse_product(ctx.transpose, grad.contiguous())


def sparse_product(matrix: Tensor, h: Tensor) -> Tensor:
    """`matrix @ h` for CSR. torch's `@` fills a result with zeros and copies it first: a third more time."""
    return h.new_empty(matrix.size(0), h.size(1)).addmm_(matrix, h, beta=0)


class Propagations:
    """A cache of the propagation matrices of the last graphs.

    The key is the identity of `edge_index` and `edge_weight`; the cache keeps both alive so that no identity is reused.
    """

    def __init__(self, keep: int = 8) -> None:
        self.keep = keep
        self._cache: dict[tuple[Any, ...], tuple[tuple[Any, ...], Propagation]] = {}

    def __call__(
        self,
        edges: EdgeValues,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        nodes: int,
        **options: Any,
    ) -> Propagation:
        """The matrix whose edges and values are `edges(edge_index, edge_weight, nodes, **options)`."""
        key = (id(edge_index), id(edge_weight), nodes, edges, *sorted(options.items()))
        if key not in self._cache:
            while len(self._cache) >= self.keep:
                self._cache.pop(next(iter(self._cache)))
            matrix = Propagation(*edges(edge_index, edge_weight, nodes, **options), nodes)
            self._cache[key] = (edge_index, edge_weight), matrix
        return self._cache[key][1]


def normalised_edges(
    edge_index: Tensor,
    edge_weight: Tensor | None,
    nodes: int,
    improved: bool = False,
    self_loops: bool = True,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """PyG's `gcn_norm`, except that with negative weights a node's degree is the sum of absolute weights.

    Noisy weights may sum to zero or less, which has no real inverse root.
    """
    edge_weight = None if edge_weight is None else edge_weight.to(dtype)
    # an exported program has no branches; without negative weights both ways give the same
    if edge_weight is None or not (torch.compiler.is_exporting() or bool((edge_weight < 0).any())):
        return gcn_norm(edge_index, edge_weight, nodes, improved, self_loops, dtype=dtype)
    if self_loops:
        edge_index, edge_weight = add_remaining_self_loops(edge_index, edge_weight, 2.0 if improved else 1.0, nodes)
    degree = edge_weight.new_zeros(nodes).index_add_(0, edge_index[1], edge_weight.abs())
    scale = degree.pow(-0.5).masked_fill(degree == 0, 0)
    return edge_index, scale[edge_index[0]] * edge_weight * scale[edge_index[1]]


def plain_edges(
    edge_index: Tensor, edge_weight: Tensor | None, nodes: int, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The edge weights as they are; 1 without weights."""
    ones = torch.ones(edge_index.size(1), device=edge_index.device)
    return edge_index, (ones if edge_weight is None else edge_weight).to(dtype)


def mean_edges(
    edge_index: Tensor, edge_weight: Tensor | None, nodes: int, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Edge weights divided by the sum of the absolute weights of all edges with the same target."""
    _, weight = plain_edges(edge_index, edge_weight, nodes, dtype=dtype)
    total = weight.new_zeros(nodes).index_add_(0, edge_index[1], weight.abs())
    return edge_index, weight / torch.where(total > 0, total, 1.0)[edge_index[1]]


class Features:
    """Sparse features as the input of a first layer; `torch.nn.functional.dropout` and `linear` accept it.

    The products of all parties' rows with their slices of the weight are one sparse product: each row's columns are
    shifted to its party's slice. The shifted structure and its transpose are cached.
    """

    def __init__(self, x: Tensor, values: Tensor | None = None, structures: dict[Any, Any] | None = None) -> None:
        self.x = x
        self.values = x.values() if values is None else values
        self._structures: dict[Any, Any] = {} if structures is None else structures

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.dropout:  # in training `Draws` handles it
            return args[0]
        if func is torch.nn.functional.linear:
            return args[0].linear(*args[1:], **(kwargs or {}))
        return NotImplemented

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def size(self, dim: int) -> int:
        return self.x.size(dim)

    def dim(self) -> int:
        return 2

    def with_values(self, values: Tensor) -> Features:
        return Features(self.x, values, self._structures)

    def entries(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Number of stored entries in the rows of each party."""
        key = ("entries", tuple(sizes))
        if key not in self._structures:
            ends = torch.tensor(sizes).cumsum(0)
            at = self.x.crow_indices().cpu()[torch.cat([ends.new_zeros(1), ends])]
            self._structures[key] = tuple(at.diff().tolist())
        return self._structures[key]

    def all_columns(self, sizes: Sequence[int]) -> Columns:
        """`Columns` with the whole width for every party."""
        key = ("columns", tuple(sizes))
        if key not in self._structures:
            self._structures[key] = Columns(self.x, sizes, touched=False)
        return self._structures[key]

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, one weight for all rows."""
        out = self._product(("shared",), self.x.col_indices(), self.x.size(1), weight.t())
        return out if bias is None else out + bias

    def grouped(self, weight_rows: Tensor, columns: Columns) -> Tensor:
        """Every party's rows times its own slice of `weight_rows` (see `Columns`)."""
        return self._product(("grouped", columns), columns.of_entries, weight_rows.size(0), weight_rows)

    def _product(self, key: Any, columns: Tensor, width: int, h: Tensor) -> Tensor:
        if key not in self._structures:
            shape = (self.x.size(0), width)
            order = torch.argsort(columns, stable=True)
            source = _row_of_entries(self.x)[order]
            crow = _crow(columns, width)
            self._structures[key] = (columns, shape, order, source, crow)
        columns, shape, order, source, crow = self._structures[key]
        matrix = rows.csr(self.x.crow_indices(), columns, self.values, shape)
        if not (torch.is_grad_enabled() and h.requires_grad):
            return sparse_product(matrix, h)
        transpose = rows.csr(crow, source, self.values[order], (shape[1], shape[0]))
        return SparseProduct.apply(matrix, transpose, h)  # type: ignore[no-untyped-call]


class Columns:
    """Which rows of a first-layer weight (stored `[in, out]`) each party has in its slice.

    Arguments:
        x: sparse features of all parties.
        sizes: number of rows of x of each party.
        touched: only the columns in which a party has entries, else all columns.

    Attributes:
        index: the column of x of every row of the slices, party after party.
        sizes: number of rows of each party's slice.
        of_entries: for every stored entry of x, the row that it is multiplied with.
    """

    def __init__(self, x: Tensor, sizes: Sequence[int], touched: bool) -> None:
        self.x, self.touched = x, touched
        width = x.size(1)
        party = rows.party_of_rows(sizes, x.device)
        key = party[_row_of_entries(x)] * width + x.col_indices()
        if touched:
            touched_keys, self.of_entries = torch.unique(key, return_inverse=True)
            self.index = touched_keys % width
            self.sizes = tuple(torch.bincount(touched_keys // width, minlength=len(sizes)).tolist())
        else:
            self.of_entries = key
            self.index = torch.arange(width, device=x.device).repeat(len(sizes))
            self.sizes = (width,) * len(sizes)

    @cached_property
    def by_column(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of all slices sorted by their column: rows, columns, parties."""
        order = torch.argsort(self.index, stable=True)
        return order, self.index[order], rows.party_of_rows(self.sizes, self.index.device)[order]


def _row_of_entries(x: Tensor) -> Tensor:
    counts = x.crow_indices().diff()
    return torch.arange(x.size(0), device=x.device).repeat_interleave(counts)


def _crow(index: Tensor, length: int) -> Tensor:
    counts = torch.bincount(index, minlength=length)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _both_ways(source: Tensor, target: Tensor, values: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The propagation matrix and its transpose."""
    if values.device.type != "cpu" or values.numel() < SCIPY_FROM:
        return _csr(target, source, values, shape), _csr(source, target, values, shape[::-1])
    # scipy counts where torch sorts: 3 ms rather than 11 for 200,000 edges
    matrix = coo_array((values.numpy(), (target.numpy(), source.numpy())), shape=shape)
    matrix.has_canonical_format = True  # repeated edges stay apart, as they do where torch sorts them
    transpose = matrix.tocsr().T.tocsr()  # each conversion sorts by what it counts and keeps the order of all else
    return matrices.to_tensor(transpose.T.tocsr()), matrices.to_tensor(transpose)


def _some_graphs(matrix: Tensor, part: SomeGraphs) -> tuple[Tensor, Tensor]:
    """The rows of some graphs of a CSR matrix without entries between graphs; and the positions of their entries."""
    nodes = part.whole.nodes
    crow, at = rows.entries_of(matrix, rows.chosen_ranges(nodes, part.chosen))
    shift = part.shift.repeat_interleave(nodes[part.chosen]).repeat_interleave(crow.diff())
    col = matrix.col_indices().index_select(0, at).add_(shift)
    return rows.csr(crow, col, matrix.values().index_select(0, at), (part.nodes, part.nodes)), at


def _csr(row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    order = torch.argsort(row * shape[1] + col, stable=True)
    return rows.csr(_crow(row, shape[0]), col[order], values[order], shape)
