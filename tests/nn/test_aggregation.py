"""Hops of sums over neighbours against loops over nodes, and the model that reads them."""

import math

import pytest
import torch

from helpers import assert_law, make_graph_parties, make_node_parties
from isthmus.nn.aggregation import aggregations, only_aggregation, projection, reading_hops
from isthmus.nn.encoders import Encoder

GAP = Encoder.named("gap")


def literal(x, edge_index, depth, matrix):
    """The hops, node by node."""
    neighbours = [set() for _ in x]
    for source, target in edge_index.t().tolist():
        if source != target:
            neighbours[target].add(source)

    def unit(row):
        norm = math.sqrt(sum(float(value) ** 2 for value in row))
        return row / norm if norm else row

    hops, found = [unit(row) for row in x @ matrix], [x]
    for _ in range(depth):
        hops = [unit(sum((hops[other] for other in own), torch.zeros(matrix.size(1)))) for own in neighbours]
        found.append(torch.stack(hops))
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("width", [0, 5])
def test_hops_are_sums_of_unit_rows_over_neighbours(width):
    party = make_node_parties()[0]
    x, edges = party.graph.x.to_dense(), party.graph.edge_index
    twice = torch.cat([edges, edges[:, :7], torch.tensor([[3], [3]])], dim=1)  # repeated edges and a loop
    model = GAP(width=width, hops=3, hidden=4, dropout=0.0).build(x.size(1), 3, "node")
    matrix = projection(x.size(1), width) if width else torch.eye(x.size(1))
    due = literal(x, edges, 3, matrix)
    assert torch.allclose(model.aggregate(x, twice), due, atol=1e-5)
    assert torch.allclose(model(x, edges), reading_hops(model)(due, edges), atol=1e-5)
    assert not model.given


@pytest.mark.parametrize("parties", [make_node_parties, make_graph_parties], ids=["nodes", "graphs"])
def test_many_parties_train_as_each_would_alone(parties):
    parties = parties()
    level, features = parties[0].level, parties[0].features
    assert_law(GAP(width=4, hidden=6, dropout=0.3).build(features, 3, level), parties)


def test_a_model_says_what_it_reads():
    model = GAP(hops=3).build(5, 2, "graph")
    assert only_aggregation(aggregations(model)).depth == 3
    assert model.body.reach == 3
    assert only_aggregation(aggregations(Encoder.named("gcn")().build(5, 2, "node"))) is None
