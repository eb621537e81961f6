"""Read tables: whole, or block by block if they are large."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from isthmus import store
from isthmus.data.folder.problems import printable
from isthmus.errors import IsthmusError
from isthmus.parquet_files import (
    BUFFER,
    COPIES,
    MAX_COLUMNS,
    ROWS,
    check_rows,
    measure_columns,
    open_parquet,
)

NODES, EDGES, GRAPHS = "nodes.parquet", "edges.parquet", "graphs.parquet"
NULLS = ["", "NA", "N/A", "NaN", "nan", "NULL", "null"]
"""Texts that mean a missing value in a CSV file."""
LARGE = 1 << 28
"""Bytes from which columns stay in their file. Reading as many takes about a gigabyte of memory (three copies on the
way), which every machine has that trains on them."""
TEXTS = (".csv", ".tsv")
"""Endings of files that are texts."""
SEPARATORS = (b",", b";", b"\t")
"""What may separate the columns of a CSV file: what occurs most in its first line, of equally many the first."""
HEAD = 1 << 20
"""Bytes of the longest first line of a CSV file."""
CSV_BYTES = 8
"""Bytes of memory for a byte of a CSV file: a digit and a comma become eight bytes, and copies of them."""


INDEX = re.compile(r"__index_level_[0-9]+__")
"""Names of the columns in which pandas keeps the rows' index in a Parquet file."""


class Unreadable(IsthmusError):  # noqa: N818 - names the file, not an event
    """A file is absent or damaged."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a party folder.

    Arguments:
        path: its file.
        column_names: names of the columns.
        num_rows: number of rows.
        memory: the columns that are in memory.
        streamed: names of the columns that are read from the file whenever they are needed.
    """

    path: Path
    column_names: Sequence[str]
    num_rows: int
    memory: Any
    streamed: Sequence[str] = ()

    @classmethod
    def of(cls, table: Any) -> Table:
        """A table that is in memory."""
        return cls(Path(), table.column_names, table.num_rows, table)

    @classmethod
    def open(cls, path: Path, *, without: Collection[str] = (), streamed: Collection[str] = ()) -> Table:
        """The table in a Parquet or CSV file.

        Arguments:
            without: columns to leave out.
            streamed: columns that stay in the file if they take at least `LARGE` bytes together.
        """
        if path.suffix.lower() == ".csv":
            return cls.of(read_table(path, without=without, within=path.parent))
        try:
            sizes = measure_columns(path, without=without, within=path.parent)
            # what streams is read in blocks, however much it is
            with open_parquet(path, without=[*without, *streamed], within=path.parent) as file:
                names = [name for name in file.schema_arrow.names if name not in without]
                apart = [name for name in names if name in streamed and names.count(name) == 1]
                apart = apart if apart and sum(sizes.get(name, 0) for name in apart) >= LARGE else []
                kept = [name for name in names if name not in apart]
                store.check_memory(path, COPIES * sum(sizes.get(name, 0) for name in kept))
                everything = len(kept) == len(file.schema_arrow.names)
                memory = _validated(check_rows(file, file.read(columns=None if everything else kept)))
                rows = file.metadata.num_rows
        except Exception as error:  # a damaged file can raise almost any error in pyarrow
            raise unreadable(path, error) from error
        memory = memory.select([at for at, name in enumerate(memory.column_names) if name in kept])
        return cls(path, names, rows, memory, apart)

    def select(self, names: Sequence[str]) -> Table:
        """The table with these columns only."""
        memory = self.memory.select([name for name in self.memory.column_names if name in names])
        return replace(self, column_names=names, memory=memory, streamed=[n for n in self.streamed if n in names])

    def take(self, rows: Any) -> Table:
        """These rows of a table that is in memory."""
        return Table.of(self.memory.take(rows))

    def column(self, name: str) -> Any:
        """A column that is in memory."""
        return self.memory.column(name)

    def blocks(self, columns: Sequence[str], rows: int | None = None) -> Iterator[tuple[int, Any]]:
        """Yield parts of these columns, each with the number of rows before it.

        Arguments:
            rows: rows of a part, by default `ROWS`; the last part may have fewer.
        """
        rows = rows or ROWS
        streamed = [name for name in columns if name in self.streamed]
        known = self.memory.select([name for name in columns if name not in streamed])
        if not streamed:
            yield from ((at, known.slice(at, rows)) for at in range(0, max(self.num_rows, 1), rows))
            return
        start = 0
        for block in _read_blocks(self.path, streamed, rows):
            for name in known.column_names:
                block = block.append_column(name, known.column(name).slice(start, block.num_rows))
            yield start, block.select(columns)
            start += block.num_rows


def read_table(
    path: Path, *, without: Collection[str] = (), as_text: Collection[str] = (), within: Path | None = None
) -> Any:
    """Return a Parquet or CSV file as an Arrow table.

    Arguments:
        without: columns to leave out.
        as_text: columns of a CSV file to read as texts, even if they look like numbers.
        within: the folder that the file must be in; by default it may be a link to anywhere.
    """
    try:
        is_csv = path.suffix.lower() == ".csv"
        table = _read_csv(path, as_text, within) if is_csv else _read_parquet(path, without, within)
        table.validate(full=True)  # finds texts that are not UTF-8, lists that end after their values, ...
    except Exception as error:  # a damaged file can raise almost any error in pyarrow
        raise unreadable(path, error) from error
    return table.select([at for at, name in enumerate(table.column_names) if name not in without])


def without_index(table: Any, named: Collection[str] = ()) -> tuple[Any, list[str]]:
    """Return an Arrow table without the rows' index that pandas wrote, and a note on each column that is left out.

    Arguments:
        named: columns that the user names.
    """
    found = [name for name in table.column_names if INDEX.fullmatch(name) and name not in named]
    notes = [f"column '{name}' is the rows' index that pandas wrote: left out" for name in found]
    return (table.drop_columns(found) if found else table), notes


def unreadable(path: Path, error: Exception) -> Unreadable:
    """Return the error that a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return Unreadable(f"{path} does not exist")
    if path.suffix.lower() in TEXTS and (coding := _other_coding(path)):
        name = printable(path.name)
        return Unreadable(f"{path} is not UTF-8: save it as UTF-8, or iconv -f {coding} -t utf-8 {name} > new-{name}")
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
    return Unreadable(f"cannot read {path}: {reason}")


def _other_coding(path: Path) -> str:
    """How a text file that is not UTF-8 is probably written, as `iconv` names it; nothing for UTF-8, or unreadable."""
    decoder, head = codecs.getincrementaldecoder("utf-8")(), b""
    try:
        with path.open("rb") as file:
            while block := file.read(HEAD):
                head = head or block
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"
    except OSError:
        pass
    return ""


def _read_csv(path: Path, as_text: Collection[str], within: Path | None) -> Any:
    from pyarrow import csv

    store.check_file(path, within=within)
    with path.open("rb") as file:
        head = file.readline(HEAD)
    separator = max(SEPARATORS, key=head.count)
    if len(head) == HEAD or head.count(separator) >= MAX_COLUMNS:
        raise store.UnusableFile(path, f"its first line is too long: a table has at most {MAX_COLUMNS:,} columns")
    store.check_memory(path, CSV_BYTES * path.stat().st_size)
    types = dict.fromkeys(as_text, pa.string())
    options = csv.ConvertOptions(null_values=NULLS, strings_can_be_null=True, column_types=types)
    form = csv.ParseOptions(delimiter=separator.decode())
    table = csv.read_csv(path, convert_options=options, parse_options=form)
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        raise IsthmusError("a column holds bytes that are no text")  # which the caller turns into a remedy
    return table


def _read_parquet(path: Path, without: Collection[str], within: Path | None) -> Any:
    sizes = measure_columns(path, without=without, within=within)
    store.check_memory(path, COPIES * sum(sizes.values()))
    with open_parquet(path, without=without, within=within) as file:
        names = file.schema_arrow.names
        columns = [name for name in names if name not in without]
        return _without_views(check_rows(file, file.read(columns=None if len(columns) == len(names) else columns)))


def _read_blocks(path: Path, columns: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield these columns of a Parquet file in tables of `rows` rows, whatever its row groups are."""
    try:
        with open_parquet(path, columns=(), within=path.parent, buffer_size=BUFFER, pre_buffer=False) as file:
            waiting, count = [], 0
            for batch in file.iter_batches(min(rows, ROWS), columns=columns):
                store.check_memory(path, COPIES * batch.nbytes)
                waiting.append(pa.Table.from_batches([batch]).select(columns))
                count += batch.num_rows
                while count >= rows:
                    together = pa.concat_tables(waiting)
                    yield _validated(together.slice(0, rows))
                    count -= rows
                    waiting = [together.slice(rows)]
            if count:
                yield _validated(pa.concat_tables(waiting))
    except Exception as error:
        raise unreadable(path, error) from error


def _validated(table: Any) -> Any:
    table.validate(full=True)
    return _without_views(table)


def _without_views(table: Any) -> Any:
    """The table with texts and bytes in types of which pyarrow can take rows."""
    kinds = [_without_view(kind) for kind in table.schema.types]
    if kinds == table.schema.types:
        return table
    columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _without_view(kind: Any) -> Any:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) and (inner := _without_view(kind.value_type)) != kind.value_type:
        return pa.list_(inner)
    return kind
