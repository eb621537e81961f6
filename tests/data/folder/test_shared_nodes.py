"""Ids that are row numbers of each party are noticed, and nodes that parties do share are left alone."""

import pyarrow as pa
import pytest

from databases import bank_draft
from isthmus.data.folder.loading import check_folders, read_folders
from isthmus.data.folder.reading import FIRST_ROWS, running_numbers
from isthmus.data.folder.shared_nodes import ROW_NUMBERS, have_row_numbers
from isthmus.errors import IsthmusError
from party_folders import Draft, graph_draft, lines

NOTE = f"note: nodes.parquet: {ROW_NUMBERS}"


def parties(ids=int, **changes) -> list[Draft]:
    """Two parties that number their eight nodes from 0; `changes` replaces columns of the second."""
    first, second = (graph_draft(name, None, 0, ids).without("split") for name in ("north", "south"))
    for column, values in changes.items():
        second = second.put(column, values)
    return [first, second]


def written(drafts, folder):
    for draft in drafts:
        draft.write(folder / draft.settings["name"])
    return folder


def found(drafts, folder):
    return [lines(each) for each in check_folders(written(drafts, folder))[1].values()]


OTHER_LABELS = {"label": ["high", "low"] * 4}
OTHER_FEATURES = {"age": [100.0 + at for at in range(8)]}


@pytest.mark.parametrize("changes", [OTHER_LABELS, OTHER_FEATURES], ids=["labels", "features"])
@pytest.mark.parametrize("ids", [int, lambda at: f"row {at}"], ids=["numbers", "texts"])
def test_row_numbers_of_several_parties_are_noticed(tmp_path, changes, ids):
    assert found(parties(ids, **changes), tmp_path) == [[NOTE], [NOTE]]


def test_nodes_that_parties_share_are_not_taken_for_row_numbers(tmp_path):
    whole_numbers = parties(age=pa.array([3 * at % 7 for at in range(8)]))  # the same values in another type
    assert found(whole_numbers, tmp_path / "equal") == [[], []]
    other_ids = {1: 1, 5: 900, 7: 12_000_000}
    sparse = [
        draft.put("id", ids := [other_ids.get(at, at) for at in range(8)])
        .put("source", ids, "edges.parquet")
        .put("target", ids[1:] + ids[:1], "edges.parquet")
        for draft in parties(**OTHER_LABELS)
    ]
    assert all("has another label at another party" in line for (line,) in found(sparse, tmp_path / "sparse"))


def test_running_numbers_that_begin_elsewhere_are_not_row_numbers(tmp_path):
    later = graph_draft("south", None, 4).without("split")
    drafts = [parties()[0], later.put("label", ["high", "low"] * 4)]
    assert all("has another label at another party" in line for (line,) in found(drafts, tmp_path))


def test_party_toml_decides(tmp_path):
    shared = [draft.with_settings(ids="shared") for draft in parties(**OTHER_FEATURES)]
    own = [draft.with_settings(ids="own") for draft in parties(**OTHER_FEATURES)]
    assert found(shared, tmp_path / "shared") == found(own, tmp_path / "own") == [[], []]


def test_row_numbers_explain_a_split_that_differs(tmp_path):
    drafts = parties(**OTHER_FEATURES, split=["test"] * 8)
    drafts[0] = drafts[0].put("split", ["train"] * 8)
    written(drafts, tmp_path)
    with pytest.raises(IsthmusError, match="isthmus party new --ids own"):
        read_folders(tmp_path)


def test_features_that_follow_from_edges_are_not_compared(tmp_path):
    drafts = [
        draft.with_settings(columns={**draft.settings["columns"], "age": {"kind": "number", "structural": True}})
        for draft in parties(**OTHER_FEATURES)
    ]
    contents = read_folders(written(drafts, tmp_path))[0]
    assert not have_row_numbers(contents)
    assert contents[0].first_rows[""].shape == (2, min(FIRST_ROWS, 8))


def test_each_table_with_row_numbers_is_noted_until_its_ids_are_own(tmp_path):
    drafts = [bank_draft(name) for name in ("north", "south")]
    ages = [at + 30.0 for at in range(7)]
    drafts[1] = drafts[1].put("age", ages, "customers.parquet")
    notes = found(drafts, tmp_path / "shared")
    due = (
        "note: customers.parquet: keys are numbered in order, and of 7 rows whose keys other parties have too, 7 differ"
    )
    assert [[line.startswith(due) for line in each] for each in notes] == [[True], [True]]
    for draft in drafts:
        draft.settings["tables"]["customers"]["ids"] = "own"
    assert found(drafts, tmp_path / "own") == [[], []]


@pytest.mark.parametrize(
    ("ids", "due"),
    [
        (["a-1", "b-2"], None),
        (["anna", "berta"], None),
        (["c07", "c08"], [7, 8]),
        ([5, 4, 7], [5, 4, 7]),
        ([5], None),
        ([0, 1000], None),
        ([-(2**63), 2**63 - 1], None),
    ],
)
def test_running_numbers(ids, due):
    numbers = running_numbers(pa.array(ids))
    assert (None if numbers is None else numbers.tolist()) == due
