"""The conformance suite passes a good method and names what is wrong with a bad one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Method, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.tasks.base import Step
from isthmus.testing import CHECKS, check_method, small_parties


class Mine(FedAvg):
    """The base of the methods below; each subclass changes one thing."""

    name = ""

    class AtParty(FedAvg.AtParty):
        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])
            self.method.local.fit(self, self.loss)
            weights = self.after({name: stack.clone() for name, stack in self.model.stacks().items()}, request)
            return Answer({"weights": weights}, weight=self.averaging_weights())

        def loss(self, step: Step) -> torch.Tensor:
            return self.task.loss(step)

        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            return weights


class Good(Mine):
    """Uses everything that is allowed: the server's state, values kept at a party, and the party's draws."""

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        weights = model.weights()
        state.start(weights=weights, speed={name: torch.zeros_like(weight) for name, weight in weights.items()})
        for state.round in state.rounds(self.rounds):
            mean = federation.total("train", {"weights": state.weights}).mean("weights")
            state.speed = {name: 0.5 * v + mean[name] - state.weights[name] for name, v in state.speed.items()}
            state.weights = {name: weight + state.speed[name] for name, weight in state.weights.items()}
            yield state

    class AtParty(Mine.AtParty):
        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            drift = self.kept.get("drift", torch.zeros(())) + 1e-3
            self.kept["drift"] = drift
            noise = self.draws("noise").uniform([1] * len(self.cohort))
            scale = 1 + drift + 1e-3 * noise
            return {name: stack * scale.view(-1, *[1] * (stack.dim() - 1)) for name, stack in weights.items()}


class PeeksAtTestLabels(Mine):
    class AtParty(Mine.AtParty):
        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            y = self.cohort.y[self.cohort.masks["test"]]
            peek = float((y == y[0]).sum() + y[0])
            return {name: stack + 1e-3 * peek for name, stack in weights.items()}


class WeighsPartiesByTestItems(Mine):
    class AtParty(Mine.AtParty):
        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])
            self.method.local.fit(self, self.loss)
            return Answer({"weights": self.model.stacks()}, weight=1.0 + self.cohort.counts("test").double())


class ScoresWithDropout(Mine):
    class AtParty(Mine.AtParty):
        def predict(self, request: Payload) -> torch.Tensor:
            self.load_evaluated(request)
            self.model.training = True
            with torch.no_grad():
                output: torch.Tensor = self.model(self.cohort.block, self.draws("dropout"))
            self.model.training = False
            return output


class AsksTwiceARound(Mine):
    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        for state.round in state.rounds(self.rounds):
            for _ in range(2):
                state.weights = federation.total("train", {"weights": state.weights}).mean("weights")
            yield state


class KeepsItsRateInALocalVariable(Mine):
    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        rate = 1.0
        for state.round in state.rounds(self.rounds):
            mean = federation.total("train", {"weights": state.weights}).mean("weights")
            state.weights = {name: w + rate * (mean[name] - w) for name, w in state.weights.items()}
            rate *= 0.5
            yield state


class KeepsAnUnsavedAttribute(Mine):
    class AtParty(Mine.AtParty):
        trained = 0

        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            self.trained += 1
            return {name: stack * (1 + 1e-3 * self.trained) for name, stack in weights.items()}


class DrawsWithoutASeed(Mine):
    class AtParty(Mine.AtParty):
        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            return {name: stack + 1e-3 * torch.randn_like(stack) for name, stack in weights.items()}


class LeavesAWeightUntrained(Mine):
    class AtParty(Mine.AtParty):
        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            name = next(iter(weights))
            return {**weights, name: request["weights"][name].expand_as(weights[name]).clone()}


class StopsWithoutAReason(Mine):
    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if self.aggregate["name"] != "mean":
            raise IsthmusError("it cannot run")
        yield from super().server(federation, model, state)


class HidesNaN(Mine):
    class AtParty(Mine.AtParty):
        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            return {name: stack.nan_to_num() for name, stack in weights.items()}


class HidesErrors(Mine):
    class AtParty(Mine.AtParty):
        @action("total")
        def train(self, request: Payload) -> Answer:
            try:
                return super().train(request)
            except RuntimeError:
                weights = {name: w.expand(len(self.cohort), *w.shape) for name, w in request["weights"].items()}
                return Answer({"weights": weights}, weight=self.averaging_weights())


class IgnoresThePartiesOfACohort(Mine):
    class AtParty(Mine.AtParty):
        def loss(self, step: Step) -> torch.Tensor:
            return F.cross_entropy(step.output, step.y)


class ChangesTheRequest(Mine):
    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        for state.round in state.rounds(self.rounds):
            mean = federation.total("train", {"weights": state.weights}).mean("weights")
            state.weights = {name: 0.5 * (w + mean[name]) for name, w in state.weights.items()}
            yield state

    class AtParty(Mine.AtParty):
        def after(self, weights: dict[str, Any], request: Payload) -> dict[str, Any]:
            for weight in request["weights"].values():
                weight.mul_(0.9)
            return weights


BAD = [
    (IgnoresThePartiesOfACohort, "cohort_law"),
    (ChangesTheRequest, "wire_equals_in_process"),
    (DrawsWithoutASeed, "same_seed_same_result"),
    (KeepsItsRateInALocalVariable, "resume_equals_uninterrupted"),
    (KeepsAnUnsavedAttribute, "resume_equals_uninterrupted"),
    (PeeksAtTestLabels, "test_labels_decide_nothing"),
    (WeighsPartiesByTestItems, "parties_without_test_items_count_for_nothing"),
    (ScoresWithDropout, "evaluation_draws_nothing"),
    (LeavesAWeightUntrained, "weights_travel_or_are_kept"),
    (AsksTwiceARound, "calls_are_declared"),
    (StopsWithoutAReason, "aggregations_run_or_refuse"),
    (HidesNaN, "faults_are_named"),
    (HidesErrors, "faults_are_named"),
]


@pytest.mark.parametrize(("method", "check"), BAD)
def test_bad_method_fails_its_check(method: type[Method], check: str) -> None:
    with pytest.raises(AssertionError, match=rf"^method '{method.__name__}' on nodes fails '{check}': "):
        check_method(method(rounds=3), small_parties("node"), checks=[check])


def test_every_check_has_a_method_that_fails_it() -> None:
    assert set(CHECKS) - {check for _, check in BAD} == {"ledger_counts_every_byte"}  # the ledger is not a method's


@pytest.mark.parametrize("level", ["node", "graph"])
def test_good_method_passes_everything(level: str) -> None:
    check_method(Good(rounds=3), small_parties(level))


def test_without_parties_every_level_of_the_method_is_checked() -> None:
    class OnlyGraphs(PeeksAtTestLabels):
        levels = ("graph",)

    with pytest.raises(AssertionError, match="on graphs fails"):
        check_method(OnlyGraphs, checks=["test_labels_decide_nothing"])


def test_method_without_a_name_is_not_registered() -> None:
    with pytest.raises(IsthmusError, match="unknown method 'good'"):
        Method.named("good")
    assert "" not in Method.known()
