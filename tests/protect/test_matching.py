"""Matching: pseudonyms say who shares what, and nothing can be computed without every party."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import IsthmusError
from isthmus.protect.matching import (
    POINT,
    SMALLEST,
    Blinded,
    Points,
    blind,
    intersection,
    list_problem,
    list_size,
    multiply,
    pseudonyms,
    secret_scalar,
    unblind,
    union,
)

CONTEXT, SECRET = b"study 1", b"s" * 32
VALUES = tuple(str(at).encode() for at in range(8))
NONE = {
    "the identity": bytes(POINT),
    "of order two on the curve": b"\xec" + b"\xff" * 30 + b"\x7f",
    "no element of the field": b"\xff" * POINT,
    "negative": b"\x01" + bytes(POINT - 1),
    "no square": b"\x02" + bytes(POINT - 2) + b"\x10",
}
"""Encodings that are no point to multiply; without ristretto's encoding, those of small order would leak scalars."""


def secrets_of(parties: Sequence[str], salt: str = "") -> dict[str, bytes]:
    return {party: hashlib.sha256(f"{party}{salt}".encode()).digest() for party in parties}


HELD = st.lists(st.sets(st.integers(0, 12)), min_size=2, max_size=2) | st.lists(
    st.sets(st.integers(0, 12)), min_size=4, max_size=4
)


@settings(max_examples=10)
@given(HELD)
def test_pseudonyms_meet_where_values_do(held: list[set[int]]) -> None:
    values = {str(at): [str(value).encode() for value in own] for at, own in enumerate(held)}
    found = pseudonyms(values, secrets_of(tuple(values)), CONTEXT)
    names = {
        name: value for party, own in values.items() for name, value in zip(found[party].tolist(), own, strict=True)
    }
    assert len(names) == len(set.union(*held))
    assert {int(names[name]) for name in intersection(found.values()).tolist()} == set.intersection(*held)
    assert {int(names[name]) for name in union(found.values()).tolist()} == set.union(*held)


def test_pseudonyms_need_the_secret_of_every_party() -> None:
    """All but one of the parties know nothing of a value: any other secret of the last one gives another pseudonym."""
    parties = ("a", "b", "c")
    values, secret = dict.fromkeys(parties, VALUES), secrets_of(parties)
    due = pseudonyms(values, secret, CONTEXT)["a"]
    for party in parties:
        other = {**secret, party: secrets_of([party], "other")[party]}
        assert not np.isin(pseudonyms(values, other, CONTEXT)["a"], due).any()
    assert not np.isin(pseudonyms(values, secret, b"study 2")["a"], due).any()


def test_lists_of_the_same_values_share_no_point() -> None:
    """Neither with each other, nor after another party's step, nor with what a guess would be."""
    scalar = secret_scalar(b"s" * 32)
    one, two = blind(VALUES, CONTEXT, SECRET), blind(VALUES, CONTEXT, b"t" * 32)
    lists = [one.points, two.points, multiply(one.points, scalar), multiply(two.points, scalar)]
    whole = np.concatenate(lists)
    assert len(whole) == 4 * SMALLEST
    assert list_problem(whole, len(whole)) == ""
    assert not any(value in whole.tobytes() for value in (hashlib.sha512(each).digest()[:8] for each in VALUES))
    assert one.at.tolist() != two.at.tolist()
    assert np.array_equal(blind(VALUES, CONTEXT, SECRET).points, one.points)  # repeated after a crash


def test_a_list_says_little_of_the_number_of_values() -> None:
    sizes = [list_size(values) for values in range(1, 5000)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 8 * 6 + 3  # eight for each power of two from 64 on, and 4096, 4608, 5120
    assert all(values <= size <= max(SMALLEST, 1.125 * values + 1) for values, size in enumerate(sizes, 1))
    assert len(blind((), CONTEXT, SECRET).points) == len(blind(VALUES, CONTEXT, SECRET).points) == SMALLEST


@pytest.mark.parametrize("name", NONE)
def test_points_that_are_none_are_refused(name: str) -> None:
    points = blind(VALUES, CONTEXT, SECRET).points.copy()
    points[3] = np.frombuffer(NONE[name], dtype=np.uint8)
    with pytest.raises(IsthmusError, match="refused: a list to match has a point that is none"):
        multiply(points, secret_scalar(b"s" * 32))


def test_lists_of_another_form_are_refused() -> None:
    points = blind(VALUES, CONTEXT, SECRET).points
    tagged = points.copy()
    tagged[5] = tagged[9]
    forms: dict[str, object] = {
        "it has a point twice": tagged,
        "it has 63 points, announced were 64": points[1:],
        "it is no list of points": points[:, 1:],
    }
    assert {why: list_problem(found, SMALLEST) for why, found in forms.items()} == {why: why for why in forms}
    for found in (points.astype(np.int16), points.tobytes(), points[0]):
        assert list_problem(found, SMALLEST) == "it is no list of points"


def test_the_order_of_parties_and_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scalars = [secret_scalar(bytes([at]) * 32) for at in range(3)]
    sent = blind(VALUES, CONTEXT, SECRET)

    def home(blinded: Blinded, order: Sequence[bytes]) -> list[int]:
        points: Points = reduce(multiply, order, blinded.points)
        return unblind(blinded, points, scalars[0], CONTEXT).tolist()

    due = home(sent, scalars[1:])
    monkeypatch.setattr("isthmus.protect.matching.CHUNK", 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert home(sent, scalars[:0:-1]) == home(blind(VALUES, CONTEXT, b"t" * 32), scalars[1:]) == due
