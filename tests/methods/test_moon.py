"""MOON against its algorithm in plain PyTorch."""

import copy

import pytest
import torch
from personal import ADAMW, built, mean, run, weights_of
from torch.nn import functional as F
from torch_geometric.data import Batch

from helpers import assert_close, make_parties, plain_optimizer, plain_output
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.moon import Moon
from isthmus.methods.training import LocalTraining
from isthmus.nn.decoupled import Sgc
from isthmus.nn.weights import head_of

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=4, optimizer="sgd", lr=0.2, momentum=0.9)


def forward(module, party):
    """Outputs and embeddings of the training items."""
    inputs = []
    hook = module.get_submodule(head_of(module)).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    at = party.train.nonzero().flatten().tolist()
    graph = party.graph if party.level == "node" else Batch.from_data_list([party.graph[each] for each in at])
    output, embedding = plain_output(module, graph), inputs[0]
    hook.remove()
    return (output[at], embedding[at]) if party.level == "node" else (output, embedding)


def with_weights(module, weights):
    module = copy.deepcopy(module)
    module.load_state_dict(weights, strict=False)
    return module.train()


def trained(module, sent, previous, party, options, mu, tau):
    own, shared = with_weights(module, sent), with_weights(module, sent)
    before = None if previous is None else with_weights(module, previous)
    optimizer, y = plain_optimizer(options, own), party.graph.y[party.train]
    for _ in range(options.epochs):
        optimizer.zero_grad()
        output, z = forward(own, party)
        loss = F.cross_entropy(output, y)
        if before is not None:
            with torch.no_grad():
                z_sent, z_before = forward(shared, party)[1], forward(before, party)[1]
            near, far = (torch.exp(torch.cosine_similarity(z, each, dim=1) / tau) for each in (z_sent, z_before))
            loss = loss - mu * torch.log(near / (near + far)).mean()
        loss.backward()
        optimizer.step()
    return weights_of(own)


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize(("encoder", "options"), [("gcn", ADAMW), ("gin", SGD)])
@pytest.mark.thinned(2)
def test_a_run_is_the_papers_algorithm(encoder, options, level):
    module, parties = built(encoder, level), make_parties(level)
    found = run(
        Moon(rounds=3, select="last", local=options, mu=2.0, temperature=0.3), module, make_parties(level, sparse=True)
    )
    shared, previous = weights_of(module), [None for _ in parties]
    for _ in range(3):
        previous = [
            trained(module, shared, own, party, options, 2.0, 0.3) for own, party in zip(previous, parties, strict=True)
        ]
        shared = mean(parties, previous)
    assert_close(found.models["shared"], shared, within=1e-7)
    plain = run(FedAvg(rounds=3, select="last", local=options), module, parties)
    name = next(iter(shared))
    assert not torch.allclose(plain.models["shared"][name], shared[name], atol=1e-4)


def test_a_party_contrasts_with_the_last_round_in_which_it_took_part():
    module, parties = built("gcn", "node"), make_parties("node", untrained=(1,))
    found = run(Moon(rounds=4, select="last", fraction=0.5, local=SGD), module, parties)
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    assert len(set(map(frozenset, drawn))) > 1
    shared, previous = weights_of(module), dict.fromkeys(party.name for party in parties)
    for chosen in drawn:
        taking = [party for party in parties if party.name in chosen and bool(party.train.any())]
        for party in taking:
            previous[party.name] = trained(module, shared, previous[party.name], party, SGD, 1.0, 0.5)
        shared = mean(taking, [previous[party.name] for party in taking]) if taking else shared
    assert_close(found.models["shared"], shared, within=1e-7)


def test_without_weight_it_is_federated_averaging():
    module, parties = built("gcn", "node"), make_parties("node")
    found = run(Moon(rounds=3, select="last", local=ADAMW, mu=0.0), module, parties)
    due = run(FedAvg(rounds=3, select="last", local=ADAMW), module, parties)
    assert_close(found.models["shared"], due.models["shared"], within=1e-12)


def test_the_previous_model_never_leaves():
    found = run(Moon(rounds=2), built("gcn", "node"), make_parties("node"))
    due = run(FedAvg(rounds=2), built("gcn", "node"), make_parties("node"))
    assert list(found.ledger.rows()) == list(due.ledger.rows())


def test_a_model_that_is_all_head_is_refused_in_one_line():
    with pytest.raises(IsthmusError, match="has no embedding before its head"):
        run(Moon(rounds=1), Sgc().build(16, 3, "node"), make_parties("node"))
