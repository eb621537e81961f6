"""Arrays in memory-mapped files, for data that memory need not hold as a whole.

The files are in the cache. A tensor of a mapped file is read page by page when it is used, and the system may drop its
pages again. Writing into such a tensor changes this process's pages and never the file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from isthmus import store
from isthmus.data.cache import cache_root
from isthmus.data.matrices import Ints
from isthmus.errors import IsthmusError

BLOCK = 1 << 20
"""Elements that are processed together: 8 MiB of whole numbers."""
SORTED = 1 << 23
"""Elements that are sorted together, which takes about 40 bytes for each."""
DAYS = 30
"""Entries of the cache that nobody read for so long are deleted when a new one is written."""
CONTENT, NEW = "content.json", ".new-"


Result = TypeVar("Result")


class Series:
    """An array that grows at its end, in memory or in a file."""

    def __init__(self, dtype: DTypeLike, path: Path | None = None) -> None:
        self.dtype, self.path, self.size = np.dtype(dtype), path, 0
        self._parts: list[NDArray[Any]] = []
        self._file = None if path is None else path.open("wb")

    def append(self, values: Any) -> None:
        values = np.ascontiguousarray(values, dtype=self.dtype).reshape(-1)
        self.size += values.size
        if self._file is None:
            self._parts.append(values)
        else:
            self._file.write(values.data)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the array in parts of `BLOCK` elements, without mapping its file."""
        if self._file is None:
            whole = self.array()
            yield from (whole[at : at + BLOCK] for at in range(0, self.size, BLOCK))
            return
        self._file.flush()
        assert self.path is not None
        with self.path.open("rb") as file:
            yield from (np.fromfile(file, self.dtype, BLOCK) for _ in range(0, self.size, BLOCK))

    def array(self) -> NDArray[Any]:
        if self._file is not None:
            self._file.flush()
            assert self.path is not None
            return _mapped(self.path, self.dtype, self.size)
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, self.dtype), *self._parts])]
        return self._parts[0]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Arrays:
    """Arrays by name that grow at their ends: files of a folder, or in memory without one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._series: dict[str, Series] = {}
        self._temporary: list[Series] = []

    def __enter__(self) -> Arrays:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in (*self._series.values(), *self._temporary):
            each.close()

    def series(self, name: str, dtype: DTypeLike) -> Series:
        """An empty array that is kept under this name."""
        self._series[name] = Series(dtype, None if self.folder is None else self.folder / f"{name}.bin")
        return self._series[name]

    def temporary(self, dtype: DTypeLike) -> Series:
        """An empty array that is not kept."""
        path = None if self.folder is None else self.folder / f"temporary-{len(self._temporary)}.bin"
        self._temporary.append(Series(dtype, path))
        return self._temporary[-1]

    def tensors(self) -> dict[str, Tensor]:
        """The arrays that are kept, each flat."""
        return {name: torch.from_numpy(series.array()) for name, series in self._series.items()}

    def finish(self, notes: Any) -> None:
        """Write which arrays the folder holds, with notes for whoever reads them, and delete temporary files."""
        assert self.folder is not None
        for each in self._temporary:
            each.close()
            assert each.path is not None
            each.path.unlink()
        sizes = {name: [series.dtype.str, series.size] for name, series in self._series.items()}
        store.write_json(self.folder / CONTENT, {"arrays": sizes, "notes": notes})


def cached(key: str, build: Callable[[Arrays], Any], use: Callable[[dict[str, Tensor], Any], Result]) -> Result | None:
    """Return what `use` makes of the mapped arrays cached under `key` and of their notes; without any, build them.

    A damaged entry is no error, nor is one whose content `use` cannot use: it is built again.

    Arguments:
        key: the name of a folder in the cache, with a hash of everything that the arrays depend on.
        build: appends to arrays and returns notes, which JSON can hold. If it returns None, nothing is cached and None
            is returned.
        use: called with the arrays by name, each flat, and the notes.
    """
    root = cache_root() / "mapped"
    with suppress(Exception):  # what is wrong with an entry can raise anything
        return _open(root / key, use)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _delete_old(root)
        new = Path(tempfile.mkdtemp(prefix=NEW, dir=root))
    except OSError as error:
        raise _unwritable(root, error) from error
    try:
        with Arrays(new) as arrays:
            notes = build(arrays)
            if notes is None:
                return None
            arrays.finish(notes)
        with suppress(OSError):  # another process was faster: its arrays are the same
            shutil.rmtree(root / key, ignore_errors=True)  # a damaged entry
            new.rename(root / key)
        with store.expected_content(root / key, "delete the folder, and start again"):
            return _open(root / key, use)
    except OSError as error:
        raise _unwritable(root, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _open(entry: Path, use: Callable[[dict[str, Tensor], Any], Result]) -> Result:
    """Return what `use` makes of an entry of the cache; if it is absent or damaged, raise some error."""
    content = store.read_json(entry / CONTENT, within=entry)
    arrays = {
        name: _mapped(entry / f"{name}.bin", np.dtype(dtype), size) for name, (dtype, size) in content["arrays"].items()
    }
    os.utime(entry)
    return use({name: torch.from_numpy(array) for name, array in arrays.items()}, content["notes"])


def _mapped(path: Path, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
    if path.stat().st_size != size * dtype.itemsize:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, not those of {size} elements")
    if not size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="c"))


def _delete_old(root: Path) -> None:
    for entry in root.iterdir():
        days = 1 if entry.name.startswith(NEW) else DAYS  # a process was killed while it wrote this
        with suppress(OSError):
            if entry.stat().st_mtime < time.time() - days * 24 * 3600:
                shutil.rmtree(entry)


def _unwritable(root: Path, error: OSError) -> IsthmusError:
    reason = error.strerror or str(error)
    return IsthmusError(f"cannot write to {root}: {reason}; make room, or set ISTHMUS_CACHE to another folder")


def ranges(counts: Ints, limit: int) -> list[tuple[int, int]]:
    """Ranges of positions whose counts add up to at most `limit`; a position with a larger count is its own range.

    >>> ranges(np.array([2, 1, 0, 5, 1]), limit=3)
    [(0, 3), (3, 4), (4, 5)]
    """
    ends, found, start = counts.cumsum(), [], 0
    while start < counts.size:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        found.append((start, stop))
        start = stop
    return found


def repeats(pairs: Callable[[], Iterator[tuple[Ints, Ints]]], counts: Ints) -> Ints:
    """Positions of the pairs that are equal to an earlier one, ascending.

    Memory holds at most `SORTED` pairs at a time, or all with one first half if these are more.

    Arguments:
        pairs: returns both halves of the pairs in blocks; they are read once for each part that is sorted.
        counts: how many pairs have each first half.
    """
    found = [np.empty(0, np.int64)]
    for start, stop in ranges(counts, SORTED):
        keys, positions, before = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for first, second in pairs():
            chosen = np.flatnonzero((first >= start) & (first < stop))
            keys.append((first[chosen] - start) * counts.size + second[chosen])
            positions.append(chosen + before)
            before += first.size
        key = np.concatenate(keys)
        in_order = np.sort(key)
        if (in_order[1:] == in_order[:-1]).any():
            order = np.argsort(key, kind="stable")
            at = order[1:][key[order[1:]] == key[order[:-1]]]
            found.append(np.concatenate(positions)[at])
    return np.sort(np.concatenate(found))
