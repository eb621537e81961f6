"""What the audit of an epsilon says, and what it cannot audit."""

import pytest
from games import AUDIT, CLAIMED, a_tenth, of_edges

from helpers import make_node_parties
from isthmus.audit.epsilon import EmpiricalEpsilon
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Encoder
from isthmus.privacy import hops
from isthmus.privacy.options import EdgePrivacy, ItemPrivacy
from isthmus.study.setup import module_for, task_for


def test_it_says_both_epsilons(monkeypatch):
    sound = AUDIT.shown(of_edges())
    table = AUDIT.table([sound], 2)
    assert table.notes == [sound.said]
    assert sound.said.startswith("claimed epsilon 2; this audit shows at least 0.")
    assert sound.said.endswith("(95 % confidence, 800 canaries)")
    assert sound.bound.epsilon - 0.01 < table.lower_bounds[0]["shown"] <= sound.bound.epsilon < CLAIMED
    monkeypatch.setattr(hops, "discrete_gaussian", a_tenth(hops.discrete_gaussian))
    assert "do not rely on the claim" in AUDIT.shown(of_edges()).said


def test_it_plays_the_game_of_the_unit():
    parties = make_node_parties([20, 20])
    task = task_for(parties)
    audit = EmpiricalEpsilon(canaries=20)
    for encoder, privacy in (("mlp", ItemPrivacy(epsilon=1.0)), ("gap", EdgePrivacy(epsilon=1.0))):
        module = module_for(Encoder.named(encoder)(hidden=4), parties, task, 0)
        (found,) = audit.run(parties, task, module, FedAvg(rounds=1), privacy=privacy)
        assert found.unit == privacy.name
        assert found.bound.canaries == 20


def test_a_method_without_noise_has_nothing_to_show():
    parties = make_node_parties([20, 20])
    task = task_for(parties)
    module = module_for(Encoder.named("mlp")(hidden=4), parties, task, 0)
    with pytest.raises(IsthmusError, match=r"audit 'epsilon': method 'fedavg' adds no noise: set privacy\.epsilon"):
        AUDIT.run(parties, task, module, FedAvg())
    with pytest.raises(IsthmusError, match="nothing that method 'local' trains leaves the parties"):
        AUDIT.run(parties, task, module, Method.named("local")(), privacy=ItemPrivacy(epsilon=1.0))
