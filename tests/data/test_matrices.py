"""Matrices of scipy and numpy: conversions, concatenation, and the fields in which they travel."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from isthmus.data import matrices, rows
from isthmus.errors import PayloadError

DENSE = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]], dtype=np.float32)
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5))
VALUES = st.sampled_from([0.0, 0.0, 1.5, -2.0])


def test_tensors_and_matrices_convert_both_ways():
    sparse = rows.to_csr(torch.from_numpy(DENSE))
    assert matrices.is_sparse(matrices.from_tensor(sparse))
    assert not matrices.is_sparse(matrices.from_tensor(torch.from_numpy(DENSE)))
    assert matrices.to_tensor(matrices.from_tensor(sparse)).to_dense().equal(torch.from_numpy(DENSE))


def test_a_matrix_with_many_entries_becomes_dense():
    assert matrices.is_sparse(matrices.dense_if_faster(csr_array(np.eye(5))))
    assert not matrices.is_sparse(matrices.dense_if_faster(csr_array(np.eye(3))))


@pytest.mark.parametrize("sparse", [(True, True), (False, False), (True, False)])
def test_concatenation_is_sparse_only_if_all_parts_are(sparse):
    parts = [csr_array(DENSE) if each else DENSE for each in sparse]
    below = matrices.concat_rows(parts)
    assert matrices.is_sparse(below) == all(sparse)
    np.testing.assert_array_equal(matrices.to_dense(below), np.concatenate([DENSE, DENSE]))
    beside = matrices.concat_columns(matrices.same_layout(parts))
    assert matrices.is_sparse(beside) == all(sparse)
    np.testing.assert_array_equal(matrices.to_dense(beside), np.concatenate([DENSE, DENSE], axis=1))


@given(st.data(), arrays(np.float32, SHAPES, elements=VALUES), st.booleans())
def test_packed_rows_come_back(data, dense, sparse):
    cut = data.draw(st.integers(0, len(dense)))
    parts = matrices.pack_per_party(csr_array(dense) if sparse else dense, (cut, len(dense) - cut))
    unpacked = [rows.to_dense(matrices.unpack(part)).numpy() for part in parts]
    np.testing.assert_array_equal(unpacked[0], dense[:cut])
    np.testing.assert_array_equal(unpacked[1], dense[cut:])
    together = [matrices.to_dense(part) for part in matrices.unpack_all(parts)]
    assert len(together) == (1 if sparse else 2)
    np.testing.assert_array_equal(np.concatenate(together), dense)


@pytest.mark.parametrize(("width", "dtype"), [(2**15 - 1, torch.int16), (2**15, torch.int32)])
def test_column_numbers_take_two_bytes_where_they_fit(width, dtype):
    matrix = csr_array((np.ones(1), ([0], [width - 1])), shape=(1, width))
    (part,) = matrices.pack(matrix, [slice(0, 1)])
    assert part["columns"].dtype == dtype
    assert matrices.unpack(part).col_indices().tolist() == [width - 1]


@pytest.mark.parametrize(
    "lie",
    [
        {"columns": [5000, 1]}, {"columns": [-(2**30), 1]}, {"counts": [-1, 3]}, {"counts": [1, 9]},
        {"counts": [1, 0]}, {"columns": [1]}, {"columns": []},
    ],
)  # fmt: skip
def test_fields_that_are_no_sparse_matrix_are_refused_before_one_is_made(lie):
    honest = {"counts": [1, 1], "columns": [0, 2]}
    fields = {name: torch.tensor(each, dtype=torch.int32) for name, each in {**honest, **lie}.items()}
    fields |= {"values": torch.ones(2), "width": 3}
    assert not matrices.sparse_problem({**fields, **{n: torch.tensor(v) for n, v in honest.items()}}, 2, 3)
    assert matrices.sparse_problem(fields, 2, 3)
    for reader in (matrices.unpack, lambda each: matrices.unpack_all([each])):
        with pytest.raises(PayloadError):
            reader(fields)
