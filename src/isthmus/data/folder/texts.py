"""What texts in an organisation's tables probably mean: numbers, spellings of one value, mistakes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from isthmus.data.folder.arrow import NUMBER, is_text, to_plain, to_texts
from isthmus.data.folder.problems import Problem, join_names

COMMAS = r"^\s*[-+]?[0-9]+(,[0-9]+)?\s*$"
THOUSANDS = r"^\s*[-+]?[0-9]{1,3}(,[0-9]{3})*(\.[0-9]+)?\s*$"
FORMS = (
    (THOUSANDS, "numbers with commas between thousands: write {0} without its commas"),
    (COMMAS, "numbers with decimal commas: write {0} with a point"),
    (r"^\s*[-+]?[0-9]+([.,][0-9]+)?\s*%\s*$", "percentages: write {0} without its sign"),
    (r"^\s*[0-9]{1,2}[/.][0-9]{1,2}[/.][0-9]{2,4}\b.*$", "dates: write {0} as a number of days or years"),
    (r"^\s*[-+]?[0-9][0-9.,]*\s*[A-Za-z€$£]{1,4}\s*$", "numbers with a unit: write {0} without it"),
    (r"^\s*[€$£]\s*[-+]?[0-9][0-9.,]*\s*$", "numbers with a unit: write {0} without it"),
)
"""What texts look like that are no numbers, and what to do; the first form that most have is taken."""
NOTHING = {"unknown", "none", "nil", "missing", "?", "-", "n.a.", "not known"}
"""Texts that probably say that a value is not known, in small letters; a file's own signs for that are read as none."""
MOST = 0.9
"""In a column with this share of numbers, other texts are probably mistakes."""


def read_decimal_commas(table: pa.Table, without: Collection[str] = ()) -> tuple[pa.Table, dict[str, str]]:
    """Return the table with a point in place of decimal commas, and a note by column that had them.

    All texts of the column must be numbers. "1,234" alone may as well mean thousands, so such a column stays as it is,
    and so does one of several of a name.

    Arguments:
        without: columns to leave as they are.
    """
    notes = {}
    names = table.column_names
    for at, name in enumerate(names):
        if name in without or names.count(name) > 1 or not is_text(to_plain(table.column(name)).type):
            continue
        values = to_texts(table.column(name))
        first = _first(values, ",")
        if first is None or _share(values, COMMAS) < 1 or _share(values, THOUSANDS) == 1:
            continue
        table = table.set_column(at, name, pc.replace_substring(pc.utf8_trim_whitespace(values), ",", "."))
        notes[name] = f"column '{name}' has decimal commas: '{first}' is read as {first.strip().replace(',', '.')}"
    return table, notes


def form_of(values: Any) -> str:
    """Say what the texts look like and what to do, nothing for numbers and for texts without such a form.

    >>> form_of(pa.array(["12%", "7%"])), form_of(pa.array(["1.5", "2"])), form_of(pa.array(["oak"]))
    ("percentages: write '12%' without its sign", '', '')
    """
    odd = _no_numbers(values)
    for form, what in FORMS if len(odd) else ():
        if _share(odd, form) >= MOST:
            return what.format(repr(odd[pc.index(pc.match_substring_regex(odd, form), True).as_py()].as_py()))
    return ""


def separator_of(values: Any) -> str:
    """Return the sign that more than half of the texts have, as lists that were written as texts do; else nothing.

    >>> separator_of(pa.array(["a;b", "b;c;d", "a"])), separator_of(pa.array(["a;b", "b", "c"]))
    (';', '')
    """
    texts = to_texts(values)
    return next((sign for sign in ";|" if 2 * _share(texts, f"[{sign}]") > 1), "")


def odd_texts(values: Any, least: float = MOST) -> str:
    """Name the texts that are not numbers in a column where at least this share are; nothing in any other column."""
    odd = _no_numbers(values)
    numbers = len(values) - values.null_count - len(odd)
    if not len(odd) or numbers < least * (numbers + len(odd)):
        return ""
    shown = join_names(repr(each) for each in pc.unique(odd).to_pylist())
    return f"{numbers:,} of {numbers + len(odd):,} values are numbers, but not {shown}"


def number_notes(parts: Mapping[str, pa.Table], without: Collection[str] = ()) -> Iterator[str]:
    """Yield a note on each column of texts that look like numbers or dates, or are numbers at some parties only.

    Arguments:
        parts: the table of each party.
        without: columns that may hold anything.
    """
    first = next(iter(parts.values()))
    for name in (name for name in first.column_names if name not in without):
        columns = {party: to_plain(part.column(name)) for party, part in parts.items() if name in part.column_names}
        if not any(pa.types.is_string(each.type) for each in columns.values()):
            continue
        texts = {party: to_texts(each).drop_null() for party, each in columns.items()}
        texts = {party: each for party, each in texts.items() if len(each)}
        numbers = [party for party, each in texts.items() if _share(each, NUMBER) >= MOST]
        for party, values in texts.items():
            if party in numbers:
                continue
            if form := form_of(values):
                yield f"column '{name}' of {party} looks like {form}, or they are no numbers"
            elif numbers:
                odd = _no_numbers(values)[0].as_py()
                yield f"column '{name}' has numbers at {join_names(numbers)}, but not at {party}, such as '{odd}'"


def spelling_notes(path: str, name: str, values: Any) -> list[Problem]:
    """Return notes on classes or categories that are probably mistakes.

    Arguments:
        path: the file that the notes name.
        name: the column's name in it.
    """
    values = to_plain(values)
    if not is_text(values.type):
        return []
    values = to_texts(values).drop_null()
    odd = odd_texts(values)
    notes = [f"column '{name}' is taken for texts: {odd}: correct them if all should be numbers"] if odd else []
    first: dict[str, str] = {}
    for text in sorted(pc.unique(values).to_pylist(), key=lambda each: (len(each), each)):
        if not odd and text.strip().casefold() in NOTHING:
            notes.append(f"column '{name}': '{text}' is taken for a value: leave the cells empty if nothing is known")
        other = first.setdefault(text.strip().casefold(), text)
        if other != text:
            how = "only in upper and lower case" if other.casefold() == text.casefold() else "by blanks"
            if how == "by blanks" and other.strip() != text.strip():
                how = "in blanks, and in upper and lower case"
            notes.append(f"column '{name}': '{text}' differs from '{other}' {how}: make them equal")
    return [Problem(path, each, severe=False) for each in notes]


def _no_numbers(values: Any) -> Any:
    texts = to_texts(values).drop_null()
    return texts.filter(pc.invert(pc.match_substring_regex(texts, NUMBER)))


def _share(values: Any, form: str) -> float:
    """Return the share of the texts that have a form."""
    known = values.drop_null()
    return pc.sum(pc.match_substring_regex(known, form)).as_py() / len(known) if len(known) else 0.0


def _first(values: Any, part: str) -> str | None:
    """Return the first text that has this part."""
    at = pc.index(pc.match_substring(values, part), True).as_py()
    return None if at < 0 else str(values[at].as_py())
