"""Read and check several tables that refer to each other, and join their rows by typed edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
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
    is_present,
    is_text,
    positions_in,
    to_array,
    to_keys,
    to_texts,
    wrong_type,
)
from isthmus.data.folder.checker import HERE, Positions, has_column, repeated
from isthmus.data.folder.columns import Date
from isthmus.data.folder.dates import (
    DAY,
    READABLE,
    UNKNOWN,
    Moments,
    is_date,
    moment_of,
    notes_on_dates_to_come,
    read_dates,
    text_of,
)
from isthmus.data.folder.labels import ItemChecker
from isthmus.data.folder.problems import Problem, at_rows
from isthmus.data.folder.relations import (
    KEY,
    Relation,
    TableSettings,
    dated_tables,
    relations,
    table_columns,
    tables_with_moments,
    undated_cycle,
)
from isthmus.data.folder.settings import FILE, PartyFile
from isthmus.data.folder.table import Table
from isthmus.data.history import Codes, last_before
from isthmus.data.ids import Hashing
from isthmus.data.party import Border
from isthmus.data.schema import EdgeType

Rows = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
"""The moment of a row that has none, because it refers to no dated row: it reads no dated row, and none reads it."""


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """Edges of one type.

    Arguments:
        index: positions of source and target among the rows of their tables, `[2, edges]`.
        table, rows: for a table of edges its name, and the row of each edge.
        days: for edges from earlier to later rows, how many days lie between.
    """

    index: Tensor
    table: str = ""
    rows: Tensor | None = None
    days: Tensor | None = None

    def of_rows(self, read: Tensor) -> TypedEdges:
        """Those whose rows of a table of edges are in a mask of its rows."""
        assert self.rows is not None
        mask = read[self.rows]
        return replace(self, index=self.index[:, mask], rows=self.rows[mask])


@dataclass(frozen=True, eq=False)
class Across:
    """Edges of one type between rows of this party and rows that others hold.

    Arguments:
        inner: positions of this party's rows in their table, `[edges]`.
        outer: numbers of the other ends, as in `Database.ids`, `[edges]`.
        owner: positions in `partners` of the parties that hold these, `[edges]`.
        rows, file_rows: rows of the table that has the key: in `Database.tables`, and in its file from 0, `[edges]`.
        leaves: whether they run from this party's rows to the others.
    """

    inner: Rows
    outer: Tensor
    owner: Rows
    rows: Rows
    file_rows: Rows
    leaves: bool = False


@dataclass(frozen=True, eq=False)
class Database:
    """The checked content of several tables.

    Arguments:
        tables: each table's rows, without those from `until` on, by the tables' names in alphabetical order.
        edges: by type, in the order of the types.
        items: the table with the labels.
        ids: by table of nodes, a number for each row, the same at every party that has the row.
        item_ids: such a number for each item.
        names: by column how items are called: `id`, the keys of the rows with labels or their row numbers from 1; of
            edges also `source` and `target`, the keys of both ends.
        moments: by table the moment of each row, of tables whose rows have one.
        across: edges to and from rows that other parties hold.
        labelled: the edges with labels, if it is edges that have them.
    """

    tables: dict[str, Table]
    edges: dict[EdgeType, TypedEdges]
    items: str
    ids: dict[str, Tensor]
    item_ids: Tensor
    names: dict[str, Any]
    moments: dict[str, Moments]
    across: Sequence[tuple[EdgeType, Across]]
    labelled: TypedEdges | None = None

    @property
    def nodes(self) -> int:
        return sum(each.numel() for each in self.ids.values())

    def locate(self, name: str) -> tuple[Table, str]:
        """Return the table of a feature column `TABLE.COLUMN`, and the column's name in it."""
        table, _, column = name.partition(".")
        return self.tables[table], column

    def counted(self, name: str, before: str | None) -> tuple[Table, str]:
        """As `locate`, without rows dated from a day on: an encoding that counted them would tell of the future."""
        table, own = self.locate(name)
        moments = self.moments.get(name.partition(".")[0])
        if before is None or moments is None:
            return table, own
        return table.take(np.flatnonzero(moments < moment_of(before))), own

    def outline(self) -> Database:
        """The database without features and edges."""
        return replace(self, tables={}, edges={}, moments={}, names={}, across=(), labelled=None)

    def border(self, owners: Sequence[str]) -> tuple[Border, Tensor]:
        """Return the edges across the border, without their features, and the row of the key of each, from 1."""
        starts = dict(zip(self.ids, accumulate((len(each) for each in self.ids.values()), initial=0), strict=False))
        parts: list[list[Tensor]] = [[torch.empty(0, dtype=torch.long)] for _ in range(6)]
        for kind, each in self.across:
            count = len(each.inner)
            inner = torch.from_numpy(each.inner) + starts[kind[0] if each.leaves else kind[2]]
            of_type = torch.full((count,), list(self.edges).index(kind))
            more = (torch.full((count,), int(each.leaves)), torch.from_numpy(each.file_rows + 1))
            for part, values in zip(
                parts, (inner, each.outer, torch.from_numpy(each.owner), of_type, *more), strict=True
            ):
                part.append(values)
        inner, outer, owner, of_type, leaving, rows = (torch.cat(part) for part in parts)
        return Border(inner, outer, owner, tuple(owners), edge_type=of_type, leaving=leaving.bool()), rows


class DatabaseReader(ItemChecker):
    """Reads several tables and collects their problems; one that cannot be read is None, and later checks skip it."""

    def __init__(self, folder: Path, settings: PartyFile, hashing: Hashing, problems: list[Problem]) -> None:
        super().__init__(folder, settings, hashing, problems)
        self.label_column, self.split_column = settings.label_column, settings.split or ""
        self._ignored: Sequence[str] = ()
        self.columns = settings.feature_columns()
        self.tables: dict[str, Table] = {}
        self.keys: dict[str, Any] = {}
        self.foreign: dict[str, dict[str, Any]] = {}
        self.times: dict[str, Moments] = {}
        self.holders: dict[tuple[str, str], Positions] = {}
        """By table and column of keys the position in `partners` of who holds each key's row, or `HERE`."""

    @property
    def ignore(self) -> Sequence[str]:
        return self._ignored

    def read(self) -> tuple[Database, Tensor, dict[str, Tensor] | None] | None:
        """Return the tables, the labels of one and its splits; None if a problem is severe."""
        for name, table in self.settings.tables.items():
            self._read_table(name, table)
        for name, table in self.settings.tables.items():
            for column, other in table.foreign.items():
                self._check_foreign(name, column, other)
        for name in self.tables:
            self._check_features(name)
        if cycle := undated_cycle(self.settings.tables):
            what = f"tables refer to each other in a cycle without time, {' -> '.join(cycle)}: no row is before another"
            self.add(Problem(FILE, what, severe=False))
        items = self.settings.items_table
        y, splits = self.labels(f"{items}.parquet", self.tables.get(items))
        if y is not None:
            self._check_labels(items, y)
        if not self.sound or y is None:
            return None
        moments = self._moments()
        kept = self._keep(moments)
        chosen = self._edges_to_classify(moments) if self.settings.labels_edges else kept[items]
        y, splits = y[chosen], splits and {split: mask[chosen] for split, mask in splits.items()}
        if not self.tables[items].num_rows:
            self.add(Problem(f"{items}.parquet", "the table of the label has no rows: a party holds at least one item"))
            return None
        if y.size(0) == 0:
            what = f"no row is dated before until = {self.settings.until}: give a later day"
            if self.settings.labels_edges:
                what = "no row to classify joins two rows: correct its keys, or give an earlier day for until"
            self.add(Problem(f"{items}.parquet", what))
            return None
        if splits is None:
            splits = self._splits_by_date(y, moments.get(items), chosen)
            if splits is None and items in moments and not self.settings.unlabelled:
                what = "rows are dated, and the split is drawn: training reads later rows than those that a test is on"
                self.add(Problem(f"{items}.parquet", f"{what}; set train_until and val_until in {FILE}", severe=False))
        elif items in moments:
            self._note_later_training(splits, torch.from_numpy(moments[items].copy())[chosen])
        database = self._database(moments, kept, chosen)
        joined = any(each.index.size(1) for each in database.edges.values())
        if not joined and not any(len(each.inner) for _, each in database.across):
            what = "no edge joins any rows, so models see each row alone: name the keys under [tables.NAME.foreign]"
            self.add(Problem(FILE, what, severe=False))
        return database, y, splits

    def _read_table(self, name: str, table: TableSettings) -> None:
        file, columns = f"{name}.parquet", table_columns(self.columns, name)
        features = [each for column, kind in columns.items() for each in kind.file_columns(column)]
        needed = [each for each in (table.key, *table.foreign, table.time, *table.owners.values()) if each is not None]
        known: list[str] = []
        if name == self.settings.items_table:
            needed += self.settings.tasks or ()
            if self.settings.labels_edges and self.label_column:
                needed.append(self.label_column)
            known = [each for each in (self.label_column, self.split_column, self.settings.label_time) if each]
        self._ignored = table.ignore
        found = self.table(file, list(dict.fromkeys([*needed, *features])), known)
        if found is None:
            return
        self.tables[name] = found
        if self.label_column in known and has_column(found, self.label_column):
            lacking = [each for each in known if not has_column(found, each)]
            if not is_present(blank_to_null(found.column(self.label_column))).any():
                lacking = [each for each in lacking if each != self.settings.label_time]  # new rows, not yet decided
            self.add(*[Problem(file, f"column '{each}' is missing: add it to the table") for each in lacking])
        if table.key is not None:
            keys = self.ids(file, found, table.key, unique=False)
            if keys is not None:
                what = f"column '{table.key}' repeats an earlier key: make keys unique"
                self.add(*at_rows(file, what, repeated(keys)))
                self.keys[name] = keys
            if table.key in table.owners:
                self.holders[name, KEY] = self.owners(file, found, table.owners[table.key])
        if table.time is not None and has_column(found, table.time):
            times = self._dates(file, found.column(table.time), table.time, missing_too=True)
            if times is not None:
                self.times[name] = times

    def _dates(self, file: str, values: Any, column: str, *, missing_too: bool) -> Moments | None:
        values = blank_to_null(values)
        if not is_date(values.type):
            self.add(wrong_type(file, column, values, "dates"))
            return None
        moments, wrong = read_dates(values)
        if wrong.any():
            first = values[int(np.flatnonzero(wrong)[0])].as_py()
            self.add(*at_rows(file, f"column '{column}' has a date that cannot be read, '{first}': {READABLE}", wrong))
        if missing_too:
            what = f"column '{column}' has no value: date the row, or leave it out"
            self.add(*at_rows(file, what, (moments == UNKNOWN) & ~wrong))
        self.add(*notes_on_dates_to_come(file, column, moments))
        return moments

    def _check_foreign(self, name: str, column: str, other: str) -> None:
        """Check a column of foreign keys; a key that no row has is a note, because it may be another party's row."""
        file = f"{name}.parquet"
        if name not in self.tables or not has_column(self.tables[name], column):
            return
        values = to_keys(self.tables[name].column(column))
        if not (is_text(values.type) or pa.types.is_integer(values.type)):
            self.add(wrong_type(file, column, values, "whole numbers or texts"))
            return
        self.foreign.setdefault(name, {})[column] = values
        if other not in self.keys:
            return
        keys = self.keys[other]
        if is_text(keys.type) != is_text(values.type) and is_present(values).any():
            what = (
                f"column '{column}' holds values of type {values.type}, the keys of '{other}' {keys.type}: use one type"
            )
            self.add(Problem(file, what))
            return
        at = positions_in(to_texts(values), to_texts(keys))
        dangling = (at < 0) & is_present(values)
        in_table = self.holders.get((other, KEY))
        if in_table is not None:
            self.holders[name, column] = np.append(in_table, HERE)[at]
        if (owners := self.settings.tables[name].owners.get(column)) is not None:
            named = self.owners(file, self.tables[name], owners)
            what = f"column '{column}' names rows that '{other}' lacks: add the row, or fill in '{owners}'"
            self.add(*at_rows(file, what, dangling & (named == HERE)))
            found = self.holders.get((name, column), np.full(at.size, HERE))
            what = f"column '{owners}' names another holder of the row than '{other}' does: correct one"
            self.add(*at_rows(file, what, (at >= 0) & (named >= HERE) & (named != found)))
            self.holders[name, column] = np.where(at >= 0, found, named)
        elif dangling.any():
            first = values[int(np.flatnonzero(dangling)[0])].as_py()
            lost = "no edge joins them"
            if self.settings.labels_edges and name == self.settings.items_table:
                lost = "such edges are left out"
            what = f"column '{column}' names rows that '{other}' lacks, such as '{first}': {lost}"
            self.add(*at_rows(file, what, dangling, severe=False))
        if other in dated_tables(self.settings):
            self._check_dated_elsewhere(name, column, other, at)

    def _check_dated_elsewhere(self, name: str, column: str, other: str, at: Positions) -> None:
        """Report keys of dated rows that other parties hold: their dates decide what reads what, and are not here."""
        elsewhere = self.holders.get((name, column), np.full(at.size, HERE)) >= 0
        dateless = elsewhere & (at < 0) & (self.settings.tables[name].time is None)
        what = f"column '{column}' names a row of another party, whose date this row would have: add a column of time"
        self.add(*at_rows(f"{name}.parquet", what, dateless))
        what = f"column '{column}' names rows of other parties in '{other}', which are dated: no edge joins them"
        self.add(*at_rows(f"{name}.parquet", what, elsewhere & ~dateless, severe=False))

    def _check_features(self, name: str) -> None:
        file, table, own = f"{name}.parquet", self.tables[name], self._own_rows(name)
        times = self.times.get(name)
        first = len(self.problems)
        if own is not None:  # of rows that others hold the features are not known
            table, times = table.take(own), None if times is None else times[own]
        for column, kind in table_columns(self.columns, name).items():
            is_time = isinstance(kind, Date) and column == self.settings.tables[name].time  # it is checked already
            if is_time or not all(has_column(table, each) for each in kind.file_columns(column)):
                continue
            for self.before, block in kind.blocks(column, table):
                self.add(*kind.check(column, block, file))
            self.before = 0
            if isinstance(kind, Date) and times is not None:
                values = blank_to_null(table.column(column))
                later = read_dates(values)[0] > times if is_date(values.type) else np.zeros(0, dtype=bool)
                what = f"column '{column}' is later than the row's own date: it may give the answer away"
                self.add(*at_rows(file, what, later, severe=False))
        if own is not None:
            self.problems[first:] = [each.placed(own) for each in self.problems[first:]]

    def _own_rows(self, name: str) -> Rows | None:
        """Return the rows of a table that this party holds, None if all."""
        holders = self.holders.get((name, KEY))
        return None if holders is None or bool((holders == HERE).all()) else np.flatnonzero(holders == HERE)

    def _check_labels(self, items: str, y: Tensor) -> None:
        """Report labels that became known later than their rows may see."""
        file, table = f"{items}.parquet", self.tables[items]
        labelled = ((y >= 0) if y.dim() == 1 else ~y.isnan().all(1)).numpy()
        column = self.settings.label_time
        if column is None or not has_column(table, column):
            return
        known = self._dates(file, table.column(column), column, missing_too=False)
        if known is None:
            return
        setting = "train_until" if self.settings.train_until is not None or self.settings.labels_edges else "until"
        if (until := getattr(self.settings, setting)) is not None:
            late = labelled & (known >= moment_of(until))
            if setting == "train_until" and items in self.times:
                late &= self.times[items] < moment_of(until)
            then = (
                "the split by date does not train on them"
                if setting == "train_until"
                else "its row cannot see what decided it"
            )
            self.add(*at_rows(file, f"the label became known after {setting} = {until}: {then}", late, severe=False))
        if items in self.times:
            early = labelled & (known != UNKNOWN) & (known < self.times[items])
            what = f"the label, of '{column}', is older than its row: exchange the dates, or leave label_time out"
            self.add(*at_rows(file, what, early, severe=False))

    def _moments(self) -> dict[str, Moments]:
        """Return the moment of each row of each table whose rows have one: its own, or that of the latest row that it
        refers to. Tables without time that refer to each other in a circle have none."""
        moments = dict(self.times)
        dated = tables_with_moments(self.settings.tables)
        waiting = [name for name in self.settings.tables if name in dated and name not in moments]
        while ready := [
            name for name in waiting if not set(waiting).intersection(self.settings.tables[name].foreign.values())
        ]:
            for name in ready:
                latest = np.full(self.tables[name].num_rows, UNKNOWN)
                for column, other in self.settings.tables[name].foreign.items():
                    if other in moments:
                        at = self._row_of(name, column)
                        latest = np.maximum(latest, np.where(at >= 0, np.append(moments[other], UNKNOWN)[at], UNKNOWN))
                moments[name] = np.where(latest == UNKNOWN, NEVER, latest)
                waiting.remove(name)
        return moments

    def _edges_to_classify(self, moments: dict[str, Moments]) -> Tensor:
        """Return a mask of the rows with labels that join two rows and are not dated before `until`."""
        name = self.settings.items_table
        one, two = (self._row_of(name, column) for column in self.settings.tables[name].foreign)
        mask = (one >= 0) & (two >= 0)
        if name in moments:
            mask &= moments[name] >= moment_of(str(self.settings.until))
        return torch.from_numpy(mask)

    def _keep(self, moments: dict[str, Moments]) -> dict[str, Tensor]:
        """Return masks of the rows that this party holds, dated before `until`."""
        until = None if self.settings.until is None else moment_of(self.settings.until)
        kept: dict[str, Tensor] = {}
        for name, table in self.tables.items():
            mask = np.ones(table.num_rows, dtype=bool)
            if until is not None and name in moments:
                mask = moments[name] < until
            if (own := self._own_rows(name)) is not None:
                mask &= np.isin(np.arange(mask.size), own)
            kept[name] = torch.from_numpy(mask)
        return kept

    def _note_later_training(self, splits: dict[str, Tensor], times: Tensor) -> None:
        """Report a column of splits that trains on rows dated after rows that it tests on."""
        tested = times[splits["test"] & (times != NEVER)]
        trained = times[splits["train"] & (times != NEVER)]
        if tested.numel() and (later := int((trained > tested.min()).sum())):
            what = f"column '{self.split_column}' trains on {later:,} rows that are later than the first test row"
            remedy = "for a test on what was to come, give train_until and val_until instead"
            self.add(Problem(f"{self.settings.items_table}.parquet", f"{what}: {remedy}", severe=False))

    def _splits_by_date(self, y: Tensor, moments: Moments | None, kept: Tensor) -> dict[str, Tensor] | None:
        if self.settings.train_until is None or self.settings.val_until is None or moments is None:
            return None
        times = torch.from_numpy(moments.copy())[kept]
        train_until, val_until = moment_of(self.settings.train_until), moment_of(self.settings.val_until)
        labelled = y >= 0 if y.dim() == 1 else ~y.isnan().all(1)
        train = labelled & (times < train_until)
        if self.settings.label_time is not None and has_column(
            self.tables[self.settings.items_table], self.settings.label_time
        ):
            known = read_dates(self.tables[self.settings.items_table].column(self.settings.label_time))[0]
            train &= torch.from_numpy(known.copy())[kept] < train_until
        val = labelled & (times >= train_until) & (times < val_until)
        splits = {"train": train, "val": val, "test": labelled & (times >= val_until)}
        file = f"{self.settings.items_table}.parquet"
        own = moments[moments != NEVER]
        span = f"{text_of(own.min())} to {text_of(own.max())}" if own.size else "unknown"
        for split, mask in splits.items():
            if bool(labelled.any()) and not bool(mask.any()):  # a note says it if no row has a label
                what = f"no row with a label is dated in the split '{split}': the rows' dates are {span}"
                self.add(Problem(file, what, severe=False))
        return splits

    def _database(self, moments: dict[str, Moments], kept: dict[str, Tensor], chosen: Tensor) -> Database:
        items, mask = self.settings.items_table, chosen.numpy()
        if self.settings.labels_edges:  # its table keeps all rows: those that are read, and those to classify
            read, kept = kept[items], {name: each for name, each in kept.items() if name != items}
        rows = {name: np.flatnonzero(each.numpy()) for name, each in kept.items()}
        for name, at in rows.items():
            if at.size < self.tables[name].num_rows:
                self.tables[name] = self.tables[name].take(at)
                moments = {each: of[at] if each == name else of for each, of in moments.items()}
                self.keys = {
                    each: keys.take(pa.array(at)) if each == name else keys for each, keys in self.keys.items()
                }
                self.holders = {each: of[at] if each[0] == name else of for each, of in self.holders.items()}
                columns = self.foreign.get(name, {})
                self.foreign[name] = {column: values.take(pa.array(at)) for column, values in columns.items()}
        nodes = sorted(name for name, table in self.settings.tables.items() if table.as_ == "nodes")
        ids = {name: self._numbers(name, rows[name]) for name in nodes}
        tables = {name: self.tables[name] for name in sorted(self.tables)}
        edges = dict(self._edges(moments))
        if not self.settings.labels_edges:
            across = list(self._across(rows))
            names = {"id": self.keys[items] if items in self.keys else pa.array(rows[items] + 1)}
            return Database(tables, edges, items, ids, ids[items], names, moments, across)
        edges = {kind: each.of_rows(read) if each.table == items else each for kind, each in edges.items()}
        columns = dict(zip(("source", "target"), self.settings.tables[items].foreign, strict=True))
        ends = [self._row_of(items, column)[mask] for column in columns.values()]
        labelled = TypedEdges(_stack(*ends), items, chosen.nonzero().squeeze(1))
        names = {"id": self.keys.get(items, pa.array(np.arange(mask.size) + 1))}
        names |= {end: self.foreign[items][column] for end, column in columns.items()}
        names = {column: values.filter(pa.array(mask)) for column, values in names.items()}
        item_ids = self._numbers(items, np.arange(mask.size))[chosen]
        return Database(tables, edges, items, ids, item_ids, names, moments, (), labelled)

    def _numbers(self, name: str, rows: Rows) -> Tensor:
        """Return a number for each row: of its table and key, or of the party and the row."""
        if name in self.keys and (self.settings.tables[name].ids or self.settings.ids) != "own":
            return self._numbers_of(name, self.keys[name])
        return self.hashing.numbers(f"{self.settings.name}:{name}:{row}" for row in rows.tolist())

    def _numbers_of(self, name: str, keys: Any) -> Tensor:
        return self.hashing.numbers(f"{name}:{key}" for key in to_texts(keys).to_pylist())

    def _across(self, file_rows: dict[str, Rows]) -> Iterator[tuple[EdgeType, Across]]:
        """Yield the edges of keys that name rows of other parties.

        The row with the key is at this party and at the other one, which has the edge within: none leaves. An edge that
        is a row itself is at both parties, and at each it arrives or leaves.
        """
        for relation in relations(self.settings):
            name, column = relation.type[2], relation.target
            if relation.how == "referred":
                at = np.flatnonzero(self._holder(name, column) >= 0)
                yield relation.type, self._across_to(name, column, at, at, file_rows)
            elif relation.how in ("edges", "back"):
                ends = (relation.source, relation.target)
                for own, other, leaves in ((ends[1], ends[0], False), (ends[0], ends[1], True)):
                    row = self._row_of(relation.table, own)
                    at = np.flatnonzero((row >= 0) & (self._holder(relation.table, other) >= 0))
                    yield relation.type, self._across_to(relation.table, other, at, row[at], file_rows, leaves=leaves)

    def _across_to(
        self, name: str, column: str, at: Rows, inner: Rows, file_rows: dict[str, Rows], *, leaves: bool = False
    ) -> Across:
        """Return the edges between own rows and those that a column of these rows names."""
        keys = self.foreign[name][column].take(pa.array(at))
        outer = self._numbers_of(self.settings.tables[name].foreign[column], keys)
        return Across(inner, outer, self._holder(name, column)[at], at, file_rows[name][at], leaves)

    def _holder(self, name: str, column: str) -> Positions:
        """Return the position in `partners` of who holds the row of each key, or `HERE`."""
        return self.holders.get((name, column), np.full(self.tables[name].num_rows, HERE))

    def _edges(self, moments: dict[str, Moments]) -> Iterator[tuple[EdgeType, TypedEdges]]:
        wanted = relations(self.settings)
        dated = sorted(dated_tables(self.settings))
        together = np.concatenate([np.zeros(0, dtype=np.int64), *(moments[name] for name in dated)])
        ranks = np.unique(together, return_inverse=True)[1]
        parts = np.split(ranks, np.cumsum([moments[name].size for name in dated])[:-1]) if dated else []
        rank = dict(zip(dated, parts, strict=True))
        codes = self._codes(wanted)
        for relation in wanted:
            source, _, target = relation.type
            if relation.how == "before":
                one, two = codes[source, relation.source], codes[target, relation.target]
                two = np.where(moments[target] == NEVER, -1, two)  # what is earlier than such a row is unknown
                index = last_before(one, rank[source], two, rank[target], self.settings.history)
                gap = moments[target][index[1]].astype(np.float64) - moments[source][index[0]]
                yield relation.type, TypedEdges(_stack(*index), days=torch.from_numpy(gap / DAY))
            elif relation.how in ("edges", "back"):
                ends = [self._row_of(relation.table, each) for each in (relation.source, relation.target)]
                at = np.flatnonzero((ends[0] >= 0) & (ends[1] >= 0))
                yield relation.type, TypedEdges(_stack(ends[0][at], ends[1][at]), relation.table, torch.from_numpy(at))
            else:
                child, column = (source, relation.source) if relation.how == "refers" else (target, relation.target)
                parents = self._row_of(child, column)
                at = np.flatnonzero(parents >= 0)
                if relation.how == "refers" and {child, target} <= rank.keys():
                    at = at[rank[child][at] <= rank[target][parents[at]]]
                ends = [at, parents[at]] if relation.how == "refers" else [parents[at], at]
                yield relation.type, TypedEdges(_stack(*ends))

    def _row_of(self, name: str, column: str) -> Rows:
        """Return the row that each foreign key names, -1 if there is none."""
        other = self.settings.tables[name].foreign[column]
        return positions_in(to_texts(self.foreign[name][column]), to_texts(self.keys[other]))

    def _codes(self, wanted: Iterable[Relation]) -> dict[tuple[str, str], Codes]:
        """Return for each column of keys that joins rows by time a number for each value, also of those of no row."""
        by_table: dict[str, set[tuple[str, str]]] = {}
        for each in wanted:
            if each.how == "before":
                ends = {(each.type[0], each.source), (each.type[2], each.target)}
                by_table.setdefault(each.table, set()).update(ends)
        found: dict[tuple[str, str], Codes] = {}
        for columns in by_table.values():
            values = {at: to_texts(self._key_values(*at)) for at in sorted(columns)}
            encoded = to_array(pc.dictionary_encode(pa.chunked_array(list(values.values())).combine_chunks()))
            codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
            found |= zip(values, np.split(codes, np.cumsum([len(each) for each in values.values()])[:-1]), strict=True)
        return found

    def _key_values(self, name: str, column: str) -> Any:
        """Return the keys by which rows are joined in time: of rows of this party, or of no party that is known.

        Whoever holds a key's row has all rows with the key and joins them; another party has only some.
        """
        if column == KEY:
            return self.keys[name]
        values = self.foreign[name][column]
        return pc.if_else(pa.array(self._holder(name, column) >= 0), pa.scalar(None, values.type), values)


def _stack(source: Rows, target: Rows) -> Tensor:
    return torch.from_numpy(np.stack([source, target]))
