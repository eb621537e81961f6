"""Ask, total and exchange: who sees what, who is named when it goes wrong, and what the ledger says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from at_parties import transport_of
from scripted import NAMES, bits, federation_of, number, site_of

from isthmus.errors import Diverged, IsthmusError, NotFinite, PartyFailed, PayloadError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Answer, IdUnion, Mail
from isthmus.federation.site import Site
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.protect.options import Protect

ALONE = ((0,), (1,), (2,), (3,))
modes = pytest.mark.parametrize("through_bytes", [False, True], ids=["in process", "wire"])


def numbers(site: Site) -> list[int]:
    return [number(name) for name in site.cohort.names]


def hello(site: Site, request: Any) -> Answer:
    """Every party answers its number, as a stack, as ragged lists, and as plain numbers and texts."""
    at = numbers(site)
    return Answer(
        {
            "w": {"a": torch.tensor(at).float().view(-1, 1).expand(-1, 3)},
            "long": [torch.ones(n) for n in at],
            "n": at,
            "name": list(site.cohort.names),
        },
        weight=torch.tensor(at),
    )


def stacks(site: Site, request: Any) -> Answer:
    at = torch.tensor(numbers(site)).float()
    return Answer({"w": {"a": at.view(-1, 1).expand(-1, 3)}}, weight=at + 1)


def silent(site: Site, request: Any) -> None: ...


def ledger(federation: Federation, call: int = 0) -> list[tuple[Any, ...]]:
    rows = [row for row in federation.ledger.rows() if row["call"] == call]
    return [(row["party"], row["sent"], row["received"]) for row in rows]


# ---- ask


@modes
@pytest.mark.parametrize("split", [((0, 1, 2, 3),), ALONE], ids=["cohort", "alone"])
def test_ask_gives_every_partys_answer(split: Any, through_bytes: bool) -> None:
    answers = federation_of(hello, split=split, wire=through_bytes).ask("say", of=["party-3", "party-1"])
    assert list(answers) == ["party-3", "party-1"]
    assert answers.missing == {}
    due = {"w": {"a": torch.full((3,), 3.0)}, "long": torch.ones(3), "n": 3, "name": "party-3"}
    assert bits(dict(answers["party-3"])) == bits({**due, "weight of": {"all": torch.tensor(3)}})


@modes
def test_each_party_gets_its_own_request(through_bytes: bool) -> None:
    def script(site: Site, request: Any) -> Answer:
        return Answer({"n": list(request["n"])})

    each = Each({name: {"n": 10 * number(name)} for name in NAMES})
    federation = federation_of(script, split=((0, 1), (2, 3)), wire=through_bytes)
    assert {p: a["n"] for p, a in federation.ask("say", each, of=NAMES[1:]).items()} == {
        "party-1": 10,
        "party-2": 20,
        "party-3": 30,
    }


def test_a_site_sees_no_request_but_those_of_its_parties() -> None:
    seen = []

    federation = federation_of(silent, split=((0, 1), (2, 3)))
    for site in federation.transport.sites:
        site.attempt = lambda name, request, of, attempt=site.attempt: (  # type: ignore[method-assign]
            seen.append((tuple(request.payloads), tuple(of))) or attempt(name, request, of)
        )
    federation.ask("say", Each({name: {"n": 1} for name in NAMES}), of=NAMES[1:])
    assert seen == [(("party-1",), ("party-1",)), (("party-2", "party-3"), ("party-2", "party-3"))]


# ---- total


@modes
@pytest.mark.parametrize("split", [((0, 1, 2, 3),), ALONE], ids=["cohort", "alone"])
def test_total_gives_the_server_one_sum(split: Any, through_bytes: bool) -> None:
    total = federation_of(stacks, split=split, wire=through_bytes).total("say")
    assert total.mean("w")["a"].tolist() == [2.0] * 3  # (0*1 + 1*2 + 2*3 + 3*4) / (1 + 2 + 3 + 4)
    assert total.contributors == 4


@modes
def test_total_to_the_parties_leaves_the_server_blind(through_bytes: bool) -> None:
    heard: list[Any] = []

    def script(site: Site, request: Any) -> Answer | None:
        if "hear" in request:
            heard.extend(site.received("say"))
            return None
        return stacks(site, request)

    federation = federation_of(script, split=((0, 1), (2, 3)), wire=through_bytes)
    receipt = federation.total("say", to="parties", of=NAMES[:3])
    federation.ask("say", {"hear": True})
    assert [box["w"]["a"].tolist() for box in heard[:3]] == [[8.0] * 3] * 3
    assert heard[3] == {}
    assert receipt.sizes == {("total", name): wire.size(heard[0]) for name in NAMES[:3]}
    assert {row["eyes"] for row in federation.ledger.rows() if row["verb"] == "total"} == {"parties see the sum"}


IDS = {"party-0": [10, 20], "party-1": [20, 30], "party-2": [30, 20], "party-3": [40]}


def by_id(site: Site, request: Any) -> Answer:
    ids = [torch.tensor(IDS[name]) for name in site.cohort.names]
    fields: dict[str, Any] = {"ids": ids, "x": [i.float().view(-1, 1) for i in ids]}
    if request.get("wants"):
        fields["wants"] = [torch.tensor([20, 40]) for _ in ids]
    return Answer(fields)


@modes
def test_agree_gives_the_union_and_how_many_hold_each(through_bytes: bool) -> None:
    def script(site: Site, request: Any) -> Answer:
        return Answer({"ids": [torch.tensor(IDS[name] * 2) for name in site.cohort.names]})

    union = federation_of(script, wire=through_bytes).agree("say")
    assert (union.ids.tolist(), union.holders.tolist()) == ([10, 20, 30, 40], [1, 3, 2, 1])


def test_agree_needs_ids() -> None:
    with pytest.raises(PayloadError, match="party 'party-0', action 'say': no field 'ids'"):
        federation_of(stacks).agree("say")


@modes
def test_a_total_of_rows_opens_those_that_enough_parties_hold(through_bytes: bool) -> None:
    federation = federation_of(by_id, split=((0, 1), (2, 3)), wire=through_bytes)
    total = federation.total("say", rows=federation.agree("say"), min_contributors=2)
    assert total.sum("x").flatten().tolist() == [0, 60, 60, 0]
    assert total.opened.tolist() == [False, True, True, False]


@modes
@pytest.mark.parametrize("wants", [False, True], ids=["own rows", "wanted rows"])
def test_parties_get_the_rows_they_name_and_no_others(wants: bool, through_bytes: bool) -> None:
    heard: dict[str, Any] = {}

    def script(site: Site, request: Any) -> Answer | None:
        if "hear" in request:
            heard.update(zip(site.cohort.names, site.received("say"), strict=True))
            return None
        return by_id(site, request)

    federation = federation_of(script, split=((0, 1), (2, 3)), wire=through_bytes)
    union = federation.agree("say")
    federation.total("say", {"wants": wants}, to="parties", rows=union, min_contributors=2)
    federation.ask("say", {"hear": True})
    for party, ids in IDS.items():
        due = [20, 40] if wants else ids
        assert heard[party]["ids"].tolist() == due
        assert heard[party]["x"].flatten().tolist() == [{20: 60, 30: 60}.get(i, 0) for i in due]
        assert heard[party]["opened"].tolist() == [i in (20, 30) for i in due]
        assert heard[party].keys() == {"ids", "x", "opened"}


def test_a_total_of_too_few_is_not_opened_nor_delivered() -> None:
    federation = federation_of(stacks)
    with pytest.raises(TooFewAnswers, match="a total of 1 party is not opened: at least 2"):
        federation.total("say", of=NAMES[:1], to="parties", min_contributors=2)
    assert all(site.inbox == {} for site in federation.transport.sites)


# ---- one weighted sum per addressee

X = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
COEFFICIENTS = {
    "party-0": {"party-0": 0.3, "party-1": 0.7, "party-3": 1e-3},
    "party-2": {"party-2": -1.5, "party-1": 0.0, "party-0": 0.25},
    "party-3": {"party-3": 1.0, "party-0": 0.0, "party-1": 0.0},
}


def mixed(site: Site, request: Any) -> Answer | None:
    """Answers the own rows of X and a count, or says what came."""
    at = numbers(site)
    if request.get("hear"):
        came = site.received("say")
        return Answer({"x": [box.get("w", {}).get("x", torch.zeros(0)) for box in came], "n": [len(b) for b in came]})
    return Answer({"w": {"x": X[at]}, "n": at})


def over_messages(script: Any, protect: Protect | None = None) -> Federation:
    return Federation(transport_of(lambda here: site_of(script, here), protect)[0])


FEDERATIONS: dict[str, Callable[..., Federation]] = {
    "cohort": federation_of,
    "alone": lambda script: federation_of(script, split=ALONE),
    "wire": lambda script: federation_of(script, wire=True),
    "messages": over_messages,
}


@pytest.mark.parametrize("make", FEDERATIONS.values(), ids=FEDERATIONS.keys())
def test_every_addressee_gets_its_own_weighted_sum_and_no_other(make: Callable[..., Federation]) -> None:
    federation = make(mixed)
    receipt = federation.total("say", to="parties", coefficients=COEFFICIENTS)
    heard = {party: bits(dict(answer)) for party, answer in federation.ask("say", {"hear": True}).items()}
    due = {
        "party-0": (X[0] * 0.3 + X[1] * 0.7) + X[3] * 1e-3,
        "party-1": torch.zeros(0),
        "party-2": X[0] * 0.25 + X[2] * -1.5,
        "party-3": X[3] * 1.0,
    }
    assert heard == {party: bits({"x": x, "n": 2 if len(x) else 0}) for party, x in due.items()}
    assert (receipt.missing, [to for _, to in receipt.sizes]) == ({}, list(COEFFICIENTS))
    delivery = [row for row in federation.ledger.rows() if row["action"] == "say: delivery"]
    assert {row["party"]: row["received"] for row in delivery} == {to: size for (_, to), size in receipt.sizes.items()}
    assert {row["eyes"] for row in delivery} == {"parties see the sum"}


@pytest.mark.parametrize("make", FEDERATIONS.values(), ids=FEDERATIONS.keys())
def test_an_addressee_of_too_few_contributors_gets_no_sum_and_the_receipt_says_why(
    make: Callable[..., Federation],
) -> None:
    federation = make(mixed)
    federation.total("say", to="parties", coefficients=COEFFICIENTS)
    receipt = federation.total("say", to="parties", coefficients=COEFFICIENTS, min_contributors=2)
    assert receipt.missing == {"party-3": "a total of 1 party is not opened: at least 2 must contribute"}
    assert [to for _, to in receipt.sizes] == ["party-0", "party-2"]
    came = {party: answer["n"] for party, answer in federation.ask("say", {"hear": True}).items()}
    assert came == {"party-0": 2, "party-1": 0, "party-2": 2, "party-3": 0}


def test_a_party_that_fails_is_no_contributor() -> None:
    def script(site: Site, request: Any) -> Any:
        if "party-1" in site.cohort.names and not request.get("hear"):
            raise PartyFailed("party-1", "it rained")
        return mixed(site, request)

    federation = federation_of(script, quorum=0.5)
    receipt = federation.total("say", to="parties", coefficients=COEFFICIENTS, min_contributors=3)
    assert list(receipt.missing) == ["party-1", *COEFFICIENTS]
    assert not receipt.sizes
    federation.total("say", to="parties", coefficients=COEFFICIENTS)
    heard = federation.ask("say", {"hear": True}, of=["party-0", "party-3"])
    assert torch.equal(heard["party-0"]["x"], X[0] * 0.3 + X[3] * 1e-3)


@pytest.mark.parametrize("total", ["masks", "ckks"])
def test_a_protection_refuses_a_sum_per_addressee_in_one_line(total: str) -> None:
    federation = over_messages(mixed, Protect.read({"total": total}, "protect"))
    with pytest.raises(
        IsthmusError, match=f"^action 'say': '{total}' hides .*: set protect.total = 'none', or "
    ) as error:
        federation.total("say", to="parties", coefficients=COEFFICIENTS)
    assert "\n" not in str(error.value)
    assert not federation.ledger.entries


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"to": "server"}, r"action 'say': coefficients go with to='parties' and without rows"),
        ({"rows": IdUnion(torch.arange(2), torch.ones(2))}, "coefficients go with to='parties' and without rows"),
        ({"coefficients": {"party-9": {}}}, "unknown party 'party-9': did you mean"),
        ({"coefficients": {"party-0": {"prty-1": 1.0}}}, "unknown party 'prty-1': did you mean 'party-1'"),
        ({"coefficients": {"party-0": {"party-1": math.inf}}}, "coefficients for party 'party-0' are not finite"),
    ],
)
def test_coefficients_that_make_no_sense_are_refused_before_any_call(options: dict[str, Any], text: str) -> None:
    federation = federation_of(mixed)
    with pytest.raises(IsthmusError, match=text):
        federation.total("say", **{"to": "parties", "coefficients": COEFFICIENTS, **options})
    assert not federation.ledger.entries


def test_coefficients_are_the_only_weights() -> None:
    with pytest.raises(PayloadError, match="have no weight: the coefficients are the weights"):
        federation_of(stacks).total("say", to="parties", coefficients=COEFFICIENTS)


# ---- exchange


def letters_of(sender: str, addressees: Sequence[str] = NAMES) -> dict[str, wire.Payload]:
    return {to: {"x": torch.full((number(sender) + 1,), float(number(to)))} for to in addressees if to != sender}


@modes
@pytest.mark.parametrize("split", [((0, 1, 2, 3),), ALONE], ids=["cohort", "alone"])
def test_exchange_hands_every_message_to_its_addressee_alone(split: Any, through_bytes: bool) -> None:
    heard: dict[str, Any] = {}

    def script(site: Site, request: Any) -> Mail | None:
        if "hear" in request:
            heard.update(zip(site.cohort.names, site.received("say"), strict=True))
            return None
        return Mail([letters_of(name) for name in site.cohort.names])

    federation = federation_of(script, split=split, wire=through_bytes)
    receipt = federation.exchange("say", of=NAMES[:2])
    federation.ask("say", {"hear": True})
    sent = {(sender, to): letter for sender in NAMES[:2] for to, letter in letters_of(sender).items()}
    assert receipt.sizes == {pair: len(wire.encode(letter)) for pair, letter in sent.items()}
    for party in NAMES:
        assert bits(heard[party]) == bits({s: letter for (s, to), letter in sent.items() if to == party})


def test_a_message_to_nobody_is_named() -> None:
    federation = federation_of(lambda site, request: Mail([{"party-9": {"x": 1}} for _ in site.cohort.names]))
    with pytest.raises(PayloadError, match="party 'party-0', action 'say': a message to 'party-9', which is not"):
        federation.exchange("say")


@pytest.mark.parametrize(("verb", "script"), [("exchange", stacks), ("ask", "mail"), ("total", "mail")])
def test_mail_goes_by_exchange_and_answers_do_not(verb: str, script: Any) -> None:
    told = script if callable(script) else lambda site, request: Mail([letters_of(n) for n in site.cohort.names])
    with pytest.raises(IsthmusError, match=f"action 'say' was called by {verb} and makes"):
        getattr(federation_of(told), verb)("say")


# ---- sample


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 4), (0.75, 3), (0.5, 2), (0.3, 1), (0.01, 1)])
def test_sample_draws_its_share_in_party_order(fraction: float, count: int) -> None:
    chosen = federation_of(silent).sample(fraction)
    assert len(set(chosen)) == len(chosen) == count
    assert list(chosen) == sorted(chosen)


def test_sample_is_drawn_by_seed_and_round() -> None:
    def drawn(seed: int) -> list[Any]:
        turn = iter(range(100))
        federation = federation_of(silent, seed=seed, clock=lambda: next(turn))
        return [federation.sample(0.5) for _ in range(20)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) > 3
    assert {party for chosen in drawn(1) for party in chosen} == set(NAMES)


# ---- what is refused before it leaves


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"w": {"a": torch.tensor([math.nan])}}, "server, request of action 'say': field 'w/a' has 1 NaN"),
        ({"w": object()}, "server, request of action 'say': field 'w' is a object"),
        ({"a/b": 1}, "server, request of action 'say': field 'a/b'"),
        ([1], "server, request of action 'say': a payload maps names"),
        (
            Each({name: {"w": math.inf if name == "party-2" else 1.0} for name in NAMES}),
            "to party 'party-2': field 'w'",
        ),
        ({"w": torch.ones(500)}, "over the limit of 1000"),
    ],
    ids=["nan", "object", "name", "list", "each", "limit"],
)
@modes
def test_a_request_that_must_not_travel_never_leaves(request_: Any, says: str, through_bytes: bool) -> None:
    called = []
    federation = federation_of(lambda site, request: called.append(request), wire=through_bytes, limit=1000)
    with pytest.raises(PayloadError) as caught:
        federation.ask("say", request_)
    assert says in str(caught.value)
    assert called == federation.ledger.entries == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda f: f.ask("sya"), "no action 'sya': did you mean 'say'"),
        (lambda f: f.ask("say", of=["party1"]), "action 'say': unknown party 'party1': did you mean 'party-1'"),
        (lambda f: f.ask("say", of=[]), "action 'say': no party was asked"),
        (lambda f: f.ask("say", of=["party-1", "party-1"]), "action 'say': party 'party-1' was asked twice"),
        (lambda f: f.ask("say", Each({"party-0": {}})), "action 'say': no request for party 'party-1'"),
    ],
    ids=["action", "party", "nobody", "twice", "each"],
)
def test_a_wrong_name_is_told_with_the_nearest(call: Callable[[Federation], Any], says: str) -> None:
    federation = federation_of(silent)
    with pytest.raises(IsthmusError) as caught:
        call(federation)
    assert says in str(caught.value)
    assert federation.ledger.entries == []


# ---- faulty answers and the quorum


def one_bad(bad: Any, good: Any = 1.0) -> Callable[[Site, Any], Answer]:
    """party-1 answers what is bad."""
    return lambda site, request: Answer({"g": {"x": [bad if n == 1 else good for n in numbers(site)]}})


FAULTS = {
    "nan": (math.nan, 1.0, "action 'say', field 'g/x' is nan: " + NotFinite.HINT),
    "nan tensor": (
        torch.tensor([math.nan, 1]),
        torch.ones(2),
        "action 'say', field 'g/x' has 1 NaN or infinite value: " + NotFinite.HINT,
    ),
    "object": (None, 1.0, "action 'say', field 'g/x' is a NoneType: only tensors, numbers and texts travel"),
    "too large": (torch.ones(999), torch.ones(2), "action 'say', payload of 4076 bytes is over the limit of 1000"),
}


@modes
@pytest.mark.parametrize("split", [((0, 1, 2, 3),), ALONE], ids=["cohort", "alone"])
@pytest.mark.parametrize(("bad", "good", "why"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_answer_is_left_out_and_named(bad: Any, good: Any, why: str, split: Any, through_bytes: bool) -> None:
    federation = federation_of(one_bad(bad, good), split=split, wire=through_bytes, limit=1000, quorum=0.75)
    answers = federation.ask("say")
    assert list(answers) == ["party-0", "party-2", "party-3"]
    assert answers.missing == {"party-1": why}
    notes = {row["party"]: (row["status"], row["note"], row["sent"]) for row in federation.ledger.rows()}
    assert notes.pop("party-1") == ("failed", why, 0)
    assert set(notes.values()) == {("answered", "", len(wire.encode(answers["party-0"])))}


@modes
def test_a_weight_that_is_nan_leaves_its_party_out(through_bytes: bool) -> None:
    def script(site: Site, request: Any) -> Answer:
        weight = torch.tensor([math.nan if n == 1 else 1.0 for n in numbers(site)])
        return Answer({"n": torch.tensor(numbers(site)).float()}, weight)

    federation = federation_of(script, wire=through_bytes, quorum=0.5)
    assert federation.total("say").mean("n").item() == pytest.approx(5 / 3)


@modes
def test_a_message_that_cannot_travel_leaves_its_sender_out(through_bytes: bool) -> None:
    def script(site: Site, request: Any) -> Mail:
        return Mail([{"party-0": {"x": math.nan if n == 1 else 1.0}} for n in numbers(site)])

    receipt = federation_of(script, wire=through_bytes, quorum=0.5).exchange("say")
    assert receipt.missing == {"party-1": "action 'say', field 'x' is nan: " + NotFinite.HINT}
    assert [sender for sender, _ in receipt.sizes] == ["party-0", "party-2", "party-3"]


@modes
@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(2).double(), 1.0], ids=["shape", "dtype", "plain"])
def test_what_comes_back_in_another_form_is_left_out_and_yet_booked(bad: Any, through_bytes: bool) -> None:
    federation = federation_of(one_bad(bad, torch.ones(2)), wire=through_bytes, quorum=0.5)
    total = federation.total("say", {"g": {"x": torch.zeros(2)}})
    assert total.contributors == 3
    assert "field 'g/x' is " in total.missing["party-1"]
    assert "expected is torch.float32 [2]" in total.missing["party-1"]
    assert ledger(federation)[1][1] == len(wire.encode({"g": {"x": bad}}))


@pytest.mark.parametrize(("quorum", "passes"), [(0.75, True), (0.76, False), (1.0, False), (0.0, True)])
def test_below_the_quorum_a_call_says_who_is_missing(quorum: float, passes: bool) -> None:
    federation = federation_of(one_bad(math.nan), quorum=quorum, clock=lambda: 7)
    if passes:
        assert len(federation.ask("say")) == 3
        return
    with pytest.raises(Diverged) as caught:
        federation.ask("say")
    assert "round 7, say: only 3 of 4 parties answered (all must). " in str(caught.value)
    assert "Missing: party-1 (field 'g/x' is nan" in str(caught.value)
    assert len(federation.ledger.entries) == 1


def test_training_diverged_only_if_nothing_else_is_missing() -> None:
    def script(site: Site, request: Any) -> Answer:
        if 2 in numbers(site):
            raise PartyFailed("party-2", "disk full")
        return one_bad(math.nan)(site, request)

    with pytest.raises(TooFewAnswers, match=r"party-2 \(disk full\)") as caught:
        federation_of(script, split=ALONE, quorum=0.75).ask("say")
    assert not isinstance(caught.value, Diverged)


def test_a_request_of_the_server_that_diverged_is_told_as_such() -> None:
    with pytest.raises(
        NotFinite, match=r"^server, request of action 'say': field 'w' is inf: if training diverged, lower"
    ):
        federation_of(silent).ask("say", {"w": math.inf})


@pytest.mark.parametrize(
    ("everyone", "at", "stops"),
    [("never", 0, False), ("set-up", 0, True), ("set-up", 1, False), ("always", 0, True), ("always", 1, True)],
)
def test_everyone_must_answer_when_the_method_says_so(everyone: Any, at: int, stops: bool) -> None:
    federation = federation_of(one_bad(math.nan), quorum=0.5, everyone=everyone, clock=lambda: at)
    text = rf"^round {at}, say: only 3 of 4 parties answered \(all must\)\. Missing: party-1"
    for call in (federation.ask, federation.total):
        with pytest.raises(TooFewAnswers, match=text) if stops else nullcontext():
            call("say")


def test_everyone_is_everyone_asked() -> None:
    federation = federation_of(one_bad(math.nan), quorum=0.5, everyone="always")
    assert len(federation.ask("say", of=[name for name in NAMES if name != "party-1"])) == 3


def test_the_quorum_is_exact_where_floats_are_not() -> None:
    federation = federation_of(silent)
    federation.quorum = 0.07
    federation._require_answers("say", range(100), 7, {})
    with pytest.raises(TooFewAnswers, match=r"only 7 of 101 parties answered \(quorum 8\)"):
        federation._require_answers("say", range(101), 7, {})


# ---- the ledger


@modes
@pytest.mark.parametrize("split", [((0, 1, 2, 3),), ALONE, ((0, 1), (2, 3))], ids=["cohort", "alone", "pairs"])
@pytest.mark.parametrize("script", [hello, stacks, silent, by_id])
def test_the_ledger_has_the_bytes_of_every_answer(script: Any, split: Any, through_bytes: bool) -> None:
    federation = federation_of(script, split=split, wire=through_bytes)
    request = {"asked": {"w": torch.ones(2, 2)}, "n": 3}
    answers = federation.ask("say", request, of=NAMES[1:])
    sent = len(wire.encode(request))
    assert ledger(federation) == [(name, len(wire.encode(answers[name])), sent) for name in NAMES[1:]]


@modes
def test_the_ledger_has_the_bytes_of_every_request_of_its_own(through_bytes: bool) -> None:
    each = Each({name: {"w": torch.ones(number(name))} for name in NAMES})
    federation = federation_of(silent, wire=through_bytes)
    federation.ask("say", each)
    assert ledger(federation) == [(name, 16, len(wire.encode(each.payloads[name]))) for name in NAMES]


@modes
@pytest.mark.parametrize("split", [((0, 1, 2, 3),), ALONE], ids=["cohort", "alone"])
def test_the_ledger_has_the_bytes_of_every_message_and_delivery(split: Any, through_bytes: bool) -> None:
    federation = federation_of(
        lambda site, request: Mail([letters_of(name) for name in site.cohort.names]), split=split, wire=through_bytes
    )
    federation.exchange("say")
    size = {(s, to): len(wire.encode(letter)) for s in NAMES for to, letter in letters_of(s).items()}
    sent = [(name, sum(n for (s, _), n in size.items() if s == name), 16) for name in NAMES]
    came = {name: sum(n for (_, to), n in size.items() if to == name) for name in NAMES}
    assert ledger(federation) == sent
    assert {party: row for party, _, row in ledger(federation, call=1)} == came
    assert federation.ledger.sent == sum(came.values())


@modes
def test_the_ledger_has_the_bytes_of_every_delivered_sum(through_bytes: bool) -> None:
    federation = federation_of(by_id, split=((0, 1), (2, 3)), wire=through_bytes)
    federation.total("say", to="parties", rows=federation.agree("say"), min_contributors=2)
    boxes = {name: saved["inbox"]["say"] for name, saved in federation.save().items()}
    assert ledger(federation, call=2) == [(name, 0, len(wire.encode(boxes[name]))) for name in NAMES]


def test_the_ledger_says_verb_eyes_fields_and_round() -> None:
    federation = federation_of(stacks, clock=lambda: 3)
    federation.ask("say")
    federation.total("say")
    assert [(call.round, call.call, call.verb, call.eyes, call.fields) for call in federation.ledger.entries] == [
        (3, 0, "ask", "server sees each answer", "w/a[3], weight of/all[]"),
        (3, 1, "total", "server sees the sum", "w/a[3], weight of/all[]"),
    ]
