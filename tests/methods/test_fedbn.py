"""FedBN against its algorithm in plain PyTorch."""

import logging

import pytest
import torch
from personal import ADAMW, built, fitted, mean, run, weights_of
from torch import nn
from torch_geometric import nn as gnn

from helpers import assert_close, make_parties
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedbn import FedBN
from isthmus.nn.weights import batch_norm_weights

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("level", ["node", "graph"])
def test_all_but_batch_normalisation_is_averaged(level):
    module, parties = built("gin", level), make_parties(level)
    found = run(FedBN(rounds=3, select="last", local=ADAMW), module, make_parties(level, sparse=True))
    own, models = batch_norm_weights(module), [weights_of(module) for _ in parties]
    assert {name.rpartition(".")[2] for name in own} == {"weight", "bias", "running_mean", "running_var"}
    for _ in range(3):
        models = [fitted(module, each, party, ADAMW) for each, party in zip(models, parties, strict=True)]
        shared = mean(parties, models)
        models = [{name: each[name] if name in own else shared[name] for name in each} for each in models]
    assert_close(found.models["shared"], {n: w for n, w in shared.items() if n not in own}, within=1e-8)
    for each, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], each, within=1e-8)


class Named(nn.Module):
    """Batch normalisation under a name that does not show it, and a linear layer under one that misleads."""

    head = "bn_last"

    def __init__(self):
        super().__init__()
        self.bn_first, self.scale, self.bn_last = gnn.GCNConv(16, 8), gnn.BatchNorm(8), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        return self.bn_last(self.scale(self.bn_first(x, edge_index)).relu())


def test_batch_normalisation_is_found_by_its_type_and_never_leaves():
    torch.manual_seed(0)
    found = run(FedBN(rounds=2), Named(), make_parties("node"))
    assert set(found.models["shared"]) == {"bn_first.bias", "bn_first.lin.weight", "bn_last.weight", "bn_last.bias"}
    sent = {row["fields"] for row in found.ledger.rows() if row["action"] == "train"}
    assert all("weights/bn_last.bias[" in fields and "scale" not in fields for fields in sent)


def test_without_batch_normalisation_it_is_federated_averaging_and_says_so(caplog):
    module, parties = built("gcn", "node"), make_parties("node")
    with caplog.at_level(logging.WARNING):
        found = run(FedBN(rounds=3, select="last", local=ADAMW), module, parties)
    assert [each.getMessage() for each in caplog.records if "no batch normalisation, so this is FedAvg" in each.message]
    due = run(FedAvg(rounds=3, select="last", local=ADAMW), module, parties)
    assert_close(found.models["shared"], due.models["shared"], within=0.0)
    assert found.history == due.history


def test_a_party_that_was_not_drawn_has_the_first_normalisation():
    module, parties = built("gin", "node"), make_parties("node", untrained=(1,))
    found = run(FedBN(rounds=1, fraction=0.5, local=ADAMW), module, parties)
    drawn = next(set(call.parties) for call in found.ledger.entries if call.action == "train")
    assert 0 < len(drawn) < len(parties)
    for party in parties:
        first = weights_of(module)
        same = [torch.equal(found.models["parties"][party.name][n], first[n]) for n in batch_norm_weights(module)]
        assert all(same) == (party.name not in drawn or not bool(party.train.any()))


def test_a_model_that_is_all_normalisation_is_refused():
    with pytest.raises(IsthmusError, match="nothing is shared"):
        FedBN().check(nn.BatchNorm1d(3))
