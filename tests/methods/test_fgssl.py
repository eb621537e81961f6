"""FGSSL against its algorithm in plain PyTorch, with loops over nodes."""

import copy
import math

import pytest
import torch
from personal import built, mean, run, weights_of

from helpers import assert_close, make_parties, plain_optimizer
from isthmus.data.cohort import Block, Cohort
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fgssl import FGSSL, class_contrast, divergence, view
from isthmus.methods.training import LocalTraining
from isthmus.nn.draws import Draws, draws_of
from isthmus.testing import small_parties

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=2, optimizer="sgd", lr=0.2)
TAU = 0.5


def cosine(a, b):
    return torch.cosine_similarity(a, b, dim=0) / TAU


def embedded(module, x, edge_index):
    """Output and embedding of a model of two convolutions."""
    h = module.convs[0](x, edge_index).relu()
    return module.convs[1](h, edge_index), h


def contrast(own, given, y):
    losses = []
    for i in range(len(y)):
        others = [cosine(own[i], given[n]).exp() for n in range(len(y)) if y[n] != y[i]]
        alike = [cosine(own[i], given[p]).exp() for p in range(len(y)) if y[p] == y[i]]
        losses.append(sum(-(each / (each + sum(others))).log() for each in alike) / len(alike))
    return sum(losses) / len(losses)


def structure(given, own, edge_index):
    losses = []
    for i in range(len(own)):
        near = [j for j, at in edge_index.t().tolist() if at == i and j != i]
        if near:
            due, found = (torch.stack([cosine(h[i], h[j]) for j in near]).log_softmax(0) for h in (given, own))
            losses.append((due.exp() * (due - found)).sum())
    return sum(losses) / len(losses) if losses else torch.zeros(())


def lacking(party, edges, features, draws):
    graph = party.graph
    kept = draws.of("edges").uniform((graph.num_edges,)) >= edges
    shown = draws.of("features").uniform((1,), graph.x.size(1))[0] >= features
    return graph.x * shown, graph.edge_index[:, kept]


def trained(module, weights, party, method, round):
    """The weights of one party after local training from `weights`."""
    module = copy.deepcopy(module)
    module.load_state_dict(weights)
    received, optimizer, graph = copy.deepcopy(module).eval(), plain_optimizer(method.local, module), party.graph
    train = party.train.nonzero().squeeze(1)
    draws = draws_of(3, party.name).of_counts([2 * round - 1])  # evaluated after each round
    for epoch in range(method.local.epochs if len(train) else 0):
        views = draws.of("views", epoch, 0)
        with torch.no_grad():
            near = embedded(received, graph.x, graph.edge_index)[1]
            given = embedded(received, *lacking(party, method.weak_edges, method.weak_features, views.of("weak")))[1]
        output, h = embedded(module, graph.x, graph.edge_index)
        own = embedded(module, *lacking(party, method.strong_edges, method.strong_features, views.of("strong")))[1]
        loss = torch.nn.functional.cross_entropy(output[train], graph.y[train])
        loss = loss + method.semantic * contrast(own[train], given[train], graph.y[train])
        loss = loss + method.structural * structure(near, h, graph.edge_index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights_of(module)


@pytest.mark.parametrize("untrained", [(), (1,)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.thinned(3)
def test_rounds_are_those_of_the_paper(sparse, untrained):
    module, parties = built("gcn", "node"), make_parties("node", untrained=untrained)
    options = {"local": SGD, "temperature": TAU, "semantic": 0.7, "structural": 3.0, "select": "last"}
    method = FGSSL(rounds=3, **options)
    found = run(method, module, make_parties("node", sparse=sparse, untrained=untrained))
    weights = weights_of(module)
    for at in range(1, 4):
        weights = mean(parties, [trained(module, weights, party, method, at) for party in parties])
    assert_close(found.weights, weights, within=1e-8)


def test_without_both_terms_it_is_federated_averaging():
    module, parties = built("gcn", "node"), make_parties("node")
    found = run(FGSSL(rounds=2, local=SGD, semantic=0.0, structural=0.0), module, parties)
    assert_close(found.weights, run(FedAvg(rounds=2, local=SGD), module, parties).weights, within=1e-12)


@pytest.mark.parametrize("only", ["semantic", "structural"])
def test_each_term_moves_the_weights(only):
    module, parties = built("gcn", "node"), make_parties("node")
    options = {"semantic": 0.0, "structural": 0.0, only: 1.0}
    found = run(FGSSL(rounds=1, local=SGD, **options), module, parties).weights
    plain = run(FedAvg(rounds=1, local=SGD), module, parties).weights
    assert not torch.allclose(found["convs.0.lin.weight"], plain["convs.0.lin.weight"])


def test_minibatches_contrast_their_own_nodes():
    module, parties = built("gcn", "node"), make_parties("node", sparse=True)
    method = FGSSL(rounds=2, local=SGD.model_copy(update={"batch_size": 4}), fraction=0.75)
    found, due = (run(method, module, parties, side_by_side=each) for each in (True, False))
    assert_close(found.weights, due.weights, within=1e-8)


def test_one_class_alone_has_nothing_to_be_told_from():
    h = torch.randn(3, 4, requires_grad=True)
    loss = class_contrast(h, h.detach(), torch.zeros(3, dtype=torch.long), (3, 0), 0.1)
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert not h.grad.any()


@pytest.mark.parametrize("temperature", [1e-3, 0.1])
def test_nodes_of_parties_are_not_compared(temperature):
    source = torch.Generator().manual_seed(0)
    own, given = (torch.randn(7, 4, generator=source).requires_grad_() for _ in range(2))
    y = torch.tensor([0, 1, 1, 0, 2, 2, 0])
    both = class_contrast(own, given, y, (3, 4), temperature)
    for at, part in enumerate((slice(0, 3), slice(3, 7))):
        alone = class_contrast(own[part], given[part], y[part], (len(y[part]),), temperature)
        torch.testing.assert_close(both[at : at + 1], alone)
    both.sum().backward()
    assert bool(own.grad.isfinite().all())


def test_a_party_without_edges_has_no_divergence():
    h = torch.randn(4, 3, requires_grad=True)
    loops = torch.tensor([[0, 1], [0, 1]])
    for edges in (torch.empty(2, 0, dtype=torch.long), loops):
        loss = divergence(torch.randn(4, 3), h, Block(torch.ones(4, 2), edges, (3, 1)), TAU)
        loss.sum().backward()
        assert loss.tolist() == [0.0, 0.0]
        assert not h.grad.any()


def test_views_lack_about_as_many_edges_and_features_as_they_should():
    cohort = Cohort(tuple(small_parties("node")))
    block, draws = cohort.block, Draws.seeded(range(len(cohort)))
    found = view(block, 0.8, 0.5, draws)
    assert found.edge_index.size(1) / block.edge_index.size(1) == pytest.approx(0.2, abs=0.08)
    shown = [part.any(0) for part in torch.where(found.x.to_dense() == 0, 0, 1).split(block.sizes)]
    there = [part.any(0) for part in torch.where(block.x.to_dense() == 0, 0, 1).split(block.sizes)]
    share = sum(int(each.sum()) for each in shown) / sum(int(each.sum()) for each in there)
    assert share == pytest.approx(0.5, abs=0.15)
    assert not all(torch.equal(shown[0], other) for other in shown[1:])
    same = view(block, 0.0, 0.0, draws)
    assert torch.equal(same.edge_index, block.edge_index)
    assert torch.equal(same.x.to_dense(), block.x.to_dense())
    assert math.isclose(float(view(block, 1.0, 1.0, draws).x.to_dense().abs().sum()), 0.0)
