"""Parties with one coupled graph, and runs on them."""

from __future__ import annotations

import copy

import torch
from hypothesis import strategies as some
from torch_geometric.data import Data

from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool, items_per_party
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for


@some.composite
def coupled(draw, most=24):
    """A graph and its cut: isolated nodes, nodes with only crossing edges, parties of one node, weights, sparse x."""
    nodes = draw(some.integers(2, most))
    parties = draw(some.integers(1, min(nodes, 6)))
    source = torch.Generator().manual_seed(draw(some.integers(0, 2**20)))
    pairs = torch.randint(nodes, (2, draw(some.integers(0, 3 * nodes))), generator=source)
    pairs = torch.unique(torch.stack([pairs.amin(0), pairs.amax(0)])[:, pairs[0] != pairs[1]], dim=1)
    x = torch.randn(nodes, 5, generator=source) * (torch.rand(nodes, 5, generator=source) < 0.6)
    graph = Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))
    graph.y = torch.randint(3, (nodes,), generator=source)
    if draw(some.booleans()):
        graph.edge_weight = torch.rand(pairs.size(1), generator=source).repeat(2) + 0.1
    graph.train_mask = torch.rand(nodes, generator=source) < 0.5
    graph.train_mask[0] = True
    graph.val_mask = graph.test_mask = ~graph.train_mask
    graph.val_mask = torch.zeros_like(graph.train_mask)
    if not bool(graph.test_mask.any()):
        graph.train_mask[-1], graph.test_mask[-1] = False, True
    if draw(some.booleans()):
        graph.x = graph.x.to_sparse_csr()
    whole = Party.of_graph("pooled", graph, ids=torch.randperm(nodes, generator=source) + 100)
    owner = torch.cat([torch.arange(parties), torch.randint(parties, (nodes - parties,), generator=source)])
    owner = owner[torch.randperm(nodes, generator=source)]
    pool = Pool(whole, 3, items_per_party(owner, parties))
    return whole, Given().cut(pool, parties, seed=0)


def started(method, parties, encoder, *, side_by_side=True):
    task = task_for(parties, 3)
    module = module_for(encoder, parties, task, 0)
    return Run(method, parties, task, module, seed=0, side_by_side=side_by_side), copy.deepcopy(module)


def dense(party):
    return party.graph.x.to_dense() if party.graph.x.layout != torch.strided else party.graph.x


def small(cross=True):
    """Two parties of three nodes: 0 - 1, 3 - 4 inside; 2 has edges to 3 and 5 only, 5 to 2 only."""
    edges = torch.tensor([[0, 3, 2, 2], [1, 4, 3, 5]])
    graph = Data(x=torch.eye(6) + 0.1, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.arange(6) % 2)
    graph.train_mask, graph.test_mask = torch.arange(6) < 4, torch.arange(6) >= 4
    whole = Party.of_graph("pooled", graph, ids=torch.arange(6))
    pool = Pool(whole, 2, items_per_party(torch.tensor([0, 0, 0, 1, 1, 1]), 2), names=("a", "b"))
    return whole, Given().cut(pool, 2, seed=0)
