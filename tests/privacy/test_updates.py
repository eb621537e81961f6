"""What leaves a party has a bounded norm whatever it learned, and a sum has the noise that the account says."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant

from isthmus.errors import IsthmusError
from isthmus.privacy.mechanisms import gaussian_delta
from isthmus.privacy.options import PartyPrivacy
from isthmus.privacy.random_bits import SecretBits, SeededBits
from isthmus.privacy.sampling import discrete_gaussian
from isthmus.privacy.updates import FAR, STEPS, TAIL, PartyPlan, largest_square


def plan(epsilon=8.0, times=10, **options):
    return PartyPlan.of(PartyPrivacy(epsilon=epsilon, **options), times)


def halves(size):
    """Every number between two steps: rounding adds as much as it can."""
    return (np.arange(size) + 0.5) / np.linalg.norm(np.arange(size) + 0.5)


@pytest.mark.parametrize("clip", [0.01, 1.0, 300.0])
def test_no_update_leaves_with_a_larger_norm_than_the_account_says(clip):
    draw = np.random.default_rng(0)
    hostile = [
        np.full(50, 1e300), np.full(7, 1e-300), np.eye(1, 9)[0] * clip, -np.eye(1, 9)[0] * clip * 1e30, np.zeros(3),
        halves(3) * clip, halves(1000) * clip * 5, np.full(100_000, clip / math.sqrt(100_000)),
        draw.normal(size=200_000),
    ]  # fmt: skip
    for at, update in enumerate(hostile):
        found = plan(clip=clip).clipped(update, SeededBits(at))
        assert found.dtype == np.int64
        assert sum(int(step) ** 2 for step in found) <= largest_square(len(update))
    for wrong in (math.nan, math.inf):
        with pytest.raises(IsthmusError, match="not finite"):
            plan(clip=clip).clipped(np.array([1.0, wrong]), SeededBits(0))


def test_rounding_that_is_always_unlucky_ends_within_the_bound():
    class AlwaysUp:
        def words(self, count):
            return np.zeros(count, np.uint64)

    update = np.full(10_000, 0.011)
    assert int((plan().clipped(update, AlwaysUp()) ** 2).sum()) <= largest_square(len(update))


def test_what_is_smaller_than_the_clip_is_only_rounded_and_right_in_the_mean():
    update, told = np.array([0.3, -0.2, 1e-7, 0.0]), plan(clip=1.0)
    found = np.stack([told.clipped(update, SeededBits(seed)) for seed in range(4000)])
    assert np.abs(found - update * STEPS).max() < 1
    assert np.abs(found.mean(0) - update * STEPS).max() < 5 * 0.5 / math.sqrt(4000)
    large = plan(clip=0.1).clipped(update, SeededBits(0)) * plan(clip=0.1).grid
    assert np.abs(large - update * 0.1 / np.linalg.norm(update)).max() < 2e-7


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_a_sum_has_the_noise_of_the_account_also_with_dropped_parties(dropped):
    parties, size = 6, 30_000
    told = plan(dropouts=2)
    whole = sum(told.share(size, parties, SecretBits(bytes(31) + bytes([at]))) for at in range(parties - dropped))
    claimed = told.multiplier**2 * largest_square(size)
    assert whole.var() / claimed == pytest.approx((parties - dropped) / 4, rel=0.04)
    assert whole.var() > claimed * 0.96
    assert abs(whole.mean()) < 5 * math.sqrt(whole.var() / size)


def test_epsilon_is_that_of_dp_accounting_for_all_sums_of_a_run():
    for epsilon, times in ((1.0, 5), (8.0, 100)):
        told = plan(epsilon, times)
        library = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        library.compose(dp_event.GaussianDpEvent(told.multiplier), times)
        slack = times * FAR / (STEPS * told.multiplier**2)
        assert library.get_epsilon(1e-5) + slack == pytest.approx(epsilon, rel=2e-3)
        assert told.account(times).cost(1e-5).epsilon == pytest.approx(epsilon, rel=1e-6)
        assert told.account(1).cost(1e-5).epsilon < epsilon
        assert slack < 1e-3 * epsilon


@pytest.mark.parametrize("change", [(5, 0), (3, 4), (1, 1), (24, 7)])
def test_discrete_noise_costs_no_more_than_continuous_noise_with_the_slack(change):
    """The delta of discrete Gaussian noise in two dimensions, added up over all outcomes."""
    deviation, a = 5.0, np.array(change)
    x = np.stack(np.meshgrid(*[np.arange(-60, 61)] * 2, indexing="ij"), -1).reshape(-1, 2)
    chance = np.exp(-(x**2).sum(1) / (2 * deviation**2))
    chance /= chance.sum()
    loss = (2 * x @ a + a @ a) / (2 * deviation**2)  # of x + a, against x
    length = math.sqrt(a @ a)
    for epsilon in (0.01, 0.1, 0.5, 1.0, 3.0):
        found = float((chance * -np.expm1(np.minimum(epsilon - loss, 0))).sum())
        assert found <= gaussian_delta(deviation / length, epsilon - FAR * length / deviation**2) + TAIL
        assert found == pytest.approx(gaussian_delta(deviation / length, epsilon), rel=0.1, abs=1e-6)


def test_a_sum_of_shares_is_as_good_as_one_discrete_gaussian():
    """With the least share that is allowed, no probability differs: the factor of theorem 11 is 1 to the last digit."""
    each = np.exp(-(np.arange(-60, 61) ** 2) / 32.0)
    whole = np.convolve(np.convolve(each, each), each)
    due = np.exp(-(np.arange(-180, 181) ** 2) / 96.0)
    inner = slice(120, 241)
    assert np.abs(whole[inner] / whole.sum() / (due[inner] / due.sum()) - 1).max() < 1e-9


def test_too_few_parties_and_too_little_noise_are_refused():
    with pytest.raises(IsthmusError, match="a sum over 2 parties of which 2 may add no noise has none"):
        plan(dropouts=2).share(5, 2, SeededBits(0))
    with pytest.raises(IsthmusError, match="leaves so little noise that the grid shows"):
        plan(1e9, 1).share(5, 40, SeededBits(0))


def test_shares_are_whole_numbers_of_their_own_stream():
    told = plan()
    one, other = (told.share(1000, 4, SecretBits(bytes(31) + bytes([at]))) for at in (0, 1))
    assert one.dtype == np.int64
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15
    variance = told.variance(1000, 4)
    assert isinstance(variance, Fraction)
    assert np.array_equal(one, discrete_gaussian(variance, 1000, SecretBits(bytes(32))))
