"""Which typed edges a database of tables has, and in which direction, so that nothing reads what comes later.

A row is dated if its table has a column of time, or refers to a dated table. If the rows with labels are dated, edges
into a dated row come from strictly earlier rows, or from undated rows that no dated row writes into: no path leads from
a later row to a label. If they are not, all labels belong to one moment (`until`); rows from then on are left out, and
edges run both ways. So it is if the rows with labels are edges; those from then on are classified, and nothing reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator

from isthmus.data.folder.columns import Column
from isthmus.data.folder.dates import setting_text
from isthmus.data.schema import EdgeType
from isthmus.options import Options

KEY = ""
"""Stands for a table's own key among its columns of keys."""


class TableSettings(Options):
    """A table: `[tables.NAME]` of `party.toml`; its rows are in `NAME.parquet`."""

    key: str | None = None
    """Column of the rows' ids; without one, no other row refers to these."""
    time: str | None = None
    """Column of the moment from which on a row is known."""
    as_: Literal["nodes", "edges"] = Field("nodes", alias="as")
    """Whether a row is a node, or an edge between the two rows that it refers to, of one table or of two."""
    ids: Literal["shared", "own"] | None = None
    """Whether a key means the same row at every party, or only at this one; by default as for the whole party."""
    foreign: dict[str, str] = Field({})
    """Columns of foreign keys, each with the table whose key it holds."""
    owners: dict[str, str] = Field({})
    """Columns of keys, own or foreign, each with the column of the party that holds the key's row; empty: this one."""
    ignore: list[str] = Field([])
    """Columns of the file to ignore."""
    columns: dict[str, dict[str, object]] = Field({})
    """Feature columns by name, each with its kind and the kind's options."""


class DatabaseSettings(Options):
    """The settings of a party whose files are several tables: which they are, where the label is, what it may read."""

    tables: dict[str, TableSettings] = Field({})
    """The tables, if the party holds several that refer to each other; each has a file of its name."""
    label: str | None = None
    """With several tables: table and column of the label, such as `accounts.suspicious`; of several tasks, and where no
    row has a label, the table alone."""
    split: str | None = None
    """With several tables: a column of the label's table with train, val, test or nothing."""
    train_until: str | None = None
    """With several tables: rows with a label that are dated before this day are for training."""
    val_until: str | None = None
    """With several tables: those dated from then on and before this day are for validation, later ones for testing."""
    until: str | None = None
    """With several tables: rows dated at this day or later are left out. If they are edges with labels, they are what
    is classified, and only earlier ones are read."""
    label_time: str | None = None
    """With several tables: a column of the label's table, the date at which a label became known."""
    history: int = Field(8, ge=0, le=1000)
    """With several tables: how many earlier rows a dated row reads for each value that they share with it."""

    @field_validator("train_until", "val_until", "until", mode="before")
    @classmethod
    def _is_date(cls, value: object) -> object:
        return setting_text(value)

    @property
    def items_table(self) -> str:
        """The label's table; empty without several tables."""
        return (self.label or "").partition(".")[0]

    @property
    def label_column(self) -> str:
        """The label's column in its table; empty with several tasks, and without labels."""
        return (self.label or "").partition(".")[2]

    @property
    def labels_edges(self) -> bool:
        """Whether the rows with labels are edges."""
        table = self.tables.get(self.items_table)
        return table is not None and table.as_ == "edges"


@dataclass(frozen=True)
class Relation:
    """One type of edges.

    Arguments:
        type: tables of source and target, and the relation's name between them.
        how: `refers`: a row to the row that it refers to; `referred`: the other way; `before`: rows that share a value,
            the earlier to the later; `edges` and `back`: a row of a table of edges, from its first key to its second,
            and the other way.
        source, target: the columns of keys by which rows are joined, `KEY` for the own one.
        table: the table that the keys belong to; of `edges` and `back` the table of edges.
    """

    type: EdgeType
    how: Literal["refers", "referred", "before", "edges", "back"]
    source: str
    target: str
    table: str

    @property
    def keyed(self) -> str:
        """The table whose rows have the keys that name the other end."""
        return {"refers": self.type[0], "edges": self.table, "back": self.table}.get(self.how, self.type[2])


def dated_tables(settings: DatabaseSettings) -> set[str]:
    """Tables whose rows have moments that edges must respect; none if all labels belong to one moment."""
    found = tables_with_moments(settings.tables)
    return found if settings.items_table in found and not settings.labels_edges else set()


def tables_with_moments(tables: Mapping[str, TableSettings]) -> set[str]:
    """Tables with a column of time, and those that refer to one of them, directly or through others."""
    found = {name for name, table in tables.items() if table.time is not None}
    while True:
        more = {name for name, table in tables.items() if found.intersection(table.foreign.values())} - found
        if not more:
            return found
        found |= more


def undated_cycle(tables: Mapping[str, TableSettings]) -> list[str]:
    """Return tables without time that refer to each other in a circle, the first one again at the end; or nothing.

    >>> tables = {"a": TableSettings(foreign={"x": "b"}), "b": TableSettings(foreign={"y": "a"})}
    >>> undated_cycle(tables), undated_cycle({**tables, "b": TableSettings()})
    (['a', 'b', 'a'], [])
    """
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in tables or tables[name].time is not None:
            return []
        for other in tables[name].foreign.values():
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in tables if (found := visit(name, []))), [])


def relations(settings: DatabaseSettings) -> list[Relation]:
    """Return the types of edges, in the order of their names."""
    tables, dated = settings.tables, dated_tables(settings)
    nodes = {name: table for name, table in tables.items() if table.as_ == "nodes"}
    found: list[Relation] = []
    for name, table in tables.items():
        if table.as_ == "edges":
            (first, one), (second, two) = table.foreign.items()
            found.append(Relation((one, name, two), "edges", first, second, name))
            found.append(Relation((two, f"rev_{name}", one), "back", second, first, name))
    for name, table in nodes.items():
        for column, other in table.foreign.items():
            if name not in dated or (table.time is None and other in dated):
                found.append(Relation((name, column, other), "refers", column, KEY, other))
            if other not in dated:
                found.append(Relation((other, f"rev_{column}", name), "referred", KEY, column, other))
    links = [(name, column, other) for name in nodes if name in dated for column, other in nodes[name].foreign.items()]
    links += [(name, KEY, name) for name in nodes if name in dated and nodes[name].key is not None]
    for source, mine, shared in links:
        for target, column, other in links:
            if shared != other or mine == column == KEY:
                continue
            if column != KEY:
                relation = f"rev_{column}" if mine == KEY else f"{mine}_before_{column}"
            elif tables[source].time is None:
                continue  # it has the moment of the row that it refers to, and an edge to it already
            else:
                relation = mine
            found.append(Relation((source, relation, target), "before", mine, column, shared))
    return sorted(found, key=lambda each: each.type)


def table_columns(columns: Mapping[str, Column], table: str) -> dict[str, Column]:
    """Return the feature columns of a table, by their names in it, of all tables' columns (`TABLE.COLUMN`)."""
    start = f"{table}."
    return {name.removeprefix(start): column for name, column in columns.items() if name.startswith(start)}
