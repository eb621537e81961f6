import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data import rows


@st.composite
def matrices(draw, columns=5, least=1):
    """A small matrix with many zeros and some empty rows, dense or CSR."""
    seed, height = draw(st.integers(0, 2**16)), draw(st.integers(least, 8))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(height, columns, generator=generator)
    x = x * (torch.rand(height, columns, generator=generator) < 0.4)
    return x.to_sparse_csr() if draw(st.booleans()) else x


def same(left, right):
    return torch.equal(rows.to_dense(left), rows.to_dense(right))


@given(matrices(), st.data())
def test_take_is_indexing(x, data):
    at = torch.tensor(data.draw(st.lists(st.integers(0, x.size(0) - 1), max_size=12)), dtype=torch.long)
    taken = rows.take(x, at)
    assert rows.is_sparse(taken) == rows.is_sparse(x)
    assert torch.equal(rows.to_dense(taken), rows.to_dense(x)[at])


@given(matrices(), st.data())
def test_between_is_slicing(x, data):
    start = data.draw(st.integers(0, x.size(0)))
    stop = data.draw(st.integers(start, x.size(0)))
    part = rows.slice_rows(x, start, stop)
    assert rows.is_sparse(part) == rows.is_sparse(x)
    assert torch.equal(rows.to_dense(part), rows.to_dense(x)[start:stop])


@given(matrices(), st.data())
def test_parts_of_rows_are_slices_in_memory_of_their_own(x, data):
    ends = sorted(data.draw(st.lists(st.integers(0, x.size(0)), max_size=4)))
    sizes = torch.tensor([0, *ends, x.size(0)]).diff().tolist()
    start = 0
    for part, size in zip(rows.split_rows(x, sizes), sizes, strict=True):
        assert same(part, rows.slice_rows(x, start, start + size))
        assert rows.is_sparse(part) == rows.is_sparse(x)
        for own in (part.col_indices(), part.values()) if rows.is_sparse(x) else (part,):
            assert own.untyped_storage().nbytes() == own.numel() * own.element_size()
        start += size
    assert start == x.size(0)


@given(st.lists(matrices(), min_size=1, max_size=4))
def test_stacked_is_concatenation_and_stays_sparse_where_all_are(parts):
    whole = rows.concat(parts)
    assert torch.equal(rows.to_dense(whole), torch.cat([rows.to_dense(part) for part in parts]))
    assert rows.is_sparse(whole) == all(rows.is_sparse(part) for part in parts)


@given(st.lists(matrices().filter(rows.is_sparse), min_size=2, max_size=4))
def test_sparse_results_are_valid_csr(parts):
    whole = rows.concat(parts)
    for x in (whole, rows.take(whole, torch.tensor([1, 0])), rows.slice_rows(whole, 1, 2)):
        torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), x.values(), x.shape, check_invariants=True)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_ranges_are_the_chosen_runs(counts, data):
    chosen = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=8))
    runs = torch.arange(sum(counts)).split(counts)
    expected = [position for at in chosen for position in runs[at].tolist()]
    assert rows.chosen_ranges(torch.tensor(counts), torch.tensor(chosen, dtype=torch.long)).tolist() == expected


@pytest.mark.parametrize(("share", "sparse"), [(0.05, True), (0.5, False)])
def test_only_mostly_empty_matrices_become_sparse(share, sparse):
    x = torch.zeros(100)
    x[: int(100 * share)] = 1
    x = x.view(10, 10)
    assert rows.is_sparse(rows.sparsify(x)) == sparse
    assert same(rows.sparsify(x), x)


def test_sparsified_keeps_what_is_sparse_or_empty():
    x = torch.ones(2, 2).to_sparse_csr()
    assert rows.sparsify(x) is x
    assert rows.sparsify(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("sparse", [False, True])
def test_blanked_columns_are_zero_and_the_rest_stays(sparse):
    x = torch.arange(12.0).view(4, 3)
    found = rows.zero_columns(rows.to_csr(x) if sparse else x, torch.tensor([1]))
    assert rows.is_sparse(found) == sparse
    assert torch.equal(rows.to_dense(found), torch.stack([x[:, 0], torch.zeros(4), x[:, 2]], dim=1))
    if sparse:
        assert found.values().numel() == 7  # the first entry is zero


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("x", [torch.arange(35.0).view(5, 7), torch.arange(35).view(7, 5).t()])
def test_split_copies_are_clones_of_the_parts(x, dim):
    sizes = [[2, 0, 3], [1, 6]][dim]
    parts = rows.split_copies(x, sizes, dim)
    for part, expected in zip(parts, x.split(sizes, dim), strict=True):
        assert part.dtype == x.dtype
        assert torch.equal(part, expected)
        assert part.is_contiguous()
        assert part.untyped_storage().nbytes() == part.numel() * x.element_size()
