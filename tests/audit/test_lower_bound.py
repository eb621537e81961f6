"""Lower bounds of epsilon, against the theorem as printed and against a mechanism whose epsilon is known."""

import math
from fractions import Fraction

import numpy as np
import pytest

from isthmus.audit.lower_bound import SHARES, Played, chance, lower_bound, refuted


def as_printed(m, r, v, q, delta):
    """Theorem 5.2 of Steinke, Nasr and Jagielski (2023), with q = e^eps / (e^eps + 1)."""

    def at(low, high):  # P[high > W >= low]
        return sum(math.comb(r, j) * q**j * (1 - q) ** (r - j) for j in range(max(low, 0), high))

    return at(v, r + 1) + delta * m * max(Fraction(2, i) * at(v - i, v) for i in range(1, m + 1))


@pytest.mark.parametrize(("m", "r", "v"), [(20, 20, 14), (30, 12, 12), (25, 10, 3), (12, 6, 0)])
@pytest.mark.parametrize("delta", [0, Fraction(1, 1000)])
def test_the_probability_is_that_of_the_theorem(m, r, v, delta):
    q = Fraction(7, 10)
    found = chance(m, r, v, math.log(q / (1 - q)), float(delta))
    assert found == pytest.approx(min(1.0, float(as_printed(m, r, v, q, delta))), rel=1e-9)


def test_guesses_that_are_all_right_have_a_bound_in_closed_form():
    rate = 0.01 ** (1 / 500)
    assert refuted(1000, 500, 500, 0.0, 0.01) == pytest.approx(math.log(rate / (1 - rate)), abs=1e-5)
    assert refuted(1000, 500, 500, 1e-3, 0.01) < refuted(1000, 500, 500, 1e-5, 0.01)
    assert refuted(1000, 500, 250, 0.0, 0.01) == 0.0


def test_the_bound_is_seldom_above_the_epsilon_of_randomised_response():
    source, above, sizes = np.random.default_rng(0), 0, []
    for _ in range(200):
        inside = source.random(300) < 0.5
        true = source.random(300) < 1 / (1 + math.exp(-1.0))
        found = lower_bound(Played((inside == true) + source.random(300) / 10, inside), 0.0).epsilon
        above, sizes = above + (found > 1.0), [*sizes, found]
    assert above <= 0.05 * 200
    assert 0.5 < np.median(sizes) < 1.0


def test_the_most_certain_canaries_are_guessed_about():
    inside = np.where(np.arange(1000) < 100, np.arange(1000) % 2 == 0, np.random.default_rng(1).random(1000) < 0.5)
    scores = np.where(np.arange(1000) < 100, np.where(inside, 5.0, -5.0), 0.0)  # a tenth gives itself away
    found = lower_bound(Played(scores, inside), 1e-5)
    assert (found.guesses, found.right) == (100, 100)
    assert found.epsilon == found.most == pytest.approx(refuted(1000, 100, 100, 1e-5, 0.05 / len(SHARES)))
