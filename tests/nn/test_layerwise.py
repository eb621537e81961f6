import itertools

import pytest
import torch

from helpers import CLASSES, FEATURES, apart, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.errors import IsthmusError
from isthmus.nn import layerwise
from isthmus.nn.encoders import Encoder
from isthmus.nn.layerwise import infer, layer_by_layer
from isthmus.nn.per_party import per_party
from isthmus.nn.weights import initial_weights

CHAINS = {
    "gcn": {},
    "sage": {},
    "sage-weighted": {"weighted": True},
    "gin": {},
    "gin-weighted": {"weighted": True},
    "gin-norm": {"norm": True},
    "gat": {},
    "gat-weighted": {"weighted": True},
    "graphconv": {},
}
OTHERS = {"cheb": {}, "tag": {}, "sgc": {}, "appnp": {}, "gin-stay": {"norm": True, "statistics": "stay"}}


def build(encoder, options, layers=3):
    torch.manual_seed(0)
    kind = Encoder.named(encoder.split("-")[0])
    options = options if "layers" in kind.without else {"layers": layers, **options}
    return kind(hidden=8, **options).build(FEATURES, CLASSES, "node")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("encoder", CHAINS)
@pytest.mark.thinned(15)
def test_layer_by_layer_is_one_pass(encoder, own, sparse, weighted):
    module = build(encoder, CHAINS[encoder])
    parties = make_node_parties(sparse=sparse, weighted=weighted)
    model = per_party(module, len(parties))
    model.load(apart(module, len(parties)) if own else initial_weights(module))
    block = Cohort(parties).block
    due, due_embedding = model(block, embed=True)
    for at_a_time in (2000, 50_000, 2**30):
        found, embedding = layer_by_layer(model, block, embed=True, at_a_time=at_a_time)
        torch.testing.assert_close(found, due, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(embedding, due_embedding, rtol=1e-5, atol=1e-5)


@pytest.fixture
def layers(monkeypatch):
    """Every graph counts as large; the list gets an entry for each pass layer by layer."""
    monkeypatch.setattr(layerwise, "ONE_PASS", 0)
    passes = []
    original = layerwise.layer_by_layer
    monkeypatch.setattr(layerwise, "layer_by_layer", lambda *a, **k: passes.append(1) or original(*a, **k))
    return passes


@pytest.mark.parametrize("encoder", [*CHAINS, *OTHERS])
def test_large_graphs_are_computed_layer_by_layer_where_that_gives_the_same(encoder, layers):
    module = build(encoder, (CHAINS | OTHERS)[encoder])
    parties = make_node_parties()
    model, block = per_party(module, len(parties)), Cohort(parties).block
    model.load(apart(module, len(parties)))
    torch.testing.assert_close(infer(model, block), model(block), rtol=1e-5, atol=1e-5)
    assert len(layers) == (encoder in CHAINS)


def test_small_graphs_are_computed_in_one_pass(monkeypatch):
    monkeypatch.setattr(layerwise, "layer_by_layer", None)
    parties = make_node_parties()
    model = per_party(build("sage", {}), len(parties))
    assert infer(model, Cohort(parties).block).shape == (sum(party.nodes for party in parties), CLASSES)


def test_a_model_without_an_embedding_says_so(layers):
    parties = make_node_parties()
    model = per_party(build("gcn", {}, layers=1), len(parties))
    with pytest.raises(IsthmusError, match="no embedding before its head"):
        infer(model, Cohort(parties).block, embed=True)


def test_a_piece_is_small_unless_one_node_is_large():
    module = build("sage", {})
    block = Cohort(make_node_parties()).block
    ends = layerwise._ends(module.convs[1], block.neighbours, True, 5000)
    per_node, per_edge = 4 * 8, 6
    assert ends[0] == 0
    assert ends[-1] == block.nodes
    start = block.neighbours.start
    sizes = [4 * (per_node * (b - a) + per_edge * int(start[b] - start[a])) for a, b in itertools.pairwise(ends)]
    assert len(sizes) > 2
    assert max(sizes) <= 2 * 5000
