"""Create a party folder from an organisation's own tables, CSV or Parquet, with its own column names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isthmus import store, toml
from isthmus.data.folder import degrees
from isthmus.data.folder.arrow import (
    NUMBER,
    blank_to_null,
    is_list,
    is_numeric,
    is_text,
    list_lengths,
    to_array,
    to_floats,
    to_keys,
    to_plain,
    to_texts,
)
from isthmus.data.folder.bags import AT, VALUE, bag_columns, column_parts, is_ragged, make_bags, width_of
from isthmus.data.folder.columns import MAX_CATEGORIES, MIN_NAMES, count_distinct, looks_like_names
from isthmus.data.folder.dates import is_date
from isthmus.data.folder.guessing import words
from isthmus.data.folder.labels import BOOLEANS
from isthmus.data.folder.limits import SUGGESTED
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.problems import Problem, join_names, printable
from isthmus.data.folder.settings import FILE, FORMAT, MAX_CLASSES, RESERVED, PartyFile, read_like
from isthmus.data.folder.table import EDGES, GRAPHS, NODES, read_table, without_index
from isthmus.data.folder.texts import (
    form_of,
    number_notes,
    odd_texts,
    read_decimal_commas,
    separator_of,
    spelling_notes,
)
from isthmus.data.folder.writing import MOLECULES, atomic_folder, check_free, write_table
from isthmus.data.party import NAME_RULE
from isthmus.errors import Errors, IsthmusError, did_you_mean

NAMELESS = re.compile(r"\s*|Unnamed: [0-9]+")
"""Names of the column in which pandas writes the index, in a file and when it reads the file again."""
IDS = {MOLECULES: ("id",), GRAPHS: ("id",), NODES: ("id", "graph"), EDGES: ("source", "target")}
"""Columns of ids in each file."""
DISTANCES = {
    "m", "km", "cm", "mm", "metre", "metres", "meter", "meters", "kilometre", "kilometres", "kilometer", "kilometers",
    "mile", "miles", "feet", "distance", "distances", "dist", "length", "ms", "second", "seconds", "sec", "minute",
    "minutes", "hour", "hours", "duration", "latency", "delay",
}  # fmt: skip
"""Words in the names of columns that say how far apart two nodes are, which is no weight."""


@dataclass(frozen=True)
class SourceTables:
    """The tables for a new party folder.

    Arguments:
        nodes, edges, graphs: the tables, CSV or Parquet. Whole graphs may come without `nodes`: the ends of the edges.
        smiles: a CSV file of molecules, instead of the tables.
        columns: the name in these tables of each column with a role (id, label, split, source, ...).
        tasks: columns of labels, if there are several tasks.
        ignore: columns to leave out.
        like: another party's folder or `party.toml`, for the same labels and feature columns.
        directed: whether an edge runs from source to target only.
        classes: the number of classes, or their names; by default, those that the labels show.
        bags: columns of lists that are bags, with their width if it is given.
        degrees: whether nodes get their degree as features.
        ids: `own` if ids mean nothing to other parties, `shared` if the same id is the same node at all of them.
    """

    nodes: Path | None = None
    edges: Path | None = None
    graphs: Path | None = None
    smiles: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    ignore: Sequence[str] = ()
    like: Path | None = None
    directed: bool = False
    classes: int | Sequence[str] = 0
    bags: Mapping[str, int | None] = field(default_factory=dict)
    degrees: bool = False
    ids: str | None = None


def create_folder(
    folder: Path, source: SourceTables, *, name: str = "", force: bool = False, errors: Errors | None = None
) -> list[Problem]:
    """Write a party folder and check it; after a severe problem nothing is written.

    Arguments:
        errors: what is wrong with the call already; raised together with what is wrong with the tables.

    Returns:
        The problems, with row numbers of the tables.
    """
    name = name or os.path.basename(os.path.realpath(folder))
    if not name.isprintable():
        raise _error(f"name '{name}' has characters that cannot be printed: choose another with --name, of {NAME_RULE}")
    return _create(folder, source, {name: source}, force, errors or Errors())[folder]


def create_folders(
    folder: Path, source: SourceTables, *, force: bool = False, errors: Errors | None = None
) -> dict[Path, list[Problem]]:
    """Write a party folder for each match of the patterns in `source`, all with the same labels and columns.

    A pattern has one `*`, which stands for the party's name. After a severe problem nothing is written.

    Arguments:
        errors: what is wrong with the call already; raised together with what is wrong with the tables.

    Returns:
        The problems of each party folder, also with the others; those of `folder` are notes on the tables.
    """
    tables = {each: path for each in ("nodes", "edges", "graphs", "smiles") if (path := getattr(source, each))}
    errors, found = errors or Errors(), dict[str, dict[str, Path]]()
    for table, path in tables.items():
        with errors.collected():
            found[table] = _matches(path)
    names = sorted(set().union(*found.values()))
    for table, paths in found.items():
        if lacking := [name for name in names if name not in paths]:
            parties = f"party '{lacking[0]}'" if len(lacking) == 1 else f"the parties {join_names(map(repr, lacking))}"
            why = f"--{table} {tables[table]} has no match for {parties}, another table has"
            errors.found.append(_error(f"{why}: add it, or correct the pattern"))
    whole = [name for name in names if all(name in found.get(table, {}) for table in tables)]
    sources: dict[str, SourceTables] = {}
    for name in whole:
        own: dict[str, Any] = {table: found[table][name] for table in tables}
        sources[name] = replace(source, **own)
    return _create(folder, source, sources, force, errors)


def is_pattern(source: SourceTables) -> bool:
    """Whether a path of the tables is a pattern."""
    return any("*" in str(path) for path in (source.nodes, source.edges, source.graphs, source.smiles) if path)


def _matches(pattern: Path) -> dict[str, Path]:
    """Return the files that a pattern matches, by what its `*` stands for."""
    start, *ends = str(pattern).split("*")
    if len(ends) != 1:
        raise _error(f"{pattern}: a pattern has one *, which stands for the party's name: give one in each table")
    paths = glob.glob(f"{glob.escape(start)}*{glob.escape(ends[0])}")
    if not paths:
        raise _error(f"{pattern} matches no file: correct it, and put it in quotes")
    return {path[len(start) : len(path) - len(ends[0])]: Path(path) for path in paths}


def _create(
    folder: Path, given: SourceTables, sources: Mapping[str, SourceTables], force: bool, errors: Errors
) -> dict[Path, list[Problem]]:
    """Write a party folder for each of the sources: `folder` itself, or inside it where `given` holds patterns."""
    like: dict[str, Any] = {}
    with errors.collected():
        check_free(folder, force)
    with errors.collected():
        like = _like(given)
    notes: list[Problem] = []
    tables: dict[str, dict[str, Any]] = {}
    columns: dict[Path, list[str]] = {}
    for name, source in sources.items():
        with errors.collected():
            tables[name], more = _tables(source, like.get("tasks") or source.tasks, columns)
            named = [replace(each, file=_shown(each.file, source, given)) for each in more]
            notes += [each for each in named if each not in notes]
        if name not in tables:  # the other parties' tables often have the same mistakes
            break
    files = {path for each in sources.values() for path in (each.nodes, each.edges, each.graphs, each.smiles) if path}
    known = {column for own in columns.values() for column in own}
    for column in given.ignore:
        if files == columns.keys() and column not in known:
            errors.found.append(_error(f"--ignore {column}: no table has this column: {did_you_mean(column, known)}"))
    errors.check()
    if tasks := like.get("tasks") or given.tasks:
        _check_no_label(tables, given, tasks)
    tables = _with_ids_of_one_type(tables)
    words, more = _add_features(tables, given, like.get("columns", {}))
    notes += more
    if like:
        for own in tables.values():
            _check_like(own, given, like, errors)
        errors.check()
    shared, more = (like, []) if like else _shared_settings(tables, given, words)
    notes += more
    inside = is_pattern(given)
    with atomic_folder(folder, force=force) as new_folder:
        for name, own in tables.items():
            new = new_folder / name if inside else new_folder
            new.mkdir(exist_ok=True)
            for file, table in own.items():
                write_table(new / file, table)
            settings = {"format": FORMAT, "name": name, **_own_settings(given, own, name), **shared}
            store.write(new / FILE, toml.dumps(settings) + SUGGESTED)
        checked = check_folders(new_folder)[1]
        problems = {folder / path.relative_to(new_folder): found for path, found in checked.items()}
        if any(each.severe for every in problems.values() for each in every):
            raise UnusableFolder(problems)
    return {**problems, folder: [*notes, *problems.get(folder, [])]}


class UnusableFolder(IsthmusError):  # noqa: N818 - names the folder, not an event
    """The new folder would be unusable. Carries all problems, so that the command line can list them.

    Attributes:
        first: the severe problem that the error names.
    """

    def __init__(self, problems: Mapping[Path, Sequence[Problem]]) -> None:
        severe = [(folder, each) for folder, found in problems.items() for each in found if each.severe]
        at, self.first = severe[0]
        self.problems = problems
        super().__init__(f"nothing was written: {f'{at.name}: ' if len(problems) > 1 else ''}{self.first}")


def _check_no_label(tables: Mapping[str, Mapping[str, Any]], source: SourceTables, tasks: Sequence[str]) -> None:
    if any("label" in table.column_names for own in tables.values() for table in own.values()):
        column = source.columns.get("label", "label")
        others = "" if source.like is None else f" of --like {source.like}"
        raise _error(
            f"column '{column}' would be the label beside the task{'s' if len(tasks) > 1 else ''} {join_names(tasks)}"
            f"{others}: name it with --task as well, or leave it out with --ignore {column}"
        )


def _shown(file: str, source: SourceTables, given: SourceTables) -> str:
    """Return the name of one of the tables as the user gave it: a pattern stands for all its matches."""
    pairs = ((getattr(each, table) for each in (source, given)) for table in ("nodes", "edges", "graphs", "smiles"))
    return next(pattern.name for path, pattern in pairs if path is not None and path.name == file)


def _error(reason: str) -> IsthmusError:
    """Return an error about the tables, on one line even if column names hold line breaks."""
    return IsthmusError(printable(reason))


def _tables(
    source: SourceTables, tasks: Sequence[str], found: dict[Path, list[str]]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the folder's tables, with the column names of a party folder, and notes on ignored columns.

    Arguments:
        found: gets the names of the columns of each file.
    """
    if source.smiles is not None and (source.nodes or source.edges or source.graphs):
        raise _error("molecules have their own nodes and edges: give --smiles alone")
    from_edges = source.nodes is None and source.graphs is not None
    if source.smiles is None and (source.edges is None or (source.nodes is None and not from_edges)):
        raise _error(
            "a party has nodes and edges: give both --nodes and --edges (whose table may have no rows), or --smiles"
        )
    items = {role: role for role in ("id", "label", "split")}
    further = (*(() if from_edges else ("owner",)), *(() if source.graphs is None else ("graph",)))
    sources: list[tuple[str, Path | None, dict[str, str]]] = [
        (MOLECULES, source.smiles, {"smiles": "smiles", **items}),
        (GRAPHS, source.graphs, {"graph": "id", "label": "label", "split": "split"}),
        (NODES, source.nodes, items if source.graphs is None else {"id": "id", "graph": "graph"}),
        (EDGES, source.edges, {role: role for role in ("source", "target", "weight", *further)}),
    ]
    tables: dict[str, Any] = {}
    notes: list[Problem] = []
    errors = Errors()
    for file, path, roles in sources:
        if path is None:
            continue
        ids = (*IDS[file], "graph") if file == EDGES else IDS[file]
        columns = {source.columns.get(role, role): final for role, final in roles.items()}
        original = None
        with errors.collected():
            original = read_table(path, as_text=["id", *(column for column, final in columns.items() if final in ids)])
        if original is None:
            continue
        found[path] = original.column_names
        if file != MOLECULES:
            of_ids = ["id", *(name for name, final in columns.items() if final in ids)]
            original, done = _with_numbers(original, [*columns, *tasks, *source.ignore], of_ids)
            notes += [Problem(path.name, each, severe=False) for each in done]
        has_graph = source.columns.get("graph", "graph") in original.column_names
        if file == EDGES and not from_edges and not has_graph:
            roles = {role: final for role, final in roles.items() if role != "graph"}
        table = None
        with errors.collected():
            table = _renamed(original, path, source, roles, errors)
        if table is None:
            continue
        if nameless := [name for name in table.column_names if NAMELESS.fullmatch(name)]:
            table = table.drop_columns(nameless)
            notes.append(Problem(path.name, "a column without a name is left out", severe=False))
        used = [name for name in table.column_names if file == NODES or name in (*roles.values(), *tasks)]
        of_edges = None if file != EDGES else tables.get(NODES, table.select([]))
        notes += [Problem(path.name, each, severe=False) for each in _notes_on_columns(table, used, of_edges, source)]
        tables[file] = table.select(used)
    errors.check()
    if source.graphs is not None:
        if from_edges:
            tables[NODES] = _nodes_of_edges(tables, source)
        tables[NODES], tables[EDGES], more = _with_own_numbers(tables[NODES], tables[EDGES], source)
        notes += more
    return tables, notes


def _with_numbers(table: Any, known: Sequence[str], ids: Sequence[str]) -> tuple[Any, list[str]]:
    """Return a table without an index, with numbers for texts that have decimal commas, and what was done.

    Arguments:
        known: names of columns that are meant as they are.
        ids: those of ids, which stay texts.
    """
    table, done = without_index(table, known)
    table, commas = read_decimal_commas(table, ids)
    for column in commas:
        at = table.column_names.index(column)
        table = table.set_column(at, column, table.column(at).cast(pa.float64()))
    return table, [*done, *commas.values()]


def _notes_on_columns(table: Any, used: Sequence[str], nodes: Any, source: SourceTables) -> Iterator[str]:
    """Say which columns are left out, and what those of edges may be.

    Arguments:
        nodes: beside a table of edges, that of the nodes; else None.
    """
    extra = [name for name in table.column_names if name not in used]
    if extra:
        what = f"columns without a role are left out: {join_names(extra)}"
        numbers = [name for name in extra if is_numeric(table.schema.field(name).type)]
        if nodes is not None and numbers and "weight" not in used:
            near = [name for name in numbers if not words(name) & DISTANCES]
            what += f" (if it is the edges' weight, larger for nearer ends: --weight {(near or numbers)[0]}"
            what += ")" if near else f"; if it is a distance, 1 / {numbers[0]} in its place)"
        elif nodes is not None and source.graphs is None:
            what += "; as features of edges they are read from --tables with --as-edges TABLE in place of --edges"
            if any(is_list(each.type) for each in nodes.schema):
                what += ", which leaves lists out"
        yield what
    weight = source.columns.get("weight", "weight")
    if nodes is not None and "weight" in used and words(weight) & DISTANCES:
        what = f"'{weight}' is named like a distance, and a larger weight means nearer"
        yield f"{what}: if it is one, give 1 / {weight} in its place"


def _nodes_of_edges(tables: Mapping[str, Any], source: SourceTables) -> Any:
    """Return the ends of the edges as a table of nodes."""
    edges, graphs = tables[EDGES], tables[GRAPHS]
    assert source.edges is not None
    assert source.graphs is not None
    for column in ("graph", "source", "target"):
        if column not in edges.column_names:
            what = "of each edge's graph, for there is no --nodes" if column == "graph" else f"of each edge's {column}"
            raise _error(f"{source.edges} has no column {what}: name it with --{column}")
    if "id" not in graphs.column_names:
        raise _error(f"{source.graphs} has no column of the graphs' ids: name it with --graph")
    known = {name: blank_to_null(to_plain(edges.column(name))) for name in ("graph", "source", "target")}
    ends = [pa.table({"graph": known["graph"], "id": known[end]}) for end in ("source", "target")]
    try:
        nodes = pa.concat_tables(ends, promote_options="permissive").drop_null()
    except pa.ArrowException as error:
        raise _error(f"{source.edges}: sources and targets are of different types: make them equal") from error
    nodes = nodes.group_by(["graph", "id"], use_threads=False).aggregate([])
    ids = to_texts(graphs.column("id"))
    lack = ids.filter(pc.invert(pc.is_in(ids, to_texts(nodes.column("graph"))))).drop_null()
    if len(lack):
        raise _error(
            f"{source.graphs}: graphs without an edge in {source.edges.name} have no node: "
            f"{join_names(lack.to_pylist())}: remove them, or give all nodes with --nodes"
        )
    return nodes


def _with_own_numbers(nodes: Any, edges: Any, source: SourceTables) -> tuple[Any, Any, list[Problem]]:
    """Return the nodes and edges of graphs, these without the column of graphs, and notes.

    A node is in one graph: if an id stands in several, each graph has a numbering of its own, and ids get its name.
    """
    ends = [each for each in ("source", "target", "graph") if each in edges.column_names]
    of_edges = {name: blank_to_null(to_plain(edges.column(name))) for name in ends}
    edges = edges.drop_columns(["graph"]) if "graph" in of_edges else edges
    of_nodes = {
        name: blank_to_null(to_plain(nodes.column(name))) for name in ("graph", "id") if name in nodes.column_names
    }
    if (
        len(of_nodes) < 2
        or not {"source", "target"} <= of_edges.keys()
        or not all(map(_may_be_ids, (*of_nodes.values(), *of_edges.values())))
    ):
        return nodes, edges, []  # the check of the new folder says so
    known = pa.table(of_nodes)
    counts = pc.value_counts(known.group_by(["graph", "id"], use_threads=False).aggregate([]).column("id"))
    several = pc.and_(pc.greater(counts.field("counts"), 1), pc.is_valid(counts.field("values")))
    twice = counts.filter(several).field("values")
    notes = []
    if len(twice):
        table, what = source.edges, f"ids stand in several graphs, such as '{twice[0]}'"
        assert table is not None
        column = source.columns.get("graph", "graph")
        if "graph" not in of_edges:
            raise _error(f"{source.nodes}: {what}: give each node an id of its own, or {table} a column '{column}'")
        if of_edges["graph"].null_count:
            raise _error(f"{table}: column '{column}' has no value in some row, and {what}: name each edge's graph")
        for end in ("source", "target"):
            within = _within_graphs(of_edges["graph"], of_edges[end])
            edges = edges.set_column(edges.column_names.index(end), end, within)
        within = _within_graphs(known.column("graph"), known.column("id"))
        within = pc.coalesce(within, to_texts(known.column("id")))  # the check of the new folder names a missing graph
        nodes = nodes.set_column(nodes.column_names.index("id"), "id", within)
        notes.append(Problem(table.name, f"{what}, so each graph has nodes of its own: '{within[0]}'", severe=False))
    return nodes, edges, notes


def _may_be_ids(values: Any) -> bool:
    return is_text(values.type) or pa.types.is_integer(values.type) or pa.types.is_floating(values.type)


def _within_graphs(graphs: Any, ids: Any) -> Any:
    """Return ids that count anew in each graph, with the graph's id before them."""
    return pc.binary_join_element_wise(to_texts(graphs), to_texts(ids), "/")


def _renamed(table: Any, path: Path, source: SourceTables, roles: Mapping[str, str], errors: Errors) -> Any:
    """Drop the ignored columns, and give those with a role their names in a party folder.

    Arguments:
        roles: the roles that columns can have, with their names in a party folder.
        errors: gets what is wrong with the columns.
    """
    table = table.select([at for at, name in enumerate(table.column_names) if name not in source.ignore])
    for role in roles:
        if source.columns.get(role) in source.ignore:
            errors.found.append(
                _error(f"column '{source.columns[role]}' is named by --{role} and by --ignore: leave one out")
            )
        elif role in source.columns and source.columns[role] not in table.column_names:
            column, known = source.columns[role], join_names(table.column_names)
            hint = did_you_mean(column, table.column_names)
            is_near = "mean" in hint.split()
            if role == "label" and source.like is not None and not is_near:
                continue  # rows to predict; the check of the new folder notes it
            hint = hint if is_near else f"it has {known}"
            errors.found.append(_error(f"{path} has no column '{column}': {hint}"))
    columns = {source.columns.get(role, role): final for role, final in roles.items()}
    ends = [each for each in ("source", "target") if "owner" in roles and each not in source.columns]
    if lacking := [each for each in ends if each not in table.column_names]:
        what = " and ".join(f"'{each}'" for each in lacking)
        flags = " and ".join(f"--{each} COLUMN" for each in lacking)
        why = f"{path} has no column {what}: name the columns of an edge's ends with {flags}"
        errors.found.append(_error(f"{why} (it has {join_names(table.column_names)})"))
    names = [columns.get(name, name) for name in table.column_names]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise _error(f"{path} has two columns for '{double}': leave one out with --ignore")
    return table.rename_columns(names)


def _add_features(
    tables: Mapping[str, dict[str, Any]], source: SourceTables, like: Mapping[str, Any]
) -> tuple[dict[str, list[str]], list[Problem]]:
    """Make bags of lists in the parties' tables of nodes, add degrees to them, and return words of bags, and notes.

    Arguments:
        like: the feature columns of another party, which these must have, too.
    """
    if source.smiles is not None:
        if source.bags or source.degrees:
            raise _error("molecules have features of their own: leave out --bag and --features")
        return {}, []
    if like and any(source.bags.values()):
        raise _error("the widths of bags are those of the party that --like names: give --bag without a width")
    bags = {name: declared.get("words") for name, declared in like.items() if declared.get("kind") == "bag"}
    nodes, words, notes = make_bags(_together(tables, NODES, source), source.bags, bags)
    start = 0
    for own in tables.values():
        count = own[NODES].num_rows
        own[NODES] = nodes.slice(start, count)
        start += count
        if source.degrees or (like.get(degrees.NAME) == degrees.DECLARATION and degrees.NAME not in nodes.column_names):
            _add_degrees(own, directed=source.directed)
    return words, [replace(note, file=source.nodes.name) for note in notes if source.nodes is not None]


def _add_degrees(tables: dict[str, Any], *, directed: bool) -> None:
    nodes = tables[NODES]
    if degrees.NAME in nodes.column_names:
        raise _error(f"the nodes have a column '{degrees.NAME}' already: leave it out with --ignore {degrees.NAME}")
    ends = zip((nodes, tables[EDGES], tables[EDGES]), ("id", "source", "target"), strict=True)
    ids = [each.column(name) for each, name in ends if name in each.column_names]
    if len(ids) == 3 and len({each.type for each in ids}) == 1:  # else check_folder reports the problem
        tables[NODES] = nodes.append_column(degrees.NAME, degrees.degree_column(*ids, directed=directed))


def _together(tables: Mapping[str, dict[str, Any]], file: str, source: SourceTables) -> Any:
    """Return one file's tables of all parties as one table, in which a column has one type."""
    parts = {name: own[file] for name, own in tables.items()}
    first, *others = parts
    if not others:
        return parts[first]
    for name in others:
        if differ := (set(parts[first].column_names) ^ set(parts[name].column_names)) - {"label", "split"}:
            column = min(differ)
            has, lacks = (first, name) if column in parts[first].column_names else (name, first)
            raise _error(
                f"party '{has}' has a column '{column}', party '{lacks}' has none: leave it out with --ignore {column}"
            )
    try:
        return pa.concat_tables(parts.values(), promote_options="permissive")
    except pa.ArrowException as error:
        what = _misfit(parts, str(_paths(source)[file]), source) or error
        raise _error(
            f"the parties' tables do not fit together: {what}: make the types equal, or use --ignore"
        ) from error


def _misfit(parts: Mapping[str, Any], pattern: str, source: SourceTables) -> str:
    """Name a column whose types differ, the files of two such parties, and the first text that is not a number."""
    for column in dict.fromkeys(name for table in parts.values() for name in table.column_names):
        first: dict[Any, str] = {}
        for name, table in parts.items():
            if column in table.column_names:
                first.setdefault(table.schema.field(column).type, name)
        for pair in combinations(first.items(), 2):
            try:
                pa.unify_schemas([pa.schema([(column, kind)]) for kind, _ in pair], promote_options="permissive")
            except pa.ArrowException:
                holds = [_holds(pattern.replace("*", name), parts[name].column(column)) for _, name in pair]
                shown = source.columns.get(column, column) if column in RESERVED else column
                return f"column '{shown}' holds {holds[0]}, but {holds[1]}"
    return ""


def _holds(path: str, values: Any) -> str:
    """Say of which type the values in a file are, and which text is the first that is not a number."""
    values, row = to_plain(values), -1
    if is_text(values.type):
        row = pc.index(pc.match_substring_regex(to_texts(values), NUMBER), False).as_py()
    return f"values of type {values.type} in {path}" + (f" (row {row + 1}: '{values[row]}')" if row >= 0 else "")


def _paths(source: SourceTables) -> dict[str, Path | None]:
    """Return the table of items or nodes for each file of a party folder."""
    return {MOLECULES: source.smiles, GRAPHS: source.graphs, NODES: source.nodes or source.edges}


def _with_ids_of_one_type(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the parties' tables with all ids as whole numbers, if all of them are, or else as texts."""
    columns = {
        (name, file, column): to_keys(table.column(column))
        for name, own in tables.items()
        for file, table in own.items()
        for column in IDS[file]
        if column in table.column_names
    }
    if all(_are_whole(values) for values in columns.values()):
        cast: Any = pa.int64()
    elif all(is_text(values.type) or pa.types.is_integer(values.type) for values in columns.values()):
        cast = pa.string()
    else:
        return tables  # check_folder reports the problem
    for (name, file, column), values in columns.items():
        at = tables[name][file].column_names.index(column)
        if cast == pa.int64() and is_text(values.type):
            values = pc.replace_substring(to_texts(values), ".0", "")
        tables[name][file] = tables[name][file].set_column(at, column, values.cast(cast))
    return tables


def _are_whole(values: Any) -> bool:
    """Whether ids are whole numbers, or texts that are equal to one, as "7.0"; "007" is another id than "7"."""
    if pa.types.is_integer(values.type):
        return not pa.types.is_uint64(values.type)
    if not is_text(values.type):
        return False
    known = to_texts(values).drop_null()
    return bool(pc.all(pc.match_substring_regex(known, r"^(0|-?[1-9][0-9]{0,17})(\.0)?$"), min_count=0).as_py())


def _own_settings(source: SourceTables, tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings that one party's tables show."""
    return {
        "level": _level(source),
        "directed": source.directed or None,
        "ids": source.ids,
        "partners": _partners(tables.get(EDGES), name),
    }


def _shared_settings(
    tables: Mapping[str, dict[str, Any]], source: SourceTables, bags: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the settings that the tables of all parties show, labels and columns, and notes on texts in them.

    Arguments:
        bags: the words of each bag of texts.
    """
    file, path = next((file, path) for file, path in _paths(source).items() if path is not None)
    items = _together(tables, file, source)
    settings = label_settings(items, source)
    label = source.columns.get("label", "label")
    has_names = "labels" in settings and "label" in items.column_names
    notes = spelling_notes(path.name, label, items.column("label")) if has_names else []
    notes += [Problem(path.name, each, severe=False) for each in note_on_numbers(settings, source, items)]
    if source.smiles is not None:
        return settings | {"smiles": {}}, notes
    nodes = _together(tables, NODES, source)
    columns = _columns(nodes, source, _like_ids(own[NODES] for own in tables.values()))
    for name, each in bags.items():
        columns[name] |= {"width": len(each), "words": list(each)}
    node_path = _paths(source)[NODES]
    assert node_path is not None
    parts = {name: own[NODES] for name, own in tables.items()}
    odd = number_notes(parts, without=RESERVED - {"label"})
    notes += [Problem(node_path.name, each, severe=False) for each in odd]
    for name in (name for name, declared in columns.items() if declared["kind"] == "category"):
        notes += spelling_notes(node_path.name, name, nodes.column(name))
    return settings | {"columns": columns}, notes


def _level(source: SourceTables) -> str:
    return "node" if source.graphs is None and source.smiles is None else "graph"


def _like(source: SourceTables) -> dict[str, Any]:
    """Return the settings that the party takes from `source.like`, if it is given."""
    if source.like is None:
        return {}
    other = read_like(source.like)
    if other.level != _level(source) or (other.smiles is None) != (source.smiles is None):
        raise _error(f"--like {source.like}: that party holds {_content(other)}, these tables do not")
    if source.tasks and list(source.tasks) != other.tasks:
        raise _error(f"--like {source.like}: its tasks are {join_names(other.tasks or ['none'])}: remove --task")
    if source.classes:
        raise _error(f"--like {source.like} takes the classes of that party, too: leave out --classes")
    taken = {"labels", "classes", "tasks", "columns"} | ({"ids"} if source.ids is None else set())
    shared = other.model_dump(include=taken, exclude_unset=True)
    return {**shared, "smiles": None if other.smiles is None else {"features": other.smiles.features}}


def _check_like(tables: Mapping[str, Any], source: SourceTables, like: Mapping[str, Any], errors: Errors) -> None:
    """Add to the errors what columns of tables the other party's settings leave no place for."""
    nodes, other = tables.get(NODES), {*RESERVED, *like.get("tasks", ()), *like.get("columns", ())}
    if nodes is not None and source.smiles is None:
        for name in nodes.column_names:
            if name not in other and name not in column_parts(nodes):
                errors.found.append(
                    _error(f"--like {source.like} has no column '{name}': leave it out with --ignore {name}")
                )
    if "classes" in like:
        for table in tables.values():
            values = blank_to_null(table.column("label")).drop_null() if "label" in table.column_names else None
            if values is not None and is_text(values.type) and len(values):
                what = f"its labels are numbers from 0 to {like['classes'] - 1}"
                shown = source.columns.get("label", "label")
                why = f"column '{shown}' holds texts, such as '{values[0]}': write them as it does"
                errors.found.append(_error(f"--like {source.like}: {what}, and {why}"))


def _content(settings: PartyFile) -> str:
    return "molecules" if settings.smiles else {"node": "one graph", "graph": "a collection of graphs"}[settings.level]


def label_settings(table: Any, source: SourceTables, items: str = "") -> dict[str, Any]:
    """Return the settings of labels that the table shows.

    Arguments:
        items: the table's name, if it is one of several.
    """
    if source.tasks:
        return {"tasks": list(source.tasks)}
    values = blank_to_null(table.column("label")).drop_null() if "label" in table.column_names else None
    if not isinstance(source.classes, int):
        return {"labels": list(source.classes)}
    if source.classes and (values is None or is_numeric(values.type)):
        return {"classes": source.classes}
    if not table.num_rows:
        raise _error(f"{items or 'the table of the labels'} has no rows: give a table with at least one")
    if values is None or not len(values):
        raise _error(
            "there is no label: name the column with --label, take the classes from another party with --like, or give "
            "their number or their names with --classes"
        )
    if pa.types.is_string(values.type):
        names = sorted(pc.unique(values).to_pylist())
        if source.classes:
            raise _error(f"--classes {source.classes}: labels are texts: give their names, --classes {','.join(names)}")
        if len(names) > MAX_CATEGORIES or MIN_NAMES < len(names) == len(values):
            raise _error(
                f"the label column has {len(names):,} different texts, which look like names, not classes: name "
                "another column with --label, or list the classes with --classes"
            )
        return {"labels": names}
    if pa.types.is_boolean(values.type):
        return {"labels": list(BOOLEANS)}
    if is_numeric(values.type):
        numbers = to_floats(values)
        most = np.nanmax(numbers, initial=0)
        _refuse_measured(numbers[~np.isnan(numbers)], source.columns.get("label", "label"), items)
        different = np.unique(numbers[~np.isnan(numbers)])
        if _has_gaps(different):
            return {"labels": [str(int(number)) for number in different]}
        return {"classes": int(min(most, MAX_CLASSES)) + 1}
    raise _error(f"the label column holds values of type {values.type}: it must hold whole numbers or texts")


def _has_gaps(different: Any) -> bool:
    """Whether these numbers, in order, are whole and none is negative, but they are not 0, 1, ... without a gap."""
    whole = (different >= 0) & (different == np.floor(different))
    return bool(different.size and whole.all() and different[-1] != different.size - 1)


def note_on_numbers(settings: Mapping[str, Any], source: SourceTables, table: Any) -> list[str]:
    """Return a note if numbers became the names of classes, because they are not 0, 1, ... without a gap."""
    if "labels" not in settings or not isinstance(source.classes, int):
        return []
    kind = to_plain(table.column("label")).type
    if pa.types.is_boolean(kind) or not is_numeric(kind):
        return []
    label, names = source.columns.get("label", "label"), settings["labels"]
    count = int(names[-1]) + 1
    with_others = f"give them with --classes, such as --classes {count} for 0 to {names[-1]}"
    if count > 2 * len(names):  # most numbers up to the largest would be classes without items
        with_others = f"name all of them: --classes {','.join(names[:3])},..."
    return [
        f"label '{label}' has the numbers {join_names(names)}: they are the names of {len(names)} classes (if others "
        f"exist, {with_others})"
    ]


def _refuse_measured(numbers: Any, label: str, items: str) -> None:
    """Refuse numbers that are probably measured, or keys, as classes."""
    different = np.unique(numbers)
    few_rows = different.size > MIN_NAMES and 2 * different.size > numbers.size
    gaps = different.size and different[-1] >= max(MAX_CATEGORIES, 10 * different.size)
    fractions = 2 * np.count_nonzero(different != np.floor(different)) > different.size
    if not (different.size > MAX_CATEGORIES or few_rows or gaps or fractions):
        return
    task = f"--label {items} --task {label}" if items else f"--task {label} in place of --label"
    largest = f", of which the largest is {different[-1]:,.6g}" if gaps else ""
    raise _error(
        f"label '{label}' has {different.size:,} different number{'s' if different.size > 1 else ''} in "
        f"{numbers.size:,} rows{largest}: for regression give {task}; for classes name them, --classes"
    )


def _partners(edges: Any, name: str) -> list[str] | None:
    if edges is None or "owner" not in edges.column_names:
        return None
    owners = blank_to_null(edges.column("owner"))
    if not is_text(owners.type):
        raise _error(f"the owner column holds values of type {owners.type}: it must hold names")
    return sorted({str(each) for each in pc.unique(owners.drop_null()).to_pylist()} - {name})


def _like_ids(tables: Iterable[Any]) -> set[str]:
    """Return the columns of texts that could hold the ids that the parties' nodes lack."""
    found = [
        {name for name in table.column_names if "id" not in table.column_names and _are_ids(table.column(name))}
        for table in tables
    ]
    return set.intersection(*found)


def _are_ids(values: Any) -> bool:
    """Whether a column holds texts that differ from each other."""
    values = to_plain(values)
    return is_text(values.type) and not values.null_count and count_distinct(values) == len(values)


def _columns(nodes: Any, source: SourceTables, like_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the feature columns with their kinds, chosen by their values.

    Arguments:
        like_ids: columns that could hold the ids, if there is no column of ids.
    """
    bags = bag_columns(nodes)
    other = {*RESERVED, *source.tasks, *column_parts(nodes)}
    features = [name for name in nodes.column_names if name not in other]
    if not features and not bags:
        raise _error("the nodes have no feature column: add at least one, or their degrees with --features degree")
    columns = {name: _kind(name, to_array(nodes.column(name)), name in like_ids) for name in features}
    if source.degrees:
        columns[degrees.NAME] = degrees.DECLARATION
    for name in bags:
        columns[name] = {"kind": "bag", "width": source.bags.get(name) or width_of(name, nodes.column(name + AT))}
    return columns


def _kind(name: str, values: Any, like_ids: bool) -> dict[str, Any]:
    if is_list(values.type):
        if is_ragged(values):
            raise _error(
                f"column '{name}' holds lists of different lengths: make them one length, give a few numbers of each "
                "in columns of their own, such as mean and count, or the positions and values of the entries other "
                f"than 0 in '{name}{AT}' and '{name}{VALUE}', or leave it out with --ignore {name}"
            )
        return {"kind": "vector", "width": int(list_lengths(values).max(initial=0))}
    values = blank_to_null(values)
    if pa.types.is_boolean(values.type):
        return {"kind": "number", "scale": "none", **_missing(values)}
    if pa.types.is_null(values.type):
        raise _error(f"column '{name}' has no value in any row: leave it out with --ignore {name}")
    if is_numeric(values.type):
        return {"kind": "number", **_missing(values)}
    if not is_text(values.type) and is_date(values.type):
        return {"kind": "date", **({"missing": "mean"} if values.null_count else {})}
    if not pa.types.is_string(values.type):
        raise _error(
            f"column '{name}' holds values of type {values.type}, not features: leave it out with --ignore {name}"
        )
    different = count_distinct(values)
    if different > MAX_CATEGORIES or looks_like_names(values):
        correct = f"correct them, or leave the column out with --ignore {name}"
        if odd := odd_texts(values):
            raise _error(f"column '{name}': {odd}: {correct}")
        if form := form_of(values):
            raise _error(f"column '{name}' looks like {form}, or leave the column out with --ignore {name}")
        if like_ids:
            raise _error(
                f"column '{name}' has a different text in each row, and no column of ids is given: is it the id? "
                f"--id {name} (if not, leave it out with --ignore {name}, and name the ids)"
            )
        if sign := separator_of(values):
            raise _error(
                f"column '{name}' has {different:,} different texts, most with '{sign}': if they are lists, make them "
                f"lists in a Parquet file, which become bags; or leave it out with --ignore {name}"
            )
        if odd := odd_texts(values, least=0.5):
            raise _error(f"column '{name}': {odd}: {correct}")
        raise _error(
            f"column '{name}' has {different:,} different texts, which look like names, not categories: leave it "
            f"out with --ignore {name}, or declare it in another party's {FILE} and use --like"
        )
    return {"kind": "category"}


def _missing(values: Any) -> dict[str, str]:
    return {"missing": "mean"} if np.isnan(to_floats(values)).any() else {}
