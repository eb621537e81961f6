"""Problems of later blocks of rows join those of earlier ones, with the row numbers of the file."""

import pyarrow as pa

from isthmus.data.folder.checker import Checker, repeated
from isthmus.data.folder.settings import PartyFile


def test_rows_are_those_of_the_file(tmp_path):
    checker = Checker(tmp_path, PartyFile(name="x", classes=2), None, [])
    for checker.before, values in ((0, [1, None]), (2, [None, 4])):
        checker.ids("a", pa.table({"id": pa.array(values, pa.int64())}), "id", unique=False)
    assert [str(each) for each in checker.problems] == ["a, rows 2, 3: column 'id' has no value: fill it in"]
    assert not checker.sound


def test_a_value_is_repeated_where_it_occurred_before():
    values = pa.array(["a", None, "b", "a", None, "a"])
    assert repeated(values).tolist() == [False, False, False, True, False, True]
