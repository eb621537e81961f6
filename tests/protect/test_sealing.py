"""Envelopes between parties."""

from __future__ import annotations

import pytest

from isthmus.errors import IsthmusError
from isthmus.protect.sealing import OVERHEAD, Channel, Keyring, keyrings


def met(*names: str, run: str = "run") -> dict[str, Channel]:
    channels = {name: Channel(ring, run) for name, ring in keyrings(names).items()}
    introduce(channels)
    return channels


def introduce(channels: dict[str, Channel]) -> None:
    for name, channel in channels.items():
        channel.meet({other: each.session for other, each in channels.items() if other != name})


def test_an_envelope_opens_for_its_addressee() -> None:
    parties = met("a", "b", "c")
    envelope = parties["a"].sealed("b", b"secret rows", "lend")
    assert b"secret" not in envelope
    assert len(envelope) == len(b"secret rows") + OVERHEAD
    with pytest.raises(IsthmusError, match="does not open"):
        parties["c"].opened("a", envelope, "lend")
    assert parties["b"].opened("a", envelope, "lend") == b"secret rows"


def test_what_came_before_is_refused() -> None:
    parties = met("a", "b")
    first, second = (parties["a"].sealed("b", data, "lend") for data in (b"1", b"2"))
    assert parties["b"].opened("a", second, "lend") == b"2"
    for old in (first, second):
        with pytest.raises(IsthmusError, match="came twice, or after a later one"):
            parties["b"].opened("a", old, "lend")


@pytest.mark.parametrize("at", [0, 7, 8, 20, -1])
def test_a_changed_envelope_does_not_open_and_spoils_nothing(at: int) -> None:
    parties = met("a", "b")
    envelope = bytearray(parties["a"].sealed("b", b"what it says", "lend"))
    envelope[at] ^= 0x40
    with pytest.raises(IsthmusError, match="refused"):
        parties["b"].opened("a", bytes(envelope), "lend")
    assert parties["b"].opened("a", parties["a"].sealed("b", b"next", "lend"), "lend") == b"next"


def test_an_envelope_is_good_for_its_action_direction_and_run_alone() -> None:
    rings = keyrings(("a", "b"))
    parties = {name: Channel(ring, "run") for name, ring in rings.items()}
    introduce(parties)
    envelope = parties["a"].sealed("b", b"x", "lend")
    with pytest.raises(IsthmusError, match="does not open"):
        parties["b"].opened("a", envelope, "borrow")
    with pytest.raises(IsthmusError, match="does not open"):
        parties["a"].opened("b", envelope, "lend")  # sent back
    other = Channel(rings["b"], "another run")
    other.meet({"a": parties["a"].session})
    with pytest.raises(IsthmusError, match="does not open"):
        other.opened("a", envelope, "lend")


def test_who_starts_anew_reads_nothing_of_before() -> None:
    rings = keyrings(("a", "b"))
    parties = {name: Channel(ring, "run") for name, ring in rings.items()}
    introduce(parties)
    envelope = parties["a"].sealed("b", b"x", "lend")
    parties["b"] = Channel(rings["b"], "run")
    introduce(parties)
    with pytest.raises(IsthmusError, match="does not open"):
        parties["b"].opened("a", envelope, "lend")
    assert parties["b"].opened("a", parties["a"].sealed("b", b"y", "lend"), "lend") == b"y"


def test_going_back_to_an_earlier_session_replays_nothing() -> None:
    """A server that says again that a party began as it did before cannot have its old envelopes taken once more."""
    parties = met("a", "b")
    old = parties["a"].session
    envelope = parties["a"].sealed("b", b"x", "lend")
    parties["b"].opened("a", envelope, "lend")
    parties["b"].meet({"a": Channel(parties["a"].ring, "run").session})
    parties["b"].meet({"a": old})
    with pytest.raises(IsthmusError, match="came twice"):
        parties["b"].opened("a", envelope, "lend")


def test_another_key_than_the_pinned_one_opens_nothing() -> None:
    """The server relays the drawn keys; with one of its own it cannot speak for a party."""
    rings = keyrings(("a", "b"))
    stranger = Keyring("a", keyrings(("a",))["a"].own, rings["a"].publics)
    parties = {"a": Channel(stranger, "run"), "b": Channel(rings["b"], "run")}
    introduce(parties)
    with pytest.raises(IsthmusError, match="does not open"):
        parties["b"].opened("a", parties["a"].sealed("b", b"x", "lend"), "lend")


def test_strangers_and_those_who_have_not_begun_are_named() -> None:
    parties = met("a", "b")
    with pytest.raises(IsthmusError, match="'z' is not in the kit of 'a'"):
        parties["a"].meet({"z": parties["b"].session})
    alone = Channel(parties["a"].ring, "run")
    with pytest.raises(IsthmusError, match="'b' has not begun this run"):
        alone.sealed("b", b"x", "lend")


def test_a_keyring_does_not_show_its_key() -> None:
    ring = keyrings(("a", "b"))["a"]
    assert ring.own.hex() not in repr(ring)
    assert str(ring.own) not in repr(ring)
