"""Totals whose summands the server does not see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protect.closed import Table

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Answer, IdUnion, Reply, Total
from isthmus.federation.transport import TotalRequest
from isthmus.protect.base import Message
from isthmus.protect.ckks import EncryptingGuard
from isthmus.protect.masks import MaskingGuard

NAMES = tuple("abcdefgh")
KINDS = ("masks", "ckks")
NEAR = {"masks": 2e-8, "ckks": 2e-6}
UNION = IdUnion(torch.tensor([3, 5, 8, 11]), torch.tensor([2, 2, 2, 2]))


def weights_of(parties: int, seed: int = 0) -> dict[str, Reply]:
    """Model weights, weighted by counts, and a metric's counts."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: Reply.of(
            name,
            Answer(
                {
                    "weights": {"w": torch.randn(1, 4, 3, generator=draw), "b": torch.randn(1, 3, generator=draw)},
                    "right": torch.randint(0, 50, (1, 2), generator=draw),
                    "loss": torch.rand(1, generator=draw, dtype=torch.float64),
                },
                {"weights": torch.randint(0, 9, (1,), generator=draw).double()},
            ),
        )
        for name in NAMES[:parties]
    }


def rows_of(parties: int, seed: int = 0, wants: bool = False) -> dict[str, Reply]:
    """Rows of a union, each party two of them, with a weight for each."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for at, name in enumerate(NAMES[:parties]):
        ids = UNION.ids[[at % 4, (at + 1) % 4]].unsqueeze(0)
        fields = {"ids": ids, "x": torch.randn(1, 2, 5, generator=draw)}
        more = {"wants": UNION.ids[[(at + 2) % 4, at % 4, 1]].unsqueeze(0)} if wants else {}
        found[name] = Reply.of(name, Answer({**fields, **more}, torch.tensor([[1.0, float(at % 3)]])))
    return found


def same(found: Any, due: Any, near: float) -> None:
    mine, theirs = dict(wire.flatten(found)), dict(wire.flatten(due))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype
        assert torch.allclose(value.double(), theirs[name].double(), atol=near, rtol=1e-6), name


# ---- equal to the plain total


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


# ---- who drops out


def at_step(party: str, step: str) -> Any:
    def meddle(to: str, message: Message) -> Message | str | None:
        return "gone" if to == party and message.get("step", message["do"]) == step else None

    return meddle


@pytest.mark.parametrize("step", ["keys", "shares", "take", "call", "open"])
@pytest.mark.parametrize("party", ["a", "c", "e"])
def test_a_party_may_drop_out_at_any_step_of_a_masked_sum(step: str, party: str) -> None:
    table = Table("masks", weights_of(5), meddle=at_step(party, step))
    found = table.total().total
    left = table.parties if step == "open" else tuple(name for name in table.parties if name != party)
    assert found.contributors == len(left)
    same(found.payload(), table.plain(left).payload(), 1e-6)
    assert (party in found.missing) == (step != "open")


@pytest.mark.parametrize("gone", [pair for size in (1, 2) for pair in itertools.combinations("abcde", size)])
def test_any_fewer_than_half_may_drop_out(gone: Sequence[str]) -> None:
    steps = dict(zip(gone, ["call", "open"], strict=False))
    table = Table(
        "masks", weights_of(5), meddle=lambda to, m: "gone" if m.get("step", m["do"]) == steps.get(to) else None
    )
    left = [name for name in table.parties if steps.get(name) != "call"]
    same(table.total().total.payload(), table.plain(left).payload(), 1e-6)


@pytest.mark.parametrize("step", ["make", "take", "call", "open"])
def test_a_party_may_drop_out_at_any_step_of_an_encrypted_sum(step: str) -> None:
    party = "b" if step == "take" else "a"
    table = Table("ckks", weights_of(4), meddle=at_step(party, step))
    left = table.parties if step == "open" else tuple(name for name in table.parties if name != party)
    same(table.total().total.payload(), table.plain(left).payload(), 1e-4)


def test_too_few_are_left_to_open_a_masked_sum() -> None:
    table = Table(
        "masks", weights_of(5), meddle=lambda to, m: "gone" if to in "abc" and m.get("step") == "open" else None
    )
    with pytest.raises(TooFewAnswers, match="opening a masked sum needs 3 of 5 parties, 2 are left"):
        table.total()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_one_is_not_made(kind: str) -> None:
    table = Table(kind, weights_of(3), meddle=lambda to, m: "gone" if to != "a" and m["do"] == "call" else None)
    with pytest.raises(TooFewAnswers, match=r"needs at least 2 parties, 1 of 3 are left.*'b' .gone."):
        table.total()


# ---- what the server sees


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


def bytes_in(value: Any) -> Iterator[bytes]:
    """All bytes in a message."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from bytes_in(each)
    elif isinstance(value, bytes):
        yield value


def everything(table: Table) -> bytes:
    """All bytes that the server has sent or got."""
    return b"|".join(each for _, *both in table.seen for each in bytes_in(both))


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


def test_the_server_never_has_the_key_of_encrypted_sums() -> None:
    table = Table("ckks", rows_of(3, wants=True))
    table.total(rows=UNION)
    table.total(rows=UNION, to="parties")
    seen = everything(table)
    guard = table.guards["a"]
    assert isinstance(guard, EncryptingGuard)
    key = guard._context.secret_key()
    from isthmus.protect.ckks import _serialize

    whole = _serialize(guard._context, secret=True)
    assert whole not in seen
    assert key is not None
    assert table.sums._context.is_public()  # type: ignore[attr-defined]
    public = next(m["public"] for _, _, m in table.seen if "public" in m)
    assert len(public) < len(whole)
    plain = table.replies["a"].columns["x"][0]  # type: ignore[index]
    assert plain.double().numpy().tobytes() not in seen


# ---- what parties refuse


def opened(table: Table, party: str, of: Sequence[str], **more: Any) -> Message:
    at = next(m["shield"] for to, m, _ in reversed(table.seen) if to == party and m["do"] == "call")
    message = {
        "do": "shield",
        "step": "open",
        "agreement": at["agreement"],
        "at": at["at"],
        "in": list(of),
        "what": "sums",
    }
    return table.guards[party].answer_step({**message, **more})


def closed_only(kind: str = "masks", parties: int = 4, **options: Any) -> Table:
    """Parts are closed, and nothing is opened."""
    table = Table(
        kind, weights_of(parties), meddle=lambda to, m: "gone" if m.get("step") == "open" else None, **options
    )
    with pytest.raises(TooFewAnswers):
        table.total()
    return table


@pytest.mark.parametrize("of", [["a"], ["a", "a"], ["b", "c"]])
def test_a_party_does_not_open_a_sum_of_one_or_one_that_it_is_not_in(of: list[str]) -> None:
    with pytest.raises(IsthmusError, match=r"refused: a sum over . is not opened, it needs 2"):
        opened(closed_only(), "a", of)


def test_a_party_opens_a_sum_once() -> None:
    table = closed_only()
    opened(table, "a", "abcd")
    with pytest.raises(IsthmusError, match="was opened before, or does not exist"):
        opened(table, "a", "abc")


def test_a_party_has_a_say_in_how_many_are_in_a_sum() -> None:
    with pytest.raises(IsthmusError, match="refused: a sum over 3 is not opened, it needs 4"):
        opened(closed_only(min_parties=4), "a", "abc")


def test_masks_are_used_once() -> None:
    table = closed_only()
    call = next(m for to, m, _ in table.seen if to == "a" and m["do"] == "call")
    with pytest.raises(IsthmusError, match="refused: masks are used up"):
        table.answer("a", call)


@pytest.mark.parametrize("told", [{"of": ["b", "c"]}, {"least": 1}, {"least": 5}, {"count": 10**6}])
def test_keys_are_not_made_for_what_would_not_protect(told: dict[str, Any]) -> None:
    guard = closed_only().guards["a"]
    message = {"step": "keys", "agreement": "x", "of": list("abcd"), "count": 1, "least": 3}
    with pytest.raises(IsthmusError, match="refused: keys for"):
        guard.answer_step({**message, **told})


def test_an_encrypted_sum_of_one_is_not_opened_for_the_server() -> None:
    table = Table("ckks", weights_of(3))
    table.total()
    part = next(m for to, _, m in table.seen if to == "b" and "closed" in m)
    message = {"step": "open", "agreement": table.sums._name, "closed": part["closed"], "form": part["form"]}  # type: ignore[attr-defined]
    with pytest.raises(IsthmusError, match="refused: a sum over 1 is not opened"):
        table.guards["a"].answer_step({**message, "in": ["a", "b", "c"], "what": "counts"})


# ---- what is wrong with a part


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_a_sum_cannot_hold_is_left_out_and_named(kind: str) -> None:
    replies = weights_of(3)
    replies["b"] = Reply.of("b", Answer({**_fields(replies["b"]), "loss": torch.tensor([1e30], dtype=torch.float64)}))
    replies["b"].weights = replies["a"].weights
    table = Table(kind, replies)
    found = table.total().total
    assert "'loss' has a number beyond" in found.missing["b"]
    same(found.payload(), table.plain(["a", "c"]).payload(), 1e-4)


def _fields(reply: Reply) -> dict[str, Any]:
    return wire.unflatten(reply.columns)


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
    found, due = table.total(rows=UNION, min_contributors=2).total, table.plain(table.parties[1:], UNION, 2)
    assert torch.equal(found.opened, due.opened)  # type: ignore[arg-type]
    same(found.payload(), due.payload(), 1e-4)
    sums = [m for _, m, _ in table.seen if m.get("step") == "open" and m["what"] == "sums"]
    assert all(list(m["in"]) == list("bcde") for m in sums)


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
        sets = {frozenset(m["in"]) for _, m, _ in table.seen if m.get("step") == "open"}
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


def too_large(total: Total, request: Any) -> str:
    return "a part is far too large" if float(total.sums["weights/w"].abs().max()) > 1e4 else ""


def with_liars(parties: int, *liars: str) -> dict[str, Reply]:
    replies = weights_of(parties)
    for liar in liars:
        replies[liar] = Reply.of(liar, Answer({**_fields(replies[liar]), "right": torch.zeros(1, 2, dtype=torch.long)}))
        replies[liar].columns["weights/w"] = torch.full((1, 4, 3), 1e6)
        replies[liar].weights = {"weights": torch.ones(1, dtype=torch.float64)}
    return replies


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("liar", ["a", "d", "h"])
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
    sets = {tuple(m["in"]) for _, m, _ in table.seen if m.get("step") == "open"}
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
