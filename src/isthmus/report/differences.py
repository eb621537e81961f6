"""Differences between the methods of a report."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.paired import Difference, difference
from isthmus.report import wording
from isthmus.report.loading import Findings


def differences(findings: Findings, metric: str, best: str, others: Sequence[str]) -> dict[str, Difference]:
    """The difference of the best method to each other one that has enough seeds in common with it."""
    first, smaller = _by_seed(findings, best, metric), findings.smaller_is_better(metric)
    found = {method: difference(first, _by_seed(findings, method, metric), smaller) for method in others}
    return {method: each for method, each in found.items() if each is not None}


def _by_seed(findings: Findings, method: str, metric: str) -> dict[int, float]:
    values = {run.seed: wording.finite(run.metrics.get(metric)) for run in findings.runs_of(method)}
    return {seed: value for seed, value in values.items() if value is not None}
