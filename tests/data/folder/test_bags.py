"""Lists of whole numbers become the two columns of a bag, and each list keeps what it has."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.folder.bags import bag_columns, make_bags
from isthmus.errors import IsthmusError


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8))
def test_a_bag_counts_what_each_list_has(lists):
    table = pa.table({"id": list(range(len(lists))), "w": pa.array(lists, pa.list_(pa.int64()))})
    bag, _, notes = make_bags(table, {"w": None}, {})
    assert (bag.column_names, bag_columns(bag), notes) == (["id", "w.at", "w.value"], ["w"], [])
    for row, due in zip(bag.to_pylist(), lists, strict=True):
        assert row["w.at"] == sorted(set(due))
        assert row["w.value"] == [due.count(each) for each in row["w.at"]]


def test_other_columns_stay_as_they_are():
    table = pa.table({"v": [[1, 2], [3, 4]], "b.at": [[1], []], "b.value": [[0.5], []], "f": [[0.5], []], "n": [1, 2]})
    assert make_bags(table, {}, {})[0].equals(table)
    assert bag_columns(table) == ["b"]


def test_a_bag_of_another_party_needs_no_note():
    table = pa.table({"w": [[1], [2, 3]]})
    assert make_bags(table, {}, {"w": None})[2] == []
    assert "--bag w=WIDTH" in make_bags(table, {}, {})[2][0].what
    with pytest.raises(IsthmusError, match="--bag v: the nodes have no such column: known: w"):
        make_bags(table, {"v": None}, {})
