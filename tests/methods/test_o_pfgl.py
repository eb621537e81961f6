"""O-pFGL against its algorithm in plain PyTorch, with loops over nodes."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from personal import run, weights_of
from torch.func import functional_call
from torch.nn import functional as F

from helpers import CLASSES, FEATURES, assert_close, make_node_parties
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.methods.o_pfgl import OpFGL
from isthmus.methods.optimizer import Optimizer
from isthmus.methods.training import LocalTraining, Training
from isthmus.nn.condensed import initial_edge_weights
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Encoder, Gcn

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=3, optimizer="sgd", lr=0.3, weight_decay=0.0)
STEP = Optimizer(optimizer="sgd", lr=0.05, weight_decay=0.0)
TARGET = Training(epochs=5, optimizer="sgd", lr=0.2, weight_decay=0.0)
SEED = 3  # that of `personal.run`
OPTIONS = {
    "rounds": 2, "select": "last", "steps": 13, "features": STEP, "edges": STEP, "edge_width": 4, "target": TARGET,
    "tuning": SGD, "ratio": 0.15, "strength": 0.6,
}  # fmt: skip


def built(dropout=0.0):
    torch.manual_seed(0)
    return Gcn(hidden=8, dropout=dropout).build(FEATURES, CLASSES, "node")


def normalised(a):
    d = torch.diag(a.sum(1).clamp(min=1e-300) ** -0.5)
    return d @ a @ d


def edges_of(party):
    a = torch.zeros(party.nodes, party.nodes)
    for source, target in party.graph.edge_index.t().tolist():
        a[target, source] = 1.0
    return a


def seen(x, a):
    m = normalised(torch.maximum(a, torch.eye(len(a))))
    return torch.cat([x, m @ x, m @ m @ x], dim=1)


def surrogate(parties, holders):
    """X', Y' and A', from the training nodes of all parties in one place."""
    h = torch.cat([seen(to_dense(party.graph.x), edges_of(party))[party.train] for party in parties])
    y = torch.cat([party.graph.y[party.train] for party in parties])
    held = [c for c in range(CLASSES) if sum(bool((p.graph.y[p.train] == c).any()) for p in parties) >= holders]
    labels = torch.tensor([c for c in held for _ in range(math.ceil(0.15 * int((y == c).sum())))])
    draws = draws_of(SEED, "surrogate")
    parts = initial_edge_weights(FEATURES, 4, len(labels), draws.of("edges"))
    parts = {"x": draws.of("x").normal((len(labels),), FEATURES), **parts}
    parts = {name: value.double().requires_grad_() for name, value in parts.items()}

    def adjacent():
        x, n = parts["x"], len(labels)
        score = torch.stack([
            torch.stack([
                F.relu(torch.cat([x[i], x[j]]) @ parts["edges/first"].T + parts["edges/first_bias"])
                @ parts["edges/second"][0] + parts["edges/second_bias"][0]
                for j in range(n)
            ])
            for i in range(n)
        ])  # fmt: skip
        a = ((score + score.T) / 2).sigmoid() * (1 - torch.eye(n))
        return torch.where(a >= 0.01, a, 0.0)

    total = sum(int((y == c).sum()) for c in held)
    by_step = [torch.optim.SGD([value for n, value in parts.items() if (n == "x") == own], lr=0.05) for own in (0, 1)]
    for step in range(13):
        a = adjacent()
        ours, loss = seen(parts["x"], a), 0.0
        for c in held:
            own, given = ours[labels == c], h[y == c]
            gap = F.mse_loss(own.mean(0), given.mean(0))
            if len(own) > 1:
                gap = gap + F.mse_loss(own.std(0), given.std(0))
            loss = loss + 10 * len(given) / total * gap
        x = parts["x"]
        rough = sum(
            a[i, j] * (1 - torch.exp(-((x[i] - x[j]) ** 2) / 2)).mean() for i in range(len(x)) for j in range(len(x))
        )
        loss = loss + 0.1 * rough / a.sum()
        for optimizer in by_step:
            optimizer.zero_grad()
        loss.backward()
        by_step[0 if step < 10 else 1].step()
    return parts["x"].detach(), labels, adjacent().detach()


def trust(party):
    a, y, train = edges_of(party), party.graph.y, party.train
    h = torch.zeros(CLASSES)
    for v in train.nonzero().squeeze(1).tolist():
        near = [u for u in range(party.nodes) if a[v, u] and u != v and train[u]]
        if near:
            h[y[v]] += sum(float(y[u] == y[v]) for u in near) / len(near)
    start = F.one_hot(y, CLASSES).double() * train.unsqueeze(1)
    labels = start
    for _ in range(2):
        labels = (0.9 * normalised(a) @ labels + 0.1 * start).clamp(0, 1)
    labels[labels.sum(1) == 0] = 1 / CLASSES
    return 0.6 * labels @ (1 / (1 + torch.log(1 + h)))


def descended(module, weights, epochs, lr, loss):
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    optimizer = torch.optim.SGD([*weights.values()], lr=lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss(lambda *inputs: functional_call(module, weights, inputs)).backward()
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def checked(parties, *, given=None, holders=2, **options):
    module = built()
    found = run(OpFGL(**OPTIONS, min_holders=holders, **options), module, given or parties)
    x, y, a = surrogate(parties, holders)
    for name, due in {"x": x, "y": y}.items():
        assert_close({name: found.graph[name]}, {name: due}, within=1e-8)
    target, source = a.nonzero(as_tuple=True)
    edges, weight = torch.stack([source, target]), a[target, source]
    shared = descended(
        module, weights_of(module), TARGET.epochs, TARGET.lr, lambda f: F.cross_entropy(f(x, edges, weight), y)
    )
    assert_close(found.weights, shared, within=1e-7)
    for party in parties:
        graph, train = party.graph, party.train
        inputs, gamma = (to_dense(graph.x), graph.edge_index), trust(party)
        p = functional_call(module, shared, inputs).softmax(1)

        def loss(f):
            own = f(*inputs)  # noqa: B023
            apart = (p * (p.log() - own.log_softmax(1))).sum(1)  # noqa: B023
            return F.cross_entropy(own[train], graph.y[train]) + (gamma * apart).mean()  # noqa: B023

        own = descended(module, shared, 6, SGD.lr, loss) if bool(train.any()) else shared
        assert_close(found.models["parties"][party.name], own, within=1e-7)
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_a_run_is_the_papers_algorithm(sparse):
    checked(make_node_parties((13, 20, 5, 11)), given=make_node_parties((13, 20, 5, 11), sparse=sparse))


def test_parties_without_training_or_test_nodes_or_edges_and_a_class_of_nobody():
    parties = list(make_node_parties((13, 20, 5, 11, 9), untrained=(1,)))
    parties[0] = replace(parties[0], test=torch.zeros_like(parties[0].test))
    graph = copy.copy(parties[3].graph)
    graph.edge_index = graph.edge_index[:, :0]
    parties[3] = replace(parties[3], graph=graph)
    checked([replace(party, train=party.train & (party.graph.y != 1)) for party in parties])


def test_a_class_of_too_few_parties_is_not_opened():
    parties = [
        replace(party, train=party.train & ((party.graph.y != 2) | (party.name == "party-1")))
        for party in make_node_parties((13, 20, 5, 11))
    ]
    assert 2 not in checked(parties).graph["y"].tolist()
    assert 2 in checked(parties, holders=1).graph["y"].tolist()


def test_data_leave_a_party_once_and_in_sums():
    found = run(OpFGL(**OPTIONS), built(), make_node_parties())
    calls = [call for call in found.ledger.entries if call.action != "evaluate"]
    assert [(call.action, call.verb) for call in calls] == [("statistics", "total"), *[("personalise", "ask")] * 2]
    assert max(calls[1].sent) < 100


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_a_party_has_the_same_bits_alone_and_side_by_side(name):
    torch.manual_seed(0)
    module = Encoder.named(name)(hidden=8).build(FEATURES, CLASSES, "node")
    parties = make_node_parties((23, 40, 5, 131, 29), untrained=(4,), weighted=True)
    together, alone = (run(OpFGL(**OPTIONS), module, parties, side_by_side=each) for each in (True, False))
    for party, own in together.models["parties"].items():
        assert all(torch.equal(weight, alone.models["parties"][party][at]) for at, weight in own.items())


def test_dropout_is_off_where_the_shared_model_teaches_and_models_are_scored():
    options = {**OPTIONS, "target": TARGET.model_copy(update={"lr": 1e-12})}
    still = {**options, "tuning": SGD.model_copy(update={"lr": 1e-12})}
    found, due = (run(OpFGL(**still), built(rate), make_node_parties()) for rate in (0.5, 0.0))
    assert found.metrics == pytest.approx(due.metrics, abs=1e-9)


def test_without_a_class_at_enough_parties_it_is_refused():
    with pytest.raises(IsthmusError, match=r"no class has training nodes at 4 parties: lower `min_holders`"):
        run(OpFGL(**OPTIONS, min_holders=4), built(), make_node_parties((13, 20, 5, 11), untrained=(1,)))
    with pytest.raises(IsthmusError, match=r"a sum needs 9 parties, there are 4: lower `min_holders`"):
        run(OpFGL(**OPTIONS, min_holders=9), built(), make_node_parties((13, 20, 5, 11)))
