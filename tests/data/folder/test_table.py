"""Large columns stay in their file and give the same rows, block by block, whatever the file's row groups are."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isthmus.data.folder import table as module
from isthmus.data.folder.table import Table, Unreadable

ROWS = 10


@pytest.fixture
def columns():
    draw = np.random.default_rng(0)
    vectors = [draw.random(2).tolist() for _ in range(ROWS)]
    return {"id": list(range(ROWS)), "x": vectors, "x.at": [[at] for at in range(ROWS)], "y": list("abcdefghij")}


@pytest.mark.parametrize("group", [1, 3, 4, 100])
@pytest.mark.parametrize("rows", [1, 4, 10, 11])
def test_blocks_of_a_file_are_those_of_memory(tmp_path, monkeypatch, columns, group, rows):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=group)
    monkeypatch.setattr(module, "ROWS", rows)
    memory = Table.open(tmp_path / "a.parquet", streamed=["x", "y"])
    monkeypatch.setattr(module, "LARGE", 1)
    streamed = Table.open(tmp_path / "a.parquet", streamed=["x", "y"])
    assert (memory.streamed, streamed.streamed, streamed.memory.column_names) == ([], ["x", "y"], ["id", "x.at"])
    assert streamed.column_names == memory.column_names
    for names in (["id", "x"], ["x"], ["y", "id"], ["id"]):
        one, two = list(memory.blocks(names)), list(streamed.blocks(names))
        assert [start for start, _ in two] == list(range(0, ROWS, rows))
        assert [(start, block.to_pydict()) for start, block in one] == [(at, block.to_pydict()) for at, block in two]
        assert all(block.column_names == names for _, block in two)


def test_columns_stay_in_the_file_if_they_take_many_bytes(tmp_path, monkeypatch, columns):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    for large, streamed in ((160, ["x"]), (250, [])):  # in each row two numbers, and where they begin
        monkeypatch.setattr(module, "LARGE", large)
        assert Table.open(tmp_path / "a.parquet", streamed=["x"]).streamed == streamed


def test_a_table_has_the_columns_that_are_not_left_out(tmp_path, monkeypatch, columns):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    for large in (1, 100):
        monkeypatch.setattr(module, "LARGE", large)
        table = Table.open(tmp_path / "a.parquet", without=["y"], streamed=["x"])
        assert table.column_names == ["id", "x", "x.at"]
        assert table.select(["x"]).column_names == ["x"]


def test_a_file_that_is_damaged_in_the_middle_is_unreadable(tmp_path, monkeypatch, columns):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": np.arange(100_000)}), path, row_group_size=1000, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 5000] = b"\xff" * 5000
    path.write_bytes(bytes(content))
    monkeypatch.setattr(module, "LARGE", 1)
    with pytest.raises(Unreadable, match="cannot read") as caught:
        list(Table.open(path, streamed=["x"]).blocks(["x"]))
    assert "\n" not in str(caught.value)


def test_rows_are_taken_of_texts_and_bytes_of_any_type(tmp_path):
    views = {
        "text": pa.array(["a", "b"]).cast(pa.string_view()),
        "bytes": pa.array([b"a", b"b"]).cast(pa.binary_view()),
        "list": pa.array([["a"], ["b"]]).cast(pa.list_(pa.string_view())),
    }
    parquet.write_table(pa.table(views), tmp_path / "a.parquet")
    for table in (Table.open(tmp_path / "a.parquet"), Table.of(module.read_table(tmp_path / "a.parquet"))):
        assert table.take(pa.array([1])).memory.to_pylist() == [{"text": "b", "bytes": b"b", "list": ["b"]}]
