"""Pooled parties hold what all of them hold, once."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from tests.data.some_parties import assert_same_block, graph_cohorts, make_graph
from torch_geometric.data import Data

from helpers import make_graph_parties, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.party import Border, Party
from isthmus.data.pooled import pool_parties

NAN = float("nan")


def two_banks():
    """Bank a holds nodes 10 and 20, bank b nodes 20 and 30; each knows of one transfer from the other's own node."""
    left = Data(x=torch.tensor([[1.0], [2.0]]), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))
    right = Data(x=torch.tensor([[2.0], [3.0]]), edge_index=torch.tensor([[0], [0]]), y=torch.tensor([1, 2]))
    left.val_mask, right.train_mask = torch.tensor([True, True]), torch.tensor([True, False])
    into_a = Border(torch.tensor([0]), torch.tensor([30]), torch.tensor([0]), ("b",))
    into_b = Border(torch.tensor([1]), torch.tensor([10]), torch.tensor([0]), ("a",))
    return (
        Party.of_graph("a", left, ids=torch.tensor([10, 20]), border=into_a),
        Party.of_graph("b", right, ids=torch.tensor([20, 30]), border=into_b),
    )


def test_pool_joins_shared_nodes_and_border_edges():
    whole = pool_parties(two_banks())
    assert whole.ids.tolist() == [10, 20, 30]
    assert whole.graph.x.flatten().tolist() == [1, 2, 3]
    assert whole.graph.y.tolist() == [0, 1, 2]
    assert set(zip(*whole.graph.edge_index.tolist(), strict=True)) == {(0, 1), (1, 1), (2, 0), (0, 2)}
    assert whole.train.tolist() == [False, True, False]
    assert whole.val.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("labels", "pooled"),
    [
        ([[-1, 1], [0, -1]], [-1, 0, 1]),
        ([[NAN, 1.0], [0.5, 2.0]], [2.0, 0.5, 1.0]),
        ([[[NAN, 1.0], [1.0, 0.0]], [[0.5, 2.0], [NAN, 3.0]]], [[NAN, 3.0], [0.5, 1.0], [1.0, 0.0]]),
    ],
    ids=["classes", "a value", "two tasks"],
)
def test_a_pooled_node_has_the_first_label_that_a_holder_knows(labels, pooled):
    """The first party holds nodes 20 and 30, the second 20 and 10; it may know a label of 20 that the first lacks."""
    graphs = [Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(y)) for y in labels]
    ids = [torch.tensor([20, 30]), torch.tensor([20, 10])]
    parties = [Party.of_graph(name, graph, ids=own) for name, graph, own in zip("ab", graphs, ids, strict=True)]
    assert torch.equal(pool_parties(parties).graph.y.nan_to_num(-9), torch.tensor(pooled).nan_to_num(-9))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_pooled_node_has_the_features_of_the_holder_that_knows_most(sparse):
    """Node 20 is known best to the second party, node 40 equally well to both, and the first one is taken."""
    columns = [[[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]], [[5.0, 6.0], [7.0, 0.0], [0.0, 8.0]]]
    xs = [torch.tensor(each).to_sparse_csr() if sparse else torch.tensor(each) for each in columns]
    graphs = [Data(x=x, edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([0, 1, 1])) for x in xs]
    ids = [torch.tensor([10, 20, 40]), torch.tensor([20, 30, 40])]
    parties = [Party.of_graph(name, graph, ids=own) for name, graph, own in zip("ab", graphs, ids, strict=True)]
    x = pool_parties(parties).graph.x
    assert (x.to_dense() if sparse else x).tolist() == [[1.0, 0.0], [5.0, 6.0], [7.0, 0.0], [4.0, 0.0]]


def test_pool_leaves_out_border_edges_from_parties_that_are_not_there():
    assert pool_parties(two_banks()[:1]).edges == 1


def test_pool_without_ids_puts_graphs_side_by_side():
    parties = [Party.of_graph(name, make_graph(0, 3)) for name in "ab"]
    whole = pool_parties(parties, name="both")
    assert (whole.name, whole.nodes, whole.edges) == ("both", 6, 12)


@given(graph_cohorts())
def test_pool_of_piles_is_one_pile(cohort):
    whole = pool_parties(cohort.parties)
    assert (whole.level, whole.items, whole.nodes) == ("graph", sum(cohort.items), cohort.block.nodes)
    assert_same_block(Cohort((whole,)).block.for_party(0), Cohort((whole,)).block)
    assert torch.equal(whole.graph.batch, cohort.block.batch)


@pytest.mark.parametrize("make", [make_node_parties, make_graph_parties])
def test_structural_columns_stay_known_when_parties_are_pooled_and_cut(make):
    columns = torch.tensor([0, 2])
    whole = pool_parties([replace(party, structural=columns) for party in make()])
    parts = cut_into_parties(whole, [torch.tensor([0, 1]), torch.tensor([2])], ["a", "b"], coupled=True)
    assert all(torch.equal(each.structural, columns) for each in (whole, *parts))
