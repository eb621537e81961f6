"""Differences between two methods, paired over seeds, and how likely they are luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from isthmus.report import wording
from isthmus.report.loading import Findings

MIN_SEEDS = 3
"""Seeds that two methods must have in common."""
LEVEL = 0.95
"""Of the intervals."""
_CONSTANT = 1e-9
"""Differences that vary by less than this share of the values do not vary."""


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another.

    Attributes:
        mean: of the differences over seeds, positive where the first method is better.
        low, high: the interval that has the true mean in 95 of 100 such studies (Student's t).
        p: how likely a difference as large is if there is none; `None` if all seeds have the same difference.
    """

    seeds: int
    mean: float
    low: float
    high: float
    p: float | None

    @property
    def p_text(self) -> str:
        """p with three digits, or a dash if there is no test."""
        return "–" if self.p is None else "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"


def difference(best: Mapping[int, float], other: Mapping[int, float], smaller: bool = False) -> Difference | None:
    """The paired difference over the seeds that both have; `None` if these are fewer than three.

    A seed draws the split, the cut and all randomness of training, the same for both methods. Pairs therefore differ
    by less than means over seeds do.

    >>> found = difference({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: 0.7, 2: 0.5})
    >>> round(found.mean, 3), found.seeds
    (0.133, 3)
    """
    seeds = sorted(best.keys() & other.keys())
    if len(seeds) < MIN_SEEDS:
        return None
    gains = [(other[seed] - best[seed] if smaller else best[seed] - other[seed]) for seed in seeds]
    mean = fmean(gains)
    if max(gains) - min(gains) < _CONSTANT * max(map(abs, (*best.values(), *other.values()))):
        return Difference(len(seeds), mean, mean, mean, None)
    from scipy.stats import ttest_1samp

    test = ttest_1samp(gains, 0.0)
    low, high = test.confidence_interval(LEVEL)
    return Difference(len(seeds), mean, float(low), float(high), float(test.pvalue))


def differences(findings: Findings, metric: str, best: str, others: Sequence[str]) -> dict[str, Difference]:
    """The difference of the best method to each other one that has enough seeds in common with it."""
    first, smaller = _by_seed(findings, best, metric), findings.smaller_is_better(metric)
    found = {method: difference(first, _by_seed(findings, method, metric), smaller) for method in others}
    return {method: each for method, each in found.items() if each is not None}


def _by_seed(findings: Findings, method: str, metric: str) -> dict[int, float]:
    values = {run.seed: wording.finite(run.metrics.get(metric)) for run in findings.runs_of(method)}
    return {seed: value for seed, value in values.items() if value is not None}
