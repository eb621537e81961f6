"""Tests of models that classify edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from isthmus.data.cohort import Cohort
from isthmus.data.party import Party
from isthmus.data.schema import Inputs
from isthmus.nn.draws import Draws
from isthmus.nn.edge_readout import EdgeReadout
from isthmus.nn.encoders import Encoder, uses_edge_features
from isthmus.nn.per_party import PerParty
from isthmus.nn.weights import head_weights
from isthmus.testing import small_parties

COUNTS = ((9, 4), (3, 8), (5, 5))
"""Nodes and labelled edges of each party: as many of both in all, but not in each."""


def parties() -> tuple[Party, ...]:
    draw = torch.Generator().manual_seed(0)
    found = []
    for name, (nodes, labelled) in zip("abc", COUNTS, strict=True):
        graph = Data(
            x=torch.rand(nodes, 4, generator=draw),
            edge_index=torch.randint(nodes, (2, 3 * nodes), generator=draw),
            edge_label_index=torch.randint(nodes, (2, labelled), generator=draw),
            edge_label=torch.arange(labelled) % 2,
            edge_label_attr=torch.rand(labelled, 2, generator=draw),
        )
        found.append(Party.of_edges(name, graph, train=torch.arange(labelled)))
    return tuple(found)


def varied(module: nn.Module, count: int) -> PerParty:
    model = PerParty(module, count)
    draw = torch.Generator().manual_seed(1)
    model.load({name: value + torch.rand(count, *value.shape, generator=draw) for name, value in model.initial.items()})
    return model


@pytest.mark.parametrize("training", [False, True])
def test_rows_of_edges_are_not_taken_for_rows_of_nodes(training):
    cohort = Cohort(parties())
    assert sum(cohort.sizes) == sum(cohort.items)
    module = Encoder.named("gcn")(hidden=6).reading(cohort.parties[0].inputs).build(4, 2, "edge")
    model = varied(module, 3)
    model.training = training
    draws = Draws.seeded([7, 8, 9])
    with torch.no_grad():
        together = model(cohort.block, draws).split(cohort.items)
        assert model.side_by_side
        for at, party in enumerate(cohort.parties):
            alone = PerParty(module, 1)
            alone.load({name: stack[at] for name, stack in model.stacks().items()})
            alone.training = training
            torch.testing.assert_close(alone(Cohort((party,)).block, draws[at]), together[at])


def test_a_part_without_the_rows_that_no_labelled_edge_needs_runs_side_by_side():
    """Two training edges each, whose ends are a few of a party's nodes: rows of seeds are not those of nodes."""
    few = [replace(each, train=torch.arange(each.items) >= each.items - 2) for each in small_parties("edge")]
    cohort = Cohort(few)
    module = Encoder.named("gcn")(hidden=6).reading(few[0].inputs).build(few[0].features, 3, "edge")
    model = varied(module, len(few))
    block, _ = cohort.around_training(model.reach, trims=True)
    with torch.no_grad():
        together = model(block).split(block.edge_labels)
        assert model.side_by_side
        whole = model(cohort.block).split(cohort.items)
        for at, party in enumerate(few):
            torch.testing.assert_close(together[at], whole[at][party.train])


@pytest.mark.parametrize("level", ["graph", "edge"])
def test_a_readout_reads_features_of_edges_only_if_its_body_does(level):
    inputs = Inputs(4, 2)
    assert not uses_edge_features(Encoder.named("mlp")().reading(inputs).build(4, 2, level))
    transformer = Encoder.named("transformer")(edge_features=True).reading(inputs)
    assert uses_edge_features(transformer.build(4, 2, level))


def test_the_head_reads_both_ends_in_order_and_the_features():
    z, attr = torch.tensor([[1.0, -1.0], [2.0, 0.5]]), torch.tensor([[3.0], [4.0]])
    readout = EdgeReadout(nn.Identity(), 2, 1, 2, 0.5).eval()
    readout._reads = frozenset()
    readout.body.forward = lambda x, edge_index: x  # type: ignore[method-assign]
    seen: list[Tensor] = []
    readout.join.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    readout(z, torch.empty(2, 0).long(), torch.tensor([[0, 1], [1, 0]]), attr)
    assert seen[0].tolist() == [[1.0, 0.0, 2.0, 0.5, 3.0], [2.0, 0.5, 1.0, 0.0, 4.0]]
    assert head_weights(readout) == ("head.weight", "head.bias")


class Own(nn.Module):
    """A model of a user's own."""

    head = "last"

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.last = SAGEConv(features, 8), nn.Linear(8, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index).relu()
        both: Tensor = self.last(z[edge_label_index[0]] * z[edge_label_index[1]])
        return both


def test_a_model_of_ones_own_gets_labelled_edges():
    cohort = Cohort(parties())
    module = Own(4, 2)
    model = varied(module, 3)
    together = model(cohort.block).split(cohort.items)
    assert not model.side_by_side
    for at, party in enumerate(cohort.parties):
        alone = PerParty(module, 1)
        alone.load({name: stack[at] for name, stack in model.stacks().items()})
        torch.testing.assert_close(alone(Cohort((party,)).block), together[at])
