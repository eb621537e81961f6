"""Tables are read from files and databases, and texts become numbers and dates where all of them are such."""

import pyarrow as pa
import pytest

from isthmus.data.folder.sources import narrow, read_sources
from isthmus.errors import IsthmusError

pytest.importorskip("duckdb")


def test_leading_zeros_make_texts(tmp_path):
    found, _ = narrow(pa.table({"a": ["007", "8"], "b": ["7", "8"], "c": ["7", "8.5"], "d": ["true", "false"]}))
    assert [str(each) for each in found.schema.types] == ["string", "int64", "double", "bool"]


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["31.12.2023", "01.02.2024"], "2023-12-31"),
        (["12/31/2023", "01/02/2024"], "2023-12-31"),
        (["2023/12/31 10:20", "2024/01/02 00:00"], "2023-12-31"),
        (["2023-12-31", "2024-01-02 10:00:00"], "2023-12-31"),
    ],
)
def test_dates_of_several_forms(texts, first):
    table, notes = narrow(pa.table({"day": texts}))
    assert str(table.column("day")[0].as_py()).startswith(first)
    assert notes == {}


def test_ambiguous_dates_are_noted():
    table, notes = narrow(pa.table({"day": ["01/02/2024", "03/04/2024"]}))
    assert str(table.column("day")[0].as_py()).startswith("2024-02-01")
    assert notes == {"day": "its dates are read as day/month/year: write them as 2024-06-30 if they are not"}


@pytest.mark.parametrize("name", ["nothing.csv", "empty", "note.txt", "broken.duckdb", "broken.parquet"])
def test_unreadable_source_is_one_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    for file, content in (
        ("note.txt", b"hello"),
        ("broken.duckdb", b"12345678DUCK" + b"x" * 99),
        ("broken.parquet", b"PAR1"),
    ):
        (tmp_path / file).write_bytes(content)
    with pytest.raises(IsthmusError) as caught:
        read_sources([tmp_path / name])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_tables_of_one_name_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "x.csv", tmp_path / "a" / "x.csv"):
        path.write_text("id\n1\n")
    with pytest.raises(IsthmusError, match="there are two tables 'x': rename one"):
        read_sources([tmp_path / "x.csv", tmp_path / "a"])


def test_a_text_among_numbers_is_named() -> None:
    table, notes = narrow(pa.table({"amount": [*map(str, range(30)), "oops"], "code": [*["07"] * 30, "x"]}))
    assert table.column("amount").type == pa.string()
    assert notes == {"amount": "30 of 31 values are numbers, but not 'oops': correct them if all should be numbers"}
