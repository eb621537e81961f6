"""Claims of a paper about its numbers, and whether our numbers support them."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from pydantic import Field, model_validator
from scipy import stats

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.options import Options
from isthmus.paired import do_not_vary

Ours = Callable[[Mapping[str, str]], Mapping[int, float]]
"""Our values at a place, by seed; empty where nothing was run."""

Early = Callable[[Mapping[str, str]], Sequence[bool]]
"""For each run at a place, whether it chose so early a round that it supports no claim."""

Older = Callable[[Mapping[str, str]], Collection[int]]
"""The seeds of a place's runs that code with other draws made, for which they stand for other chances."""

ENOUGH = 3
"""Seeds that all cells of a comparison must share before a claim holds or fails there; also values of `over`."""

LUCK = 0.05
"""The p value of a paired test from which on a gain may be luck."""

FIGURES = "figures"
"""The name of the axis whose values are a table's figures."""

Published = Callable[[Mapping[str, str]], float | None]
"""The paper's number at a place, if it has one."""

DataOf = Callable[[Mapping[str, str]], str]
"""The data set of a place. Places of one data set share items and seeds, so their gains depend on each other."""


def check_values(at: Mapping[str, Sequence[str]], axes: Mapping[str, Collection[str]], where: str = "") -> None:
    """Raise an error if a table has no such axis, or an axis no such value."""
    for axis, values in at.items():
        if axis not in axes:
            raise IsthmusError(f"{where}there is no axis '{axis}': {did_you_mean(axis, axes)}")
        for value in values:
            if value not in axes[axis]:
                raise IsthmusError(f"{where}axis '{axis}' has no '{value}': {did_you_mean(value, axes[axis])}")


Sample = tuple[str, int]
"""A value of the axis that is compared together, or nothing, and a seed."""


class Claim(Options):
    """A ranking of means along one axis, their closeness to each other, or their closeness to the paper's numbers."""

    says: str
    """The claim in words."""
    figure: str = ""
    """The figure it is about; the table's first if empty."""
    along: str = ""
    """The axis whose values are compared; `figures` compares the figures of one cell."""
    order: list[str | list[str]] = Field(default=[])
    """Values of the axis from best to worst. In a nested list, all are better than everything that follows."""
    by: float = 0.0
    """How much better each must be than the next; if negative, how much worse it may be."""
    within: float | None = Field(None, gt=0)
    """The largest difference allowed between values along the axis."""
    lower: bool = False
    """Smaller figures are better."""
    near: float | None = Field(None, gt=0)
    """The largest difference allowed from the paper's number."""
    paper_at: dict[str, str] = Field(default={})
    """With `near`, where the paper's number stands if not at the cell itself, as a value by axis."""
    at: dict[str, list[str]] = Field(default={})
    """The cells it is about, as values by axis; all cells if empty."""
    over: str = ""
    """An axis whose values are compared together, as seeds are: the splits of a data set."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if [bool(self.order), self.near is not None, self.within is not None].count(True) != 1:
            raise ValueError("a claim needs exactly one of `order`, `near` and `within`")
        if self.near is None and not self.along:
            raise ValueError("a claim with `order` or `within` needs the axis to go `along`")
        if self.order and (len(self.order) < 2 or not all(self.groups)):
            raise ValueError("an `order` needs at least two values")
        if self.paper_at and self.near is None:
            raise ValueError("`paper_at` says with which of the paper's numbers `near` compares: add `near`")
        return self

    @property
    def groups(self) -> list[list[str]]:
        """The values of `order`, each as a list."""
        return [[each] if isinstance(each, str) else each for each in self.order]

    def check(self, axes: Mapping[str, Collection[str]], figures: Mapping[str, Any]) -> None:
        """Raise an error if the table lacks the claim's figure, axis or values."""
        axes = {**axes, FIGURES: figures} if self.along == FIGURES else axes
        if self.figure and self.figure not in figures:
            raise IsthmusError(f"claims: there is no figure '{self.figure}': {did_you_mean(self.figure, figures)}")
        if self.along:
            check_values({self.along: list(itertools.chain(*self.groups))}, axes, "claims: ")
        if self.over:
            check_values({self.over: []}, axes, "claims: ")
        check_values({axis: [value] for axis, value in self.paper_at.items()}, axes, "claims: ")

    def covers(self, place: Mapping[str, str]) -> bool:
        """Whether the claim is about the cell at this place."""
        inside = all(place[axis] in values for axis, values in self.at.items())
        compared = not self.order or self.along == FIGURES or place[self.along] in itertools.chain(*self.groups)
        return inside and compared

    def judge(
        self,
        axes: Mapping[str, Sequence[str]],
        ours: Ours,
        published: Published,
        early: Early = lambda place: (),
        older: Older = lambda place: (),
        data_of: DataOf = lambda place: ", ".join(place.values()),
    ) -> Verdict:
        """Check the claim at every place that was run.

        Compared are means over the seeds that all cells of a comparison share, because values depend on the seed.

        Arguments:
            axes: the values of each axis by its name.
        """
        comparisons: list[Comparison] = []
        left_out: list[str] = []
        for place in self._places(axes):
            found = (
                self._near(axes, place, ours, published)
                if self.near is not None
                else self._compared(axes, place, ours, older, data_of)
            )
            if found is not None and self._is_early(axes, place, early):
                left_out.append(found.place)
            elif found is not None:
                comparisons.append(found)
        return Verdict(self, comparisons, left_out)

    def _is_early(self, axes: Mapping[str, Sequence[str]], place: Mapping[str, str], early: Early) -> bool:
        """Whether most runs of one of the means that are compared chose so early a round that they support no claim."""
        compared = (
            [{}] if self.near is not None else [{self.along: each} for group in self._groups_of(axes) for each in group]
        )
        for value in compared:
            runs = [run for sample in self._samples(axes, {**place, **value}) for run in early(sample)]
            if 2 * sum(runs) > len(runs):
                return True
        return False

    def _places(self, axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
        names = [name for name in axes if name not in (self.along, self.over)]
        for values in itertools.product(*(self.at.get(name, axes[name]) for name in names)):
            yield dict(zip(names, values, strict=True))

    def _groups_of(self, axes: Mapping[str, Sequence[str]]) -> list[list[str]]:
        return self.groups or [self.at.get(self.along, list(axes[self.along]))]

    def _samples(self, axes: Mapping[str, Sequence[str]], place: Mapping[str, str]) -> list[dict[str, str]]:
        """The place at each value of `over`, or the place itself."""
        if not self.over:
            return [{**place}]
        return [{**place, self.over: value} for value in self.at.get(self.over, axes[self.over])]

    def _values(self, axes: Mapping[str, Sequence[str]], place: Mapping[str, str], ours: Ours) -> dict[Sample, float]:
        """Our values at a place, by its value of `over` and seed."""
        return {
            (sample.get(self.over, ""), seed): value
            for sample in self._samples(axes, place)
            for seed, value in ours(sample).items()
        }

    def _compared(
        self, axes: Mapping[str, Sequence[str]], place: Mapping[str, str], ours: Ours, older: Older, data_of: DataOf
    ) -> Comparison | None:
        places = [[{**place, self.along: value} for value in group] for group in self._groups_of(axes)]
        values = [[self._values(axes, each, ours) for each in group] for group in places]
        shared = sorted(set.intersection(*(set(each) for group in values for each in group)))
        if not shared:
            return None
        means = [[statistics.fmean(each[sample] for sample in shared) for each in group] for group in values]
        shown = [[statistics.fmean(each.values()) for each in group] for group in values]
        holds, pair = self._holds(means), self._decisive(means, values)
        sign, gains = -1 if self.lower else 1, {}
        before = [self._older_samples(axes, each, older).intersection(shared) for group in places for each in group]
        paired = all(each == before[0] for each in before)
        if pair is not None and paired:
            gains = {sample: sign * (pair[0][sample] - pair[1][sample]) - min(self.by, 0.0) for sample in shared}
        return Comparison(
            ", ".join(place.values()),
            holds,
            self._decisive_means(means),
            *_counts(shared),
            holds == self._holds(shown),
            gains,
            data_of({**self._samples(axes, place)[0], self.along: self._groups_of(axes)[0][0]}),
            paired,
        )

    def _older_samples(self, axes: Mapping[str, Sequence[str]], place: Mapping[str, str], older: Older) -> set[Sample]:
        samples = self._samples(axes, place)
        return {(sample.get(self.over, ""), seed) for sample in samples for seed in older(sample)}

    def _holds(self, means: Sequence[Sequence[float]]) -> bool:
        if self.within is not None:
            return max(means[0]) - min(means[0]) <= self.within
        sign = -1 if self.lower else 1
        gains = [
            sign * high - sign * low for group, below in itertools.pairwise(means) for high in group for low in below
        ]
        return min(gains) > self.by

    def _decisive_means(self, means: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """The means that decide: the worst of the first group and the best of each later one, or the extremes."""
        if self.within is not None:
            return min(means[0]), max(means[0])
        worst, best = (max, min) if self.lower else (min, max)
        return (worst(means[0]), *(best(group) for group in means[1:]))

    def _decisive(
        self, means: Sequence[Sequence[float]], values: Sequence[Sequence[dict[Sample, float]]]
    ) -> tuple[dict[Sample, float], dict[Sample, float]] | None:
        """The values behind the two means of an order of two groups; none for other claims."""
        if self.within is not None or len(means) != 2:
            return None
        first, second = self._decisive_means(means)
        return values[0][means[0].index(first)], values[1][means[1].index(second)]

    def _near(
        self, axes: Mapping[str, Sequence[str]], place: Mapping[str, str], ours: Ours, published: Published
    ) -> Comparison | None:
        assert self.near is not None
        mine, theirs = self._values(axes, place, ours), published({**self._samples(axes, place)[0], **self.paper_at})
        if not mine or theirs is None:
            return None
        mean = statistics.fmean(mine.values())
        return Comparison(", ".join(place.values()), abs(mean - theirs) <= self.near, (mean, theirs), *_counts(mine))


def _counts(samples: Iterable[Sample]) -> tuple[int, int]:
    """How many seeds the value of `over` with the fewest has, and how many such values there are; 0 without `over`."""
    by_value = Counter(value for value, _ in samples)
    return min(by_value.values()), len(by_value.keys() - {""})


def _paired_test(gains: Mapping[Sample, float]) -> float | None:
    """The p value of Student's paired test on gains; seeds of one sample of `over` count as their mean.

    None with fewer than three gains, or where all are the same, as between runs that are the same.
    """
    by_sample: dict[str, list[float]] = {}
    for (sample, _), gain in gains.items():
        by_sample.setdefault(sample, []).append(gain)
    values = [statistics.fmean(each) for each in by_sample.values()] if len(by_sample) > 1 else [*gains.values()]
    if len(values) < ENOUGH or do_not_vary(values, values):
        return None
    return float(stats.ttest_1samp(values, 0.0).pvalue)


@dataclass(frozen=True)
class Comparison:
    """Whether a claim holds at one place.

    Attributes:
        means: the means that decide, over the seeds that all cells share.
        seeds: how many seeds those are; of several values of `over`, at the one with the fewest.
        samples: how many values of `over` are compared together; 0 without it.
        agrees: the means over all seeds of each cell, which tables show, say the same.
        gains: of an order of two groups, by how much the first of the two cells that decide is better, or loses less
            than the claim allows.
        data: the data set.
        paired: runs of one seed have the same draws; else older code made one of them.
    """

    place: str
    holds: bool
    means: tuple[float, ...]
    seeds: int
    samples: int = 0
    agrees: bool = True
    gains: Mapping[Sample, float] = field(default_factory=dict)
    data: str = ""
    paired: bool = True

    @cached_property
    def p(self) -> float | None:
        """The p value of a paired test of the two cells that decide."""
        return _paired_test(self.gains)

    @property
    def firm(self) -> bool:
        """Whether the claim holds or fails here, luck aside; otherwise our numbers only point to or against it."""
        enough = self.seeds >= ENOUGH and (self.samples == 0 or self.samples >= ENOUGH)
        return enough and self.agrees and self.paired


def _p_of_one(places: Sequence[Comparison]) -> float | None:
    """The p value of the gains at places of one data set, whose differences depend on each other.

    Where the claim holds at all of them, that of the mean of their gains by seed; else the smallest of those where it
    does, times the number of places (Bonferroni).
    """
    tested = [each.p for each in places if each.holds and each.p is not None]
    if not tested:
        return None
    if all(each.holds for each in places):
        shared = [sample for sample in places[0].gains if all(sample in each.gains for each in places)]
        p = _paired_test({sample: statistics.fmean(each.gains[sample] for each in places) for sample in shared})
        if p is not None:
            return p
    return min(1.0, len(places) * min(tested))


@dataclass(frozen=True)
class Verdict:
    """A claim, checked at all places that were run.

    Attributes:
        left_out: places whose runs chose so early a round that they support no claim.
    """

    claim: Claim
    places: Sequence[Comparison]
    left_out: Sequence[str] = ()

    @property
    def p(self) -> float | None:
        """The p value of the gains on the data sets where there are any, all together by Fisher's method.

        Given that there is a gain, its two-sided p value is uniform if the gain is luck, so leaving out data sets
        without one makes no p value too small. None if the claim holds nowhere, or if no place has a test.
        """
        by_data: dict[str, list[Comparison]] = {}
        for each in self.places:
            by_data.setdefault(each.data, []).append(each)
        values = [p for places in by_data.values() if (p := _p_of_one(places)) is not None]
        return float(stats.combine_pvalues(values).pvalue) if values else None

    @property
    def word(self) -> str:
        """`holds`, `fails`, `holds at 3 of 4`, `not run`, or `no verdict` if all places are left out.

        Without three shared seeds (and splits) at every place, where the paired difference and the means shown
        disagree, or where code with other draws made some of the runs: `points to`, `points against`, `points to at 3
        of 4`. With them, where tests do not tell the gain from luck: `may be luck`, `may be luck at 3 of 4`.
        """
        if not self.places:
            return "no verdict" if self.left_out else "not run"
        held, count = sum(each.holds for each in self.places), len(self.places) + len(self.left_out)
        firm = all(each.firm for each in self.places)
        yes, no = ("holds", "fails") if firm else ("points to", "points against")
        if firm and self.p is not None and self.p >= LUCK:
            yes = "may be luck"
        if held in (0, count):  # a claim about all places fails whatever those say that are left out
            return yes if held else no
        return f"{yes} at {held} of {count}"

    @property
    def kind(self) -> str:
        """The word without its numbers: `holds`, `holds in part`, `fails`, `not run`, ..."""
        yes, part, _ = self.word.partition(" at ")
        return f"{yes} in part" if part else yes

    @property
    def basis(self) -> str:
        """How many comparisons it rests on, and over how many seeds; empty without any."""
        if not self.places:
            return ""
        count = len(self.places)
        basis = f"{count} comparison{'s' * (count > 1)}, {seeds_text(each.seeds for each in self.places)}"
        if not self.claim.over:
            return basis
        fewest, most = min(each.samples for each in self.places), max(each.samples for each in self.places)
        of = f"{most}" if fewest == most else f"{fewest} to {most}"
        return f"{basis} on each of {of} values of {self.claim.over}"


def seeds_text(counts: Iterable[int]) -> str:
    """Say how many seeds there are.

    >>> seeds_text([3, 10, 3]), seeds_text([1])
    ('3 to 10 seeds', '1 seed')
    """
    fewest, *_, most = sorted([*counts] * 2)
    return f"{most} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"
