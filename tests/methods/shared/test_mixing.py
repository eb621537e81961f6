"""What all methods have in common that send each party its own mix of models."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from personal import built, run

from helpers import CLASSES, assert_close, make_node_parties
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.transport import Sums
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedgta import FedGTA
from isthmus.methods.fedpub import FedPub
from isthmus.methods.shared.mixing import of_one_form
from isthmus.methods.training import LocalTraining
from isthmus.study.loop import sites_of
from isthmus.tasks.classification import NodeClassification

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=2, optimizer="sgd", lr=0.3)


class NoSums(Sums):
    """Stands for a protection that is never used."""

    def total(self, wanted):
        raise AssertionError("a total was asked for")

    def restart(self):
        raise AssertionError("parties were restarted")


ALL = {"rounds": 2, "select": "last", "similar": -1.0, "local": SGD}
"""With FedGTA: every party is similar to every other."""


def received(found):
    return [call.parties for call in found.ledger.entries if call.action == "give: delivery"]


def test_a_description_of_another_form_is_left_out(caplog):
    told = {name: {"moments": torch.ones(4), "trained": torch.tensor(1)} for name in "abc"}
    told["b"]["moments"] = torch.ones(5)
    assert list(of_one_form(told)) == ["a", "c"]
    assert "party 'b' is in no mix" in caplog.text


def test_a_mix_of_too_few_is_not_sent():
    parties, module = make_node_parties(), built("gcn", "node")
    assert all(len(each) == 4 for each in received(run(FedGTA(**ALL, min_parties=4), module, parties)))
    assert not any(received(run(FedGTA(**ALL, min_parties=5), module, parties)))


def test_parties_of_one_set_receive_one_model():
    found = run(FedGTA(**ALL), built("gcn", "node"), make_node_parties())
    models = list(found.models["parties"].values())
    for own in models[1:]:
        assert_close(own, models[0], within=0.0)


def test_a_mix_is_divided_by_the_shares_that_came(monkeypatch: pytest.MonkeyPatch):
    """A party that trained and then failed is in no mix; it receives one all the same."""
    give = FedPub.AtParty.give

    @wraps(give)
    def failing(self, request):
        if "party-2" in self.cohort.names:
            raise IsthmusError("away")
        return give(self, request)

    parties, module = make_node_parties(), built("gcn", "node")
    monkeypatch.setattr(FedPub.AtParty, "give", failing)
    # without preference, so that shares are even
    found = run(FedPub(rounds=1, tau=0.0, local=SGD), module, parties)
    monkeypatch.undo()
    due = run(FedPub(rounds=1, tau=0.0, local=SGD), module, [party for party in parties if party.name != "party-2"])
    theta = {name for name in due.models["parties"]["party-0"] if "mask" not in name}
    for party in parties:
        own = {name: weight for name, weight in found.models["parties"][party.name].items() if name in theta}
        mix = {name: due.models["parties"]["party-0"][name] for name in theta}
        assert_close(dict(sorted(own.items())), dict(sorted(mix.items())), within=1e-12)
    assert [row["party"] for row in found.ledger.rows() if row["status"] == "failed"] == ["party-2"]


@pytest.mark.parametrize("untrained", [(0, 1, 2, 3), (0, 2, 3)])
def test_without_two_parties_that_trained_nothing_is_mixed(untrained):
    parties = make_node_parties(untrained=untrained)
    if len(untrained) == len(parties):
        with pytest.raises(IsthmusError, match="no party has a training label"):
            run(FedPub(rounds=2), built("gcn", "node"), parties)
        return
    assert not any(received(run(FedPub(rounds=2), built("gcn", "node"), parties)))


def test_a_round_that_draws_no_party_with_training_items_is_none():
    parties = make_node_parties(untrained=(0, 2, 3))
    found = run(FedPub(rounds=6, fraction=0.25), built("gcn", "node"), parties)
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    assert ("party-0",) in drawn or ("party-2",) in drawn or ("party-3",) in drawn
    gave = [call.parties for call in found.ledger.entries if call.action == "give"]
    assert set(gave) <= {("party-1",)}


@pytest.mark.parametrize("kind", [FedGTA, FedPub])
def test_masks_are_refused_before_anybody_trains(kind):
    parties, module = make_node_parties(), built("gcn", "node")
    method, task = kind(), NodeClassification(classes=CLASSES)
    transport = LocalTransport(sites_of(method, parties, task, method.extended(module), seed=0))
    transport.sums, transport.protections = NoSums(), {"total": "masks"}
    federation = Federation(transport)
    with pytest.raises(IsthmusError, match=r"'masks' hides the summands .* set protect.total = 'none'"):
        next(method.server(federation, Model(module), State()))
    assert not federation.ledger.entries
