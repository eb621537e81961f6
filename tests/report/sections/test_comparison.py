"""Differences between methods are told seed by seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from result_folders import Build, Page, write_folder
from scipy import stats

from isthmus.report.differences import difference
from isthmus.report.report import write_report


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return partial(write_folder, tmp_path)


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


def test_the_report_sets_the_best_against_the_others(build: Build) -> None:
    def vary(parts: dict[str, Any]) -> None:
        for run in parts["results"]["runs"]:
            run["metrics"]["test_accuracy"] += 0.001 * run["seed"] * (run["method"] == "fedavg")

    page = Page(write_report([build(change=vary)]))
    assert "Is the lead more than luck?" in page.text
    compared = [row[0] for row in page.rows if len(row) == 5 and row[-1] == "3"]
    assert compared == ["centralized", "fedavg", "local"]
    assert "Gain of fedsage" in page.text
    assert "not corrected for 3 comparisons" in page.text
    few = Page(write_report([build("few", seeds=(0, 1))]))
    assert "That takes 3 seeds at least which two methods have in common." in few.text
    assert "Gain of" not in few.text


def test_every_setting_has_its_own_best_method(build: Build) -> None:
    due = {"fedavg": 0.9, "fedsage": 0.5}

    def other(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"] = {"name": "pubmed"}
        for run in parts["results"]["runs"]:
            run["metrics"]["test_accuracy"] = due.get(run["method"], 0.4) + 0.01 * run["seed"]
        for line in parts["results"]["summary"]:
            if line["metric"] == "test_accuracy":
                line["mean"] = due.get(line["method"], 0.4) + 0.01

    page = Page(write_report([build("first"), build("other", change=other)]))
    assert page.text.count("Is the lead more than luck?") == 1
    assert "Gain of fedsage (first)" in page.text
    assert "Gain of fedavg (other)" in page.text
    gains = {row[0]: row[1] for row in page.rows if len(row) == 5 and row[-1] == "3"}
    assert gains["fedsage (other)"] == "+40"
    assert {name.rpartition(" ")[2] for name in gains} == {"(first)", "(other)"}
    assert len(gains) == 6
