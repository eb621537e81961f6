"""A run stops, chooses, saves and goes on as its options say; what cannot fit is an error before it starts."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from helpers import make_node_parties
from isthmus import store
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Answers, Total
from isthmus.federation.local import LocalTransport
from isthmus.federation.models import Models
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Method, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedproto import FedProto
from isthmus.methods.gcfl import GCFL
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder, Gcn
from isthmus.study.loop import Run, RunResult, over_parties
from isthmus.study.setup import module_for, task_for
from isthmus.tasks.classification import NodeClassification
from isthmus.tasks.regression import NodeRegression
from isthmus.testing import Subject, small_parties


class Scripted(Method):
    """Says in every round what its options tell it: so many hits of 100 in validation and in test."""

    val: tuple[int, ...] = ()
    test: tuple[int, ...] = ()

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights={"made in": torch.zeros(1)})
        for state.round in state.rounds(self.rounds):
            state.weights = {"made in": torch.full((1,), float(state.round))}
            yield state

    def models(self, state: State) -> Models:
        return Models(shared=state.weights)

    def evaluate(self, federation: Federation, state: State) -> Total | Answers:
        return federation.total("evaluate", {"round": state.round})

    class AtParty(Site):
        method: Scripted

        @action("total")
        def evaluate(self, request: Payload) -> Answer:
            at = request["round"] - 1
            return Answer({"val": counts(self.method.val, at), "test": counts(self.method.test, at)})


class Silent(Scripted):
    """Its server forgets to yield."""

    def server(self, federation: Federation, model: Model, state: State) -> Any:
        state.start(weights={})


class Stateless(Scripted):
    """Its server yields no state."""

    def server(self, federation: Federation, model: Model, state: State) -> Any:
        yield


class Short(Scripted):
    """Its server ends before its first round."""

    def server(self, federation: Federation, model: Model, state: State) -> Any:
        yield from ()


class Renaming(Scripted):
    """Its server calls the weights otherwise than its `models`."""

    def server(self, federation: Federation, model: Model, state: State) -> Any:
        for state.round in state.rounds(self.rounds):
            state.w = {}
            yield state

    def evaluate(self, federation: Federation, state: State) -> Total | Answers:
        return federation.total("evaluate", {"round": len(self.models(state).shared)})


def counts(hits: tuple[int, ...], at: int) -> dict[str, Tensor]:
    """Counts of one party with `hits[at]` of 100 items right, or with no item."""
    confusion = torch.zeros(1, 2, 2, dtype=torch.long)
    if hits:
        confusion[0, 0] = torch.tensor([hits[at], 100 - hits[at]])
    return {"confusion": confusion, "loss": torch.zeros(1, dtype=torch.float64)}


TEST = (51, 52, 99, 54, 55, 56)
"""Best in round 3, in which nothing may be chosen."""


def scripted(
    val: tuple[int, ...], *, test: tuple[int, ...] = TEST, ways: dict[str, Any] | None = None, **options: Any
) -> Run:
    party = replace(make_node_parties((6,))[0], name="a")
    method = Scripted(val=val, test=test, **{"rounds": 6, **options})
    return Run(method, [party], NodeClassification(classes=2, metric="accuracy"), GCNConv(16, 2), **(ways or {}))


@pytest.mark.parametrize(
    ("val", "options", "rounds", "chosen"),
    [
        ((50, 60, 55, 58, 70, 10), {"patience": 0}, 6, 5),
        ((50, 60, 55, 58, 70, 10), {"patience": 2}, 4, 2),
        ((50, 60, 55, 58, 70, 10), {"patience": 3}, 6, 5),
        ((50, 60, 60, 60, 60, 60), {"patience": 2}, 4, 2),
        ((90, 10, 10, 10, 10, 10), {"patience": 1}, 2, 1),
        ((10, 20, 30, 40, 50, 60), {"patience": 1}, 6, 6),
        ((0, 0, 0, 0, 0, 0), {"patience": 4}, 5, 1),
        ((50, 60, 55, 58, 70, 10), {"patience": 2, "select": "last"}, 4, 4),
        ((50, 60, 55, 58, 70, 10), {"select": "last"}, 6, 6),
        ((50, 60, 55, 58, 70, 10), {"rounds": 1, "patience": 5}, 1, 1),
        ((), {"patience": 1}, 6, 6),
    ],
)
def test_patience_stops_and_selection_chooses_by_validation_alone(
    val: tuple[int, ...], options: dict[str, Any], rounds: int, chosen: int
) -> None:
    result = scripted(val, **options).go()
    assert (result.rounds, result.chosen_round) == (rounds, chosen)
    assert result.metrics["test_accuracy"] == TEST[chosen - 1] / 100
    assert result.metrics.get("val_accuracy") == (val[chosen - 1] / 100 if val else None)
    assert float(result.weights["made in"]) == chosen


class OfTwoParties(Method):
    """In validation one party has 100 items and the other 10, and the small one gets better while the large one does
    not; the third has none."""

    HITS: ClassVar[Any] = {"a": (100, (90, 80, 80)), "b": (10, (1, 5, 4)), "c": (0, (0, 0, 0))}

    server = Scripted.server
    models = Scripted.models

    def evaluate(self, federation: Federation, state: State) -> Total | Answers:
        return self.collect_counts(federation, {"round": state.round})

    class AtParty(Site):
        @action("total", "ask")
        def evaluate(self, request: Payload) -> Answer:
            confusion = torch.zeros(len(self.cohort), 2, 2, dtype=torch.long)
            for at, (items, hits) in enumerate(OfTwoParties.HITS[name] for name in self.cohort.names):
                hit = hits[request["round"] - 1]
                confusion[at, 0] = torch.tensor([hit, items - hit])
            counted = {"confusion": confusion, "loss": torch.zeros(len(self.cohort), dtype=torch.float64)}
            return Answer({"val": counted, "test": counted})


@pytest.mark.parametrize("by", ["total", "ask"])
@pytest.mark.parametrize(
    ("over", "patience", "chosen", "rounds"),
    [("items", 0, 1, 3), ("parties", 0, 2, 3), ("items", 1, 1, 2), ("parties", 1, 2, 3)],
)
def test_the_round_is_chosen_over_items_or_over_parties(
    over: str, patience: int, chosen: int, rounds: int, by: str
) -> None:
    parties = [replace(party, name=name) for party, name in zip(make_node_parties((6, 5, 4)), "abc", strict=True)]
    method = OfTwoParties(rounds=3, select_over=over, patience=patience, evaluate_by=by)
    result = Run(method, parties, NodeClassification(classes=2, metric="accuracy"), GCNConv(16, 2)).go()
    assert (result.chosen_round, result.rounds) == (chosen, rounds)
    assert result.metrics["val_accuracy"] == pytest.approx({1: 91, 2: 85}[chosen] / 110)


@pytest.mark.parametrize("by", ["total", "ask"])
@pytest.mark.parametrize("stopped_in", [0, 1, 2])
def test_each_party_has_the_round_that_is_best_for_itself(tmp_path: Path, stopped_in: int, by: str) -> None:
    parties = [replace(party, name=name) for party, name in zip(make_node_parties((6, 5, 4)), "abc", strict=True)]
    task = NodeClassification(classes=2, metric="accuracy")

    def stop(at: int, _: Mapping[str, float]) -> None:
        if at == stopped_in:
            raise KeyboardInterrupt

    def run(**ways: Any) -> RunResult:
        ways |= {"checkpoint": tmp_path / "checkpoint", "save_every": 0.0}
        method = OfTwoParties(rounds=3, select_over="each", evaluate_by=by)
        return Run(method, parties, task, GCNConv(16, 2), **ways).go()

    with suppress(KeyboardInterrupt):
        run(on_round=stop)
    result = run()
    assert result.metrics["test_accuracy"] == result.metrics["val_accuracy"] == pytest.approx(95 / 110)
    assert {party: of["test_accuracy"] for party, of in result.parties.items()} == {"a": 0.9, "b": 0.5}
    made = {party: float(weights["made in"]) for party, weights in result.models["parties"].items()}
    assert made == {"a": 1, "b": 2, "c": 3}  # without items to judge by, the last
    assert result.models.keys() == {"parties"}
    assert [value for _, name, value in result.history if name == "val_accuracy"] == pytest.approx(
        [91 / 110, 95 / 110, 95 / 110]
    )


@pytest.mark.parametrize("options", [{}, {"evaluate_with": "trained"}, {"clusters": True}])
def test_the_model_of_a_partys_own_round_is_that_of_the_round(options: dict[str, Any]) -> None:
    parties, given = make_node_parties((30, 20, 25)), {**options}
    kind = GCFL if given.pop("clusters", False) else FedAvg
    task = task_for(parties, 3)
    module = module_for(Gcn(), parties, task, 0)
    local = LocalTraining(lr=0.05, epochs=3)

    def run(rounds: int, **ways: Any) -> RunResult:
        return Run(kind(rounds=rounds, local=local, **given, **ways), parties, task, module).go()

    rounds = {at: run(at, select="last") for at in range(1, 6)}
    result, found = run(5, select_over="each"), set()
    for party, weights in result.models["parties"].items():
        same = [at for at, each in rounds.items() if equal(weights, whole_model(each, party))]
        assert any(rounds[at].parties[party] == result.parties[party] for at in same)
        assert weights.keys() == module.state_dict().keys()
        found.add(min(same))
    assert len(found) > 1


def whole_model(result: RunResult, party: str) -> dict[str, Tensor]:
    groups = [result.models["groups"][name] for name, members in result.groups.items() if party in members]
    shared = groups[0] if groups else result.models.get("shared", {})
    return {**shared, **result.models.get("parties", {}).get(party, {})}


def equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize(
    ("method", "threshold", "told"),
    [
        (FedAvg(select_over="each"), "f1", "select_over = 'each' needs labels and a threshold that is a number"),
        (FedProto(select_over="each"), 0.5, "'each' does not fit a method that predicts by what all share"),
    ],
)
def test_parties_have_no_rounds_of_their_own_where_all_choose_or_share(
    method: Method, threshold: Any, told: str
) -> None:
    parties, task = make_node_parties((12, 10)), NodeClassification(classes=2, threshold=threshold)
    for party in parties:
        party.graph.y.clamp_(max=1)
    with pytest.raises(IsthmusError, match=told):
        Run(method, parties, task, module_for(Gcn(), parties, task, 0)).go()


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ("parties", "needs the scores of parties: set evaluate_by='ask', which shows the serv"),
        ("each", "a federation chooses one round for all: set 'items' or 'parties'"),
    ],
)
def test_a_server_that_reads_only_sums_cannot_choose_over_parties(over: str, told: str) -> None:
    parties = make_node_parties((6, 5))
    transport = LocalTransport([], [party.name for party in parties])
    method, task = FedAvg(select_over=over), NodeClassification(classes=2)
    with pytest.raises(IsthmusError, match=told):
        Run(method, [], task, GCNConv(16, 2), transport=transport)


def test_history_has_every_metric_of_every_round() -> None:
    result = scripted((50, 60, 55, 58, 70, 10), patience=2).go()
    found = [(at, value) for at, name, value in result.history if name == "test_accuracy"]
    assert found == [(at, TEST[at - 1] / 100) for at in (1, 2, 3, 4)]
    assert {name for _, name, _ in result.history} == set(result.metrics)


@pytest.mark.parametrize("stopped_in", [2, 3, 4])
@pytest.mark.parametrize("options", [{"patience": 2}, {"patience": 3}, {"patience": 2, "select": "last"}])
def test_resumed_run_counts_its_patience_on(tmp_path: Path, stopped_in: int, options: dict[str, Any]) -> None:
    val = (50, 60, 55, 58, 70, 10)
    whole = scripted(val, **options).go()
    ways = {"checkpoint": tmp_path / "checkpoint", "save_every": 0.0}

    def stop(at: int, _: Mapping[str, float]) -> None:
        if at == stopped_in:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        scripted(val, ways={**ways, "on_round": stop}, **options).go()
    resumed = scripted(val, ways=ways, **options).go()
    assert outline(resumed) == outline(whole)


def test_run_that_stopped_by_patience_stays_stopped_when_resumed(tmp_path: Path) -> None:
    val = (50, 60, 55, 58, 70, 10)
    ways = {"checkpoint": tmp_path / "checkpoint", "save_every": 0.0}
    first = scripted(val, ways=ways, patience=2).go()
    seen: list[int] = []
    again = scripted(val, ways={**ways, "on_round": lambda at, _: seen.append(at)}, patience=2).go()
    assert not seen
    assert outline(again) == outline(first)


def outline(result: RunResult) -> dict[str, Any]:
    whole = result.dump()
    del whole["seconds"]
    return {**whole, "weights": {name: weight.tolist() for name, weight in result.weights.items()}}


def test_resumed_run_counts_its_seconds_on(tmp_path: Path) -> None:
    ways = {"checkpoint": tmp_path / "checkpoint", "save_every": 0.0}
    run = scripted((1,) * 6, ways=ways)
    run.progress |= {"seconds": 1000.0, "processor_seconds": 900.0}
    run.go()
    again = scripted((1,) * 6, ways=ways).go()
    assert (again.seconds > 1000.0, again.processor_seconds > 900.0) == (True, True)


def test_checkpoint_waits_for_its_interval(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    scripted((1,) * 6, ways={"checkpoint": file, "save_every": 1e9}).go()
    assert not file.exists()


def test_checkpoints_that_take_long_are_written_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []

    def slow(path: Path, data: bytes, *, private: bool = False) -> None:
        time.sleep(0.02)
        written.append(time.perf_counter())

    monkeypatch.setattr(store, "write", slow)
    ways = {"checkpoint": tmp_path / "checkpoint", "on_round": lambda at, metrics: time.sleep(0.01)}
    scripted((1,) * 60, test=(1,) * 60, rounds=60, ways={**ways, "save_every": 1e-9}).go()
    pauses = [later - earlier for earlier, later in itertools.pairwise(written)]
    assert pauses
    assert min(pauses) >= 0.2


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(IsthmusError, match="no test or validation item to evaluate"):
        scripted((), test=()).go()


def test_result_is_the_round_with_the_best_validation() -> None:
    parties = make_node_parties()
    task = task_for(parties)
    result = Run(FedAvg(rounds=12), parties, task, module_for(Gcn(hidden=8), parties, task, 0)).go()
    by_round = {at: value for at, name, value in result.history if name == "val_accuracy"}
    assert result.chosen_round == max(by_round, key=lambda at: (by_round[at], -at))
    due = {name: value for at, name, value in result.history if at == result.chosen_round}
    assert result.metrics == due


# ---- the model before training


class Own(nn.Module):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.conv = GCNConv(features, outputs)

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


def drawn(model: Any, seed: int) -> Tensor:
    """The first matrix of the model before training."""
    parties = make_node_parties()
    module = module_for(model, parties, task_for(parties), seed)
    return next(weight for weight in module.parameters() if weight.dim() == 2).detach().clone()


@pytest.mark.parametrize(
    "make",
    [lambda: Own(16, 3), lambda: Own, lambda: lambda features, outputs: Own(features, outputs), lambda: Gcn(hidden=4)],
    ids=["module", "class", "function", "encoder"],
)
def test_weights_are_drawn_by_the_seed_alone(make: Callable[[], Any]) -> None:
    first, again, other = make(), make(), make()
    before = torch.get_rng_state()
    weight = drawn(first, 0)
    assert torch.equal(weight, drawn(again, 0))
    assert not torch.equal(weight, drawn(other, 1))
    assert torch.equal(torch.get_rng_state(), before)


class ScriptedErrors(Scripted):
    """Says in every round what its options tell it: the squared error of one item."""

    class AtParty(Scripted.AtParty):
        @action("total")
        def evaluate(self, request: Payload) -> Answer:
            squared = torch.tensor([float(self.method.val[request["round"] - 1])])
            labels = {"entries": torch.ones(1, 1, dtype=torch.long), "labels": squared[:, None].sqrt()}
            sums = {**labels, "squares": squared[:, None], "squared": squared, "absolute": squared.sqrt()}
            return Answer({"val": sums, "test": sums})


def test_a_round_with_a_smaller_error_is_the_better_one() -> None:
    method = ScriptedErrors(val=(4, 1, 9, 25, 0), rounds=5, patience=2)
    result = Run(method, make_node_parties((5,)), NodeRegression(tasks=1), GCNConv(16, 1)).go()
    assert (result.rounds, result.chosen_round) == (4, 2)
    assert result.metrics["val_rmse"] == result.metrics["test_mae"] == 1.0


def test_parties_that_share_nodes_are_evaluated_on_the_whole_as_well():
    """Every node once, on the graph that the parties' parts make together, by the server's weights."""
    from isthmus.data.datasets.banks import Banks
    from isthmus.data.partition.overlap import Overlap

    parties = Overlap().cut(Banks(nodes=300).load(seed=0), 3, seed=0)
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(), parties, task, 0)
    result = Run(Method.named("fedavg")(rounds=2), parties, task, module).go()
    whole = pool_parties(parties)
    module.load_state_dict(result.weights)
    module.eval()
    guess = module(whole.graph.x, whole.graph.edge_index).argmax(1)
    due = float((guess == whole.graph.y)[whole.test].double().mean())
    assert result.metrics["pooled_test_accuracy"] == pytest.approx(due)
    alone = Run(Method.named("local")(rounds=1), parties, task, module).go()
    assert "pooled_test_accuracy" not in alone.metrics


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_each_partys_metrics_are_those_of_its_own_test_items(wire: bool, side_by_side: bool) -> None:
    parties = make_node_parties()
    task = task_for(parties)
    module = module_for(Gcn(hidden=8, dropout=0.0), parties, task, 0)
    run = Run(FedAvg(rounds=3), parties, task, module, wire=wire, side_by_side=side_by_side)
    found = run.go()
    module.load_state_dict(found.weights)
    module.eval()
    for party in parties:
        with torch.no_grad():
            right = (module(party.graph.x, party.graph.edge_index).argmax(1) == party.graph.y)[party.test]
        if right.numel():
            assert found.parties[party.name]["test_accuracy"] == pytest.approx(float(right.float().mean()))
        else:
            assert party.name not in found.parties
    sizes = {party.name: int(party.test.sum()) for party in parties}
    mean = sum(sizes[name] * own["test_accuracy"] for name, own in found.parties.items()) / sum(sizes.values())
    assert found.metrics["test_accuracy"] == pytest.approx(mean)


def test_partys_metrics_are_of_the_chosen_round_also_after_a_stop(tmp_path: Path) -> None:
    parties = make_node_parties()
    task = task_for(parties)
    method = FedAvg(rounds=8)

    def run(**more: Any) -> Run:
        return Run(method, parties, task, module_for(Gcn(hidden=8), parties, task, 0), **more)

    def stop(at: int, metrics: Mapping[str, float]) -> None:
        if at == 5:
            raise KeyboardInterrupt

    whole = run().go()
    place = {"checkpoint": tmp_path / "a.checkpoint", "save_every": 0.0}
    with suppress(KeyboardInterrupt):
        run(**place, on_round=stop).go()
    assert run(**place).go().parties == whole.parties
    alone = run().method.model_copy(update={"rounds": whole.chosen_round, "select": "last"})
    module = module_for(Gcn(hidden=8), parties, task, 0)
    assert Run(alone, parties, task, module).go().parties == whole.parties


# ---- metrics over parties


def small_run(ways: dict[str, Any] | None = None, *, there: bool = False, **options: Any) -> Run:
    """Two rounds at four parties; `there` leaves their data to the transport, as a federation does."""
    parties = make_node_parties()
    task = task_for(parties)
    module = module_for(Gcn(hidden=4), parties, task, 0)
    method = FedAvg(rounds=2, **options)
    if not there:
        return Run(method, parties, task, module, **(ways or {}))
    transport = LocalTransport([method.site([party], task, module) for party in parties])
    return Run(method, [], task, module, transport=transport)


def test_over_parties_are_the_means_and_the_worst() -> None:
    tested = {
        "a": (10, {"test_loss": 1.0, "test_accuracy": 0.9}),
        "b": (30, {"test_loss": 2.0, "test_accuracy": 0.5}),
        "c": (20, {"test_loss": 3.0}),
    }
    assert over_parties(tested) == {
        "test_loss": {
            "mean": 2.0,
            "weighted": 130 / 60,
            "worst": 3.0,
            "worst_party": "c",
            "worst_items": 20,
            "parties": 3,
        },
        "test_accuracy": {
            "mean": 0.7,
            "weighted": 0.6,
            "worst": 0.5,
            "worst_party": "b",
            "worst_items": 30,
            "parties": 2,
        },
    }
    assert over_parties({}) == {}


def test_over_parties_follow_from_the_parties_metrics_and_the_weighted_mean_is_the_pooled_one() -> None:
    result = small_run().go()
    entry, accuracies = result.over_parties["test_accuracy"], [m["test_accuracy"] for m in result.parties.values()]
    assert entry["weighted"] == pytest.approx(result.metrics["test_accuracy"])
    assert entry["mean"] == pytest.approx(sum(accuracies) / 4)
    assert entry["worst"] == min(accuracies) == result.parties[entry["worst_party"]]["test_accuracy"]
    assert entry["mean"] != entry["weighted"]


# ---- which model is evaluated, and who learns the counts


def test_the_trained_model_of_each_party_is_evaluated_and_saved() -> None:
    run = small_run(evaluate_with="trained")
    result = run.go()
    assert result.evaluated == "trained"
    assert result.models.keys() == {"shared", "parties"}
    right = items = 0
    for party in make_node_parties():
        run.module.load_state_dict(result.models["parties"][party.name])
        run.module.eval()
        with torch.no_grad():
            found = run.module(party.graph.x, party.graph.edge_index).argmax(1) == party.graph.y
        right, items = right + int(found[party.test].sum()), items + int(party.test.sum())
    assert result.metrics["test_accuracy"] == pytest.approx(right / items)
    for weights in result.models["parties"].values():
        assert any(not torch.equal(weight, result.weights[name]) for name, weight in weights.items())


def test_what_is_evaluated_does_not_change_training() -> None:
    sent, trained = (small_run(evaluate_with=way, select="last").go() for way in ("sent", "trained"))
    assert sent.evaluated == "sent"
    assert sent.models.keys() == {"shared"}
    assert all(torch.equal(weight, trained.weights[name]) for name, weight in sent.weights.items())
    assert sent.metrics != trained.metrics


def test_a_resumed_run_has_the_trained_models_of_an_uninterrupted_one(tmp_path: Path) -> None:
    ways = {"checkpoint": tmp_path / "checkpoint", "save_every": 0.0}

    def stop(at: int, _: Mapping[str, float]) -> None:
        if at == 2:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        small_run({**ways, "on_round": stop}, evaluate_with="trained").go()
    resumed, whole = small_run(ways, evaluate_with="trained").go(), small_run(evaluate_with="trained").go()
    assert resumed.history == whole.history
    for party, weights in whole.models["parties"].items():
        assert all(torch.equal(weight, resumed.models["parties"][party][name]) for name, weight in weights.items())


@pytest.mark.parametrize("there", [False, True], ids=["study", "federation"])
def test_asking_for_counts_gives_the_same_metrics_and_the_ledger_says_so(there: bool) -> None:
    summed, asked = (small_run(there=there, evaluate_by=way).go() for way in ("total", "ask"))
    assert asked.history == summed.history
    assert (asked.metrics, asked.chosen_round) == (summed.metrics, summed.chosen_round)
    for result, verb, eyes in ((summed, "total", "server sees the sum"), (asked, "ask", "server sees each answer")):
        rows = [row for row in result.ledger.rows() if row["action"] == "evaluate"]
        assert {(row["verb"], row["eyes"]) for row in rows} == {(verb, eyes)}
    in_study = small_run().go()
    assert (asked.parties, asked.over_parties) == (in_study.parties, in_study.over_parties)
    assert bool(summed.over_parties) is not there


@pytest.mark.parametrize("how", ["total", "ask"])
def test_data_in_one_place_have_no_worst_party(how: str) -> None:
    parties = make_node_parties()
    module = Gcn(hidden=8).build(16, 3, "node")
    method = Method.named("centralized")(rounds=2, evaluate_by=how)
    result = Run(method, parties, NodeClassification(classes=3), module).go()
    assert result.over_parties == result.parties == {}


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    class Odd(NodeClassification):
        name = ""

        def score(self, metrics: Mapping[str, float]) -> float | None:
            return float("nan") if metrics["accuracy"] == 0.1 else metrics["accuracy"]

    method, task = Scripted(val=(10, 5, 4), test=(1, 1, 1), rounds=3), Odd(classes=2, metric="accuracy")
    result = Run(method, [make_node_parties((5,))[0]], task, GCNConv(16, 2)).go()
    assert result.chosen_round == 2


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (Silent, "its server side yields nothing: yield state every round"),
        (Stateless, "its server side yields None: yield its state every round"),
        (Short, "its server side ended before its first round: yield its state every round"),
        (Renaming, r"the state has no 'weights' yet: give it one in state.start\(...\)"),
    ],
)
def test_a_server_side_with_a_mistake_is_one_line(method: type[Scripted], says: str) -> None:
    party = make_node_parties((6,))[0]
    with pytest.raises(IsthmusError, match=says):
        Run(method(rounds=1), [party], NodeClassification(classes=2), GCNConv(16, 2)).go()


# ---- what stays


@pytest.mark.thinned(12)
@pytest.mark.parametrize("name", Method.known())
def test_a_finished_run_frees_its_data_at_once(name: str) -> None:
    """Without a collection of cycles, which may be far off: big tensors are few objects."""
    kind = Method.named(name)
    rounds = {"rounds": 1} if "rounds" in kind.model_fields else {}
    subject = Subject(kind.read(rounds, name), small_parties(kind.levels[0]), Encoder.named(kind.encoder)(hidden=4))
    run = subject.run()
    run.go()
    data, clock = [weakref.ref(run), weakref.ref(run.transport)], run.federation.clock
    gc.disable()
    try:
        del run, subject
        assert [each() for each in data] == [None, None]
        with pytest.raises(IsthmusError, match="the run of this federation is gone: keep the Run"):
            clock()
    finally:
        gc.enable()
