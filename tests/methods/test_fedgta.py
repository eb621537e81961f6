"""FedGTA against its algorithm, written out with dense matrices, one party after another."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from personal import run, weights_of
from torch.nn import functional as F

from helpers import CLASSES, FEATURES, assert_close, make_node_parties, plain_fit, plain_output
from isthmus.methods.fedgta import FedGTA
from isthmus.methods.local import Local
from isthmus.methods.training import LocalTraining
from isthmus.nn.decoupled import Gamlp
from isthmus.nn.encoders import Gcn

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=3, optimizer="sgd", lr=0.5)
STEPS, ORDERS, SIMILAR = 4, 3, 0.96


def built(encoder=Gamlp):
    torch.manual_seed(0)
    return encoder(hidden=8, dropout=0.0).build(FEATURES, CLASSES, "node")


def without_edges(party):
    graph = party.graph.clone()
    graph.edge_index = graph.edge_index[:, :0]
    return replace(party, graph=graph)


def described(module, party):
    """m_k and H_k."""
    nodes, graph = party.nodes, party.graph
    with torch.no_grad():
        start = plain_output(module.eval(), graph).softmax(1)
    labels = F.one_hot(graph.y, CLASSES).double()
    start[party.train] = labels[party.train]
    neighbours = torch.zeros(nodes, nodes)
    for source, target in graph.edge_index.t().tolist():
        neighbours[target, source] += 1
    with_self = neighbours + torch.eye(nodes)
    scale = torch.diag(with_self.sum(1) ** -0.5)
    y = start.clone()
    for _ in range(STEPS):
        y = 0.5 * scale @ with_self @ scale @ y + 0.5 * start
        y[party.train] += start[party.train]
    soft, even = y.softmax(1), (y / 20).softmax(1)
    soft[party.train] = even[party.train] = labels[party.train]
    central = soft - soft.mean(0)
    moments = [(each**p).mean(0) for each in (soft, central) for p in range(1, ORDERS + 1)]
    sure = 0.0
    for v in range(nodes):
        entropy = sum(q * math.log(q) for q in even[v].tolist() if q)
        sure += float(neighbours[v].sum()) * (CLASSES / math.e + entropy)
    return torch.cat(moments), sure


def fit(module, weights, party):
    module = copy.deepcopy(module)
    module.load_state_dict(weights)
    return plain_fit(module, party, SGD)[0]


def mixed(models, moments, sure, at, among):
    near = [j for j in among if j == at or torch.cosine_similarity(moments[at], moments[j], dim=0) > SIMILAR]
    total = sum(sure[j] for j in near)
    shares = {j: sure[j] / total if total else 1 / len(near) for j in near}
    shares = {j: share for j, share in shares.items() if share}
    if len(shares) < 2:
        return models[at], shares
    return {n: sum(share * models[j][n] for j, share in shares.items()) for n in models[at]}, shares


def literal(module, parties, drawn):
    models, sets = [weights_of(module) for _ in parties], []
    for chosen in drawn:
        trained = {at: fit(module, models[at], parties[at]) for at in chosen}
        told = {at: described(trained[at], parties[at]) for at in chosen}
        moments, sure = ({at: each[i] for at, each in told.items()} for i in (0, 1))
        among = [at for at in chosen if bool(parties[at].train.any())]
        own = {at: weights_of(each) for at, each in trained.items()}
        for at in chosen:
            models[at], shares = mixed(own, moments, sure, at, among)
            sets.append(frozenset(shares))
    return models, sets


def checked(parties, **options):
    encoder = options.pop("encoder", Gamlp)
    module = built(encoder)
    method = FedGTA(
        rounds=3, select="last", local=SGD, steps=STEPS, orders=ORDERS, similar=SIMILAR, evaluate_with="sent", **options
    )
    found = run(method, module, parties)
    drawn = [
        [at for at, party in enumerate(parties) if party.name in call.parties]
        for call in found.ledger.entries
        if call.action == "train"
    ]
    models, sets = literal(module, parties, drawn)
    for own, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], own, within=1e-7)
    return found, sets


@pytest.mark.parametrize("encoder", [Gamlp, Gcn])
def test_a_run_is_the_papers_algorithm(encoder):
    found, sets = checked(make_node_parties(), encoder=encoder)
    assert len(set(sets)) > 1
    assert {len(each) for each in sets} & {2, 3}
    assert "shared" not in found.models


def test_parties_without_edges_training_nodes_or_test_nodes():
    parties = list(make_node_parties((23, 40, 12, 31, 9), untrained=(1,)))
    parties[2], parties[4] = without_edges(parties[2]), without_edges(parties[4])
    parties[0] = replace(parties[0], test=torch.zeros_like(parties[0].test))
    checked(parties)


def test_parties_without_edges_alone_count_evenly():
    parties = [without_edges(party) for party in make_node_parties((23, 40, 12))]
    checked(parties)


def test_a_party_that_is_not_drawn_keeps_its_last_mix():
    _, sets = checked(make_node_parties((23, 40, 12, 31, 29)), fraction=0.6)
    assert len(sets) == 9


def test_sets_of_one_train_alone():
    parties = make_node_parties()
    module = built()
    found = run(FedGTA(rounds=3, select="last", local=SGD, similar=0.9999), module, parties)
    due = run(Local(rounds=3, select="last", local=SGD), module, parties)
    for party in parties:
        assert_close(found.models["parties"][party.name], due.models["parties"][party.name], within=1e-12)


def test_a_class_that_nobody_holds_changes_nothing():
    parties = []
    for party in make_node_parties():
        graph = party.graph.clone()
        graph.y = graph.y.clamp(max=CLASSES - 2)
        parties.append(replace(party, graph=graph))
    checked(parties)


def test_no_model_is_read_by_the_server():
    found = run(FedGTA(rounds=2), built(), make_node_parties())
    eyes = {(call.action, call.eyes) for call in found.ledger.entries if call.action != "evaluate"}
    assert eyes == {
        ("train", "server sees each answer"), ("give", "parties see the sum"), ("give: delivery", "parties see the sum")
    }  # fmt: skip
    assert all("weights" not in call.fields for call in found.ledger.entries if call.action == "train")


def test_similarity_is_not_transitive_and_untrained_parties_only_receive():
    turns = {"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.4}
    told = {
        name: {"moments": torch.tensor([math.cos(at), math.sin(at)]), "confidence": torch.tensor(weight)}
        for (name, at), weight in zip(turns.items(), (1.0, 3.0, 0.0, 9.0), strict=True)
    }
    found = FedGTA(similar=0.8).mix(told, ["a", "b", "c"])
    assert found["a"] == pytest.approx({"a": 0.25, "b": 0.75})
    assert found["b"] == pytest.approx({"a": 0.25, "b": 0.75, "c": 0.0})
    assert found["c"] == pytest.approx({"b": 1.0, "c": 0.0})
    assert found["d"].keys() == {"d", "a", "b", "c"} - {"d"}
