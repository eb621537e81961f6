"""Claims of a paper about its numbers, and whether our numbers support them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.options import Options

Ours = Callable[[Mapping[str, str]], Mapping[int, float]]
"""Our values at a place, by seed; empty where nothing was run."""

FIGURES = "figures"
"""The name of the axis whose values are a table's figures."""

Published = Callable[[Mapping[str, str]], float | None]
"""The paper's number at a place, if it has one."""


def check_values(at: Mapping[str, Sequence[str]], axes: Mapping[str, Collection[str]], where: str = "") -> None:
    """Raise an error if a table has no such axis, or an axis no such value."""
    for axis, values in at.items():
        if axis not in axes:
            raise IsthmusError(f"{where}there is no axis '{axis}': {did_you_mean(axis, axes)}")
        for value in values:
            if value not in axes[axis]:
                raise IsthmusError(f"{where}axis '{axis}' has no '{value}': {did_you_mean(value, axes[axis])}")


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
    at: dict[str, list[str]] = Field(default={})
    """The cells it is about, as values by axis; all cells if empty."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if [bool(self.order), self.near is not None, self.within is not None].count(True) != 1:
            raise ValueError("a claim needs exactly one of `order`, `near` and `within`")
        if self.near is None and not self.along:
            raise ValueError("a claim with `order` or `within` needs the axis to go `along`")
        if self.order and (len(self.order) < 2 or not all(self.groups)):
            raise ValueError("an `order` needs at least two values")
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

    def covers(self, place: Mapping[str, str]) -> bool:
        """Whether the claim is about the cell at this place."""
        inside = all(place[axis] in values for axis, values in self.at.items())
        compared = not self.order or self.along == FIGURES or place[self.along] in itertools.chain(*self.groups)
        return inside and compared

    def judge(self, axes: Mapping[str, Sequence[str]], ours: Ours, published: Published) -> Verdict:
        """Check the claim at every place that was run.

        Compared are means over the seeds that all cells of a comparison share, because values depend on the seed.

        Arguments:
            axes: the values of each axis by its name.
        """
        comparisons = self._near(axes, ours, published) if self.near is not None else self._compared(axes, ours)
        return Verdict(self, list(comparisons))

    def _places(self, axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
        names = [name for name in axes if name != self.along]
        for values in itertools.product(*(self.at.get(name, axes[name]) for name in names)):
            yield dict(zip(names, values, strict=True))

    def _compared(self, axes: Mapping[str, Sequence[str]], ours: Ours) -> Iterator[Comparison]:
        groups = self.groups or [self.at.get(self.along, list(axes[self.along]))]
        for place in self._places(axes):
            values = [[ours({**place, self.along: value}) for value in group] for group in groups]
            if seeds := set.intersection(*(set(by_seed) for group in values for by_seed in group)):
                means = [[statistics.fmean(by_seed[seed] for seed in seeds) for by_seed in group] for group in values]
                yield Comparison(", ".join(place.values()), self._holds(means), self._decisive(means), len(seeds))

    def _holds(self, means: Sequence[Sequence[float]]) -> bool:
        if self.within is not None:
            return max(means[0]) - min(means[0]) <= self.within
        sign = -1 if self.lower else 1
        gains = [
            sign * high - sign * low for group, below in itertools.pairwise(means) for high in group for low in below
        ]
        return min(gains) > self.by

    def _decisive(self, means: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """The means that decide: the worst of the first group and the best of each later one, or the extremes."""
        if self.within is not None:
            return min(means[0]), max(means[0])
        worst, best = (max, min) if self.lower else (min, max)
        return (worst(means[0]), *(best(group) for group in means[1:]))

    def _near(self, axes: Mapping[str, Sequence[str]], ours: Ours, published: Published) -> Iterator[Comparison]:
        assert self.near is not None
        for place in self._places(axes):
            mine, theirs = ours(place), published(place)
            if mine and theirs is not None:
                mean = statistics.fmean(mine.values())
                yield Comparison(", ".join(place.values()), abs(mean - theirs) <= self.near, (mean, theirs), len(mine))


@dataclass(frozen=True)
class Comparison:
    """Whether a claim holds at one place, the means that decide, and over how many seeds they are."""

    place: str
    holds: bool
    means: tuple[float, ...]
    seeds: int


@dataclass(frozen=True)
class Verdict:
    """A claim, checked at all places that were run."""

    claim: Claim
    places: Sequence[Comparison]

    @property
    def word(self) -> str:
        """`holds`, `fails`, `holds at 3 of 4`, or `not run`."""
        held = sum(each.holds for each in self.places)
        if not self.places:
            return "not run"
        if held in (0, len(self.places)):
            return "holds" if held else "fails"
        return f"holds at {held} of {len(self.places)}"

    @property
    def basis(self) -> str:
        """How many comparisons it rests on, and over how many seeds; empty without any."""
        if not self.places:
            return ""
        seeds = [each.seeds for each in self.places]
        count, fewest, most = len(seeds), min(seeds), max(seeds)
        text = f"{most} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"
        return f"{count} comparison{'s' * (count > 1)}, {text}"
