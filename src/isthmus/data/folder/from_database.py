"""Create a party folder of several tables that refer to each other, from an organisation's own tables."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isthmus import store, toml
from isthmus.data.folder.arrow import blank_to_null, is_present, is_text, to_plain, to_texts
from isthmus.data.folder.dates import DAY, UNKNOWN, read_dates, text_of
from isthmus.data.folder.from_tables import SourceTables, UnusableFolder, label_settings, note_on_numbers
from isthmus.data.folder.guessing import Guess, are_dates, comments_of, guess_tables
from isthmus.data.folder.limits import SUGGESTED
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.problems import Problem, join_names, printable
from isthmus.data.folder.relations import DatabaseSettings
from isthmus.data.folder.settings import FILE, FORMAT, read_like
from isthmus.data.folder.sources import SourceTable, narrow, party_names, read_sources
from isthmus.data.folder.table import without_index
from isthmus.data.folder.texts import number_notes, read_decimal_commas, spelling_notes
from isthmus.data.folder.writing import atomic_folder, check_free, write_table
from isthmus.errors import Errors, IsthmusError, did_you_mean

DATE = r"^\s*[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]"
"""How texts begin that may be dates."""
SHARES = {"train_until": 0.6, "val_until": 0.8}
"""The shares of the rows with labels that are dated before each day, if the label is dated."""
SHARES_OF_EDGES = {"until": 0.4, "train_until": 0.76, "val_until": 0.88}
"""The same if these rows are edges: those before `until` are only read."""


@dataclass(frozen=True)
class DatabaseSource:
    """The tables for a new party folder.

    Arguments:
        paths: files, folders of files, or databases; in a pattern a `*` stands for the party's name.
        label: table and column of the label; of several tasks the table.
        tasks: columns of labels, if there are several tasks.
        split: column of the label's table with train, val, test.
        classes: the number of classes, or their names; by default, those that the labels show.
        ids: `own` if keys mean nothing to other parties, `shared` if the same key is the same row at all of them.
        owners: columns that name the party which holds the row of a key, each `TABLE.KEY=COLUMN`.
        edges: tables whose rows are edges between the two rows that they refer to.
        ignore: columns to leave out, `COLUMN` or `TABLE.COLUMN`.
        like: another party's folder or `party.toml`, whose settings to use.
    """

    paths: Sequence[Path]
    label: str = ""
    tasks: Sequence[str] = ()
    split: str = ""
    classes: int | Sequence[str] = 0
    ids: str | None = None
    owners: Sequence[str] = ()
    edges: Sequence[str] = ()
    ignore: Sequence[str] = ()
    like: Path | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether a path is a pattern."""
        return any("*" in str(path) for path in self.paths)


def create_databases(
    folder: Path, source: DatabaseSource, *, name: str = "", force: bool = False
) -> dict[Path, list[Problem]]:
    """Write a party folder, or with patterns one inside `folder` for each match; after a severe problem nothing.

    Returns:
        The problems of each folder; those of `folder` are notes on the tables.
    """
    inside = source.is_pattern
    errors, like = Errors(), dict[str, Any]()
    with errors.collected():
        check_free(folder, force)
    with errors.collected():
        like = _like(source)
    own_name = name or os.path.basename(os.path.realpath(folder))
    sources: dict[str, Mapping[str, SourceTable]] = {}
    with errors.collected():
        for party, paths in (_matches(source.paths) if inside else {own_name: source.paths}).items():
            sources[party] = read_sources(paths, party if inside else "")
        tables, notes = _narrowed(sources, source)
    errors.check()
    shared, comments, more = (like, {}, []) if like else _settings(tables, sources, source)
    notes += more
    if comments and len(tables) > 1:
        comments = {("name",): f"counts in comments are over all {len(tables):,} parties", **comments}
    if left_out := sorted({table for own in tables.values() for table in own} - set(shared["tables"])):
        notes.append(Problem(FILE, f"--like has no table {join_names(left_out)}: left out", severe=False))
    with atomic_folder(folder, force=force) as new_folder:
        for party, own in tables.items():
            new = new_folder / party if inside else new_folder
            new.mkdir(exist_ok=True)
            for table in shared["tables"] if like else own:
                if table in own:
                    write_table(new / f"{table}.parquet", own[table])
            settings = {"format": FORMAT, "name": party, **shared, "partners": _partners(party, own, shared["tables"])}
            store.write(new / FILE, toml.dumps(settings, comments) + SUGGESTED)
        checked = check_folders(new_folder)[1]
        problems = {folder / path.relative_to(new_folder): found for path, found in checked.items()}
        problems[folder] = [*notes, *problems.get(folder, [])]
        if any(each.severe for every in problems.values() for each in every):
            raise UnusableFolder(problems)
    return problems


def _error(reason: str) -> IsthmusError:
    return IsthmusError(printable(reason))


def _matches(patterns: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the paths that the patterns match, by what their `*` stands for."""
    found: dict[str, list[Path]] = {}
    for pattern in patterns:
        start, *ends = str(pattern).split("*")
        if len(ends) != 1:
            raise _error(f"{pattern}: a pattern has one *, which stands for the party's name: give one in each path")
        paths = sorted(glob.glob(f"{glob.escape(start)}*{glob.escape(ends[0])}"))
        if not paths:
            raise _error(f"{pattern} matches nothing: correct it, and put it in quotes")
        for party, path in zip(party_names(start, ends[0], paths), paths, strict=True):
            found.setdefault(party, []).append(Path(path))
    if lacking := next((name for name, paths in found.items() if len(paths) < len(patterns)), None):
        raise _error(f"party '{lacking}' lacks a match of one of {join_names(patterns)}: add its file")
    return dict(sorted(found.items()))


def _narrowed(
    sources: Mapping[str, Mapping[str, SourceTable]], source: DatabaseSource
) -> tuple[dict[str, dict[str, pa.Table]], list[Problem]]:
    """Return the parties' tables in which a column has one type at all of them, and notes on odd texts."""
    names = sorted({name for own in sources.values() for name in own})
    ignored = set(source.ignore)
    known: set[str] = set()
    found: dict[str, dict[str, pa.Table]] = {party: {} for party in sources}
    notes: list[Problem] = []
    for name in names:
        parts = {party: own[name].table for party, own in sources.items() if name in own}
        if lacking := next((party for party in sources if party not in parts), None):
            raise _error(f"party '{lacking}' has no table '{name}', party '{next(iter(parts))}' has one: add it")
        for party, part in parts.items():
            known |= {each for column in part.column_names for each in (column, f"{name}.{column}")}
            kept = [each for each in part.column_names if not {each, f"{name}.{each}"} & ignored]
            parts[party], index = without_index(part.select(kept))
            notes += [Problem(name, each, severe=False) for each in index if each not in {note.what for note in notes}]
            parts[party], commas = read_decimal_commas(parts[party])
            notes += [Problem(name, f"{party}: {what}", severe=False) for what in commas.values()]
        together, odd = narrow(_together(name, parts))
        together, forms = _dates_of_each(together, parts)
        odd |= forms
        notes += [Problem(name, f"column '{column}': {why}", severe=False) for column, why in odd.items()]
        starts = list(accumulate((part.num_rows for part in parts.values()), initial=0))
        for (party, part), start in zip(parts.items(), starts, strict=False):
            found[party][name] = together.slice(start, part.num_rows)
        odd_parts = number_notes({party: own[name] for party, own in found.items()})
        notes += [Problem(name, what, severe=False) for what in odd_parts]
    errors = Errors()
    for each in sorted(ignored - known):
        errors.found.append(_error(f"--ignore {each}: no table has this column: {did_you_mean(each, known)}"))
    errors.check()
    return found, notes


def _dates_of_each(together: pa.Table, parts: Mapping[str, pa.Table]) -> tuple[pa.Table, dict[str, str]]:
    """Return the table with columns as dates that are dates at each party by itself, but not in one form at all."""
    notes = {}
    for at, column in enumerate(together.column_names if len(parts) > 1 else ()):
        if not is_text(together.column(column).type):
            continue
        texts = [to_texts(part.column(column)) for part in parts.values()]
        if not all(
            pc.any(pc.match_substring_regex(each, DATE)).as_py() for each in texts if each.null_count < len(each)
        ):
            continue
        read, why = zip(*(narrow(pa.table({column: each})) for each in texts), strict=True)
        found = [each.column(column) for each in read]
        if all(are_dates(each) for each in found if each.null_count < len(each)):
            found = [each if is_text(each.type) else pc.strftime(each, "%Y-%m-%d %H:%M:%S") for each in found]
            iso = pa.chunked_array([chunk for each in found for chunk in each.chunks], pa.string())
            together = together.set_column(at, column, narrow(pa.table({column: iso}))[0].column(column))
            said = [f"{party}: {each[column]}" for party, each in zip(parts, why, strict=True) if each]
            notes[column] = "; ".join(
                ["the parties write dates in different forms, and each is read by its own", *said]
            )
    return together, notes


def _together(name: str, parts: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of all parties as one table; an error names a column that they do not all have, or its types."""
    first, *others = parts
    columns = parts[first].column_names
    for other in others:
        if differ := set(columns) ^ set(parts[other].column_names):
            column = min(differ)
            has, lacks = (first, other) if column in columns else (other, first)
            raise _error(
                f"table '{name}' has a column '{column}' at party '{has}', at party '{lacks}' it has none: leave it "
                f"out with --ignore {name}.{column}"
            )
    plain = [
        pa.table([to_plain(part.column(each)) for each in columns], names=list(columns)) for part in parts.values()
    ]
    try:
        return pa.concat_tables(plain, promote_options="permissive") if others else plain[0]
    except pa.ArrowException as error:
        raise _error(
            f"table '{name}': the parties' columns are of different types: {error}; make them equal"
        ) from error


def _like(source: DatabaseSource) -> dict[str, Any]:
    """Return the settings that the party takes from another one."""
    if source.like is None:
        return {}
    other = read_like(source.like)
    if not other.tables:
        raise _error(f"--like {source.like}: that party has no several tables: make this one with --nodes and --edges")
    given = source.classes or source.tasks or source.split or source.owners or source.edges
    if given or (source.label and source.label != other.label):
        raise _error(f"--like {source.like} brings label, tasks, classes, split, owners and edges: leave them out")
    fields = {"labels", "classes", "tasks", *DatabaseSettings.model_fields}
    included = fields | ({"ids"} if source.ids is None else set())
    shared = other.model_dump(include=included, by_alias=True, exclude_unset=True)
    return {**shared, **({} if source.ids is None else {"ids": source.ids})}


def _settings(
    tables: Mapping[str, Mapping[str, pa.Table]],
    sources: Mapping[str, Mapping[str, SourceTable]],
    source: DatabaseSource,
) -> tuple[dict[str, Any], dict[tuple[str, ...], str], list[Problem]]:
    """Return the settings that the tables of all parties show, comments on them, and notes on the tables."""
    first = next(iter(sources.values()))
    all_rows = {
        name: SourceTable(
            pa.concat_tables([own[name] for own in tables.values()]),
            each.key,
            each.foreign,
            [own[name].num_rows for own in tables.values()],
        )
        for name, each in first.items()
    }
    items, label = _label(all_rows, source)
    owners = _owners(all_rows, source)
    taken = {name: list(columns.values()) for name, columns in owners.items()}
    taken.setdefault(items, []).extend(each for each in (label, source.split.rpartition(".")[2], *source.tasks) if each)
    guesses = guess_tables(all_rows, taken)
    named = [(guesses[name], key, name) for name, columns in owners.items() for key in columns]
    by_owners = [name if guess.key == key else guess.foreign.get(key) for guess, key, name in named]
    for name, guess in guesses.items():
        if source.ids is not None or name in by_owners:  # the whole party says it, or other parties' rows are named
            guess.ids = None
            guess.why.pop(("ids",), None)
    for name, guess in guesses.items():
        left_out = {column for own in sources.values() for column in own[name].table.column_names}
        gone = sorted(column for column in left_out if {column, f"{name}.{column}"} & set(source.ignore))
        guess.ignore += gone  # whoever makes a folder like this one leaves them out, too
    for name in source.edges:
        if name not in guesses:
            raise _error(f"--as-edges {name}: there is no table '{name}': the tables are {join_names(guesses)}")
        guesses[name].why["as",] = "each row is an edge, from its first foreign key to its second"
    rows = all_rows[items].table
    labelled = rows.select([label]).rename_columns(["label"]) if label else rows
    of_labels = SourceTables(tasks=source.tasks, classes=source.classes, columns={"label": label})
    labels = label_settings(labelled, of_labels, items) if label or source.tasks else {}
    dates, comments = _split_dates(rows, guesses, items, label or next(iter(source.tasks), ""), source)
    settings = {
        "label": source.label,
        **labels,
        "ids": source.ids,
        "split": source.split.rpartition(".")[2] or None,
        **dates,
        "tables": {
            name: _as_settings(guess, owners.get(name), is_edge=name in source.edges) for name, guess in guesses.items()
        },
    }
    notes = [Problem(name, each, severe=False) for name, guess in guesses.items() for each in guess.notes]
    notes += [Problem(items, each, severe=False) for each in note_on_numbers(labels, of_labels, labelled)]
    if labels and guesses[items].time is None and (dated := guesses[items].why.get(("time",))):
        what = "rows have dates, but no time, so all labels belong to one moment, and rows read what came later"
        notes.append(Problem(items, f"{what}: {dated}", severe=False))
    if "labels" in labels and label:
        notes += spelling_notes(items, label, rows.column(label))
    for name, guess in guesses.items():
        for column in (column for column, declared in guess.columns.items() if declared["kind"] == "category"):
            notes += spelling_notes(name, column, all_rows[name].table.column(column))
    return settings, {**comments, **dict(comments_of(guesses))}, notes


def _label(tables: Mapping[str, SourceTable], source: DatabaseSource) -> tuple[str, str]:
    """Return the table and the column of the label."""
    items, _, column = source.label.partition(".")
    if not source.label:
        table = next(iter(tables))
        raise _error(
            f"name the label's table and column, such as --label accounts.suspicious; without labels, for links, a "
            f"table alone, such as --label {table}"
        )
    if items not in tables:
        with_column = [name for name, each in tables.items() if source.label in each.table.column_names]
        if with_column:
            meant = " or ".join(f"--label {name}.{source.label}" for name in with_column)
            raise _error(f"--label {source.label}: name the table, too: {meant}")
        raise _error(f"--label {source.label}: there is no table '{items}': the tables are {join_names(tables)}")
    columns = tables[items].table.column_names
    if not (column or source.tasks) and (source.classes or source.split):
        raise _error(
            f"--label {source.label} names a table alone, so no row has a label: give --label TABLE.COLUMN, or "
            "leave out --classes and --split"
        )
    if column and source.tasks:
        raise _error(f"--label {source.label}: give --label TABLE.COLUMN, or --label TABLE with several --task COLUMN")
    for each in filter(None, (column, source.split.rpartition(".")[2], *source.tasks)):
        if each not in columns:
            raise _error(f"table '{items}' has no column '{each}': {did_you_mean(each, columns)}")
    if not tables[items].table.num_rows:
        raise _error(f"table '{items}' has no rows: give a table with at least one")
    first = column or next(iter(source.tasks), "")
    if first and not is_present(blank_to_null(tables[items].table.column(first))).any():
        raise _error(f"--label {source.label}: no row has a value: name another column")
    return items, column


def _owners(tables: Mapping[str, SourceTable], source: DatabaseSource) -> dict[str, dict[str, str]]:
    """Return by table its columns of keys with the columns that name the holders of the keys' rows."""
    found: dict[str, dict[str, str]] = {}
    for each in source.owners:
        where, _, column = each.partition("=")
        name, _, key = where.partition(".")
        if not (name and key and column):
            raise _error(f"--owner {each}: write --owner TABLE.KEY=COLUMN")
        if name not in tables:
            raise _error(f"--owner {each}: there is no table '{name}': the tables are {join_names(tables)}")
        columns = tables[name].table.column_names
        if unknown := next((one for one in (key, column) if one not in columns), None):
            raise _error(f"--owner {each}: table '{name}' has no column '{unknown}': {did_you_mean(unknown, columns)}")
        found.setdefault(name, {})[key] = column
    return found


def _partners(party: str, tables: Mapping[str, pa.Table], settings: Mapping[str, Any]) -> list[str] | None:
    """Return the other parties that the columns of owners name; None if there are no such columns."""
    columns = [(name, each) for name, table in settings.items() for each in (table.get("owners") or {}).values()]
    if not columns:
        return None
    named = (
        to_texts(tables[name].column(column)).drop_null()
        for name, column in columns
        if name in tables and column in tables[name].column_names
    )
    return sorted({each for values in named for each in pc.unique(values).to_pylist()} - {party})


def _split_dates(
    rows: pa.Table, guesses: Mapping[str, Guess], items: str, label: str, source: DatabaseSource
) -> tuple[dict[str, str], dict[tuple[str, ...], str]]:
    """Return the days of a split where the label's rows are dated, and comments on what may be read."""
    time = guesses[items].time
    if time is None:
        timed = [name for name, guess in guesses.items() if guess.time is not None]
        if not timed:
            return {}, {}
        why = f"until = \"2024-06-30\" would leave out rows dated from then on; '{items}' has no time, so all are read"
        return {}, {("until",): why}
    shares = SHARES_OF_EDGES if items in source.edges else SHARES
    shares = {name: share for name, share in shares.items() if name == "until" or not source.split}
    moments, _ = read_dates(rows.column(time))
    labelled = is_present(blank_to_null(rows.column(label))) if label else np.zeros(len(moments), dtype=bool)
    known = np.sort(moments[labelled & (moments != UNKNOWN)])
    if not known.size or not shares:
        return {}, {}
    cuts = {name: int(known[int(share * (known.size - 1))]) // DAY * DAY for name, share in shares.items()}
    said = {"until": "they are read, later ones are classified", "train_until": "train", "val_until": "train and val"}
    comments: dict[tuple[str, ...], str] = {
        (name,): f"{(known < cut).mean():.0%} of the rows with labels are dated before: {said[name]}"
        for name, cut in cuts.items()
    }
    if items not in source.edges:
        history = DatabaseSettings().history
        comments["history",] = (
            f"history = {history} is the default: how many earlier rows each row reads for a key it shares"
        )
    return {name: text_of(cut) for name, cut in cuts.items()}, comments


def _as_settings(guess: Guess, owners: Mapping[str, str] | None, *, is_edge: bool) -> dict[str, Any]:
    return {
        "key": guess.key,
        "time": guess.time,
        "as": "edges" if is_edge else "nodes",
        "ids": guess.ids,
        "ignore": guess.ignore or None,
        "foreign": guess.foreign or None,
        "owners": owners,
        "columns": guess.columns or None,
    }
