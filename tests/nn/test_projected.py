"""A head that reads smoothed embeddings gives the same for a party alone and side by side."""

import math

import pytest
import torch
from torch import nn

from helpers import CLASSES, FEATURES, STEADY, assert_law, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.errors import IsthmusError
from isthmus.methods.training import LocalTraining
from isthmus.nn import projected
from isthmus.nn.encoders import Encoder, uses_edge_weights
from isthmus.nn.per_party import per_party
from isthmus.nn.projected import Projected, SmoothedHead, smoothed
from isthmus.nn.weights import head_of

ENCODERS = [
    ("gcn", {}), ("gcn", {"linear_head": True}), ("sage", {}), ("gin", {"norm": True}), ("gat", {}), ("cheb", {}),
    ("tag", {}), ("gamlp", {}), ("mlp", {}), ("appnp", {}),
]  # fmt: skip


def built(name, options):
    torch.manual_seed(0)
    return Encoder.named(name)(hidden=8, **options).build(FEATURES, CLASSES, "node")


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("name", "options"), ENCODERS, ids=["-".join([name, *own]) for name, own in ENCODERS])
@pytest.mark.thinned(6)
def test_a_cohort_gives_what_its_parties_give_alone(name, options, sparse):
    module = Projected(built(name, options), 0.5)
    steady = STEADY if "norm" in options else LocalTraining(optimizer="adam", epochs=5)
    model = assert_law(module, make_node_parties(sparse=sparse, weighted=True), steady)
    assert model.side_by_side
    assert isinstance(module.get_submodule(head_of(module)), SmoothedHead)


def test_a_party_has_the_same_bits_in_every_cohort():
    parties = make_node_parties((23, 40, 5, 400, 29))  # of 400 by the series
    module = Projected(built("gcn", {"linear_head": True}), 1.0)

    def slopes(chosen):
        cohort = Cohort(tuple(chosen))
        model = per_party(module, len(chosen))
        leaves = model.start_training(cohort.block, [True] * len(chosen), touched_rows=False)
        model.training = False  # without dropout
        output = model(cohort.block)
        output.square().sum().backward()
        return output.split(cohort.block.sizes), {leaf.name: leaf.tensor.grad for leaf in leaves}

    together, grads = slopes(parties)
    for at, party in enumerate(parties):
        (alone,), own = slopes([party])
        assert torch.equal(together[at], alone)
        assert torch.equal(grads["body.linear.direction"][at], own["body.linear.direction"][0])


def test_the_direction_has_a_gradient():
    parties = make_node_parties()
    module = Projected(built("gcn", {}), 1.0)
    model = per_party(module, len(parties))
    block = Cohort(parties).block
    leaves = {leaf.name: leaf.tensor for leaf in model.start_training(block, [True] * 4, touched_rows=False)}
    model.training = False
    model(block).square().sum().backward()
    assert bool((leaves["body.convs.1.direction"].grad.abs().amax(1) > 1e-8).all())


def test_nodes_are_weighted_by_their_distance_on_the_line():
    h, direction = torch.tensor([[3.0, 0.0], [0.0, 4.0], [1.0, 1.0]]), torch.tensor([2.0, 1.0])
    s = [6 / 4, 4 / 4, 3 / 4]
    for i, row in enumerate(smoothed(h, direction, 0.5)):
        weights = [math.exp(-((s[i] - each) ** 2) / 0.25) for each in s]
        due = sum(weight * each for weight, each in zip(weights, h, strict=True)) / sum(weights)
        torch.testing.assert_close(row, due)
    assert torch.equal(smoothed(torch.zeros(2, 3), torch.ones(3), 1.0), torch.zeros(2, 3))


def kernel_means(h, direction, bandwidth):
    """The means as written, over all pairs."""
    s = h @ direction / h.norm(dim=1).max()
    kernel = (-((s.unsqueeze(1) - s.unsqueeze(0)) ** 2) / bandwidth**2).exp()
    return kernel @ h / kernel.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(("length", "bandwidth"), [(0.1, 1.0), (1.0, 1.0), (1.0, 3.0), (1.5, 0.5), (40.0, 1.0)])
def test_many_nodes_are_smoothed_as_by_their_pairs(length, bandwidth, monkeypatch):
    """The series, and the kernel itself where the line is too long for it, are as exact as single precision."""
    torch.manual_seed(0)
    h = torch.randn(1200, 16).relu()
    h[0] = 0.0
    h[0, 0] = 40.0  # far from all others on the line
    direction, weights = length * torch.randn(16), torch.randn(1200, 16)
    series, count = [], projected.smoothed_by_waves
    monkeypatch.setattr(projected, "smoothed_by_waves", lambda *given: series.append(given[3]) or count(*given))
    found = []
    for means, kind in ((smoothed, torch.float32), (kernel_means, torch.float64)):
        leaves = [each.detach().clone().to(kind).requires_grad_() for each in (h, direction)]
        out = means(*leaves, bandwidth)
        (out * weights).sum().backward()
        found.append([out.detach(), *(leaf.grad for leaf in leaves)])
    assert bool(series) == (length < 40)
    for ours, due in zip(*found, strict=True):
        torch.testing.assert_close(ours, due.float(), rtol=1e-4, atol=2e-6 * float(due.abs().max()))


def test_numbers_that_diverged_stay_no_numbers():
    h = torch.randn(500, 4)
    h[3, 2] = math.nan
    assert bool(smoothed(h, torch.ones(4), 1.0).isnan().any())


def test_it_uses_edge_weights_where_the_model_does():
    assert uses_edge_weights(Projected(built("gcn", {}), 1.0))
    assert not uses_edge_weights(Projected(built("sage", {}), 1.0))


def test_models_without_embeddings_or_widths_are_refused():
    with pytest.raises(IsthmusError, match="has no embedding before its head"):
        Projected(built("sgc", {}), 1.0)

    class Nameless(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(FEATURES, CLASSES), nn.Identity()

        def forward(self, x, edge_index):
            return self.head(self.first(x))

    with pytest.raises(IsthmusError, match="head Identity does not say how wide it is"):
        Projected(Nameless(), 1.0)
