"""Files that are written completely or not at all, with checksums, and read within bounds."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from isthmus.errors import IsthmusError
from isthmus.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
"""Format number of saved values (checkpoints, finished runs). Raise it when older files can no longer be read."""
SUMS = "SHA256SUMS"
"""The file with the checksums of the other files in its folder; `sha256sum --check SHA256SUMS` reads it too."""
TEXT = 1 << 26
"""Bytes of the largest text file that is read."""
_DIGEST = "sha256"
_TRAILER = len(f"{_DIGEST}:") + 64
"""Bytes that `save` appends: the checksum of those before."""
_SINGLE = frozenset((bool, int, float, str, type(None)))
"""Types that are saved as they are. Lists of them may be long, so their values are not visited one by one."""


class UnusableFile(OSError):  # noqa: N818 - names the file, not an event
    """A file that is not read, whatever it holds; `strerror` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EINVAL, reason, str(path))


class TooLarge(UnusableFile):
    """A file that would need more memory than is free."""


def check_file(path: Path, *, limit: int | None = None, within: Path | None = None) -> None:
    """Raise an `OSError` unless a file is a regular one, so that reading it cannot hang or go on for ever.

    Arguments:
        limit: the most bytes that it may have.
        within: the folder that it must be in; a link to a file elsewhere is refused.
    """
    _check(path, path.stat(), limit)
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise UnusableFile(path, "a link that leaves its folder (copy the file into the folder)")


def _check(path: Path, found: os.stat_result, limit: int | None) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise UnusableFile(path, "not a regular file but a pipe, socket or device (replace it with a file)")
    if limit is not None and found.st_size > limit:
        raise UnusableFile(path, f"{found.st_size:,} bytes, more than the {limit:,} that such a file may have")


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


def read(path: Path, *, limit: int | None = TEXT, within: Path | None = None) -> bytes:
    """Read a file that `check_file` accepts; the arguments are the same."""
    check_file(path, limit=limit, within=within)
    # another process may put a pipe in its place meanwhile; opening one would wait for a writer (not on Windows)
    more = getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
        _check(path, os.fstat(file.fileno()), limit)
        return file.read()


def read_text(path: Path, *, within: Path | None = None) -> str:
    """Read a text file that `check_file` accepts."""
    return read(path, within=within).decode()


def parse_json(data: bytes | str) -> Any:
    """Parse JSON; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def write_json(path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Write an object as JSON, with a checksum of its content that `read_json` verifies.

    Arguments:
        private: as for `write`.
    """
    write(path, json.dumps({**content, _DIGEST: _digest_of(content)}, indent=1) + "\n", private=private)


def read_json(path: Path, *, within: Path | None = None) -> Any:
    """Read JSON. A wrong checksum is a ValueError, as is anything else that is wrong with the text."""
    content = parse_json(read(path, within=within))
    if isinstance(content, dict) and content.pop(_DIGEST, None) not in (None, _digest_of(content)):
        raise ValueError("it is damaged: its checksum is wrong")
    return content


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of files in a folder. They are verified by `check_sum`."""
    write(folder / SUMS, "".join(f"{hash_file(folder / name)}  {name}\n" for name in sorted(names)))


def check_sum(folder: Path, name: str, known: Mapping[str, str] | None = None) -> None:
    """Raise a ValueError if a file is not the one whose checksum was written; a folder without checksums passes.

    Arguments:
        known: the checksums by name, where they are not in a file of the folder.
    """
    if known is None and (sums := folder / SUMS).exists():
        lines = [line.partition("  ") for line in read_text(sums, within=folder).splitlines()]
        known = {written: digest for digest, _, written in lines} or {"": ""}
    if known and known.get(name) != hash_file(folder / name):
        raise ValueError("it is damaged, or was changed after its checksum was written: its checksum is wrong")


def hash_file(path: Path) -> str:
    """The SHA-256 of a regular file."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Write a file completely, or leave the old one as it was; a full disk is a one-line error.

    Arguments:
        private: only the user who writes the file may read it.
    """
    data = data.encode() if isinstance(data, str) else data

    def write_to(temporary: Path) -> None:
        with open(temporary, "wb", opener=partial(os.open, mode=0o600 if private else 0o666)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    write_with(path, write_to)


def write_with(path: Path, write_to: Callable[[Path], object]) -> None:
    """Do what `write` does for a library that writes files itself: `write_to` gets the path of a temporary file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")  # one for each process that writes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_to(temporary)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the folder may not exist
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise IsthmusError(
                f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
            ) from error
        raise


def hold(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file or folder until it is closed. Windows has no such locks: nothing is locked there.

    Arguments:
        wait: whether to wait for another process that has locked it; otherwise `BlockingIOError` is raised.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file for the duration of the `with` block; if another process has locked it, raise an error.

    Arguments:
        what: the name in the message of what the lock protects.
    """
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            hold(stack.enter_context(path.open("w")).fileno(), wait=False)
        except BlockingIOError as error:
            raise IsthmusError(f"{what} is in use by another process: stop that process first") from error
        except OSError as error:
            raise IsthmusError(f"cannot lock {path}: {error.strerror or error}; make its folder writable") from error
        yield


def pack(value: Any) -> bytes:
    """Return nested mappings, lists, texts, numbers and tensors as one safetensors blob.

    A tensor that occurs in several places is stored once.

    >>> import torch
    >>> unpack(pack({"a": [1, 2.5, None], "b": {"w": torch.ones(1)}}))
    {'a': [1, 2.5, None], 'b': {'w': tensor([1.])}}
    """
    import safetensors.torch
    import torch
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    stored: dict[int, tuple[str, Tensor]] = {}  # holds the tensor too, so that no other object gets its id

    def to_json(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in stored:
                stored[id(value)] = f"t{len(tensors)}", value
                tensors[f"t{len(tensors)}"] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            return {"$tensor": stored[id(value)][0]}
        if isinstance(value, Mapping):
            return {_escaped(key): to_json(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [inner if type(inner) in _SINGLE else to_json(inner) for inner in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise IsthmusError(
            f"cannot save a {type(value).__name__}: use tensors, numbers, texts, and lists or mappings of them"
        )

    tree = json.dumps(to_json(value)).encode()
    return safetensors.torch.save({**tensors, "tree": torch.frombuffer(bytearray(tree), dtype=torch.uint8)})


def unpack(data: bytes) -> Any:
    """Return the value that `pack` encoded; tuples come back as lists. Damaged data are a ValueError."""
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(data)
        tree = parse_json(bytes(tensors.pop("tree").numpy()))
    except (safetensors.SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"not a saved value ({type(error).__name__})") from error

    def from_json(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"$tensor"}:
                return tensors[value["$tensor"]]
            return {key.removeprefix("$"): from_json(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [inner if type(inner) in _SINGLE else from_json(inner) for inner in value]
        return value

    try:
        return from_json(tree)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a saved value ({type(error).__name__})") from error


def _escaped(key: Any) -> str:
    """Return a key that cannot be taken for "$tensor"."""
    if not isinstance(key, str):
        raise IsthmusError(f"cannot save under the key {key!r}: use a text as key")
    return f"${key}" if key.startswith("$") else key


def save(path: Path, value: Any, *, private: bool = False) -> None:
    """Write a value to a file that `load` reads back, with format number, version and checksum."""
    data = pack({"format": FORMAT, "isthmus": VERSION, "value": value})
    write(path, data + f"{_DIGEST}:{hashlib.sha256(data).hexdigest()}".encode(), private=private)


def load(path: Path) -> Any:
    """Read a value that `save` wrote; a wrong checksum, another format number, or none, is an error.

    Files of versions that wrote no checksum are read without one: a damaged checksum cannot look like none, because
    bytes after the value are an error too.
    """
    try:
        check_memory(path, 2 * path.stat().st_size)
        data = read(path, limit=None)
        if data[-_TRAILER:].startswith(f"{_DIGEST}:".encode()):
            data, digest = data[:-_TRAILER], data[-64:].decode("ascii")
            if hashlib.sha256(data).hexdigest() != digest:
                raise ValueError("its checksum is wrong")
        content = unpack(data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise IsthmusError(f"cannot read {path}: {reason}; delete the file to start that run again") from error
    check_format(path, content, FORMAT)
    if "value" not in content:
        raise IsthmusError(f"cannot read {path}: it holds no value; delete the file to start that run again")
    return content["value"]


@contextmanager
def expected_content(path: Path | str, remedy: str = "delete the file to start that run again") -> Iterator[None]:
    """Turn any error of a `with` block that uses the content of a file into one line.

    Arguments:
        path: the file, or what else the content is from.
        remedy: what to do.
    """
    try:
        yield
    except IsthmusError:
        raise
    except Exception as error:  # what is wrong with the content can raise anything
        what = type(error).__name__
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            what = f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
        raise IsthmusError(
            f"cannot use {path}: its content is not what isthmus writes ({' '.join(what.split())[:200]}); {remedy}"
        ) from error


def check_format(path: Path, content: Any, expected: int, remedy: str = "run the study again with --force") -> None:
    """Raise an error unless `content`, read from `path`, has the expected format number; `remedy` says what to do."""
    header = content if isinstance(content, Mapping) else {}
    found = header.get("format")
    if found == expected:
        return
    number = "no format number" if found is None else f"format {found}"
    writer = f" (isthmus {header['isthmus']})" if "isthmus" in header else ""
    raise IsthmusError(
        f"cannot read {path}: it has {number}, and isthmus {VERSION} reads format {expected}; "
        f"{remedy}, or install the version that wrote it{writer}"
    )
