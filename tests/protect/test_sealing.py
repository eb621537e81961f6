"""Envelopes between parties."""

from __future__ import annotations

import pytest

from isthmus.errors import IsthmusError
from isthmus.protect.sealing import OVERHEAD, Channel, Keyring, generate_keyrings


def met(*names: str, run: str = "run") -> dict[str, Channel]:
    channels = {name: Channel(ring, run) for name, ring in generate_keyrings(names).items()}
    introduce(channels)
    return channels


def introduce(channels: dict[str, Channel]) -> None:
    for name, channel in channels.items():
        channel.set_sessions({other: each.session for other, each in channels.items() if other != name})


def test_an_envelope_opens_for_its_addressee() -> None:
    parties = met("a", "b", "c")
    envelope = parties["a"].seal("b", b"secret rows", "lend")
    assert b"secret" not in envelope
    assert len(envelope) == len(b"secret rows") + OVERHEAD
    with pytest.raises(IsthmusError, match="does not open"):
        parties["c"].open("a", envelope, "lend")
    assert parties["b"].open("a", envelope, "lend") == b"secret rows"


def test_what_came_before_is_refused() -> None:
    parties = met("a", "b")
    first, second = (parties["a"].seal("b", data, "lend") for data in (b"1", b"2"))
    assert parties["b"].open("a", second, "lend") == b"2"
    for old in (first, second):
        with pytest.raises(IsthmusError, match="came twice, or after a later one"):
            parties["b"].open("a", old, "lend")


@pytest.mark.parametrize("at", [0, 7, 8, 20, -1])
def test_a_changed_envelope_does_not_open_and_spoils_nothing(at: int) -> None:
    parties = met("a", "b")
    envelope = bytearray(parties["a"].seal("b", b"what it says", "lend"))
    envelope[at] ^= 0x40
    with pytest.raises(IsthmusError, match="refused"):
        parties["b"].open("a", bytes(envelope), "lend")
    assert parties["b"].open("a", parties["a"].seal("b", b"next", "lend"), "lend") == b"next"


def test_an_envelope_is_good_for_its_action_direction_and_run_alone() -> None:
    rings = generate_keyrings(("a", "b"))
    parties = {name: Channel(ring, "run") for name, ring in rings.items()}
    introduce(parties)
    envelope = parties["a"].seal("b", b"x", "lend")
    with pytest.raises(IsthmusError, match="does not open"):
        parties["b"].open("a", envelope, "borrow")
    with pytest.raises(IsthmusError, match="does not open"):
        parties["a"].open("b", envelope, "lend")  # sent back
    other = Channel(rings["b"], "another run")
    other.set_sessions({"a": parties["a"].session})
    with pytest.raises(IsthmusError, match="does not open"):
        other.open("a", envelope, "lend")


def test_who_starts_anew_reads_nothing_of_before() -> None:
    rings = generate_keyrings(("a", "b"))
    parties = {name: Channel(ring, "run") for name, ring in rings.items()}
    introduce(parties)
    envelope = parties["a"].seal("b", b"x", "lend")
    parties["b"] = Channel(rings["b"], "run")
    introduce(parties)
    with pytest.raises(IsthmusError, match="does not open"):
        parties["b"].open("a", envelope, "lend")
    assert parties["b"].open("a", parties["a"].seal("b", b"y", "lend"), "lend") == b"y"


def test_going_back_to_an_earlier_session_replays_nothing() -> None:
    """A server that says again that a party began as it did before cannot have its old envelopes taken once more."""
    parties = met("a", "b")
    old = parties["a"].session
    envelope = parties["a"].seal("b", b"x", "lend")
    parties["b"].open("a", envelope, "lend")
    parties["b"].set_sessions({"a": Channel(parties["a"].ring, "run").session})
    parties["b"].set_sessions({"a": old})
    with pytest.raises(IsthmusError, match="came twice"):
        parties["b"].open("a", envelope, "lend")


def test_another_key_than_the_pinned_one_opens_nothing() -> None:
    """The server relays the drawn keys; with one of its own it cannot speak for a party."""
    rings = generate_keyrings(("a", "b"))
    stranger = Keyring("a", generate_keyrings(("a",))["a"].private_key, rings["a"].public_keys)
    parties = {"a": Channel(stranger, "run"), "b": Channel(rings["b"], "run")}
    introduce(parties)
    with pytest.raises(IsthmusError, match="does not open"):
        parties["b"].open("a", parties["a"].seal("b", b"x", "lend"), "lend")


def test_strangers_and_those_who_have_not_begun_are_named() -> None:
    parties = met("a", "b")
    with pytest.raises(IsthmusError, match="'z' is not in the kit of 'a'"):
        parties["a"].set_sessions({"z": parties["b"].session})
    alone = Channel(parties["a"].ring, "run")
    with pytest.raises(IsthmusError, match="'b' has not started this run"):
        alone.seal("b", b"x", "lend")


def test_a_keyring_does_not_show_its_key() -> None:
    ring = generate_keyrings(("a", "b"))["a"]
    assert ring.private_key.hex() not in repr(ring)
    assert str(ring.private_key) not in repr(ring)
