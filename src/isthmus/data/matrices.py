"""Dense or sparse matrices of numpy and scipy, and their form in a payload.

Scipy multiplies two sparse matrices into a sparse one; torch does so only slowly on a CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack
from torch import Tensor

from isthmus.data import rows
from isthmus.errors import PayloadError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DENSE = 0.25
"""Density above which a sparse matrix is slower than a dense one."""
SPARSE = ("counts", "columns", "values", "width")
"""Fields of a sparse matrix in a payload: entries of each row, their columns and values row by row, and the width."""


def from_tensor(x: Tensor) -> Any:
    """A tensor as a matrix; CSR if it is sparse."""
    if not rows.is_sparse(x):
        return x.numpy()
    arrays = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return csr_array(arrays, shape=tuple(x.shape))


def to_tensor(matrix: Any) -> Tensor:
    """A sparse matrix as a tensor."""
    crow, col = torch.from_numpy(matrix.indptr).long(), torch.from_numpy(matrix.indices).long()
    return rows.csr(crow, col, torch.from_numpy(matrix.data), matrix.shape)


def is_sparse(h: Any) -> bool:
    return isinstance(h, csr_array)


def to_dense(h: Any) -> Any:
    return h.toarray() if is_sparse(h) else h


def dense_if_faster(h: Any) -> Any:
    """The matrix, made dense if that is faster."""
    return to_dense(h) if is_sparse(h) and h.nnz > DENSE * h.shape[0] * h.shape[1] else h


def same_layout(parts: Sequence[Any]) -> list[Any]:
    """The matrices: unchanged if all are sparse, else all dense."""
    if all(map(is_sparse, parts)):
        return list(parts)
    return [to_dense(part) for part in parts]


def concat_rows(parts: Sequence[Any]) -> Any:
    """Matrices one below the other."""
    parts = same_layout(parts)
    if len(parts) == 1:
        return parts[0]
    return csr_array(vstack(parts, format="csr")) if is_sparse(parts[0]) else np.concatenate(parts)


def concat_columns(parts: Sequence[Any]) -> Any:
    """Matrices side by side."""
    return csr_array(hstack(parts, format="csr")) if is_sparse(parts[0]) else np.concatenate(parts, axis=1)


def pack_per_party(h: Any, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The fields of each party's rows (see `pack`)."""
    ends = np.cumsum([0, *sizes]).tolist()
    return list(pack(h, itertools.starmap(slice, itertools.pairwise(ends))))


def pack(h: Any, rows: Iterable[slice]) -> Iterator[dict[str, Any]]:
    """Slices of a matrix as fields of a payload; column numbers take 2 bytes where they fit."""
    if not is_sparse(h):
        yield from ({"rows": torch.from_numpy(np.ascontiguousarray(h[at]))} for at in rows)
        return
    columns = torch.from_numpy(h.indices.astype(np.int16 if h.shape[1] < 2**15 else np.int32))
    values, counts = torch.from_numpy(h.data), torch.from_numpy(np.diff(h.indptr).astype(np.int32))
    for at in rows:  # slicing arrays is faster than scipy for thousands of slices
        entries = slice(int(h.indptr[at.start]), int(h.indptr[at.stop]))
        yield {"counts": counts[at], "columns": columns[entries], "values": values[entries], "width": h.shape[1]}


def unpack_all(parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The matrices in these fields, in order; concatenated into one if all are sparse."""
    if not parts or not all("columns" in part for part in parts):
        return [from_tensor(unpack(part)) for part in parts]
    counts, columns, values = (torch.cat([part[name].cpu() for part in parts]) for name in SPARSE[:3])
    width, indptr = int(parts[0]["width"]), np.concatenate([[0], np.cumsum(counts.numpy(), dtype=np.int64)])
    whole = {"counts": counts, "columns": columns, "values": values, "width": width}
    rows_of, columns_of, values_of = ([len(part[name]) for part in parts] for name in SPARSE[:3])
    why = sparse_problem(whole, counts.numel(), width)
    why = why or ("" if {int(part["width"]) for part in parts} == {width} else "matrices of several widths")
    if why or columns_of != values_of or indptr[np.cumsum(rows_of)].tolist() != np.cumsum(columns_of).tolist():
        raise PayloadError(why or "rows of a sparse matrix that do not have as many entries as they say")
    return [csr_array((values.numpy(), columns.numpy().astype(np.int32), indptr), shape=(counts.numel(), width))]


def unpack(fields: Mapping[str, Any]) -> Tensor:
    """The tensor in the fields of one slice."""
    if "rows" in fields:
        return fields["rows"].cpu()
    if why := sparse_problem(fields, len(fields["counts"]), int(fields["width"])):
        raise PayloadError(why)
    counts = fields["counts"].cpu().long()
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return rows.csr(
        crow, fields["columns"].cpu().long(), fields["values"].cpu(), (counts.numel(), int(fields["width"]))
    )


def sparse_problem(fields: Mapping[str, Any], rows: int, width: int) -> str:
    """Say why these fields are no sparse matrix of this shape: scipy and torch do not look before they write.

    >>> ones = torch.ones(1, dtype=torch.int32)
    >>> sparse_problem({"counts": ones, "columns": 7 * ones, "values": torch.ones(1), "width": 5}, 1, 5)
    'a sparse matrix of width 5 with an entry in column 7'
    """
    counts, columns, values = arrays = [fields.get(name, torch.empty(())) for name in SPARSE[:3]]
    if not all(isinstance(each, Tensor) and each.dim() == 1 for each in arrays):
        return f"a sparse matrix without the lists {', '.join(SPARSE[:3])}"
    if any(each.is_floating_point() or each.is_complex() or each.dtype == torch.bool for each in (counts, columns)):
        return "a sparse matrix whose counts or columns are no whole numbers"
    if counts.numel() != rows or type(fields.get("width")) is not int or fields["width"] != width:
        return f"a sparse matrix of {counts.numel()} rows and width {fields.get('width')}, not {rows} and {width}"
    few = counts.numel() and (int(counts.min()) < 0 or int(counts.max()) > columns.numel())
    if few or int(counts.sum()) != columns.numel() or columns.numel() != values.numel():
        return "rows of a sparse matrix that do not have as many entries as they say"
    if columns.numel() and not 0 <= int(columns.min()) <= int(columns.max()) < width:
        at = int(columns.max()) if int(columns.min()) >= 0 else int(columns.min())
        return f"a sparse matrix of width {width} with an entry in column {at}"
    return ""


def run_both_ways(edge_index: Tensor, weight: Tensor | None, nodes: int) -> bool:
    """Whether each edge also runs back, with the same weight."""
    source, target = edge_index.numpy()
    values = np.ones(source.size) if weight is None else weight.double().numpy()
    probe = np.cos(np.arange(nodes))  # A v = A' v for one irregular v is a quick test of A = A'
    there, back = (
        np.bincount(end, values * probe[start], minlength=nodes) for start, end in ((source, target), (target, source))
    )
    return np.allclose(there, back, atol=1e-6 * max(1.0, float(abs(values).max(initial=0.0))))
