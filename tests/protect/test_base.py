"""Protected totals of every kind: they equal plain totals, and faulty parties are left out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.protect.closed import (
    KINDS,
    NEAR,
    UNION,
    Table,
    at_step,
    bytes_in,
    closed_only,
    fields_of,
    opened,
    rows_of,
    same,
    sets_opened,
    weights_of,
)

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Reply, Total
from isthmus.federation.transport import TotalRequest
from isthmus.protect.base import Message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parties", [2, 3, 8])
def test_sums_and_means_are_those_of_the_plain_total(kind: str, parties: int) -> None:
    table = Table(kind, weights_of(parties))
    found, due = table.total().total, table.plain(table.parties)
    assert found.contributors == parties
    assert not found.missing
    same(found.payload(), due.payload(), 60 * NEAR[kind])
    assert torch.equal(found.sum("right"), due.sum("right"))
    same(found.mean("weights"), due.mean("weights"), NEAR[kind])
    assert abs(float(found.mean("loss") - due.mean("loss"))) < NEAR[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("least", [1, 3])
def test_a_sum_for_the_parties_reaches_them_and_not_the_server(kind: str, least: int) -> None:
    table = Table(kind, rows_of(4, wants=True))
    made, due = table.total(rows=UNION, to="parties", min_contributors=least), table.plain(table.parties, UNION, least)
    assert made.total.payload() == {}
    for party in table.parties:
        got, wants = table.delivered[party], table.replies[party].columns["wants"][0]  # type: ignore[index]
        at = UNION.positions(wants)
        assert torch.equal(got["ids"], wants)
        assert torch.equal(got["opened"], due.opened[at])  # type: ignore[index]
        same({"x": got["x"]}, {"x": due.sum("x")[at]}, NEAR[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thinned(3)
def test_sum_after_sum_over_the_same_parties_and_over_others(kind: str) -> None:
    table = Table(kind, weights_of(5))
    for of in [table.parties] * 20 + [table.parties[:3], table.parties[2:], table.parties]:
        asked, table.parties = table.parties, of
        same(table.total().total.sum("weights"), table.plain(of).sum("weights"), 60 * NEAR[kind])
        table.parties = asked


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_all_steps_are_told(kind: str) -> None:
    table = Table(kind, weights_of(3))
    made = table.total({"weights": torch.zeros(100)})
    for party in table.parties:
        mine = [(message, reply) for to, message, reply in table.seen if to == party]
        assert made.received[party] == sum(len(each) for message, _ in mine for each in bytes_in(message))
        assert made.sent[party] == sum(len(each) for _, reply in mine for each in bytes_in(reply))
        assert made.received[party] > wire.size({"weights": torch.zeros(100)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_one_is_not_made(kind: str) -> None:
    table = Table(kind, weights_of(3), meddle=lambda to, m: "gone" if to != "a" and m["do"] == "call" else None)
    with pytest.raises(TooFewAnswers, match=r"needs at least 2 parties, 1 of 3 are left.*'b' .gone."):
        table.total()


@pytest.mark.parametrize("of", [["a"], ["a", "a"], ["b", "c"]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_party_does_not_open_a_sum_of_one_or_one_that_it_is_not_in(kind: str, of: list[str]) -> None:
    table = closed_only(kind)
    with pytest.raises(IsthmusError, match=r"refused: "):
        opened(table, "a", of)
    assert not any(guard.record._opened for guard in table.guards.values())


def test_a_party_has_a_say_in_how_many_are_in_a_sum() -> None:
    with pytest.raises(IsthmusError, match="refused: a sum over 3 is not opened, it needs 4"):
        opened(closed_only(min_parties=4), "a", "abc")


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_a_sum_cannot_hold_is_left_out_and_named(kind: str) -> None:
    replies = weights_of(3)
    replies["b"] = Reply.of("b", Answer({**fields_of(replies["b"]), "loss": torch.tensor([1e30], dtype=torch.float64)}))
    replies["b"].weights = replies["a"].weights
    table = Table(kind, replies)
    found = table.total().total
    assert "'loss' has a number beyond" in found.missing["b"]
    same(found.payload(), table.plain(["a", "c"]).payload(), 1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["form", "closed"])
def test_a_part_of_another_form_or_length_is_left_out_and_named(kind: str, what: str) -> None:
    def meddle(to: str, message: Message) -> Message | str | None:
        if to != "c" or message["do"] != "call":
            return None
        reply = table.answer(to, message)
        return {**reply, what: '[["x", "F32", [2]]]' if what == "form" else reply["closed"][:-8]}

    table = Table(kind, weights_of(4), meddle=meddle)
    found = table.total().total
    assert "its reply to a step of a protected total is not valid" in found.missing["c"]
    same(found.payload(), table.plain(["a", "b", "d"]).payload(), 1e-4)


GARBAGE: list[tuple[str, str, Message]] = [
    ("masks", "keys", {"keys": b"short"}),
    ("masks", "keys", {"keys": bytes(32)}),  # a point that agrees on nothing
    ("masks", "keys", {}),
    ("masks", "shares", {"shares": {"a": b""}}),
    ("masks", "shares", {"shares": 3}),
    ("masks", "shares", {"shares": dict.fromkeys("bcde", bytes(24 + 2 * 36 + 32))}),  # envelopes that do not open
    ("masks", "take", {"bad": ["b", "c"]}),  # blames others
    ("masks", "take", {"bad": 3}),
    ("masks", "open", {"seed": b"", "held": b""}),
    ("masks", "open", {"seed": "k" * 32, "held": "k" * 144}),
    ("masks", "call", {"form": "x", "closed": b""}),
    ("masks", "call", {"form": '[["x", "F32", [1]]]'}),
    ("masks", "call", {}),
    ("ckks", "make", {"public": b"none", "secret": {}}),
    ("ckks", "call", {"form": 1, "closed": [b"x"]}),
    ("ckks", "open", {"columns": b"garbage"}),
]


@pytest.mark.parametrize(("kind", "step", "reply"), GARBAGE)
def test_garbage_at_any_step_is_the_fault_of_its_party_alone(kind: str, step: str, reply: Message) -> None:
    table = Table(
        kind, weights_of(5), meddle=lambda to, m: reply if to == "a" and m.get("step", m["do"]) == step else None
    )
    found = table.total().total
    left = table.parties if step == "open" else table.parties[1:]
    same(found.payload(), table.plain(left).payload(), 1e-4)
    assert ("a" in found.missing) == (step != "open")


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_gone_between_counts_and_sums_leaves_nobody_alone_in_a_row(kind: str) -> None:
    """A row that two parties hold is not opened when one of them is gone by then."""
    replies = rows_of(5)

    def meddle(to: str, message: Message) -> Message | str | None:
        return "gone" if to == "a" and message.get("step") == "again" else None

    table = Table(kind, replies, meddle=meddle)
    if kind == "masks":  # two counts of the same answers show which rows a has
        with pytest.raises(TooFewAnswers, match="would show the part of a alone"):
            table.total(rows=UNION, min_contributors=2)
        return
    found, due = table.total(rows=UNION, min_contributors=2).total, table.plain(table.parties[1:], UNION, 2)
    assert torch.equal(found.opened, due.opened)  # type: ignore[arg-type]
    same(found.payload(), due.payload(), 1e-4)
    assert sets_opened(table)[-1] == tuple("bcde")


def test_who_is_gone_while_a_wrong_sum_is_drawn_again_ends_the_run() -> None:
    """Halves are drawn at random: one without the liar may be without who is gone, and then all is well."""

    def meddle(to: str, message: Message) -> Message | str | None:
        return "gone" if to == "b" and message.get("step") == "again" else None

    said = []
    for _ in range(8):
        table = Table("masks", with_liars(8, "h"), wrong=too_large, meddle=meddle)
        try:
            table.total()
        except TooFewAnswers as error:
            said.append(str(error))
        sets = set(map(frozenset, sets_opened(table)))
        assert all(len(one ^ other) >= 2 for one, other in itertools.combinations(sets, 2))
    assert said
    assert all("parties were lost while a faulty sum was repeated" in each for each in said)


def test_a_sum_without_its_quorum_is_not_opened() -> None:
    table = Table("masks", weights_of(5), meddle=at_step("d", "call"))
    with pytest.raises(TooFewAnswers, match="needs at least 5 parties, 4 of 5 are left"):
        table.sums.total(TotalRequest("say", {}, table.parties, quorum=5))
    assert not any(m.get("step") == "open" for _, m, _ in table.seen)


def test_halves_keep_to_what_parties_ask_for() -> None:
    table = Table("masks", with_liars(8, "c"), wrong=too_large, min_parties=4)
    found = table.total().total
    assert len([party for party in table.parties if party in found.missing]) == 4


def too_large(total: Total, wanted: Any, of: Any) -> str:
    return "a part is far too large" if float(total.sums["weights/w"].abs().max()) > 1e4 else ""


def with_liars(parties: int, *liars: str) -> dict[str, Reply]:
    replies = weights_of(parties)
    for liar in liars:
        replies[liar] = Reply.of(
            liar, Answer({**fields_of(replies[liar]), "right": torch.zeros(1, 2, dtype=torch.long)})
        )
        replies[liar].columns["weights/w"] = torch.full((1, 4, 3), 1e6)
        replies[liar].weights = {"weights": torch.ones(1, dtype=torch.float64)}
    return replies


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("liar", ["a", "d", "h"])
@pytest.mark.thinned(3)
def test_a_wrong_sum_is_drawn_again_without_halves_until_it_is_right(kind: str, liar: str) -> None:
    table = Table(kind, with_liars(8, liar), wrong=too_large)
    found = table.total().total
    out = [party for party in table.parties if party in found.missing]
    assert liar in out
    assert len(out) == 2  # eight, four, two: one party is never shown alone
    assert all("of one of" in why for why in found.missing.values())
    left = [party for party in table.parties if party not in out]
    same(found.payload(), table.plain(left).payload(), 1e-3)
    again = len(table.seen)
    same(table.total().total.payload(), table.plain(left).payload(), 1e-3)  # they stay out
    assert not {to for to, _, _ in table.seen[again:]} & set(out)


def test_halves_show_nobodys_part() -> None:
    """Whatever sums were opened, no difference of them is over one party."""
    table = Table("masks", with_liars(8, "c"), wrong=too_large)
    table.total()
    sets = set(sets_opened(table))
    assert len(sets) > 2
    patterns = [tuple(party in each for each in sets) for party in table.parties]
    assert min(patterns.count(pattern) for pattern in patterns) >= 2


def test_two_liars_in_both_halves_leave_a_right_sum() -> None:
    for _ in range(5):
        table = Table("masks", with_liars(8, "b", "g"), wrong=too_large, tries=9)
        try:
            found = table.total().total
        except TooFewAnswers:
            continue  # each pair that was left had one of them
        assert {"b", "g"} <= found.missing.keys()


def test_among_three_parties_nobody_can_be_left_out() -> None:
    with pytest.raises(TooFewAnswers, match=r"far too large.*the faulty part of 3 cannot be found"):
        Table("masks", with_liars(3, "b"), wrong=too_large).total()


def test_tries_have_a_limit() -> None:
    table = Table("masks", weights_of(8), wrong=lambda *sum_of: "never right", tries=3)
    with pytest.raises(TooFewAnswers, match="never right"):
        table.total()
    assert sum(m.get("step") == "again" and to == "a" for to, m, _ in table.seen) <= 3
