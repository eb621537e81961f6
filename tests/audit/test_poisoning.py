"""Attackers that poison the shared model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.audit.poisoning import Attacker, GraphBackdoor, LabelFlip, LyingTransport
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Gcn
from isthmus.study.loop import Run, sites_of
from isthmus.study.setup import module_for, task_for
from isthmus.testing import small_parties


def weights_with(attacker: Attacker, aggregate: Any = "mean") -> dict[str, torch.Tensor]:
    parties = small_parties("node", 5)
    task, method = task_for(parties), FedAvg(rounds=2, aggregate=aggregate)
    module = module_for(Gcn(hidden=4), parties, task, 0)
    poisoned = [attacker.poison(party) if at == 0 else party for at, party in enumerate(parties)]
    transport = LyingTransport(sites_of(method, poisoned, task, module, seed=0), [parties[0].name], attacker)
    return dict(Run(method, poisoned, task, module, seed=0, transport=transport).go().models["shared"])


def norm(weights: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum((weights[name] - other[name]).double().square().sum() for name in weights) ** 0.5)


def test_a_boosted_update_moves_the_mean_more_than_the_median() -> None:
    honest, boosted = weights_with(Attacker()), weights_with(Attacker(boost=50.0))
    median = norm(weights_with(Attacker(boost=50.0), "median"), weights_with(Attacker(), "median"))
    assert norm(boosted, honest) > 5 * median


def test_flipped_labels_are_those_of_training_items_alone() -> None:
    party = small_parties("node", 2)[0]
    classes = int(party.graph.y.max()) + 1
    found = LabelFlip(classes=classes).poison(party)
    assert torch.equal(found.graph.y[~party.train], party.graph.y[~party.train])
    assert bool((found.graph.y[party.train] != party.graph.y[party.train]).all())


def test_the_backdoor_is_a_linked_subgraph_at_each_chosen_node() -> None:
    party = small_parties("node", 2)[0]
    door = GraphBackdoor(target=0, size=3)
    others = int((party.train & (party.graph.y != 0)).sum())
    found = door.poison(party)
    assert found.nodes == party.nodes + 3 * others
    assert bool((found.graph.y[found.train] == 0).all())
    assert found.graph.edge_index.size(1) == party.graph.edge_index.size(1) + others * 2 * 6
    tested = door.tested(party)
    assert bool((tested.graph.y[tested.test] != 0).all())
    assert int(tested.train.sum()) == int(party.train.sum())


def test_whole_graphs_have_no_such_backdoor() -> None:
    with pytest.raises(IsthmusError, match="this backdoor is for nodes, it has graphs"):
        GraphBackdoor().poison(small_parties("graph", 2)[0])
