"""A problem is one line with the first rows that have it."""

import numpy as np
import pytest

from isthmus.data.folder.problems import Problem, at_rows, join_names, merge


def test_rows_are_counted_from_one():
    (found,) = at_rows("nodes.parquet", "is wrong", np.array([True, False, True]))
    assert (found.rows, found.count, found.severe) == ((1, 3), 2, True)
    assert str(found) == "nodes.parquet, rows 1, 3: is wrong"


def test_one_row_is_singular():
    (found,) = at_rows("edges.parquet", "is wrong", np.array([False, True]), severe=False)
    assert str(found) == "edges.parquet, row 2: is wrong"
    assert not found.severe


def test_only_the_first_of_many_rows_are_listed():
    (found,) = at_rows("nodes.parquet", "is wrong", np.ones(12_000, dtype=bool))
    assert str(found) == "nodes.parquet, rows 1, 2, 3, 4, 5, 6, 7, 8 and 11,992 more: is wrong"


def test_merged_problems_keep_the_largest_value():
    found = []
    for row, largest in ((1, None), (4, 7), (8, 5)):
        merge(found, Problem("nodes.parquet", "is too large", (row,), 1, largest=largest))
    assert [str(each) for each in found] == ["nodes.parquet, rows 1, 4, 8: is too large; the largest is 7"]


def test_empty_mask_is_no_problem():
    assert not list(at_rows("nodes.parquet", "is wrong", np.zeros(3, dtype=bool)))


@pytest.mark.parametrize("name", ["a\nb", "a\r\x1b[31mb", "\u2028", "\udcff", "x" * 500])
def test_problem_is_one_printable_line(name):
    text = str(Problem("nodes.parquet", f"column '{name}' is missing"))
    assert text.isprintable()
    assert len(text.splitlines()) == 1


def test_letters_of_any_script_are_not_escaped():
    assert str(Problem("nodes.parquet", "column 'größe 大小' is missing")).endswith("'größe 大小' is missing")


def test_only_the_first_of_many_names_are_listed():
    assert join_names(["a", "b"]) == "a, b"
    assert join_names(map(str, range(1008))) == "0, 1, 2, 3, 4, 5, 6, 7 and 1,000 more"
