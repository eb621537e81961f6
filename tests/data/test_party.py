"""A party holds what its graphs say, or is refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.some_parties import FEATURES, make_graph
from torch_geometric.data import Batch, Data

from helpers import make_graph_parties
from isthmus.data.party import SPLITS, Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError


def test_of_graph_keeps_what_is_needed_and_nothing_else():
    graph = make_graph(0, 4, weighted=True)
    graph.account_number = torch.arange(4)
    del graph.val_mask
    party = Party.of_graph("a", graph)
    assert "account_number" not in party.graph
    assert torch.equal(party.graph.edge_weight, graph.edge_weight)
    assert torch.equal(party.train, graph.train_mask)
    assert not party.val.any()
    assert (party.nodes, party.edges, party.items, party.features) == (4, 8, 4, FEATURES)


def test_of_graphs_takes_masks_or_positions():
    graphs = [make_graph(at, 2, labels=1) for at in range(3)]
    party = Party.of_graphs("a", graphs, train=torch.tensor([0, 2]), test=torch.tensor([False, True, False]))
    assert party.train.tolist() == [True, False, True]
    assert party.test.tolist() == [False, True, False]
    assert (party.items, party.nodes) == (3, 6)


@pytest.mark.parametrize("name", ["", "..", "../bank", "a/b", "a\\b"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(IsthmusError, match=r"a party's name may have letters, .* but no '/'"):
        Party.of_graph(name, make_graph(0, 4))


def test_a_party_that_does_not_fit_together_is_refused():
    with pytest.raises(IsthmusError, match="party 'a' has no graphs"):
        Party.of_graphs("a", [])
    empty = Data(x=torch.empty(0, 2), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.empty(0))
    with pytest.raises(IsthmusError, match="party 'a' has no nodes"):
        Party.of_graph("a", empty)
    graph = make_graph(0, 4)
    graph.train_mask = torch.tensor([True])
    with pytest.raises(IsthmusError, match="party 'a': mask 'train' has shape"):
        Party.of_graph("a", graph)
    with pytest.raises(IsthmusError, match="one label row for each of its 4 nodes"):
        Party.of_graph("a", make_graph(0, 4, labels=3))


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (torch.tensor([1, 0, 1, 0]), "must be a mask"),
        (torch.tensor([0.0, 1.0]), "must be a mask"),
        (torch.tensor([4]), "outside"),
    ],
)
def test_a_split_that_is_no_mask_and_no_positions_is_refused(train: torch.Tensor, text: str) -> None:
    graphs = [Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0])) for _ in range(4)]
    with pytest.raises(IsthmusError, match=text):
        Party.of_graphs("a", graphs, train=train)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    weighted=st.booleans(),
    tasks=st.integers(0, 2),
    seed=st.integers(0, 2**16),
)
def test_of_batch_gives_what_of_graphs_gives(sizes, weighted, tasks, seed):
    graphs = [make_graph(seed + at, size, weighted=weighted, labels=1) for at, size in enumerate(sizes)]
    if tasks:
        for at, graph in enumerate(graphs):
            graph.y = torch.full((1, tasks), float("nan") if at == 0 else 1.0)
    splits = {"train": torch.tensor([0]), "test": torch.arange(len(sizes)) > 0}
    one, other = Party.of_graphs("a", graphs, **splits), Party.of_batch("a", Batch.from_data_list(graphs), **splits)
    for key in ("x", "edge_index", "y", "batch", *(["edge_weight"] if weighted else [])):
        torch.testing.assert_close(one.graph[key], other.graph[key], equal_nan=True, rtol=0, atol=0)
    assert all(torch.equal(getattr(one, split), getattr(other, split)) for split in SPLITS)
    assert (one.items, one.nodes, one.level) == (other.items, other.nodes, other.level)
    assert torch.equal(pool_parties([other]).graph.edge_index, one.graph.edge_index)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch": None}, "party 'a': batch is missing"),
        ({"batch": torch.tensor([0, 0, 1])}, "batch must be 4 whole numbers"),
        ({"batch": torch.tensor([0.0, 0, 1, 1])}, "batch must be 4 whole numbers"),
        ({"batch": torch.tensor([0, 1, 0, 1])}, r"batch must ascend within 0 \.\. 1"),
        ({"batch": torch.tensor([0, 0, 1, 2])}, r"batch must ascend within 0 \.\. 1"),
        ({"batch": torch.tensor([-1, 0, 1, 1])}, r"batch must ascend within 0 \.\. 1"),
        ({"edge_index": torch.tensor([[0, 2], [1, 1]])}, "an edge joins two graphs"),
        ({"edge_index": torch.tensor([[0, 4], [1, 1]])}, r"edge 1 starts at node 4, but its nodes are 0 \.\. 3"),
        ({"y": torch.empty(0, dtype=torch.long)}, "party 'a' has no graphs"),
        ({"y": torch.tensor(1)}, "party 'a' has no graphs"),
        ({"y": torch.tensor([-1, 0])}, "item 0 in 'train' has label -1"),
        ({"x": torch.full((4, 1), float("nan"))}, "4 NaN or infinite values"),
        ({"edge_weight": torch.ones(3)}, "edge_weight must be 1 finite numbers"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(changes, text):
    fields = {
        "x": torch.ones(4, 1),
        "edge_index": torch.tensor([[0], [1]]),
        "y": torch.tensor([0, 1]),
        "batch": torch.tensor([0, 0, 1, 1]),
    }
    graph = Data(**{key: value for key, value in (fields | changes).items() if value is not None})
    with pytest.raises(IsthmusError, match=text) as caught:
        Party.of_batch("a", graph, train=torch.tensor([0]))
    assert "\n" not in str(caught.value)


def test_an_edge_from_one_graph_to_another_is_refused():
    graphs = [make_graph(at, 3, labels=1) for at in range(2)]
    graphs[0].edge_index = torch.tensor([[0], [4]])
    with pytest.raises(IsthmusError, match="an edge joins two graphs"):
        Party.of_graphs("a", graphs)


@pytest.mark.parametrize("columns", [[-1], [99], [1, 0], [0, 0], [True, False], [[0]]])
def test_structural_columns_are_positions_of_features(columns):
    with pytest.raises(IsthmusError, match="structural must be ascending feature columns"):
        replace(make_graph_parties()[0], structural=torch.tensor(columns))


def test_parties_are_told_their_structural_columns():
    graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0]))
    one = Party.of_graphs("a", [graph], structural=torch.tensor([1]))
    graph.batch = torch.tensor([0, 0])
    two = Party.of_batch("b", graph, structural=torch.tensor([1]))
    graph.y = torch.tensor([0, 1])
    three = Party.of_graph("c", graph, structural=torch.tensor([1]))
    assert [each.structural.tolist() for each in (one, two, three)] == [[1], [1], [1]]


def test_a_party_prints_as_a_line():
    graph = Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0]))
    graph.train_mask = torch.tensor([True, True, False])
    graph.val_mask, graph.test_mask = torch.zeros(3, dtype=torch.bool), torch.tensor([False, False, True])
    due = "Party('north': 3 nodes, 2 edges, 2 features; of 3 nodes 2 train, 0 val, 1 test)"
    assert repr(Party.of_graph("north", graph)) == due
