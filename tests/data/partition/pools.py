"""Small pools to cut, and what the tests of cuts ask of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

from isthmus.data.partition import Partition
from isthmus.data.partition.features import KMeans, Sorted
from isthmus.data.partition.given import Given
from isthmus.data.partition.labels import Iid, LabelDirichlet, QuantityDirichlet, Random
from isthmus.data.partition.overlap import Overlap
from isthmus.data.partition.structure import Louvain
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool, items_per_party

BLIND_OR_BY_LABEL = [
    Random(),
    Iid(),
    LabelDirichlet(),
    LabelDirichlet(beta=0.01),
    QuantityDirichlet(),
    QuantityDirichlet(beta=0.01),
    Sorted(),
]
NODES_ONLY = [KMeans(), Louvain(), Louvain(by_labels=True)]


def make_pool(seed, nodes, *, classes=3, sparse=False, weighted=False, tasks=0, unlabelled=0.0):
    """A directed graph with loops and ids of its own; test nodes have labels, others may lack one (-1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 4, generator=generator) * (torch.rand(nodes, 4, generator=generator) < 0.5)
    pairs = torch.randint(nodes * nodes, (3 * nodes,), generator=generator).unique()
    pairs = pairs[torch.randperm(pairs.numel(), generator=generator)]
    y = torch.randint(classes, (nodes,), generator=generator)
    draw = torch.rand(nodes, generator=generator)
    if unlabelled:
        y[(draw >= 0.6) & (draw < 0.7) | (draw > 1 - unlabelled)] = -1
    y = torch.rand(nodes, tasks, generator=generator) if tasks else y
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=torch.stack([pairs // nodes, pairs % nodes]), y=y)
    if weighted:
        graph.edge_weight = torch.rand(pairs.numel(), generator=generator)
    graph.train_mask, graph.val_mask = draw < 0.3, (draw >= 0.3) & (draw < 0.6)
    graph.test_mask = (draw >= 0.7) & (draw <= 1 - unlabelled)
    return Pool(Party.of_graph("pooled", graph, ids=torch.arange(nodes)), classes)


def make_pile(seed, graphs, *, classes=3, weighted=False, unlabelled=0.0):
    """Small graphs whose features say which graph it is; their edges stand in any order."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    third = torch.arange(graphs) % 4
    for at in range(graphs):
        nodes = int(torch.randint(1, 5, (1,), generator=generator))
        label = torch.randint(classes, (1,), generator=generator)
        if third[at] == 3 and unlabelled:
            label[:] = -1
        edges = torch.randint(nodes, (2, nodes), generator=generator)
        made.append(Data(x=torch.full((nodes, 2), float(at)), edge_index=edges, y=label))
        if weighted:
            made[-1].edge_weight = torch.rand(nodes, generator=generator)
    party = Party.of_graphs("pooled", made, train=third == 0, val=third == 1, test=third == 2)
    order = torch.randperm(party.edges, generator=generator)
    party.graph.edge_index = party.graph.edge_index[:, order]
    if weighted:
        party.graph.edge_weight = party.graph.edge_weight[order]
    return Pool(party, classes)


def with_holders(pool, parties, seed):
    """Every party holds at least one item, every item is with one."""
    items, generator = pool.party.items, torch.Generator().manual_seed(seed)
    owner = torch.randint(parties, (items,), generator=generator)
    owner[torch.randperm(items, generator=generator)[:parties]] = torch.arange(parties)
    return replace(pool, holders=items_per_party(owner, parties))


@st.composite
def cuts(draw, level, *, overlapping=False):
    """A pool, a partition that suits it, a number of parties and a seed."""
    seed, items = draw(st.integers(0, 2**16)), draw(st.integers(1, 14))
    parties, weighted, unlabelled = draw(st.integers(1, items)), draw(st.booleans()), draw(st.sampled_from([0, 0.2]))
    if level == "node":
        pool = make_pool(seed, items, sparse=draw(st.booleans()), weighted=weighted, unlabelled=unlabelled)
        partitions = [*BLIND_OR_BY_LABEL, *NODES_ONLY, Given()]
    else:
        pool = make_pile(seed, items, weighted=weighted, unlabelled=unlabelled)
        partitions = [*BLIND_OR_BY_LABEL, Given()]
    if overlapping:
        shares = st.floats(1 / items, 1).filter(lambda share: round(share * items) > 0)
        proportions = draw(st.lists(shares, min_size=parties, max_size=parties))
        return pool, Overlap(proportions=proportions, edges="coupled"), parties, seed
    return with_holders(pool, parties, seed), draw(st.sampled_from(partitions)), parties, seed


def broken(partition: Partition) -> Partition:
    return type(partition)(**{**partition.model_dump(), "edges": "broken"})


def edges_of(party):
    """The edges between ids, with their weights where there are any, as a set."""
    weight = party.graph.get("edge_weight")
    columns = [*party.ids[party.graph.edge_index].tolist(), *([] if weight is None else [weight.tolist()])]
    edges = set(zip(*columns, strict=True))
    assert len(edges) == party.edges
    return edges


def graphs_of(party):
    """Every graph of a pile with its features, edges, weights, label and splits, by what its features say it is."""
    graph, batch = party.graph, party.graph.batch
    assert (batch.diff() >= 0).all()
    assert int(batch.max()) < party.items
    for at in range(party.items):
        nodes, edges = batch == at, batch[graph.edge_index[0]] == at
        first = int((batch < at).sum())
        weight = graph.get("edge_weight")
        yield (
            graph.x[nodes].tolist(),
            (graph.edge_index[:, edges] - first).t().tolist(),
            [] if weight is None else weight[edges].tolist(),
            int(graph.y[at]),
            [bool(getattr(party, split)[at]) for split in SPLITS],
        )


def members_of(parties):
    """For each party the positions of its items in the pool, as it holds them."""
    if parties[0].level == "node":
        return [party.ids.tolist() for party in parties]
    firsts = [torch.searchsorted(party.graph.batch, torch.arange(party.items)) for party in parties]
    return [party.graph.x[first, 0].long().tolist() for party, first in zip(parties, firsts, strict=True)]


def class_counts(parties, classes):
    """Labelled items of each class at each party."""
    labels = [party.graph.y[party.graph.y >= 0] for party in parties]
    return torch.stack([torch.bincount(label, minlength=classes) for label in labels])
