"""Parquet files: written with checksums, and read within bounds.

A file of a few hundred kilobytes can hold sixty million rows, and Arrow may crash the process where memory runs out. So
what a file says of itself is compared with the memory that is free before anything of it is read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from isthmus import store

CHECKSUMS = {"write_page_checksum": True}
"""Options for pyarrow to write a file whose damage `open_parquet` notices."""
MAX_COLUMNS = 100_000
"""Columns of the widest table that is read."""
FOOTER = 1 << 28
"""Bytes of the largest description of a table at the end of its file."""
_LIST, _TEXT = 1 << 20, 1 << 26
"""Limits of a list and of a text in that description."""
VALUE = 64
"""Bytes of memory for a value: eight, copies on the way, and tables of hashes to look ids up. Measured: 50."""


class TooLarge(store.UnusableFile):
    """A file that would need more memory than is free."""


@contextmanager
def open_parquet(
    path: Path,
    *,
    columns: Collection[str] | None = None,
    without: Collection[str] = (),
    within: Path | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Open a Parquet file, after checks of what it says of itself; its pages are verified when they are read.

    Arguments:
        columns: those that memory must hold as a whole, by default all; none if the file is read in blocks.
        without: columns that are left out of these.
        within: the folder that the file must be in.
        options: for `pyarrow.parquet.ParquetFile`.
    """
    from pyarrow import parquet

    store.check_file(path, within=within)
    _check_footer(path)
    limits = {"thrift_string_size_limit": _TEXT, "thrift_container_size_limit": _LIST}
    with parquet.ParquetFile(path, page_checksum_verification=True, **limits, **options) as file:
        if (width := file.metadata.num_columns) > MAX_COLUMNS:
            raise store.UnusableFile(path, f"{width:,} columns, more than the {MAX_COLUMNS:,} that a table may have")
        held = [name for name in columns or file.schema_arrow.names if name not in without]
        # of rows alone: pyarrow aborts the process where it is asked for the columns of damaged row groups
        check_memory(path, VALUE * file.metadata.num_rows * (0 if columns == () else len(held)))
        yield file


def check_rows(file: Any, table: Any) -> Any:
    """Return a table that was read from a file, or raise a ValueError if it lacks rows that the file counts."""
    if table.num_rows != file.metadata.num_rows:
        raise ValueError(f"it has {table.num_rows} rows and counts {file.metadata.num_rows}: it is damaged")
    return table


def _check_footer(path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
    if length > FOOTER and length < size:
        raise store.UnusableFile(path, f"its description of columns has {length:,} bytes: it has too many columns")


def check_memory(path: Path, needed: int) -> None:
    """Raise `TooLarge` if reading a file would need more bytes than are free."""
    free = free_memory()
    if free is not None and needed > free:
        raise TooLarge(
            path,
            f"reading it would need some {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} are free "
            "(correct the file, or use a machine with more memory)",
        )


def free_memory() -> int | None:
    """The bytes that this process may still use: of the machine, of its control group and of its own limit; None if
    the system does not say."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(each for each in lines if each.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    with suppress(OSError, ValueError, ImportError):
        import resource  # only on POSIX

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            found.append(limit - used)
    return max(0, min(found)) if found else None
