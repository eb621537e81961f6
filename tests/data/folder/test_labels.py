"""Labels and splits are read from columns of any name."""

import pyarrow as pa
import pytest

from isthmus.data.folder.labels import ItemChecker
from isthmus.data.folder.settings import PartyFile
from isthmus.data.folder.table import Table


def checker(tmp_path, **settings):
    found = ItemChecker(tmp_path, PartyFile.read({"name": "north", **settings}, "party.toml"), None, [])
    found.label_column, found.split_column = "bad", "part"
    return found


def test_columns_of_other_names(tmp_path):
    found = checker(tmp_path, classes=2)
    table = Table.of(pa.table({"bad": [0, None, 1], "part": ["train", None, "test"]}))
    y, splits = found.labels("f.parquet", table)
    assert y.tolist() == [0, -1, 1]
    assert splits["test"].tolist() == [False, False, True]
    assert [str(each) for each in found.problems] == ["f.parquet: no row is in the split 'val'"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"bad": [0, 2], "part": [None, None]}, "label 2 is not a whole number from 0 to 1"),
        ({"bad": [0, -1], "part": [None, None]}, "if that says that the label is not known, leave the cell empty"),
        ({"bad": ["x", "y"], "part": [None, None]}, "column 'bad' holds texts: list them under 'labels' in party.toml"),
        ({"bad": [0, 1], "part": ["train", "later"]}, "must be empty or one of train, val, test, not 'later'"),
        ({"bad": [0, None], "part": ["train", "test"]}, "the row is in a split but has no label"),
    ],
)
def test_problems_name_the_column(tmp_path, columns, problem):
    found = checker(tmp_path, classes=2)
    found.labels("f.parquet", Table.of(pa.table(columns)))
    assert any(problem in str(each) for each in found.problems)


def test_a_class_that_probably_says_unknown_is_noted(tmp_path):
    found = checker(tmp_path, labels=["-1", "0", "1"])
    assert found.labels("f.parquet", Table.of(pa.table({"bad": [0, -1, 1]})))[0].tolist() == [1, 0, 2]
    assert "the class '-1' is learned as any other: leave the cells empty" in str(found.problems[0])
