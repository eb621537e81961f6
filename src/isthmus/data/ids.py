"""Ids that mean the same at every party and nothing to anybody else."""

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

LENGTH = 32
"""Bytes of a key that is made here."""

_POSITIVE = (1 << 63) - 1


def hash_ids(values: Iterable[object], key: bytes | None) -> Tensor:
    """63 bits of HMAC-SHA256 of each value's text, `[values]`; equal values give equal numbers at all parties.

    Parties share the key and the server lacks it, so a number tells the server nothing, not even to somebody who tries
    all account numbers there are. Without a key the hash is a plain one: enough where everything stays in one process.

    Of a billion values two share a number with a chance of about one in twenty; of a million, one in twenty million.

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
    """A number in [0, 1) for each id, `[ids]`: the same for the same id at every party, whoever else it holds.

    >>> first, again = uniform(torch.tensor([5, 7]), 0, "split"), uniform(torch.tensor([7, 5]), 0, "split")
    >>> torch.equal(first, again.flip(0))
    True
    """
    mixed = ids.numpy().astype(np.uint64)
    salt = int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big")
    with np.errstate(over="ignore"):  # SplitMix64 (Steele et al. 2014): wrapping round is what mixes
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).double() / (1 << 53)


def read_key(path: Path | str) -> bytes:
    """The key in a file; what is short enough to be guessed is refused."""
    try:
        text = Path(path).read_bytes().strip()
    except (OSError, ValueError) as error:  # a path with a zero in it is a wrong value
        reason = getattr(error, "strerror", None) or error
        raise IsthmusError(f"cannot read the key {path}: {reason}; give the file of a key") from error
    if len(text) < LENGTH:
        raise IsthmusError(f"the key {path} has {len(text)} bytes: make one of {LENGTH} or more with isthmus party key")
    return text


def write_key(path: Path) -> None:
    """A new key that nobody but the owner of the file may read."""
    if path.exists():
        raise IsthmusError(f"{path} exists: choose another file; a key that is lost cannot be made again")
    store.write(path, secrets.token_hex(LENGTH) + "\n", private=True)
