"""Optimisers of many parties side by side, and of a server, step as those of torch do."""

import pytest
import torch
from optimisers import OPTIMISERS
from torch import nn

from isthmus.methods.optimizer import Optimizer, PartyOptimizer, server_step
from isthmus.nn.per_party import Leaf

pytestmark = pytest.mark.usefixtures("double_precision")
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def of_torch(options, values):
    momentum = {"momentum": options.momentum} if options.optimizer == "sgd" else {}
    return KINDS[options.optimizer](values, lr=options.lr, weight_decay=options.weight_decay, **momentum)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(
    "pattern",
    [
        ["111", "111", "111", "111"],
        ["111", "110", "100", "111", "110", "111"],
        ["111", "100", "100", "111", "001", "111"],
        ["011", "110", "101", "010"],
    ],
    ids=["always", "fewer-and-fewer", "one-far-ahead", "never-all"],
)
def test_a_step_moves_the_active_parties_alone_and_counts_for_each(pattern, optimiser):
    options = Optimizer(**OPTIMISERS[optimiser])
    source = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 4, 2, generator=source), torch.randn(3, 5, generator=source)]
    leaves = [Leaf(str(at), value.clone().requires_grad_(), (1, 1, 1)) for at, value in enumerate(start)]
    plain = [[nn.Parameter(value[at].clone()) for value in start] for at in range(3)]
    optimisers = [of_torch(options, values) for values in plain]
    mine = PartyOptimizer(options, leaves)
    for active in pattern:
        on = [mark == "1" for mark in active]
        for which, leaf in enumerate(leaves):
            leaf.tensor.grad = torch.randn(leaf.tensor.shape, generator=source)
            for at in range(3):
                plain[at][which].grad = leaf.tensor.grad[at].clone()
        mine.step(on)
        for each, moves in zip(optimisers, on, strict=True):
            if moves:
                each.step()
    for which, leaf in enumerate(leaves):
        assert leaf.tensor.grad is None
        due = torch.stack([values[which].detach() for values in plain])
        torch.testing.assert_close(leaf.tensor.detach(), due, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_server_steps_as_torch_does_and_changes_nothing_that_it_is_given(optimiser):
    options, source = Optimizer(**OPTIMISERS[optimiser]), torch.Generator().manual_seed(0)
    start = {"trained": torch.randn(4, 2, generator=source), "statistic": torch.randn(3, generator=source)}
    plain = nn.Parameter(start["trained"].clone())
    due = of_torch(options, [plain])
    weights = dict(start)
    first = second = {"trained": torch.zeros(4, 2)}
    for step in (1, 2, 3):
        gradient = torch.randn(4, 2, generator=source)
        before = weights["trained"].clone()
        stepped, first, second = server_step(options, step, weights, {"trained": gradient}, first, second)
        assert torch.equal(weights["trained"], before)
        weights, plain.grad = stepped, gradient
        due.step()
        torch.testing.assert_close(weights["trained"], plain.detach(), rtol=1e-9, atol=1e-9)
    assert torch.equal(weights["statistic"], start["statistic"])
