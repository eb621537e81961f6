"""FedAux against its algorithm in plain PyTorch."""

from dataclasses import replace

import pytest
import torch
from personal import run, weights_of
from torch.func import functional_call
from torch.nn import functional as F

from helpers import CLASSES, FEATURES, assert_close, make_node_parties
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.methods.fedaux import FedAux
from isthmus.methods.training import LocalTraining
from isthmus.nn.decoupled import Sgc
from isthmus.nn.draws import seed_of, torch_seeded
from isthmus.nn.encoders import Gcn
from isthmus.nn.masked import MASK

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=4, optimizer="sgd", lr=0.3)
SEED = 3  # that of `personal.run`


def built(dropout=0.0):
    torch.manual_seed(0)
    return Gcn(hidden=8, dropout=dropout, linear_head=True).build(FEATURES, CLASSES, "node")


def outputs(module, weights, graph, sigma):
    """W [h, z] + b, with h as the unchanged model's head reads it, and one node after another."""
    inputs = []
    masks = {name.removesuffix(MASK): weight for name, weight in weights.items() if name.endswith(MASK)}
    names = [name for name in weights if not name.endswith(MASK)]
    weights = {name: weights[name] * masks.get(name.removesuffix(".weight"), 1) for name in names}
    own = {name.removeprefix("body."): weight for name, weight in weights.items() if ".linear." not in name}
    hook = module.linear.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    functional_call(module, own, (to_dense(graph.x), graph.edge_index))
    hook.remove()
    h = inputs[0]
    s = h @ weights["body.linear.direction"] / max(row.norm() for row in h)
    z = []
    for i in range(len(h)):
        near = torch.stack([torch.exp(-((s[i] - s[j]) ** 2) / sigma**2) for j in range(len(h))])
        z.append(near / near.sum() @ h)
    read = torch.cat([h, torch.stack(z)], dim=1)
    return F.linear(read, weights["body.linear.linear.weight"], weights["body.linear.linear.bias"])


def fit(module, weights, party, sigma):
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    optimizer = torch.optim.SGD([*weights.values()], lr=SGD.lr, weight_decay=SGD.weight_decay)
    for _ in range(SGD.epochs if bool(party.train.any()) else 0):
        optimizer.zero_grad()
        output = outputs(module, weights, party.graph, sigma)
        F.cross_entropy(output[party.train], party.graph.y[party.train]).backward()
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def checked(parties, alpha=10.0, sigma=0.7, **options):
    module = built()
    method = FedAux(rounds=2, select="last", local=SGD, alpha=alpha, sigma=sigma, **options)
    found = run(method, module, parties)
    with torch_seeded(seed_of(SEED, "method")):
        start = weights_of(method.extended(module))
    mixed = [name for name in start if not name.endswith(MASK)]
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    theta = [dict(start) for _ in parties]
    for chosen in drawn:
        taking = [at for at, party in enumerate(parties) if party.name in chosen]
        for at in taking:
            theta[at] = fit(module, theta[at], parties[at], sigma)
        a = {at: theta[at]["body.linear.direction"] for at in taking}
        givers = [at for at in taking if bool(parties[at].train.any())]
        mixes = {}
        for at in taking:
            shares = torch.stack([torch.exp(alpha * torch.cosine_similarity(a[at], a[j], dim=0)) for j in givers])
            shares = shares / shares.sum()
            mix = {n: sum(c * theta[j][n] for c, j in zip(shares, givers, strict=True)) for n in mixed}
            mixes[at] = {**theta[at], **mix}
        theta = [mixes.get(at, own) for at, own in enumerate(theta)]
    for at, party in enumerate(parties):
        assert_close(found.models["parties"][party.name], theta[at], within=1e-7)
    return found


def test_a_run_is_the_papers_algorithm():
    dense = checked(make_node_parties())
    method = FedAux(rounds=2, select="last", local=SGD, sigma=0.7)
    found = run(method, built(), make_node_parties(sparse=True))
    for name, own in found.models["parties"].items():
        assert_close(own, dense.models["parties"][name], within=1e-7)
    assert "shared" not in found.models


def test_parties_without_training_or_test_nodes_or_edges_and_parties_that_are_not_drawn():
    parties = list(make_node_parties((13, 20, 5, 11, 9), untrained=(1,)))
    parties[0] = replace(parties[0], test=torch.zeros_like(parties[0].test))
    lonely = parties[3].graph.clone()
    lonely.edge_index = lonely.edge_index[:, :0]
    parties[3] = replace(parties[3], graph=lonely)
    checked(parties)
    checked(parties, fraction=0.6)


@pytest.mark.slow
def test_masks_stay_at_their_parties():
    found = checked(make_node_parties(), masks=True)
    own = found.models["parties"]
    assert not torch.allclose(own["party-0"]["body.linear.linear.mask"], own["party-1"]["body.linear.linear.mask"])


def test_a_large_alpha_leaves_each_its_own_model_and_zero_gives_all_one():
    parties = make_node_parties()
    one = run(FedAux(rounds=1, alpha=0.0, local=SGD), built(), parties).models["parties"]
    assert_close(one["party-0"], one["party-3"], within=1e-12)
    own = run(FedAux(rounds=1, alpha=1e9, local=SGD), built(), parties).models["parties"]
    assert not torch.allclose(own["party-0"]["body.convs.1.lin.weight"], own["party-3"]["body.convs.1.lin.weight"])


def test_the_server_reads_directions_and_no_weights():
    found = run(FedAux(rounds=2), built(), make_node_parties())
    calls = [call for call in found.ledger.entries if call.action != "evaluate"]
    assert {(call.action, call.eyes) for call in calls} == {
        ("train", "server sees each answer"), ("give", "parties see the sum"), ("give: delivery", "parties see the sum")
    }  # fmt: skip
    assert all("weights" not in call.fields for call in calls if call.action == "train")


def test_dropout_is_off_where_models_are_scored():
    still = LocalTraining(lr=1e-12, weight_decay=0.0)
    found, due = (run(FedAux(rounds=1, local=still), built(dropout), make_node_parties()) for dropout in (0.5, 0.0))
    assert found.metrics == pytest.approx(due.metrics, abs=1e-9)


def test_a_model_that_is_all_head_is_refused():
    with pytest.raises(
        IsthmusError, match=r"method 'fedaux': model .* has no embedding before its head: its only layer"
    ):
        run(FedAux(rounds=1), Sgc().build(FEATURES, CLASSES, "node"), make_node_parties())
