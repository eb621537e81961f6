"""The outputs of a model with a party's own networks beside it; `tests/methods/test_adafgl.py` has the equations."""

import pytest
import torch

from helpers import CLASSES, FEATURES, make_node_parties
from isthmus.nn.adaptive import Adaptive, HopLinear, message, similar
from isthmus.nn.encoders import Encoder, uses_edge_weights
from isthmus.nn.weights import initial_weights

pytestmark = pytest.mark.usefixtures("double_precision")
FORM = {"hidden": 8, "dropout": 0.0, "alpha": 0.3, "beta": 0.4, "threshold": 0.98, "hops": 2}


def built(name="gcn"):
    torch.manual_seed(0)
    return Encoder.named(name)(hidden=8, dropout=0.0).build(FEATURES, CLASSES, "node")


def test_no_gradient_reaches_the_shared_model():
    module = Adaptive(built(), **FORM)
    with torch.no_grad():
        module.score.fill_(0.25)
    graph = make_node_parties()[0].graph
    module.train()(graph.x.double(), graph.edge_index).square().sum().backward()
    slopes = {name: weight.grad for name, weight in module.named_parameters()}
    assert all((slopes[each] is None) == each.startswith("body.") for each in slopes)


def test_probabilities_sum_to_one():
    module = Adaptive(built(), **FORM)
    with torch.no_grad():
        module.score.fill_(0.6)
    graph = make_node_parties()[0].graph
    total = module.eval()(graph.x.double(), graph.edge_index).exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_initial_weights_hold_a_score_that_says_that_it_is_not_known():
    assert float(initial_weights(Adaptive(built(), **FORM))["score"]) == -1.0


def test_without_a_score_the_outputs_are_the_models():
    module, graph = built(), make_node_parties()[0].graph
    own = Adaptive(module, **FORM)
    assert torch.equal(
        own.eval()(graph.x.double(), graph.edge_index), module.eval()(graph.x.double(), graph.edge_index)
    )


def test_relations_are_cosines_without_a_diagonal():
    found = similar(torch.tensor([[1.0, 0.0], [0.6, 0.8], [2.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.6, 1.0], [0.6, 0.0, 0.6], [1.0, 0.6, 0.0]]))


def test_products_are_propagated_as_features_would_be():
    torch.manual_seed(0)
    layer, sizes = HopLinear(3 * 5, 4, hops=2), (3, 0, 6)
    x, matrices = torch.randn(9, 5, requires_grad=True), [torch.randn(each, each) for each in sizes]
    whole = torch.block_diag(*(each for each in matrices if len(each)))
    due = torch.nn.functional.linear(torch.cat([x, whole @ x, whole @ whole @ x], dim=1), layer.weight, layer.bias)
    found = layer(x, matrices)
    torch.testing.assert_close(found, due)
    of = (x, layer.weight, layer.bias)
    slopes = [torch.autograd.grad(each.square().sum(), of) for each in (found, due)]
    torch.testing.assert_close(*slopes)


def message_as_written(e, relation, beta):
    p = e.softmax(1)
    eye = torch.eye(len(e), dtype=e.dtype)
    cosines = torch.cosine_similarity(p.unsqueeze(0), p.unsqueeze(1), dim=2) * (1 - eye)
    s = beta * relation + (1 - beta) * cosines
    least, mean = torch.finfo(torch.float32).tiny, s.mean()
    below = (s - mean).clamp(max=0) / mean.clamp(min=least) * (1 - eye)
    above = (s - mean).clamp(min=0) / (s.max() - mean).clamp(min=least) * (1 - eye)
    s = above + below + eye
    return ((s.relu() @ e).softmax(1) - ((-s).relu() @ e).softmax(1) + e) / 2


@pytest.mark.parametrize(("nodes", "spread"), [(1, 30), (3, 20), (4, 12), (5, 20), (40, 1), (90, 4)])
@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_messages_are_exact_in_single_precision(nodes, spread, beta):
    """Also of few nodes that are sure of different classes, whose cosines are next to nothing."""
    draws = torch.Generator().manual_seed(nodes)
    e = spread * torch.nn.functional.one_hot(torch.arange(nodes) % 7, 7) + torch.rand(nodes, 7, generator=draws)
    given = torch.rand(nodes, 7, generator=draws).softmax(1)
    found = []
    for way, kind in ((message, torch.float32), (message_as_written, torch.float64)):
        leaf = e.to(kind).requires_grad_()
        out = way(leaf, similar(given.to(kind)), beta)
        (out * given).sum().backward()
        found += [out.detach().double(), leaf.grad.double()]
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1], found[3], rtol=1e-2, atol=1e-3)


def test_a_single_node_and_nodes_that_are_all_alike_give_finite_messages():
    for count in (1, 3):
        e = torch.ones(count, 2, requires_grad=True)
        found = message(e, torch.zeros(count, count), 0.5)
        found.sum().backward()
        assert bool(found.isfinite().all())
        assert bool(e.grad.isfinite().all())


def test_it_uses_edge_weights_where_the_model_does():
    assert uses_edge_weights(Adaptive(built("gcn"), **FORM))
    assert not uses_edge_weights(Adaptive(built("sage"), **FORM))
