"""Read and check the files of a party folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from isthmus import store
from isthmus.data.cache import digest
from isthmus.data.folder.arrow import (
    is_present,
    is_text,
    positions_in,
    to_keys,
    to_texts,
)
from isthmus.data.folder.checker import Checker, Positions, has_column, repeated, same_type
from isthmus.data.folder.columns import Column, count_distinct
from isthmus.data.folder.database import Database, DatabaseReader
from isthmus.data.folder.edges import COLUMNS, EdgeChecker, Edges
from isthmus.data.folder.labels import ItemChecker
from isthmus.data.folder.problems import Problem, at_rows
from isthmus.data.folder.relations import table_columns
from isthmus.data.folder.settings import FILE, PartyFile, read_settings
from isthmus.data.folder.table import EDGES, GRAPHS, NODES, Table, Unreadable
from isthmus.data.ids import PLAIN, Hashing
from isthmus.data.mapped import Arrays, cached
from isthmus.data.party import Border
from isthmus.errors import IsthmusError

FIRST_ROWS = 256
"""How many rows of each party are compared to notice ids that are row numbers."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The checked contents of a party folder. The features are not encoded yet, because parties first agree on how.

    Arguments:
        features: the table with the feature columns, one row per node; None for molecules.
        x: features of molecules, which need no encoding.
        item_ids: a number for each item, the same at every party that holds the item, `[items]`.
        ids: ids of the nodes; None if they mean nothing to other parties.
        hashed: whether the ids are hashes; otherwise they are whole numbers as the files have them.
        splits: masks over the items; None if whoever runs the study draws the split.
        batch: the graph of every node, if whole graphs are classified.
        border_rows: for each edge across the border its row in edges.parquet, or in the table that has its key, from 1.
        files: a hash of the files, if any of their columns is so large that it stays there.
        item_names: by column how items are called: `id`, as the files have it, and of edges both ends; Arrow arrays.
        first_rows: by table ("" for nodes.parquet) the numbers of the lowest ids, ascending, and a hash of each one's
            features, `[2, rows]`, by which row numbers are noticed; only of tables whose ids are running numbers, if
            `party.toml` does not say what they mean.
        database: the content of a party with several tables. Items are then the rows with labels, and `ids` those of
            all rows that are nodes.
    """

    settings: PartyFile
    features: Table | None
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
    files: str = ""
    item_names: Mapping[str, Any] = field(default_factory=dict)
    first_rows: Mapping[str, Tensor] = field(default_factory=dict)
    database: Database | None = None

    @property
    def nodes(self) -> int:
        if self.database is not None:
            return self.database.nodes
        return self.items if self.batch is None else len(self.batch)

    def locate(self, name: str) -> tuple[Table, str]:
        """Return the table that holds a feature column, and the column's name in it."""
        if self.database is not None:
            return self.database.locate(name)
        assert self.features is not None
        return self.features, name

    @property
    def items(self) -> int:
        return int(self.y.size(0))

    @property
    def labelled(self) -> Tensor:
        """Which items have a label, `[items]`."""
        return self.y >= 0 if self.y.dim() == 1 else ~self.y.isnan().all(1)

    def summary(self) -> str:
        """Describe in one line what the party holds."""
        edges = self.edge_index.size(1)
        counts = [f"{self.items:,} {self.settings.items_level}s"]
        if self.database is not None:
            edges = sum(each.index.size(1) for each in self.database.edges.values())
            counts = [f"{ids.numel():,} {name}" for name, ids in self.database.ids.items()]
            if self.settings.labels_edges:
                counts.append(f"{self.items:,} {self.database.items} to classify")
        counts += [f"{edges:,} edges"]
        counts += [] if self.border is None else [f"{len(self.border.arriving):,} across its border"]
        counts += [f"{int(self.labelled.sum()):,} labelled"]
        counts += [f"{int(mask.sum()):,} in {split}" for split, mask in (self.splits or {}).items()]
        return ", ".join(counts)


def outline(contents: Contents | None) -> Contents | None:
    """The contents without features and edges, which is enough to compare parties with each other."""
    if contents is None:
        return None
    return replace(
        contents,
        features=None,
        x=None,
        edge_index=contents.edge_index[:, :0],
        edge_weight=None,
        batch=None,
        item_names={},
        database=contents.database and contents.database.outline(),
    )


def check_folder(folder: Path, hashing: Hashing = PLAIN) -> tuple[Contents | None, list[Problem]]:
    """Return the contents of a party folder, or None if a problem is severe, and all problems.

    Arguments:
        hashing: how ids become numbers.
    """
    settings, problems = read_settings(folder)
    if settings is None:
        return None, problems
    reader = _Reader(folder, settings, hashing, [])
    read = {"node": reader.graph, "graph": reader.graphs}[settings.level]
    read = reader.molecules if settings.smiles else reader.database if settings.tables else read
    try:
        contents = read()
    except MemoryError:
        return None, [
            *reader.problems,
            Problem(settings.items_file, "the files need more memory than is free: use a larger machine"),
        ]
    return (contents if reader.sound else None), reader.problems


def hash_files(folder: Path, hashing: Hashing) -> str:
    """Return a hash of what the tensors of a party folder depend on: which files they are, how long and how old; its
    `party.toml`; how ids become numbers; and the type of tensors.

    A file's place is no part of it: a folder that is renamed keeps its hash. A copy has another one.
    """
    stats = [(folder / name).stat() if (folder / name).exists() else None for name in (NODES, EDGES)]
    files = [each and [each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns] for each in stats]
    return digest(files, store.read(folder / FILE), hashing.mark, str(torch.get_default_dtype()))


class _Reader(ItemChecker):
    """Reads one folder and collects its problems. A part that cannot be read is None, and later checks skip it."""

    files = ""

    def graph(self) -> Contents | None:
        blocks = [(name, kind) for name, kind in self.settings.feature_columns().items() if kind.in_blocks]
        streamed = [name for column, kind in blocks for name in kind.file_columns(column)]
        nodes = self.table(NODES, ["id", *self._features], ["label", "split"], streamed)
        edge_table = self.table(EDGES, ["source", "target"], ["weight", "owner"], COLUMNS)
        if any(table is not None and table.streamed for table in (nodes, edge_table)):
            self.files = hash_files(self.folder, self.hashing)
        ids = self.ids(NODES, nodes, "id", unique=True)
        self._check_features(nodes)
        y, splits = self.labels(NODES, nodes)
        edges = self._edges(edge_table, ids)
        if not self.sound or ids is None or y is None or edges is None:
            return None
        numbers = self.id_numbers(ids)
        if not edges.index.size(1) and not edges.border:
            what = "the party has no edge: models read its nodes one by one"
            self.add(Problem(EDGES, what, severe=False, minor=True))
        return Contents(
            self.settings, nodes, y, numbers, edges.index, edges.weight, splits,
            ids=None if self.settings.ids == "own" else numbers, hashed=self.hashes(ids),
            border=edges.border, border_rows=edges.border_rows, files=self.files, item_names={"id": ids},
            first_rows={} if "ids" in self.settings.model_fields_set
            else self._first_rows("", ids, numbers, nodes, self.settings.feature_columns()),
        )  # fmt: skip

    def database(self) -> Contents | None:
        reader = DatabaseReader(self.folder, self.settings, self.hashing, self.problems)
        read = reader.read()
        if read is None:
            return None
        database, y, splits = read
        none = torch.empty(2, 0, dtype=torch.long)
        partners = self.settings.partners
        border, border_rows = (None, None) if partners is None else database.border(partners)
        ids = torch.cat(list(database.ids.values()))
        return Contents(
            self.settings, None, y, database.item_ids, none, None, splits,
            ids=None if self.settings.ids == "own" else ids, hashed=True, item_names=database.names,
            border=border, border_rows=border_rows,
            first_rows={} if "ids" in self.settings.model_fields_set else self._first_rows_of(database),
            database=database,
        )  # fmt: skip

    def _first_rows_of(self, database: Database) -> dict[str, Tensor]:
        """Return `Contents.first_rows` of the tables whose keys mean something to other parties."""
        found: dict[str, Tensor] = {}
        for name, rows in database.tables.items():
            table, numbers = self.settings.tables[name], database.ids.get(name)
            if name == database.items:
                numbers = database.item_ids
                if database.labelled is not None and database.labelled.rows is not None:
                    rows = rows.take(pa.array(database.labelled.rows.numpy()))
            if table.key is not None and table.ids is None and numbers is not None:
                kinds = table_columns(self.settings.feature_columns(), name)
                keys = to_keys(rows.column(table.key))
                found |= self._first_rows(name, keys, numbers, rows, kinds, tuple(table.foreign))
        return found

    def _first_rows(
        self,
        name: str,
        ids: Any,
        numbers: Tensor,
        nodes: Table | None,
        kinds: Mapping[str, Column],
        foreign: Sequence[str] = (),
    ) -> dict[str, Tensor]:
        """Return `Contents.first_rows` of one table; features that follow from the edges are left out."""
        running = running_numbers(ids)
        if running is None or nodes is None:
            return {}
        rows = np.sort(np.argsort(running, kind="stable")[:FIRST_ROWS])
        names = [each for column, kind in kinds.items() if not kind.structural for each in kind.file_columns(column)]
        names += foreign
        found: list[dict[str, Any]] = []
        for start, block in nodes.blocks(names) if names else ():
            inside = rows[(rows >= start) & (rows < start + block.num_rows)] - start
            found += block.take(pa.array(inside)).to_pylist()
            if len(found) == rows.size:
                break
        texts = [repr(_as_floats(list(row.values()))) for row in found] if names else [""] * rows.size
        order = torch.from_numpy(np.argsort(running[rows], kind="stable"))
        return {name: torch.stack([numbers[torch.from_numpy(rows)], PLAIN.numbers(texts)])[:, order]}

    def graphs(self) -> Contents | None:
        graphs = self.table(GRAPHS, ["id"], ["label", "split"])
        nodes = self.table(NODES, ["graph", "id", *self._features], [])
        edge_table = self.table(EDGES, ["source", "target"], ["weight"])
        graph_ids = self.ids(GRAPHS, graphs, "id", unique=True)
        ids = self.ids(NODES, nodes, "id", unique=True)
        self._check_features(nodes)
        y, splits = self.labels(GRAPHS, graphs)
        graph = self._graph_positions(nodes, graph_ids)
        edges = self._edges(edge_table, ids, graph)
        if not self.sound or nodes is None or graph_ids is None or graph is None or y is None or edges is None:
            return None
        order = np.argsort(graph, kind="stable")
        position = torch.from_numpy(np.argsort(order))
        nodes = nodes if (np.diff(order) == 1).all() else nodes.take(order)
        return Contents(
            self.settings, nodes, y, self.id_numbers(graph_ids), position[edges.index], edges.weight, splits,
            hashed=self.hashes(graph_ids), batch=torch.from_numpy(graph[order]), item_names={"id": graph_ids},
        )  # fmt: skip

    def molecules(self) -> Contents | None:
        from isthmus.data.smiles import read_molecules

        assert self.settings.smiles is not None
        file, column = self.settings.smiles.file, self.settings.smiles.column
        table = self.table(file, [column], ["id", "label", "split"])
        smiles = self._smiles(file, table, column)
        has_ids = table is not None and "id" in table.column_names
        ids = self.ids(file, table, "id", unique=True) if has_ids else smiles
        y, splits = self.labels(file, table)
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
            self.settings, None, y[readable], self.id_numbers(ids)[readable], molecules.edge_index, None,
            None if splits is None else {split: mask[readable] for split, mask in splits.items()},
            hashed=self.hashes(ids), batch=molecules.batch, x=molecules.x,
            item_names={"id": ids.filter(pa.array(~wrong))},
        )  # fmt: skip

    @property
    def _features(self) -> list[str]:
        return [name for column, kind in self.settings.feature_columns().items() for name in kind.file_columns(column)]

    def _check_features(self, table: Table | None) -> None:
        if table is None:
            return
        if not table.streamed:
            self.add(*self._feature_problems(table))
            return
        try:
            found: list[Problem] = []

            def build(_: Arrays) -> list[dict[str, Any]] | None:
                found.extend(self._feature_problems(table))
                return self._to_notes(found)

            known = cached(f"checked-{self.files}", build, lambda _, notes: _from_notes(notes))
            self.add(*(found if known is None else known))
        except Unreadable as error:
            self.add_unreadable(NODES, error)

    def _feature_problems(self, table: Table) -> list[Problem]:
        checker = Checker(self.folder, self.settings, self.hashing, [])
        for column, kind in self.settings.feature_columns().items():
            names = kind.file_columns(column)
            if all(has_column(table, name) for name in names):
                for checker.before, block in kind.blocks(column, table):
                    checker.add(*kind.check(column, block, NODES))
        return checker.problems

    def _edges(self, table: Table | None, ids: Any | None, graph: Positions | None = None) -> Edges | None:
        """Return the edges, or None if any problem so far is severe."""
        if table is None:
            return None
        checker = EdgeChecker(self.folder, self.settings, self.hashing, list(self.problems))
        known: tuple[Edges, list[Problem] | None] | None = None
        try:
            if table.streamed and self.sound:

                def build(arrays: Arrays) -> list[dict[str, Any]] | None:
                    checker.read(table, ids, graph, arrays)
                    return self._to_notes(checker.problems[len(self.problems) :])

                def use(arrays: dict[str, Tensor], notes: Any) -> tuple[Edges, list[Problem]]:
                    return checker.edges(arrays), _from_notes(notes)

                known = cached(f"edges-{self.files}", build, use)
            else:
                with Arrays() as arrays:
                    checker.read(table, ids, graph, arrays)
                    known = (checker.edges(arrays.tensors()), None) if checker.sound else None
        except Unreadable as error:
            checker.before = 0
            checker.add(Problem(EDGES, str(error).replace(f"{self.folder / EDGES}", "the file")))
        edges, notes = known or (None, None)
        self.add(*(checker.problems[len(self.problems) :] if notes is None else notes))
        return edges

    def _to_notes(self, problems: Sequence[Problem]) -> list[dict[str, Any]] | None:
        """Return the problems for the cache, or None if one is severe."""
        if hash_files(self.folder, self.hashing) != self.files:
            raise IsthmusError(f"{self.folder} changed while it was read: start again when its files are complete")
        return None if any(each.severe for each in problems) else [asdict(each) for each in problems]

    def _graph_positions(self, nodes: Any | None, graph_ids: Any | None) -> Positions | None:
        """Return the position of the graph of every node."""
        ids = self.ids(NODES, nodes, "graph", unique=False)
        if ids is None or graph_ids is None:
            return None
        if not same_type(ids, graph_ids):
            what = f"column 'graph' holds values of type {ids.type}, the ids of graphs {graph_ids.type}: use one type"
            self.add(Problem(NODES, what))
            return None
        graph = positions_in(ids, graph_ids)
        self.add(*at_rows(NODES, f"column 'graph' has an id that is not in {GRAPHS}", (graph < 0) & is_present(ids)))
        empty = np.bincount(graph[graph >= 0], minlength=len(graph_ids)) == 0
        self.add(*at_rows(GRAPHS, f"this graph has no node in {NODES}", empty & ~repeated(graph_ids)))
        return graph

    def _smiles(self, file: str, table: Any | None, column: str) -> Any | None:
        values = self.values(file, table, column, is_text, "texts")
        if values is None:
            return None
        self.add(*at_rows(file, f"column '{column}' has no value: fill it in", ~is_present(values)))
        return to_texts(values)


def running_numbers(ids: Any) -> Positions | None:
    """Return the numbers of ids that are running numbers, maybe behind a text that all share; otherwise None.

    Up to half of the numbers may be missing.

    >>> running_numbers(pa.array(["u1", "u2", "u4"])).tolist(), running_numbers(pa.array([1, 200]))
    ([1, 2, 4], None)
    """
    if is_text(ids.type):
        parts = pc.extract_regex(ids, "^(?P<before>.*?)(?P<number>[0-9]{1,18})$")
        if parts.null_count or count_distinct(pc.struct_field(parts, "before")) > 1:
            return None
        ids = pc.struct_field(parts, "number").cast(pa.int64())
    numbers = np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
    if numbers.size < 2 or int(numbers.max()) - int(numbers.min()) >= 2 * numbers.size:
        return None
    return numbers


def _as_floats(value: Any) -> Any:
    """Return numbers, in lists too, as floats: another party's table may hold the same numbers as another type."""
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    return float(value) if isinstance(value, int | float) else value


def _from_notes(notes: Sequence[dict[str, Any]]) -> list[Problem]:
    return [Problem(**{**each, "rows": tuple(each["rows"])}) for each in notes]
