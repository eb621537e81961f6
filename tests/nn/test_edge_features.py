"""Tests of convolutions that read edge features, against PyG's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from isthmus.data.cohort import Cohort
from isthmus.data.party import Party
from isthmus.data.schema import Inputs
from isthmus.errors import IsthmusError
from isthmus.nn.edge_features import EdgeGat, EdgeGin, Transformer
from isthmus.nn.encoders import Encoder, ScaledSelf
from isthmus.nn.per_party import PerParty


def party(seed: int, nodes: int) -> Party:
    draw = torch.Generator().manual_seed(seed)
    graph = Data(x=torch.rand(nodes, 6, generator=draw), y=torch.arange(nodes) % 2)
    graph.edge_index = torch.randint(0, nodes, (2, 4 * nodes), generator=draw)  # some are loops, some are double
    graph.edge_attr = torch.rand(4 * nodes, 3, generator=draw)
    return Party.of_graph(f"p{seed}", graph)


def set_weights(layer: nn.Module, names: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in names.items():
            own = layer.get_parameter(name)
            own.copy_(value.view(own.shape))


def compare(ours: nn.Module, theirs: nn.Module) -> None:
    graph = party(0, 9).graph
    torch.testing.assert_close(
        ours(graph.x, graph.edge_index, graph.edge_attr), theirs(graph.x, graph.edge_index, graph.edge_attr)
    )


def test_gine_is_that_of_pyg() -> None:
    perceptron = nn.Linear(6, 4)
    ours, theirs = EdgeGin(perceptron, ScaledSelf(), 6, 3), gnn.GINEConv(perceptron, train_eps=True, edge_dim=3)
    set_weights(ours, {"itself.eps": torch.tensor([0.3]), "sum.edge": theirs.lin.weight, "sum.bias": theirs.lin.bias})
    theirs.eps.data.fill_(0.3)
    compare(ours, theirs)


def test_attention_with_edge_features_is_that_of_pyg() -> None:
    ours, theirs = EdgeGat(6, 5, 2, 3), gnn.GATConv(6, 5, heads=2, edge_dim=3)
    same = {name: getattr(theirs, name) for name in ("att_src", "att_dst", "att_edge")}
    bias = torch.rand(10)
    theirs.bias.data.copy_(bias)
    set_weights(ours, {"weight": theirs.lin.weight, "edge": theirs.lin_edge.weight, "bias": bias, **same})
    compare(ours, theirs)


@pytest.mark.parametrize("edge_dim", [0, 3])
def test_the_transformer_is_that_of_pyg(edge_dim: int) -> None:
    ours, theirs = Transformer(6, 5, 2, edge_dim), gnn.TransformerConv(6, 5, heads=2, edge_dim=edge_dim or None)
    linears = {"query": theirs.lin_query, "key": theirs.lin_key, "value": theirs.lin_value, "skip": theirs.lin_skip}
    set_weights(ours, {name: each.weight for name, each in linears.items()})
    set_weights(ours, {f"{name}_bias": each.bias for name, each in linears.items() if name != "key"})
    if edge_dim:
        set_weights(ours, {"edge": theirs.lin_edge.weight})
        compare(ours, theirs)
    else:
        graph = party(0, 9).graph
        torch.testing.assert_close(ours(graph.x, graph.edge_index), theirs(graph.x, graph.edge_index))


MODELS: list[dict[str, Any]] = [
    {"encoder": "gin", "edge_features": True},
    {"encoder": "gat", "edge_features": True},
    {"encoder": "transformer", "edge_features": True},
    {"encoder": "transformer"},
]


@pytest.mark.parametrize("options", MODELS)
@pytest.mark.parametrize("level", ["node", "graph"])
def test_parties_side_by_side_are_as_alone(options: dict[str, Any], level: Any) -> None:
    options = {"hidden": 8, **options}
    parties = [party(at, 5 + 3 * at) for at in range(3)]
    if level == "graph":
        parties = [Party.of_graphs(each.name, [whole_label(each.graph), whole_label(each.graph)]) for each in parties]
    module = Encoder.named(options.pop("encoder")).read(options, "model").reading(parties[0].inputs).build(6, 2, level)
    model = PerParty(module, 3)
    weights = {name: torch.rand(3, *value.shape) - 0.5 for name, value in model.initial.items()}
    model.load(weights)
    together = model(Cohort(tuple(parties)).block)
    assert model.side_by_side
    for at, each in enumerate(parties):
        alone = PerParty(module, 1)
        alone.load({name: value[at] for name, value in weights.items()})
        torch.testing.assert_close(together.split([p.items for p in parties])[at], alone(Cohort((each,)).block))


def whole_label(graph: Data) -> Data:
    graph = graph.clone()
    graph.y = torch.tensor([1])
    return graph


def test_options_that_do_not_fit_are_one_line() -> None:
    gat = Encoder.named("gat")
    with pytest.raises(IsthmusError, match=r"^model 'gat': edge_features is set, and the parties' edges have none"):
        gat.read({"edge_features": True}, "model").reading(Inputs(4)).build(4, 2, "node")
    with pytest.raises(IsthmusError, match=r"^model 'gat': it reads edge weights or edge features: set one of the two"):
        gat.read({"edge_features": True, "weighted": True}, "model").reading(Inputs(4, 1)).build(4, 2, "node")
