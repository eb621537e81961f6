"""Means over seeds: their intervals, and differences between two methods, paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

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

    @property
    def may_be_luck(self) -> bool:
        """Whether the interval has zero in it, or the first method is not better."""
        return self.mean <= 0 or (self.p is not None and self.p >= 1 - LEVEL)

    @property
    def luck_text(self) -> str:
        """What the test says about a lead."""
        what = "may be luck" if self.may_be_luck else "is more than luck would explain"
        return f"{what} (paired over {self.seeds} seeds, {self.p_text})"


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
    if do_not_vary(gains, [*best.values(), *other.values()]):
        return Difference(len(seeds), mean, mean, mean, None)
    from scipy.stats import ttest_1samp

    test = ttest_1samp(gains, 0.0)
    low, high = test.confidence_interval(LEVEL)
    return Difference(len(seeds), mean, float(low), float(high), float(test.pvalue))


def do_not_vary(gains: Sequence[float], values: Iterable[float]) -> bool:
    """Whether gains are the same but for rounding, which leaves no test; `values` are what they are differences of."""
    return max(gains) - min(gains) <= _CONSTANT * max(map(abs, values))


def interval(values: Sequence[float]) -> float | None:
    """Half of the interval that has the true mean in 95 of 100 such samples (Student's t); none for one value.

    >>> round(interval([79.0, 80.0, 81.0]), 2)
    2.48
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def best_was_last(runs: Iterable[Any]) -> bool:
    """Whether validation data chose the last round in every run, so that more rounds may be better still.

    Arguments:
        runs: of one method, as a study or a result folder has them.
    """
    found = [run.chosen_round == run.rounds and f"val_{run.select_by}" in run.metrics for run in runs]
    return bool(found) and all(found)


def alone_is_best(alone: str, rising: Mapping[str, int], lead: Difference | None, ahead: str = "") -> str:
    """A note that a method that trains alone is better than every federated one.

    Arguments:
        rising: the federated methods whose best round was the last, each with its number of rounds.
        lead: over the best federated method.
        ahead: what `ahead_over_parties` says.

    >>> alone_is_best("local", {"fedavg": 8}, None)
    'local is better than every federated method, but the best round of fedavg was the last: train longer (--rounds 16)'
    >>> alone_is_best("local", {}, difference({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: 0.9, 2: 0.5}))
    'local is ahead of every federated method, but its lead may be luck (paired over 3 seeds, p = 0.529)'
    """
    if ahead:
        return f"over all test items together, {_alone_is_best(alone, rising, lead, ahead)}; {ahead}"
    return _alone_is_best(alone, rising, lead, ahead)


def _alone_is_best(alone: str, rising: Mapping[str, int], lead: Difference | None, ahead: str) -> str:
    if rising:
        names, rounds = ", ".join(rising), 2 * max(rising.values())
        return (
            f"{alone} is better than every federated method, but the best round of {names} was the last: "
            f"train longer (--rounds {rounds})"
        )
    if lead is None:
        few = f"fewer than {MIN_SEEDS} seeds do not show that parties gain nothing together: give --seeds {MIN_SEEDS}"
        return f"{alone} is ahead of every federated method, but {few}"
    if lead.may_be_luck:
        return f"{alone} is ahead of every federated method, but its lead {lead.luck_text}"
    better = f"{alone} is better than every federated method"
    return better if ahead else f"{better}: by these results, parties gain nothing together"


def ahead_over_parties(
    alone: str, scores: Mapping[str, Sequence[tuple[float, float]]], *, smaller: bool = False
) -> str:
    """Say which method is better than the one that trains alone by the mean over parties, or by the worst party.

    Figures that are equal as they are shown count as equal. The text is empty if no method is better.

    Arguments:
        scores: by method, for each run the mean over parties and the worst party.
        smaller: whether a smaller score is better.

    >>> ahead_over_parties("local", {"local": [(4.88, 11.7)], "fedprox": [(3.78, 6.14)]}, smaller=True)
    'fedprox is ahead by the mean over parties and by the worst party'
    """
    found: dict[str, list[str]] = {}
    for at, name in enumerate(("the mean over parties", "the worst party")):
        means = {method: float(f"{fmean(each[at] for each in runs):.3g}") for method, runs in scores.items() if runs}
        if alone in means:
            _, best = max((-value if smaller else value, method) for method, value in means.items())
            if means[best] != means[alone]:
                found.setdefault(best, []).append(f"by {name}")
    return ", ".join(f"{method} is ahead {' and '.join(by)}" for method, by in found.items())
