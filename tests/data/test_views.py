"""Diffusion of many graphs against the inverse written out for each."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import GDC

from helpers import make_graph_parties
from isthmus.data.party import Party
from isthmus.data.views import add_diffusion_view
from isthmus.nn.encoders import split_views


def walked(a, alpha):
    """The sum of alpha (1 - alpha)^k T^k over all walks that matter."""
    a = a + torch.eye(len(a))
    t = a / (a.sum(1)[:, None] * a.sum(1)).sqrt()
    found, step = torch.zeros_like(a), alpha * torch.eye(len(a))
    for _ in range(400):
        found, step = found + step, (1 - alpha) * t @ step
    return found


def dense(index, weight, nodes):
    return torch.zeros(nodes, nodes).index_put_((index[1], index[0]), weight, accumulate=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("least", [0.0, 0.05])
def test_the_second_view_is_personalised_pagerank(least, weighted):
    party = make_graph_parties()[1]
    if weighted:  # both ways of an edge alike
        ends = party.graph.edge_index.sort(dim=0).values
        party.graph.edge_weight = 0.5 + ((ends[0] * 7 + ends[1]) % 5).float()
    seen = add_diffusion_view(party, restart=0.15, threshold=least)
    (own, own_weight), (index, weight) = split_views(seen.graph.edge_index, seen.graph.edge_weight)
    nodes, batch = party.nodes, party.graph.batch
    given = torch.ones(party.edges) if not weighted else party.graph.edge_weight
    a = dense(party.graph.edge_index, given, nodes)
    torch.testing.assert_close(dense(own, own_weight, nodes), a)
    due = torch.zeros(nodes, nodes)
    for graph in range(party.items):
        at = (batch == graph).nonzero().flatten()
        found = walked(a[at][:, at], 0.15)
        due[at[:, None], at] = torch.where(found < least, 0.0, found)
    torch.testing.assert_close(dense(index, weight, nodes), due, rtol=1e-4, atol=1e-6)


def test_a_graph_of_one_node_is_its_own_neighbour():
    alone = Data(x=torch.ones(1, 2), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([0]))
    pair = Data(x=torch.ones(2, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([1]))
    seen = add_diffusion_view(Party.of_graphs("lab-a", [alone, pair]), restart=0.2, threshold=0.0)
    _, (index, weight) = split_views(seen.graph.edge_index, seen.graph.edge_weight)
    assert sorted(index.t().tolist()) == [[0, 0], [1, 1], [1, 2], [2, 1], [2, 2]]
    torch.testing.assert_close(weight[0], torch.tensor(1.0))


def test_it_is_the_diffusion_that_pyg_has():
    party = make_graph_parties()[0]
    seen = add_diffusion_view(party, restart=0.2, threshold=0.01).graph
    _, (index, weight) = split_views(seen.edge_index, seen.edge_weight)
    gdc = GDC(
        normalization_out=None,
        diffusion_kwargs={"method": "ppr", "alpha": 0.2},
        sparsification_kwargs={"method": "threshold", "eps": 0.01},
    )
    for graph in range(party.items):
        nodes = (seen.batch == graph).nonzero().flatten()
        mine = party.graph.batch[party.graph.edge_index[0]] == graph
        due = gdc(Data(edge_index=party.graph.edge_index[:, mine] - nodes[0], num_nodes=len(nodes)))
        here = seen.batch[index[0]] == graph
        found = dense(index[:, here] - nodes[0], weight[here], len(nodes))
        torch.testing.assert_close(found, dense(due.edge_index, due.edge_attr, len(nodes)))


def test_edges_with_one_weight_are_one_view():
    index, weight = torch.tensor([[0], [1]]), torch.tensor([2.0])
    assert split_views(index, None) == [(index, None)]
    assert split_views(index, weight) == [(index, weight)]
