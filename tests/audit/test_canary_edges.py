"""Canaries among edges and nodes: sound noise keeps the claim, and what is broken is found."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from games import AUDIT, a_tenth, assert_broken, assert_sound, of_edges, of_nodes

from helpers import make_graph_parties
from isthmus.audit.canary_edges import CanaryEdges, pairs_of
from isthmus.privacy import hops
from isthmus.privacy.options import NodePrivacy


@pytest.mark.parametrize("game", [of_edges, of_nodes])
def test_sound_noise_keeps_the_claim(game):
    assert_sound(game())


def test_noise_of_a_tenth_is_found(monkeypatch):
    monkeypatch.setattr(hops, "discrete_gaussian", a_tenth(hops.discrete_gaussian))
    assert_broken(of_edges())


def test_noise_that_is_sized_for_one_neighbour_is_found(monkeypatch):
    monkeypatch.setattr(NodePrivacy, "changes", 1)
    assert not AUDIT.shown(of_nodes()).kept


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
    silent = replace(game.plan, multiplier=1e-3)
    played = CanaryEdges(silent, game.claimed, [party.with_graph(graph)], game.module).play(50, 0)
    assert np.array_equal(played.scores > 0, played.inside)
    assert 10 < played.inside.sum() < 40
