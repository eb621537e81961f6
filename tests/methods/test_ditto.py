"""Ditto against its algorithm in plain PyTorch."""

import pytest
import torch
from personal import ADAMW, built, fitted, mean, run, weights_of

from helpers import assert_close, make_parties
from isthmus.methods.ditto import Ditto
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.local import Local
from isthmus.methods.training import LocalTraining

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=2, optimizer="sgd", lr=0.1)


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("encoder", ["gcn", "gin"])
@pytest.mark.thinned(2)
def test_personal_models_are_pulled_to_the_shared_one_as_it_was_sent(encoder, level):
    module, parties = built(encoder, level), make_parties(level)
    method = Ditto(rounds=3, select="last", local=ADAMW, personal=SGD, pull=0.7)
    found = run(method, module, make_parties(level, sparse=True))
    shared, models = weights_of(module), [weights_of(module) for _ in parties]
    for _ in range(3):

        def near(trained, sent=shared):
            return 0.35 * sum((p - sent[name]).square().sum() for name, p in trained.named_parameters())

        models = [fitted(module, own, party, SGD, extra=near) for own, party in zip(models, parties, strict=True)]
        shared = mean(parties, [fitted(module, shared, party, ADAMW) for party in parties])
    assert_close(found.models["shared"], shared, within=1e-8)
    for own, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], own, within=1e-8)


def test_the_shared_model_is_that_of_federated_averaging():
    module, parties = built("gcn", "node"), make_parties("node")
    found = run(Ditto(rounds=3, select="last", local=ADAMW), module, parties)
    due = run(FedAvg(rounds=3, select="last", local=ADAMW), module, parties)
    assert_close(found.models["shared"], due.models["shared"], within=0.0)


def test_without_a_pull_every_party_trains_alone():
    module, parties = built("gcn", "node"), make_parties("node")
    found = run(Ditto(rounds=3, select="last", personal=SGD, pull=0.0), module, parties)
    due = run(Local(rounds=3, select="last", local=SGD), module, parties)
    for party in parties:
        assert_close(found.models["parties"][party.name], due.models["parties"][party.name], within=1e-12)


def test_a_party_without_training_items_has_the_shared_model():
    module, parties = built("gcn", "node"), make_parties("node", untrained=(1,))
    found = run(Ditto(rounds=3, select="last", local=ADAMW), module, parties)
    before = run(Ditto(rounds=2, select="last", local=ADAMW), module, parties).models["shared"]
    idle = found.models["parties"]["party-1"]
    assert_close(idle, found.models["shared"], within=0.0)
    assert not torch.equal(idle["convs.1.bias"], before["convs.1.bias"])
