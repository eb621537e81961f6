"""Secrets in shares: any `least` of them give the secret back, fewer tell nothing about it (Shamir 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297
"""The smallest prime above every secret of 32 bytes."""
SHARE = 33
"""Bytes of a share."""
SECRET = 32
"""Bytes of a secret."""


def split(secret: bytes, least: int, places: Sequence[int]) -> dict[int, bytes]:
    """Shares of a secret of 32 bytes, one for each place: values of a polynomial of degree least - 1 drawn at random.

    >>> shares = split(b"k" * 32, 2, [1, 2, 3])
    >>> join({1: shares[1], 3: shares[3]}) == b"k" * 32
    True
    """
    rising = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    falling = rising[::-1]
    found = {}
    for place in places:
        value = 0
        for factor in falling:
            value = (value * place + factor) % PRIME
        found[place] = value.to_bytes(SHARE, "big")
    return found


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares by place: the polynomial through them at zero."""
    factors = _at_zero(tuple(sorted(shares)))
    value = sum(factors[place] * int.from_bytes(share, "big") for place, share in shares.items()) % PRIME
    return value.to_bytes(SHARE, "big")[-SECRET:]


@lru_cache(maxsize=8)
def _at_zero(places: tuple[int, ...]) -> dict[int, int]:
    """What each place counts in the value at zero, as Lagrange has it; the same for all secrets of a sum."""
    whole = 1
    for place in places:
        whole = whole * place % PRIME
    found = {}
    for place in places:
        under = place
        for other in places:
            if other != place:
                under = under * (other - place) % PRIME
        found[place] = whole * pow(under, -1, PRIME) % PRIME
    return found
