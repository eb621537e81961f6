"""FedTAD against its algorithm in plain PyTorch, with every party's model at the server."""

import copy
from dataclasses import replace

import pytest
import torch
from personal import fitted, mean, run, weights_of
from torch.func import functional_call
from torch.nn import functional as F

from helpers import CLASSES, FEATURES, assert_close, make_node_parties
from isthmus.data.rows import to_dense
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedtad import FedTAD
from isthmus.methods.optimizer import Optimizer
from isthmus.methods.training import LocalTraining
from isthmus.nn.draws import draws_of, seed_of, torch_seeded
from isthmus.nn.encoders import Encoder, Gcn
from isthmus.nn.pseudo import NOISE, PseudoNodes, join_similar

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=2, optimizer="sgd", lr=0.3)
STEP = Optimizer(optimizer="sgd", lr=0.2, weight_decay=0.0)
SEED = 3  # that of `personal.run`
OPTIONS = {
    "local": SGD, "generating": STEP, "distilling": STEP, "select": "last", "server_epochs": 2, "student_steps": 2,
    "generated": 14, "neighbours": 3, "semantic": 0.7, "diversity": 0.4,
}  # fmt: skip


def built(dropout=0.0):
    torch.manual_seed(0)
    return Gcn(hidden=8, dropout=dropout).build(FEATURES, CLASSES, "node")


def reliability(party):
    n, x = party.nodes, to_dense(party.graph.x)
    a = torch.zeros(n, n)
    for source, target in party.graph.edge_index.t().tolist():
        a[source, target] = 1.0
    walk = a / a.sum(1, keepdim=True).clamp(min=1)
    codes = torch.stack([torch.diag(torch.matrix_power(walk, step)) for step in range(1, 6)], dim=1)
    xi, found = torch.cat([x, codes], dim=1), torch.zeros(CLASSES)
    for v in party.train.nonzero().squeeze(1).tolist():
        near = [u for u, at in party.graph.edge_index.t().tolist() if at == v and u != v]
        total = 1 + sum(torch.cosine_similarity(xi[v], xi[u], dim=0) for u in near)
        found[party.graph.y[v]] += total / (len(near) + 1)
    return found


def divergence(module, weights, teachers, shares, x, c, edges):
    """div, by its definition."""
    given = functional_call(module, weights, (x, edges)).log_softmax(1)
    total = 0.0
    for theta, share in zip(teachers, shares, strict=True):
        own = functional_call(module, theta, (x, edges)).log_softmax(1)
        for at in c.unique().tolist():
            total = (
                total
                + share[at] * F.kl_div(given[c == at], own[c == at], reduction="none", log_target=True).sum(1).mean()
            )
    return total


def literal(parties, rounds, drawn):
    module = built()
    weights = weights_of(module)
    with torch_seeded(seed_of(SEED, "generator")):
        generator = PseudoNodes(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(generator.parameters(), lr=STEP.lr)
    for at in range(1, rounds + 1):
        taking = [party for party in parties if party.name in drawn[at - 1]]
        teachers = [fitted(module, weights, party, SGD) for party in taking]
        weights = mean(taking, teachers)
        each = torch.stack([reliability(party) for party in taking])
        held = (each.sum(0) > 0).nonzero().squeeze(1)
        shares = each / each.sum(0).clamp(min=1e-300)
        c = held[torch.arange(14) * len(held) // 14]
        for epoch in range(2):
            z = draws_of(SEED, "noise", at, epoch).normal((14,), NOISE).double()
            x = generator(z, c)
            edges = join_similar(x, 3)
            loss = -divergence(module, weights, teachers, shares, x, c, edges)
            for theta, share in zip(teachers, shares, strict=True):
                own = functional_call(module, theta, (x, edges))
                for k in held.tolist():
                    loss = loss + 0.7 * share[k] * F.cross_entropy(own[c == k], c[c == k])
            apart = [(z[i] - z[j]).square().mean() * (x[i] - x[j]).abs().mean() for i in range(14) for j in range(14)]
            optimizer.zero_grad()
            (loss + 0.4 * torch.exp(-torch.stack(apart).mean())).backward()
            optimizer.step()
            x = generator(z, c).detach()
            edges = join_similar(x, 3)
            for _ in range(2):
                moving = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
                loss = divergence(module, moving, teachers, shares, x, c, edges)
                slopes = torch.autograd.grad(loss, [*moving.values()])
                weights = {name: weights[name] - STEP.lr * g for name, g in zip(moving, slopes, strict=True)}
    return weights


def checked(parties, *, given=None, **options):
    found = run(FedTAD(rounds=2, **OPTIONS, **options), built(), given or parties)
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    assert_close(found.weights, literal(parties, 2, drawn), within=1e-7)
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_give_what_a_server_with_all_models_would_compute(sparse):
    checked(make_node_parties(), given=make_node_parties(sparse=sparse))


def test_parties_without_training_or_test_nodes_or_edges_a_class_of_nobody_and_parties_that_are_not_drawn():
    parties = list(make_node_parties((23, 40, 5, 31, 29), untrained=(1,)))
    parties[0] = replace(parties[0], test=torch.zeros_like(parties[0].test))
    graph = copy.copy(parties[3].graph)
    graph.edge_index = graph.edge_index[:, :0]
    parties[3] = replace(parties[3], graph=graph)
    parties = [replace(party, train=party.train & (party.graph.y != 1)) for party in parties]
    checked(parties)
    checked(parties, fraction=0.6)


def test_shares_of_a_class_sum_to_one(monkeypatch: pytest.MonkeyPatch):
    log_probabilities, seen = FedTAD.AtParty.log_probabilities, []

    def watching(self, x, request):
        own, weight, c = log_probabilities(self, x, request)
        seen.append((weight.view(len(self.cohort), -1).sum(0), c[: len(request["classes"])]))
        return own, weight, c

    monkeypatch.setattr(FedTAD.AtParty, "log_probabilities", watching)
    run(FedTAD(rounds=1, **OPTIONS), built(), make_node_parties())
    assert len(seen) == 4
    for total, c in seen:
        for at in range(CLASSES):
            assert float(total[c == at].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["gcn", "gat"])
@pytest.mark.thinned(2)
def test_a_party_answers_the_same_bits_alone_and_side_by_side(name):
    torch.manual_seed(0)
    module = Encoder.named(name)(hidden=8).build(FEATURES, CLASSES, "node")
    parties = make_node_parties((23, 40, 5, 131, 29), untrained=(4,))
    together, alone = (run(FedTAD(rounds=2), module, parties, side_by_side=each) for each in (True, False))
    assert all(torch.equal(weight, alone.weights[at]) for at, weight in together.weights.items())


def test_the_server_reads_sums_only():
    found = run(FedTAD(rounds=1, **OPTIONS), built(), make_node_parties())
    calls = [(call.action, call.verb, call.eyes) for call in found.ledger.entries]
    assert {verb for _, verb, _ in calls} == {"total"}
    assert [name for name, *_ in calls if name != "evaluate"] == ["train", *["guide", "teach"] * 2]


def test_without_steps_that_move_anything_it_is_federated_averaging():
    still = Optimizer(optimizer="sgd", lr=1e-300, weight_decay=0.0)
    found = run(FedTAD(rounds=2, **{**OPTIONS, "distilling": still}), built(), make_node_parties())
    due = run(FedAvg(rounds=2, local=SGD, select="last"), built(), make_node_parties())
    assert_close(found.weights, due.weights, within=1e-12)


def test_dropout_is_off_where_parties_teach_and_the_server_learns():
    still = LocalTraining(optimizer="sgd", lr=1e-12, weight_decay=0.0)
    found, due = (
        run(FedTAD(rounds=1, **{**OPTIONS, "local": still}), built(rate), make_node_parties()) for rate in (0.5, 0.0)
    )
    assert_close(found.weights, due.weights, within=1e-9)
