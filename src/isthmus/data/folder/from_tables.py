"""A party folder from the tables that an organisation has: CSV or Parquet, under column names of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isthmus import store, toml
from isthmus.data.folder.arrow import (
    blank_to_null,
    is_list,
    is_numeric,
    is_text,
    list_lengths,
    to_array,
    to_floats,
    to_plain,
    to_texts,
)
from isthmus.data.folder.columns import MAX_CATEGORIES, count_distinct, looks_like_names
from isthmus.data.folder.problems import Problem, join_names, printable
from isthmus.data.folder.reading import EDGES, GRAPHS, NODES, check_folder, read_table
from isthmus.data.folder.settings import FILE, MAX_CLASSES, RESERVED, PartyFile, read_settings
from isthmus.data.folder.writing import MOLECULES, atomic_folder
from isthmus.data.party import NAME_RULE
from isthmus.errors import IsthmusError, did_you_mean

IDS = {MOLECULES: ("id",), GRAPHS: ("id",), NODES: ("id", "graph"), EDGES: ("source", "target")}
"""Columns of ids in each file; a node's graph only where there are graphs."""


@dataclass(frozen=True)
class SourceTables:
    """Where the data of a new party folder come from.

    Arguments:
        nodes, edges, graphs: the tables, CSV or Parquet.
        smiles: a CSV file of molecules instead.
        renamed: for each column with a meaning of its own (id, label, split, source, ...) its name in these tables.
        tasks: columns of labels, where there are several tasks.
        ignore: columns to leave out.
        like: another party's folder or `party.toml`, whose labels and columns this party shares.
        directed: whether an edge runs from source to target only.
        classes: how many classes there are, where no item has a label yet.
    """

    nodes: Path | None = None
    edges: Path | None = None
    graphs: Path | None = None
    smiles: Path | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    ignore: Sequence[str] = ()
    like: Path | None = None
    directed: bool = False
    classes: int = 0


def create_folder(folder: Path, source: SourceTables, *, name: str = "", force: bool = False) -> list[Problem]:
    """Write a party folder and check it; where something severe is wrong nothing is written.

    Returns:
        What is wrong with it, by the rows of the tables that it was made from.
    """
    name = name or os.path.basename(os.path.realpath(folder))
    if not name.isprintable():
        raise _refused(f"name '{name}' holds what cannot be shown: choose another with --name, of {NAME_RULE}")
    like = _like(source)
    tables, notes = _tables(source, like.get("tasks") or source.tasks)
    settings = {"format": 1, "name": name, **_settings(source, tables, name), **like}
    with atomic_folder(folder, force=force) as aside:
        for file, table in tables.items():
            _write(aside / file, table)
        store.write(aside / FILE, toml.dumps(settings))
        _, problems = check_folder(aside)
        if any(each.severe for each in problems):
            raise UnusableFolder(problems)
    return [*notes, *problems]


class UnusableFolder(IsthmusError):  # noqa: N818 - what it is, not what went wrong
    """A folder that would be no use; carries what is wrong, so that the command line can list it all."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        severe = [each for each in problems if each.severe]
        super().__init__(f"nothing was written: {severe[0]}")
        self.problems = list(problems)


def _refused(reason: str) -> IsthmusError:
    """The error for tables that no folder can be made from, to be raised; on one line, whatever columns are called."""
    return IsthmusError(printable(reason))


def _tables(source: SourceTables, tasks: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """The folder's files, each with the columns named as they are there, and what was left out of them."""
    if source.smiles is not None and (source.nodes or source.edges or source.graphs):
        raise _refused("molecules bring their own nodes and edges: give --smiles alone")
    if source.smiles is None and (source.nodes is None or source.edges is None):
        raise _refused("a party has nodes and edges: give both --nodes and --edges, or --smiles")
    items = {role: role for role in ("id", "label", "split")}
    wanted: list[tuple[str, Path | None, dict[str, str]]] = [
        (MOLECULES, source.smiles, {"smiles": "smiles", **items}),
        (GRAPHS, source.graphs, {"graph": "id", "label": "label", "split": "split"}),
        (NODES, source.nodes, items if source.graphs is None else {"id": "id", "graph": "graph"}),
        (EDGES, source.edges, {role: role for role in ("source", "target", "weight", "owner")}),
    ]
    tables: dict[str, Any] = {}
    notes: list[Problem] = []
    seen: set[str] = set()
    for file, path, roles in wanted:
        if path is None:
            continue
        table = _renamed(path, source, roles, IDS[file], seen)
        meant = [name for name in table.column_names if file == NODES or name in (*roles.values(), *tasks)]
        extra = [name for name in table.column_names if name not in meant]
        if extra:
            what = f"columns that mean nothing here are left out: {join_names(extra)}"
            notes.append(Problem(path.name, what, severe=False))
        tables[file] = table.select(meant)
    for column in source.ignore:
        if column not in seen:
            raise _refused(f"--ignore {column}: no table has such a column: {did_you_mean(column, seen)}")
    return _with_ids_of_one_type(tables), notes


def _renamed(path: Path, source: SourceTables, roles: Mapping[str, str], ids: Sequence[str], seen: set[str]) -> Any:
    """A table without the columns to leave out, and with those that have a role called as in a party folder.

    Arguments:
        roles: what columns mean, and what they are called in a party folder.
        ids: of these what holds ids.
        seen: takes up the names of all columns that there are.
    """
    columns = {source.renamed.get(role, role): final for role, final in roles.items()}
    table = read_table(path, as_text=["id", *(column for column, final in columns.items() if final in ids)])
    seen.update(table.column_names)
    table = table.select([at for at, name in enumerate(table.column_names) if name not in source.ignore])
    for role in roles:
        if role in source.renamed and source.renamed[role] not in table.column_names:
            raise _refused(f"{path} has no column '{source.renamed[role]}': it has {join_names(table.column_names)}")
    names = [columns.get(name, name) for name in table.column_names]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise _refused(f"{path} has two columns for '{double}': leave one out with --ignore")
    return table.rename_columns(names)


def _with_ids_of_one_type(tables: dict[str, Any]) -> dict[str, Any]:
    """Ids as whole numbers where all of them are, in all tables; else as texts."""
    ids = [(file, column) for file, table in tables.items() for column in IDS[file] if column in table.column_names]
    columns = {place: to_plain(tables[place[0]].column(place[1])) for place in ids}
    if all(_are_whole(values) for values in columns.values()):
        cast: Any = pa.int64()
    elif all(is_text(values.type) or pa.types.is_integer(values.type) for values in columns.values()):
        cast = pa.string()
    else:
        return tables  # the check says what is wrong with them
    for (file, column), values in columns.items():
        at = tables[file].column_names.index(column)
        tables[file] = tables[file].set_column(at, column, blank_to_null(values).cast(cast))
    return tables


def _are_whole(values: Any) -> bool:
    """Whether ids are whole numbers, or texts that say no more than these: "007" is another id than "7"."""
    if pa.types.is_integer(values.type):
        return not pa.types.is_uint64(values.type)
    if not is_text(values.type):
        return False
    said = to_texts(values).drop_null()
    return bool(pc.all(pc.match_substring_regex(said, "^(0|-?[1-9][0-9]{0,17})$"), min_count=0).as_py())


def _settings(source: SourceTables, tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`party.toml` but for the name: what the tables show, unless another party declares it."""
    settings = {
        "level": _level(source),
        "directed": source.directed or None,
        "partners": _partners(tables.get(EDGES), name),
    }
    if source.like is not None:
        return settings
    settings |= _labels(tables.get(MOLECULES, tables.get(GRAPHS, tables.get(NODES))), source)
    return settings | ({"smiles": {}} if source.smiles is not None else {"columns": _columns(tables[NODES], source)})


def _level(source: SourceTables) -> str:
    return "node" if source.graphs is None and source.smiles is None else "graph"


def _like(source: SourceTables) -> dict[str, Any]:
    """What the party shares with another one; nothing where there is no such."""
    if source.like is None:
        return {}
    other, problems = read_settings(source.like.parent if source.like.name == FILE else source.like)
    if other is None:
        raise _refused(f"--like {source.like}: {problems[0]}")
    if other.level != _level(source) or (other.smiles is None) != (source.smiles is None):
        raise _refused(f"--like {source.like}: that party holds {_held(other)}, these tables are something else")
    if source.tasks and list(source.tasks) != other.tasks:
        raise _refused(f"--like {source.like}: its tasks are {join_names(other.tasks or ['none'])}: leave --task out")
    shared = other.model_dump(include={"labels", "classes", "tasks", "ids", "columns"})
    return {**shared, "smiles": None if other.smiles is None else {"features": other.smiles.features}}


def _held(settings: PartyFile) -> str:
    return "molecules" if settings.smiles else {"node": "one graph", "graph": "a collection of graphs"}[settings.level]


def _labels(table: Any, source: SourceTables) -> dict[str, Any]:
    """The labels as the table shows them."""
    if source.tasks:
        return {"tasks": list(source.tasks)}
    values = blank_to_null(table.column("label")).drop_null() if "label" in table.column_names else None
    if values is None or not len(values):
        if source.classes:
            return {"classes": source.classes}
        raise _refused(
            "there is no label: name the column with --label, take the classes from --like a party, or say how many "
            "there are with --classes"
        )
    if pa.types.is_string(values.type):
        names = pc.unique(values).to_pylist()
        if len(names) > MAX_CATEGORIES:
            raise _refused(
                f"the label column has {len(names):,} different texts: that looks like names, not classes; name "
                "another with --label, or list them in another party's party.toml and use --like"
            )
        return {"labels": sorted(names)}
    if pa.types.is_boolean(values.type):
        return {"classes": 2}
    if is_numeric(values.type):
        most = np.nanmax(to_floats(values), initial=0)
        return {"classes": int(min(most, MAX_CLASSES)) + 1}
    raise _refused(f"the label column holds values of type {values.type}: labels are whole numbers or texts")


def _partners(edges: Any, name: str) -> list[str] | None:
    if edges is None or "owner" not in edges.column_names:
        return None
    owners = blank_to_null(edges.column("owner"))
    if not is_text(owners.type):
        raise _refused(f"the owner column holds values of type {owners.type}: it must hold names")
    return sorted({str(each) for each in pc.unique(owners.drop_null()).to_pylist()} - {name})


def _columns(nodes: Any, source: SourceTables) -> dict[str, dict[str, Any]]:
    """Feature columns and their kinds, as their values show them."""
    features = [name for name in nodes.column_names if name not in {*RESERVED, *source.tasks}]
    if not features:
        raise _refused("the nodes have no column of features: add at least one")
    return {name: _kind(name, to_array(nodes.column(name))) for name in features}


def _kind(name: str, values: Any) -> dict[str, Any]:
    if is_list(values.type):
        return {"kind": "vector", "width": int(list_lengths(values).max(initial=0))}
    values = blank_to_null(values)
    if pa.types.is_boolean(values.type):
        return {"kind": "number", "scale": "none", **_missing(values)}
    if pa.types.is_null(values.type):
        raise _refused(f"column '{name}' has no value in any row: leave it out with --ignore {name}")
    if is_numeric(values.type):
        return {"kind": "number", **_missing(values)}
    if not pa.types.is_string(values.type):
        raise _refused(
            f"column '{name}' holds values of type {values.type}, not features: leave it out with --ignore {name}"
        )
    different = count_distinct(values)
    if different > MAX_CATEGORIES or looks_like_names(values):
        raise _refused(
            f"column '{name}' has {different:,} different texts: that looks like names, not categories; leave it out "
            f"with --ignore {name}, or declare it in another party's {FILE} and use --like"
        )
    return {"kind": "category"}


def _missing(values: Any) -> dict[str, str]:
    return {"missing": "mean"} if np.isnan(to_floats(values)).any() else {}


def _write(path: Path, table: Any) -> None:
    from pyarrow import csv, parquet

    store.write_with(path, partial(csv.write_csv if path.suffix == ".csv" else parquet.write_table, table))
