"""What decoupled graphs tell of the nodes that Theorem 2 warns of."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from isthmus.data.coupling import decouple, exposed_nodes, ids_across, without_inner_neighbours
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool, items_per_party


def parties():
    """0 - 1 and 5 inside the first, 2 and 3 at the second, 4 at the third: 5 is joined to 2, 3 and 4, 0 to 2."""
    edges = torch.tensor([[0, 5, 5, 5, 0, 2], [1, 2, 3, 4, 2, 3]])
    graph = Data(x=torch.rand(7, 4), edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.zeros(7).long())
    whole = Party.of_graph("pooled", graph, ids=torch.arange(7) + 10)
    owner = torch.tensor([0, 0, 1, 1, 2, 0, 0])  # 6 has no edge at all
    return Given().cut(Pool(whole, 2, items_per_party(owner, 3)), 3, seed=0)


@pytest.mark.parametrize(
    ("lnnc", "least", "to", "due"),
    [
        (False, 1, {"party-1", "party-2"}, [2]),
        (False, 1, {"party-1"}, []),  # another neighbour of 5 is with nobody who colludes
        (False, 2, {"party-1", "party-2"}, [2]),  # one sum that 5 takes part in is over two: that for 2
        (False, 3, {"party-1", "party-2"}, []),
        (True, 1, {"party-1", "party-2"}, []),
    ],
)
def test_exposed_nodes_have_all_neighbours_at_those_who_collude(lnnc, least, to, due):
    cut = parties()
    coupling = decouple(cut, join_isolated=lnnc, min_neighbours=least)
    assert exposed_nodes(cut, coupling, 0, to).tolist() == due
    assert without_inner_neighbours(cut[0]).tolist() == [2, 3]


def test_a_one_node_party_stays_exposed_whatever_is_added():
    cut = parties()
    assert exposed_nodes(cut, decouple(cut, join_isolated=True), 2, {"party-0", "party-1"}).tolist() == [0]
    assert exposed_nodes(cut, decouple(cut, join_isolated=True), 1, {"party-0", "party-2"}).tolist() == []


def test_degrees_count_the_edges_that_something_comes_over():
    """2 hears of 0 and 5 together; 5 hears of 2 and 3 together, of 4 alone; 0, 3 and 4 of one node each."""
    cut = parties()
    assert decouple(cut, min_neighbours=1).degree.tolist() == [3, 2, 4, 1, 4, 3, 2]  # nodes 0, 1, 5, 6 and 2, 3 and 4
    assert decouple(cut, min_neighbours=2).degree.tolist() == [2, 2, 3, 1, 4, 2, 1]
    assert decouple(cut, min_neighbours=3).degree.tolist() == [2, 2, 1, 1, 2, 2, 1]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_ids_across_are_those_of_the_slots(least):
    cut = parties()
    due = decouple(cut, min_neighbours=least).ids.tolist()
    assert [node for party in cut for node in ids_across(party, min_neighbours=least).tolist()] == due
    assert bool(due) == (least < 3)
