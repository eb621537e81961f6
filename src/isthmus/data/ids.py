"""Hashed ids, equal at every party that has the key and meaningless to everybody else."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isthmus import store
from isthmus.errors import IsthmusError

KEY_BYTES = 32
"""Length of a new key."""

_POSITIVE = (1 << 63) - 1


def hash_ids(values: Iterable[object], key: bytes | None) -> Tensor:
    """63 bits of HMAC-SHA256 of each value's text, `[values]`; equal values give equal numbers at all parties.

    The parties share the key and the server does not have it, so the server cannot find a value by hashing all possible
    ones. Without a key the hash is SHA-256, which is enough if everything stays in one process.

    Two of a billion values get the same number with a probability of about 1 in 20; two of a million, 1 in 20 million.

    >>> hash_ids(["a", "b"], b"secret").equal(hash_ids(["a", "b"], b"secret"))
    True
    >>> hash_ids([17], b"secret").equal(hash_ids(["17"], b"secret"))
    True
    """
    texts = (str(value).encode() for value in values)
    if key is None:
        digests = [hashlib.sha256(text).digest()[:8] for text in texts]
    else:
        digests = [hmac.digest(key, text, "sha256")[:8] for text in texts]
    numbers = np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64) & np.uint64(_POSITIVE)
    return torch.from_numpy(numbers.astype(np.int64))


def uniform(ids: Tensor, seed: int, purpose: str) -> Tensor:
    """A random number in [0, 1) for each id, `[ids]`; the same id gives the same number at every party.

    >>> first, again = uniform(torch.tensor([5, 7]), 0, "split"), uniform(torch.tensor([7, 5]), 0, "split")
    >>> torch.equal(first, again.flip(0))
    True
    """
    mixed = ids.numpy().astype(np.uint64)
    salt = int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big")
    with np.errstate(over="ignore"):  # SplitMix64 (Steele et al. 2014) relies on overflow
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).double() / (1 << 53)


def read_key(path: Path | str) -> bytes:
    """The key in a file; a key that is short enough to guess is an error."""
    try:
        text = store.read(Path(path)).strip()
    except (OSError, ValueError) as error:  # a null character in a path raises ValueError
        reason = getattr(error, "strerror", None) or error
        raise IsthmusError(f"cannot read the key {path} ({reason}): give a key file") from error
    if len(text) < KEY_BYTES:
        raise IsthmusError(f"the key {path} has {len(text)} bytes, too few: create a key with isthmus party key")
    return text


def write_key(path: Path) -> None:
    """Create a new key in a file that only its owner may read."""
    if path.exists():
        raise IsthmusError(f"{path} exists: choose another file (a key that is overwritten is lost)")
    store.write(path, secrets.token_hex(KEY_BYTES) + "\n", private=True)
