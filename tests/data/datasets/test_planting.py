import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.data.datasets.planting import MOTIFS, PlantedGraphs, clique, cycle, path, star, wheel
from isthmus.data.pool import numpy_generator

SIZE = 5


def graphs_of(pile, edge_index):
    """Every graph as its nodes and its edges, numbered from 0."""
    batch = pile.batch
    found = []
    for at in range(pile.trees.size):
        first, nodes = int(pile.roots()[at]), int(pile.nodes[at])
        own = edge_index[:, batch[edge_index[0]] == at] - first
        assert ((own >= 0) & (own < nodes)).all()
        graph = networkx.Graph()
        graph.add_nodes_from(range(nodes))
        graph.add_edges_from(own.t().tolist())
        assert own.size(1) == 2 * graph.number_of_edges()  # each once, both ways
        found.append(graph)
    return found


@settings(max_examples=30)
@given(
    trees=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    motifs=st.integers(1, 5),
    bend=st.sampled_from([0.1, 1.0, 3.0]),
    seed=st.integers(0, 99),
)
def test_every_graph_is_a_tree_with_its_motifs_tied_to_it(trees, motifs, bend, seed):
    generator = numpy_generator(seed, "test")
    planted = generator.random((len(trees), motifs)) < 0.5
    pile = PlantedGraphs(np.array(trees), planted, SIZE)
    shapes = [motif(SIZE) for motif in MOTIFS[:motifs]]
    edge_index = pile.edges(shapes, bend, generator)
    assert pile.batch.tolist() == sorted(pile.batch.tolist())
    assert (pile.batch[edge_index[0]].diff() >= 0).all()  # graph after graph
    for at, graph in enumerate(graphs_of(pile, edge_index)):
        tree = graph.subgraph(range(trees[at]))
        assert networkx.is_tree(tree)
        assert networkx.is_connected(graph)
        ties, begin = 0, trees[at]
        for motif in np.flatnonzero(planted[at]):
            inside = graph.subgraph(range(begin, begin + SIZE))
            assert {frozenset(edge) for edge in inside.edges} == {
                frozenset((begin + a, begin + b)) for a, b in shapes[motif]
            }
            assert (graphs := pile.motif_starts()[motif])[1][graphs[0] == at] == pile.roots()[at] + begin
            begin, ties = begin + SIZE, ties + 1
        planted_edges = sum(len(shapes[motif]) for motif in np.flatnonzero(planted[at]))
        assert graph.number_of_edges() == trees[at] - 1 + planted_edges + ties


def test_motifs_hang_on_any_node_of_the_tree():
    pile = PlantedGraphs(np.full(4000, 4), np.ones((4000, 1), dtype=bool), SIZE)
    source, target = pile.edges([path(SIZE)], 1.0, numpy_generator(0, "test"))
    place = torch.arange(4000 * 9) % 9
    tied = place[source[(place[source] < 4) & (place[target] == 4)]]
    np.testing.assert_allclose(torch.bincount(tied) / 4000, np.full(4, 0.25), atol=0.03)


def test_a_tree_grows_from_chain_to_hub():
    def depth(bend):
        pile = PlantedGraphs(np.full(200, 30), np.zeros((200, 0), dtype=bool), SIZE)
        graphs = graphs_of(pile, pile.edges([], bend, numpy_generator(0, "test")))
        return np.mean([max(networkx.single_source_shortest_path_length(graph, 0).values()) for graph in graphs])

    assert depth(0.05) > 20 > 10 > depth(1.0) > 5 > depth(5.0)
    mixed = PlantedGraphs(np.full(2, 30), np.zeros((2, 0), dtype=bool), SIZE)
    first, second = graphs_of(mixed, mixed.edges([], np.array([1e-9, 1e9]), numpy_generator(0, "test")))
    assert networkx.is_isomorphic(first, networkx.path_graph(30))
    assert networkx.is_isomorphic(second, networkx.star_graph(29))


@pytest.mark.parametrize(
    ("motif", "due"),
    [
        (cycle, networkx.cycle_graph(6)),
        (clique, networkx.complete_graph(6)),
        (star, networkx.star_graph(5)),
        (wheel, networkx.wheel_graph(6)),
        (path, networkx.path_graph(6)),
    ],
)
def test_motifs_are_what_they_are_called(motif, due):
    edges = motif(6)
    assert len({frozenset(edge) for edge in edges}) == len(edges)
    assert networkx.is_isomorphic(networkx.Graph(edges), due)
