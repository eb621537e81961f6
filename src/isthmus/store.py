"""Files that are whole or not there: written aside, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from isthmus import __version__
from isthmus.errors import IsthmusError

FORMAT = 1
"""Format number of saved values (checkpoints, finished runs). Raise it when older files can no longer be read."""


def write(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Write a file that is either whole or as it was; a full disk is an error of one line.

    Arguments:
        private: only the user who writes it may read it.
    """
    data = data.encode() if isinstance(data, str) else data

    def fill(aside: Path) -> None:
        with open(aside, "wb", opener=partial(os.open, mode=0o600 if private else 0o666)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    write_with(path, fill)


def write_with(path: Path, fill: Callable[[Path], object]) -> None:
    """As `write`, for libraries that write files themselves: `fill` gets the path of the file aside."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")  # two writers must not share it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(aside)
        aside.replace(path)
    except OSError as error:
        _drop(aside)
        raise IsthmusError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
        ) from error
    except BaseException:
        _drop(aside)
        raise


@contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Hold a file as long as the `with` lasts; an error where another process does.

    Arguments:
        what: is in use then, for the message.
    """
    import fcntl  # of POSIX, as what wants it

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise IsthmusError(f"{what} is in use: another process works with it, stop that first") from error
    except OSError as error:
        if error.filename not in (None, str(path)):
            raise  # of what is done meanwhile
        raise IsthmusError(f"cannot hold {path}: {error.strerror or error}; make it a place to write to") from error


def _drop(aside: Path) -> None:
    with suppress(OSError):  # where the folder itself cannot be, there is nothing to take away
        aside.unlink(missing_ok=True)


def pack(value: Any) -> bytes:
    """Nested mappings, lists, texts, numbers and tensors as one safetensors blob; a tensor in several places once.

    >>> unpack(pack({"a": [1, 2.5, None], "b": {"w": torch.ones(1)}}))
    {'a': [1, 2.5, None], 'b': {'w': tensor([1.])}}
    """
    tensors: dict[str, Tensor] = {}
    seen: dict[int, tuple[str, Tensor]] = {}  # the tensor too: while it is held nothing else has its number

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in seen:
                seen[id(value)] = f"t{len(tensors)}", value
                tensors[f"t{len(tensors)}"] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            return {"$tensor": seen[id(value)][0]}
        if isinstance(value, Mapping):
            return {_marked(key): plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise IsthmusError(f"a {type(value).__name__} cannot be saved: keep tensors, numbers, texts and groups of them")

    tree = json.dumps(plain(value)).encode()
    return safetensors.torch.save({**tensors, "tree": torch.frombuffer(bytearray(tree), dtype=torch.uint8)})


def unpack(data: bytes) -> Any:
    """The way back from `pack`."""
    tensors = safetensors.torch.load(data)
    tree = json.loads(bytes(tensors.pop("tree").numpy()).decode())

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"$tensor"}:
                return tensors[value["$tensor"]]
            return {key.removeprefix("$"): whole(inner) for key, inner in value.items()}
        return [whole(inner) for inner in value] if isinstance(value, list) else value

    return whole(tree)


def _marked(key: Any) -> str:
    """A key that stands apart from the one for tensors."""
    if not isinstance(key, str):
        raise IsthmusError(f"{key!r} is no text: what is saved is kept under texts, so that it comes back as it was")
    return f"${key}" if key.startswith("$") else key


def save(path: Path, value: Any, *, private: bool = False) -> None:
    """Write a value to a file that `load` reads back, with its format number and the version that wrote it."""
    write(path, pack({"format": FORMAT, "isthmus": __version__, "value": value}), private=private)


def load(path: Path) -> Any:
    """Read a value that `save` wrote; another format number, or none, is an error."""
    try:
        content = unpack(path.read_bytes())
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise IsthmusError(
            f"cannot read {path}: {type(error).__name__}; delete the file to start that run again"
        ) from error
    check_format(path, content, FORMAT)
    return content["value"]


def check_format(path: Path, content: Any, expected: int) -> None:
    """Raise an error that says what to do unless `content`, read from `path`, has the expected format number."""
    header = content if isinstance(content, Mapping) else {}
    found = header.get("format")
    if found == expected:
        return
    number = "no format number" if found is None else f"format {found}"
    writer = f" (isthmus {header['isthmus']})" if "isthmus" in header else ""
    raise IsthmusError(
        f"cannot read {path}: it has {number}, and isthmus {__version__} reads format {expected}; "
        f"run the study again with --force, or install the version that wrote it{writer}"
    )
