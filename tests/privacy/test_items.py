"""Sums of clipped gradients: what noise they have, which items they are of, and what they cost."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from isthmus.privacy.items import STEPS, WITHIN, ItemPlan
from isthmus.privacy.options import ItemPrivacy
from isthmus.privacy.random_bits import SeededBits


def plan(**options):
    return ItemPlan.of(ItemPrivacy(**{"epsilon": 5.0, **options}), 2, 3)


def test_gradients_are_clipped_over_all_weights_together():
    found = plan(clip=0.5)
    gradients = [torch.tensor([[3.0, 0.0], [0.1, 0.0], [math.nan, 1.0]]), torch.tensor([[[4.0]], [[0.2]], [[1.0]]])]
    a, b = found.clipped(gradients)
    assert torch.allclose(a[:2] * found.grid, torch.tensor([[0.3, 0.0], [0.1, 0.0]], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(b[:2] * found.grid, torch.tensor([[[0.4]], [[0.2]]], dtype=torch.float64), atol=1e-6)
    assert not bool(a[2].any() or b[2].any())  # not finite: as if there was nothing to learn from it
    assert all(torch.equal(each, each.round()) for each in (a, b))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_no_norm_is_larger_than_the_account_says(scale):
    gradients = torch.randn(20, 5000, generator=torch.Generator().manual_seed(0)) * scale
    (whole,) = plan(clip=1e-3).clipped([gradients])
    squares = [sum(int(value) ** 2 for value in item) for item in whole.long().tolist()]
    assert max(squares) <= STEPS**2
    if scale > 1e-20:
        assert min(squares) > (STEPS * WITHIN * (1 - 1e-6)) ** 2


def test_the_noise_is_that_of_the_account():
    found, sums = plan(clip=0.5, rate=0.25), np.full(20_000, 7 * STEPS)
    noisy = found.noisy(sums, 8, SeededBits(0))
    expected = found.multiplier * 0.5 / (0.25 * 8)
    assert float(noisy.std()) == pytest.approx(expected, rel=0.02)
    assert float(noisy.mean()) == pytest.approx(7 * 0.5 / (0.25 * 8), abs=4 * expected / math.sqrt(20_000))
    steps = noisy * 2 / found.grid
    assert torch.equal(steps, steps.round())  # on the grid, whatever the gradients were


def test_items_are_sampled_independently_at_the_rate():
    found, bits = plan(rate=0.3), SeededBits(1)
    drawn = np.stack([found.sample(50, bits) for _ in range(2000)])
    assert drawn.mean() == pytest.approx(0.3, abs=0.006)
    assert drawn.sum(1).var() == pytest.approx(50 * 0.3 * 0.7, rel=0.1)  # of another law the size varies less
    assert plan().sample(50, bits).all()


def test_the_account_is_that_of_dp_accounting():
    found = plan(rate=0.3)
    assert found.steps == 4
    spent = found.account(2).cost(1e-5, "item").epsilon
    assert 4.9 < spent <= 5.0
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    step = PoissonSampledDpEvent(0.3, GaussianDpEvent(found.multiplier))
    accountant.compose(SelfComposedDpEvent(step, 2 * 3 * 4))
    assert spent == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert found.account(1).cost(1e-5, "item").epsilon < 0.9 * spent
