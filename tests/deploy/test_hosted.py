"""Calls to hosts are calls to sites in this process, and what goes wrong is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from scripted import NAMES, bits, federation_of, number, site_of, small_parties
from tests.federation.hosts import InBytes

from isthmus.deploy.hosted import HostSide, HostTransport
from isthmus.deploy.remote import Message
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.site import Site
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation

SPLIT = {"a": NAMES[:1], "b": NAMES[1:]}


class Scripted(HostSide):
    def __init__(self, script: Callable[..., Any]) -> None:
        super().__init__()
        self.script = script

    def begin(self, plan: Message) -> Site:
        return site_of(self.script, [party for party in small_parties() if party.name in plan["parties"]])


def hosted(script: Callable[..., Any], split: dict[str, Sequence[str]] | None = None, **post: Any) -> HostTransport:
    split = split or SPLIT
    begin = {host: {"parties": list(parties)} for host, parties in split.items()}
    return HostTransport(InBytes(list(split), lambda: Scripted(script), **post), split, begin, 5.0)


def both(script: Callable[..., Any]) -> tuple[Federation, Federation]:
    """The same parties in this process, and at hosts."""
    return federation_of(script, split=((0,), (1, 2, 3)), quorum=0.5), Federation(hosted(script), quorum=0.5)


def stacked(site: Site, request: Any) -> Answer:
    site.kept["sum"] = torch.stack([torch.tensor([float(number(name))]) for name in site.cohort.names])
    return Answer(
        {"w": request["w"] + site.kept["sum"], "n": [number(name) for name in site.cohort.names]}, weight=None
    )


def test_a_total_is_the_same_to_the_bit() -> None:
    here, there = both(stacked)
    totals = [each.total("say", {"w": torch.full((1,), 0.1)}) for each in (here, there)]
    assert bits(totals[0].sums) == bits(totals[1].sums)
    assert here.ledger.entries == there.ledger.entries
    assert bits(here.save()) == bits(there.save())


def test_a_request_for_each_goes_to_the_host_of_that_party() -> None:
    _, there = both(lambda site, request: Answer({"mine": [value + 0 for value in request["v"]]}))
    answers = there.ask("say", Each({name: {"v": number(name)} for name in NAMES[1:]}), of=NAMES[1:])
    assert {party: answer["mine"] for party, answer in answers.items()} == {name: number(name) for name in NAMES[1:]}
    assert isinstance(there.transport, HostTransport)
    post = there.transport.post
    assert isinstance(post, InBytes)
    assert [host for host, message in post.sent if message["do"] == "answer"] == ["b"]


def test_mail_reaches_parties_at_other_hosts_and_old_mail_is_gone() -> None:
    letters = [{"party-3": {"from": torch.ones(1)}}, {}]

    def script(site: Site, request: Any) -> Any:
        if request["what"] == "read":
            return Answer({"came": [len(box) for box in site.received("say")]})
        return Mail([letters[request["turn"]] if name == "party-0" else {} for name in site.cohort.names])

    here, there = both(script)
    for federation in (here, there):
        for turn, due in ((0, [0, 0, 0, 1]), (1, [0, 0, 0, 0])):
            federation.exchange("say", {"what": "send", "turn": turn})
            assert [each["came"] for each in federation.ask("say", {"what": "read"}).values()] == due
    assert here.ledger.entries == there.ledger.entries


def test_what_cannot_travel_is_the_fault_of_its_party_alone() -> None:
    def script(site: Site, request: Any) -> Answer:
        bad = {"party-1": torch.tensor([torch.nan]), "party-2": torch.ones(2, 2).to_sparse()}
        return Answer({"w": [bad.get(name, torch.ones(1)) for name in site.cohort.names]})

    here, there = both(script)
    assert here.ask("say").missing == there.ask("say").missing
    assert list(there.ask("say").missing) == ["party-1", "party-2"]


def failing(names: Sequence[str]) -> Callable[..., Any]:
    def script(site: Site, request: Any) -> Answer:
        if set(names) & set(site.cohort.names):
            raise ValueError("too bad")
        return Answer({"w": torch.ones(len(site.cohort))})

    return script


def test_a_party_that_fails_is_named_and_the_others_answer() -> None:
    there = Federation(hosted(failing(["party-2"])), quorum=0.5)
    assert list(there.ask("say").missing) == ["party-2"]
    with pytest.raises(TooFewAnswers, match="3 of 4 parties answered"):
        Federation(hosted(failing(["party-2"]))).ask("say")


def test_where_all_parties_of_a_host_fail_the_method_is_wrong() -> None:
    there = Federation(hosted(failing(NAMES[1:])), quorum=0.1)
    with pytest.raises(IsthmusError, match=r"^host 'b': ValueError: too bad \(the host's own output says more\)$"):
        there.ask("say")


def test_a_lost_host_ends_the_run_with_a_word() -> None:
    def meddle(host: str, message: Message) -> str | None:
        return "it has ended the connection" if host == "b" and message["do"] == "answer" else None

    there = Federation(hosted(stacked, meddle=meddle), quorum=0.1)
    with pytest.raises(
        IsthmusError, match=r"^host 'b' is lost: it has ended the connection; start it again, .*--resume"
    ):
        there.total("say", {"w": torch.ones(1)})


def test_state_comes_back_to_whatever_hosts_there_are() -> None:
    first = Federation(hosted(stacked))
    first.total("say", {"w": torch.ones(1)})
    saved = first.save()
    for split in (SPLIT, {"x": NAMES[:2], "y": NAMES[2:3], "z": NAMES[3:]}):
        other = Federation(hosted(stacked, split))
        other.restore(saved)
        assert bits(other.save()) == bits(saved)
        assert other.parties == NAMES


def test_models_that_parties_keep_are_fetched() -> None:
    def script(site: Site, request: Any) -> None:
        numbers = [float(number(party)) for party in site.cohort.names]
        stacks = site.model.stacks().items()
        site.load_model({name: torch.stack([torch.full_like(stack[0], n) for n in numbers]) for name, stack in stacks})
        site.keep_model()
        site.predict({})

    here, there = federation_of(script, split=((0,), (1, 2, 3))), Federation(hosted(script))
    for federation in (here, there):
        federation.ask("say", of=NAMES[1:])
    assert bits(there.models()) == bits(here.models())
    assert list(there.models()) == list(NAMES[1:])
    assert all(bool((weight == 2).all()) for weight in there.models()["party-2"].values())


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"do": "dance", "action": "", "of": [], "payload": {}}, "unknown command 'dance'"),
        ({}, "KeyError"),
        ({"do": "answer", "action": "shout", "payload": {}, "of": ["party-1"]}, "has no action 'shout'"),
    ],
)
def test_a_message_that_is_none_is_refused(message: Message, why: str) -> None:
    side = Scripted(stacked)
    assert side.handle({"do": "save"}) == {"wrong": "no run has begun here"}
    side.handle({"do": "begin", "parties": ["party-1"]})
    assert why in side.handle(message)["wrong"]
