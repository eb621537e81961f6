"""Keys, times and kinds of columns are guessed from values and names."""

from datetime import datetime

import pyarrow as pa

from isthmus.data.folder.guessing import guess_tables
from isthmus.data.folder.sources import SourceTable


def guess(**tables):
    return guess_tables({name: SourceTable(pa.table(columns)) for name, columns in tables.items()}, {})


def test_key_is_named_so_and_has_different_values():
    found = guess(
        accounts={"amount": [1, 2, 3], "account_id": [7, 8, 9]},
        logs={"amount": [1, 2, 3]},  # different, but no name of a key
        people={"iban": ["x", "x", "y"]},  # named so, but repeated
    )
    assert [found[name].key for name in ("accounts", "logs", "people")] == ["account_id", None, None]


def test_a_key_may_be_at_several_parties_but_not_twice_at_one():
    table = pa.table({"id": ["a", "b", "a", "c"]})
    found = [guess_tables({"accounts": SourceTable(table, parties=rows)}, {})["accounts"] for rows in ([2, 2], [3, 1])]
    assert [each.key for each in found] == ["id", None]
    assert found[0].why["key",] == "4 different values in 4 rows, counted at each party"


def test_rows_that_nothing_refers_to_are_numbered_by_each_party():
    found = guess(accounts={"id": ["a", "b"]}, transfers={"id": [0, 1], "account": ["a", "b"]})
    assert (found["accounts"].ids, found["transfers"].ids) == (None, "own")
    assert found["transfers"].foreign == {"account": "accounts"}


def test_parties_whose_rows_of_one_number_differ_number_their_own():
    visits = pa.table({"patient": [1, 2, 3, 4] * 2})

    def ids_of(patients):
        tables = {"patients": SourceTable(pa.table(patients), parties=[4, 4]), "visits": SourceTable(visits)}
        return guess_tables(tables, {"patients": ["sick"]})["patients"].ids

    same = {"id": [1, 2, 3, 4] * 2, "age": [20, 30, 40, 50] * 2, "sick": [0, 1, 0, 1, 1, 1, 1, 1]}
    assert ids_of(same) is None
    assert ids_of({**same, "age": [20, 30, 40, 50, 60, 70, 80, 90]}) == "own"
    assert ids_of({**same, "id": [1, 2, 3, 4, 4, 5, 6, 7], "age": [20, 30, 40, 50, 60, 70, 80, 90]}) is None


def test_dates_of_rows_that_others_refer_to_are_features():
    when = [datetime(2024, 1, 1), datetime(2024, 1, 2)]
    found = guess(accounts={"id": ["a", "b"], "opened": when}, transfers={"account": ["a", "b"], "date": when})
    assert (found["accounts"].time, found["transfers"].time) == (None, "date")
    assert found["accounts"].columns == {"opened": {"kind": "date"}}
    assert "is unknown before its opened" in found["accounts"].why["time",]


def test_kinds_of_columns():
    rows = 30
    found = guess(
        things={
            "id": list(range(rows)),
            "size": [0.5] * rows,
            "gap": [None, *range(rows - 1)],
            "on": [True, False] * (rows // 2),
            "kind": ["a", "b"] * (rows // 2),
            "list": [[1.0, 2.0]] * rows,
            "ragged": [[1.0]] * (rows - 1) + [[1.0, 2.0]],
            "name": [f"n{at}" for at in range(rows)],
            "empty": pa.nulls(rows),
        }
    )["things"]
    assert found.columns == {
        "size": {"kind": "number"},
        "gap": {"kind": "number", "missing": "mean"},
        "on": {"kind": "number", "scale": "none"},
        "kind": {"kind": "category"},
        "list": {"kind": "vector", "width": 2},
    }
    assert found.ignore == ["ragged", "name", "empty"]


def test_two_keys_into_one_table_may_become_edges():
    found = guess(people={"id": ["a", "b"]}, friends={"from": ["a"], "to": ["b"]})
    assert found["friends"].why["as",] == '"edges" makes each row an edge between two rows of people'


def test_whole_numbers_as_floats_are_keys_of_whole_numbers():
    found = guess(
        doctors={"id": [1, 2, 3]},
        patients={"id": [1.0, 2.0, 3.0], "doctor": [2.0, None, 3.0]},  # as pandas writes them if one is missing
    )
    assert (found["patients"].key, found["patients"].foreign) == ("id", {"doctor": "doctors"})


def test_column_named_like_a_table_whose_keys_it_lacks_is_noted():
    found = guess(doctors={"id": [1, 2]}, patients={"id": [1, 2], "doctor": [71, 72], "doctor_fee": [3, 4]})
    assert found["patients"].notes == [
        "column 'doctor' is named like the rows of 'doctors', but 0% of its 2 values are keys in 'id': no edge joins "
        "them; correct the keys if it refers to them"
    ]
