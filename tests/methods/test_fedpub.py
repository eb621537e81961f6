"""FED-PUB against its algorithm in plain PyTorch: masks are applied from outside to a model that knows of none."""

from dataclasses import replace

import pytest
import torch
from personal import run, weights_of
from torch.func import functional_call
from torch.nn import functional as F
from torch_geometric.data import Data

from helpers import CLASSES, FEATURES, assert_close, make_node_parties
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.methods.fedpub import BLOCKS, NODES, FedPub, proxy_graph
from isthmus.methods.training import LocalTraining
from isthmus.nn.decoupled import Sgc
from isthmus.nn.encoders import Gcn

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=4, optimizer="sgd", lr=0.3)
SEED = 3  # that of `personal.run`


def built(dropout=0.0):
    torch.manual_seed(0)
    return Gcn(hidden=8, dropout=dropout).build(FEATURES, CLASSES, "node")


def forward(module, theta, mu, graph):
    """Outputs, and those of the first of two layers before its activation, with the weights theta * mu."""
    found, weights = [], {name: theta[name] * mu[name] if name in mu else theta[name] for name in theta}
    hook = module.convs[0].register_forward_hook(lambda *each: found.append(each[-1]))
    output = functional_call(module, weights, (to_dense(graph.x), graph.edge_index))
    hook.remove()
    return output, found[0]


def fit(module, theta, mu, party, sparsity, proximity):
    received = theta
    theta, mu = ({n: w.clone().requires_grad_() for n, w in each.items()} for each in (theta, mu))
    optimizer = torch.optim.SGD([*theta.values(), *mu.values()], lr=SGD.lr, weight_decay=SGD.weight_decay)
    for _ in range(SGD.epochs if bool(party.train.any()) else 0):
        optimizer.zero_grad()
        output, _ = forward(module.train(), theta, mu, party.graph)
        gap = torch.cat([(theta[n] - received[n]).flatten() for n in theta])
        size = torch.cat([each.flatten() for each in mu.values()]).abs().sum()
        loss = F.cross_entropy(output[party.train], party.graph.y[party.train])
        (loss + sparsity * size + proximity * gap.norm()).backward()
        optimizer.step()
    return tuple({n: w.detach() for n, w in each.items()} for each in (theta, mu))


def embedding(module, theta, mu, threshold):
    block = proxy_graph(SEED, FEATURES, torch.float64)
    seen = {name: mask * (mask.abs() >= threshold) for name, mask in mu.items()}
    return forward(module.eval(), theta, seen, Data(x=block.x, edge_index=block.edge_index))[1].mean(0)


def checked(parties, tau=3.0, sparsity=0.01, proximity=0.5, *, real=True, **options):
    module = built()
    method = FedPub(
        rounds=3, select="last", local=SGD, tau=tau, sparsity=sparsity, proximity=proximity, as_released=not real,
        **options,
    )  # fmt: skip
    found = run(method, module, parties)
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    start = weights_of(module)
    theta = [dict(start) for _ in parties]
    mu = [{name: torch.ones_like(weight) for name, weight in start.items() if weight.dim() == 2} for _ in parties]
    for chosen in drawn:
        taking = [at for at, party in enumerate(parties) if party.name in chosen]
        strengths = (sparsity, proximity) if real else (0.0, 0.0)
        for at in taking:
            theta[at], mu[at] = fit(module, theta[at], mu[at], parties[at], *strengths)
        h = {at: embedding(module, theta[at], mu[at], sparsity) for at in taking}
        givers = [at for at in taking if bool(parties[at].train.any())]
        mixes = {}
        for at in taking:
            shares = torch.stack([torch.exp(tau * torch.cosine_similarity(h[at], h[j], dim=0)) for j in givers])
            shares = shares / shares.sum()
            mixes[at] = {n: sum(c * theta[j][n] for c, j in zip(shares, givers, strict=True)) for n in start}
        theta = [mixes.get(at, own) for at, own in enumerate(theta)]
    for at, party in enumerate(parties):
        due = {**theta[at], **{name.replace("weight", "mask"): mask for name, mask in mu[at].items()}}
        assert_close(found.models["parties"][party.name], due, within=1e-7)
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_a_run_is_the_papers_algorithm(sparse):
    dense = checked(make_node_parties())
    found = run(
        FedPub(rounds=3, select="last", local=SGD, sparsity=0.01, proximity=0.5),
        built(),
        make_node_parties(sparse=sparse),
    )
    for name, own in found.models["parties"].items():
        assert_close(own, dense.models["parties"][name], within=1e-7)
    assert "shared" not in found.models


@pytest.mark.parametrize("strengths", [(0.05, 0.0), (0.0, 2.0)])
def test_each_penalty_has_a_gradient(strengths):
    sparsity, proximity = strengths
    real = checked(make_node_parties(), sparsity=sparsity, proximity=proximity)
    released = checked(make_node_parties(), sparsity=sparsity, proximity=proximity, real=False)
    names = ("convs.1.lin.mask", "convs.1.lin.weight")
    for name in names:
        one, other = (found.models["parties"]["party-0"][name] for found in (real, released))
        assert not torch.allclose(one, other, atol=1e-4)
    mask, unpenalised = (found.models["parties"]["party-0"][names[0]] for found in (real, released))
    if sparsity:
        assert float(mask.abs().sum()) < float(unpenalised.abs().sum())


def test_parties_without_training_or_test_nodes_and_parties_that_are_not_drawn():
    parties = list(make_node_parties((23, 40, 5, 31, 29), untrained=(1,)))
    parties[0] = replace(parties[0], test=torch.zeros_like(parties[0].test))
    checked(parties)
    checked(parties, fraction=0.6)


def test_small_entries_of_a_mask_count_as_zero_in_evaluation_only():
    """With a threshold above all entries a model answers its bias for every node, although it was trained."""
    parties = make_node_parties()
    found = run(FedPub(rounds=1, sparsity=2.0, as_released=True, local=SGD), built(), parties)
    models = [found.models["parties"][party.name] for party in parties]
    answers = [int(own["convs.1.bias"].argmax()) for own in models]
    hits = sum(int((party.graph.y[party.test] == at).sum()) for at, party in zip(answers, parties, strict=True))
    assert found.metrics["test_accuracy"] == pytest.approx(hits / sum(int(party.test.sum()) for party in parties))
    assert not torch.allclose(models[0]["convs.1.lin.mask"], models[1]["convs.1.lin.mask"], atol=1e-5)


def test_masks_never_leave():
    found = run(FedPub(rounds=2), built(), make_node_parties())
    calls = [call for call in found.ledger.entries if call.action != "evaluate"]
    assert {(call.action, call.eyes) for call in calls} == {
        ("train", "server sees each answer"), ("give", "parties see the sum"), ("give: delivery", "parties see the sum")
    }  # fmt: skip
    assert not any("mask" in call.fields for call in calls)
    assert all("weights" not in call.fields for call in calls if call.action == "train")


def test_dropout_is_off_where_models_are_compared_and_scored():
    parties = make_node_parties()
    found = run(FedPub(rounds=1, local=LocalTraining(lr=1e-12, weight_decay=0.0)), built(dropout=0.5), parties)
    due = run(FedPub(rounds=1, local=LocalTraining(lr=1e-12, weight_decay=0.0)), built(), parties)
    assert found.metrics == pytest.approx(due.metrics, abs=1e-9)


def test_the_random_graph_has_blocks_and_is_the_same_at_every_party():
    block = proxy_graph(7, 4, torch.float32)
    assert block.x.shape == (BLOCKS * NODES, 4)
    assert bool((block.edge_index[0] // NODES == block.edge_index[1] // NODES).all())
    assert bool((block.edge_index[0] != block.edge_index[1]).all())
    most = BLOCKS * NODES * (NODES - 1)
    assert 0.09 < block.edge_index.size(1) / most < 0.11
    assert len(set(map(tuple, block.edge_index.t().tolist()))) == block.edge_index.size(1)
    again, other = proxy_graph(7, 4, torch.float32), proxy_graph(8, 4, torch.float32)
    assert torch.equal(again.x, block.x)
    assert torch.equal(again.edge_index, block.edge_index)
    assert not torch.equal(other.x, block.x)


def test_a_model_that_is_all_head_is_refused():
    with pytest.raises(IsthmusError, match="nothing embeds the random graph"):
        run(FedPub(rounds=1), Sgc().build(FEATURES, CLASSES, "node"), make_node_parties())
