"""A cache of slow results, in files named by a hash of everything that a result depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus import store
from isthmus.data import rows
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool
from isthmus.errors import IsthmusError
from isthmus.version import VERSION

MAX_FILES = 512
"""Files in one folder; beyond that the oldest are deleted."""


def cache_root() -> Path:
    """The folder of the cache: `ISTHMUS_CACHE` from the environment, or `~/.cache/isthmus`."""
    named = os.environ.get("ISTHMUS_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "isthmus"


def digest(*parts: Any) -> str:
    """A hash of tensors, bytes, texts, numbers, lists and mappings.

    >>> digest("cora", torch.ones(2)) == digest("cora", torch.ones(2)) != digest("cora", torch.ones(3))
    True
    """
    hasher = hashlib.sha256(VERSION.encode())
    _update(hasher, parts)
    return hasher.hexdigest()


def hash_pool(pool: Pool) -> str:
    """A hash of the content of a pool, without its name."""
    return digest(*_content(pool.party), pool.holders, pool.smiles, pool.classes)


def hash_parties(parties: Sequence[Party]) -> str:
    """A hash of the content and the names of parties."""
    return digest([(party.name, *_content(party)) for party in parties])


def _content(party: Party) -> tuple[Any, ...]:
    graph = {key: value for key, value in party.graph.to_dict().items() if isinstance(value, Tensor) and key != "ptr"}
    return party.level, graph, [getattr(party, split) for split in SPLITS], party.ids


def cached(folder: Path, key: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors cached under `key`; if there are none, those that `compute` returns, which are then cached.

    A file contains a hash of its content. A damaged file, or a folder that cannot be written, is no error: the tensors
    are computed again.
    """
    path = folder / f"{key}.kept"
    cached_tensors = _read(path)
    if cached_tensors is not None:
        return cached_tensors
    tensors = compute()
    with suppress(IsthmusError, OSError):
        store.save(path, {"tensors": tensors, "check": digest(tensors)})
        for old in sorted(folder.glob("*.kept"), key=lambda each: each.stat().st_mtime)[:-MAX_FILES]:
            old.unlink(missing_ok=True)
    return tensors


def _read(path: Path) -> dict[str, Tensor] | None:
    with suppress(Exception):  # libraries raise anything for a damaged file
        stored = store.load(path)
        if digest(stored["tensors"]) == stored["check"]:
            return dict(stored["tensors"])
    return None


def _update(hasher: Any, part: Any) -> None:
    """Add a part to a hash, after its type and length, so that different groupings give different hashes."""
    if isinstance(part, Tensor) and rows.is_sparse(part):
        hasher.update(b"sparse;")
        _update(hasher, (list(part.shape), part.crow_indices(), part.col_indices(), part.values()))
    elif isinstance(part, Tensor):
        hasher.update(f"tensor {part.dtype} {list(part.shape)};".encode())
        hasher.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if part.numel() else b"")
    elif isinstance(part, bytes):
        hasher.update(f"bytes {len(part)};".encode())
        hasher.update(part)
    elif isinstance(part, Mapping):
        hasher.update(f"group {len(part)};".encode())
        for key in sorted(part):
            _update(hasher, key)
            _update(hasher, part[key])
    elif isinstance(part, list | tuple):
        hasher.update(f"list {len(part)};".encode())
        for each in part:
            _update(hasher, each)
    else:
        text = json.dumps(part)
        hasher.update(f"{len(text)};{text}".encode())
