"""The most similar rows of a matrix, without ever holding all similarities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from isthmus.errors import missing_extra

BLOCK = 2**25
"""Similarities that are held at a time."""
FEW = 1600
"""Rows below which inverted lists cannot be made: each needs 39 rows, there are about sqrt(rows)."""


def exact(h: Tensor, count: int, *, block: int = BLOCK) -> csr_array:
    """For every row its most similar rows by dot product, `[rows, rows]`, with at most `count` entries a row.

    What is not above 0 is left out (phi(x) = max(x, 0)), and so is a row's similarity to itself. All rows are looked
    at, some at a time: memory grows with `rows * count`.

    Arguments:
        h: `[rows, width]`.
        count: neighbours of a row, at most.

    >>> exact(torch.tensor([[1.0, 0.0], [2.0, 1.0], [-1.0, 1.0]]), 1).toarray()
    array([[0., 2., 0.],
           [2., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    rows = h.size(0)
    count = min(count, rows - 1)
    if count < 1:
        return csr_array((rows, rows), dtype=h.numpy().dtype)
    values, columns = h.new_empty(rows, count), torch.empty(rows, count, dtype=torch.int32)
    step = max(1, block // rows)
    for start in range(0, rows, step):
        part = h[start : start + step] @ h.T
        own = torch.arange(len(part))
        part[own, start + own] = -torch.inf
        values[start : start + step], found = part.topk(count, dim=1)
        columns[start : start + step] = found
    return _positive(values.numpy(), columns.numpy())


def approximate(h: Tensor, count: int) -> csr_array:
    """As `exact`, but each row is compared with those in the inverted lists nearest to it (faiss, IndexIVFFlat).

    There are about sqrt(rows) lists, of which the nearest eighth is searched. Few rows are all looked at.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing_extra("faiss", "similar", "approximate search") from error
    rows, width = h.shape
    if rows < FEW:
        return exact(h, count)
    lists = max(1, round(rows**0.5))
    x = np.ascontiguousarray(h.numpy(), dtype=np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = max(1, lists // 8)
    index.train(x)
    index.add(x)
    values, columns = index.search(x, min(count + 1, rows))  # one more: a row is near itself
    values[(columns < 0) | (columns == np.arange(rows)[:, None])] = 0
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return _positive(np.take_along_axis(values, order, 1), np.take_along_axis(columns, order, 1))


def _positive(values: Any, columns: Any) -> csr_array:
    kept = values > 0
    indptr = np.concatenate([[0], kept.sum(1).cumsum()])
    return csr_array((values[kept], columns[kept], indptr), shape=(len(values), len(values)))


def normalize_rows(graph: csr_array) -> csr_array:
    """The same with rows that sum up to one; empty rows stay empty."""
    total = graph.sum(1)
    return (diags_array(np.divide(1, total, out=np.zeros_like(total), where=total > 0)) @ graph).tocsr()


SEARCHES: dict[str, Callable[[Tensor, int], csr_array]] = {"exact": exact, "approximate": approximate}
