"""Secrets in shares."""

from __future__ import annotations

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.protect import shamir
from isthmus.protect.shamir import PIECE, PRIME, SECRET, SHARE, join, split


@given(
    st.lists(st.binary(min_size=SECRET, max_size=SECRET), min_size=1, max_size=4), st.integers(1, 7), st.integers(0, 5)
)
def test_any_shares_enough_give_the_secrets_back(hidden: list[bytes], least: int, more: int) -> None:
    shares = split(hidden, least, range(1, least + more + 1))
    for places in itertools.islice(itertools.combinations(shares, least), 20):
        for at, secret in enumerate(hidden):
            assert join({place: shares[place][at * SHARE : (at + 1) * SHARE] for place in places}) == secret


def test_one_share_too_few_gives_something_else() -> None:
    secret = secrets.token_bytes(SECRET)
    shares = split([secret], 4, range(1, 8))
    assert join({place: shares[place] for place in (1, 2, 3)}) != secret


@pytest.mark.parametrize("secret", [bytes(SECRET), b"\xff" * SECRET])
def test_fewer_shares_are_as_likely_for_any_secret(secret: bytes) -> None:
    """Two shares of three: every piece is spread evenly over the field whatever the secret is."""
    drawn = [split([secret], 3, [3, 5]) for _ in range(4000)]
    for place in (3, 5):
        values = np.array([np.frombuffer(each[place], dtype=np.uint32) for each in drawn])
        counts = np.stack([np.bincount(column, minlength=8) for column in (values.T >> 28).astype(int)])
        assert np.abs(counts - 500).max() < 150
    both = np.array([np.frombuffer(each[3] + each[5], dtype=np.uint32) for each in drawn], dtype=float)
    assert np.abs(np.corrcoef(both.T) - np.eye(both.shape[1])).max() < 0.1


def test_shares_are_those_of_the_polynomial() -> None:
    """Written out with whole numbers, for the coefficients that were drawn."""
    drawn: list[np.ndarray] = []

    def draw(count: int) -> np.ndarray:
        drawn.append(np.random.default_rng(len(drawn)).integers(0, PRIME, count, dtype=np.uint64))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shamir, "_draw", draw)
        secret = secrets.token_bytes(SECRET)
        shares = split([secret], 4, [1, 7, 1000])
    whole = int.from_bytes(secret, "little")
    for place, share in shares.items():
        for at, value in enumerate(np.frombuffer(share, dtype=np.uint32)):
            rising = [whole >> (30 * at) & (2**30 - 1), *(int(each[at]) for each in reversed(drawn))]
            assert int(value) == sum(factor * place**power for power, factor in enumerate(rising)) % PRIME


def test_the_field_is_one() -> None:
    assert all(PRIME % factor for factor in range(2, int(PRIME**0.5) + 1))
    assert PRIME > 2**PIECE
