"""Read and check the files of a party folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.folder.arrow import (
    blank_to_null,
    exceeds_float32,
    is_numeric,
    is_present,
    is_text,
    positions_in,
    to_array,
    to_floats,
    to_texts,
    wrong_type,
)
from isthmus.data.folder.problems import Mask, Problem, at_rows, join_names
from isthmus.data.folder.settings import FILE, PartyFile, read_settings
from isthmus.data.ids import hash_ids
from isthmus.data.party import SPLITS, Border
from isthmus.errors import IsthmusError

Positions = NDArray[np.int64]
NULLS = ["", "NA", "N/A", "NaN", "nan", "NULL", "null"]
"""Texts that mean a missing value in a CSV file."""
NODES, EDGES, GRAPHS = "nodes.parquet", "edges.parquet", "graphs.parquet"
_BOOLEANS = {"false": 0.0, "true": 1.0}
UNLISTED = -2
"""The class of a label that is not declared."""
HERE, UNKNOWN = -1, -2
"""Owners of an edge's other end: this party, and a party that `party.toml` does not list."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The checked contents of a party folder. The features are not encoded yet, because parties first agree on how.

    Arguments:
        features: the table with the feature columns, one row per node.
        x: features of molecules, which need no encoding.
        item_ids: a number for each item, the same at every party that holds the item, `[items]`.
        ids: ids of the nodes; None if they mean nothing to other parties.
        hashed: whether the ids are hashes, of texts or under a key.
        splits: masks over the items; None if whoever runs the study draws the split.
        batch: the graph of every node, if whole graphs are classified.
        border_rows: for each edge across the border its row in edges.parquet, counts from 1.
    """

    settings: PartyFile
    features: Any
    y: Tensor
    item_ids: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    splits: dict[str, Tensor] | None
    ids: Tensor | None = None
    hashed: bool = False
    border: Border | None = None
    batch: Tensor | None = None
    x: Tensor | None = None
    border_rows: Tensor | None = None

    @property
    def items(self) -> int:
        return int(self.y.size(0))

    @property
    def labelled(self) -> Tensor:
        """Which items have a label, `[items]`."""
        return self.y >= 0 if self.y.dim() == 1 else ~self.y.isnan().all(1)

    def summary(self) -> str:
        """Describe in one line what the party holds."""
        counts = [f"{self.items:,} {self.settings.level}s", f"{self.edge_index.size(1):,} edges"]
        counts += [] if self.border is None else [f"{len(self.border):,} across its border"]
        counts += [f"{int(self.labelled.sum()):,} labelled"]
        counts += [f"{int(mask.sum()):,} in {split}" for split, mask in (self.splits or {}).items()]
        return ", ".join(counts)


def check_folder(folder: Path, key: bytes | None = None) -> tuple[Contents | None, list[Problem]]:
    """Return the contents of a party folder, or None if a problem is severe, and all problems.

    Arguments:
        key: the parties' common key; with it all ids become keyed hashes.
    """
    settings, problems = read_settings(folder)
    if settings is None:
        return None, problems
    reader = _Reader(folder, settings, key)
    read = reader.molecules if settings.smiles else {"node": reader.graph, "graph": reader.graphs}[settings.level]
    contents = read()
    return (contents if reader.sound else None), reader.problems


def read_table(path: Path, *, without: Collection[str] = (), as_text: Collection[str] = ()) -> Any:
    """Return a Parquet or CSV file as an Arrow table.

    Arguments:
        without: columns to leave out.
        as_text: columns of a CSV file to read as texts, even if they look like numbers.
    """
    try:
        table = _read_csv(path, as_text) if path.suffix.lower() == ".csv" else _read_parquet(path, without)
        table.validate(full=True)  # finds texts that are not UTF-8, lists that end after their values, ...
    except FileNotFoundError as error:
        raise IsthmusError(f"{path} does not exist") from error
    except Exception as error:  # a damaged file can raise almost any error in pyarrow
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise IsthmusError(f"cannot read {path}: {reason}") from error
    return table.select([at for at, name in enumerate(table.column_names) if name not in without])


def _read_csv(path: Path, as_text: Collection[str]) -> Any:
    from pyarrow import csv

    types = dict.fromkeys(as_text, pa.string())
    options = csv.ConvertOptions(null_values=NULLS, strings_can_be_null=True, column_types=types)
    return csv.read_csv(path, convert_options=options)


def _read_parquet(path: Path, without: Collection[str]) -> Any:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        columns = [name for name in names if name not in without]
        return file.read(columns=None if len(columns) == len(names) else columns)


@dataclass(frozen=True, eq=False)
class _EdgeRows:
    """The rows of edges.parquet.

    Arguments:
        source, target: ids of the ends.
        source_at, target_at: their positions among the party's nodes, -1 for a node that the party does not have.
        owner: position in `partners` of the party that holds the other end, or `HERE`, or `UNKNOWN`.
        weight: NaN where a row has no weight; None if no row has one.
    """

    source: Any
    target: Any
    source_at: Positions
    target_at: Positions
    owner: Positions
    weight: NDArray[np.float64] | None

    @property
    def within(self) -> Mask:
        """Return a mask of the rows whose ends are both this party's."""
        return np.asarray(self.owner == HERE)


class _Reader:
    """Reads one folder and collects its problems. A part that cannot be read is None, and later checks skip it."""

    def __init__(self, folder: Path, settings: PartyFile, key: bytes | None) -> None:
        self.folder, self.settings, self.key = folder, settings, key
        self.problems: list[Problem] = []

    @property
    def sound(self) -> bool:
        """Whether no severe problem was found so far."""
        return not any(each.severe for each in self.problems)

    def add(self, *problems: Problem) -> None:
        self.problems += problems

    def graph(self) -> Contents | None:
        nodes = self._table(NODES, ["id", *self._features], ["label", "split"])
        edge_table = self._table(EDGES, ["source", "target"], ["weight", "owner"])
        ids = self._ids(NODES, nodes, "id", unique=True)
        self._check_features(nodes)
        y, splits = self._labels(NODES, nodes)
        edges = self._edge_rows(edge_table, ids)
        if not self.sound or ids is None or y is None or edges is None:
            return None
        self._check_repeats(edges)
        numbers = self._id_numbers(ids)
        border, border_rows = self._border(edges)
        return Contents(
            self.settings, nodes, y, numbers, *self._inner(edges), splits,
            ids=None if self.settings.ids == "own" else numbers, hashed=self._hashes(ids),
            border=border, border_rows=border_rows,
        )  # fmt: skip

    def graphs(self) -> Contents | None:
        graphs = self._table(GRAPHS, ["id"], ["label", "split"])
        nodes = self._table(NODES, ["graph", "id", *self._features], [])
        edge_table = self._table(EDGES, ["source", "target"], ["weight"])
        graph_ids = self._ids(GRAPHS, graphs, "id", unique=True)
        ids = self._ids(NODES, nodes, "id", unique=True)
        self._check_features(nodes)
        y, splits = self._labels(GRAPHS, graphs)
        graph = self._graph_positions(nodes, graph_ids)
        edges = self._edge_rows(edge_table, ids)
        if graph is not None and edges is not None:
            self._check_within_graphs(edges, graph)
        if not self.sound or nodes is None or graph_ids is None or graph is None or y is None or edges is None:
            return None
        self._check_repeats(edges)
        edge_index, weight = self._inner(edges)
        order = np.argsort(graph, kind="stable")
        position = torch.from_numpy(np.argsort(order))
        nodes = nodes if (np.diff(order) == 1).all() else nodes.take(order)
        return Contents(
            self.settings, nodes, y, self._id_numbers(graph_ids), position[edge_index], weight, splits,
            hashed=self._hashes(graph_ids), batch=torch.from_numpy(graph[order]),
        )  # fmt: skip

    def molecules(self) -> Contents | None:
        from isthmus.data.smiles import read_molecules

        assert self.settings.smiles is not None
        file, column = self.settings.smiles.file, self.settings.smiles.column
        table = self._table(file, [column], ["id", "label", "split"])
        smiles = self._smiles(file, table, column)
        has_ids = table is not None and "id" in table.column_names
        ids = self._ids(file, table, "id", unique=True) if has_ids else smiles
        y, splits = self._labels(file, table)
        if smiles is None:
            return None
        try:
            molecules = read_molecules(smiles.fill_null("").to_pylist(), self.settings.smiles.features)
        except IsthmusError as error:
            self.add(Problem(file, str(error)))
            return None
        wrong = np.zeros(len(smiles), dtype=bool)
        wrong[list(molecules.unreadable)] = True
        what = "the SMILES cannot be read: the molecule is left out"
        self.add(*at_rows(file, what, wrong & is_present(smiles), severe=False))
        if wrong.all():
            self.add(Problem(file, "no SMILES can be read: correct them"))
        if not self.sound or ids is None or y is None:
            return None
        readable = torch.from_numpy(~wrong)
        return Contents(
            self.settings, None, y[readable], self._id_numbers(ids)[readable], molecules.edge_index, None,
            None if splits is None else {split: mask[readable] for split, mask in splits.items()},
            hashed=self._hashes(ids), batch=molecules.batch, x=molecules.x,
        )  # fmt: skip

    @property
    def _features(self) -> list[str]:
        return [name for column, kind in self.settings.feature_columns().items() for name in kind.file_columns(column)]

    def _table(self, file: str, needed: Sequence[str], known: Sequence[str]) -> Any | None:
        """Return a file's table without repeated columns, or None if it cannot be read.

        Arguments:
            needed: columns that the file must have.
            known: columns that it may have; a table with labels must also have those of the tasks.
        """
        try:
            table = read_table(self.folder / file, without=self.settings.ignore)
        except IsthmusError as error:
            self.add(Problem(file, str(error).replace(f"{self.folder / file}", "the file")))
            return None
        names = table.column_names
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        self.add(*[Problem(file, f"column '{name}' occurs twice: remove one") for name in twice])
        tasks = (self.settings.tasks or []) if "label" in known else []
        hint = f"declare it in {FILE}, or 'ignore' it"
        for name in needed:
            if name not in names:
                ignored = f": {FILE} lists it under 'ignore'" if name in self.settings.ignore else ""
                self.add(Problem(file, f"column '{name}' is missing{ignored}"))
        for name in tasks:
            if name not in names:
                self.add(Problem(file, f"column '{name}' is missing: {FILE} lists it under 'tasks'"))
        for name in dict.fromkeys(names):
            if name not in (*needed, *known, *tasks):
                self.add(Problem(file, f"column '{name}' is not known: {hint}"))
        return table.select([at for at, name in enumerate(names) if name not in twice])

    def _ids(self, file: str, table: Any | None, column: str, *, unique: bool) -> Any | None:
        """Return a column of ids as whole numbers or texts, or None if the column is missing or wrong."""
        if table is None or not _has(table, column):
            return None
        values = blank_to_null(table.column(column))
        if pa.types.is_integer(values.type):
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                self.add(Problem(file, f"column '{column}' has numbers beyond 64 bits: write them as texts"))
                return None
        elif is_text(values.type):
            values = to_texts(values)
        else:
            self.add(wrong_type(file, column, values.type, "whole numbers or texts"))
            return None
        self.add(*at_rows(file, f"column '{column}' has no value: fill it in", ~is_present(values)))
        if unique and not len(values):
            self.add(Problem(file, "the file has no rows: a party holds at least one item"))
        if unique:
            what = f"column '{column}' repeats an earlier id: make ids unique"
            self.add(*at_rows(file, what, _repeats(values)))
        return values

    def _values(
        self, file: str, table: Any | None, column: str, has_type: Callable[[Any], bool], wanted: str
    ) -> Any | None:
        """Return a column, or None if it is missing or has a wrong type; only the type is a problem."""
        if table is None or not _has(table, column):
            return None
        values = blank_to_null(table.column(column))
        if has_type(values.type):
            return values
        self.add(wrong_type(file, column, values.type, wanted))
        return None

    def _hashes(self, ids: Any) -> bool:
        """Whether these ids are hashed; without a key, whole numbers stay as they are."""
        return self.key is not None or not pa.types.is_integer(ids.type)

    def _id_numbers(self, ids: Any) -> Tensor:
        """Return ids as the numbers that all parties use for them."""
        if self._hashes(ids):
            return hash_ids(ids.to_pylist(), self.key)
        return torch.from_numpy(np.array(ids.to_numpy(zero_copy_only=False), dtype=np.int64))

    def _check_features(self, table: Any | None) -> None:
        for column, kind in self.settings.feature_columns().items():
            if all(_has(table, name) for name in kind.file_columns(column)):
                self.add(*kind.check(column, table, NODES))

    def _graph_positions(self, nodes: Any | None, graph_ids: Any | None) -> Positions | None:
        """Return the position of the graph of every node."""
        ids = self._ids(NODES, nodes, "graph", unique=False)
        if ids is None or graph_ids is None:
            return None
        if not _same_type(ids, graph_ids):
            what = f"column 'graph' holds values of type {ids.type}, the ids of graphs {graph_ids.type}: use one type"
            self.add(Problem(NODES, what))
            return None
        graph = positions_in(ids, graph_ids)
        self.add(*at_rows(NODES, f"column 'graph' has an id that is not in {GRAPHS}", (graph < 0) & is_present(ids)))
        empty = np.bincount(graph[graph >= 0], minlength=len(graph_ids)) == 0
        self.add(*at_rows(GRAPHS, f"this graph has no node in {NODES}", empty & ~_repeats(graph_ids)))
        return graph

    def _labels(self, file: str, table: Any | None) -> tuple[Tensor | None, dict[str, Tensor] | None]:
        """Return labels and splits of the items; None if the labels are wrong, or if there is no column of splits."""
        if table is None:
            return None, None
        y = self._tasks(file, table) if self.settings.tasks else self._classes(file, table)
        splits = self._splits(file, table)
        if splits is None:
            return y, None
        if y is not None:
            unlabelled = (y == -1 if y.dim() == 1 else y.isnan().all(1)).numpy()
            assigned = torch.stack(list(splits.values())).any(0).numpy()
            what = "the row is in a split but has no label: add a label, or leave the split empty"
            self.add(*at_rows(file, what, assigned & unlabelled))
        for split, mask in splits.items():
            if not bool(mask.any()):
                self.add(Problem(file, f"no row is in the split '{split}'", severe=False))
        return y, splits

    def _classes(self, file: str, table: Any) -> Tensor | None:
        """Return classes 0, 1, ..., with -1 for a missing label and `UNLISTED` for an undeclared one."""
        if not _has(table, "label"):
            what = "there is no column 'label': only methods without labels can train on this"
            self.add(Problem(file, what, severe=False))
            return torch.full((table.num_rows,), -1)
        values, names = blank_to_null(table.column("label")), self.settings.labels or []
        if not (is_text(values.type) or is_numeric(values.type)):
            self.add(wrong_type(file, "label", values.type, "numbers or texts"))
            return None
        if is_text(values.type) and not names and is_present(values).any():
            self.add(Problem(file, f"column 'label' holds texts: list them under 'labels' in {FILE}"))
            return None
        by_name = is_text(values.type) or any(_is_number(name) for name in names)
        position = _classes_by_name(values, names) if by_name else _classes_by_number(values, self.settings.outputs)
        allowed = f"one of {join_names(names)}" if by_name else f"a whole number from 0 to {self.settings.outputs - 1}"
        missing = np.isnan(to_floats(values)) if is_numeric(values.type) else ~is_present(values)
        unlisted = (position < 0) & ~missing
        self.add(*at_rows(file, f"the label is not {allowed}", unlisted))
        return torch.from_numpy(np.where(unlisted, UNLISTED, position))

    def _tasks(self, file: str, table: Any) -> Tensor | None:
        """Return one label per task, NaN where it is missing."""
        columns = []
        for task in self.settings.tasks or []:
            values = self._values(file, table, task, is_numeric, "numbers")
            if values is None:
                continue
            number = to_floats(values)
            what = f"column '{task}' is infinite or beyond 3.4e38: correct it"
            self.add(*at_rows(file, what, exceeds_float32(number)))
            columns.append(torch.from_numpy(number.copy()).to(torch.get_default_dtype()))
        return torch.stack(columns, dim=1) if len(columns) == len(self.settings.tasks or []) else None

    def _splits(self, file: str, table: Any) -> dict[str, Tensor] | None:
        values = self._values(file, table, "split", is_text, "texts")
        if values is None:
            return None
        position = positions_in(to_texts(values), pa.array(SPLITS, pa.string()))
        what = f"column 'split' must be empty or one of {', '.join(SPLITS)}"
        self.add(*at_rows(file, what, (position < 0) & is_present(values)))
        return {split: torch.from_numpy(position == at) for at, split in enumerate(SPLITS)}

    def _smiles(self, file: str, table: Any | None, column: str) -> Any | None:
        values = self._values(file, table, column, is_text, "texts")
        if values is None:
            return None
        self.add(*at_rows(file, f"column '{column}' has no value: fill it in", ~is_present(values)))
        return to_texts(values)

    def _edge_rows(self, table: Any | None, ids: Any | None) -> _EdgeRows | None:
        """Return the rows of edges.parquet, or None if their ends cannot be read."""
        if table is None:
            return None
        source = self._ids(EDGES, table, "source", unique=False)
        target = self._ids(EDGES, table, "target", unique=False)
        weight, owner = self._weights(table), self._owners(table)
        if source is None or target is None or ids is None:
            return None
        if not (_same_type(source, ids) and _same_type(target, ids)):
            types = f"{source.type} and {target.type}, ids of nodes {ids.type}"
            self.add(Problem(EDGES, f"source and target have type {types}: use one type"))
            return None
        edges = _EdgeRows(source, target, positions_in(source, ids), positions_in(target, ids), owner, weight)
        complete = is_present(source) & is_present(target)
        across = edges.owner >= 0
        own_ends = (edges.source_at >= 0).astype(np.int8) + (edges.target_at >= 0)
        alone = self.settings.partners is None
        hint = "add a column 'owner' (isthmus party new --owner)" if alone else "fill in 'owner'"
        what = f"source or target is not in {NODES}: add the node, or {hint}"
        self.add(*at_rows(EDGES, what, complete & edges.within & (own_ends < 2)))
        what = "both nodes are in this party: leave 'owner' empty"
        self.add(*at_rows(EDGES, what, complete & across & (own_ends == 2)))
        what = f"neither source nor target is in {NODES}: remove the edge, or add a node"
        self.add(*at_rows(EDGES, what, complete & across & (own_ends == 0)))
        return edges

    def _weights(self, table: Any) -> Any | None:
        """Return the weights of the edges, NaN where a row has none, or None if no row has one."""
        values = self._values(EDGES, table, "weight", is_numeric, "numbers")
        if values is None:
            return None
        number = to_floats(values)
        wrong = exceeds_float32(number) | (np.isnan(number) & is_present(values))
        self.add(*at_rows(EDGES, "column 'weight' is not a finite number: correct it", wrong))
        return number

    def _owners(self, table: Any) -> Positions:
        """Return for every edge the position in `partners` of the other end's owner, or `HERE`, or `UNKNOWN`."""
        if not _has(table, "owner"):
            return np.full(table.num_rows, HERE)
        values = self._values(EDGES, table, "owner", is_text, "names of parties")
        if values is None:
            return np.full(table.num_rows, UNKNOWN)
        partners = self.settings.partners or []
        owner = positions_in(to_texts(values), pa.array([*partners, self.settings.name], pa.string()))
        known = f"{FILE} lists {join_names(partners)} as partners" if partners else f"{FILE} lists no 'partners'"
        unknown = (owner < 0) & is_present(values)
        self.add(*at_rows(EDGES, f"unknown owner: {known}", unknown))
        owner[(owner < 0) | (owner == len(partners))] = HERE
        owner[unknown] = UNKNOWN
        return owner

    def _check_within_graphs(self, edges: _EdgeRows, graph: Positions) -> None:
        here = (edges.source_at >= 0) & (edges.target_at >= 0)
        source, target = graph[edges.source_at[here]], graph[edges.target_at[here]]
        across = np.zeros(here.size, dtype=bool)
        across[here] = (source != target) & (source >= 0) & (target >= 0)
        self.add(*at_rows(EDGES, "the edge joins nodes of two graphs: remove it", across))

    def _check_repeats(self, edges: _EdgeRows) -> None:
        rows = np.flatnonzero(edges.within)
        first, second = edges.source_at[rows], edges.target_at[rows]
        if not self.settings.directed:
            first, second = np.minimum(first, second), np.maximum(first, second)
        repeated = np.zeros(edges.within.size, dtype=bool)
        repeated[rows[_occurred_before(first * (int(second.max(initial=0)) + 1) + second)]] = True
        self.add(*at_rows(EDGES, "repeats an earlier edge: both count", repeated, severe=False))

    def _inner(self, edges: _EdgeRows) -> tuple[Tensor, Tensor | None]:
        """Return the edges within the party as positions, `[2, edges]`, and their weights."""
        index = np.stack([edges.source_at[edges.within], edges.target_at[edges.within]])
        weight = None if edges.weight is None else edges.weight[edges.within]
        if not self.settings.directed:
            back = index[0] != index[1]
            index = np.concatenate([index, index[::-1, back]], axis=1)
            weight = None if weight is None else np.concatenate([weight, weight[back]])
        return torch.from_numpy(index), _weight(weight)

    def _border(self, edges: _EdgeRows) -> tuple[Border | None, Tensor | None]:
        """Return the edges across the border, and the row of each."""
        if self.settings.partners is None:
            return None, None
        arrives = (edges.owner >= 0) & (edges.target_at >= 0)
        leaves = (edges.owner >= 0) & (edges.source_at >= 0) & (not self.settings.directed)
        rows = np.flatnonzero(arrives | leaves)
        outer = torch.empty(rows.size, dtype=torch.long)
        for end, here in ((edges.source, arrives), (edges.target, leaves)):
            outer[torch.from_numpy(here[rows])] = self._id_numbers(end.take(pa.array(np.flatnonzero(here))))
        border = Border(
            torch.from_numpy(np.where(arrives, edges.target_at, edges.source_at)[rows]),
            outer,
            torch.from_numpy(edges.owner[rows]),
            tuple(self.settings.partners),
            None if edges.weight is None else _weight(edges.weight[rows]),
        )
        return border, torch.from_numpy(rows + 1)


def _has(table: Any | None, column: str) -> bool:
    return table is not None and column in table.column_names


def _same_type(values: Any, names: Any) -> bool:
    """Whether ids have the same type; a column without values matches every type."""
    return bool(values.type == names.type) or not is_present(values).any()


def _weight(values: Any) -> Tensor | None:
    """Return weights with 1 where a row has none, or None if no row has one."""
    if values is None or (values.size and np.isnan(values).all()):
        return None
    return torch.from_numpy(np.where(np.isnan(values), 1.0, values)).to(torch.get_default_dtype())


def _classes_by_name(values: Any, names: Sequence[str]) -> Positions:
    """Return the classes of labels that are names; numbers in the table match names such as "3" or "true"."""
    if is_text(values.type):
        return positions_in(to_texts(values), pa.array(names, pa.string()))
    numbers = [_BOOLEANS[name] if name in _BOOLEANS else float(name) if _is_number(name) else None for name in names]
    return positions_in(pa.array(to_floats(values)), pa.array(numbers, pa.float64()))


def _classes_by_number(values: Any, classes: int) -> Positions:
    number = to_floats(values)
    whole = (number >= 0) & (number < classes) & (number == np.floor(number))
    return np.where(whole, number, -1).astype(np.int64)


def _is_number(name: str) -> bool:
    return name in _BOOLEANS or name.removeprefix("-").isdecimal()


def _repeats(values: Any) -> Mask:
    """Return a mask of the rows whose value occurs in an earlier row."""
    codes = np.asarray(to_array(pc.dictionary_encode(values)).indices.fill_null(-1).to_numpy(zero_copy_only=False))
    return _occurred_before(codes) & (codes >= 0)


def _occurred_before(codes: NDArray[Any]) -> Mask:
    order = np.argsort(codes, kind="stable")
    mask = np.zeros(codes.size, dtype=bool)
    mask[order[1:][codes[order][1:] == codes[order][:-1]]] = True
    return mask
