"""Read an organisation's tables from CSV and Parquet files, or from a DuckDB or SQLite database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from isthmus.data.folder.arrow import NUMBER, blank_to_null, is_text, to_keys, to_plain
from isthmus.data.folder.columns import count_distinct
from isthmus.data.folder.table import NULLS, unreadable
from isthmus.data.folder.texts import MOST, odd_texts
from isthmus.errors import IsthmusError, missing_extra

FILES = (".csv", ".tsv", ".parquet")
"""Endings of files that hold one table."""
DATABASES = (".sqlite", ".sqlite3", ".db", ".duckdb")
"""Usual endings of files that hold several tables; they may have others."""
WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
"""Whole numbers; "007" is none, because it is another key than "7"."""
DATES = ("%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%d/%m/%Y %H:%M",
         "%m/%d/%Y", "%m/%d/%Y %H:%M")  # fmt: skip
"""Forms of dates that are read besides 2024-06-30 and 2024-06-30 12:00:00; the first one that fits all is taken."""
SQLITE, DUCKDB = b"SQLite format 3\0", b"DUCK"
_FLAGS = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""DuckDB must not load code from elsewhere."""


@dataclass(frozen=True, eq=False)
class SourceTable:
    """A table as its source has it.

    Arguments:
        table: its rows.
        key: its primary key, if the source declares one of a single column.
        foreign: the columns that the source declares as foreign keys, each with the table that it refers to.
        parties: for the rows of several parties, one after another, how many each has: two may have a row in common.
    """

    table: pa.Table
    key: str | None = None
    foreign: Mapping[str, str] = field(default_factory=dict)
    parties: Sequence[int] = ()

    def different(self, column: str) -> int:
        """Return how many different values a column has at each party, added up."""
        return sum(count_distinct(blank_to_null(part.column(column))) for part in self.parts())

    def keys(self, column: str) -> Any:
        """Return a column of keys, see `to_keys`; kept, because all columns of other tables are compared with it."""
        if column not in self._keys:
            self._keys[column] = to_keys(self.table.column(column))
        return self._keys[column]

    @cached_property
    def _keys(self) -> dict[str, Any]:
        return {}

    def parts(self) -> list[pa.Table]:
        """Return the rows of each party."""
        starts = accumulate(self.parties, initial=0)
        parts = [self.table.slice(start, rows) for start, rows in zip(starts, self.parties, strict=False)]
        return parts or [self.table]


def party_names(start: str, end: str, paths: Sequence[str]) -> list[str]:
    """Return what the `*` of a pattern stands for in the paths that it matches.

    A `*` at the end also matches a file's ending, which is no part of the name, unless two files differ only in that.

    Arguments:
        start, end: what stands before and behind the `*`.

    >>> party_names("in/", "", ["in/north.csv", "in/south.v2"]), party_names("in/", "", ["in/a.csv", "in/a.db"])
    (['north', 'south.v2'], ['a.csv', 'a.db'])
    """
    names = [path[len(start) : len(path) - len(end)] for path in paths]
    bare = [name if end else name.removesuffix(_ending(name)) for name in names]
    return bare if all(bare) and len(set(bare)) == len(names) else names


def _ending(name: str) -> str:
    suffix = Path(name).suffix
    return suffix if suffix.lower() in (*FILES, *DATABASES) else ""


def read_sources(paths: Sequence[Path], party: str = "") -> dict[str, SourceTable]:
    """Return the tables at these paths by name: files, folders of files, or databases.

    Arguments:
        party: a part of the files' names that is no part of the tables' names.
    """
    found: dict[str, SourceTable] = {}
    for path in paths:
        for name, table in _read(path, party):
            if name in found:
                raise IsthmusError(f"{path}: there are two tables '{name}': rename one")
            found[name] = table
    return found


def narrow(table: pa.Table) -> tuple[pa.Table, dict[str, str]]:
    """Return the table with columns of texts as numbers, dates or booleans where all their texts are such.

    A column in which most texts are dates keeps its texts, with the dates in the form 2024-06-30 12:00:00, so that the
    check of the folder finds the others.

    Returns:
        The table, and by column what is remarkable about its texts.
    """
    texts = [name for name in table.column_names if is_text(to_plain(table.column(name)).type)]
    if not texts or not table.num_rows:
        return table, {}
    plain = {name: to_plain(table.column(name)).cast(pa.string()) for name in texts}
    columns = pa.table([plain[name] for name in texts], names=[f"c{at}" for at in range(len(texts))])
    with closing(_connect()) as connection:
        connection.register("given", columns)
        counted = [each for at in range(len(texts)) for each in _counts(f"c{at}")]
        (row,) = connection.execute(f"SELECT {', '.join(counted)} FROM given").fetchall()
        width = len(counted) // len(texts)
        expressions, notes = [], {}
        for at, name in enumerate(texts):
            expression, note = _expression(f"c{at}", row[at * width : (at + 1) * width], plain[name])
            expressions.append(f"{expression} AS c{at}")
            notes[name] = note
        found = connection.sql(f"SELECT {', '.join(expressions)} FROM given").to_arrow_table()
    for at, name in enumerate(texts):
        table = table.set_column(table.column_names.index(name), name, found.column(f"c{at}"))
    return table, {name: note for name, note in notes.items() if note}


def _counts(column: str) -> list[str]:
    """Return the expressions that count a column's values, and those of each kind."""
    return [
        f"count({column})",
        f"count(*) FILTER (regexp_matches({column}, '{WHOLE}'))",
        f"count(*) FILTER (regexp_matches({column}, '{NUMBER}'))",
        f"count(*) FILTER (regexp_matches({column}, '^-?0[0-9]+$'))",
        f"count(*) FILTER (lower({column}) IN ('true', 'false'))",
        f"count(try_cast({column} AS TIMESTAMP)) FILTER (regexp_matches({column}, '^[0-9]{{4}}-'))",
        *(
            f"count(CASE WHEN {column} LIKE '%{form[2]}%{form[2]}%' THEN try_strptime({column}, '{form}') END)"
            for form in DATES  # to try a form takes longer than to look for its separators
        ),
    ]


def _expression(column: str, counts: Sequence[int], texts: Any) -> tuple[str, str]:
    """Return the expression for a column's values as what they are, and what is remarkable."""
    count, whole, numbers, zeros, booleans, dates, *forms = counts
    if not count:
        return column, ""
    if whole == count:
        return f"CAST({column} AS BIGINT)", ""
    if numbers == count and not zeros:
        return f"CAST({column} AS DOUBLE)", ""
    if booleans == count:
        return f"CAST({column} AS BOOLEAN)", ""
    if dates == count:
        return f"CAST({column} AS TIMESTAMP)", ""
    most = max(forms)
    form = DATES[forms.index(most)]
    if most == count:
        ambiguous = form.startswith("%d/") and forms[DATES.index(form.replace("%d/%m", "%m/%d"))] == count
        note = "its dates are read as day/month/year: write them as 2024-06-30 if they are not" if ambiguous else ""
        return f"strptime({column}, '{form}')", note
    if dates >= MOST * count or most >= MOST * count:
        moment = f"try_cast({column} AS TIMESTAMP)" if dates >= most else f"try_strptime({column}, '{form}')"
        return f"coalesce(strftime({moment}, '%Y-%m-%d %H:%M:%S'), {column})", ""
    if not zeros and numbers >= MOST * count:
        return column, f"{odd_texts(texts)}: correct them if all should be numbers"
    return column, ""


def _connect(path: Path | None = None) -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise missing_extra("duckdb", "tables", "isthmus party new --tables") from error
    if path is None:
        return duckdb.connect(config=_FLAGS)
    return duckdb.connect(str(path), read_only=True, config=_FLAGS)


def _read(path: Path, party: str) -> Iterator[tuple[str, SourceTable]]:
    try:
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix.lower() in FILES)
            if not files:
                raise IsthmusError(f"{path} holds no table: give a folder of files that end in {', '.join(FILES)}")
            for each in files:
                yield from _read(each, party)
            return
        if path.suffix.lower() in FILES:
            yield _table_name(path, party), SourceTable(_read_file(path))
            return
        with path.open("rb") as file:
            head = file.read(16)
        if head == SQLITE:
            yield from _read_sqlite(path)
        elif head[8:12] == DUCKDB:
            yield from _read_duckdb(path)
        else:
            raise IsthmusError(f"{path} is neither a table ({', '.join(FILES)}) nor a DuckDB or SQLite file")
    except IsthmusError:
        raise
    except Exception as error:  # a damaged file can raise almost any error
        raise unreadable(path, error) from error


def _table_name(path: Path, party: str) -> str:
    """Return the name of the table in a file.

    >>> _table_name(Path("in/north-accounts.csv"), "north"), _table_name(Path("in/a/accounts.csv"), "a")
    ('accounts', 'accounts')
    """
    stem, own = path.stem, re.escape(party)
    if party and (apart := re.fullmatch(rf"{own}[ _.-]+(.+)|(.+)[ _.-]+{own}", stem)):
        stem = apart[1] or apart[2]
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in stem.strip(" -_."))


def _read_file(path: Path) -> pa.Table:
    with closing(_connect()) as connection:
        if path.suffix.lower() == ".parquet":
            return connection.sql("SELECT * FROM read_parquet($path)", params={"path": str(path)}).to_arrow_table()
        query = "SELECT * FROM read_csv($path, header = true, all_varchar = true, nullstr = $nulls, sample_size = -1)"
        return connection.sql(query, params={"path": str(path), "nulls": NULLS}).to_arrow_table()


def _read_duckdb(path: Path) -> Iterator[tuple[str, SourceTable]]:
    with closing(_connect(path)) as connection:
        query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' AND NOT internal ORDER BY 1"
        names = [name for (name,) in connection.execute(query).fetchall()]
        keys: dict[str, str] = {}
        foreign: dict[str, dict[str, str]] = {}
        query = (
            "SELECT table_name, constraint_type, constraint_column_names, referenced_table FROM duckdb_constraints() "
            "WHERE schema_name = 'main'"
        )
        for name, kind, columns, other in connection.execute(query).fetchall():
            if kind == "PRIMARY KEY" and len(columns) == 1:
                keys[name] = columns[0]
            if kind == "FOREIGN KEY" and len(columns) == 1:
                foreign.setdefault(name, {})[columns[0]] = other
        for name in names:
            table = connection.sql(f"SELECT * FROM main.{_quoted(name)}").to_arrow_table()
            yield name, SourceTable(table, keys.get(name), foreign.get(name, {}))


def _read_sqlite(path: Path) -> Iterator[tuple[str, SourceTable]]:
    """Read SQLite with the standard library, because DuckDB's reader for it is code that it downloads."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        for (name,) in connection.execute(query).fetchall():
            info = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            keys = [column for _, column, _, _, _, primary in info if primary]
            references = connection.execute(f"PRAGMA foreign_key_list({_quoted(name)})").fetchall()
            ids = [each[0] for each in references]
            foreign = {column: other for id_, _, other, column, *_ in references if ids.count(id_) == 1}
            cursor = connection.execute(f"SELECT * FROM {_quoted(name)}")
            columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(info)
            table = pa.table([_column(values) for values in columns], names=[column for _, column, *_ in info])
            yield name, SourceTable(table, keys[0] if len(keys) == 1 else None, foreign)


def _column(values: Sequence[Any]) -> pa.Array:
    """Return a column of SQLite, where each value has a type of its own; values of several types become texts."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
