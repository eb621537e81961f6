"""Small random parties, and several of them side by side."""

import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.cohort import Cohort
from isthmus.data.party import Party

FEATURES = 3


def make_graph(seed, nodes, *, sparse=False, weighted=False, labels=None):
    """A random graph; `labels` is the number of label rows, one per node unless said otherwise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, FEATURES, generator=generator)
    edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
    y = torch.randint(3, (labels or nodes,), generator=generator)
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=edges, y=y)
    if weighted:
        graph.edge_weight = torch.rand(edges.size(1), generator=generator)
    draw = torch.rand(nodes, generator=generator)
    graph.train_mask, graph.val_mask, graph.test_mask = draw < 0.3, (draw >= 0.3) & (draw < 0.6), draw >= 0.6
    return graph


@st.composite
def node_cohorts(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    sparse, seed = draw(st.booleans()), draw(st.integers(0, 2**16))
    weighted = [draw(st.booleans()) for _ in sizes]
    return Cohort(
        tuple(
            Party.of_graph(f"p{at}", make_graph(seed + at, size, sparse=sparse, weighted=weighted[at]))
            for at, size in enumerate(sizes)
        )
    )


@st.composite
def graph_cohorts(draw):
    piles = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4))
    weighted, seed = draw(st.booleans()), draw(st.integers(0, 2**16))
    parties = []
    for at, sizes in enumerate(piles):
        graphs = [
            make_graph(seed + 10 * at + k, size, weighted=weighted, labels=1).subgraph(torch.arange(size))
            for k, size in enumerate(sizes)
        ]
        parties.append(Party.of_graphs(f"p{at}", graphs, train=torch.tensor([0])))
    return Cohort(tuple(parties))


def cohorts():
    return st.one_of(node_cohorts(), graph_cohorts())


def assert_same_block(left, right):
    assert (left.sizes, left.graphs) == (right.sizes, right.graphs)
    assert torch.equal(rows.to_dense(left.x), rows.to_dense(right.x))
    assert rows.is_sparse(left.x) == rows.is_sparse(right.x)
    assert torch.equal(left.edge_index, right.edge_index)
    for key in ("edge_weight", "batch"):
        first, second = getattr(left, key), getattr(right, key)
        assert (first is None) == (second is None), key
        assert first is None or torch.equal(first, second), key
