"""Parquet files: written with checksums, and read within bounds.

A file of a few hundred kilobytes can hold sixty million rows, and Arrow may crash the process where memory runs out. So
what a file says of itself is compared with the memory that is free before anything of it is read. What is wrong in the
file of somebody else may not show in what it says of itself, so another process reads such a file first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Timer
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
COPIES = 4
"""Bytes of memory for a byte of a column: its own, and copies on the way."""
BUFFER = 1 << 20
"""Bytes of a column that are read from a file at a time."""
ROWS = 1 << 16
"""Rows of a block: with a thousand features in double precision they take half a gigabyte."""
IDLE_SECONDS = 10.0
"""After this time without a file to measure, the process that measures files ends."""
ANSWER = "from isthmus.parquet_files import answer; answer()"
"""What that process does."""


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
        store.check_memory(path, VALUE * file.metadata.num_rows * (0 if columns == () else len(held)))
        yield file


def measure_columns(path: Path, *, without: Collection[str] = (), within: Path | None = None) -> dict[str, int]:
    """Return how many bytes of memory each column of somebody else's file takes.

    Another process reads the whole file for it, in blocks and with no more memory than is free. A file that crashes
    pyarrow there, or fills the memory, is an `UnusableFile`; one that passes is safe to read here.

    Arguments:
        without: columns that are left out.
        within: the folder that the file must be in.
    """
    store.check_file(path, within=within)
    found = MEASURER.measure({"path": str(path.absolute()), "without": list(without)})
    if "reason" in found:
        raise store.UnusableFile(path, found["reason"])
    return dict(found["columns"])


class Measurer:
    """The process that measures files: started for the first one, and again after a crash or a pause."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.parent, self.lock = 0, Lock()

    def measure(self, file: Mapping[str, Any]) -> dict[str, Any]:
        line = json.dumps(file).encode() + b"\n"
        with self.lock:
            while True:
                if self.process is None or self.parent != os.getpid():  # a fork has its parent's
                    self.process, self.parent = self.start(), os.getpid()
                process, answer = self.process, b""
                assert process.stdin is not None
                assert process.stdout is not None
                try:
                    with suppress(OSError):  # it has ended
                        process.stdin.write(line)
                        process.stdin.flush()
                        answer = process.stdout.readline()
                finally:
                    if not answer.endswith(b"\n"):  # it has ended, or this process was interrupted
                        self.process = None
                        process.kill()
                        process.stdout.close()
                        with suppress(OSError):
                            process.stdin.close()
                if self.process is not None:
                    return dict(json.loads(answer))
                if code := process.wait():  # 0: it ended after a pause
                    name = signal.Signals(-code).name if code < 0 else f"status {code}"
                    return {"reason": f"it crashes pyarrow ({name}): it is damaged (write it again)"}

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", ANSWER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip


MEASURER = Measurer()
"""The one of this process."""


def answer() -> None:
    """Measure the files that standard input names, until it ends or names none for a while."""
    idle = Timer(0, lambda: None)
    for line in sys.stdin.buffer:
        idle.cancel()
        try:
            found: dict[str, Any] = {"columns": _measure(**json.loads(line))}
        except MemoryError:
            found = {"reason": "reading it needs more memory than is free (correct the file, or use a larger machine)"}
        except Exception as error:  # a damaged file can raise almost any error in pyarrow
            text = " ".join(str(error).split())[:200]
            found = {"reason": getattr(error, "strerror", None) or text or type(error).__name__}
        sys.stdout.buffer.write(json.dumps(found).encode() + b"\n")
        sys.stdout.buffer.flush()
        idle = Timer(IDLE_SECONDS, os._exit, (0,))
        idle.daemon = True
        idle.start()


def _measure(path: str, without: Collection[str]) -> dict[str, int]:
    from pyarrow import types

    sizes: dict[str, int] = {}
    with _memory_limit(), open_parquet(Path(path), columns=(), buffer_size=BUFFER, pre_buffer=False) as file:
        columns = [name for name in file.schema_arrow.names if name not in without] if without else None
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            batch.validate(full=True)
            store.check_memory(Path(path), COPIES * batch.nbytes)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                # every block of a dictionary column has the whole dictionary
                values = column.indices if types.is_dictionary(column.type) else column
                sizes[name] = sizes.get(name, 0) + values.nbytes
    return sizes


@contextmanager
def _memory_limit() -> Iterator[None]:
    """Bound this process by the memory that is free, for the duration of the `with` block."""
    try:
        import resource  # only on POSIX
    except ImportError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    free = store.free_memory()
    if free is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


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
