"""Streams of random bits for noise that protects: secret ones in a federation, repeatable ones in a study."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import missing_extra

Words: TypeAlias = NDArray[np.uint64]

KEY = 32
"""Bytes of a key."""


class Bits(ABC):
    """A stream of random bits."""

    @abstractmethod
    def words(self, count: int) -> Words:
        """The next so many words of 64 bits."""


class SeededBits(Bits):
    """The stream of a seed, which anyone who knows the seed can repeat: PCG64.

    >>> SeededBits(0).words(2).tolist() == SeededBits(0).words(2).tolist()
    True
    """

    def __init__(self, *seed: object) -> None:
        self._source = np.random.PCG64(int.from_bytes(_digest(b"", seed)))

    def words(self, count: int) -> Words:
        return np.asarray(self._source.random_raw(count), np.uint64)


class SecretBits(Bits):
    """The stream of a key, which nobody without it can tell from random bits: AES-256 in counter mode.

    Arguments:
        key: 32 bytes, used for one stream only.
    """

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher
            from cryptography.hazmat.primitives.ciphers.algorithms import AES
            from cryptography.hazmat.primitives.ciphers.modes import CTR
        except ImportError as error:
            raise missing_extra("cryptography", "federation", "noise of a party's own") from error
        if len(key) != KEY:
            raise ValueError(f"a key has {KEY} bytes, not {len(key)}")
        self._cipher = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), np.uint64)


class NoiseKey:
    """What a site draws noise from: a party's secret key, or the seed of a study.

    Streams for different purposes are independent. Noise must never serve twice: two releases with one noise disclose
    their difference. So a purpose names all that the released value follows from, or a digest of the value itself.

    >>> NoiseKey(0).bits("north", 1).words(1) == NoiseKey(0).bits("north", 2).words(1)
    array([False])
    """

    def __init__(self, secret: bytes | int) -> None:
        self._secret = secret

    @property
    def repeatable(self) -> bool:
        """Whether it is a study's seed, which others know."""
        return isinstance(self._secret, int)

    def bits(self, *purpose: object) -> Bits:
        """The stream for a purpose."""
        if isinstance(self._secret, int):
            return SeededBits(self._secret, *purpose)
        return SecretBits(_digest(self._secret, purpose))


def derive_key(secret: bytes, *purpose: object) -> bytes:
    """A key for a purpose, from which neither the secret nor the keys for others follow."""
    return _digest(secret, purpose)


def _digest(key: bytes, parts: tuple[object, ...]) -> bytes:
    """256 bits from a key and the texts of some objects; no other objects have the same texts."""
    found = hashlib.blake2b(key=key, digest_size=KEY, person=b"isthmus noise")
    for part in parts:
        text = str(part).encode()
        found.update(len(text).to_bytes(8) + text)
    return found.digest()
