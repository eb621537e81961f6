"""Differences between methods are paired over seeds, and a lead that may be luck is not called one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from isthmus.paired import alone_is_best, difference


def test_the_difference_is_the_paired_one() -> None:
    draw = np.random.default_rng(0)
    best, other = draw.normal(0.8, 0.05, 8), draw.normal(0.78, 0.05, 8)
    found = difference(dict(enumerate(best)), dict(enumerate(other)))
    assert found is not None
    due = stats.ttest_rel(best, other)
    assert (found.seeds, found.p) == (8, pytest.approx(due.pvalue))
    assert found.mean == pytest.approx(float((best - other).mean()))
    gains = best - other
    half = stats.t.ppf(0.975, 7) * gains.std(ddof=1) / np.sqrt(8)  # the interval by hand
    assert (found.low, found.high) == pytest.approx((gains.mean() - half, gains.mean() + half))


def test_only_seeds_that_both_have_count_and_three_are_needed() -> None:
    best = {0: 1.0, 1: 2.0, 2: 4.0, 9: 100.0}
    found = difference(best, {0: 0.5, 1: 1.0, 2: 1.0, 5: 7.0})
    assert found is not None
    assert (found.seeds, found.mean) == (3, 1.5)
    assert difference(best, {0: 0.5, 1: 1.0}) is None


def test_of_losses_the_smaller_is_better() -> None:
    found = difference({0: 1.0, 1: 1.1, 2: 1.3}, {0: 2.0, 1: 2.0, 2: 2.0}, smaller=True)
    assert found is not None
    assert found.mean > 0


def test_differences_that_do_not_vary_need_no_test() -> None:
    same = difference({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert same is not None
    assert (same.mean, same.p) == (0.0, None)
    near = difference({0: 0.8, 1: 0.7, 2: 0.6}, {0: 0.7, 1: 0.6, 2: 0.5})  # but for rounding the same
    assert near is not None
    assert near.p is None


def test_only_a_lead_that_is_more_than_luck_says_that_parties_gain_nothing() -> None:
    clear = difference({0: 0.9, 1: 0.91, 2: 0.89}, {0: 0.6, 1: 0.62, 2: 0.61})
    luck = difference({0: 0.52, 1: 0.53, 2: 0.54}, {0: 0.51, 1: 0.55, 2: 0.50})
    same = difference({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: 0.7, 2: 0.6})
    texts = [alone_is_best("local", {}, lead) for lead in (clear, luck, None, same)]
    assert ["gain nothing together" in text for text in texts] == [True, False, True, True]
    assert "may be luck (paired over 3 seeds, p = " in texts[1]
    assert texts[2].endswith("do not show that parties gain nothing together: give --seeds 3")
