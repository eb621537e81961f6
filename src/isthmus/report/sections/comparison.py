"""The report's section on differences between methods, seed by seed: whether they are more than luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from isthmus.report import page, wording
from isthmus.report.loading import Findings

FEWEST = 3
"""Seeds that two methods must have in common."""
ALIKE = 1e-9
"""Differences that vary by less than this share of the values do not vary."""
LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Difference:
    """Of the best method to another one, over the seeds that both have.

    Attributes:
        mean: of the differences, positive where the best one is better.
        low, high: the interval that has the true mean in 95 of 100 such studies (Student's t).
        p: how likely a difference as large is where there is none; not told where all seeds have the same difference.
    """

    seeds: int
    mean: float
    low: float
    high: float
    p: float | None

    @property
    def p_said(self) -> str:
        """In three digits; a dash where there is no test."""
        return "–" if self.p is None else "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"


@dataclass(frozen=True)
class Contest:
    """Methods of one setting, the best one that keeps data apart first, and the metric that they are compared by."""

    setting: str
    metric: str
    methods: Sequence[str]


def difference(best: dict[int, float], other: dict[int, float], smaller: bool = False) -> Difference | None:
    """Paired over the seeds that both have; none where these are fewer than three.

    Seeds draw the split, the cut and all randomness of training, the same for both methods: pairs differ by less than
    means over seeds do.

    >>> found = difference({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: 0.7, 2: 0.5})
    >>> round(found.mean, 3), found.seeds
    (0.133, 3)
    """
    seeds = sorted(best.keys() & other.keys())
    if len(seeds) < FEWEST:
        return None
    gains = [(other[seed] - best[seed] if smaller else best[seed] - other[seed]) for seed in seeds]
    mean = fmean(gains)
    if max(gains) - min(gains) < ALIKE * max(map(abs, (*best.values(), *other.values()))):
        return Difference(len(seeds), mean, mean, mean, None)
    from scipy.stats import ttest_1samp

    found = ttest_1samp(gains, 0.0)
    low, high = found.confidence_interval(LEVEL)
    return Difference(len(seeds), mean, float(low), float(high), float(found.pvalue))


def compared(findings: Findings, contests: Sequence[Contest]) -> str:
    """A table for each setting: its best method against all others; a sentence where seeds are too few.

    Settings are apart, for what one method wins on one data set says nothing of another's on another.
    """
    parts = [_table(findings, each) for each in contests if len(each.methods) > 1]
    return f"<h3>Is the lead more than luck?</h3>{''.join(parts)}" if parts else ""


def _table(findings: Findings, contest: Contest) -> str:
    metric, (best, *others) = contest.metric, contest.methods
    found = differences(findings, metric, best, others)
    title = f"<h4>{escape(contest.setting)}</h4>" if contest.setting else ""
    if not found:
        return f"{title}<p class=note>That takes {FEWEST} seeds at least which two methods have in common.</p>"
    scale, unit = (100.0, " points") if wording.percent(metric) else (1.0, "")
    rows = []
    for method, each in found.items():
        span = f"{scale * each.low:+.3g} to {scale * each.high:+.3g}"
        p = each.p_said.removeprefix("p ").removeprefix("= ")
        rows.append(
            f"<tr><th scope=row>{escape(method)}</th><td class=n>{scale * each.mean:+.3g}</td><td class=n>{span}</td>"
            f"<td class=n>{p}</td><td class=n>{each.seeds}</td></tr>"
        )
    names = ("Against", f"Gain of {best}", "95 % interval", "p", "Seeds")
    head = f"<tr>{''.join(page.head(name, '' if at == 0 else 'n') for at, name in enumerate(names))}</tr>"
    many = "a comparison" if len(found) == 1 else f"{len(found)} comparisons"
    note = (
        f"{wording.metric_title(metric)}{f', in{unit}' if unit else ''}: differences seed by seed; paired t-test, "
        f"two-sided, not corrected for {many}. "
        "Below zero is a loss; where the interval has zero in it, the order may be luck."
    )
    return f"{title}{page.table(head, ''.join(rows), note)}"


def differences(findings: Findings, metric: str, best: str, others: Sequence[str]) -> dict[str, Difference]:
    """Of the best method to each of the others that has enough seeds in common with it."""
    first, smaller = _by_seed(findings, best, metric), findings.smaller_is_better(metric)
    found = {method: difference(first, _by_seed(findings, method, metric), smaller) for method in others}
    return {method: each for method, each in found.items() if each is not None}


def _by_seed(findings: Findings, method: str, metric: str) -> dict[int, float]:
    values = {run.seed: wording.finite(run.metrics.get(metric)) for run in findings.runs_of(method)}
    return {seed: value for seed, value in values.items() if value is not None}
