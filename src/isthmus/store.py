"""Files that are written completely or not at all, and values saved in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import IsthmusError
from isthmus.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
"""Format number of saved values (checkpoints, finished runs). Raise it when older files can no longer be read."""
_SINGLE = frozenset((bool, int, float, str, type(None)))
"""Types that are saved as they are. Lists of them may be long, so their values are not visited one by one."""


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


@contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file for the duration of the `with` block; if another process has locked it, raise an error.

    Arguments:
        what: the name in the message of what the lock protects.
    """
    import fcntl  # only on POSIX, as the callers

    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """Return the value that `pack` encoded; tuples come back as lists."""
    import safetensors.torch

    tensors = safetensors.torch.load(data)
    tree = json.loads(bytes(tensors.pop("tree").numpy()).decode())

    def from_json(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"$tensor"}:
                return tensors[value["$tensor"]]
            return {key.removeprefix("$"): from_json(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [inner if type(inner) in _SINGLE else from_json(inner) for inner in value]
        return value

    return from_json(tree)


def _escaped(key: Any) -> str:
    """Return a key that cannot be taken for "$tensor"."""
    if not isinstance(key, str):
        raise IsthmusError(f"cannot save under the key {key!r}: use a text as key")
    return f"${key}" if key.startswith("$") else key


def save(path: Path, value: Any, *, private: bool = False) -> None:
    """Write a value to a file that `load` reads back, with its format number and the version that wrote it."""
    write(path, pack({"format": FORMAT, "isthmus": VERSION, "value": value}), private=private)


def load(path: Path) -> Any:
    """Read a value that `save` wrote; another format number, or none, is an error."""
    import safetensors

    try:
        content = unpack(path.read_bytes())
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise IsthmusError(
            f"cannot read {path}: {type(error).__name__}; delete the file to start that run again"
        ) from error
    check_format(path, content, FORMAT)
    return content["value"]


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
