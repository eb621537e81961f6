"""Types of edges follow from keys and times."""

import pytest

from isthmus.data.folder.relations import DatabaseSettings, dated_tables, relations, undated_cycle

BANK = {
    "accounts": {"key": "id"},
    "transfers": {"time": "date", "foreign": {"from": "accounts", "to": "accounts"}},
    "notes": {"foreign": {"transfer": "transfers"}},
}


def settings(label, **changes):
    tables = {name: {**BANK.get(name, {}), **changes.get(name, {})} for name in BANK}
    tables["transfers"]["key"] = "id"
    return DatabaseSettings.read({"label": label, "tables": tables}, "settings")


def types(found):
    return {each.type for each in relations(found)}


def test_undated_labels_date_no_table():
    found = settings("accounts.bad")
    assert dated_tables(found) == set()
    assert ("transfers", "from", "accounts") in types(found)
    assert ("accounts", "rev_from", "transfers") in types(found)
    assert not any("_before_" in name for _, name, _ in types(found))


def test_dated_labels_date_what_refers_to_dated_rows():
    found = settings("transfers.bad")
    assert dated_tables(found) == {"transfers", "notes"}
    assert types(found) == {
        ("accounts", "rev_from", "transfers"),
        ("accounts", "rev_to", "transfers"),
        ("notes", "transfer", "transfers"),
        ("notes", "transfer_before_transfer", "notes"),
        ("transfers", "from_before_from", "transfers"),
        ("transfers", "from_before_to", "transfers"),
        ("transfers", "rev_transfer", "notes"),
        ("transfers", "to_before_from", "transfers"),
        ("transfers", "to_before_to", "transfers"),
    }


@pytest.mark.parametrize("label", ["accounts.bad", "transfers.bad"])
def test_types_are_different_and_in_order(label):
    found = [each.type for each in relations(settings(label))]
    assert found == sorted(set(found))


def test_tables_of_edges_run_both_ways():
    found = settings("accounts.bad", transfers={"as": "edges", "time": None}, notes={"foreign": {}})
    assert types(found) == {("accounts", "transfers", "accounts"), ("accounts", "rev_transfers", "accounts")}


def test_time_ends_a_circle():
    circle = {"notes": {"foreign": {"transfer": "transfers"}, "key": "id"}, "transfers": {"foreign": {"note": "notes"}}}
    assert undated_cycle(settings("accounts.bad", **circle).tables) == []
    circle["transfers"]["time"] = None
    found = undated_cycle(settings("accounts.bad", **circle).tables)
    assert sorted(found[:-1]) == ["notes", "transfers"]
    assert found[0] == found[-1]
