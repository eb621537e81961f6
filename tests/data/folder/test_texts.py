"""Texts of an organisation's tables: what they look like, and which of them are numbers after all."""

import pyarrow as pa
import pytest

from isthmus.data.folder.texts import form_of, read_decimal_commas, spelling_notes


@pytest.mark.parametrize(
    ("texts", "due"),
    [
        (["399,65", "1", None], "399.65"),
        (["1,234", "2,5"], "1.234"),
        (["1,234", "5,678"], "1,234"),
        (["1,2", "1,2,3"], "1,2"),
        (["7", "8"], "7"),
    ],
)
def test_commas_are_decimal_where_nothing_else_fits(texts, due):
    table, notes = read_decimal_commas(pa.table({"amount": texts}))
    assert table["amount"][0].as_py() == due
    assert list(notes) == (["amount"] if due != texts[0] else [])


@pytest.mark.parametrize(
    ("texts", "due"),
    [
        (["1,234.50", "7.25"], "numbers with commas between thousands: write '1,234.50' without its commas"),
        (["12%", "7 %"], "percentages: write '12%' without its sign"),
        (["06/30/2024", "07/01/2024"], "dates: write '06/30/2024' as a number of days or years"),
        (["12 kg", "7 kg"], "numbers with a unit: write '12 kg' without it"),
        (["oak", "12%"], ""),
        (["1.5", "2"], ""),
    ],
)
def test_texts_say_what_they_look_like(texts, due):
    assert form_of(pa.array(texts)) == due


def test_spellings_of_one_value_are_noted():
    notes = spelling_notes("nodes.csv", "risk", pa.array(["yes", "Yes", "no", " no", "maybe"]))
    assert [each.what for each in notes] == [
        "column 'risk': ' no' differs from 'no' by blanks: make them equal",
        "column 'risk': 'yes' differs from 'Yes' only in upper and lower case: make them equal",
    ]


def test_a_value_that_probably_says_nothing_is_noted():
    (note,) = spelling_notes("nodes.csv", "species", pa.array(["oak", "elm", "Unknown"]))
    assert note.what == "column 'species': 'Unknown' is taken for a value: leave the cells empty if nothing is known"
    (note,) = spelling_notes("nodes.csv", "age", pa.array([*map(str, range(30)), "?"]))
    assert "30 of 31 values are numbers, but not '?'" in note.what
