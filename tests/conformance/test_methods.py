"""Every registered method passes every check, on every level that it supports."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers import slow_but
from isthmus.data.level import Level
from isthmus.federation import pieces
from isthmus.federation.wire import flatten
from isthmus.methods.base import Averaging, Method
from isthmus.methods.fedcog import FedCog
from isthmus.nn.encoders import Encoder
from isthmus.options import Options
from isthmus.testing import CHECKS, Labels, Subject, calls_in, check_method, refuses_typed_graphs, small_parties

CASES = [
    (name, level) for name, kind in Method.known().items() for level in kind.levels if level not in ("pair", "edge")
]
AVERAGING = [(name, level) for name, level in CASES if issubclass(Method.named(name), Averaging)]
AGGREGATED = [("fedavg", "node", 5), ("scaffold", "graph", 5)]
AGGREGATIONS = "aggregations_run_or_refuse"
MOST = {
    "rounds": 2, "epochs": 3, "head_epochs": 2, "teaching": 2, "check_every": 2, "width": 8, "edge_width": 8,
    "latest": 4, "span": 4, "steps": 4, "inner": 2, "personal_rounds": 2, "server_epochs": 2,
}  # fmt: skip
"""Options that only make a method take longer, with as much of them as shows whether it conforms."""


def shortened(options: Options) -> dict[str, Any]:
    """The options of which there is more than `MOST`, with as much as that."""
    found: dict[str, Any] = {}
    for name in options.option_names():
        value = getattr(options, name)
        if isinstance(value, Options):
            found[name] = shortened(value)
        elif name in MOST and value > MOST[name]:
            found[name] = MOST[name]
    return found


def quick(name: str, rounds: int, **options: Any) -> Method:
    """The method with few steps, and all else by default."""
    kind = Method.named(name)
    return kind.read({**shortened(kind()), **kind.soon, "rounds": rounds, **options}, name)


FIRST = [(name, Method.named(name).levels[0]) for name in Method.known()]
"""Of a method that is for several levels the first: what the other levels could break runs for them with the slow."""


@pytest.mark.parametrize(("name", "level"), slow_but(FIRST, CASES))
@pytest.mark.thinned(6)
def test_method_conforms(name: str, level: Level) -> None:
    check_method(quick(name, rounds=3), small_parties(level), checks=[each for each in CHECKS if each != AGGREGATIONS])


TYPED = [(name, level) for name, level in CASES if Method.named(name).typed]
QUICK = [(name, "node") for name in ("fedavg", "fedper", "centralized")]


@pytest.mark.parametrize(("name", "level"), slow_but(QUICK, TYPED))
@pytest.mark.thinned(3)
def test_method_conforms_on_typed_graphs(name: str, level: Level) -> None:
    encoder = Encoder.named("rgcn")(hidden=8)
    checks = [each for each in CHECKS if each != AGGREGATIONS]
    check_method(quick(name, rounds=3), small_parties(level, typed=True), encoder=encoder, checks=checks)


@pytest.mark.parametrize("name", sorted(set(Method.known()) - {name for name, _ in TYPED}))
def test_other_methods_refuse_typed_graphs(name: str) -> None:
    method = quick(name, rounds=1)
    if method.unsupervised:
        pytest.skip("its task makes no model of typed graphs")
    subject = Subject(method, small_parties(method.levels[0], typed=True), Encoder.named("rgcn")(hidden=8))
    refuses_typed_graphs(subject)


@pytest.mark.parametrize(
    ("name", "level", "parties"),
    [
        ("fedavg", "node", 4),
        *slow_but(AGGREGATED, [(*each, 5) for each in AVERAGING]),
    ],
)
def test_aggregations_run_or_are_refused(name: str, level: Level, parties: int) -> None:
    """Krum refuses four parties."""
    check_method(quick(name, rounds=1), small_parties(level, parties), checks=[AGGREGATIONS])


SORTED = [(name, "node") for name in ("fedavg", "fedper", "fedcog", "fedgl")] + [("fclg", "graph")]


@pytest.mark.parametrize(("name", "level"), slow_but(SORTED, CASES))
@pytest.mark.thinned(3)
def test_cohorts_of_two_sorted_by_size_conform(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PARTIES", 2)
    monkeypatch.setattr(pieces, "SORTED_FROM", 1)
    check_method(quick(name, rounds=2), small_parties(level), checks=["cohort_law"])


DRAWN = [(name, level) for name, level in FIRST if "fraction" in Method.named(name).option_names()]


@pytest.mark.parametrize(("name", "level"), DRAWN)
@pytest.mark.thinned(6)
def test_half_of_the_parties_conform(name: str, level: Level) -> None:
    checks = ["cohort_law", "resume_equals_uninterrupted", "parties_without_test_items_count_for_nothing"]
    check_method(quick(name, rounds=4, fraction=0.5), small_parties(level), checks=checks)


@pytest.mark.parametrize(("name", "level"), [each for each in FIRST if not Method.named(each[0]).unsupervised])
@pytest.mark.thinned(6)
def test_a_class_of_nobody_and_one_of_a_single_party_conform(name: str, level: Level) -> None:
    """Of four classes nobody has the third, and only one party the last."""
    parties = []
    for at, party in enumerate(small_parties(level)):
        graph = party.graph.clone()
        graph.y = graph.y.clamp(max=1)
        if at == 0:
            graph.y[::5] = 3
        parties.append(replace(party, graph=graph))
    subject = Subject(quick(name, rounds=3), parties, Encoder.named(Method.named(name).encoder)(hidden=8))
    found = subject.run().go()
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert all(bool(each.isfinite().all()) for _, each in flatten(found.models) if isinstance(each, torch.Tensor))
    check_method(subject.method, parties, checks=["cohort_law"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("fedgc", {"preset": "paper"}), ("gcond", {"backbone": "gcn"})])
def test_matching_a_gcn_conforms(name: str, options: dict[str, Any]) -> None:
    kind = Method.named(name)
    method = kind.read({**shortened(kind()), "rounds": 4, "width_matched": 8, **options}, name)
    check_method(method, small_parties("node"), checks=[each for each in CHECKS if each != AGGREGATIONS])


@pytest.mark.parametrize("name", slow_but(["fedavg"], ["fedavg", "fedbn", "scaffold", "feddyn", "fedadam", "local"]))
def test_mini_batches_and_batch_norm_conform(name: str) -> None:
    kind = Method.named(name)
    # plain SGD, because the bias before a batch norm has only rounding as its gradient, and Adam makes full steps of it
    local = {"batch_size": 5, "clip": 1.0, "epochs": 2, "optimizer": "sgd", "lr": 0.05}
    sampling = {"fraction": 0.5} if "fraction" in kind.model_fields else {}
    method = kind.read({"rounds": 4, "local": local, **sampling}, name)
    checks = ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted"]
    check_method(method, small_parties("graph"), encoder=Encoder.named("gin")(hidden=8, norm=True), checks=checks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "local", "fedrep", "fedcog", "fgcl"])
def test_schedules_of_the_learning_rate_conform(name: str) -> None:
    kind = Method.named(name)
    method = kind.read({"rounds": 4, "local": {"schedule": "cosine", "warm_up": 1}}, name)
    checks = ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted"]
    check_method(method, small_parties(kind.levels[0]), checks=checks)


@pytest.mark.parametrize("name", slow_but(["fedavg"], ["fedavg", "scaffold", "local", "centralized"]))
@pytest.mark.slow
def test_methods_conform_on_graphs_with_several_tasks(name: str) -> None:
    check_method(Method.named(name)(rounds=3), small_parties("graph", labels="multilabel"))


@pytest.mark.parametrize(("name", "level"), [("fedavg", "graph"), ("scaffold", "node")])
@pytest.mark.thinned(2)
def test_methods_conform_on_regression(name: str, level: Level) -> None:
    checks = ["cohort_law", "test_labels_decide_nothing", "faults_are_named"]
    check_method(Method.named(name)(rounds=3), small_parties(level, labels="regression"), checks=checks)


@pytest.mark.slow
def test_fedavg_conforms_on_nodes_with_several_tasks() -> None:
    check_method(Method.named("fedavg")(rounds=3), small_parties("node", labels="multilabel"))


@pytest.mark.parametrize("name", slow_but(["fedavg", "fedcog"], ["fedavg", "fedcog", "local", "centralized"]))
@pytest.mark.slow
def test_methods_conform_on_pairs(name: str) -> None:
    check_method(Method.named(name)(rounds=3), small_parties("pair"))


@pytest.mark.parametrize("name", ["feddyn", "fedadam", "fedgcn"])
@pytest.mark.thinned(3)
def test_cohort_law_holds_on_pairs(name: str) -> None:
    check_method(Method.named(name)(rounds=2), small_parties("pair"), checks=["cohort_law"])


@pytest.mark.parametrize(("name", "typed"), [("fedavg", False), ("local", True), ("centralized", True)])
@pytest.mark.thinned(3)
def test_methods_conform_on_edges(name: str, typed: bool) -> None:
    checks = [each for each in CHECKS if each not in (AGGREGATIONS, "resume_equals_uninterrupted")]
    check_method(Method.named(name)(rounds=2), small_parties("edge", typed=typed), checks=checks)


@pytest.mark.parametrize("name", ["fedper", "fedstar", "gcfl", "moon", "scaffold", "majority"])
@pytest.mark.thinned(3)
def test_cohort_law_holds_on_edges(name: str) -> None:
    check_method(Method.named(name)(rounds=2), small_parties("edge"), checks=["cohort_law"])


@pytest.mark.slow
def test_mini_batches_of_edges_conform() -> None:
    local = {"batch_size": 20, "fan_out": [2, 2], "clip": 1.0, "optimizer": "sgd", "lr": 0.1}
    method = Method.named("fedavg").read({"rounds": 2, "local": local}, "fedavg")
    check_method(method, small_parties("edge"), checks=["cohort_law", "wire_equals_in_process"])


@pytest.mark.parametrize("labels", ["multilabel", "regression"])
def test_fedavg_conforms_on_edges_with_several_labels(labels: Labels) -> None:
    checks = ["cohort_law", "test_labels_decide_nothing"]
    check_method(Method.named("fedavg")(rounds=2), small_parties("edge", labels=labels), checks=checks)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adamw", 0.003)])
def test_mini_batches_of_pairs_conform(optimizer: str, lr: float) -> None:
    """AdamW runs with a small learning rate, because it makes full steps even of a gradient that is only rounding."""
    local = {"batch_size": 20, "clip": 1.0, "optimizer": optimizer, "lr": lr}
    method = Method.named("fedavg").read({"rounds": 2, "local": local}, "fedavg")
    check_method(method, small_parties("pair"), checks=["cohort_law", "wire_equals_in_process"])


def test_fedcog_conforms_with_totals() -> None:
    check_method(FedCog(rounds=3, through="totals"), small_parties("node"))


@pytest.mark.parametrize(("name", "level"), CASES)
@pytest.mark.thinned(3)
def test_a_whole_run_calls_as_often_as_declared(name: str, level: Level) -> None:
    subject = Subject(quick(name, rounds=4), small_parties(level), Encoder.named(Method.named(name).encoder)(hidden=8))
    run = subject.run()
    declared = {
        action: most
        for action, most in subject.method.calls(run.module).items()
        if most and action != "lend"  # lend is for pairs
    }
    made = calls_in(run.go().ledger)
    assert made.keys() == declared.keys()
    assert all(made[action] <= most for action, most in declared.items())
    assert made == declared or subject.method.soon  # whose calls hang on what happens
