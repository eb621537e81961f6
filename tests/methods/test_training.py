import copy
from dataclasses import replace

import pytest
import torch
from optimisers import OPTIMISERS
from torch import nn

from helpers import CLASSES, ENCODERS, FEATURES, STEADY, assert_close, make_parties, plain_fit, plain_rates
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.site import Site
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder, Gcn, Gin, Mlp
from isthmus.nn.weights import initial_weights
from isthmus.tasks.classification import GraphClassification, NodeClassification

pytestmark = pytest.mark.usefixtures("double_precision")
SEED = 5
SIZES = {"node": {"nodes": (40, 23, 5, 31, 12)}, "graph": {"graphs": (9, 6, 2, 7, 4)}}
"""The first party has most batches, the third has fewest."""
BATCHES = {
    "full": {"epochs": 4},
    "batches": {"epochs": 3, "batch_size": 3},
    "single-items": {"epochs": 2, "batch_size": 1},
    "clipped": {"epochs": 4, "clip": 0.05},
    "hardly-clipped": {"epochs": 2, "clip": 100.0},
    "clipped-batches": {"epochs": 3, "batch_size": 3, "clip": 0.05},
}
over_levels = pytest.mark.parametrize("level", ["node", "graph"])
over_sparse = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


SCHEDULES = {
    "linear": {"schedule": "linear"},
    "linear-to-a-tenth": {"schedule": "linear", "decay_to": 0.1, "warm_up": 3},
    "cosine": {"schedule": "cosine"},
    "cosine-to-a-tenth": {"schedule": "cosine", "decay_to": 0.1, "warm_up": 4},
    "step": {"schedule": "step", "decay_every": 4, "decay_by": 0.5},
    "step-after-warm-up": {"schedule": "step", "decay_every": 3, "warm_up": 5},
    "warm-up": {"warm_up": 5},
    "constant": {},
}


def build(encoder, level):
    torch.manual_seed(0)
    return encoder.build(FEATURES, CLASSES, level)


class CountingSite(Site):
    @action("total")
    def train(self, request):
        self.model.load(request["weights"])
        self.steps = self.method.local.fit(self, self.task.loss)


def trained(module, parties, options):
    """The site after one round of training, and the steps that each party took."""
    kind = NodeClassification if parties[0].level == "node" else GraphClassification
    site = CountingSite(FedAvg(local=options), parties, kind(classes=CLASSES), module, seed=SEED)
    reply = site.answer("train", {"weights": initial_weights(module)}, site.hosted.names)
    assert not reply.failures
    return site, site.steps.tolist()


def assert_as_plain_torch(module, level, options, *, sparse=False, untrained=()):
    site, steps = trained(module, make_parties(level, **SIZES[level], sparse=sparse, untrained=untrained), options)
    found = site.model.stacks()
    for at, party in enumerate(make_parties(level, **SIZES[level], untrained=untrained)):
        due, count = plain_fit(module, party, options, seed=SEED)
        assert steps[at] == count
        assert_close({n: w[at] for n, w in found.items()}, initial_weights(due), within=1e-9)


@over_sparse
@over_levels
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.thinned(15)
def test_training_is_a_plain_loop_over_parties(optimiser, batches, level, sparse):
    options = LocalTraining(**OPTIMISERS[optimiser], **BATCHES[batches])
    assert_as_plain_torch(build(Gcn(hidden=8, dropout=0.0), level), level, options, sparse=sparse)


@over_sparse
@pytest.mark.parametrize("batches", ["full", "batches"])
def test_a_gcn_with_a_linear_head_trains_as_in_plain_torch(batches, sparse):
    module = build(Gcn(hidden=8, dropout=0.0, linear_head=True), "node")
    assert_as_plain_torch(
        module, "node", LocalTraining(**OPTIMISERS["adam"], **BATCHES[batches]), sparse=sparse, untrained=(1,)
    )


@over_levels
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.thinned(3)
def test_training_goes_on_where_some_parties_have_nothing_to_train_on(batches, level):
    options = LocalTraining(**OPTIMISERS["adam"], **BATCHES[batches])
    module = build(Gcn(hidden=8, dropout=0.0), level)
    assert_as_plain_torch(module, level, options, sparse=True, untrained=(0, 2))


@over_levels
@pytest.mark.parametrize("batch_size", [0, 2])
def test_batch_normalisation_trains_as_in_plain_torch(level, batch_size):
    options = STEADY.model_copy(update={"batch_size": batch_size})
    assert_as_plain_torch(build(Gin(hidden=8, dropout=0.0, norm=True), level), level, options, untrained=(1,))


@over_sparse
@pytest.mark.parametrize("batches", ["full", "batches"])
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.thinned(15)
def test_nodes_that_no_path_joins_to_a_training_node_train_as_in_plain_torch(name, batches, sparse):
    def parties(sparse):
        made = make_parties("node", sparse=sparse, weighted=True, untrained=(1,))
        for party in made:
            half = party.nodes // 2
            inside = (party.graph.edge_index < half).all(0) | (party.graph.edge_index >= half).all(0)
            party.graph.edge_index, party.graph.edge_weight = (
                party.graph.edge_index[:, inside],
                party.graph.edge_weight[inside],
            )
            party.train[half:] = False
        return made

    module = build(Encoder.named(name)(hidden=8, dropout=0.0), "node")
    options = LocalTraining(**OPTIMISERS["adam"], **BATCHES[batches])
    found = trained(module, parties(sparse), options)[0].model.stacks()
    for at, party in enumerate(parties(False)):
        due, _ = plain_fit(module, party, options, seed=SEED)
        assert_close({n: w[at] for n, w in found.items()}, initial_weights(due), within=1e-9)


@over_sparse
@pytest.mark.parametrize("optimiser", [name for name in OPTIMISERS if name != "sgd"])
def test_a_party_keeps_its_optimiser_while_the_weights_are_replaced(optimiser, sparse):
    """As one optimiser of torch per party, over rounds that some parties miss, one site of which is resumed."""
    options = LocalTraining(**OPTIMISERS[optimiser], epochs=2, keep_optimizer=True)
    module = build(Gcn(hidden=8, dropout=0.0), "node")
    parties, task = (
        make_parties("node", **SIZES["node"], sparse=sparse, untrained=(3,)),
        NodeClassification(classes=CLASSES),
    )
    method = FedAvg(local=options)
    site = CountingSite(method, parties, task, module, seed=SEED)
    plain = [copy.deepcopy(module) for _ in parties]
    momentum = {"momentum": options.momentum} if options.momentum else {}
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
    optimisers = [
        kind(each.parameters(), lr=options.rate, weight_decay=options.weight_decay, **momentum) for each in plain
    ]
    dense = make_parties("node", **SIZES["node"], untrained=(3,))
    for at, chosen in enumerate([(0, 1, 2, 3, 4), (0, 2), (1, 2, 3), (0, 1, 2, 3, 4)]):
        sent = {name: weight + 0.01 * at for name, weight in initial_weights(module).items()}
        assert not site.answer("train", {"weights": sent}, [parties[party].name for party in chosen]).failures
        found = site.model.stacks()
        for position, party in enumerate(chosen):
            own = dense[party]
            plain[party].load_state_dict(sent)
            for _ in range(2 if own.train.any() else 0):
                optimisers[party].zero_grad()
                output = plain[party](own.graph.x, own.graph.edge_index)
                nn.functional.cross_entropy(output[own.train], own.graph.y[own.train]).backward()
                optimisers[party].step()
            assert_close({n: w[position] for n, w in found.items()}, initial_weights(plain[party]), within=1e-9)
        if at == 1:
            saved, site = site.save(), CountingSite(method, parties, task, module, seed=SEED)
            site.restore(saved)


def test_an_optimiser_with_nothing_to_keep_is_refused():
    with pytest.raises(IsthmusError, match="keep_optimizer has no effect with SGD without momentum: leave it out"):
        LocalTraining(optimizer="sgd", keep_optimizer=True)


def test_without_it_every_round_begins_anew():
    module, parties = build(Gcn(hidden=8, dropout=0.0), "node"), make_parties("node", **SIZES["node"])
    found = {}
    for keep in (False, True):
        options = LocalTraining(optimizer="adam", epochs=2, keep_optimizer=keep)
        site, _ = trained(module, parties, options)
        found[keep] = [site.model.stacks()]
        site.answer("train", {"weights": initial_weights(module)}, site.hosted.names)
        found[keep].append(site.model.stacks())
    assert_close(found[False][0], found[False][1], within=0)
    assert_close(found[False][0], found[True][0], within=1e-12)
    assert any(not torch.allclose(found[True][1][name], weight) for name, weight in found[True][0].items())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_those_of_torch(schedule):
    options = LocalTraining(lr=0.3, **SCHEDULES[schedule])
    found = [options.lr * options.factor(at, 13) for at in range(1, 14)]
    assert found == pytest.approx(plain_rates(options, 13), rel=1e-12)


def test_a_schedule_without_the_number_of_the_round_is_refused():
    parties = make_parties("node", nodes=(12,))
    site = CountingSite(FedAvg(local=LocalTraining(schedule="linear")), parties, NodeClassification(classes=CLASSES),
                        build(Gcn(hidden=8), "node"), seed=SEED)  # fmt: skip
    request = {"weights": initial_weights(site.model.module)}
    for wrong in ({}, {"round": "3"}, {"round": True}):
        assert "does not say which round it is" in str(site.answer("train", request | wrong, ["party-0"]).failures)
    assert not site.answer("train", request | {"round": 3}, ["party-0"]).failures


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"decay_to": 0.1}, "decay_to = 0.1 has no effect with schedule = 'constant'"),
        ({"schedule": "cosine", "decay_by": 0.5}, "decay_by = 0.5 has no effect with schedule = 'cosine'"),
        ({"schedule": "linear", "decay_every": 5}, "set schedule to 'step'"),
        ({"schedule": "step", "decay_to": 0.1}, "set schedule to 'linear' or 'cosine'"),
    ],
)
def test_options_of_another_schedule_are_refused(options, problem):
    with pytest.raises(IsthmusError, match=problem):
        LocalTraining(**options)


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        h = self.first(x)
        return self.head((h - h.mean(0)).relu())


@pytest.mark.parametrize("batches", BATCHES)
def test_a_module_that_falls_back_trains_as_in_plain_torch(batches):
    assert_as_plain_torch(
        Mixing(), "node", LocalTraining(**OPTIMISERS["adam"], **BATCHES[batches]), sparse=True, untrained=(3,)
    )


@over_levels
@over_sparse
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.thinned(15)
def test_a_party_trains_the_same_alone_and_side_by_side_with_dropout(batches, level, sparse):
    options = LocalTraining(**OPTIMISERS["adam"], **BATCHES[batches])
    module = build(Gcn(hidden=8, dropout=0.5), level)
    parties = make_parties(level, **SIZES[level], sparse=sparse, untrained=(1,))
    together = trained(module, parties, options)[0].model.stacks()
    for at, party in enumerate(parties):
        alone = trained(module, [party], options)[0].model.stacks()
        assert_close({n: w[at] for n, w in together.items()}, {n: w[0] for n, w in alone.items()}, within=1e-9)


@over_sparse
def test_a_party_without_training_items_does_not_move(sparse):
    module = build(Gcn(hidden=8), "node")
    parties = make_parties("node", sparse=sparse, untrained=(1, 2))
    site, steps = trained(module, parties, LocalTraining(optimizer="adam", epochs=3, weight_decay=0.1))
    assert steps == [3, 0, 0, 3]
    for name, weight in initial_weights(module).items():
        moved = [not torch.equal(own, weight) for own in site.model.stacks()[name]]
        assert moved == [True, False, False, True]


def test_no_training_items_anywhere_are_no_steps_at_all():
    module = build(Mlp(hidden=8), "node")
    site, steps = trained(module, make_parties("node", untrained=range(4)), LocalTraining())
    assert steps == [0, 0, 0, 0]
    assert_close({n: w[3] for n, w in site.model.stacks().items()}, initial_weights(module), within=0.0)


@over_levels
def test_batches_visit_every_training_item_of_a_party_once_an_epoch_in_an_order_of_its_own(level):
    parties = make_parties(level)
    site, _ = trained(build(Mlp(hidden=8), level), parties, LocalTraining())
    training = LocalTraining(batch_size=2)
    with site.asked():
        orders = [torch.cat(list(training._batches(site, epoch))) for epoch in range(2)]
        batches = list(training._batches(site, 0))
    items = site.cohort.masks["train"].nonzero().squeeze(1)
    for order in orders:
        assert torch.equal(order.sort().values, items)
    assert not torch.equal(*orders)
    for batch in batches:
        assert torch.equal(batch, batch.sort().values)
        assert torch.bincount(site.cohort.party[batch], minlength=4).max() <= 2


def test_a_pull_is_added_to_the_gradients():
    module, parties = build(Mlp(hidden=8, dropout=0.0), "node"), make_parties("node")
    options = LocalTraining(epochs=3, optimizer="sgd", lr=0.1)
    site, _ = trained(module, parties, options)
    with site.asked():
        site.model.load(initial_weights(module))
        options.fit(site, site.task.loss, pull=lambda leaves: [torch.full_like(leaf.tensor, 0.5) for leaf in leaves])
    for at, party in enumerate(parties):
        due, _ = plain_fit(module, party, options, extra=lambda m: 0.5 * sum(p.sum() for p in m.parameters()))
        assert_close({n: w[at] for n, w in site.model.stacks().items()}, initial_weights(due), within=1e-9)


def test_an_optimiser_is_fresh_in_every_round():
    module, parties = build(Mlp(hidden=8, dropout=0.0), "node"), make_parties("node")
    options = LocalTraining(optimizer="adam", epochs=2)
    site, _ = trained(module, parties, options)
    weights = copy.deepcopy(site.model.stacks())
    for at, party in enumerate(parties):
        after, _ = plain_fit(module, party, options)
        twice, _ = plain_fit(after, party, options)
        site.answer("train", {"weights": {n: w[at] for n, w in weights.items()}}, [party.name])
        assert_close({n: w[0] for n, w in site.model.stacks().items()}, initial_weights(twice), within=1e-9)


def test_mixed_precision_holds_in_training_alone_and_changes_little():
    module = build(Mlp(hidden=64, dropout=0.0), "node").float()
    parties = [replace(party, graph=party.graph.clone().apply(_single)) for party in make_parties("node")]
    before, seen, sites = torch.get_float32_matmul_precision(), [], {}

    def loss(step):
        seen.append(torch.get_float32_matmul_precision())
        return site.task.loss(step)

    for precision in ("single", "mixed"):
        site = Site(FedAvg(), parties, NodeClassification(classes=CLASSES), module)
        options = LocalTraining(epochs=2, optimizer="sgd", lr=0.1, precision=precision)
        with site.asked():
            options.fit(site, loss)
            sites[precision] = {name: stack.clone() for name, stack in site.model.stacks().items()}
            with pytest.raises(ZeroDivisionError):
                options.fit(site, lambda step: 1 / 0)
        assert torch.get_float32_matmul_precision() == before
    assert seen == [before, before, "medium", "medium"]
    assert_close(sites["mixed"], sites["single"], within=0.05)


def _single(value):
    return value.float() if value.is_floating_point() else value
