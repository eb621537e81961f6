"""Published tables are checked by the names of their columns and read by their places."""

import re

import numpy as np
import pyarrow as pa
import pytest

from isthmus.data.datasets.tables import numbers, read_table, rows_of


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_are_read_by_their_places_because_names_repeat(tmp_path):
    path = write(tmp_path / "a.csv", 'Time,Account,"Account"\n2024/01/01 00:30,007,8\n2024-01-02 00:30,07,9\n')
    table = read_table(path, ("Time", "Account", "Account"), {0: pa.timestamp("s"), 2: pa.int64()})
    assert table.column(1).to_pylist() == ["007", "07"]
    assert table.column(2).to_pylist() == [8, 9]
    assert np.diff(table.column(0).to_numpy()).tolist() == [np.timedelta64(1, "D")]


def test_further_columns_are_numbers_and_empty_fields_are_0(tmp_path):
    path = write(tmp_path / "a.csv", "\ufeffkey,x,y\na,1.5,\nb,,2\n")
    table = read_table(path, ("key",), {}, rest=pa.float64())
    assert numbers(table, 1, path).tolist() == [[1.5, 0.0], [0.0, 2.0]]
    with pytest.raises(ValueError, match=re.escape("a.csv: a field is not a finite number")):
        numbers(read_table(write(path, "key,x\na,inf\n"), ("key",), {}, rest=pa.float64()), 1, path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("key,y\na,1\n", "a.csv has columns key, y; expected key, x"),
        ("key,x,y\na,1,2\n", "a.csv has columns key, x, y; expected key, x"),
        ("key,x\na,one\n", "a.csv: .*one"),
    ],
)
def test_other_tables_are_named(tmp_path, text, why):
    with pytest.raises(ValueError, match=why):
        read_table(write(tmp_path / "a.csv", text), ("key", "x"), {1: pa.int64()})


def test_keys_are_rows_and_one_that_is_not_known_is_named(tmp_path):
    known = pa.array(["b", "a"])
    assert rows_of(pa.chunked_array([["a", "b", "a"]]), known, tmp_path / "a.csv").tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=re.escape("a.csv names c, which has no features")):
        rows_of(pa.chunked_array([["a", "c"]]), known, tmp_path / "a.csv")
