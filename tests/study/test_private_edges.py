"""Private studies of edges: sums over neighbours with noise, and nothing else of a party's edges."""

from copy import copy
from dataclasses import replace

import pytest
import torch

import isthmus
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.options import EdgePrivacy
from isthmus.study.loop import Run
from isthmus.study.private import adapted, private_answers
from isthmus.study.setup import extended, module_for, task_for
from isthmus.testing import CHECKS, Subject, small_parties

PRIVACY = EdgePrivacy(epsilon=6.0)


class Private(Subject):
    """A method whose edges are protected, for the checks of the conformance suite."""

    def run(self, **options):
        return super().run(privacy=PRIVACY, **options)


def gap(**options):
    return Encoder.named("gap")(hidden=6, width=4, **options)


def run_of(name, parties, **options):
    method, task = Method.named(name)(rounds=2, **options), task_for(parties)
    module = extended(method, module_for(gap(), parties, task, 0), 0)
    return Run(method, parties, task, module, privacy=PRIVACY)


@pytest.mark.parametrize(("name", "level"), [("fedavg", "node"), ("fedavg", "graph"), ("fedgcn", "node")])
@pytest.mark.parametrize("check", ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted"])
def test_private_training_conforms(check, name, level):
    method = Method.named(name)(rounds=2, local={"epochs": 2})
    CHECKS[check](Private(method, small_parties(level), gap()))


def rewired(party):
    """The party with other edges between as many nodes, and with degrees as its first feature."""
    graph = copy(party.graph)
    ends = graph.edge_index.flip(1)[:, ::3].contiguous()
    ends[0] = ends[0].roll(1)
    graph.edge_index = torch.cat([ends, ends.flip(0)], dim=1)
    for name in ("edge_weight", "edge_attr"):
        if graph.get(name) is not None:
            graph[name] = torch.cat([graph[name][::3]] * 2)
    graph.x = graph.x.to_dense().clone()
    graph.x[:, 0] = torch.bincount(graph.edge_index[1], minlength=party.nodes)
    return replace(party, graph=graph, border=None, structural=torch.tensor([0]))


@pytest.mark.parametrize("name", ["fedavg", "fedper", "moon", "fedproto", "fedgta", "local", "fedgcn"])
def test_nothing_but_noisy_sums_leads_from_edges_to_anyone(name, monkeypatch):
    """With the same numbers in place of the noisy sums, all results are the same whatever the edges are."""

    def same(self, h, edge_index, noise, *purpose):
        return torch.full_like(h, 0.5)

    def same_part(self, h, edges, rows, parties, noise, *purpose):
        return torch.full((rows, h.size(1)), 5)

    monkeypatch.setattr(HopPlan, "total", same)
    monkeypatch.setattr(HopPlan, "part", same_part)
    parties = [replace(party, structural=torch.tensor([0])) for party in small_parties("node")]
    one, other = (run_of(name, held).go() for held in (parties, [rewired(party) for party in parties]))
    assert one.metrics == other.metrics
    assert one.history == other.history
    for found, again in zip(
        one.models.get("parties", {}).values(), other.models.get("parties", {}).values(), strict=True
    ):
        assert all(torch.equal(found[weight], again[weight]) for weight in found)


def test_a_run_spends_a_hop_for_each_sum_once_however_many_rounds():
    for rounds in (1, 4):
        (run,) = isthmus.run(
            "fedavg", small_parties("node"), rounds=rounds, model=gap(hops=3), privacy={"unit": "edge", "epsilon": 6.0}
        ).runs
        assert run.privacy["of"] == "edge"
        assert run.privacy["epsilon"] == pytest.approx(6.0)
        (release,) = run.privacy["releases"]
        assert (release["what"], release["times"]) == ("sums over neighbours", 3)


def test_items_are_not_hidden_so_evaluations_and_weights_are_as_always():
    run = run_of("fedavg", small_parties("node")).go()
    fields = {entry.action: (entry.verb, entry.fields) for entry in run.ledger.entries}
    assert fields["evaluate"][0] == "total"
    assert "confusion" in fields["evaluate"][1]
    assert adapted(Method.named("fedavg")(), PRIVACY).weighting == "train"


def test_less_noise_leads_to_what_exact_sums_give():
    parties = small_parties("node")
    exact = isthmus.run("fedavg", parties, rounds=2, model=gap(dropout=0.0)).runs[0].weights
    apart = []
    for epsilon in (1e9, 1.0):
        options = {"model": gap(dropout=0.0), "privacy": {"unit": "edge", "epsilon": epsilon}}
        noisy = isthmus.run("fedavg", parties, rounds=2, **options).runs[0].weights
        apart.append(max(float((noisy[name] - exact[name]).abs().max()) for name in exact))
    assert apart[0] < 1e-3
    assert apart[1] > 0.1


REFUSED = [
    ("centralized", "node", "gap", "it trains on the data of all parties in one place"),
    ("fedcog-gcn", "node", "gap", "no noise covers what parties send of edges that cross between them"),
    ("fgcl", "graph", "gap", "it adds noise to edges itself"),
    ("fedavg", "node", "gcn", "this model reads edges otherwise: use the encoder gap"),
    ("fedavg", "pair", "gap", "this task is on pairs, which are edges themselves"),
]


@pytest.mark.parametrize(("name", "level", "model", "why"), REFUSED)
def test_what_no_noise_covers_is_refused(name, level, model, why):
    parties = small_parties(level)
    task, method = task_for(parties), Method.named(name)()
    module = module_for(Encoder.named(model)(hidden=8), parties, task, 0)
    with pytest.raises(IsthmusError, match=f"method '{name}' with privacy.unit = 'edge': .*{why}"):
        private_answers(PRIVACY, method, module, task)


def test_a_trainer_that_reads_graphs_is_refused():
    """O-pFGL sums up propagated features by class, and could be asked before there are noisy sums."""
    parties = small_parties("node")
    method = Method.named("fedcog")(lnnc=False, through="totals", trainer="o-pfgl")
    task = task_for(parties)
    module = module_for(gap(), parties, task, 0)
    with pytest.raises(IsthmusError, match="trainer 'o-pfgl' does not say that its parties only train"):
        private_answers(PRIVACY, method, module, task)
    with pytest.raises(IsthmusError, match="trainer 'o-pfgl' may read more than hops of encoder gap"):
        method.check(module)


def test_typed_graphs_are_refused():
    with pytest.raises(IsthmusError, match="has a typed graph, whose edges no sums with noise read"):
        run_of("fedavg", small_parties("node", typed=True))
