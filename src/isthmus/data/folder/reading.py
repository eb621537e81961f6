"""A party folder's files, read once and checked all over, in the order in which they build on each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.folder.arrow import filled, is_numeric, mask_of, named, numbers_of, one, plain, texts
from isthmus.data.folder.problems import Mask, Problem, at_rows
from isthmus.data.folder.settings import FILE, PartyFile, read_settings
from isthmus.data.ids import hashed
from isthmus.data.party import SPLITS, Border
from isthmus.errors import IsthmusError

Positions = NDArray[np.int64]
MISSING = ["", "NA", "N/A", "NaN", "nan", "NULL", "null"]
"""What stands for no value in a CSV file."""
NODES, EDGES, GRAPHS = "nodes.parquet", "edges.parquet", "graphs.parquet"


@dataclass(frozen=True, eq=False)
class Contents:
    """A party's files, found to be sound; only the encoding of its features is still to be agreed.

    Arguments:
        features: the table with the feature columns, `[nodes]` rows in the order of the party's nodes.
        x: features that need no encoding, where molecules bring their own.
        item_ids: a number for each item that is the same wherever the item is known, `[items]`.
        ids: ids of the nodes, or none where they mean nothing to others.
        splits: masks over the items, or none where the files leave the split to whoever runs the study.
        batch: for every node its graph, where graphs are classified.
        border_rows: the line of edges.parquet that each edge of the border comes from.
    """

    settings: PartyFile
    features: Any
    y: Tensor
    item_ids: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    splits: dict[str, Tensor] | None
    ids: Tensor | None = None
    border: Border | None = None
    batch: Tensor | None = None
    x: Tensor | None = None
    border_rows: Tensor | None = None

    @property
    def items(self) -> int:
        return int(self.y.size(0))

    def summary(self) -> str:
        """What the party holds, in a line."""
        y = self.y if self.y.dim() == 1 else self.y.nan_to_num(nan=-1.0).amax(1)
        counted = [f"{self.items:,} {self.settings.level}s", f"{self.edge_index.size(1):,} edges"]
        counted += [] if self.border is None else [f"{len(self.border):,} across its border"]
        counted += [f"{int((y >= 0).sum()):,} labelled"]
        counted += [f"{int(mask.sum()):,} in {split}" for split, mask in (self.splits or {}).items()]
        return ", ".join(counted)


def inspected(folder: Path, key: bytes | None = None) -> tuple[Contents | None, list[Problem]]:
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
    return (None if any(each.severe for each in reader.problems) else contents), reader.problems


def read_table(path: Path) -> Any:
    """A Parquet or CSV file as an Arrow table."""
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".csv":
            return csv.read_csv(path, convert_options=csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True))
        return parquet.read_table(path, partitioning=None)
    except FileNotFoundError as error:
        raise IsthmusError(f"{path} is not there") from error
    except Exception as error:  # a damaged file may raise nearly anything in the libraries below
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise IsthmusError(f"cannot read {path}: {reason}") from error


class _Reader:
    """Reads one folder; whatever is wrong goes to `problems`, and what depends on it is left out."""

    def __init__(self, folder: Path, settings: PartyFile, key: bytes | None) -> None:
        self.folder, self.settings, self.key = folder, settings, key
        self.problems: list[Problem] = []

    def note(self, problems: Iterator[Problem] | Sequence[Problem]) -> bool:
        """Keep what is wrong; whether nothing severe was."""
        found = list(problems)
        self.problems += found
        return not any(each.severe for each in found)

    def one_graph(self) -> Contents | None:
        features = self._feature_columns()
        nodes = self._table(NODES, ["id", *features], ["label", *(self.settings.tasks or []), "split"])
        edges = self._table(EDGES, ["source", "target"], ["weight", "owner"])
        names = None if nodes is None else self._identities(NODES, nodes, "id", unique=True)
        if nodes is not None:
            self._check_features(nodes)
        labelled = None if nodes is None else self._labels(NODES, nodes)
        linked = None if edges is None or names is None else self._edges(edges, names)
        if nodes is None or names is None or labelled is None or linked is None:
            return None
        y, splits = labelled
        numbers = self._numbers_of(names)
        own = self.settings.ids == "own"
        edge_index, weight, border, border_rows = linked
        return Contents(
            self.settings, nodes, y, numbers, edge_index, weight, splits, None if own else numbers, border,
            border_rows=border_rows,
        )  # fmt: skip

    def pile(self) -> Contents | None:
        features = self._feature_columns()
        graphs = self._table(GRAPHS, ["id"], ["label", *(self.settings.tasks or []), "split"])
        nodes = self._table(NODES, ["graph", "id", *features], [])
        edges = self._table(EDGES, ["source", "target"], ["weight"])
        keys = None if graphs is None else self._identities(GRAPHS, graphs, "id", unique=True)
        names = None if nodes is None else self._identities(NODES, nodes, "id", unique=True)
        if nodes is not None:
            self._check_features(nodes)
        labelled = None if graphs is None else self._labels(GRAPHS, graphs)
        linked = None if edges is None or names is None else self._edges(edges, names)
        graph = None if keys is None or nodes is None else self._graph_of(nodes, keys)
        if graph is None or keys is None or nodes is None or labelled is None or linked is None:
            return None
        edge_index, weight, _, _ = linked
        source, target = edge_index.numpy()
        apart = graph[source] != graph[target] if source.size else np.zeros(0, dtype=bool)
        if apart.any():
            self.note([Problem(EDGES, f"{int(apart.sum())} edges join two graphs: a graph stands alone")])
            return None
        order = np.argsort(graph, kind="stable")
        place = torch.from_numpy(np.argsort(order))
        y, splits = labelled
        return Contents(
            self.settings, nodes.take(order), y, self._numbers_of(keys), place[edge_index], weight, splits,
            batch=torch.from_numpy(graph[order]),
        )  # fmt: skip

    def molecules(self) -> Contents | None:
        from isthmus.data.smiles import graphs_of

        assert self.settings.smiles is not None
        file, column = self.settings.smiles.file, self.settings.smiles.column
        table = self._table(file, [column], ["id", "label", *(self.settings.tasks or []), "split"])
        if table is None:
            return None
        texts = plain(table.column(column))
        if not pa.types.is_string(texts.type):
            self.note([Problem(file, f"column '{column}' holds {named(texts.type)}: SMILES are texts")])
            return None
        if not self.note(at_rows(file, f"column '{column}' has no value: fill it in", mask_of(pc.is_null(texts)))):
            return None
        has_ids = "id" in table.column_names
        keys = self._identities(file, table, "id", unique=True) if has_ids else texts
        labelled = self._labels(file, table)
        if keys is None or labelled is None:
            return None
        found = graphs_of(texts.to_pylist(), features=self.settings.smiles.features)
        wrong = np.zeros(len(texts), dtype=bool)
        wrong[list(found.unreadable)] = True
        self.note(at_rows(file, "no molecule can be read from this: it is left out", wrong, severe=False))
        if wrong.all():
            self.note([Problem(file, "there is no molecule that can be read")])
            return None
        kept = torch.from_numpy(~wrong)
        y, splits = labelled
        return Contents(
            self.settings, None, y[kept], self._numbers_of(keys)[kept], found.edge_index, None,
            None if splits is None else {split: mask[kept] for split, mask in splits.items()},
            batch=found.batch, x=found.x,
        )  # fmt: skip

    def _feature_columns(self) -> list[str]:
        return [name for column, kind in self.settings.kinds().items() for name in kind.reads(column)]

    def _table(self, file: str, needed: Sequence[str], known: Sequence[str]) -> Any | None:
        """A file's table, where all that is needed is in it."""
        try:
            table = read_table(self.folder / file)
        except IsthmusError as error:
            self.note([Problem(file, str(error).replace(f"{self.folder / file}", "the file"))])
            return None
        names = table.column_names
        wrong = [f"column '{name}' is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        wrong += [f"column '{name}' is missing" for name in needed if name not in names]
        self.note([Problem(file, each) for each in wrong])
        for name in names:
            if name not in (*needed, *known, *self.settings.ignore):
                hint = f"declare it in {FILE}, or list it there under 'ignore'"
                self.note([Problem(file, f"column '{name}' is not known: {hint}")])
        return None if wrong else table

    def _identities(self, file: str, table: Any, column: str, *, unique: bool) -> Any | None:
        """A column of ids, whole numbers or texts; none where they are neither."""
        values = plain(table.column(column))
        if pa.types.is_integer(values.type):
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                self.note([Problem(file, f"column '{column}' has numbers beyond 64 bits: make them texts")])
                return None
        elif not (pa.types.is_string(values.type) or (pa.types.is_null(values.type) and not len(values))):
            self.note([Problem(file, f"column '{column}' holds {named(values.type)}: ids are whole numbers or texts")])
            return None
        sound = self.note(at_rows(file, f"column '{column}' has no value: fill it in", mask_of(pc.is_null(values))))
        if unique:
            if not len(values):
                sound = self.note([Problem(file, "there is no row: a party holds at least one")])
            sound &= self.note(at_rows(file, f"column '{column}' repeats the id of a row before", _repeated(values)))
        return values if sound else None

    def _numbers_of(self, names: Any) -> Tensor:
        """Ids as the numbers that all parties know them by."""
        if self.key is None and pa.types.is_integer(names.type):
            return torch.from_numpy(np.array(names.to_numpy(zero_copy_only=False), dtype=np.int64))
        return hashed(names.to_pylist(), self.key)

    def _check_features(self, table: Any) -> None:
        for column, kind in self.settings.kinds().items():
            self.note(kind.check(column, table, NODES))

    def _graph_of(self, nodes: Any, keys: Any) -> Positions | None:
        names = self._identities(NODES, nodes, "graph", unique=False)
        if names is None:
            return None
        graph = _places(names, keys)
        if graph is None:
            self.note([Problem(NODES, f"column 'graph' holds {named(names.type)}, the ids of graphs {keys.type}")])
            return None
        sound = self.note(at_rows(NODES, f"column 'graph' names no graph of {GRAPHS}", graph < 0))
        empty = np.bincount(graph[graph >= 0], minlength=len(keys)) == 0
        return graph if self.note(at_rows(GRAPHS, f"this graph has no node in {NODES}", empty)) & sound else None

    def _labels(self, file: str, table: Any) -> tuple[Tensor, dict[str, Tensor] | None] | None:
        """Labels and splits of the items."""
        y = self._tasks(file, table) if self.settings.tasks else self._classes(file, table)
        splits = self._splits(file, table) if "split" in table.column_names else None
        if y is None or (splits is None and "split" in table.column_names):
            return None
        if splits is None:
            return y, None
        unlabelled = (y < 0 if y.dim() == 1 else y.isnan().all(1)).numpy()
        taken = torch.stack(list(splits.values())).any(0).numpy()
        what = "is in a split but has no label: give it one, or take it out of the split"
        sound = self.note(at_rows(file, what, taken & unlabelled))
        for split, mask in splits.items():
            if not bool(mask.any()):
                self.note([Problem(file, f"no row is in the split '{split}'", severe=False)])
        return (y, splits) if sound else None

    def _classes(self, file: str, table: Any) -> Tensor | None:
        """Classes 0, 1, ... with -1 where there is no label."""
        if "label" not in table.column_names:
            self.note([Problem(file, "there is no column 'label': nothing here can be trained on", severe=False)])
            return torch.full((table.num_rows,), -1)
        values = filled(table.column("label"))
        if pa.types.is_string(values.type):
            if not self.settings.labels:
                self.note([Problem(file, f"column 'label' holds texts: name them under 'labels' in {FILE}")])
                return None
            found = pc.index_in(values, value_set=pa.array(self.settings.labels, pa.string()))
            at = np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
            outside = (at < 0) & mask_of(pc.is_valid(values))
            allowed = f"one of {', '.join(self.settings.labels)}"
        elif is_numeric(values.type) or pa.types.is_null(values.type):
            number = numbers_of(values)
            missing = np.isnan(number)
            outside = ~missing & ~((number >= 0) & (number < self.settings.outcomes) & (number == np.floor(number)))
            at = np.where(missing | outside, -1, number).astype(np.int64)
            allowed = f"a whole number from 0 to {self.settings.outcomes - 1}"
        else:
            self.note([Problem(file, f"column 'label' holds {named(values.type)}: labels are numbers or texts")])
            return None
        return torch.from_numpy(at) if self.note(at_rows(file, f"the label is not {allowed}", outside)) else None

    def _tasks(self, file: str, table: Any) -> Tensor | None:
        """A number for each task, NaN where it is not known."""
        columns, sound = [], True
        for task in self.settings.tasks or []:
            if task not in table.column_names:
                sound = self.note([Problem(file, f"column '{task}' is missing: {FILE} lists it under 'tasks'")])
                continue
            values = plain(table.column(task))
            if not (is_numeric(values.type) or pa.types.is_null(values.type)):
                what = f"column '{task}' holds {named(values.type)}: the labels of a task are numbers"
                sound = self.note([Problem(file, what)])
                continue
            number = numbers_of(values)
            sound &= self.note(at_rows(file, f"column '{task}' is infinite: mend it", np.isinf(number)))
            columns.append(torch.from_numpy(number.copy()))
        return torch.stack(columns, dim=1).to(torch.get_default_dtype()) if sound else None

    def _splits(self, file: str, table: Any) -> dict[str, Tensor] | None:
        values = filled(table.column("split"))
        if not (pa.types.is_string(values.type) or pa.types.is_null(values.type)):
            self.note([Problem(file, f"column 'split' holds {named(values.type)}: it holds texts")])
            return None
        at = _found(texts(values), pa.array(SPLITS, pa.string()))
        what = f"column 'split' is none of {', '.join(SPLITS)}, nor empty"
        if not self.note(at_rows(file, what, (at < 0) & mask_of(pc.is_valid(values)))):
            return None
        return {split: torch.from_numpy(at == which) for which, split in enumerate(SPLITS)}

    def _edges(self, table: Any, names: Any) -> tuple[Tensor, Tensor | None, Border | None, Tensor | None] | None:
        """Edges within the party as positions, their weights, and those across its border."""
        ends = [self._identities(EDGES, table, column, unique=False) for column in ("source", "target")]
        weight, sound = self._weights(table)
        if ends[0] is None or ends[1] is None:
            return None
        places = [_places(end, names) for end in ends]
        if places[0] is None or places[1] is None:
            kinds = f"ends hold {named(ends[0].type)} and {ends[1].type}, the ids of nodes {names.type}"
            self.note([Problem(EDGES, f"{kinds}: use one type")])
            return None
        source, target = places[0], places[1]
        owner = self._owners(table)
        if owner is None:
            return None
        within = owner < 0
        what = f"an end is no node of {NODES}"
        hint = ": add the node" if self.settings.partners is None else ": add the node, or name its owner"
        sound &= self.note(at_rows(EDGES, what + hint, within & ((source < 0) | (target < 0))))
        what = "both ends are this party's own: leave the owner out"
        sound &= self.note(at_rows(EDGES, what, ~within & (source >= 0) & (target >= 0)))
        what = f"neither end is a node of {NODES}: the party does not know such an edge"
        sound &= self.note(at_rows(EDGES, what, ~within & (source < 0) & (target < 0)))
        if not sound:
            return None
        self._note_repeated(source, target, within)
        return (*self._inner(source, target, weight, within), *self._border(ends, source, target, weight, owner))

    def _weights(self, table: Any) -> tuple[Any | None, bool]:
        """Weights of the edges (NaN where a line has none), and whether they are sound."""
        if "weight" not in table.column_names:
            return None, True
        values = one(table.column("weight"))
        if not (is_numeric(values.type) or pa.types.is_null(values.type)):
            return None, self.note([Problem(EDGES, f"column 'weight' holds {named(values.type)}: it holds numbers")])
        number = numbers_of(values)
        wrong = np.isinf(number) | (np.isnan(number) & mask_of(pc.is_valid(values)))
        return number, self.note(at_rows(EDGES, "column 'weight' is no finite number: mend it", wrong))

    def _owners(self, table: Any) -> Positions | None:
        """For every edge the position in `partners` of the party that holds one end, -1 where both are here."""
        if "owner" not in table.column_names:
            return np.full(table.num_rows, -1)
        values = filled(table.column("owner"))
        if not (pa.types.is_string(values.type) or pa.types.is_null(values.type)):
            self.note([Problem(EDGES, f"column 'owner' holds {named(values.type)}: it holds names of parties")])
            return None
        partners = self.settings.partners or []
        owner = _found(texts(values), pa.array(partners, pa.string()))
        known = f"{FILE} lists {', '.join(partners)} as partners" if partners else f"{FILE} lists no 'partners'"
        unknown = (owner < 0) & mask_of(pc.is_valid(values))
        return owner if self.note(at_rows(EDGES, f"unknown owner: {known}", unknown)) else None

    def _note_repeated(self, source: Positions, target: Positions, within: Mask) -> None:
        rows = np.flatnonzero(within)
        first, second = source[rows], target[rows]
        if not self.settings.directed:
            first, second = np.minimum(first, second), np.maximum(first, second)
        key = first * (int(second.max(initial=0)) + 1) + second
        repeated = np.zeros(source.size, dtype=bool)
        repeated[rows[_again(key)]] = True
        what = "repeats an edge of a row before: both count"
        self.note(at_rows(EDGES, what, repeated, severe=False))

    def _inner(self, source: Positions, target: Positions, weight: Any, within: Mask) -> tuple[Tensor, Tensor | None]:
        edges = np.stack([source[within], target[within]])
        values = None if weight is None else weight[within]
        if not self.settings.directed:
            back = edges[0] != edges[1]
            edges = np.concatenate([edges, edges[::-1, back]], axis=1)
            values = None if values is None else np.concatenate([values, values[back]])
        return torch.from_numpy(edges), _weight(values)

    def _border(
        self, ends: Sequence[Any], source: Positions, target: Positions, weight: Any, owner: Positions
    ) -> tuple[Border | None, Tensor | None]:
        if self.settings.partners is None:
            return None, None
        arrives = (owner >= 0) & (target >= 0)
        leaves = (owner >= 0) & (source >= 0) & (not self.settings.directed)
        rows = np.flatnonzero(arrives | leaves)
        inner = np.where(arrives, target, source)[rows]
        outer = torch.empty(rows.size, dtype=torch.long)
        for end, here in ((ends[0], arrives), (ends[1], leaves)):
            outer[torch.from_numpy(here[rows])] = self._numbers_of(end.take(pa.array(np.flatnonzero(here))))
        border = Border(
            torch.from_numpy(inner),
            outer,
            torch.from_numpy(owner[rows]),
            tuple(self.settings.partners),
            None if weight is None else _weight(weight[rows]),
        )
        return border, torch.from_numpy(rows + 1)


def _weight(values: Any) -> Tensor | None:
    """Weights of edges; a line without one counts 1, and where none has one there are none."""
    if values is None or (values.size and np.isnan(values).all()):
        return None
    return torch.from_numpy(np.where(np.isnan(values), 1.0, values)).to(torch.get_default_dtype())


def _found(values: Any, among: Any) -> Positions:
    """For every value its position in `among`, -1 where it is none of these."""
    at = one(pc.index_in(values, value_set=among))
    return np.asarray(at.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _places(values: Any, names: Any) -> Positions | None:
    """As `_found` for ids; none where they are of another type than the names."""
    if not len(values):
        return np.empty(0, dtype=np.int64)
    return _found(values, names) if values.type == names.type else None


def _repeated(values: Any) -> Mask:
    """Where a value has been there in a row before."""
    codes = np.asarray(one(pc.dictionary_encode(values)).indices.fill_null(-1).to_numpy(zero_copy_only=False))
    return _again(codes) & (codes >= 0)


def _again(codes: NDArray[Any]) -> Mask:
    order = np.argsort(codes, kind="stable")
    found = np.zeros(codes.size, dtype=bool)
    found[order[1:][codes[order][1:] == codes[order][:-1]]] = True
    return found
