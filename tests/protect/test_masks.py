"""Masked sums: parties that drop out, what the server sees, and what parties refuse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protect.closed import (
    UNION,
    Table,
    at_step,
    closed_only,
    confirmed,
    everything,
    for_party,
    opened,
    rows_of,
    same,
    weights_of,
)

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.answers import Answer, Reply
from isthmus.protect.base import Message
from isthmus.protect.masks import MaskingGuard
from isthmus.protect.sealing import public_key


@given(st.integers(2, 6), st.integers(0, 1000), st.sampled_from([1, 2, 3]))
@settings(deadline=None, max_examples=25)
def test_masked_rows_are_those_of_the_plain_total(parties: int, seed: int, least: int) -> None:
    table = Table("masks", rows_of(parties, seed))
    if parties < least:
        return
    found, due = table.total(rows=UNION, min_contributors=least).total, table.plain(table.parties, UNION, least)
    assert torch.equal(found.opened, due.opened)  # type: ignore[arg-type]
    same(found.payload(), due.payload(), 1e-7)
    same({"x": found.mean("x")}, {"x": due.mean("x")}, 1e-7)


@pytest.mark.parametrize("step", ["keys", "shares", "take", "call", "confirm", "open"])
@pytest.mark.parametrize("party", ["a", "c", "e"])
def test_a_party_may_drop_out_at_any_step_of_a_masked_sum(step: str, party: str) -> None:
    table = Table("masks", weights_of(5), meddle=at_step(party, step))
    found = table.total().total
    left = table.parties if step in ("confirm", "open") else tuple(name for name in table.parties if name != party)
    assert found.contributors == len(left)
    same(found.payload(), table.plain(left).payload(), 1e-6)
    assert (party in found.missing) == (step not in ("confirm", "open"))


@pytest.mark.parametrize("gone", [pair for size in (1, 2) for pair in itertools.combinations("abcde", size)])
def test_any_fewer_than_half_may_drop_out(gone: Sequence[str]) -> None:
    steps = dict(zip(gone, ["call", "open"], strict=False))
    table = Table(
        "masks", weights_of(5), meddle=lambda to, m: "gone" if m.get("step", m["do"]) == steps.get(to) else None
    )
    left = [name for name in table.parties if steps.get(name) != "call"]
    same(table.total().total.payload(), table.plain(left).payload(), 1e-6)


def test_too_few_are_left_to_open_a_masked_sum() -> None:
    table = Table(
        "masks", weights_of(5), meddle=lambda to, m: "gone" if to in "abc" and m.get("step") == "open" else None
    )
    with pytest.raises(TooFewAnswers, match="opening a masked sum needs 3 of 5 parties, 2 are left"):
        table.total()


def test_what_the_server_gets_of_a_party_looks_random() -> None:
    """Of a party that says zeros, and of one that always says the same large number: bytes are spread evenly, and no
    two of 40 sums have a word in common."""
    value = torch.full((1, 500), 12345.0)
    replies = {name: Reply.of(name, Answer({"x": value * at})) for at, name in enumerate("abc")}
    table = Table("masks", replies)
    for _ in range(40):
        table.total()
    for party in "abc":
        closed = [m["closed"] for to, _, m in table.seen if to == party and "closed" in m]
        counts = np.bincount(np.frombuffer(b"".join(closed), dtype=np.uint8), minlength=256)
        due = counts.sum() / 256
        assert ((counts - due) ** 2 / due).sum() < 256 + 6 * np.sqrt(2 * 256)  # chi-squared, six deviations
        words = np.frombuffer(b"".join(closed), dtype=np.uint64)
        assert len(np.unique(words)) == len(words)
        bits = np.unpackbits(words.view(np.uint8)).reshape(len(words), 64).mean(0)
        assert np.abs(bits - 0.5).max() < 6 * 0.5 / np.sqrt(len(words))


def test_masked_parts_of_other_answers_are_as_likely() -> None:
    """Kolmogorov and Smirnov: what comes of zeros and what comes of large numbers is of one distribution."""
    from scipy.stats import ks_2samp

    found = []
    for size in (0.0, 1e6):
        replies = {name: Reply.of(name, Answer({"x": torch.full((1, 4000), size)})) for name in "abc"}
        table = Table("masks", replies)
        table.total()
        closed = next(m["closed"] for to, _, m in table.seen if to == "b" and "closed" in m)
        found.append(np.frombuffer(closed, dtype=np.uint64)[:4000] / 2.0**64)
    assert ks_2samp(*found).pvalue > 1e-6


def test_the_server_gets_either_the_seed_or_the_key_of_a_party_and_only_shares_of_it() -> None:
    hidden: dict[str, tuple[bytes, bytes, bytes]] = {}

    def meddle(to: str, message: Message) -> Message | str | None:
        agreement = table.guards[to]._agreement  # type: ignore[attr-defined]
        if message["do"] == "call":
            hidden[to] = agreement.privates[0], agreement.seeds[0], agreement.group
        return "gone" if to == "d" and message["do"] == "call" else None

    table = Table("masks", weights_of(5), meddle=meddle)
    table.total()
    seen = everything(table)
    for party, (private, seed, group) in hidden.items():
        guard = table.guards[party]
        assert isinstance(guard, MaskingGuard)
        assert private not in seen
        assert (seed in seen) == (party != "d")  # those in the sum say it themselves
        assert group not in seen
        assert guard.channel.ring.private_key not in seen
        assert guard._agreement is not None
        assert party == "d" or (guard._agreement.seeds[0], guard._agreement.privates[0]) == (b"", b"")
        told = [m["step"] for to, m, _ in table.seen if to == party and m["do"] == "shield"]
        assert told.count("open") <= 1


def test_a_party_opens_a_sum_once() -> None:
    table = closed_only()
    opened(table, "a", "abcd")
    with pytest.raises(IsthmusError, match="were confirmed before"):
        opened(table, "a", "abc")
    with pytest.raises(IsthmusError, match="was opened before"):
        table.guards["a"].answer_step({**head_of(table), "step": "open", "confirmed": {}})


def test_masks_are_used_once() -> None:
    table = closed_only()
    call = next(m for to, m, _ in table.seen if to == "a" and m["do"] == "call")
    with pytest.raises(IsthmusError, match="refused: masks are used up"):
        table.answer("a", call)


@pytest.mark.parametrize("told", [{"of": ["b", "c"]}, {"of": ["a"]}, {"of": list("aab")}, {"count": 10**6}])
def test_keys_are_not_made_for_what_would_not_protect(told: dict[str, Any]) -> None:
    guard = closed_only().guards["a"]
    message = {"step": "keys", "agreement": "x", "of": list("abcd"), "count": 1}
    with pytest.raises(IsthmusError, match="refused: keys for"):
        guard.answer_step({**message, **told})


# ---- a server that does not follow the protocol


def head_of(table: Table, party: str = "a") -> Message:
    """What messages about the last sum begin with."""
    at = next(m["shield"] for to, m, _ in reversed(table.seen) if to == party and m["do"] == "call")
    return {"do": "shield", "agreement": at["agreement"], "at": at["at"]}


def masked_by(table: Table) -> set[str]:
    return {party for party, guard in table.guards.items() if guard._agreement and guard._agreement.masked}  # type: ignore[attr-defined]


@pytest.mark.parametrize("parties", [3, 4, 5])
@pytest.mark.parametrize("to", ["all others", "one"])
def test_a_key_that_the_server_replaces_masks_nothing(parties: int, to: str) -> None:
    """It shows others a key of its own in place of that of b, to compute the masks that they share with b."""
    own = public_key(bytes(range(32)))

    def meddle(party: str, message: Message) -> None:
        shown = party != "b" if to == "all others" else party == "a"
        if message.get("step") == "shares" and shown:
            message["keys"] = {**message["keys"], "b": own}

    table = Table("masks", weights_of(parties), meddle=meddle)
    with suppress(TooFewAnswers):
        table.total()
    seen = [guard._agreement for guard in table.guards.values()]  # type: ignore[attr-defined]
    assert all(own not in (key for keys in each.publics.values() for key in keys) for each in seen if each.masked)


def test_a_party_knows_its_own_keys() -> None:
    def meddle(party: str, message: Message) -> None:
        if message.get("step") == "shares" and party == "a":
            message["keys"] = {**message["keys"], "a": public_key(bytes(range(32)))}

    table = Table("masks", weights_of(4), meddle=meddle)
    assert "shows other keys of this party" in table.total().total.missing["a"]


@pytest.mark.parametrize("parties", [3, 4, 5, 6])
@pytest.mark.thinned(2)
def test_a_pretended_drop_out_opens_nothing(parties: int) -> None:
    """Some are told that d is in the sum and some that it is not: nobody gives shares of its seed or its key."""
    names = "abcdef"[:parties]
    victim = names[-1]
    table = closed_only(parties=parties)
    head, rest = head_of(table), names[:-1]
    for told_all in itertools.product([True, False], repeat=len(rest)):
        table = closed_only(parties=parties)
        head = head_of(table)
        sets = {party: names if told else rest for party, told in zip(rest, told_all, strict=True)}
        sets[victim] = names
        said: dict[str, Message] = {}
        for party, of in sets.items():
            with suppress(IsthmusError):  # too few to confirm
                said[party] = confirmed(table, party, of, head)
        opens = set()
        for party, of in sets.items():
            with suppress(IsthmusError):
                table.guards[party].answer_step({**head, "step": "open", "confirmed": for_party(party, said)})
                opens.add(of)
        assert len(opens) <= 1


def test_nothing_is_opened_before_others_confirm_it() -> None:
    table = closed_only(parties=5)
    head = head_of(table)
    message = {**head, "step": "open", "confirmed": {}}
    with pytest.raises(IsthmusError, match="nobody has confirmed"):
        table.guards["a"].answer_step(message)
    said = {party: confirmed(table, party, "abcde", head) for party in "abcde"}
    with pytest.raises(IsthmusError, match="1 of 5 say the same parties are in the sum, 3 must"):
        table.guards["a"].answer_step(message)
    one = for_party("a", {"b": said["b"]})
    with pytest.raises(IsthmusError, match="2 of 5 say"):
        table.guards["a"].answer_step({**message, "confirmed": {**one, "c": one["b"], "d": said["d"]["b"], "e": b""}})
    found = table.guards["b"].answer_step({**message, "confirmed": for_party("b", said)})
    assert found.keys() == {"seed", "held"}


def test_how_many_open_a_sum_is_not_for_the_server_to_say() -> None:
    table = closed_only(parties=6, threshold=0.7)
    head = head_of(table)
    table.sums.threshold = 0.5  # type: ignore[attr-defined]
    with pytest.raises(IsthmusError, match="too few"):
        confirmed(table, "a", "abcd", head)
    said = {party: confirmed(table, party, "abcdef", head) for party in "abcd"}
    with pytest.raises(IsthmusError, match="4 of 6 say the same parties"):
        table.guards["a"].answer_step({**head, "step": "open", "confirmed": for_party("a", said)})


@pytest.mark.parametrize("of", ["abc", "bcd", "abcdd", "dcba", "abcx"])
def test_only_parties_of_the_sum_are_confirmed_in_their_order(of: str) -> None:
    table = closed_only(parties=5)
    if of == "abc":
        confirmed(table, "a", of, head_of(table))  # enough of five
        with pytest.raises(IsthmusError, match="were confirmed before"):
            confirmed(table, "a", "abcde", head_of(table))
        return
    with pytest.raises(IsthmusError, match="refused: "):
        confirmed(table, "a", of, head_of(table))


def test_what_was_confirmed_for_one_sum_is_nothing_for_another() -> None:
    """The envelopes of an earlier sum of the same agreement do not count."""
    kept: list[Message] = []

    def meddle(party: str, message: Message) -> Message | str | None:
        if party == "a" and message.get("step") == "open":
            kept.append(message)
            if len(kept) == 3:  # the second sum of an agreement over several
                return table.guards["a"].answer_step({**message, "confirmed": kept[1]["confirmed"]})
        return None

    table = Table("masks", weights_of(4), meddle=meddle)
    table.total()
    table.total()
    with pytest.raises(IsthmusError, match="1 of 4 say"):
        table.total()
    assert kept[1]["agreement"] == kept[2]["agreement"]
