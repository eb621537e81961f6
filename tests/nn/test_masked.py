"""Masked layers multiply their weights by a mask, the same for a party alone and side by side."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from helpers import CLASSES, FEATURES, STEADY, assert_law, make_parties
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder
from isthmus.nn.masked import MASK, masked
from isthmus.nn.weights import draw_weights, initial_weights

ENCODERS = [("gcn", {}), ("sage", {}), ("gin", {"norm": True}), ("gat", {}), ("cheb", {}), ("tag", {}), ("gamlp", {})]


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("name", "options"), ENCODERS, ids=[name for name, _ in ENCODERS])
@pytest.mark.thinned(10)
def test_a_cohort_gives_what_its_parties_give_alone(name, options, sparse, level):
    torch.manual_seed(0)
    module = Encoder.named(name)(hidden=8, **options).build(FEATURES, CLASSES, level)
    parties = make_parties(level, sparse=sparse)
    model = assert_law(masked(module, 0.3), parties, STEADY if options else LocalTraining(optimizer="adam", epochs=5))
    assert model.side_by_side


@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 3), gnn.Linear(4, 3, weight_initializer="glorot"), nn.Linear(4, 3, bias=False)]
)
def test_the_weight_is_multiplied_and_small_entries_of_the_mask_count_only_in_training(layer):
    x, own = torch.rand(5, 4), masked(layer, threshold=0.5)
    assert torch.equal(own(x), layer(x))
    with torch.no_grad():
        own.mask.copy_(torch.tensor([[0.4, -0.4, 0.5, -2.0]] * 3))
    assert torch.allclose(own.train()(x), F.linear(x, layer.weight * own.mask, layer.bias))
    seen = own.mask * torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert torch.allclose(own.eval()(x), F.linear(x, layer.weight * seen, layer.bias))
    assert not hasattr(layer, "mask")


def test_every_linear_layer_and_no_bias_has_a_mask():
    module = masked(Encoder.named("gin")(hidden=8, norm=True).build(FEATURES, CLASSES, "graph"))
    names = [name.removesuffix(MASK) for name in initial_weights(module) if name.endswith(MASK)]
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | gnn.Linear)]
    assert names == linear
    assert len(names) == 5


def test_new_initial_weights_are_those_of_the_layers_and_masks_are_one_again():
    module = Encoder.named("gcn")(hidden=8).build(FEATURES, CLASSES, "node")
    due, own = draw_weights(module, 5), masked(module)
    with torch.no_grad():
        own.convs[0].lin.mask.fill_(3.0)
    found = draw_weights(own, 5)
    for name, weight in found.items():
        assert torch.equal(weight, torch.ones_like(weight) if name.endswith(MASK) else due[name])
