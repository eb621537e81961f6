"""Ids as numbers that are equal at every party and say nothing to others: a hash, a keyed hash, or pseudonyms."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isthmus import store
from isthmus.errors import IsthmusError

KEY_BYTES = 32
"""Length of a new key."""

_POSITIVE = (1 << 63) - 1


class Hashing(ABC):
    """How ids, and values of categories, become numbers that all parties use for them."""

    of_integers: bool = True
    """Whether whole numbers are hashed, too; otherwise ids that are whole numbers stay as they are."""

    @abstractmethod
    def numbers(self, values: Iterable[object]) -> Tensor:
        """Return 63 bits for each value's text, `[values]`; equal values give equal numbers at all parties."""

    @property
    @abstractmethod
    def mark(self) -> bytes:
        """What tells the numbers in a party folder's contents from those that another way gives."""


@dataclass(frozen=True)
class PlainHash(Hashing):
    """SHA-256, which is enough if everything stays in one process.

    Two of a billion values get the same number with a probability of about 1 in 20; two of a million, 1 in 20 million.

    >>> PlainHash().numbers([17]).equal(PlainHash().numbers(["17"]))
    True
    """

    of_integers: bool = False

    def numbers(self, values: Iterable[object]) -> Tensor:
        return _numbers(hashlib.sha256(str(value).encode()).digest()[:8] for value in values)

    @property
    def mark(self) -> bytes:
        return b"integers" if self.of_integers else b""


@dataclass(frozen=True)
class KeyedHash(Hashing):
    """HMAC-SHA256 with a key that the parties share; the server, which lacks it, cannot find a value by hashing all
    possible ones.

    >>> KeyedHash(b"secret").numbers(["a"]).equal(KeyedHash(b"other").numbers(["a"]))
    False
    """

    key: bytes = field(repr=False)

    def numbers(self, values: Iterable[object]) -> Tensor:
        return _numbers(hmac.digest(self.key, str(value).encode(), "sha256")[:8] for value in values)

    @property
    def mark(self) -> bytes:
        return self.key


@dataclass(frozen=True, eq=False, repr=False)
class Pseudonyms(Hashing):
    """Numbers that the parties of one study made together (`isthmus.protect.matching`), of the values that they had.

    Arguments:
        known: plain hashes of the values, ascending, `[values]`.
        pseudonyms: by value its number in this study, `[values]`.
    """

    known: Tensor
    pseudonyms: Tensor

    def numbers(self, values: Iterable[object]) -> Tensor:
        """As in the other ways; -1 for a value that had no part in the matching."""
        return self.of(PlainHash().numbers(values))

    def of(self, hashes: Tensor) -> Tensor:
        """Return the pseudonym of each plain hash, -1 where there is none."""
        if not self.known.numel():
            return torch.full_like(hashes, -1)
        at = torch.searchsorted(self.known, hashes).clamp(max=self.known.numel() - 1)
        return torch.where(self.known[at] == hashes, self.pseudonyms[at], -1)

    def only(self, hashes: Tensor) -> Pseudonyms:
        """Return those of some plain hashes."""
        chosen = torch.isin(self.known, hashes)
        return Pseudonyms(self.known[chosen], self.pseudonyms[chosen])

    @property
    def mark(self) -> bytes:
        return PlainHash(of_integers=True).mark  # files are read with it, and numbers replaced afterwards


PLAIN = PlainHash()


def read_hashing(path: Path | str | None) -> Hashing:
    """Return the keyed hash with the key in a file; without a file, the plain hash."""
    return PLAIN if path is None else KeyedHash(read_key(path))


def _numbers(digests: Iterable[bytes]) -> Tensor:
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
    if len(text.splitlines()) > 1:
        raise IsthmusError(f"{path} is not a key, which is one line: give the file that isthmus party key created")
    return text


def write_key(path: Path) -> None:
    """Create a new key in a file that only its owner may read."""
    if path.exists():
        raise IsthmusError(f"{path} exists: choose another file (a key that is overwritten is lost)")
    store.write(path, secrets.token_hex(KEY_BYTES) + "\n", private=True)
