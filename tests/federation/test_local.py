"""A run in this process is the same run with every payload through bytes, and the same with every party alone."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scripted import NAMES, bits, federation_of, number, site_of, small_parties

from helpers import CLASSES, FEATURES, assert_close, make_graph_parties, make_node_parties
from isthmus.errors import TooFewAnswers
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Reply
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.transport import Command, Each
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Averaging, Model
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.scaffold import Scaffold
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Gcn
from isthmus.study.loop import Run, RunResult
from isthmus.tasks.classification import GraphClassification, NodeClassification

PARTIES = {
    "dense": lambda: make_node_parties(),
    "sparse": lambda: make_node_parties(sparse=True, untrained=(2,)),
    "graphs": lambda: make_graph_parties(),
}
METHODS: dict[str, Averaging] = {
    "fedavg": FedAvg(rounds=4, fraction=0.5, local=LocalTraining(epochs=2)),
    "fedavg of all": FedAvg(rounds=3, local=LocalTraining(epochs=2, batch_size=3, optimizer="sgd", lr=0.1)),
    "scaffold": Scaffold(rounds=4, fraction=0.75, local=LocalTraining(epochs=2, optimizer="sgd", lr=0.1)),
}


def run(method: Averaging, held: str = "dense", **options: Any) -> Run:
    parties = PARTIES[held]()
    level = parties[0].level
    task = (NodeClassification if level == "node" else GraphClassification)(classes=CLASSES)
    torch.manual_seed(0)
    return Run(method, parties, task, Gcn(hidden=8).build(FEATURES, CLASSES, level), seed=5, **options)


def told(result: RunResult) -> Any:
    return bits({"weights": result.weights, "metrics": result.metrics, "history": result.history})


@pytest.mark.parametrize("side_by_side", [True, False], ids=["cohort", "alone"])
@pytest.mark.parametrize("held", PARTIES)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
@pytest.mark.thinned(10)
def test_through_bytes_a_run_is_the_same_bit_for_bit(method: Averaging, held: str, side_by_side: bool) -> None:
    plain, wired = (run(method, held, wire=wire, side_by_side=side_by_side) for wire in (False, True))
    results = plain.go(), wired.go()
    assert told(results[0]) == told(results[1])
    assert results[0].ledger.entries == results[1].ledger.entries
    assert bits(plain.federation.save()) == bits(wired.federation.save())


@pytest.mark.parametrize("held", PARTIES)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
@pytest.mark.thinned(9)
def test_one_cohort_gives_what_cohorts_of_one_give(method: Averaging, held: str) -> None:
    together, alone = (run(method, held, side_by_side=side_by_side) for side_by_side in (True, False))
    results = together.go(), alone.go()
    assert_close(together.state.weights, alone.state.weights)
    assert results[0].ledger.entries == results[1].ledger.entries


def test_sampled_rounds_ask_the_sampled_alone() -> None:
    result = run(METHODS["fedavg"]).go()
    asked = [call.parties for call in result.ledger.entries if call.action == "train"]
    assert [len(parties) for parties in asked] == [2] * 4
    assert len(set(asked)) > 1


class Poisoned(FedAvg):
    """party-1 answers NaN in round 2."""

    class AtParty(FedAvg.AtParty):
        @action("total")
        def train(self, request: Payload) -> Answer:
            answer = super().train(request)
            if "party-1" not in self.cohort.names or self.answered[self.hosted.names.index("party-1")] != 3:
                return answer
            weights = self.model.stacks()
            at = self.cohort.names.index("party-1")
            bad = {name: stack.index_fill(0, torch.tensor([at]), torch.nan) for name, stack in weights.items()}
            return Answer({"weights": bad}, weight=answer.weight)


@pytest.mark.parametrize("side_by_side", [True, False], ids=["cohort", "alone"])
@pytest.mark.parametrize("wire", [False, True], ids=["in process", "wire"])
@pytest.mark.parametrize("held", ["dense", "sparse"])
@pytest.mark.thinned(3)
def test_a_party_that_diverges_is_named_and_left_out_of_that_round(held: str, wire: bool, side_by_side: bool) -> None:
    result = run(Poisoned(rounds=3), held, wire=wire, side_by_side=side_by_side).go()
    failed = [(r["round"], r["action"], r["party"], r["sent"]) for r in result.ledger.rows() if r["status"] == "failed"]
    assert failed == [(2, "train", "party-1", 0)]
    assert all(bool(weight.isfinite().all()) for weight in result.weights.values())
    assert result.rounds == 3


def test_the_round_without_a_diverged_party_is_that_of_the_others() -> None:
    poisoned = run(Poisoned(rounds=2))
    poisoned.go()
    due = run(FedAvg(rounds=2))
    for state in due.method.server(due.federation, Model(due.module), due.state):
        if state.round == 1:
            due.federation.total("evaluate", {"weights": state.weights})
            due.federation.sample = lambda fraction: tuple(name for name in NAMES if name != "party-1")  # type: ignore[method-assign]
    assert_close(poisoned.state.weights, due.state.weights, within=1e-6)


@pytest.mark.parametrize("wire", [False, True], ids=["in process", "wire"])
def test_a_run_that_needs_everyone_stops_at_a_diverged_party(wire: bool) -> None:
    with pytest.raises(TooFewAnswers, match=r"round 2, train: only 3 of 4 .* party-1 \(field 'w"):
        run(Poisoned(rounds=3, quorum=1.0), wire=wire).go()


def test_requests_and_answers_are_copies_on_the_wire() -> None:
    def script(site: Any, request: Payload) -> Answer:
        request["w"].add_(1)
        site.kept["w"] = torch.zeros(len(site.cohort), 2)
        return Answer({"w": site.kept["w"]})

    transport = LocalTransport([site_of(script)], wire=True)
    mine = torch.zeros(2)
    reply = transport.send(Command("answer", NAMES, "say", "ask", {"w": mine}))[0]
    reply.columns["w"][0].add_(1)
    assert not mine.any()
    assert not Federation(transport).save()["party-0"]["kept"]["w"].any()


class Watched(Site):
    """Counts the answers that are in memory when it makes the next."""

    made: list[weakref.ref[Any]]
    held: list[int]

    def attempt(self, name: str, request: Payload | Each, of: Sequence[str]) -> tuple[Reply, Exception | None]:
        self.held.append(sum(each() is not None for each in self.made))
        reply, error = super().attempt(name, request, of)
        self.made += [weakref.ref(reply), *map(weakref.ref, reply.columns.values())]
        return reply, error


@pytest.mark.parametrize("wire", [False, True], ids=["in process", "wire"])
def test_answers_to_a_total_are_added_up_as_they_come(wire: bool) -> None:
    def script(site: Any, request: Payload) -> Answer:
        names = site.cohort.names
        w = torch.stack([torch.full((9,), 0.1 + number(name)) for name in names])
        return Answer({"w": w}, weight=torch.tensor([number(name) for name in names]))

    whole = site_of(script)
    Watched.made, Watched.held = [], []
    alone = [Watched(whole.method, [party], whole.task, whole.model.module) for party in whole.hosted.parties]
    for site in alone:
        site.actions = whole.actions  # type: ignore[method-assign]
    found, due = (Federation(LocalTransport(sites, wire=wire)) for sites in (alone, [whole]))
    assert bits(found.total("say").mean("w")) == bits(due.total("say").mean("w"))
    assert Watched.held == [0, 0, 0, 0]
    assert found.ledger.entries == due.ledger.entries


def test_a_sum_comes_as_one_reply_and_columns_where_someone_watches() -> None:
    def script(site: Any, request: Payload) -> Answer:
        return Answer({"n": torch.ones(len(site.cohort))})

    transport, seen = LocalTransport([site_of(script, [party]) for party in small_parties()]), list[Any]()
    replies = transport.send(Command("answer", NAMES, "say", "total", {}, sum_only=True))
    assert [(reply.parties, reply.columns) for reply in replies] == [(NAMES, {})]
    totals = [Federation(transport, watch=watch).total("say") for watch in ({}, {"other": seen.append})]
    assert not seen
    totals.append(Federation(transport, watch={"say": seen.append}).total("say"))
    assert [[reply.columns["n"].tolist() for reply in replies] for replies in seen] == [[[1.0]] * 4]
    assert [total.sum("n").item() for total in totals] == [4.0] * 3


def test_names_of_parties_need_not_be_names_of_fields() -> None:
    site = site_of(lambda site, request: None)
    object.__setattr__(site.hosted, "names", ("Bank A/S", "b:c", "d", "e"))
    transport = LocalTransport([site], wire=True)
    mail = {"d": {"Bank A/S": {"x": 1}}, "Bank A/S": {"b:c": {"x": 2}, "d": {"x": 3}}, "e": {"x": 4}}
    transport.send(Command("deliver", transport.parties, "say", payload=mail))
    assert site.inbox["say"] == {2: {"Bank A/S": {"x": 1}}, 0: {"b:c": {"x": 2}, "d": {"x": 3}}, 3: {"x": 4}}


def test_parties_are_those_of_all_sites_in_their_order() -> None:
    parties = make_node_parties((4, 4, 4))
    sites = [site_of(lambda site, request: None, here) for here in (parties[2:], parties[:2])]
    assert LocalTransport(sites).parties == ("party-2", "party-0", "party-1")
    assert LocalTransport(sites, [party.name for party in parties]).parties == ("party-0", "party-1", "party-2")


def test_parties_that_all_fail_at_one_site_are_left_out_while_others_answer() -> None:
    def script(site: Any, request: Payload) -> Answer:
        if "party-0" in site.cohort.names or "party-1" in site.cohort.names:
            raise ValueError("no memory")
        return Answer({"n": torch.ones(len(site.cohort))})

    found = federation_of(script, split=((0, 1), (2, 3)), quorum=0.5).total("say")
    assert found.sum("n").item() == 2.0
    assert set(found.missing) == {"party-0", "party-1"}
    with pytest.raises(ValueError, match="no memory"):
        federation_of(script, split=((0,), (1,)), quorum=0.5).total("say")
