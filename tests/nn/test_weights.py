import pytest
import torch
from torch import nn
from torch_geometric import nn as gnn

from helpers import CLASSES, FEATURES
from isthmus.errors import IsthmusError
from isthmus.nn.decoupled import LightGcn, Sgc
from isthmus.nn.encoders import Gcn, Gin
from isthmus.nn.weights import body_weights, draw_weights, head_of, head_weights, initial_weights


@pytest.mark.parametrize(
    ("encoder", "level", "head"),
    [
        (Gcn(layers=3), "node", "convs.2"),
        (Gin(), "graph", "head"),
        (LightGcn(), "node", "head"),
        (Sgc(), "node", ""),
    ],
)
def test_head_and_body_divide_the_weights_of_a_model(encoder, level, head):
    module = encoder.build(FEATURES, CLASSES, level)
    assert head_of(module) == head
    assert set(head_weights(module)) == {n for n in initial_weights(module) if n.startswith(f"{head}.") or not head}
    assert set(head_weights(module)) | set(body_weights(module)) == initial_weights(module).keys()
    assert not set(head_weights(module)) & set(body_weights(module))


def test_a_model_that_names_no_head_says_how_to():
    with pytest.raises(IsthmusError, match=r"model GCN names no head: set `head = .*` in its class \(.*convs\.1"):
        head_of(gnn.GCN(4, 8, 2, 3))


def test_a_model_that_names_a_head_which_it_does_not_have_says_so():
    module = gnn.GCN(4, 8, 2, 3)
    module.head = "lin2"
    with pytest.raises(IsthmusError, match=r"model GCN names as its head 'lin2', which it does not have: set") as error:
        head_weights(module)
    assert "\n" not in str(error.value)


def test_running_statistics_travel_and_counters_do_not():
    assert set(initial_weights(nn.BatchNorm1d(3))) == {"weight", "bias", "running_mean", "running_var"}


def test_redrawn_weights_follow_their_seed_and_leave_the_model_alone():
    module = Gcn().build(FEATURES, CLASSES, "node")
    before = {name: weight.clone() for name, weight in initial_weights(module).items()}
    state = torch.get_rng_state()
    one, same, other = (draw_weights(module, seed)["convs.0.lin.weight"] for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert all(torch.equal(weight, before[name]) for name, weight in initial_weights(module).items())
    assert torch.equal(torch.get_rng_state(), state)
