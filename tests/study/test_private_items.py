"""Private studies of training items: which methods they run, what these spend, and what is refused."""

import re
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import isthmus
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedrep import FedRep
from isthmus.methods.per_item import ItemGradients
from isthmus.methods.scaffold import Scaffold
from isthmus.nn.encoders import Encoder
from isthmus.nn.weights import initial_weights
from isthmus.privacy.options import ItemPrivacy
from isthmus.study.loop import Run
from isthmus.study.private import adapted, private_answers
from isthmus.study.setup import extended, module_for, task_for
from isthmus.testing import CHECKS, Subject, small_parties

LOCAL = {"epochs": 2, "lr": 0.1}
COVERED = [name for name, kind in Method.known().items() if kind.only_trains]


class Private(Subject):
    """A method whose items are protected, for the checks of the conformance suite."""

    def __init__(self, method, parties, encoder):
        self.privacy = ItemPrivacy(epsilon=8.0)
        super().__init__(adapted(method, self.privacy), parties, encoder)

    def run(self, **options):
        return super().run(privacy=self.privacy, **options)


def subject(method, level="graph", model="gin"):
    return Private(method, small_parties(level), Encoder.named(model)(hidden=6, dropout=0.2))


CONFORMING = [FedAvg(rounds=2, local=LOCAL), Scaffold(rounds=2), FedRep(rounds=2, head_epochs=1)]


@pytest.mark.parametrize("check", ["cohort_law", "wire_equals_in_process", "same_seed_same_result"])
@pytest.mark.parametrize("method", CONFORMING, ids=lambda each: each.name)
@pytest.mark.thinned(9)
def test_private_training_conforms(check, method):
    CHECKS[check](subject(method))


def test_a_private_run_resumes_as_if_it_had_not_stopped():
    options = {**LOCAL, "keep_optimizer": True}
    CHECKS["resume_equals_uninterrupted"](subject(FedAvg(rounds=3, fraction=0.6, local=options), "node", "mlp"))


def test_the_page_names_the_methods_that_only_train():
    page = (Path(isthmus.__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if "only train on the task's loss: " in line)
    assert set(re.findall("`([a-z0-9-]+)`", line)) == {*COVERED, "local"}


def run_of(name, parties, **options):
    kind = Method.named(name)
    privacy = ItemPrivacy(epsilon=8.0)
    method = adapted(kind(rounds=2, **options), privacy)
    task = task_for(parties)
    module = extended(method, module_for(Encoder.named(kind.encoder)(hidden=6), parties, task, 0), 0)
    return Run(method, parties, task, module, privacy=privacy)


def other_data(party):
    graph = copy(party.graph)
    graph.x, graph.y = graph.x.flip(0) + 1, (graph.y + 1) % 3
    return replace(party, graph=graph)


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.thinned(3)
def test_nothing_but_noisy_gradients_leads_from_items_to_the_server(name, monkeypatch):
    """With gradients of zero in place of the noisy ones, the server ends with the same whatever the items are."""

    def none(self, leaves, epoch, at):
        return [torch.zeros_like(leaf.tensor) for leaf in leaves]

    monkeypatch.setattr(ItemGradients, "of_step", none)
    ends = []
    parties = small_parties("graph")
    for held in (parties, [other_data(party) for party in parties]):
        run = run_of(name, held)
        for _ in run._rounds():
            pass
        released = [(e.action, e.fields) for e in run.federation.ledger.entries if e.action != "evaluate"]
        ends.append((run.state.save(), run.method.models(run.state).shared, released))
    (one, models, ledger), (two, others, same) = ends
    assert ledger == same
    assert one.keys() == two.keys()
    assert models.keys() == others.keys()
    assert all(torch.equal(models[weight], others[weight]) for weight in models)


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.thinned(5)
def test_a_method_that_only_trains_spends_the_epsilon(name):
    run = isthmus.run(name, small_parties("graph"), rounds=2, privacy={"unit": "item", "epsilon": 8.0},
                      model=Method.named(name).encoder).runs[0]  # fmt: skip
    assert run.privacy["of"] == "item"
    assert 7.99 < run.privacy["epsilon"] <= 8.0
    (release,) = run.privacy["releases"]
    assert release["times"] == 2 * Method.named(name)().epochs_per_call()
    assert run.chosen_round == 2
    assert all(not entry.fields for entry in run.ledger.entries if entry.action == "evaluate")


def test_training_alone_releases_nothing_and_has_no_noise():
    private, plain = (
        isthmus.run("local", small_parties("graph"), rounds=2, select="last", **more).runs[0]
        for more in ({"privacy": {"unit": "item", "epsilon": 0.1}}, {})
    )
    assert private.privacy == {}
    assert private.metrics["test_accuracy"] == plain.metrics["test_accuracy"]


def test_the_model_that_stays_at_a_party_has_no_noise():
    """Two epsilons lead to other shared models, and to equal personal ones without a pull to the shared one."""
    runs = [
        isthmus.run("ditto", small_parties("graph"), rounds=1, pull=0.0, privacy={"unit": "item", "epsilon": epsilon})
        for epsilon in (1.0, 50.0)
    ]
    one, other = (run.runs[0].models for run in runs)
    assert not all(torch.equal(one["shared"][name], other["shared"][name]) for name in one["shared"])
    for party in one["parties"]:
        own = one["parties"][party]
        assert all(torch.allclose(own[name], other["parties"][party][name], atol=1e-6) for name in own)


def test_more_steps_than_planned_are_refused():
    run = run_of("fedavg", small_parties("graph"), local=LOCAL)
    site = run.transport.sites[0]
    site.method = site.method.model_copy(update={"local": site.method.local.model_copy(update={"epochs": 3})})
    reply = site.attempt("train", {"weights": initial_weights(run.module)}, ["party-0"])[0]
    assert "the account does not cover local training: it trains 3 epochs" in reply.failures["party-0"]


REFUSED = [
    ("centralized", "graph", "gin", {}, "it trains on the data of all parties in one place"),
    ("moon", "graph", "gin", {}, "it does not say that its parties only train on the loss of items"),
    ("fedproto", "graph", "gin", {}, "no noise covers what 'train' releases to the server"),
    ("majority", "graph", "gin", {}, "no noise covers what 'count' releases to the server"),
    ("fedgcn", "node", "gcn", {}, "no noise covers what"),
    ("fedavg", "node", "gcn", {}, r".* and this model reads edges: use one that does not \(deepsets, mlp\)"),
    ("fedavg", "edge", "gcn", {}, "an item is a graph or a node, and this task is on edges"),
    ("fedavg", "graph", "norm", {}, "batch normalisation mixes the items of a step"),
    ("fedavg", "graph", "gin", {"local": {"batch_size": 8}}, "local.batch_size = 8, and steps draw items by"),
    ("fedavg", "graph", "gin", {"local": {"clip": 1.0}}, "local.clip = 1, and privacy.clip bounds"),
]


@pytest.mark.parametrize(("name", "level", "model", "options", "why"), REFUSED)
def test_what_no_noise_covers_is_refused(name, level, model, options, why):
    privacy = ItemPrivacy(epsilon=1.0)
    method, parties = adapted(Method.named(name)(**options), privacy), small_parties(level)
    encoder = Encoder.named("gin")(hidden=8, norm=True) if model == "norm" else Encoder.named(model)(hidden=8)
    task = task_for(parties)
    module = extended(method, module_for(encoder, parties, task, 0), 0)
    with pytest.raises(IsthmusError, match=f"method '{name}' with privacy.unit = 'item': {why}"):
        private_answers(privacy, method, module, task)
    weighed = task.model_copy(update={"class_weights": "balanced"})
    if name == "fedavg" and model == "gin" and not options:
        with pytest.raises(IsthmusError, match="weighs items by others of the step"):
            private_answers(privacy, method, module, weighed)


def test_a_method_made_in_python_gets_public_values_of_what_it_leaves_open():
    method = Method.named("fedavg")()
    (run,) = isthmus.run(
        method, small_parties("graph"), rounds=1, model="deepsets", privacy={"unit": "item", "epsilon": 8.0}
    ).runs
    assert run.description["method"]["weighting"] == "even"
