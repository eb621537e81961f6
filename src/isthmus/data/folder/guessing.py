"""Guess what tables are: their keys, what refers to what, which columns are dates, numbers or categories."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isthmus.data.folder.arrow import (
    blank_to_null,
    is_list,
    is_numeric,
    is_present,
    is_text,
    list_lengths,
    positions_in,
    to_array,
    to_floats,
    to_keys,
    to_texts,
)
from isthmus.data.folder.bags import is_ragged
from isthmus.data.folder.columns import MAX_CATEGORIES, count_distinct, looks_like_names
from isthmus.data.folder.dates import UNKNOWN, read_dates, text_of
from isthmus.data.folder.problems import join_names
from isthmus.data.folder.reading import FIRST_ROWS, running_numbers
from isthmus.data.folder.shared_nodes import DISAGREE
from isthmus.data.folder.sources import SourceTable
from isthmus.data.folder.texts import MOST, form_of

ENDS = {"from", "to", "src", "dst", "source", "target", "sender", "receiver", "payer", "payee", "parent", "origin"}
"""Words in the names of columns that refer to a row, whatever its table is called."""
TIMES = {"time", "date", "timestamp", "day", "at", "when", "created", "booked", "moment", "datetime"}
"""Words in the names of columns that say when a row came to be."""
ENOUGH, WITH_NAME = 0.9, 0.1
"""The share of a column's values that must be keys of the other table: for texts, and for a column that is named so."""


@dataclass
class Guess:
    """What is proposed for one table, and how each guess was made."""

    key: str | None = None
    time: str | None = None
    ids: str | None = None
    foreign: dict[str, str] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignore: list[str] = field(default_factory=list)
    why: dict[tuple[str, ...], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What looks like a mistake in the table."""


def guess_tables(sources: Mapping[str, SourceTable], taken: Mapping[str, Sequence[str]]) -> dict[str, Guess]:
    """Return a proposal for each table.

    Arguments:
        taken: by table the columns with another meaning: label, split.
    """
    guesses = {name: Guess() for name in sources}
    for name, source in sources.items():
        _guess_key(name, source, guesses[name], taken.get(name, ()))
    for name, source in sources.items():
        _guess_foreign(name, source, guesses, sources, taken.get(name, ()))
    for name, source in sources.items():
        _guess_first_as_key(source, guesses[name], taken.get(name, ()))
    for name, source in sources.items():
        _guess_foreign(name, source, guesses, sources, taken.get(name, ()))
        _note_unmatched(source, guesses[name], guesses, sources, taken.get(name, ()))
    referred = {other for each in guesses.values() for other in each.foreign.values()}
    for name, source in sources.items():
        _guess_columns(source, guesses[name], taken.get(name, ()), is_referred=name in referred)
        _guess_edges(guesses[name])
        key = guesses[name].key
        if key is None:
            continue
        whole_of_own = name not in referred and pa.types.is_integer(source.keys(key).type)
        if whole_of_own or _numbers_own_rows(source, key, taken.get(name, ())):
            guesses[name].ids = "own"
            guesses[name].why["ids",] = "each party numbers these rows; 'shared' if a number is one row at all parties"
    return guesses


def singular(name: str) -> str:
    """Return the word for one row of a table.

    >>> [singular(name) for name in ("accounts", "companies", "boxes", "address")]
    ['account', 'company', 'box', 'address']
    """
    word = name.lower()
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def words(name: str) -> set[str]:
    """Return the words of a column's name.

    >>> sorted(words("fromAccount_ID"))
    ['account', 'from', 'id']
    """
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)}


def _guess_key(name: str, source: SourceTable, guess: Guess, taken: Sequence[str]) -> None:
    table = source.table
    if source.key is not None:
        guess.key, guess.why["key",] = source.key, "declared as primary key"
        return
    one = singular(name)
    named = [{"id"}, {"key"}, {one}, {one, "id"}, {one, "key"}, {one, "number"}, {one, "no"}, {one, "nr"}, {"iban"}]
    order = sorted(table.column_names, key=lambda each: next((n for n, w in enumerate(named) if words(each) == w), 99))
    for column in order:
        values = to_keys(table.column(column))
        if column in taken or words(column) not in named or not _are_keys(values.drop_null()):
            continue
        different = source.different(column)
        if different >= len(values) * MOST:  # a few missing or repeated keys are mistakes, which the check names
            guess.key = column
            of_each = ", counted at each party" if len(source.parties) > 1 else ""
            guess.why["key",] = f"{different:,} different values in {len(values):,} rows{of_each}"
            return


def _guess_first_as_key(source: SourceTable, guess: Guess, taken: Sequence[str]) -> None:
    """Take the first column for the key, if it holds a different text in each row and refers to no other table."""
    column = source.table.column_names[0]
    values = blank_to_null(source.table.column(column))
    if guess.key is not None or column in (*taken, *guess.foreign) or not _are_keys(values):
        return
    if is_text(values.type) and not are_dates(values) and source.different(column) == len(values):
        guess.key = column
        guess.why["key",] = f"the first column, a different text in each of {len(values):,} rows"


def _are_keys(values: Any) -> bool:
    """Whether values can be keys: texts or whole numbers, none of them missing."""
    return bool(len(values)) and not values.null_count and (is_text(values.type) or pa.types.is_integer(values.type))


def _guess_foreign(
    name: str,
    source: SourceTable,
    guesses: Mapping[str, Guess],
    sources: Mapping[str, SourceTable],
    taken: Sequence[str],
) -> None:
    guess = guesses[name]
    for column, other in source.foreign.items():
        if other in guesses and guesses[other].key is not None and column not in taken:
            guess.foreign[column] = other
            guess.why["foreign", column] = "declared as foreign key"
    for column in source.table.column_names:
        values = to_keys(source.table.column(column))
        if column in (*taken, *guess.foreign, guess.key) or values.null_count == len(values):
            continue
        found = []
        for other, target in guesses.items():
            if target.key is None:
                continue
            keys = sources[other].keys(target.key)
            share, different = _contained(values, keys)
            by_name = bool(words(column) & _names_of(other, target.key))
            is_named = by_name or bool(words(column) & ENDS)
            if share >= (WITH_NAME if is_named else ENOUGH if is_text(values.type) and different > 1 else 2):
                found.append((share, by_name, other, different))
        if found:
            share, by_name, other, different = max(found)
            guess.foreign[column] = other
            named = ", and its name fits" if by_name else ""
            guess.why["foreign", column] = f"{share:.0%} of its {different:,} values are keys of {other}{named}"


def _names_of(table: str, key: str) -> set[str]:
    """Return the words by which columns of other tables name a row of a table."""
    return {singular(table), *(words(key) - {"id", "key", "name", "number"})}


def _note_unmatched(
    source: SourceTable,
    guess: Guess,
    guesses: Mapping[str, Guess],
    sources: Mapping[str, SourceTable],
    taken: Sequence[str],
) -> None:
    """Note columns that are named like another table's row, but whose values are hardly ever its keys."""
    for column in source.table.column_names:
        if column in (*taken, *guess.foreign, guess.key):
            continue
        values = to_keys(source.table.column(column))
        for other, target in guesses.items():
            named = words(column) - {"id", "key", "no", "nr", "number"} - ENDS
            if target is guess or target.key is None or not named or named - _names_of(other, target.key):
                continue
            share, different = _contained(values, sources[other].keys(target.key))
            guess.notes.append(
                f"column '{column}' is named like the rows of '{other}', but {share:.0%} of its "
                f"{different or count_distinct(values):,} values are keys in '{target.key}': no edge joins them; "
                "correct the keys if it refers to them"
            )


def _contained(values: Any, keys: Any) -> tuple[float, int]:
    """Return the share of the different values that are keys, and how many different values there are."""
    if is_text(values.type) != is_text(keys.type) or not (is_text(values.type) or pa.types.is_integer(values.type)):
        return 0.0, 0
    different = to_array(pc.unique(values.drop_null()))
    inside = int((positions_in(to_texts(different), to_texts(keys)) >= 0).sum())
    return inside / max(1, len(different)), len(different)


def _guess_columns(source: SourceTable, guess: Guess, taken: Sequence[str], *, is_referred: bool) -> None:
    table = source.table
    rest = [each for each in table.column_names if each not in (*taken, *guess.foreign, guess.key)]
    dates = [each for each in rest if are_dates(table.column(each))]
    times = [each for each in dates if words(each) & TIMES] or dates
    if times and not is_referred:
        guess.time = max(times, key=lambda each: count_distinct(blank_to_null(table.column(each))))
        guess.why["time",] = f"dates from {_span(table.column(guess.time))}; no other table refers to these rows"
        if others := [each for each in times if each != guess.time]:
            which = f"'{guess.time}' is taken for the time from which on a row is known, not {join_names(others)}"
            guess.notes.append(f"{which}: correct 'time' in party.toml if that is wrong")
    elif times:
        guess.why["time",] = f'time = "{times[0]}" would say that a row is unknown before its {times[0]}'
    left_out: dict[str, list[str]] = {}
    for column in rest:
        if column == guess.time:
            guess.columns[column] = {"kind": "date", "features": "cycle"}
            guess.why["columns", column, "kind"] = "as features: when in the week and in the day"
            continue
        declared, why = _guess_kind(to_array(table.column(column)), is_date=column in dates)
        if declared is None:
            guess.ignore.append(column)
            left_out.setdefault(why, []).append(column)
            guess.why["ignore",] = "; ".join(filter(None, [guess.why.get(("ignore",)), f"{column}: {why}"]))
        else:
            guess.columns[column] = declared
            guess.why["columns", column, "kind"] = why
    if left_out:
        each = "; ".join(f"{join_names(names)} ({why})" for why, names in left_out.items())
        guess.notes.append(f"columns are left out: {each}")


def _guess_kind(values: Any, *, is_date: bool) -> tuple[dict[str, Any] | None, str]:
    """Return how a column becomes features, None if it should not, and why."""
    if is_list(values.type):
        if is_ragged(values) or not is_numeric(values.type.value_type):
            return None, "lists of different lengths, or not of numbers"
        width = int(list_lengths(values).max(initial=0))
        return {"kind": "vector", "width": width}, f"lists of {width} numbers"
    values = blank_to_null(values)
    missing = {"missing": "mean"} if values.null_count else {}
    if is_date:
        return {"kind": "date", **missing}, f"dates from {_span(values)}"
    if pa.types.is_null(values.type) or values.null_count == len(values):
        return None, "no value in any row"
    if pa.types.is_boolean(values.type):
        return {"kind": "number", "scale": "none", **missing}, "true or false"
    different = count_distinct(values)
    if is_numeric(values.type):
        missing = {"missing": "mean"} if np.isnan(to_floats(values)).any() else {}
        return {"kind": "number", **missing}, f"{different:,} different numbers"
    if not is_text(values.type):
        return None, f"values of type {values.type}"
    if different > MAX_CATEGORIES or looks_like_names(values):
        return None, f"{different:,} different texts look like {form_of(values) or 'names'}"
    return {"kind": "category"}, f"{different:,} different texts"


def _guess_edges(guess: Guess) -> None:
    ends = list(guess.foreign.values())
    if len(ends) == 2 and guess.time is None:
        between = f"two rows of {ends[0]}" if ends[0] == ends[1] else f"a row of {ends[0]} and one of {ends[1]}"
        guess.why["as",] = f'"edges" makes each row an edge between {between}'


def are_dates(values: Any) -> bool:
    """Whether a column holds dates, or texts most of which are dates."""
    values = blank_to_null(values)
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        return True
    if not pa.types.is_string(values.type) or values.null_count == len(values):
        return False
    moments, _ = read_dates(values)
    return bool((moments != UNKNOWN).sum() >= MOST * is_present(values).sum())


def _span(values: Any) -> str:
    moments, _ = read_dates(values)
    known = moments[moments != UNKNOWN]
    return f"{text_of(known.min())[:10]} to {text_of(known.max())[:10]}" if known.size else "none"


def _numbers_own_rows(source: SourceTable, key: str, taken: Sequence[str]) -> bool:
    """Whether each party seems to number its own rows.

    The keys are then running numbers that begin alike at several parties, and rows with the same key differ. Of one
    party's table only the numbers can be seen: whole ones that begin with 0 or 1.
    """
    numbers = [running_numbers(to_keys(part.column(key))) for part in source.parts()]
    if len(numbers) == 1:
        is_whole = pa.types.is_integer(source.keys(key).type)
        return is_whole and numbers[0] is not None and int(numbers[0].min()) in (0, 1)
    seen: dict[int, list[dict[int, dict[str, Any]]]] = {}
    for part, running in zip(source.parts(), numbers, strict=True):
        if running is not None:
            first = np.argsort(running, kind="stable")[:FIRST_ROWS]
            rows = part.drop_columns([each for each in (*taken, key) if each in part.column_names]).take(first)
            own = dict(zip(running[first].tolist(), rows.to_pylist(), strict=True))
            seen.setdefault(int(running.min()), []).append(own)
    for parties in seen.values():
        values: dict[int, list[dict[str, Any]]] = {}
        for number, row in (each for party in parties for each in party.items()):
            values.setdefault(number, []).append(row)
        shared = [each for each in values.values() if len(each) > 1]
        if sum(map(_contradict, shared)) > DISAGREE * len(shared):
            return True
    return False


def _contradict(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows have different values in a column; a party may leave out what another one knows."""
    known = ({repr(row[name]) for row in rows if row.get(name) not in (None, "")} for name in rows[0])
    return any(len(values - {"nan"}) > 1 for values in known)


def comments_of(guesses: Mapping[str, Guess]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield how each guess was made, by the place of its setting in `party.toml`."""
    for name, guess in guesses.items():
        for path, why in guess.why.items():
            yield ("tables", name, *path), why
