"""Secrets in shares."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.protect.shamir import PRIME, SECRET, join, split


@given(st.binary(min_size=SECRET, max_size=SECRET), st.integers(1, 7), st.integers(0, 5))
def test_any_shares_enough_give_the_secret_back(secret: bytes, least: int, more: int) -> None:
    shares = split(secret, least, range(1, least + more + 1))
    for places in itertools.islice(itertools.combinations(shares, least), 20):
        assert join({place: shares[place] for place in places}) == secret


def test_one_share_too_few_gives_something_else() -> None:
    secret = secrets.token_bytes(SECRET)
    shares = split(secret, 4, range(1, 8))
    assert join({place: shares[place] for place in (1, 2, 3)}) != secret


def test_fewer_shares_are_as_likely_for_any_secret() -> None:
    """One share of two: its lowest bits are spread evenly whatever the secret is."""
    for secret in (bytes(SECRET), b"\xff" * SECRET):
        low = Counter(split(secret, 2, [3])[3][-1] % 8 for _ in range(8000))
        assert all(abs(count - 1000) < 200 for count in low.values())


def test_the_prime_is_one_above_every_secret() -> None:
    assert PRIME > 2 ** (8 * SECRET)
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        odd, twos = PRIME - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        x = pow(base, odd, PRIME)
        assert x in (1, PRIME - 1) or any((x := x * x % PRIME) == PRIME - 1 for _ in range(twos - 1))


@pytest.mark.parametrize("secret", [bytes(SECRET), b"\xff" * SECRET])
def test_the_least_and_the_largest_secret_come_back(secret: bytes) -> None:
    shares = split(secret, 3, range(1, 6))
    assert join({place: shares[place] for place in (5, 1, 3)}) == secret
