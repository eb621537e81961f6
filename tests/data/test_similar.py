"""The most similar rows, against all similarities at once."""

import builtins

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from isthmus.data.similar import approximate, exact, normalize_rows
from isthmus.errors import IsthmusError


@given(
    rows=st.integers(0, 30),
    width=st.integers(1, 4),
    count=st.integers(1, 40),
    block=st.integers(1, 90),
    seed=st.integers(0, 99),
)
def test_by_blocks_it_is_what_the_whole_matrix_says(rows, width, count, block, seed):
    h = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = exact(h, count, block=block)
    due = (h @ h.T).fill_diagonal_(-1).clamp(min=0)
    if rows:
        least = due.topk(min(count, rows), dim=1).values[:, -1:]
        due = due * (due >= least)
    assert np.allclose(found.toarray(), due.numpy())
    assert found.shape == (rows, rows)


def test_approximate_search_finds_nearly_the_same():
    h = F.normalize(torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)))
    near, due = approximate(h, 10), exact(h, 10)
    assert near.shape == due.shape
    assert (np.diff(near.indptr) <= 10).all()
    assert not near.diagonal().any()
    shared = near.multiply(due > 0)
    assert shared.nnz > 0.7 * due.nnz
    at = shared.tocoo()
    assert np.allclose(at.data, due[at.row, at.col], atol=1e-5)
    again = approximate(h, 10)
    assert (near != again).nnz == 0


@pytest.mark.parametrize("rows", [1, 2, 5, 300])
def test_approximate_search_of_few_rows_is_exact(rows):
    h = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    assert np.array_equal(approximate(h, 3).toarray(), exact(h, 3).toarray())


def test_without_faiss_one_line_says_what_to_install(monkeypatch):
    there = builtins.__import__

    def without(name, *rest, **more):
        if name == "faiss":
            raise ImportError(name)
        return there(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(IsthmusError, match=r"approximate search needs faiss.*isthmus\[similar\]"):
        approximate(torch.eye(3), 1)


def test_rows_sum_up_to_one_and_empty_ones_stay_empty():
    found = normalize_rows(exact(torch.tensor([[1.0, 0.0], [2.0, 1.0], [-1.0, 0.0]]), 2))
    assert np.allclose(found.sum(1), [1, 1, 0])
