"""Rows of a feature matrix, dense or sparse CSR alike (torch's CSR tensors cannot be indexed by rows)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def is_sparse(x: Tensor) -> bool:
    return x.layout == torch.sparse_csr


def csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR tensor from its parts, unchecked (they come from other CSR tensors)."""
    _told_once()
    return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def to_csr(x: Tensor) -> Tensor:
    """A dense matrix as CSR."""
    _told_once()
    return x.to_sparse_csr()


SPARSE_BELOW = 0.2
"""Share of entries below which features are kept sparse: with dropout, Wiki's 13 % train 2.6 times as fast so."""


@cache
def _told_once() -> None:
    """torch warns of its first CSR tensor, whoever makes it; that tensor is made here, where nobody has to read it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        torch.zeros(1, 1).to_sparse_csr()


def sparsify(x: Tensor, below: float = SPARSE_BELOW) -> Tensor:
    """`x` as CSR where its density is under `below`, else as it is: bags of words are worth it, embeddings are not."""
    if is_sparse(x) or x.numel() == 0 or x.count_nonzero().item() >= below * x.numel():
        return x
    return to_csr(x)


def to_dense(x: Tensor) -> Tensor:
    return x.to_dense() if is_sparse(x) else x


def chosen_ranges(counts: Tensor, chosen: Tensor) -> Tensor:
    """Positions of the chosen runs when runs of `counts` elements stand one after another.

    >>> chosen_ranges(torch.tensor([2, 3, 1]), torch.tensor([0, 2])).tolist()
    [0, 1, 5]
    """
    return concat_ranges((counts.cumsum(0) - counts)[chosen], counts[chosen])


def concat_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Positions of runs that start and are as long as said, one run after another.

    >>> concat_ranges(torch.tensor([7, 0]), torch.tensor([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    shift = starts - (lengths.cumsum(0) - lengths)
    return shift.repeat_interleave(lengths) + torch.arange(int(lengths.sum()), device=starts.device)


def party_of_rows(sizes: Sequence[int], device: torch.device) -> Tensor:
    """For every row the position of its party, where `sizes[p]` rows in a run are party p's.

    >>> party_of_rows((2, 0, 1), torch.device("cpu")).tolist()
    [0, 0, 2]
    """
    return torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))


def mean_per_party(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mean of a value (or row) over the rows of each party, `[parties, ...]`; 0 for a party without."""
    count = torch.tensor(sizes, dtype=values.dtype, device=values.device).clamp(min=1)
    return sum_per_party(values, sizes) / count.view(-1, *[1] * (values.dim() - 1))


def sum_per_party(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """A value (or row) per row summed over each party's rows, `[parties, ...]`."""
    total = values.new_zeros(len(sizes), *values.shape[1:])
    return total.index_add(0, party_of_rows(sizes, values.device), values)


def take(x: Tensor, at: Tensor) -> Tensor:
    """Rows `at` of x."""
    if not is_sparse(x):
        return x.index_select(0, at)
    crow = x.crow_indices()
    starts, lengths = crow[at], crow[at + 1] - crow[at]
    picked = concat_ranges(starts, lengths)
    new_crow = torch.cat([crow.new_zeros(1), lengths.cumsum(0)])
    return csr(new_crow, x.col_indices()[picked], x.values()[picked], (at.numel(), x.size(1)))


def zero_columns(x: Tensor, columns: Tensor) -> Tensor:
    """Rows with zeros in these columns; what is sparse stays so and holds no entry there.

    >>> zero_columns(torch.ones(1, 3), torch.tensor([2])).tolist()
    [[1.0, 1.0, 0.0]]
    """
    if not is_sparse(x):
        return x.index_fill(1, columns.to(x.device), 0)
    kept = torch.isin(x.col_indices(), columns.to(x.device), invert=True)
    ends = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)])
    return csr(ends[x.crow_indices()], x.col_indices()[kept], x.values()[kept], (x.size(0), x.size(1)))


def slice_rows(x: Tensor, start: int, stop: int) -> Tensor:
    """Rows from `start` up to `stop`."""
    if not is_sparse(x):
        return x[start:stop]
    crow = x.crow_indices()[start : stop + 1]
    first, last = int(crow[0]), int(crow[-1])
    return csr(crow - first, x.col_indices()[first:last], x.values()[first:last], (stop - start, x.size(1)))


def concat(parts: Sequence[Tensor]) -> Tensor:
    """Matrices of one width, one below the other; sparse where all are."""
    if len(parts) == 1:
        return parts[0]
    if not all(is_sparse(part) for part in parts):
        return torch.cat([to_dense(part) for part in parts])
    counts = torch.cat([part.crow_indices().diff() for part in parts])
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    col = torch.cat([part.col_indices() for part in parts])
    values = torch.cat([part.values() for part in parts])
    return csr(crow, col, values, (counts.numel(), parts[0].size(1)))
