"""What is released tells of a bit no more than is promised, measured on many releases."""

import math

import pytest
import torch
from scipy.stats import kstest, laplace, norm

from isthmus.privacy.mechanisms import GRID, WIDER, Gaussian, Laplace, Mechanism, RandomizedResponse, gaussian_delta
from isthmus.privacy.random_bits import SeededBits

MANY = 400_000
EPSILONS = (0.01, 0.1, 1.0, 3.0, 100.0)


def released(mechanism, bit, seed=0, count=MANY):
    return mechanism.release(torch.full((count,), float(bit), dtype=torch.float64), SeededBits(seed))


def log_odds(mechanism, edges):
    """Of every bin with enough draws: the log of how much likelier it is with the one bit than with the other."""
    zero, one = (torch.histogram(released(mechanism, bit, bit + 1), edges).hist for bit in (0, 1))
    enough = (zero > 500) & (one > 500)
    assert enough.sum() >= 2
    error = 4 * (1 / zero[enough] + 1 / one[enough]).sqrt()
    return (one[enough] / zero[enough]).log(), error


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_laplaces_log_odds_stay_within_epsilon(epsilon):
    found, error = log_odds(Laplace(epsilon=epsilon), torch.linspace(-3, 4, 71, dtype=torch.float64))
    assert (found.abs() <= epsilon + error).all()
    assert found.max() >= epsilon - error.max()  # and use it up: less noise would not do
    assert found.min() <= -epsilon + error.max()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomized_responses_log_odds_are_epsilon(epsilon):
    mechanism = RandomizedResponse(epsilon=epsilon)
    assert set(released(mechanism, 1).unique().tolist()) == {0.0, 1.0}
    found, error = log_odds(mechanism, torch.tensor([-0.5, 0.5, 1.5], dtype=torch.float64))
    assert torch.allclose(found, torch.tensor([-epsilon, epsilon], dtype=torch.float64), atol=float(error.max()))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_noise_is_of_its_distribution(epsilon):
    assert kstest(released(Laplace(epsilon=epsilon), 1, count=20_000), laplace(1, 1 / epsilon).cdf).pvalue > 1e-4
    normal = Gaussian(epsilon=epsilon)
    assert kstest(released(normal, 0, count=20_000), norm(0, normal.sigma).cdf).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_the_normal_noise_is_as_little_as_its_cost_allows(epsilon, delta):
    sigma = Gaussian(epsilon=epsilon, delta=delta).sigma
    assert gaussian_delta(sigma, epsilon) == pytest.approx(delta, rel=1e-4)
    # theorem 8 is the worst event's probability beyond exp(epsilon) times the other's: the half line where it begins
    edge = sigma**2 * epsilon + 0.5
    due = norm(1, sigma).sf(edge) - math.exp(min(epsilon + norm(0, sigma).logsf(edge), 0))
    assert due == pytest.approx(delta, rel=1e-3)


def test_it_takes_less_than_the_classic_bound():
    for epsilon in (0.1, 0.5, 1.0):
        assert Gaussian(epsilon=epsilon, delta=1e-5).sigma < math.sqrt(2 * math.log(1.25e5)) / epsilon


@pytest.mark.parametrize("name", ["laplace", "gaussian", "randomized-response"])
def test_every_bit_has_noise_of_its_own_that_the_generator_decides(name):
    mechanism = Mechanism.named(name)(epsilon=0.5)
    bits = torch.zeros(1000)
    one, again, other = (mechanism.release(bits, SeededBits(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.dtype == bits.dtype
    assert (bits == 0).all()
    if name != "randomized-response":
        assert one.unique().numel() > 990
    assert mechanism.cost.epsilon == 0.5
    assert (mechanism.cost.delta > 0) == (name == "gaussian")


@pytest.mark.parametrize("name", ["laplace", "gaussian"])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_digits_tell_nothing(name, epsilon, dtype):
    """Sums with floating point noise have digits near 0 that no sum with a 1 has (Mironov 2012)."""
    mechanism, found = Mechanism.named(name)(epsilon=epsilon), []
    for bit in (0, 1):
        values = mechanism.release(torch.full((MANY,), float(bit), dtype=dtype), SeededBits(bit)).double()
        small = values[values.abs() < 0.5]
        found.append((small * 2**24 != (small * 2**24).round()).double().mean())
    assert found == [0.0, 0.0]


def test_extreme_budgets_are_released():
    bits = torch.ones(10)
    for epsilon in (1e-6, 1e6):
        for name in ("laplace", "gaussian", "randomized-response"):
            assert Mechanism.named(name)(epsilon=epsilon).release(bits, SeededBits(0)).isfinite().all()


@pytest.mark.parametrize("kind", [Laplace, Gaussian, RandomizedResponse], ids=lambda one: one.name)
def test_unbiased_estimates_have_the_bits_as_expectations(kind):
    mechanism = kind(epsilon=1.0)
    for bit in (0.0, 1.0):
        values = mechanism.release(torch.full((200_000,), bit), SeededBits(int(bit)))
        assert float(mechanism.unbiased(values).mean()) == pytest.approx(bit, abs=0.05)


@pytest.mark.parametrize("epsilon", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-8, 1e-3])
def test_the_discrete_gaussian_keeps_the_delta_of_the_continuous_one(epsilon, delta):
    """Its delta, added up over the grid, from where the event begins that is likelier than epsilon allows."""
    steps = Gaussian(epsilon=epsilon, delta=delta).sigma * WIDER * GRID
    edge = math.ceil(steps**2 * epsilon / GRID + GRID / 2)
    x = torch.arange(edge, edge + round(9 * steps) + 1, dtype=torch.float64)
    density = torch.exp(-(((x - GRID) / steps) ** 2) / 2) / (steps * math.sqrt(2 * math.pi))
    excess = -torch.expm1(epsilon - (2 * x * GRID - GRID**2) / (2 * steps**2))
    assert 0.98 * delta < float((density * excess).sum()) <= delta
