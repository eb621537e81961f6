"""Sites answer for the parties they host, keep what belongs to each, and name the one that failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scripted import NAMES, Scripted, bits, number, site_of, small_parties

from helpers import CLASSES
from isthmus.errors import IsthmusError, PartyFailed, PayloadError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.site import Site
from isthmus.federation.transport import Command, Each
from isthmus.nn.stacks import dense
from isthmus.store import pack, unpack

# ---- actions


def test_actions_are_the_marked_ones_and_those_of_the_base() -> None:
    class More(Scripted.AtParty):
        @action("ask")
        def more(self, request: Any) -> None: ...

        def helper(self) -> None: ...

    assert More.actions().keys() == {"evaluate", "lend", "say", "more"}
    assert Site.actions().keys() == {"evaluate", "lend"}


def test_an_unknown_action_is_named_with_the_nearest() -> None:
    with pytest.raises(IsthmusError, match="no action 'sai': did you mean 'say'"):
        site_of(lambda site, request: None).answer("sai", {}, NAMES)


def test_inside_an_action_only_the_asked_parties_are_there_in_their_order() -> None:
    def script(site: Site, request: Any) -> Answer:
        assert site.model.parties == len(site.cohort)
        return Answer({"name": list(site.cohort.names), "items": list(site.cohort.items)})

    reply = site_of(script).answer("say", {}, ("party-3", "party-1", "elsewhere"))
    assert reply.parties == ("party-1", "party-3")
    assert reply.payload(1) == {"name": "party-3", "items": 5}


def test_a_request_that_differs_by_party_comes_as_stacks_and_lists() -> None:
    seen = {}

    def script(site: Site, request: Any) -> None:
        seen.update(request)

    each = Each({name: {"w": torch.tensor([float(number(name))]), "long": torch.ones(number(name))} for name in NAMES})
    site_of(script).answer("say", each, ("party-1", "party-2"))
    assert torch.equal(seen["w"], torch.tensor([[1.0], [2.0]]))
    assert [part.numel() for part in seen["long"]] == [1, 2]


def test_what_came_is_kept_until_the_next_delivery_and_over_a_restart() -> None:
    heard: list[Any] = []

    def script(site: Site, request: Any) -> None:
        heard.append(site.received("say"))

    site = site_of(script)
    site.deliver("say", {"party-1": {"x": 1}, "elsewhere": {"x": 9}})
    site.answer("say", {}, ("party-0", "party-1"))
    again = site_of(script)
    again.restore(unpack(pack(site.save())))
    again.answer("say", {}, ("party-1",))
    again.deliver("say", {"party-0": {"x": 2}})
    again.answer("say", {}, NAMES[:2])
    assert heard == [[{}, {"x": 1}], [{"x": 1}], [{"x": 2}, {}]]


# ---- draws


def draws(site: Site, request: Any) -> Answer:
    return Answer({"draw": site.draws("noise").uniform([1] * len(site.cohort), 2)})


def said(sites: Sequence[Site], asked: Sequence[str] = NAMES) -> dict[str, Any]:
    replies = [site.answer("say", {}, asked) for site in sites if not set(asked).isdisjoint(site.hosted.names)]
    return {name: bits(reply.payload(at)["draw"]) for reply in replies for at, name in enumerate(reply.parties)}


def test_a_party_draws_the_same_alone_and_in_a_cohort() -> None:
    alone = [site_of(draws, [party]) for party in small_parties()]
    together = [site_of(draws)]
    assert said(together) == said(alone)
    assert said(together, NAMES[1:3]) == said(alone, NAMES[1:3])
    assert said(together) == said(alone)


def test_draws_differ_by_party_action_count_and_run() -> None:
    site = site_of(draws)
    found = [*said([site]).values(), *said([site]).values(), *said([site_of(draws, seed=1)]).values()]
    assert len(set(found)) == 12


def test_a_restored_site_goes_on_drawing_where_it_was() -> None:
    first, second = site_of(draws), site_of(draws)
    said([first], NAMES[:2])
    second.restore(unpack(pack(first.save())))
    assert said([second]) == said([first])


# ---- failures


def faulty(site: Site, request: Any) -> Answer:
    """Counts the calls of every party; party-1 fails after it has written."""
    site.kept["calls"] = site.kept.get("calls", torch.tensor(0)) + 1
    if request.get("fail") and "party-1" in site.cohort.names:
        raise PartyFailed("party-1", "it rained\nall day")
    return Answer({"calls": site.kept["calls"], "draw": draws(site, request).fields["draw"]})


@pytest.mark.parametrize("together", [True, False], ids=["cohort", "alone"])
def test_a_failing_party_is_named_and_the_others_go_on(together: bool) -> None:
    sites = [site_of(faulty)] if together else [site_of(faulty, [party]) for party in small_parties()]
    untouched = site_of(faulty)
    for site in (*sites, untouched):
        site.answer("say", {}, NAMES)
    before = {name: bits(saved) for site in sites for name, saved in site.save().items()}
    replies = [site.answer("say", {"fail": True}, NAMES) for site in sites]
    assert {name: why for reply in replies for name, why in reply.failures.items()} == {
        "party-1": "action 'say', it rained all day"
    }
    assert [name for reply in replies for name in reply.parties] == ["party-0", "party-2", "party-3"]
    due = untouched.answer("say", {}, NAMES)
    for reply in replies:
        for at, name in enumerate(reply.parties):
            assert bits(reply.payload(at)) == bits(due.payload(due.parties.index(name)))
    after = {name: bits(saved) for site in sites for name, saved in site.save().items()}
    assert after["party-1"] == before["party-1"]
    for name in ("party-0", "party-2", "party-3"):
        assert after[name] == bits(untouched.save()[name])


def raised_at_party_2(error: Exception) -> Reply:
    """What a site answers for all, one of whom raises this error."""

    def script(site: Site, request: Any) -> Answer:
        if "party-2" in site.cohort.names:
            raise error
        return Answer({"n": [1] * len(site.cohort)})

    return site_of(script).answer("say", {}, NAMES)


def test_a_failure_that_is_no_message_is_named_by_its_type() -> None:
    reply = raised_at_party_2(ZeroDivisionError("division by zero"))
    assert reply.failures == {"party-2": "action 'say', ZeroDivisionError (see the log at the party)"}


def test_a_party_that_runs_out_of_memory_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    reply = raised_at_party_2(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has less"))
    assert reply.failures == {"party-2": "action 'say', out of memory (see the log at the party)"}
    (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert re.match(r"party 'party-2', action 'say': test_site.py:\d+: out of memory \(asked for 20 GiB\): use", line)


def test_a_cohort_that_fails_whole_raises_what_happened() -> None:
    def script(site: Site, request: Any) -> Answer:
        raise ZeroDivisionError(f"{len(site.cohort)} parties")

    with pytest.raises(ZeroDivisionError, match="4 parties"):
        site_of(script).answer("say", {}, NAMES)


def test_one_error_of_several_parties_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def script(site: Site, request: Any) -> Answer:
        if set(site.cohort.names) & {"party-1", "party-2", *request["more"]}:
            raise ValueError("too narrow")
        return Answer({"n": [1] * len(site.cohort)})

    site = site_of(script)
    site.answer("say", {"more": []}, NAMES)
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "party 'party-1' and 1 more, action 'say'"
    ]
    caplog.clear()
    with pytest.raises(ValueError, match="too narrow"):  # the caller says it
        site.answer("say", {"more": NAMES}, NAMES)
    assert not caplog.records


def test_mail_that_a_failed_attempt_took_is_there_for_the_next() -> None:
    def script(site: Site, request: Any) -> Answer:
        taken = [site.inbox["before"].pop(at)["n"] for at in site.positions]
        if "party-2" in site.cohort.names:
            raise ValueError("disk full")
        return Answer({"n": taken})

    site = site_of(script)
    site.deliver("before", {name: {"n": number(name)} for name in NAMES})
    reply = site.answer("say", {}, NAMES)
    assert reply.columns["n"] == [number(name) for name in NAMES if name != "party-2"]
    assert list(reply.failures) == ["party-2"]


def test_mail_of_those_who_did_not_fail_is_kept() -> None:
    def script(site: Site, request: Any) -> Mail:
        if "party-0" in site.cohort.names:
            raise PartyFailed("party-0", "no")
        return Mail([{"party-0": {"from": name}} for name in site.cohort.names])

    reply = site_of(script).answer("say", {}, NAMES)
    assert [letters["party-0"]["from"] for letters in reply.letters] == list(reply.parties) == list(NAMES[1:])


def test_an_answer_of_the_wrong_length_is_no_answer() -> None:
    with pytest.raises(PayloadError, match="field 'w' has 7 values, the parties asked are 4"):
        site_of(lambda site, request: Answer({"w": torch.ones(7)})).answer("say", {}, NAMES)


# ---- models

HEAD, BODY = "convs.0.bias", "convs.0.lin.weight"


def own(site: Site, names: Sequence[str], weight: str, plus: float) -> None:
    """Have these parties keep one weight, every value of it the party's number plus this one."""
    like = dict(site.model.module.named_parameters())[weight]
    with site.asked([site.hosted.names.index(name) for name in names]):
        site.load_model({weight: torch.stack([torch.full_like(like, number(name) + plus) for name in names])})
        site.keep_model([weight])


def loaded(site: Site, sent: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Every party's weights after the server sent these."""
    with site.asked():
        site.load_model(sent)
        stacks = {name: dense(stack) for name, stack in site.model.stacks().items()}
    return [{name: stack[at].clone() for name, stack in stacks.items()} for at in range(len(NAMES))]


def test_a_party_without_weights_of_its_own_has_the_sent_ones_over_the_initial_ones() -> None:
    site = site_of(faulty)
    initial = dict(site.model.module.named_parameters())
    for found in loaded(site, {HEAD: torch.full((CLASSES,), 7.0)}):
        assert found[HEAD].tolist() == [7.0] * CLASSES
        assert torch.equal(found[BODY], initial[BODY])


@pytest.mark.parametrize("restarted", [False, True])
def test_own_weights_go_over_the_sent_ones_at_those_parties_that_keep_any(restarted: bool) -> None:
    site = site_of(faulty)
    own(site, NAMES[1:2], HEAD, 10)
    own(site, NAMES[2:3], BODY, 20)
    if restarted:
        again = site_of(faulty)
        again.model.module.load_state_dict(site.model.module.state_dict())
        again.restore(unpack(pack(site.save())))
        site = again
    found = loaded(site, {HEAD: torch.full((CLASSES,), 7.0)})
    assert [float(each[HEAD][0]) for each in found] == [7, 11, 7, 7]
    assert bool((found[2][BODY] == 22).all())
    initial = dict(site.model.module.named_parameters())[BODY]
    assert all(torch.equal(found[at][BODY], initial) for at in (0, 1, 3))


def test_own_weights_go_over_those_that_differ_by_party() -> None:
    site = site_of(faulty)
    own(site, NAMES[:1], HEAD, 10)
    found = loaded(site, {HEAD: torch.arange(4.0).view(4, 1).expand(4, CLASSES)})
    assert [float(each[HEAD][0]) for each in found] == [10.0, 1.0, 2.0, 3.0]


def test_models_are_those_of_the_last_evaluation_each_whole() -> None:
    site = site_of(faulty)
    assert site.models() == {}
    own(site, NAMES, HEAD, 10)
    site.answer("evaluate", {}, NAMES)
    site.answer("evaluate", {"weights": {HEAD: torch.ones(CLASSES)}}, NAMES[1:3])
    assert list(site.models()) == ["party-1", "party-2"]
    for party, weights in site.models().items():
        assert weights.keys() == dict(site.model.module.named_parameters()).keys()
        assert weights[HEAD].tolist() == [number(party) + 10.0] * CLASSES


@pytest.mark.parametrize("late", [False, True], ids=["before its model is there", "after"])
def test_a_party_that_fails_while_it_is_evaluated_has_no_model_and_the_others_have_theirs(late: bool) -> None:
    site = site_of(faulty)
    own(site, NAMES, HEAD, 0)
    predict = site.predict

    def failing(request: Any) -> torch.Tensor:
        if late:
            predict(request)
        if "party-1" in site.cohort.names:
            raise PartyFailed("party-1", "it rained")
        return predict(request)

    site.predict = failing  # type: ignore[method-assign]
    assert list(site.answer("evaluate", {}, NAMES).failures) == ["party-1"]
    heads = {party: float(weights[HEAD][0]) for party, weights in site.models().items()}
    assert heads == {"party-0": 0.0, "party-2": 2.0, "party-3": 3.0}


def test_the_trained_model_is_evaluated_where_the_method_says_so() -> None:
    site = site_of(faulty)
    site.method = Scripted(script=faulty, evaluate_with="trained")
    sent = {name: weight.detach().clone() for name, weight in site.model.module.named_parameters()}
    with site.asked((0, 2)):
        site.load_model({name: weight + 5 for name, weight in sent.items()})
        site.after_training()
    site.answer("evaluate", {"weights": sent}, NAMES)
    found = [round(float((weights[HEAD] - sent[HEAD])[0]), 4) for weights in site.models().values()]
    assert found == [5.0, 0.0, 5.0, 0.0]


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(IsthmusError, match="unknown command 'dance'"):
        site_of(faulty).handle(Command("dance", NAMES))  # type: ignore[arg-type]
