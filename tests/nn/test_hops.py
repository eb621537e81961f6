import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from helpers import CLASSES, ENCODERS, FEATURES, apart, make_node_parties
from isthmus.data.cohort import Block, Cohort
from isthmus.data.party import Party
from isthmus.nn.draws import Draws
from isthmus.nn.encoders import Convolutions, Encoder, Readout
from isthmus.nn.hops import GraphsHop, Hop, HopPropagations
from isthmus.nn.per_party import per_party
from isthmus.nn.products import SCIPY_FROM, Propagation, mean_edges, normalised_edges, plain_edges

pytestmark = pytest.mark.usefixtures("double_precision")
MATRICES = {
    "normalised": (normalised_edges, {}),
    "improved": (normalised_edges, {"improved": True}),
    "without-loops": (normalised_edges, {"self_loops": False}),
    "mean": (mean_edges, {}),
    "plain": (plain_edges, {}),
}
VARIANTS = {name: {} for name in ENCODERS}
VARIANTS |= {f"{name}-weighted": {"weighted": True} for name in ("sage", "gin", "gat")}


def looped(weights="none"):
    """A graph with edges from some nodes to themselves."""
    source = torch.Generator().manual_seed(4)
    ends = torch.randint(20, (2, 70), generator=source)
    ends = torch.unique(torch.cat([ends, torch.tensor([[2, 5], [2, 5]])], dim=1), dim=1)
    weight = {"none": None, "positive": torch.rand(ends.size(1), generator=source) + 0.5}
    weight["mixed"] = torch.randn(ends.size(1), generator=source)
    return Block(torch.rand(22, 3, generator=source), ends, (12, 10), weight[weights])


def dense_matrix(block, edges, options):
    whole = edges(block.edge_index, block.edge_weight, block.nodes, dtype=torch.float64, **options)
    return Propagation(*whole, block.nodes) @ torch.eye(block.nodes)


@pytest.mark.parametrize("weights", ["none", "positive", "mixed"])
@pytest.mark.parametrize("matrix", MATRICES)
def test_a_hop_with_all_edges_has_rows_of_the_whole_matrix(matrix, weights):
    block, (edges, options) = looped(weights), MATRICES[matrix]
    due = dense_matrix(block, edges, options)
    part = block.neighbours.around(torch.tensor([2, 15]), (None, None), block.sizes)
    for within in (0, 1):
        found = Hop(part, within).matrix(edges, torch.float64, **options)
        into, out_of = part.nodes[part.rows_within(within)], part.nodes[part.rows_within(within + 1)]
        whole_rows = found @ torch.eye(out_of.numel())
        torch.testing.assert_close(whole_rows, due[into][:, out_of])
        torch.testing.assert_close(due[into].sum(1), whole_rows.sum(1))  # all entries of these rows


@pytest.fixture(scope="module")
def drawn_parts():
    block, draws = looped("positive"), Draws.seeded([1, 2])
    seeds, found = torch.arange(block.nodes), []
    for turn in range(1500):
        uniform = lambda hop, sizes, width, turn=turn: draws.of(turn, hop).uniform(sizes, width)  # noqa: E731
        found.append(block.neighbours.around(seeds, (2,), block.sizes, uniform))
    return block, found


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.thinned(3)
def test_drawn_rows_are_those_of_the_whole_matrix_on_average(matrix, drawn_parts):
    (block, parts), (edges, options) = drawn_parts, MATRICES[matrix]
    due, every = dense_matrix(block, edges, options), torch.eye(block.nodes)
    total = sum(Hop(part).matrix(edges, torch.float64, **options) @ every for part in parts)
    torch.testing.assert_close(total / len(parts), due, atol=0.1, rtol=0.0)


def test_the_gradient_of_a_hop_is_that_of_the_dense_product():
    block = looped("positive")
    part = block.neighbours.around(torch.tensor([2, 15]), (None,), block.sizes)
    matrix = Hop(part, 0).matrix(normalised_edges, torch.float64)
    dense = matrix @ torch.eye(part.nodes.numel())
    h = torch.rand(part.nodes.numel(), 4, requires_grad=True)
    slope = torch.rand(2, 4)
    (matrix @ h * slope).sum().backward()
    torch.testing.assert_close(h.grad, dense.t() @ slope)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("encoder", sorted(VARIANTS.keys() - {"cheb", "two-channel"}))
@pytest.mark.thinned(5)
def test_the_outputs_of_seeds_are_those_of_the_whole_graph(encoder, sparse):
    torch.manual_seed(0)
    kind = Encoder.named(encoder.removesuffix("-weighted"))
    module = kind(hidden=8, **({} if "layers" in kind.without else {"layers": 3}), **VARIANTS[encoder]).build(
        FEATURES, CLASSES, "node"
    )
    parties = make_node_parties(sparse=sparse, weighted=True)
    block = Cohort(parties).block
    model = per_party(module, len(parties))
    model.load(apart(module, len(parties)))
    due = model(block)
    seeds = torch.tensor([3, 30, 31, 75])
    for trims in {False, model.trims}:
        part = block.neighbours.around(seeds, (None,) * model.reach, block.sizes)
        for each in (part, replace(part, kept={})):  # computed once, and kept for several passes
            small = block.restricted(each, trims=trims)
            for _ in range(2):
                found = model(small)
                assert found.size(0) == (seeds.numel() if trims else part.nodes.numel())
                torch.testing.assert_close(found[part.rows_of(seeds, among_seeds=trims)], due[seeds])


def test_layers_that_normalise_by_what_they_see_need_the_whole_graph():
    assert Encoder.named("cheb")().build(FEATURES, CLASSES, "node").reach is None
    assert Encoder.named("gin")(norm=True).build(FEATURES, CLASSES, "node").reach is None
    assert Encoder.named("two-channel")().build(FEATURES, CLASSES, "node").reach is None


def test_layers_that_propagate_by_a_matrix_leave_out_rows():
    def kinds(what):
        return {
            name
            for name, options in VARIANTS.items()
            if getattr(Encoder.named(name.removesuffix("-weighted"))(**options).build(FEATURES, CLASSES, "node"), what)
        }

    assert kinds("trims") == {"gcn", "sage", "sage-weighted", "gin", "gin-weighted", "graphconv"}
    assert kinds("takes_hops") - kinds("trims") == {"mlp", "deepsets", "sgc", "tag", "appnp", "gprgnn", "lightgcn"}


def test_models_that_read_very_far_read_the_whole_graph():
    model = per_party(Encoder.named("sgc")(hops=300).build(FEATURES, CLASSES, "node"), 1)
    assert model.reach is None
    parties = make_node_parties()[:1]
    around = Cohort(parties).block.neighbours.around(torch.tensor([0]), (None,) * 300, (parties[0].nodes,))
    assert int(around.depth.max()) < 300


def small_graphs(views=None):
    """Parties with directed graphs, some with an edge from a node to itself; edges in any order."""
    source = torch.Generator().manual_seed(5)
    parties = []
    for name, graphs in (("a", 12), ("b", 3)):
        found = []
        for size in torch.randint(1, 9, (graphs,), generator=source).tolist():
            ends = torch.unique(torch.randint(size, (2, 2 * size), generator=source), dim=1)
            found.append(Data(x=torch.rand(size, 3, generator=source), edge_index=ends, y=torch.tensor([0])))
        party = Party.of_graphs(name, found)
        party.graph.edge_index = party.graph.edge_index[:, torch.randperm(party.edges, generator=source)]
        shape = (party.edges,) if views is None else (party.edges, views)
        weight = torch.randn(shape, generator=source)
        party.graph.edge_weight = weight * (weight > -0.5)
        parties.append(party)
    return Cohort(tuple(parties))


@pytest.mark.parametrize(("views", "view"), [(None, None), (2, 0), (2, 1)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("matrix", MATRICES)
def test_the_matrix_of_some_graphs_has_the_bits_of_that_of_their_edges(matrix, weighted, views, view):
    edges, options = MATRICES[matrix]
    cohort = small_graphs(views=views)
    block = cohort.graphs_of(torch.tensor([1, 4, 5, 13]))
    made = []

    def counted(edge_index, *more, **options):
        made.append(edge_index.size(1))
        return edges(edge_index, *more, **options)

    whole = GraphsHop(cohort.block.part, view)
    hop, known, options = GraphsHop(block.part, view), HopPropagations(), {"dtype": torch.float64, **options}
    weight = block.edge_weight if weighted else None
    found = [known(counted, hop, weight, block.nodes, **options) for _ in range(3)]
    known(counted, whole, cohort.block.edge_weight if weighted else None, cohort.block.nodes, **options)
    assert made == [whole.edges_of(cohort.block.part)[0].size(1)]  # the matrix of all graphs, once
    index, own = block.edge_index, block.edge_weight
    if view is not None:
        inside = own[:, view] != 0
        index, own = index[:, inside], own[inside, view]
    due = Propagation(*edges(index, own if weighted else None, block.nodes, **options), block.nodes)
    h, slope = torch.rand(2, block.nodes, 5)
    results = []
    for each in (due, found[0], found[-1]):
        leaf = h.clone().requires_grad_()
        out = each @ leaf
        out.backward(slope)
        results.append((out, leaf.grad))
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_most_graphs_of_all_have_a_matrix_of_their_own():
    block = small_graphs().graphs_of(torch.arange(14))
    made = []

    def counted(edge_index, *more, **options):
        made.append(edge_index.size(1))
        return plain_edges(edge_index, *more, **options)

    known = HopPropagations()
    for _ in range(2):
        known(counted, GraphsHop(block.part), None, block.nodes, dtype=torch.float64)
    assert made == [block.edge_index.size(1)]


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gin", "graphconv", "tag", "sgc", "appnp", "gat", "cheb"])
def test_a_model_of_graphs_gives_the_same_from_rows_of_all_graphs_matrices_as_from_edges(encoder):
    cohort = small_graphs()
    block = cohort.graphs_of(torch.tensor([0, 2, 3, 12]))
    model = graph_model(Encoder.named(encoder)(hidden=4).build(3, CLASSES, "graph"))
    results = []
    for each in (block, replace(block, part=None)):
        leaves = model.start_training(each, [True, True], touched_rows=False)
        out = model(each, Draws.seeded([1, 2]))
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.tensor.grad for leaf in leaves)])
        model.stop_training()
        model.load({name: weight.double() for name, weight in model.initial.items()})
    assert all(map(torch.equal, *results))


def graph_model(module):
    model = per_party(module, 2)
    model.load({name: weight.double() for name, weight in model.initial.items()})
    return model


class AbsoluteGcn(nn.Module):
    """Reads other edge weights than those it gets, and edges themselves."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 4)

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index[:, :], edge_weight.abs())


def test_a_layer_of_your_own_gets_the_edges_of_graphs_themselves():
    block = small_graphs().graphs_of(torch.tensor([0, 2, 3, 12]))
    model = graph_model(Readout(Convolutions([AbsoluteGcn()], 0.0, weighted=True), 4, CLASSES, "mean"))
    assert torch.equal(model(block), model(replace(block, part=None)))


@pytest.mark.parametrize("edges", [normalised_edges, mean_edges, plain_edges])
def test_repeated_edges_have_the_same_bits_among_few_graphs_and_among_many(edges):
    source = torch.Generator().manual_seed(7)
    graphs = [
        Data(x=torch.rand(8, 3), edge_index=torch.randint(8, (2, 60), generator=source), y=torch.tensor([0]))
        for _ in range(400)
    ]
    parties = Party.of_graphs("a", graphs[:100]), Party.of_graphs("b", graphs[100:])
    assert parties[0].edges < SCIPY_FROM < parties[1].edges
    results = []
    for cohort in (Cohort(parties), Cohort(parties[:1])):
        block = cohort.graphs_of(torch.arange(10))
        matrix = HopPropagations()(edges, GraphsHop(block.part), None, block.nodes, dtype=torch.float32)
        h = torch.rand(block.nodes, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float32).requires_grad_()
        out = matrix @ h
        out.square().sum().backward()
        results.append((out, h.grad))
    alone = Propagation(*edges(block.edge_index, None, block.nodes, dtype=torch.float32), block.nodes)
    h = h.detach().requires_grad_()
    out = alone @ h
    out.square().sum().backward()
    for found in results:
        assert torch.equal(found[0], out)
        assert torch.equal(found[1], h.grad)


def test_a_cohort_that_nobody_needs_leaves_no_matrix_behind():
    model, kept = graph_model(Encoder.named("gcn")(hidden=4).build(3, CLASSES, "graph")), []
    for _ in range(2):
        cohort = small_graphs()
        model(cohort.graphs_of(torch.tensor([0, 12])))
        model(cohort.block)
        kept.append(weakref.ref(cohort.block.part))
        del cohort
        gc.collect()
    assert [each() for each in kept] == [None, None]


def test_graphs_that_were_read_can_be_copied():
    block = small_graphs().graphs_of(torch.tensor([0, 2, 12]))
    model = graph_model(Encoder.named("gcn")(hidden=4).build(3, CLASSES, "graph"))
    assert torch.equal(model(block), model(copy.deepcopy(block)))


def test_embeddings_of_two_views_are_the_same_from_rows_of_all_graphs_matrices_as_from_edges():
    block = small_graphs(views=2).graphs_of(torch.tensor([0, 2, 3, 12]))
    model = graph_model(Encoder.named("gin")(hidden=4, weighted=True).embedder(3))
    for found, due in zip(model(block), model(replace(block, part=None)), strict=True):
        assert found.size(1) == 2
        assert torch.equal(found, due)


def test_edges_put_in_place_of_a_graphs_own_are_the_ones_that_count():
    cohort = small_graphs()
    block = cohort.graphs_of(torch.tensor([0, 2, 3, 12]))
    model = graph_model(Encoder.named("gcn")(hidden=4).build(3, CLASSES, "graph"))
    for other in (replace(block, edge_weight=None), replace(block, edge_index=block.edge_index.flip(0))):
        assert torch.equal(model(other), model(replace(other, part=None)))
        assert not torch.equal(model(other), model(block))
