"""What takes long to find out is kept in files that are named by a hash of all that it was made from."""

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

KEPT = 512
"""Files in one folder; the oldest go when there are more."""


def cache_root() -> Path:
    """The folder of what can be made anew: `ISTHMUS_CACHE` from the environment, or `~/.cache/isthmus`."""
    named = os.environ.get("ISTHMUS_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "isthmus"


def digest(*parts: Any) -> str:
    """A hash of tensors, bytes, texts, numbers and groups of them.

    >>> digest("cora", torch.ones(2)) == digest("cora", torch.ones(2)) != digest("cora", torch.ones(3))
    True
    """
    found = hashlib.sha256(VERSION.encode())
    _feed(found, parts)
    return found.hexdigest()


def hash_pool(pool: Pool) -> str:
    """A hash of what a pool holds; what it is called plays no part."""
    return digest(*_held(pool.party), pool.holders, pool.smiles, pool.classes)


def hash_parties(parties: Sequence[Party]) -> str:
    """A hash of what parties hold, and of what they are called."""
    return digest([(party.name, *_held(party)) for party in parties])


def _held(party: Party) -> tuple[Any, ...]:
    graph = {key: value for key, value in party.graph.to_dict().items() if isinstance(value, Tensor) and key != "ptr"}
    return party.level, graph, [getattr(party, split) for split in SPLITS], party.ids


def cached(folder: Path, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors kept under `key`, or those that `make` gives, kept from then on.

    A file carries a hash of its own content. A folder that cannot be written, or a file that cannot be read or is not
    what was written, is no error: what is asked for is made anew.
    """
    path = folder / f"{key}.kept"
    found = _found(path)
    if found is not None:
        return found
    made = make()
    with suppress(IsthmusError, OSError):
        store.save(path, {"made": made, "check": digest(made)})
        for old in sorted(folder.glob("*.kept"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    return made


def _found(path: Path) -> dict[str, Tensor] | None:
    with suppress(Exception):  # what a damaged file raises is up to the libraries below
        kept = store.load(path)
        if digest(kept["made"]) == kept["check"]:
            return dict(kept["made"])
    return None


def _feed(found: Any, part: Any) -> None:
    """Add a part to a hash. Every part says first what it is and how long, so that no two groupings look alike."""
    if isinstance(part, Tensor) and rows.is_sparse(part):
        found.update(b"sparse;")
        _feed(found, (list(part.shape), part.crow_indices(), part.col_indices(), part.values()))
    elif isinstance(part, Tensor):
        found.update(f"tensor {part.dtype} {list(part.shape)};".encode())
        found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if part.numel() else b"")
    elif isinstance(part, bytes):
        found.update(f"bytes {len(part)};".encode())
        found.update(part)
    elif isinstance(part, Mapping):
        found.update(f"group {len(part)};".encode())
        for key in sorted(part):
            _feed(found, key)
            _feed(found, part[key])
    elif isinstance(part, list | tuple):
        found.update(f"list {len(part)};".encode())
        for each in part:
            _feed(found, each)
    else:
        text = json.dumps(part)
        found.update(f"{len(text)};{text}".encode())
