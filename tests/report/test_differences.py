"""A report compares the best method with the others, seed by seed."""

from __future__ import annotations

import pytest
from result_folders import Build

from isthmus.report.differences import differences
from isthmus.report.loading import read_folders


def test_each_method_is_compared_over_the_seeds_that_it_shares_with_the_best(build: Build) -> None:
    findings = read_folders([build("three", ("fedavg", "fedprox")), build("two", ("local", "fedsage"), (0, 1))])
    by_seed = {name: [run.metrics["test_accuracy"] for run in findings.runs_of(name)] for name in ("fedavg", "fedprox")}
    found = differences(findings, "test_accuracy", "fedavg", ["fedprox", "local"])
    assert list(found) == ["fedprox"], "two seeds are too few"
    gains = [one - other for one, other in zip(by_seed["fedavg"], by_seed["fedprox"], strict=True)]
    assert found["fedprox"].mean == pytest.approx(sum(gains) / len(gains))
