import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from isthmus.data.datasets.text import read_numbers

SHAPES = array_shapes(min_dims=2, max_dims=2, max_side=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def write(path, table, between=","):
    text = "".join(between.join(map(repr, line)) + "\n" for line in table)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write(text)
    return path


@given(arrays(np.int64, SHAPES), st.sampled_from([",", ", ", " , "]), st.sampled_from(["a.txt", "a.csv.gz"]))
@settings(max_examples=50)
def test_whole_numbers_come_back(folder, table, between, name):
    found = read_numbers(write(folder / name, table.tolist(), between))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, table)


@given(arrays(np.float64, SHAPES, elements=st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=50)
def test_real_numbers_come_back(folder, table):
    np.testing.assert_array_equal(read_numbers(write(folder / "b.txt", table.tolist()), np.float64), table)


@pytest.mark.parametrize("text", ["1,2\n3\n", "1,x\n", "1,\n", "1.5,2\n", "", "\x00\n"])
def test_what_is_no_table_of_numbers_names_the_file(folder, text):
    path = folder / "wrong.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.txt: "):
        read_numbers(path)


def test_lines_of_any_end_are_lines(folder):
    (folder / "ends.txt").write_bytes(b"1, 2\r\n3, 4")
    assert read_numbers(folder / "ends.txt").tolist() == [[1, 2], [3, 4]]
