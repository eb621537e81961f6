"""Sites answer for the parties they host, keep what belongs to each, and name the one that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import NAMES, Scripted, bits, number, site_of, small_parties

from isthmus.errors import IsthmusError, PartyFailed, PayloadError
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.site import Kept, Site, action
from isthmus.federation.transport import Each
from isthmus.store import pack, unpack

# ---- what a site keeps


def kept_by(count: int) -> Kept:
    kept = Kept()
    kept.now = tuple(range(count))
    return kept


def values_of(value: Any, count: int) -> list[Any]:
    """One value per party of what `Kept` hands out."""
    if isinstance(value, Mapping):
        parts = {name: values_of(inner, count) for name, inner in value.items()}
        return [{name: part[at] for name, part in parts.items()} for at in range(count)]
    assert len(value) == count
    return list(value)


def made(kind: str, count: int, start: int) -> Any:
    """A value to keep for some parties, its numbers unlike any other's."""
    numbers = torch.arange(start, start + count, dtype=torch.float64)
    if kind == "stack":
        return torch.stack([numbers, -numbers], 1)
    if kind == "mapping":
        return {"a": numbers, "b": {"c": torch.stack([numbers, numbers], 1)}}
    if kind == "plain":
        return numbers.tolist()
    return [torch.full((at % 3,), float(start + at)) for at in range(count)]


parties = st.sets(st.integers(0, 3), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
kinds = st.sampled_from(["stack", "mapping", "ragged", "plain"])
writes = st.tuples(st.just("write"), st.sampled_from("xy"), parties, kinds)
reads = st.tuples(st.sampled_from(["read", "get", "restart", "copy"]), st.sampled_from("xy"), parties, st.just(""))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.one_of(writes, reads), max_size=12))
def test_kept_is_a_plain_dictionary_per_party(steps: list[tuple[str, str, tuple[int, ...], str]]) -> None:
    kept, model = Kept(), {name: {} for name in "xy"}
    for turn, (step, name, now, kind) in enumerate(steps):
        kept.now = now
        here = model[name]
        assert (name in kept) == all(at in here for at in now)
        if step == "write":
            value = made(kind, len(now), 10 * turn)
            kept[name] = value
            here |= dict(zip(now, values_of(value, len(now)), strict=True))
        elif step == "restart":
            saved = unpack(pack(kept.save(NAMES)))
            kept = Kept()
            kept.restore(NAMES, saved)
        elif step == "copy":
            twin = kept.copy()
            twin[name] = made("plain", len(now), -1000)
        elif step == "get":
            default = torch.tensor(-1.0)
            found = kept.get(name, default)
            assert bits(values_of(found, len(now))) == bits([here.get(at, default) for at in now])
        elif all(at in here for at in now):
            assert bits(values_of(kept[name], len(now))) == bits([here[at] for at in now])
        else:
            with pytest.raises(IsthmusError, match=f"nothing is kept under '{name}' yet"):
                kept[name]


def test_what_is_alike_is_read_as_a_stack_and_the_rest_as_a_list() -> None:
    kept = kept_by(3)
    kept["stack"], kept["group"] = torch.eye(3), {"w": torch.arange(3)}
    kept["ragged"] = [torch.ones(1), torch.ones(2), torch.ones(2)]
    kept["mixed"] = [torch.ones(1), torch.ones(1).double(), torch.ones(1).double()]
    kept.now = (1, 2)
    assert torch.equal(kept["stack"], torch.eye(3)[1:])
    assert torch.equal(kept["group"]["w"], torch.tensor([1, 2]))
    assert torch.equal(kept["ragged"], torch.ones(2, 2))
    kept.now = (0, 1)
    assert bits(kept["ragged"]) == bits([torch.ones(1), torch.ones(2)])
    assert [value.dtype for value in kept["mixed"]] == [torch.float32, torch.float64]


# ---- actions


def test_actions_are_the_marked_ones_and_those_of_the_base() -> None:
    class More(Scripted.AtParty):
        @action
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
    return Answer({"draw": torch.stack([torch.rand(2, generator=g) for g in site.generators("noise")])})


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


def test_a_failure_that_is_no_message_is_named_by_its_type() -> None:
    def script(site: Site, request: Any) -> Answer:
        if "party-2" in site.cohort.names:
            raise ZeroDivisionError("division by zero")
        return Answer({"n": [1] * len(site.cohort)})

    reply = site_of(script).answer("say", {}, NAMES)
    assert reply.failures == {"party-2": "action 'say', ZeroDivisionError (the log at the party says more)"}


def test_a_cohort_that_fails_whole_raises_what_happened() -> None:
    def script(site: Site, request: Any) -> Answer:
        raise ZeroDivisionError(f"{len(site.cohort)} parties")

    with pytest.raises(ZeroDivisionError, match="4 parties"):
        site_of(script).answer("say", {}, NAMES)


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
