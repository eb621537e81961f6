"""A party folder from the tables that an organisation has: CSV or Parquet, under column names of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from isthmus import store, toml
from isthmus.data.folder.arrow import filled, is_listed, is_numeric, lengths_of, mask_of, named, one, plain
from isthmus.data.folder.problems import Problem
from isthmus.data.folder.reading import EDGES, GRAPHS, NODES, inspected, read_table
from isthmus.data.folder.settings import FILE, read_settings
from isthmus.data.folder.writing import written_aside
from isthmus.errors import IsthmusError

MANY = 100
"""More different texts in a column than this are no categories but names, or notes."""


@dataclass(frozen=True)
class Source:
    """Where the data of a new party folder come from.

    Arguments:
        nodes, edges, graphs: the tables, CSV or Parquet.
        smiles: a CSV file of molecules instead.
        renamed: for each column with a meaning of its own (id, label, split, source, ...) its name in these tables.
        tasks: columns of labels, where there are several tasks.
        ignore: columns to leave out.
        like: another party's folder or `party.toml`, whose labels and columns this party shares.
    """

    nodes: Path | None = None
    edges: Path | None = None
    graphs: Path | None = None
    smiles: Path | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    ignore: Sequence[str] = ()
    like: Path | None = None


def make_folder(folder: Path, source: Source, *, name: str = "", force: bool = False) -> list[Problem]:
    """Write a party folder and check it; where something severe is wrong nothing is written.

    Returns:
        What is wrong with it.
    """
    tables = _tables(source)
    settings = {"format": 1, "name": name or folder.resolve().name, **_settings(source, tables)}
    with written_aside(folder, force=force) as aside:
        for file, table in tables.items():
            _write(aside / file, table)
        store.write(aside / FILE, toml.dumps(settings))
        _, problems = inspected(aside)
        if any(each.severe for each in problems):
            raise Unsound(problems)
    return problems


class Unsound(IsthmusError):  # noqa: N818 - what it is, not what went wrong
    """A folder that would be no use; carries what is wrong, so that the command line can list it all."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        severe = [each for each in problems if each.severe]
        super().__init__(f"nothing was written: {severe[0]}")
        self.problems = list(problems)


def _tables(source: Source) -> dict[str, Any]:
    """The folder's files, each with the columns named as they are there."""
    if source.smiles is not None:
        if source.nodes or source.edges or source.graphs:
            raise IsthmusError("molecules bring their own nodes and edges: give --smiles alone")
        return {"molecules.csv": _renamed(source.smiles, source, ("smiles", "id", "label", "split"))}
    if source.nodes is None or source.edges is None:
        raise IsthmusError("a party has nodes and edges: give both --nodes and --edges, or --smiles")
    if source.graphs is None:
        nodes, graphs = _renamed(source.nodes, source, ("id", "label", "split")), {}
    else:
        nodes = _renamed(source.nodes, source, ("id", "graph"))
        graphs = {GRAPHS: _renamed(source.graphs, source, ("graph", "label", "split"), {"graph": "id"})}
    edges = _renamed(source.edges, source, ("source", "target", "weight", "owner"))
    return {NODES: nodes, EDGES: edges, **graphs}


def _renamed(path: Path, source: Source, roles: Sequence[str], final: Mapping[str, str] | None = None) -> Any:
    """A table whose columns of these roles are called by their roles; columns to leave out are left out."""
    table = read_table(path)
    names = list(table.column_names)
    for role in roles:
        wanted = source.renamed.get(role, role)
        if role in source.renamed and wanted not in names:
            raise IsthmusError(f"{path} has no column '{wanted}': it has {', '.join(names)}")
        if wanted in names:
            names[names.index(wanted)] = (final or {}).get(role, role)
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise IsthmusError(f"{path} has two columns for '{double}': leave one out with --ignore")
    table = table.rename_columns(names)
    return table.select([name for name in names if name not in source.ignore])


def _settings(source: Source, tables: Mapping[str, Any]) -> dict[str, Any]:
    """`party.toml` but for the name: what another party declares, or what the tables show."""
    level = "node" if source.graphs is None and source.smiles is None else "graph"
    partners = _partners(tables.get(EDGES))
    if source.like is not None:
        other, problems = read_settings(source.like if source.like.is_dir() else source.like.parent)
        if other is None:
            raise IsthmusError(f"{source.like}: {problems[0]}")
        return {**other.model_dump(exclude={"format", "name", "partners", "ignore"}), "partners": partners}
    items = tables.get("molecules.csv", tables.get(GRAPHS, tables.get(NODES)))
    settings: dict[str, Any] = {"level": level, **_labels(items, source.tasks), "partners": partners}
    if source.smiles is not None:
        known = {"smiles", "id", "label", "split", *source.tasks}
        return {**settings, "ignore": [name for name in items.column_names if name not in known], "smiles": {}}
    return {**settings, "columns": _columns(tables[NODES], source.tasks)}


def _labels(table: Any, tasks: Sequence[str]) -> dict[str, Any]:
    """The labels as the table shows them."""
    if tasks:
        return {"tasks": list(tasks)}
    if "label" not in table.column_names:
        raise IsthmusError("there is no label column: name it with --label, or take the classes from --like a party")
    import pyarrow as pa
    import pyarrow.compute as pc

    values = filled(table.column("label")).drop_null()
    if pa.types.is_string(values.type):
        return {"labels": sorted(pc.unique(values).to_pylist())}
    if is_numeric(values.type) and len(values):
        return {"classes": int(pc.max(values).as_py()) + 1}
    raise IsthmusError(f"the label column holds {named(values.type)}: labels are whole numbers or texts")


def _partners(edges: Any) -> list[str] | None:
    if edges is None or "owner" not in edges.column_names:
        return None
    import pyarrow.compute as pc

    return sorted(str(each) for each in pc.unique(filled(edges.column("owner")).drop_null()).to_pylist())


def _columns(nodes: Any, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Feature columns and their kinds, as their values show them."""
    features = [name for name in nodes.column_names if name not in {"id", "graph", "label", "split", *tasks}]
    if not features:
        raise IsthmusError("the nodes have no column of features: add at least one")
    return {name: _kind(name, one(nodes.column(name))) for name in features}


def _kind(name: str, values: Any) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_listed(values.type):
        known = lengths_of(values)
        return {"kind": "vector", "width": int(known.max(initial=0))}
    if pa.types.is_boolean(values.type):
        return {"kind": "number", "scale": "none"}
    if is_numeric(values.type):
        return {"kind": "number", **({"missing": "mean"} if mask_of(pc.is_null(values)).any() else {})}
    values = plain(values)
    if not pa.types.is_string(values.type):
        raise IsthmusError(f"column '{name}' holds {named(values.type)}, which is no feature: leave it out, --ignore")
    different = pc.count_distinct(values).as_py()
    if different > MANY:
        raise IsthmusError(
            f"column '{name}' has {different:,} different texts: that looks like names, not categories; leave it out "
            f"with --ignore {name}, or declare it in another party's {FILE} and use --like"
        )
    return {"kind": "category"}


def _write(path: Path, table: Any) -> None:
    from pyarrow import csv, parquet

    store.write_with(path, partial(csv.write_csv if path.suffix == ".csv" else parquet.write_table, table))
