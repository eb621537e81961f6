"""Tests of typed graphs as flat ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from isthmus.data.cohort import Cohort, check_compatible
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.data.schema import Schema
from isthmus.errors import IsthmusError


def bank(seed: int, accounts: int = 8) -> HeteroData:
    """Accounts that pay each other, their owners, and branches without features."""
    draw = torch.Generator().manual_seed(seed)
    graph = HeteroData()
    graph["account"].x = torch.rand(accounts, 2, generator=draw)
    graph["account"].y = torch.arange(accounts) % 2
    graph["account"].train_mask = torch.arange(accounts) < accounts // 2
    graph["account"].test_mask = ~graph["account"].train_mask
    graph["customer"].x = torch.rand(3, 1, generator=draw)
    graph["branch"].num_nodes = 2
    owners, owned = torch.randint(0, 3, (accounts,), generator=draw), torch.arange(accounts)
    graph["customer", "owns", "account"].edge_index = torch.stack([owners, owned])
    graph["account", "at", "branch"].edge_index = torch.stack([owned, owned % 2])
    graph["branch", "has", "account"].edge_index = torch.stack([owned % 2, owned])
    graph["account", "pays", "account"].edge_index = torch.randint(0, accounts, (2, 20), generator=draw)
    graph["account", "pays", "account"].edge_attr = torch.rand(20, 3, generator=draw)
    return graph


def banks() -> list[Party]:
    ids = [
        {
            "account": torch.arange(n) + 100 * at,
            "customer": torch.arange(3) + 1000 + 10 * at,
            "branch": torch.tensor([5007, 5009]),
        }
        for at, n in enumerate((8, 5))
    ]
    return [Party.of_graph(name, bank(at, n), ids=ids[at]) for at, (name, n) in enumerate((("a", 8), ("b", 5)))]


def edges_of(x: torch.Tensor, graph: Data | Cohort) -> list[tuple[object, ...]]:
    """All edges as the features of both ends, the type and the features of the edge, in some fixed order."""
    rows = x[graph.edge_index].transpose(0, 1).flatten(1)  # type: ignore[union-attr]
    types, attributes = graph.edge_type, graph.edge_attr  # type: ignore[union-attr]
    return sorted(tuple(row) for row in torch.cat([rows, types[:, None].float(), attributes], dim=1).tolist())


def test_a_flat_graph_has_a_range_of_columns_for_each_type() -> None:
    graph = bank(0)
    party = Party.of_graph("a", graph)
    assert party.schema == Schema(
        (("account", 2), ("branch", 0), ("customer", 1)),
        (
            (("account", "at", "branch"), 0), (("account", "pays", "account"), 3),
            (("branch", "has", "account"), 0), (("customer", "owns", "account"), 0),
        ),
        "account",
    )  # fmt: skip
    flat = party.graph
    assert flat.node_type.tolist() == [0] * 8 + [1] * 2 + [2] * 3
    torch.testing.assert_close(flat.x[:8, 1:3], graph["account"].x)
    torch.testing.assert_close(flat.x[:, [0, 3, 4]], torch.eye(3)[flat.node_type])  # the constant of each type
    torch.testing.assert_close(flat.x[10:, 5:], graph["customer"].x)
    assert not flat.x[8:, 1:3].any()
    assert not flat.x[:10, 5:].any()
    assert flat.y.tolist() == [0, 1] * 4 + [-1] * 5
    assert party.train.nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert party.edge_width == 3
    assert not flat.edge_attr[flat.edge_type != 1].any()


def test_users_get_their_typed_graph_back() -> None:
    graph = bank(0)
    back = Party.of_graph("a", graph).typed()
    for kind in graph.node_types:
        assert back[kind].num_nodes == graph[kind].num_nodes
    for kind in ("account", "customer"):
        torch.testing.assert_close(back[kind].x, graph[kind].x)
    for name in ("y", "train_mask", "test_mask"):
        assert torch.equal(back["account"][name], graph["account"][name])
    for kind in graph.edge_types:
        assert torch.equal(back[kind].edge_index, graph[kind].edge_index)
    torch.testing.assert_close(
        back["account", "pays", "account"].edge_attr, graph["account", "pays", "account"].edge_attr
    )


def test_measured_labels_are_missing_for_nodes_of_other_types() -> None:
    graph = bank(0)
    graph["account"].y = torch.rand(8, 2)
    party = Party.of_graph("a", graph)
    assert party.graph.y[8:].isnan().all()
    assert party.graph.y.shape == (13, 2)


def test_a_type_that_a_party_lacks_comes_from_the_schema() -> None:
    schema = Schema.of([bank(0)])
    graph = bank(1)
    del graph["customer"], graph["customer", "owns", "account"]
    with pytest.raises(
        IsthmusError, match=r"^party 'b' and party 'a' have different types of nodes and edges: nodes 'cu"
    ):
        check_compatible([Party.of_graph("a", bank(0)), Party.of_graph("b", graph)])
    check_compatible([Party.of_graph("a", bank(0)), Party.of_graph("b", graph, schema=schema)])


def test_graphs_of_one_party_share_all_types_that_some_have() -> None:
    small = HeteroData()
    small["account"].x = torch.rand(2, 2)
    graphs = [bank(0, 4), small]
    for graph in graphs:
        graph["account"].y = None
        graph.y = torch.tensor([1])
    party = Party.of_graphs("a", graphs, train=torch.tensor([0, 1]))
    assert party.schema is not None
    assert party.schema.labelled == ""
    assert (party.items, party.nodes) == (2, 11)
    assert party.graph.batch.tolist() == [0] * 9 + [1] * 2
    block = Cohort((party,)).graphs_of(torch.tensor([1]))
    assert block.node_type is not None
    assert block.node_type.tolist() == [0, 0]


def test_a_cohort_carries_types_and_features_of_edges_into_every_part() -> None:
    parties = banks()
    cohort = Cohort(tuple(parties))
    block = cohort.block
    whole = edges_of(block.x, block)
    assert sorted(edge for party in parties for edge in edges_of(party.graph.x, party.graph)) == whole
    for at, party in enumerate(parties):
        for part in (block.for_party(at), cohort.block_of([at == 0, at == 1])):
            assert edges_of(part.x, part) == edges_of(party.graph.x, party.graph)
            assert torch.equal(part.node_type, party.graph.node_type)
    around = block.neighbours.around(torch.tensor([1, 14]), (None, None), cohort.sizes)
    part = block.restricted(around, trims=False)
    assert torch.equal(part.node_type, block.node_type[around.nodes])
    assert set(edges_of(part.x, part)) <= set(whole)
    own = around.whole.per_edge(torch.arange(block.edge_index.size(1)))
    assert sorted(own["edge_attr"].tolist()) == sorted(block.edge_attr.tolist())


def test_pooling_and_cutting_keep_every_typed_edge() -> None:
    pooled = pool_parties(banks())
    assert pooled.nodes == 8 + 5 + 6 + 2  # the branches are shared
    cut = cut_into_parties(pooled, [torch.arange(6), torch.arange(6, pooled.nodes)], ["x", "y"], coupled=True)
    assert cut[0].border is not None
    assert cut[0].border.edge_attr is not None
    again = pool_parties(cut)
    assert edges_of(again.graph.x, again.graph) == edges_of(pooled.graph.x, pooled.graph)
    assert again.schema == pooled.schema
    apart = cut_into_parties(pooled, [torch.arange(6), torch.arange(6, pooled.nodes)], ["x", "y"], coupled=False)
    assert torch.equal(apart[0].graph.edge_attr, cut[0].graph.edge_attr)
    Party(**vars(cut[1]))  # the checks that cutting leaves out


def test_payments_between_the_same_accounts_stay_apart_when_pooled() -> None:
    graph = bank(0, 2)
    graph["account", "pays", "account"].edge_index = torch.tensor([[0, 0, 0], [1, 1, 1]])
    graph["account", "pays", "account"].edge_attr = torch.tensor([[1.0], [2.0], [1.0]])
    party = Party.of_graph("a", graph, ids=torch.arange(7))
    for parties in ([party], [party, replace(party, name="b")]):  # what both hold counts once, as often as at each
        pays = pool_parties(parties).typed()["account", "pays", "account"]
        assert pays.edge_attr.flatten().tolist() == [1.0, 1.0, 2.0]


def test_an_outline_has_the_widths_and_the_schema() -> None:
    party = banks()[0]
    outline = party.outline()
    check_compatible([outline])
    assert (outline.edge_width, outline.schema) == (3, party.schema)
    assert Cohort((outline,)).block.edge_attr is not None


def test_a_schema_survives_its_description() -> None:
    schema = Schema.of([bank(0)])
    assert Schema.of_dict(schema.to_dict()) == schema


def broken(change: str) -> HeteroData:
    graph = bank(0)
    if change == "none":
        graph["account"].y = None
    elif change == "several":
        graph["customer"].y = torch.zeros(3, dtype=torch.long)
    elif change == "nan":
        graph["customer"].x[1] = float("nan")
    elif change == "end":
        graph["customer", "owns", "account"].edge_index[0, 0] = 5
    elif change == "unknown":
        graph["card", "of", "account"].edge_index = torch.tensor([[0], [0]])
    elif change == "attributes":
        graph["account", "pays", "account"].edge_attr = torch.rand(7, 3)
    elif change == "mask":
        graph["account"].train_mask = torch.tensor([0, 1])
    elif change == "uncounted":
        del graph["branch"]["num_nodes"]
        graph["branch"].colour = "red"
    return graph


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("none", r"^party 'a': no node type has y: give labels to the nodes of exactly one type$"),
        ("several", r"^party 'a': 'account' and 'customer' has y: give labels"),
        ("nan", r"^party 'a', nodes 'customer': x has 1 NaN or infinite values: replace them$"),
        (
            "end",
            r"^party 'a', edges \(customer, owns, account\) start at node 5 of 'customer', which has nodes 0 .. 2$",
        ),
        ("unknown", r"^schema: edges \(card, of, account\) end at 'card', which is no node type$"),
        (
            "attributes",
            r"^party 'a', edges \(account, pays, account\): edge_attr has shape \[7, 3\], it must be \[20, 3\]$",
        ),
        ("mask", r"^party 'a': train_mask of the nodes 'account' must be 8 of torch.bool$"),
    ],
)
def test_errors_are_one_line(change: str, message: str) -> None:
    with pytest.raises(IsthmusError, match=message) as raised:
        Party.of_graph("a", broken(change))
    assert "\n" not in str(raised.value)


def test_flat_parts_are_compared_with_the_schema() -> None:
    party = banks()[0]
    graph = party.graph.clone()
    graph.edge_type = torch.zeros_like(graph.edge_type)
    with pytest.raises(
        IsthmusError, match=r"^party 'a': edge \d+ of type \(account, at, branch\) joins 'account' to 'acc"
    ):
        Party(**{**vars(party), "graph": graph})
    plain = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))
    rich = plain.clone()
    rich.edge_attr = torch.ones(1, 3)
    parties = [Party.of_graph("a", rich), Party.of_graph("b", plain)]
    with pytest.raises(IsthmusError, match=r"^party 'b' has 0 features of an edge and party 'a' 3: agree on"):
        check_compatible(parties)
