"""FedPer against its algorithm in plain PyTorch."""

import pytest
import torch
from personal import ADAMW, built, fitted, mean, run, weights_of
from torch import nn
from torch_geometric.nn import GCNConv

from helpers import assert_close, make_parties
from isthmus.errors import IsthmusError
from isthmus.methods.ditto import Ditto
from isthmus.methods.fedper import FedPer
from isthmus.nn.decoupled import Sgc
from isthmus.nn.weights import head_weights
from isthmus.study.run import run as run_methods

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("encoder", ["gcn", "gin"])
def test_bodies_are_averaged_and_heads_stay(encoder, level):
    module, parties = built(encoder, level), make_parties(level)
    found = run(FedPer(rounds=3, select="last", local=ADAMW), module, make_parties(level, sparse=True))
    head, models = head_weights(module), [weights_of(module) for _ in parties]
    for _ in range(3):
        models = [fitted(module, own, party, ADAMW) for own, party in zip(models, parties, strict=True)]
        shared = mean(parties, models)
        models = [{name: own[name] if name in head else shared[name] for name in own} for own in models]
    body = {name: weight for name, weight in shared.items() if name not in head}
    assert_close(found.models["shared"], body, within=1e-8)
    for own, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], own, within=1e-8)


def test_no_weight_of_a_head_leaves_a_party():
    found = run(FedPer(rounds=2), module := built("gcn", "node"), make_parties("node"))
    sent = {row["fields"] for row in found.ledger.rows() if row["action"] == "train"}
    assert all(f"weights/{name}[" not in fields for name in head_weights(module) for fields in sent)
    assert all("weights/convs.0.bias[" in fields for fields in sent)


def test_a_party_that_was_not_drawn_is_evaluated_with_the_first_head():
    module, parties = built("gcn", "node"), make_parties("node")
    found = run(FedPer(rounds=1, fraction=0.5, local=ADAMW), module, parties)
    drawn = next(set(call.parties) for call in found.ledger.entries if call.action == "train")
    assert 0 < len(drawn) < len(parties)
    for party in parties:
        first = all(
            torch.equal(found.models["parties"][party.name][name], weights_of(module)[name])
            for name in head_weights(module)
        )
        assert first == (party.name not in drawn)


def test_a_model_that_is_all_head_is_refused():
    with pytest.raises(IsthmusError, match="the whole model is its head"):
        run(FedPer(rounds=1), Sgc().build(10, 3, "node"), make_parties("node"))


def test_a_head_without_weights_is_refused():
    class Soft(nn.Module):
        head = "last"

        def __init__(self):
            super().__init__()
            self.conv, self.last = GCNConv(10, 3), nn.Softplus()

        def forward(self, x, edge_index):
            return self.last(self.conv(x, edge_index))

    with pytest.raises(IsthmusError, match="head has no weights"):
        FedPer(rounds=1).check(Soft())


@pytest.mark.parametrize("method", [FedPer(rounds=2, evaluate_with="trained"), Ditto(rounds=2)])
def test_a_cohort_with_an_idle_party_is_evaluated_as_cohorts_of_one(method):
    module, parties = built("gcn", "node"), make_parties("node", untrained=(1,))
    together, apart = (run(method, module, parties, side_by_side=each) for each in (True, False))
    for party in parties:
        assert_close(together.models["parties"][party.name], apart.models["parties"][party.name], within=1e-8)
    assert together.evaluated == ("own" if isinstance(method, Ditto) else "trained")


def test_a_model_of_your_own_names_its_head():
    class Mine(nn.Module):
        def __init__(self, features, classes):
            super().__init__()
            self.conv, self.last = GCNConv(features, 8), nn.Linear(8, classes)

        def forward(self, x, edge_index):
            return self.last(self.conv(x, edge_index).relu())

    parties = make_parties("node")
    with pytest.raises(IsthmusError, match="Mine names no head: set `head ="):
        run_methods("fedper", parties, model=Mine, rounds=1)
    Mine.head = "last"
    (found,) = run_methods("fedper", parties, model=Mine, rounds=2).runs
    assert set(found.models["shared"]) == {"conv.lin.weight", "conv.bias"}
