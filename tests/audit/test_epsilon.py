"""Noise that is sound shows less than its epsilon, and noise that is broken more, for every unit."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import make_graph_parties, make_node_parties
from isthmus.audit.canary_edges import CanaryEdges, pairs_of
from isthmus.audit.canary_items import CanaryItems
from isthmus.audit.canary_parties import CanaryParties
from isthmus.audit.canary_views import CanaryViews
from isthmus.audit.epsilon import EmpiricalEpsilon
from isthmus.errors import IsthmusError
from isthmus.federation.private import PrivateEdges, PrivateItems, PrivateSums
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fgcl import FGCL
from isthmus.nn.aggregation import aggregations
from isthmus.nn.encoders import Encoder
from isthmus.privacy import hops, items, updates
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.mechanisms import Laplace
from isthmus.privacy.options import EdgePrivacy, ItemPrivacy, PartyPrivacy
from isthmus.privacy.updates import PartyPlan
from isthmus.study.setup import module_for, task_for

CLAIMED = 2.0
AUDIT = EmpiricalEpsilon(canaries=800)


def of_items(**options):
    parties = make_node_parties([150, 150, 150])
    task = task_for(parties)
    module = module_for(Encoder.named("mlp")(hidden=8), parties, task, 0)
    plan = ItemPlan.of(ItemPrivacy(epsilon=CLAIMED, **options), 2, 2)
    return CanaryItems(PrivateItems(plan, ("train",)), parties, task, module, FedAvg())


def of_parties():
    plan = PartyPlan.of(PartyPrivacy(epsilon=CLAIMED, dropouts=2), 1)
    return CanaryParties(PrivateSums(plan, ("train",)), [f"party-{at}" for at in range(52)])


def of_edges():
    parties = make_node_parties([100, 100])
    module = module_for(Encoder.named("gap")(hops=2, width=4), parties, task_for(parties), 0)
    plan = HopPlan.of(EdgePrivacy(epsilon=CLAIMED), aggregations(module)[0].depth)
    return CanaryEdges(PrivateEdges(plan), parties, module)


def of_views():
    parties = make_graph_parties([30, 30])
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task_for(parties), 0)
    return CanaryViews(parties, task_for(parties), module, FGCL(epsilons=[CLAIMED / 2, CLAIMED / 2]))


GAMES = {"item": of_items, "party": of_parties, "edge": of_edges, "views": of_views}


@pytest.mark.parametrize("unit", GAMES)
def test_sound_noise_shows_something_below_its_epsilon(unit):
    found = AUDIT.shown(GAMES[unit]())
    assert found.claimed == pytest.approx(CLAIMED, rel=1e-3)
    assert found.kept
    assert found.bound.canaries == 800
    assert found.bound.epsilon > 0.1
    assert found.said.startswith("claimed epsilon 2; this audit shows at least ")
    assert "(95 % confidence, 800 canaries)" in found.said


@pytest.mark.parametrize("unit", GAMES)
def test_noise_of_a_tenth_is_found(unit, monkeypatch):
    def a_tenth(whole):
        return lambda *arguments: whole(*arguments) // 10

    for module in (items, updates, hops):
        monkeypatch.setattr(module, "discrete_gaussian", a_tenth(module.discrete_gaussian))
    monkeypatch.setattr(Laplace, "noise", a_tenth(Laplace.noise))
    found = AUDIT.shown(GAMES[unit]())
    assert not found.kept
    assert found.bound.epsilon > 2 * CLAIMED
    assert "do not rely on the claim" in found.said


@pytest.mark.parametrize("unit", ["item", "party"])
def test_clipping_that_is_skipped_is_found(unit, monkeypatch):
    def items_as_they_are(plan, gradients):
        return [(gradient.double() / plan.grid).trunc() for gradient in gradients]

    def update_as_it_is(plan, update, bits):
        return np.rint(update / plan.grid).astype(np.int64)

    monkeypatch.setattr(ItemPlan, "clipped", items_as_they_are)
    monkeypatch.setattr(PartyPlan, "clipped", update_as_it_is)
    assert AUDIT.shown(GAMES[unit]()).bound.epsilon > 2 * CLAIMED


def test_noise_without_its_share_is_found(monkeypatch):
    """Fewer parties add noise than the account counts on."""
    whole = PartyPlan.variance
    monkeypatch.setattr(PartyPlan, "variance", lambda plan, size, parties: whole(plan, size, 20 * parties))
    assert not AUDIT.shown(of_parties()).kept


@pytest.mark.slow
def test_sampled_items_keep_the_epsilon_of_sampled_noise():
    found = AUDIT.shown(of_items(rate=0.3))
    assert found.kept
    assert found.bound.epsilon > 0.1


def test_each_node_is_in_one_pair_and_pairs_are_of_one_graph():
    (party,) = make_graph_parties([12])
    first, second = torch.from_numpy(pairs_of(party, np.random.default_rng(0)))
    both = torch.cat([first, second])
    assert len(both.unique()) == len(both)
    assert torch.equal(party.graph.batch[first], party.graph.batch[second])
    sizes = torch.bincount(party.graph.batch)
    assert len(first) == int((sizes // 2).sum())


def test_a_coin_decides_all_canaries_also_those_that_are_edges():
    """In a complete graph every pair is an edge."""
    game = of_edges()
    party = game.parties[0]
    graph = copy(party.graph)
    graph.edge_index = (torch.ones(party.nodes, party.nodes) - torch.eye(party.nodes)).nonzero().t()
    silent = replace(game.private.plan, multiplier=1e-3)
    played = CanaryEdges(PrivateEdges(silent), [party.with_graph(graph)], game.module).play(50, 0)
    assert np.array_equal(played.scores > 0, played.inside)
    assert 10 < played.inside.sum() < 40


def test_a_method_without_noise_has_nothing_to_show():
    parties = make_node_parties([20, 20])
    task = task_for(parties)
    module = module_for(Encoder.named("mlp")(hidden=4), parties, task, 0)
    with pytest.raises(IsthmusError, match=r"audit 'epsilon': method 'fedavg' adds no noise: set privacy\.epsilon"):
        AUDIT.run(parties, task, module, FedAvg())
    with pytest.raises(IsthmusError, match="nothing that method 'local' trains leaves the parties"):
        AUDIT.run(parties, task, module, Method.named("local")(), privacy=ItemPrivacy(epsilon=1.0))
