from dataclasses import replace

import pytest
import torch

from helpers import CLASSES, ENCODERS, FEATURES, apart, make_node_parties
from isthmus.data.party import Block, Cohort
from isthmus.nn.draws import Draws
from isthmus.nn.encoders import Encoder
from isthmus.nn.hops import Hop
from isthmus.nn.per_party import per_party
from isthmus.nn.products import Propagation, mean_edges, normalised_edges, plain_edges

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
