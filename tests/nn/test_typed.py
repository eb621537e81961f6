"""Tests of encoders of typed graphs, against PyG's on the same HeteroData."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import HeteroData

from isthmus.data.cohort import Cohort
from isthmus.data.party import Party
from isthmus.data.schema import Inputs, Schema
from isthmus.errors import IsthmusError
from isthmus.nn.encoders import Encoder
from isthmus.nn.per_party import PerParty
from isthmus.nn.typed import HgtLayer, RgcnLayer, SageLayer, TypedGraph

MODELS: list[dict[str, Any]] = [
    {"encoder": "rgcn"},
    {"encoder": "rgcn", "bases": 2},
    {"encoder": "hetero-sage"},
    {"encoder": "hgt", "heads": 2},
]


def bank(seed: int, accounts: int = 8, *, edge_features: bool = False, edges: int = 3) -> HeteroData:
    draw = torch.Generator().manual_seed(seed)
    graph = HeteroData()
    graph["account"].x = torch.rand(accounts, 2, generator=draw)
    graph["account"].y = torch.arange(accounts) % 2
    graph["customer"].x = torch.rand(accounts // 2 + 1, 3, generator=draw)
    owner = torch.randint(0, accounts // 2, (accounts,), generator=draw)
    graph["customer", "owns", "account"].edge_index = torch.stack([owner, torch.arange(accounts)])
    graph["account", "of", "customer"].edge_index = torch.stack([torch.arange(accounts), owner])
    graph["account", "pays", "account"].edge_index = torch.randint(0, accounts, (2, edges * accounts), generator=draw)
    if edge_features:
        graph["account", "pays", "account"].edge_attr = torch.rand(edges * accounts, 2, generator=draw)
    return graph


def parties(count: int, **options: Any) -> list[Party]:
    return [Party.of_graph(f"p{at}", bank(at, 5 + 3 * at, **options)) for at in range(count)]


def build(options: dict[str, Any], party: Party, level: Any = "node") -> nn.Module:
    options = {"hidden": 8, **options}
    encoder = Encoder.named(options.pop("encoder")).read(options, "model")
    return encoder.reading(party.inputs).build(party.features, 2, level)


def noise(model: PerParty, parties: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {name: torch.rand(parties, *value.shape, generator=draw) - 0.5 for name, value in model.initial.items()}


def with_ones(graph: HeteroData) -> dict[str, Tensor]:
    """The features that a layer sees of each type, the constant among them."""
    return {kind: torch.cat([torch.ones(len(x), 1), x], dim=1) for kind, x in graph.x_dict.items()}


def taken_apart(party: Party) -> tuple[Schema, list[slice], TypedGraph]:
    schema, graph = party.schema, party.graph
    assert schema is not None
    columns = [schema.columns(at) for at in range(len(schema.nodes))]
    return schema, columns, TypedGraph(graph.node_type, graph.edge_index, graph.edge_type, None, schema)


@pytest.mark.parametrize("bases", [0, 2])
def test_rgcn_is_that_of_pyg(bases: int) -> None:
    party = parties(1)[0]
    schema, columns, graph = taken_apart(party)
    ours = RgcnLayer(schema, columns, 6, (0, 1), bases)
    theirs = gnn.RGCNConv(schema.width, 6, len(schema.edges), num_bases=bases or None)
    with torch.no_grad():
        theirs.root.copy_(ours.root.t())
        theirs.bias.copy_(torch.rand(6))
        ours.bias.copy_(theirs.bias)
        if bases:
            theirs.weight.copy_(ours.basis.transpose(1, 2))
            theirs.comp.copy_(ours.coefficients)
        else:
            theirs.weight.zero_()
            for at, (source, _) in enumerate(schema.ends):
                theirs.weight[at, columns[source]] = ours.get_parameter(f"relation_{at}").t()
    flat = party.graph
    torch.testing.assert_close(ours(flat.x, graph), theirs(flat.x, flat.edge_index, flat.edge_type))


def test_hetero_sage_is_that_of_pyg() -> None:
    party, typed = parties(1)[0], bank(0, 5)
    schema, columns, graph = taken_apart(party)
    ours = SageLayer(schema, columns, 6, (0, 1))
    theirs = gnn.HeteroConv({kind: gnn.SAGEConv((-1, -1), 6) for kind in schema.edge_types}, aggr="sum")
    x = with_ones(typed)
    theirs(x, typed.edge_index_dict)
    with torch.no_grad():
        for at, kind in enumerate(schema.edge_types):
            target = schema.ends[at][1]
            conv = theirs.convs[kind]
            ours.get_parameter(f"relation_{at}").copy_(conv.lin_l.weight)
            into = [other for other, ends in enumerate(schema.ends) if ends[1] == target]
            convs = [theirs.convs[schema.edge_types[other]] for other in into]
            ours.get_parameter(f"own_{target}").copy_(sum(each.lin_r.weight for each in convs))
            ours.get_parameter(f"bias_{target}").copy_(sum(each.lin_l.bias for each in convs))
    due = theirs(x, typed.edge_index_dict)
    torch.testing.assert_close(ours(party.graph.x, graph), torch.cat([due["account"], due["customer"]]))


@pytest.mark.parametrize("out", [6, 4])  # accounts have three columns, customers four: these are as wide as the output
def test_hgt_is_that_of_pyg(out: int) -> None:
    party, typed = parties(1)[0], bank(0, 5)
    schema, columns, graph = taken_apart(party)
    ours = HgtLayer(schema, columns, out, (0, 1), 2)
    metadata = (list(schema.node_types), list(schema.edge_types))
    theirs = gnn.HGTConv({"account": 3, "customer": 4}, out, metadata, heads=2)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.rand_like(weight) - 0.5)
        for at, kind in enumerate(schema.node_types):
            key, query, value = theirs.kqv_lin.lins[kind].weight.split(out)
            biases = theirs.kqv_lin.lins[kind].bias.split(out)
            for name, weight, bias in zip(("key", "query", "value"), (key, query, value), biases, strict=True):
                ours.get_parameter(f"{name}_{at}").copy_(weight)
                ours.get_parameter(f"{name}_bias_{at}").copy_(bias)
            ours.get_parameter(f"out_{at}").copy_(theirs.out_lin.lins[kind].weight)
            ours.get_parameter(f"out_bias_{at}").copy_(theirs.out_lin.lins[kind].bias)
            if columns[at].stop - columns[at].start == out:
                ours.get_parameter(f"skip_{at}").copy_(theirs.skip[kind])
        relations = len(schema.edges)
        for at, kind in enumerate(schema.edge_types):
            heads = [head * relations + at for head in range(2)]
            ours.get_parameter(f"key_relation_{at}").copy_(theirs.k_rel.weight[heads].transpose(1, 2))
            ours.get_parameter(f"value_relation_{at}").copy_(theirs.v_rel.weight[heads].transpose(1, 2))
            ours.get_parameter(f"prior_{at}").copy_(theirs.p_rel["__".join(kind)][0])
    edges = {kind: typed[kind].edge_index for kind in schema.edge_types}  # PyG expects the order of its metadata
    due = theirs(with_ones(typed), edges)
    torch.testing.assert_close(ours(party.graph.x, graph), torch.cat([due["account"], due["customer"]]))


@pytest.mark.parametrize("options", MODELS)
@pytest.mark.parametrize("level", ["node", "graph", "pair"])
@pytest.mark.parametrize("edge_features", [False, True])
@pytest.mark.thinned(3)
def test_parties_side_by_side_are_as_alone(options: dict[str, Any], level: Any, edge_features: bool) -> None:
    held = parties(3, edge_features=edge_features)
    if level == "graph":
        for at, each in enumerate(held):
            graphs = [each.typed(), bank(at + 9, 4, edge_features=edge_features)]
            for graph in graphs:
                del graph["account"].y
                graph.y = torch.tensor([1])
            held[at] = Party.of_graphs(each.name, graphs)
    module = build(options, held[0], level)
    model = PerParty(module, 3)
    weights = noise(model, 3)
    model.load(weights)
    together = model(Cohort(tuple(held)).block)
    assert model.side_by_side
    rows = [each.items if level == "graph" else each.nodes for each in held]
    for at, (each, part) in enumerate(zip(held, together.split(rows), strict=True)):
        alone = PerParty(module, 1)
        alone.load({name: value[at] for name, value in weights.items()})
        block = Cohort((each,)).block
        torch.testing.assert_close(part, alone(block))
        alone.side_by_side = False  # the module itself, with these weights
        torch.testing.assert_close(part, alone(block))


@pytest.mark.parametrize("options", MODELS)
def test_no_weight_is_there_that_nothing_trains(options: dict[str, Any]) -> None:
    party = parties(1, edge_features=True)[0]
    module = build(options, party)
    labelled = party.graph.y >= 0
    graph = party.graph
    out = module(graph.x, graph.edge_index, graph.node_type, graph.edge_type, graph.edge_attr)
    assert not out[~labelled].any() or module.linear is not None
    out[labelled].square().sum().backward()
    assert [name for name, weight in module.named_parameters() if weight.grad is None] == []


def test_order_of_nodes_and_edges_decides_nothing() -> None:
    party = parties(1, edge_features=True)[0]
    module, graph = build({"encoder": "hetero-sage"}, party), party.graph
    module.eval()
    out = module(graph.x, graph.edge_index, graph.node_type, graph.edge_type, graph.edge_attr)
    nodes, edges = torch.randperm(party.nodes), torch.randperm(party.edges)
    place = torch.empty_like(nodes)
    place[nodes] = torch.arange(party.nodes)
    columns = graph.edge_type[edges], graph.edge_attr[edges]
    moved = module(graph.x[nodes], place[graph.edge_index[:, edges]], graph.node_type[nodes], *columns)
    torch.testing.assert_close(moved, out[nodes])


def test_edge_features_are_read() -> None:
    party = parties(1, edge_features=True)[0]
    graph = party.graph
    for options in MODELS:
        module = build(options, party)
        module.eval()
        one, other = (
            module(graph.x, graph.edge_index, graph.node_type, graph.edge_type, scale * graph.edge_attr)
            for scale in (1, 2)
        )
        assert torch.equal(one, other) == (options["encoder"] == "hgt")


def test_plain_graphs_are_refused_in_one_line() -> None:
    for name in ("rgcn", "hetero-sage", "hgt"):
        with pytest.raises(
            IsthmusError, match=f"^model '{name}': it reads typed graphs, and the parties' graphs have no ty"
        ):
            Encoder.named(name).read({}, "model").reading(Inputs(4)).build(4, 2, "node")
    party = parties(1)[0]
    with pytest.raises(IsthmusError, match=r"^model 'hgt': hidden = 8 is no multiple of heads = 3: change one of them"):
        build({"encoder": "hgt", "heads": 3}, party)


@pytest.mark.parametrize("options", MODELS)
def test_layers_compute_the_same_where_they_are_exported(options: dict[str, Any], monkeypatch: Any) -> None:
    (party,) = parties(1, edge_features=True)
    module = build(options, party).eval()
    graph = party.graph
    mixed = torch.randperm(party.nodes, generator=torch.Generator().manual_seed(0))  # as in a cohort of several
    place = mixed.argsort()
    given = (graph.x[mixed], place[graph.edge_index], graph.node_type[mixed], graph.edge_type, graph.edge_attr)
    due = module(*given)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert torch.allclose(module(*given), due, atol=1e-6)
