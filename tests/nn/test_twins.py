"""Layers that work on all parties side by side give what each party gets alone."""

import pytest
import torch
from tests.nn.models import HIDDEN, ONE_BY_ONE, SIDE_BY_SIDE, Body, build
from torch import nn
from torch.func import functional_call
from torch_geometric import nn as gnn

from helpers import (
    FEATURES,
    STEADY,
    apart,
    assert_close,
    assert_law,
    draws_for,
    make_parties,
    plain_fit,
    plain_output,
    train_side_by_side,
)
from isthmus.data.cohort import Cohort
from isthmus.nn.per_party import per_party
from isthmus.nn.twins import TWINS, Bank, twin, twin_of, without_caches
from isthmus.nn.weights import initial_weights

over_sparse = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


@over_sparse
@pytest.mark.parametrize("name", SIDE_BY_SIDE)
@pytest.mark.thinned(9)
def test_known_layers_work_side_by_side_as_they_would_alone(name, sparse):
    assert assert_law(build(name), make_parties("node", sparse=sparse, weighted=True), STEADY).side_by_side


@pytest.mark.parametrize("name", sorted({*SIDE_BY_SIDE, *ONE_BY_ONE} - {"noisy", "alpha-dropout"}))
@pytest.mark.thinned(3)
def test_one_party_is_the_plain_module(name):
    module = build(name)
    for layer in module.modules():
        if isinstance(getattr(layer, "dropout", None), float):
            layer.dropout = 0.0
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    party = make_parties("node", weighted=True)[0]
    weights = apart(module, 1)
    found = train_side_by_side(per_party(module, 1), [party], weights, STEADY)
    module.load_state_dict({n: w[0] for n, w in weights.items()}, strict=False)
    due, _ = plain_fit(module, party, STEADY)
    assert_close({n: w[0] for n, w in found.weights.items()}, initial_weights(due))
    model = per_party(module, 1)
    model.load(initial_weights(due))
    torch.testing.assert_close(model(Cohort((party,)).block), plain_output(due.eval(), party.graph))


def test_running_statistics_move_for_each_party_as_plain_torch_moves_them():
    module, parties = build("batch-norm"), make_parties("node")
    start = apart(module, len(parties))
    found = train_side_by_side(per_party(module, len(parties)), parties, start, STEADY).weights
    for at, party in enumerate(parties):
        module.load_state_dict({n: w[at] for n, w in start.items()}, strict=False)
        due, _ = plain_fit(module, party, STEADY)
        assert_close({n: w[at] for n, w in found.items()}, initial_weights(due))


@pytest.mark.parametrize("name", ["batch-norm", "gcn-graph"])
def test_an_absent_party_keeps_its_statistics(name):
    module, cohort = build(name), Cohort(make_parties("node"))
    model = per_party(module, len(cohort))
    start = apart(module, len(cohort))
    model.load(start)
    active = [True, False, True, True]
    model.start_training(cohort.block, active, touched_rows=False)
    model(cohort.block_of(active), draws_for(cohort))
    statistics = [n for n in start if "running" in n]
    for name in statistics:
        moved = [not torch.equal(model.stacks()[name][at], start[name][at]) for at in range(len(cohort))]
        assert moved == active


def test_evaluation_moves_nothing():
    module, cohort = build("batch-norm"), Cohort(make_parties("node"))
    model = per_party(module, len(cohort))
    start = apart(module, len(cohort))
    model.load(start)
    model(cohort.block)
    assert_close(model.stacks(), start, within=0.0)


@pytest.mark.parametrize("weights", ["shared", "stacked"])
def test_a_convolution_that_caches_never_reads_another_partys_graph(weights):
    module = build("cached").eval()
    parties = make_parties("node", nodes=(12, 12, 12))
    model, start = per_party(module, 3), apart(module, 3)
    model.load(start if weights == "stacked" else {n: w[0] for n, w in start.items()})
    for _ in range(2):
        for at, out in enumerate(model(Cohort(parties).block).split(12)):
            own = {n: w[at if weights == "stacked" else 0] for n, w in start.items()}
            graph = parties[at].graph
            plain = Body(nn.PReLU(), conv=gnn.GCNConv(FEATURES, HIDDEN)).eval()
            torch.testing.assert_close(out, functional_call(plain, own, (graph.x, graph.edge_index)))


def test_a_module_with_an_unknown_layer_has_no_twin():
    assert twin_of(build("gatv2"), Bank()) is None
    assert twin_of(Body(nn.Tanh()), Bank()) is not None


def test_a_layer_can_be_taught(monkeypatch):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.factor * x

    monkeypatch.setattr("isthmus.nn.twins.TWINS", dict(TWINS))
    parties = make_parties("node")
    assert not assert_law(Body(Scale()), parties, STEADY).side_by_side
    twin(Scale)(lambda layer, bank, prefix, x: bank.per_row(f"{prefix}factor", x.size(0)) * x)
    assert assert_law(Body(Scale()), parties, STEADY).side_by_side


def test_caches_are_emptied_and_switched_off():
    conv = gnn.GCNConv(2, 2, cached=True)
    conv(torch.ones(2, 2), torch.tensor([[0, 1], [1, 0]]))
    assert conv._cached_edge_index is not None
    without_caches(conv)
    assert (conv._cached_edge_index, conv.cached) == (None, False)
