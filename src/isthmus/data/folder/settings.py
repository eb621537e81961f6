"""Read `party.toml`: who the party is and what its files hold."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from isthmus import store
from isthmus.data.folder.columns import Column
from isthmus.data.folder.dates import moment_of
from isthmus.data.folder.limits import Limits
from isthmus.data.folder.problems import Problem, join_names, printable
from isthmus.data.folder.relations import DatabaseSettings, dated_tables, tables_with_moments, undated_cycle
from isthmus.data.folder.table import NODES
from isthmus.data.level import Level
from isthmus.data.party import NAME_RULE
from isthmus.data.smiles import AtomFeatures
from isthmus.errors import IsthmusError
from isthmus.options import Options
from isthmus.version import VERSION

FILE = "party.toml"
FORMAT = 1
"""Format number of a party folder. Raise it when older folders can no longer be read."""
RESERVED = frozenset({"id", "graph", "label", "split"})
"""Columns of nodes and graphs that cannot be feature columns."""
TABLE_NAME = re.compile(r"[^\W.]([\w-]*)")
"""Names of tables: their files have them, and a dot divides a table from its column."""
MAX_CLASSES = 100_000
"""More classes are a mistake, such as account numbers used as labels."""


class Smiles(Options):
    """A file of molecules, which replaces the files of nodes, edges and graphs."""

    file: str = "molecules.csv"
    """The CSV file."""
    column: str = "smiles"
    """The column of SMILES."""
    features: AtomFeatures = "one-hot"
    """Features of an atom: its nine categories one-hot, or as numbers."""


class PartyFile(DatabaseSettings):
    """The settings of a party: the content of `party.toml`."""

    format: int = FORMAT
    """Format number of the party folder."""
    name: str = Field(min_length=1, max_length=100)
    """The party's name."""
    level: Literal["node", "graph"] = "node"
    """Whether nodes or whole graphs are classified."""
    labels: list[str] | None = None
    """Names of the classes, in the order of their numbers."""
    classes: int | None = Field(None, ge=1, le=MAX_CLASSES)
    """Number of classes, if the labels are the numbers 0, 1, ..."""
    tasks: list[str] | None = None
    """Columns of labels, if there are several tasks; each holds a number per item, or no value where it is unknown."""
    directed: bool = False
    """Whether an edge runs from source to target only; otherwise each row counts in both directions."""
    ids: Literal["shared", "own"] = "shared"
    """Whether an id means the same node at every party (`shared`), or only at this one (`own`)."""
    partners: list[str] | None = None
    """Names of the parties that may hold the other end of an edge."""
    ignore: list[str] = Field([])
    """Columns of the files to ignore."""
    smiles: Smiles | None = None
    """The file of molecules, if the party holds molecules."""
    columns: dict[str, dict[str, Any]] = Field({})
    """Feature columns by name, each with its kind and the kind's options."""
    limits: Limits = Limits()
    """What the party allows in a federation."""

    @field_validator("format")
    @classmethod
    def _is_known(cls, number: int) -> int:
        if number != FORMAT:
            raise ValueError(
                f"isthmus {VERSION} reads format {FORMAT}; create the folder again with isthmus party new, or install "
                "the version that wrote it"
            )
        return number

    def feature_columns(self) -> dict[str, Column]:
        """Return the feature columns by name; of several tables, each as `TABLE.COLUMN`."""
        columns = dict(self.columns)
        for name, table in self.tables.items():
            columns |= {f"{name}.{column}": declared for column, declared in table.columns.items()}
        return {column: _column(column, declared) for column, declared in columns.items()}

    @property
    def items_level(self) -> Level:
        """What is classified: nodes, graphs, or edges."""
        return "edge" if self.labels_edges else self.level

    @property
    def unlabelled(self) -> bool:
        """Whether `label` names a table alone: no row has a label, and the graph is there for its links."""
        return bool(self.tables and self.label) and not self.label_column and not self.tasks

    @property
    def items_file(self) -> str:
        """The file with a row for each item; of whole graphs and molecules that of nodes."""
        return f"{self.items_table}.parquet" if self.tables else NODES

    @property
    def files(self) -> list[str]:
        """The files of the several tables."""
        return [f"{name}.parquet" for name in self.tables]

    @property
    def outputs(self) -> int:
        """The number of classes, or of tasks."""
        return len(self.labels or self.tasks or ()) or self.classes or 0

    @property
    def common(self) -> dict[str, Any]:
        """The settings that must be equal at all parties, with defaults, in the order in which they are compared."""
        common = self.model_dump(include={"level", "labels", "classes", "tasks", "ids"})
        columns = {column: (kind.name, kind.model_dump()) for column, kind in self.feature_columns().items()}
        return {
            **common,
            "smiles.features": self.smiles and self.smiles.features,
            "columns": columns,
            "tables": self._database if self.tables else None,
        }

    @property
    def _database(self) -> dict[str, Any]:
        """What several tables are: equal at all parties."""
        tables = {
            name: table.model_dump(exclude={"columns", "ignore"}, by_alias=True) for name, table in self.tables.items()
        }
        fields = set(DatabaseSettings.model_fields) - {"tables"}
        return {**self.model_dump(include=fields), "tables": tables}


def read_settings(folder: Path) -> tuple[PartyFile | None, list[Problem]]:
    """Return the settings in `party.toml` of a folder, or None if they are wrong, and all problems."""
    path = folder / FILE
    try:
        values = tomllib.loads(store.read_text(path, within=folder))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        return None, [Problem(FILE, f"{reason}: every party folder needs this file; create one with isthmus party new")]
    except (ValueError, RecursionError) as error:  # also a number with thousands of digits, or very deep brackets
        return None, [Problem(FILE, f"not valid TOML: {error}")]
    wrong = PartyFile.problems(values)
    if wrong:
        return None, [Problem(FILE, each) for each in wrong]
    settings = PartyFile.read(values, FILE)
    problems = [*_contradictions(settings), *_wrong_columns(settings), *_wrong_tables(settings)]
    return (None if problems else settings), problems


def differences(own: PartyFile, other: PartyFile, name: str) -> Iterator[str]:
    """Yield where two parties with several tables disagree about a table, a key or a column, a line each.

    Arguments:
        name: of the other party.
    """
    mine, theirs = own.common["tables"], other.common["tables"]
    for key in (key for key in mine if key != "tables" and mine[key] != theirs[key]):
        yield f"'{key}' is {mine[key]!r}, at party '{name}' {theirs[key]!r}: make them equal"
    for table in sorted({*mine["tables"], *theirs["tables"]}):
        sides = [each["tables"].get(table) for each in (mine, theirs)]
        if None in sides:
            holder = "this party" if sides[0] else f"party '{name}'"
            yield f"only {holder} has the table '{table}': declare the same tables"
            continue
        for key in (key for key in sides[0] if sides[0][key] != sides[1][key]):
            yield f"tables.{table}.{key} is {sides[0][key]!r}, at party '{name}' {sides[1][key]!r}: make them equal"
    columns = own.feature_columns(), other.feature_columns()
    for column in sorted(columns[0].keys() | columns[1].keys()):
        kinds = [each.get(column) for each in columns]
        if kinds[0] == kinds[1] or any(column.partition(".")[0] not in each["tables"] for each in (mine, theirs)):
            continue
        if kinds[0] is None or kinds[1] is None:
            holder = "this party" if kinds[0] else f"party '{name}'"
            yield f"only {holder} declares the column '{column}': declare the same columns, or 'ignore' it"
        elif kinds[0].name != kinds[1].name:
            yield f"column '{column}' is a {kinds[0].name}, at party '{name}' a {kinds[1].name}: make them equal"
        else:
            yield f"column '{column}' has other options than at party '{name}': make them equal"


def read_like(like: Path) -> PartyFile:
    """Return the settings of the party that `--like` names, by its folder or its `party.toml`."""
    settings, problems = read_settings(like.parent if like.name == FILE else like)
    if settings is None:
        raise IsthmusError(printable(f"--like {like}: {problems[0]}"))
    return settings


def _contradictions(settings: PartyFile) -> list[Problem]:
    """List settings that contradict each other."""
    wrong = []
    given = [name for name in ("labels", "classes", "tasks") if getattr(settings, name)]
    if len(given) != 1 and (given or not settings.unlabelled):
        found = " and ".join(given) or "none"
        wrong.append(f"give one of labels, classes and tasks (found: {found})")
    for name in ("labels", "tasks", "partners"):
        values = getattr(settings, name) or []
        if len(set(values)) < len(values):
            wrong.append(f"'{name}' lists a value twice: {join_names(values)}")
        if "" in values:
            wrong.append(f"'{name}' lists an empty text, which means a missing value in the files: remove it")
    taken = (RESERVED - {"label"}).intersection(settings.tasks or ())
    if taken:
        wrong.append(f"'tasks' lists '{min(taken)}', which has another meaning: rename it")
    if settings.partners is not None and settings.ids == "own":
        wrong.append('a party with partners needs shared ids: set ids = "shared"')
    if settings.partners is not None and settings.level == "graph":
        wrong.append("parties with whole graphs have no partners: remove 'partners'")
    if settings.name in (settings.partners or []):
        wrong.append(f"'partners' lists the party itself: remove '{settings.name}'")
    if settings.name in (".", "..") or any(letter in settings.name for letter in "/\\\0"):
        wrong.append(f"name {settings.name!r}: a party's name may have {NAME_RULE}")
    elif not settings.name.isprintable():
        wrong.append(f"name {settings.name!r} has characters that cannot be printed: it may have {NAME_RULE}")
    if settings.smiles is not None and settings.tables:
        wrong.append("molecules have no further tables: remove smiles, or the tables")
    if settings.smiles is not None:
        wrong += _smiles_contradictions(settings, settings.smiles)
    elif settings.tables:
        wrong += _database_contradictions(settings)
    elif not settings.columns:
        wrong.append("there is no table [columns]: declare the feature columns")
    return [Problem(FILE, each) for each in wrong]


def _smiles_contradictions(settings: PartyFile, smiles: Smiles) -> Iterator[str]:
    if settings.level == "node" or settings.columns:
        yield 'molecules are whole graphs with their own features: set level = "graph" and remove [columns]'
    if smiles.file in ("", ".", "..") or any(letter in smiles.file for letter in "/\\\0"):
        yield f"smiles.file = {smiles.file!r} must be a file in this folder"
    if smiles.column in {*RESERVED, *(settings.tasks or ()), *settings.ignore}:
        yield f"smiles.column = '{smiles.column}' has another meaning: rename it"


def _database_contradictions(settings: PartyFile) -> Iterator[str]:
    """Yield what is wrong with settings of a party with several tables, apart from the tables themselves."""
    if settings.columns or settings.ignore or settings.directed:
        yield "several tables have columns and 'ignore' in [tables.NAME], and no 'directed'"
    if settings.level == "graph":
        yield 'several tables are one graph: set level = "node"'
    if settings.label is None:
        yield 'there is no label: name its table and column, such as label = "accounts.suspicious"'
        return
    if settings.items_table not in settings.tables:
        yield f"label = '{settings.label}' names no table: its table is one of {join_names(settings.tables)}"
        return
    items = settings.tables[settings.items_table]
    if settings.tasks and settings.label_column:
        yield f"label = '{settings.label}': give TABLE.COLUMN, or with tasks the table alone"
    if settings.unlabelled and (settings.labels or settings.classes):
        yield f"label = '{settings.label}' names a table alone, which says that no row has a label: give TABLE.COLUMN"
    if settings.unlabelled and (settings.split or settings.train_until or settings.val_until or settings.label_time):
        yield f"label = '{settings.label}' names a table alone: no row has a label, so leave out splits and label_time"
    if settings.unlabelled and items.as_ == "edges":
        yield f"label = '{settings.label}': edges without labels are no items: name a table of nodes"
    if items.as_ == "edges" and items.time is not None and settings.until is None:
        yield (
            f"label = '{settings.label}': edges with labels and a time need 'until': models read the rows before that "
            "day, and classify later ones"
        )
    dates = [name for name in ("train_until", "val_until") if getattr(settings, name) is not None]
    if len(dates) == 1:
        yield f"'{dates[0]}' stands alone: give train_until and val_until"
    if dates and settings.split is not None:
        yield "give train_until and val_until, or split, not both"
    if dates and settings.items_table not in tables_with_moments(settings.tables):
        yield f"a split by date needs dated rows: give the table '{settings.items_table}' a time"
    if len(dates) == 2 and moment_of(str(settings.train_until)) > moment_of(str(settings.val_until)):
        yield "train_until is later than val_until: exchange them"
    first = getattr(settings, dates[0]) if dates else None
    if settings.labels_edges and settings.until and first and moment_of(settings.until) > moment_of(first):
        yield f"until is later than {dates[0]}: edges before until are read, none is left to train on"


def _wrong_tables(settings: PartyFile) -> list[Problem]:
    """List what is wrong with the tables' names, keys and foreign keys."""
    found: list[str] = []
    for name, table in settings.tables.items():
        where = f"tables.{name}"
        if not TABLE_NAME.fullmatch(name):
            found.append(f"{where}: a table's name has letters, digits, '_' and '-' only")
        for column, other in table.foreign.items():
            target = settings.tables.get(other)
            if target is None:
                found.append(f"{where}.foreign.{column}: there is no table '{other}'")
            elif target.as_ == "edges":
                found.append(f"{where}.foreign.{column}: the rows of '{other}' are edges: nothing can refer to them")
            elif target.key is None:
                found.append(f"{where}.foreign.{column}: the table '{other}' has no key: set tables.{other}.key")
        for column in table.owners:
            named = settings.tables.get(name if column == table.key else table.foreign.get(column, ""))
            if named is None:
                found.append(f"{where}.owners.{column}: it is no key of this table, nor does it refer to another")
            elif named.ids == "own":
                found.append(f'{where}.owners.{column}: the key names one row at all parties: set ids = "shared" there')
        if table.as_ == "edges":
            ends = list(table.foreign.values())
            if len(ends) != 2:
                found.append(f'{where}: as = "edges" needs two foreign keys, it has {len(ends)}: set as = "nodes"')
    if not found and settings.label is not None:
        dated = dated_tables(settings)
        if settings.labels_edges:
            joined = dict.fromkeys(settings.tables[settings.items_table].foreign.values())
            found += [
                f"tables.{name}: edges with labels join rows without a time: remove its time, or set "
                f'as = "nodes" for {settings.items_table}'
                for name in joined
                if name in tables_with_moments(settings.tables)
            ]
            found += [
                f"tables.{name}.owners: edges with labels join rows of one party: leave out owners, or set "
                f'as = "nodes" for {settings.items_table}'
                for name, table in settings.tables.items()
                if table.owners
            ]
        found += [
            f'tables.{name}: as = "edges" is for rows without a time where the label has one: set as = "nodes"'
            for name, table in settings.tables.items()
            if table.as_ == "edges" and dated.intersection({name, *table.foreign.values()})
        ]
    dated = set() if found else dated_tables(settings)
    if cycle := undated_cycle({name: table for name, table in settings.tables.items() if name in dated}):
        found.append(f"tables refer to each other in a cycle without time, {' -> '.join(cycle)}: give one a time")
    return [Problem(FILE, each) for each in found]


def _wrong_columns(settings: PartyFile) -> list[Problem]:
    found = _wrong_in("columns", settings.columns, {*RESERVED, *(settings.tasks or ())}, settings.ignore)
    for name, table in settings.tables.items():
        taken = {each for each in (table.key, *table.foreign) if each is not None}
        if name == settings.items_table:
            labels = (settings.label_column, settings.split, settings.label_time, *(settings.tasks or ()))
            taken |= {each for each in labels if each}
        found += _wrong_in(f"tables.{name}.columns", table.columns, taken, table.ignore)
    return [Problem(FILE, each) for each in found]


def _wrong_in(where_all: str, columns: Mapping[str, Any], taken: set[str], ignore: Sequence[str]) -> list[str]:
    """List what is wrong with the feature columns of one file, in which these names are taken."""
    found: list[str] = []
    taken = set(taken)
    for column, table in columns.items():
        where, name = f"{where_all}.{column}", table.get("kind")
        options = {key: value for key, value in table.items() if key != "kind"}
        if not isinstance(name, str):
            found.append(f"{where}: set 'kind' to one of {', '.join(Column.known())}")
            continue
        try:
            kind = Column.named(name)
        except IsthmusError as error:
            found.append(f"{where}: {error}")
            continue
        wrong = kind.problems(options)
        found += [f"{where}: {each}" for each in wrong]
        names = [column] if wrong else kind.read(options, where).file_columns(column)
        remedy = f"delete [{where}]" if where_all.startswith("tables.") else "rename it"
        found += [f"{where}: '{each}' has another meaning: {remedy}" for each in names if each in taken]
        found += [f"{where}: '{each}' is also under 'ignore': remove it" for each in names if each in ignore]
        taken.update(names)
    return found


def _column(column: str, table: dict[str, Any]) -> Column:
    """Return a feature column of checked settings."""
    options = {key: value for key, value in table.items() if key != "kind"}
    return Column.named(table["kind"]).read(options, f"columns.{column}")
