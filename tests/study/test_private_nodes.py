"""Private studies of nodes: noisy sums over neighbours, and noise on what single nodes teach."""

import math
from dataclasses import replace

import pytest
import torch

import isthmus
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.options import NodePrivacy
from isthmus.privacy.random_bits import NoiseKey
from isthmus.study.loop import Run
from isthmus.study.private import private_answers
from isthmus.study.setup import module_for, task_for
from isthmus.testing import CHECKS, Subject, small_parties

PRIVACY = NodePrivacy(epsilon=8.0, neighbours=80)


class Private(Subject):
    """A method whose nodes are protected, for the checks of the conformance suite."""

    def run(self, **options):
        return super().run(privacy=PRIVACY, **options)


def gap(**options):
    return Encoder.named("gap")(hidden=6, width=4, dropout=0.0, **options)


@pytest.mark.parametrize("check", ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted"])
@pytest.mark.parametrize("name", ["fedavg", "fedgcn", "fedcog"])
@pytest.mark.thinned(3)
def test_private_training_conforms(name, check):
    options = {"lnnc": False, "through": "totals", "trainer": "ditto"} if name == "fedcog" else {}
    method = Method.named(name)(rounds=2, local={"epochs": 2, "optimizer": "sgd", "lr": 0.1}, **options)
    CHECKS[check](Private(method, small_parties("node"), gap()))


def test_a_node_changes_the_rows_of_others_by_as_much_as_the_noise_is_sized_for():
    """A star is the worst case: its centre is in a row of every other node, and no two rows may hide each other."""
    leaves = 9
    plan = replace(HopPlan.of(NodePrivacy(epsilon=8.0, neighbours=leaves), 1), multiplier=1e-9)
    h = torch.zeros(leaves + 1, 4, dtype=torch.float64)
    h[:, 0] = 1.0
    centre = torch.stack([torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)])
    edges = torch.cat([centre, centre.flip(0)], dim=1)
    change = (plan.total(h, edges, NoiseKey(0)) - plan.total(h, edges[:, :0], NoiseKey(0)))[1:]
    assert float(change.norm()) == pytest.approx(math.sqrt(leaves), rel=1e-5)
    assert float(change.norm()) <= math.sqrt(leaves)
    noisy = replace(plan, multiplier=2.0).total(h[:1].expand(4000, 4) * 0, edges[:, :0], NoiseKey(0))
    assert float(noisy.std()) == pytest.approx(2.0 * math.sqrt(leaves), rel=0.02)


def test_sums_and_training_share_one_budget():
    spent = {}
    for share in (0.2, 0.8):
        (run,) = isthmus.run(
            "fedavg",
            small_parties("node"),
            rounds=2,
            model=gap(),
            privacy={**PRIVACY.model_dump(), "unit": "node", "share": share},
        ).runs
        assert run.privacy["of"] == "node"
        assert run.privacy["epsilon"] == pytest.approx(8.0)
        spent[share] = {each["what"]: each["times"] / each["multiplier"] ** 2 for each in run.privacy["releases"]}
    for share, costs in spent.items():
        assert costs["sums over neighbours"] / sum(costs.values()) == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_sampled_steps_are_accounted_together_with_the_sums():
    pytest.importorskip("dp_accounting")
    options = PRIVACY.model_copy(update={"rate": 0.25})
    hops = HopPlan.of(options, 2)
    plan = ItemPlan.of(options, 2, 1, hops.account())
    account = hops.account()
    account.releases += plan.account(2).releases
    assert account.cost(options.delta, "node").epsilon == pytest.approx(8.0, rel=0.01)
    assert account.cost(options.delta, "node").epsilon <= 8.0
    assert plan.multiplier > ItemPlan.of(options, 2, 1).multiplier


def test_nothing_leads_from_nodes_to_anyone_but_noisy_sums_and_noisy_gradients(monkeypatch):
    monkeypatch.setattr(HopPlan, "total", lambda self, h, edges, *purpose: torch.full_like(h, 0.5))
    monkeypatch.setattr(ItemPlan, "noisy", lambda self, sums, items, bits: torch.full((len(sums),), 0.01).double())
    weights = []
    for flipped in (False, True):
        parties = list(small_parties("node"))
        if flipped:
            for party in parties:
                party.graph.y = party.graph.y.flip(0)
                party.graph.edge_index = party.graph.edge_index[:, ::2]
                party.graph.x = party.graph.x.to_dense().flip(0)
        weights.append(
            isthmus.run(
                "fedavg", parties, rounds=2, model=gap(), privacy={"unit": "node", "epsilon": 8.0, "neighbours": 30}
            )
            .runs[0]
            .weights
        )
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_node_with_more_neighbours_than_promised_is_refused():
    with pytest.raises(IsthmusError, match=r"has a node with edges to more than 1 others: set privacy\.neighbours"):
        isthmus.run(
            "fedavg",
            small_parties("node"),
            rounds=1,
            model=gap(),
            privacy={"unit": "node", "epsilon": 8.0, "neighbours": 1},
        )


def test_training_alone_releases_nothing_and_has_no_noise():
    plain = isthmus.run("local", small_parties("node"), rounds=2, model=gap(), select="last").runs[0]
    private = isthmus.run(
        "local",
        small_parties("node"),
        rounds=2,
        model=gap(),
        select="last",
        privacy={"unit": "node", "epsilon": 1.0, "neighbours": 30},
    ).runs[0]
    assert not private.privacy
    for one, other in zip(plain.models["parties"].values(), private.models["parties"].values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def with_trainer(trainer):
    return Method.named("fedcog")(rounds=2, lnnc=False, through="totals", local={"optimizer": "sgd"}, trainer=trainer)


def test_the_noise_is_sized_for_what_the_trainer_does():
    parties = small_parties("node")
    task = task_for(parties)
    module = module_for(gap(), parties, task, 0)
    found = [
        private_answers(PRIVACY, with_trainer(trainer), module, task).items
        for trainer in (
            {"name": "fedavg", "local": {"epochs": 4}},
            {"name": "fedrep", "local": {"epochs": 1}, "head_epochs": 3},
            "fedavg",
        )
    ]
    assert [(plan.calls, plan.epochs) for plan in found] == [(2, 4), (2, 4), (2, 5)]
    assert found[0].multiplier == found[1].multiplier < found[2].multiplier


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        ("moon", "trainer 'moon' may read more than hops of encoder gap"),
        ({"name": "fedavg", "weighting": "train"}, "method 'fedavg': weighting = 'train' with privacy"),
        ({"name": "fedavg", "local": {"optimizer": "adamw", "batch_size": 4}}, "local.batch_size"),
    ],
)
def test_a_trainer_must_train_on_items_alone(trainer, why):
    with pytest.raises(IsthmusError, match=why):
        isthmus.run(
            with_trainer(trainer), small_parties("node"), model=gap(), privacy={**PRIVACY.model_dump(), "unit": "node"}
        )


REFUSED = [
    ("fedproto", "node", "gap", "no noise covers what"),
    ("fedavg", "node", "gcn", "this model reads edges otherwise: use the encoder gap"),
    ("fedavg", "graph", "gap", "this task is on graphs: use privacy.unit = 'item'"),
    ("fedgcn", "node", "gcn", "no noise covers what"),
]


@pytest.mark.parametrize(("name", "level", "model", "why"), REFUSED)
def test_what_no_noise_covers_is_refused(name, level, model, why):
    parties = small_parties(level)
    task, method = task_for(parties), Method.named(name)()
    module = module_for(Encoder.named(model)(hidden=8), parties, task, 0)
    with pytest.raises(IsthmusError, match=f"method '{name}' with privacy.unit = 'node': .*{why}"):
        private_answers(PRIVACY, method, module, task)


def test_typed_graphs_are_refused():
    parties = small_parties("node", typed=True)
    method, task = Method.named("fedavg")(rounds=1), task_for(parties)
    with pytest.raises(IsthmusError, match="has a typed graph, whose edges no sums with noise read"):
        Run(method, parties, task, module_for(gap(), parties, task, 0), privacy=PRIVACY)
