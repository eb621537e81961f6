"""Exact samples: against a sampler that is written as the paper's algorithms, with fractions, and its probabilities."""

import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from isthmus.privacy import sampling
from isthmus.privacy.random_bits import SecretBits, SeededBits
from isthmus.privacy.sampling import bernoulli, discrete_gaussian, discrete_laplace, rate_below

# ---- Canonne, Kamath and Steinke 2020, algorithms 1 to 3, one number at a time


class AsWritten:
    def __init__(self, seed):
        self.draw = random.Random(seed)

    def bernoulli(self, p):
        return self.draw.randrange(p.denominator) < p.numerator

    def bernoulli_exp(self, gamma):
        if gamma <= 1:
            k = 1
            while self.bernoulli(gamma / k):
                k += 1
            return k % 2 == 1
        whole = int(gamma)
        return all(self.bernoulli_exp(Fraction(1)) for _ in range(whole)) and self.bernoulli_exp(gamma - whole)

    def laplace(self, s, t):
        while True:
            u = self.draw.randrange(t)
            if not self.bernoulli_exp(Fraction(u, t)):
                continue
            v = 0
            while self.bernoulli_exp(Fraction(1)):
                v += 1
            y, negative = (u + t * v) // s, self.draw.randrange(2)
            if not (negative and y == 0):
                return -y if negative else y

    def gaussian(self, variance):
        t = int(float(variance) ** 0.5) + 1
        while True:
            y = self.laplace(1, t)
            if self.bernoulli_exp((abs(y) - variance / t) ** 2 / (2 * variance)):
                return y


def probabilities(weight, span):
    """Of the whole numbers from -span to span, by their weights."""
    found = np.array([weight(abs(x)) for x in range(-span, span + 1)])
    return found / found.sum()


def fits(drawn, due):
    """Whether draws have these probabilities, by a chi-square test of numbers with enough draws."""
    span = len(due) // 2
    found = np.bincount(np.clip(drawn, -span, span) + span, minlength=len(due))
    enough = due * len(drawn) > 20
    rest = (found[~enough].sum(), due[~enough].sum())
    return chisquare([*found[enough], rest[0] + 1e-9], np.array([*due[enough], rest[1]]) * (len(drawn) + 1e-9)).pvalue


RATES = [Fraction(1, 7), Fraction(3, 5), rate_below(0.37), Fraction(5, 2)]
VARIANCES = [Fraction(1, 4), Fraction(3), Fraction(2.7) ** 2, Fraction(50)]


@pytest.mark.parametrize("rate", RATES, ids=float)
def test_laplace_has_the_exact_probabilities(rate):
    drawn = discrete_laplace(rate, 200_000, SeededBits(float(rate)))
    due = probabilities(lambda x: np.exp(-float(rate) * x), 60)
    assert fits(drawn, due) > 1e-3
    slow = AsWritten(0)
    assert fits(np.array([slow.laplace(rate.numerator, rate.denominator) for _ in range(3000)]), due) > 1e-3


@pytest.mark.parametrize("variance", VARIANCES, ids=float)
def test_gaussian_has_the_exact_probabilities(variance):
    drawn = discrete_gaussian(variance, 200_000, SecretBits(bytes(31) + b"1"))
    due = probabilities(lambda x: np.exp(-(x**2) / float(2 * variance)), 60)
    assert fits(drawn, due) > 1e-3
    slow = AsWritten(0)
    assert fits(np.array([slow.gaussian(variance) for _ in range(2000)]), due) > 1e-3
    assert fits(drawn, probabilities(lambda x: np.exp(-(x**2) / float(1.1 * 2 * variance)), 60)) < 1e-6


@pytest.mark.parametrize("scale", [2**20, 2**40], ids=["2^20", "2^40"])
def test_wide_noise_has_the_claimed_moments(scale):
    normal = discrete_gaussian(Fraction(scale) ** 2, 100_000, SeededBits(scale)) / scale
    assert abs(normal.mean()) < 0.015
    assert normal.var() == pytest.approx(1, abs=0.02)
    assert (normal**4).mean() == pytest.approx(3, abs=0.2)
    laplace = discrete_laplace(rate_below(1 / scale), 100_000, SeededBits(scale)) / scale
    assert np.abs(laplace).mean() == pytest.approx(1, abs=0.015)
    assert laplace.var() == pytest.approx(2, abs=0.06)
    for drawn in (normal, laplace):  # every residue modulo a small number: no step is out of reach
        assert chisquare(np.bincount((drawn * scale).astype(np.int64) % 8, minlength=8)).pvalue > 1e-4


def test_digits_are_added_where_the_first_bits_do_not_decide(monkeypatch):
    """With a wide slack exact arithmetic decides; from the same first bits it decides the same."""
    usual = bernoulli(0.25, lambda digits: Decimal(1) / 4, 3000, SeededBits(1))
    settled = []
    monkeypatch.setattr(sampling, "SLACK", 0.2)
    exact = sampling._settled
    monkeypatch.setattr(sampling, "_settled", lambda *given: settled.append(given) or exact(*given))
    assert np.array_equal(bernoulli(0.25, lambda digits: Decimal(1) / 4, 3000, SeededBits(1)), usual)
    assert len(settled) > 100
    drawn = discrete_gaussian(Fraction(9), 4000, SeededBits(2))
    assert fits(drawn, probabilities(lambda x: np.exp(-(x**2) / 18), 30)) > 1e-3


def test_a_tie_of_the_first_64_bits_is_broken_by_more():
    class Next:
        def __init__(self, word):
            self.word = word

        def words(self, count):
            return np.full(count, self.word, np.uint64)

    def third(digits):
        return sampling._exp(Fraction(-2), digits)

    first = int(sampling.Fraction(third(60)) * 2**64)  # the first 64 bits of the probability itself
    assert sampling._settled(first, third, Next(0))
    assert not sampling._settled(first, third, Next(2**64 - 1))


@pytest.mark.parametrize("rate", [1e-12, 3e-7, 0.1, 0.6, 0.95, 3.0, 1e6])
def test_rates_are_rounded_down_by_little(rate):
    found = rate_below(rate)
    assert Fraction(rate) * (1 - Fraction(1, 10**6)) <= found <= Fraction(rate)
    assert discrete_laplace(found, 1000, SeededBits(0)).astype(float).std() < 100 / rate + 1
