"""A head that reads smoothed embeddings gives the same for a party alone and side by side."""

import math

import pytest
import torch
from torch import nn

from helpers import CLASSES, FEATURES, STEADY, assert_law, make_node_parties
from isthmus.data.party import Cohort
from isthmus.errors import IsthmusError
from isthmus.methods.training import LocalTraining
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
@pytest.mark.thinned(3)
def test_a_cohort_gives_what_its_parties_give_alone(name, options, sparse):
    module = Projected(built(name, options), 0.5)
    steady = STEADY if "norm" in options else LocalTraining(optimizer="adam", epochs=5)
    model = assert_law(module, make_node_parties(sparse=sparse, weighted=True), steady)
    assert model.side_by_side
    assert isinstance(module.get_submodule(head_of(module)), SmoothedHead)


def test_a_party_has_the_same_bits_in_every_cohort():
    parties = make_node_parties((23, 40, 5, 131, 29))
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
