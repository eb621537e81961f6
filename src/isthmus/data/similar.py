"""The most similar rows of a matrix, without storing all similarities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from isthmus.errors import missing_extra

BLOCK = 2**25
"""Similarities in memory at a time."""
MIN_ROWS = 1600
"""Below this many rows faiss cannot train inverted lists: each needs 39 rows, and there are about sqrt(rows) lists."""


def exact(h: Tensor, count: int, *, block: int = BLOCK) -> csr_array:
    """The most similar rows of each row by dot product, `[rows, rows]`.

    Similarities that are not above 0 and those of a row with itself are left out. All rows are compared, in blocks:
    memory grows with `rows * count`.

    Arguments:
        h: `[rows, width]`.
        count: maximum number of entries in a row.

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
        values[start : start + step], nearest = part.topk(count, dim=1)
        columns[start : start + step] = nearest
    return _positive(values.numpy(), columns.numpy())


def approximate(h: Tensor, count: int) -> csr_array:
    """As `exact`, but each row is compared only with rows in the nearest inverted lists (IndexIVFFlat of faiss).

    The nearest eighth of about sqrt(rows) lists is searched. With fewer than `MIN_ROWS` rows the result is exact.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing_extra("faiss", "similar", "approximate search") from error
    rows, width = h.shape
    if rows < MIN_ROWS:
        return exact(h, count)
    lists = max(1, round(rows**0.5))
    x = np.ascontiguousarray(h.numpy(), dtype=np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = max(1, lists // 8)
    index.train(x)
    index.add(x)
    values, columns = index.search(x, min(count + 1, rows))  # one more, because a row finds itself
    values[(columns < 0) | (columns == np.arange(rows)[:, None])] = 0
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return _positive(np.take_along_axis(values, order, 1), np.take_along_axis(columns, order, 1))


def _positive(values: Any, columns: Any) -> csr_array:
    positive = values > 0
    indptr = np.concatenate([[0], positive.sum(1).cumsum()])
    return csr_array((values[positive], columns[positive], indptr), shape=(len(values), len(values)))


def normalize_rows(graph: csr_array) -> csr_array:
    """The matrix with rows scaled to a sum of 1; empty rows stay empty."""
    total = graph.sum(1)
    return (diags_array(np.divide(1, total, out=np.zeros_like(total), where=total > 0)) @ graph).tocsr()


SEARCHES: dict[str, Callable[[Tensor, int], csr_array]] = {"exact": exact, "approximate": approximate}
