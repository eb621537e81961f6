"""A party folder's files, read once and checked all over, in the order in which they build on each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
    filled,
    found,
    is_beyond,
    is_numeric,
    is_text,
    named,
    numbers_of,
    one,
    texts,
    there,
)
from isthmus.data.folder.problems import Mask, Problem, at_rows, listed
from isthmus.data.folder.settings import FILE, PartyFile, read_settings
from isthmus.data.ids import hash_ids
from isthmus.data.party import SPLITS, Border
from isthmus.errors import IsthmusError

Positions = NDArray[np.int64]
MISSING = ["", "NA", "N/A", "NaN", "nan", "NULL", "null"]
"""What stands for no value in a CSV file."""
NODES, EDGES, GRAPHS = "nodes.parquet", "edges.parquet", "graphs.parquet"
_NAMED = {"false": 0.0, "true": 1.0}
OUTSIDE = -2
"""A label that is on no list."""
HERE, UNKNOWN = -1, -2
"""Owners of an edge's other end: this party, and nobody that `party.toml` lists."""


@dataclass(frozen=True, eq=False)
class Contents:
    """A party's files, found to be sound; only the encoding of its features is still to be agreed.

    Arguments:
        features: the table with the feature columns, `[nodes]` rows in the order of the party's nodes.
        x: features that need no encoding, where molecules bring their own.
        item_ids: a number for each item that is the same wherever the item is known, `[items]`.
        ids: ids of the nodes, or none where they mean nothing to others.
        hashed: whether these numbers are hashes, of texts or under a key.
        splits: masks over the items, or none where the files leave the split to whoever runs the study.
        batch: for every node its graph, where graphs are classified.
        border_rows: the row of edges.parquet that each edge of the border comes from.
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
        """What the party holds, in a line."""
        counted = [f"{self.items:,} {self.settings.level}s", f"{self.edge_index.size(1):,} edges"]
        counted += [] if self.border is None else [f"{len(self.border):,} across its border"]
        counted += [f"{int(self.labelled.sum()):,} labelled"]
        counted += [f"{int(mask.sum()):,} in {split}" for split, mask in (self.splits or {}).items()]
        return ", ".join(counted)


def check_folder(folder: Path, key: bytes | None = None) -> tuple[Contents | None, list[Problem]]:
    """The contents of a party folder, none where something severe is wrong, and everything that is wrong.

    Arguments:
        key: the parties' common key; with it all ids become keyed hashes.
    """
    settings, problems = read_settings(folder)
    if settings is None:
        return None, problems
    reader = _Reader(folder, settings, key)
    read = reader.molecules if settings.smiles else {"node": reader.one_graph, "graph": reader.pile}[settings.level]
    contents = read()
    return (contents if reader.sound else None), reader.problems


def read_table(path: Path, *, without: Collection[str] = (), as_text: Collection[str] = ()) -> Any:
    """A Parquet or CSV file as an Arrow table.

    Arguments:
        without: columns to leave out.
        as_text: columns of a CSV file that are not to be taken for numbers, whatever they look like.
    """
    try:
        table = _read_csv(path, as_text) if path.suffix.lower() == ".csv" else _read_parquet(path, without)
        table.validate(full=True)  # texts that are no UTF-8, lists that end behind their values, ...
    except FileNotFoundError as error:
        raise IsthmusError(f"{path} is not there") from error
    except Exception as error:  # a damaged file may raise nearly anything in the libraries below
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise IsthmusError(f"cannot read {path}: {reason}") from error
    return table.select([at for at, name in enumerate(table.column_names) if name not in without])


def _read_csv(path: Path, as_text: Collection[str]) -> Any:
    from pyarrow import csv

    types = dict.fromkeys(as_text, pa.string())
    options = csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True, column_types=types)
    return csv.read_csv(path, convert_options=options)


def _read_parquet(path: Path, without: Collection[str]) -> Any:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        kept = [name for name in names if name not in without]
        return file.read(columns=None if len(kept) == len(names) else kept)


@dataclass(frozen=True, eq=False)
class _Links:
    """The lines of edges.parquet.

    Arguments:
        source, target: ids of the ends.
        source_at, target_at: their positions among the party's nodes, -1 where it has no such node.
        owner: position in `partners` of the party that holds one end, or `HERE`, or `UNKNOWN`.
        weight: NaN where a line has none; none where no line has.
    """

    source: Any
    target: Any
    source_at: Positions
    target_at: Positions
    owner: Positions
    weight: NDArray[np.float64] | None

    @property
    def within(self) -> Mask:
        """Lines whose ends are both this party's."""
        return np.asarray(self.owner == HERE)


class _Reader:
    """Reads one folder. Whatever is wrong goes to `problems`; a check does without what another found missing."""

    def __init__(self, folder: Path, settings: PartyFile, key: bytes | None) -> None:
        self.folder, self.settings, self.key = folder, settings, key
        self.problems: list[Problem] = []

    @property
    def sound(self) -> bool:
        """Whether nothing severe was found so far."""
        return not any(each.severe for each in self.problems)

    def note(self, problems: Iterator[Problem] | Sequence[Problem]) -> None:
        self.problems += problems

    def one_graph(self) -> Contents | None:
        nodes = self._table(NODES, ["id", *self._features], ["label", "split"])
        edges = self._table(EDGES, ["source", "target"], ["weight", "owner"])
        names = self._identities(NODES, nodes, "id", unique=True)
        self._check_features(nodes)
        y, splits = self._labels(NODES, nodes)
        links = self._links(edges, names)
        if not self.sound or names is None or y is None or links is None:
            return None
        self._note_repeated(links)
        numbers = self._numbers_of(names)
        border, border_rows = self._border(links)
        return Contents(
            self.settings, nodes, y, numbers, *self._inner(links), splits,
            ids=None if self.settings.ids == "own" else numbers, hashed=self._hashes(names),
            border=border, border_rows=border_rows,
        )  # fmt: skip

    def pile(self) -> Contents | None:
        graphs = self._table(GRAPHS, ["id"], ["label", "split"])
        nodes = self._table(NODES, ["graph", "id", *self._features], [])
        edges = self._table(EDGES, ["source", "target"], ["weight"])
        keys = self._identities(GRAPHS, graphs, "id", unique=True)
        names = self._identities(NODES, nodes, "id", unique=True)
        self._check_features(nodes)
        y, splits = self._labels(GRAPHS, graphs)
        graph = self._graph_of(nodes, keys)
        links = self._links(edges, names)
        if graph is not None and links is not None:
            self._check_apart(links, graph)
        if not self.sound or nodes is None or keys is None or graph is None or y is None or links is None:
            return None
        self._note_repeated(links)
        edge_index, weight = self._inner(links)
        order = np.argsort(graph, kind="stable")
        place = torch.from_numpy(np.argsort(order))
        nodes = nodes if (np.diff(order) == 1).all() else nodes.take(order)
        return Contents(
            self.settings, nodes, y, self._numbers_of(keys), place[edge_index], weight, splits,
            hashed=self._hashes(keys), batch=torch.from_numpy(graph[order]),
        )  # fmt: skip

    def molecules(self) -> Contents | None:
        from isthmus.data.smiles import read_molecules

        assert self.settings.smiles is not None
        file, column = self.settings.smiles.file, self.settings.smiles.column
        table = self._table(file, [column], ["id", "label", "split"])
        smiles = self._smiles(file, table, column)
        has_ids = table is not None and "id" in table.column_names
        keys = self._identities(file, table, "id", unique=True) if has_ids else smiles
        y, splits = self._labels(file, table)
        if smiles is None:
            return None
        try:
            molecules = read_molecules(smiles.fill_null("").to_pylist(), self.settings.smiles.features)
        except IsthmusError as error:
            self.note([Problem(file, str(error))])
            return None
        wrong = np.zeros(len(smiles), dtype=bool)
        wrong[list(molecules.unreadable)] = True
        what = "no molecule can be read from this: it is left out"
        self.note(at_rows(file, what, wrong & there(smiles), severe=False))
        if wrong.all():
            self.note([Problem(file, "there is no molecule that can be read")])
        if not self.sound or keys is None or y is None:
            return None
        kept = torch.from_numpy(~wrong)
        return Contents(
            self.settings, None, y[kept], self._numbers_of(keys)[kept], molecules.edge_index, None,
            None if splits is None else {split: mask[kept] for split, mask in splits.items()},
            hashed=self._hashes(keys), batch=molecules.batch, x=molecules.x,
        )  # fmt: skip

    @property
    def _features(self) -> list[str]:
        return [name for column, kind in self.settings.feature_columns().items() for name in kind.reads(column)]

    def _table(self, file: str, needed: Sequence[str], known: Sequence[str]) -> Any | None:
        """A file's table with those columns whose meaning is clear; none where it cannot be read.

        Arguments:
            needed: columns that must be there.
            known: columns that may be there; of items also the labels of the tasks.
        """
        try:
            table = read_table(self.folder / file, without=self.settings.ignore)
        except IsthmusError as error:
            self.note([Problem(file, str(error).replace(f"{self.folder / file}", "the file"))])
            return None
        names = table.column_names
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        self.note([Problem(file, f"column '{name}' is there twice: take one out") for name in twice])
        tasks = (self.settings.tasks or []) if "label" in known else []
        hint = f"declare it in {FILE}, or 'ignore' it"
        for name in needed:
            if name not in names:
                ignored = f": {FILE} lists it under 'ignore'" if name in self.settings.ignore else ""
                self.note([Problem(file, f"column '{name}' is missing{ignored}")])
        for name in tasks:
            if name not in names:
                self.note([Problem(file, f"column '{name}' is missing: {FILE} lists it under 'tasks'")])
        for name in dict.fromkeys(names):
            if name not in (*needed, *known, *tasks):
                self.note([Problem(file, f"column '{name}' is not known: {hint}")])
        return table.select([at for at, name in enumerate(names) if name not in twice])

    def _identities(self, file: str, table: Any | None, column: str, *, unique: bool) -> Any | None:
        """A column of ids, whole numbers or texts; none where there are none."""
        if table is None or not _has(table, column):
            return None
        values = filled(table.column(column))
        if pa.types.is_integer(values.type):
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                self.note([Problem(file, f"column '{column}' has numbers beyond 64 bits: make them texts")])
                return None
        elif is_text(values.type):
            values = texts(values)
        else:
            self.note([Problem(file, f"column '{column}' holds {named(values.type)}: ids are whole numbers or texts")])
            return None
        self.note(at_rows(file, f"column '{column}' has no value: fill it in", ~there(values)))
        if unique and not len(values):
            self.note([Problem(file, "there is no row: a party holds at least one")])
        if unique:
            self.note(at_rows(file, f"column '{column}' repeats the id of a row before", _repeated(values)))
        return values

    def _hashes(self, names: Any) -> bool:
        """Whether the numbers of these ids are hashes; whole numbers stand for themselves where there is no key."""
        return self.key is not None or not pa.types.is_integer(names.type)

    def _numbers_of(self, names: Any) -> Tensor:
        """Ids as the numbers that all parties know them by."""
        if self._hashes(names):
            return hash_ids(names.to_pylist(), self.key)
        return torch.from_numpy(np.array(names.to_numpy(zero_copy_only=False), dtype=np.int64))

    def _check_features(self, table: Any | None) -> None:
        for column, kind in self.settings.feature_columns().items():
            if all(_has(table, name) for name in kind.reads(column)):
                self.note(kind.check(column, table, NODES))

    def _graph_of(self, nodes: Any | None, keys: Any | None) -> Positions | None:
        """For every node the position of its graph."""
        names = self._identities(NODES, nodes, "graph", unique=False)
        if names is None or keys is None:
            return None
        if not _alike(names, keys):
            what = f"column 'graph' holds {named(names.type)}, the ids of graphs are {named(keys.type)}: use one type"
            self.note([Problem(NODES, what)])
            return None
        graph = found(names, keys)
        self.note(at_rows(NODES, f"column 'graph' names no graph of {GRAPHS}", (graph < 0) & there(names)))
        empty = np.bincount(graph[graph >= 0], minlength=len(keys)) == 0
        self.note(at_rows(GRAPHS, f"this graph has no node in {NODES}", empty & ~_repeated(keys)))
        return graph

    def _labels(self, file: str, table: Any | None) -> tuple[Tensor | None, dict[str, Tensor] | None]:
        """Labels and splits of the items; no labels where they are wrong, no splits where the table has none."""
        if table is None:
            return None, None
        y = self._tasks(file, table) if self.settings.tasks else self._classes(file, table)
        splits = self._splits(file, table)
        if splits is None:
            return y, None
        if y is not None:
            unlabelled = (y == -1 if y.dim() == 1 else y.isnan().all(1)).numpy()
            taken = torch.stack(list(splits.values())).any(0).numpy()
            what = "is in a split but has no label: give it one, or take it out of the split"
            self.note(at_rows(file, what, taken & unlabelled))
        for split, mask in splits.items():
            if not bool(mask.any()):
                self.note([Problem(file, f"no row is in the split '{split}'", severe=False)])
        return y, splits

    def _classes(self, file: str, table: Any) -> Tensor | None:
        """Classes 0, 1, ... with -1 where there is no label, and `OUTSIDE`."""
        if not _has(table, "label"):
            self.note(
                [
                    Problem(
                        file, "there is no column 'label': only methods without labels can train on this", severe=False
                    )
                ]
            )
            return torch.full((table.num_rows,), -1)
        values, names = filled(table.column("label")), self.settings.labels or []
        if not (is_text(values.type) or is_numeric(values.type)):
            self.note([Problem(file, f"column 'label' holds {named(values.type)}: labels are numbers or texts")])
            return None
        if is_text(values.type) and not names and there(values).any():
            self.note([Problem(file, f"column 'label' holds texts: name them under 'labels' in {FILE}")])
            return None
        by_name = is_text(values.type) or any(_is_number(name) for name in names)
        at = _by_name(values, names) if by_name else _by_number(values, self.settings.outputs)
        allowed = f"one of {listed(names)}" if by_name else f"a whole number from 0 to {self.settings.outputs - 1}"
        missing = np.isnan(numbers_of(values)) if is_numeric(values.type) else ~there(values)
        outside = (at < 0) & ~missing
        self.note(at_rows(file, f"the label is not {allowed}", outside))
        return torch.from_numpy(np.where(outside, OUTSIDE, at))

    def _tasks(self, file: str, table: Any) -> Tensor | None:
        """A number for each task, NaN where it is not known."""
        columns = []
        for task in self.settings.tasks or []:
            if not _has(table, task):
                continue
            values = filled(table.column(task))
            if not is_numeric(values.type):
                what = f"column '{task}' holds {named(values.type)}: the labels of a task are numbers"
                self.note([Problem(file, what)])
                continue
            number = numbers_of(values)
            self.note(at_rows(file, f"column '{task}' is infinite or beyond 3.4e38: mend it", is_beyond(number)))
            columns.append(torch.from_numpy(number.copy()).to(torch.get_default_dtype()))
        return torch.stack(columns, dim=1) if len(columns) == len(self.settings.tasks or []) else None

    def _splits(self, file: str, table: Any) -> dict[str, Tensor] | None:
        if not _has(table, "split"):
            return None
        values = filled(table.column("split"))
        if not is_text(values.type):
            self.note([Problem(file, f"column 'split' holds {named(values.type)}: it holds texts")])
            return None
        at = found(texts(values), pa.array(SPLITS, pa.string()))
        what = f"column 'split' is none of {', '.join(SPLITS)}, nor empty"
        self.note(at_rows(file, what, (at < 0) & there(values)))
        return {split: torch.from_numpy(at == which) for which, split in enumerate(SPLITS)}

    def _smiles(self, file: str, table: Any | None, column: str) -> Any | None:
        if table is None or not _has(table, column):
            return None
        values = filled(table.column(column))
        if not is_text(values.type):
            self.note([Problem(file, f"column '{column}' holds {named(values.type)}: SMILES are texts")])
            return None
        self.note(at_rows(file, f"column '{column}' has no value: fill it in", ~there(values)))
        return texts(values)

    def _links(self, table: Any | None, names: Any | None) -> _Links | None:
        """The lines of edges.parquet; none where their ends cannot be told."""
        if table is None:
            return None
        source = self._identities(EDGES, table, "source", unique=False)
        target = self._identities(EDGES, table, "target", unique=False)
        weight, owner = self._weights(table), self._owners(table)
        if source is None or target is None or names is None:
            return None
        if not (_alike(source, names) and _alike(target, names)):
            kinds = f"ends hold {named(source.type)} and {target.type}, the ids of nodes {names.type}"
            self.note([Problem(EDGES, f"{kinds}: use one type")])
            return None
        links = _Links(source, target, found(source, names), found(target, names), owner, weight)
        whole = there(source) & there(target)
        across = links.owner >= 0
        here = (links.source_at >= 0).astype(np.int8) + (links.target_at >= 0)
        hint = (
            ": add the node, or say whose it is in a column of owners (--owner)"
            if self.settings.partners is None
            else (": add the node, or name its owner")
        )
        self.note(at_rows(EDGES, f"an end is no node of {NODES}{hint}", whole & links.within & (here < 2)))
        what = "both ends are this party's own: leave the owner out"
        self.note(at_rows(EDGES, what, whole & across & (here == 2)))
        what = f"neither end is a node of {NODES}: the party does not know such an edge"
        self.note(at_rows(EDGES, what, whole & across & (here == 0)))
        return links

    def _weights(self, table: Any) -> Any | None:
        """Weights of the edges, NaN where a line has none."""
        if not _has(table, "weight"):
            return None
        values = filled(table.column("weight"))
        if not is_numeric(values.type):
            self.note([Problem(EDGES, f"column 'weight' holds {named(values.type)}: it holds numbers")])
            return None
        number = numbers_of(values)
        wrong = is_beyond(number) | (np.isnan(number) & there(values))
        self.note(at_rows(EDGES, "column 'weight' is no finite number: mend it", wrong))
        return number

    def _owners(self, table: Any) -> Positions:
        """For every edge the position in `partners` of the party that holds one end, or `HERE`, or `UNKNOWN`."""
        if not _has(table, "owner"):
            return np.full(table.num_rows, HERE)
        values = filled(table.column("owner"))
        if not is_text(values.type):
            self.note([Problem(EDGES, f"column 'owner' holds {named(values.type)}: it holds names of parties")])
            return np.full(table.num_rows, UNKNOWN)
        partners = self.settings.partners or []
        owner = found(texts(values), pa.array([*partners, self.settings.name], pa.string()))
        known = f"{FILE} lists {listed(partners)} as partners" if partners else f"{FILE} lists no 'partners'"
        unknown = (owner < 0) & there(values)
        self.note(at_rows(EDGES, f"unknown owner: {known}", unknown))
        owner[(owner < 0) | (owner == len(partners))] = HERE
        owner[unknown] = UNKNOWN
        return owner

    def _check_apart(self, links: _Links, graph: Positions) -> None:
        here = (links.source_at >= 0) & (links.target_at >= 0)
        source, target = graph[links.source_at[here]], graph[links.target_at[here]]
        apart = np.zeros(here.size, dtype=bool)
        apart[here] = (source != target) & (source >= 0) & (target >= 0)
        self.note(at_rows(EDGES, "joins nodes of two graphs: a graph stands alone", apart))

    def _note_repeated(self, links: _Links) -> None:
        rows = np.flatnonzero(links.within)
        first, second = links.source_at[rows], links.target_at[rows]
        if not self.settings.directed:
            first, second = np.minimum(first, second), np.maximum(first, second)
        repeated = np.zeros(links.within.size, dtype=bool)
        repeated[rows[_again(first * (int(second.max(initial=0)) + 1) + second)]] = True
        self.note(at_rows(EDGES, "repeats an edge of a row before: both count", repeated, severe=False))

    def _inner(self, links: _Links) -> tuple[Tensor, Tensor | None]:
        """Edges within the party as positions, `[2, edges]`, and their weights."""
        edges = np.stack([links.source_at[links.within], links.target_at[links.within]])
        weight = None if links.weight is None else links.weight[links.within]
        if not self.settings.directed:
            back = edges[0] != edges[1]
            edges = np.concatenate([edges, edges[::-1, back]], axis=1)
            weight = None if weight is None else np.concatenate([weight, weight[back]])
        return torch.from_numpy(edges), _weight(weight)

    def _border(self, links: _Links) -> tuple[Border | None, Tensor | None]:
        """Edges across the border, and the row that each comes from."""
        if self.settings.partners is None:
            return None, None
        arrives = (links.owner >= 0) & (links.target_at >= 0)
        leaves = (links.owner >= 0) & (links.source_at >= 0) & (not self.settings.directed)
        rows = np.flatnonzero(arrives | leaves)
        outer = torch.empty(rows.size, dtype=torch.long)
        for end, here in ((links.source, arrives), (links.target, leaves)):
            outer[torch.from_numpy(here[rows])] = self._numbers_of(end.take(pa.array(np.flatnonzero(here))))
        border = Border(
            torch.from_numpy(np.where(arrives, links.target_at, links.source_at)[rows]),
            outer,
            torch.from_numpy(links.owner[rows]),
            tuple(self.settings.partners),
            None if links.weight is None else _weight(links.weight[rows]),
        )
        return border, torch.from_numpy(rows + 1)


def _has(table: Any | None, column: str) -> bool:
    return table is not None and column in table.column_names


def _alike(values: Any, names: Any) -> bool:
    """Whether ids are of one type; where there are none any type will do."""
    return bool(values.type == names.type) or not there(values).any()


def _weight(values: Any) -> Tensor | None:
    """Weights of edges; a line without one counts 1, and where none has one there are none."""
    if values is None or (values.size and np.isnan(values).all()):
        return None
    return torch.from_numpy(np.where(np.isnan(values), 1.0, values)).to(torch.get_default_dtype())


def _by_name(values: Any, names: Sequence[str]) -> Positions:
    """Classes of labels that are names; the numbers of a table that has no texts are names where those are numbers."""
    if is_text(values.type):
        return found(texts(values), pa.array(names, pa.string()))
    numbers = [_NAMED[name] if name in _NAMED else float(name) if _is_number(name) else None for name in names]
    return found(pa.array(numbers_of(values)), pa.array(numbers, pa.float64()))


def _by_number(values: Any, classes: int) -> Positions:
    number = numbers_of(values)
    whole = (number >= 0) & (number < classes) & (number == np.floor(number))
    return np.where(whole, number, -1).astype(np.int64)


def _is_number(name: str) -> bool:
    return name in _NAMED or name.removeprefix("-").isdecimal()


def _repeated(values: Any) -> Mask:
    """Where a value has been there in a row before."""
    codes = np.asarray(one(pc.dictionary_encode(values)).indices.fill_null(-1).to_numpy(zero_copy_only=False))
    return _again(codes) & (codes >= 0)


def _again(codes: NDArray[Any]) -> Mask:
    order = np.argsort(codes, kind="stable")
    again = np.zeros(codes.size, dtype=bool)
    again[order[1:][codes[order][1:] == codes[order][:-1]]] = True
    return again
