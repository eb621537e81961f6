"""What a paper says that its numbers show, and whether ours show it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.options import Options

Ours = Callable[[Mapping[str, str]], Mapping[int, float]]
"""What was measured at a place, by seed; nothing where nothing was run."""

FIGURES = "figures"
"""Beside a table's axes: its figures."""

Published = Callable[[Mapping[str, str]], float | None]
"""A paper's number for a place, where there is one."""


class Claim(Options):
    """An order of means along one axis, or nearness to the paper's numbers, wherever cells are run."""

    says: str
    """The claim in words."""
    figure: str = ""
    """The figure it is about; the first one without."""
    along: str = ""
    """The axis whose values are compared; `figures` compares those of one cell."""
    order: list[str | list[str]] = Field(default=[])
    """Its values from best to worst; several at one place are all better than all at the next."""
    by: float = 0.0
    """How much better each must be than the next; below zero, how much worse it may be."""
    within: float | None = Field(None, gt=0)
    """How far all values along the axis may be from each other."""
    lower: bool = False
    """Small figures are the better ones."""
    near: float | None = Field(None, gt=0)
    """How far from the paper's number ours may be."""
    at: dict[str, list[str]] = Field(default={})
    """Where it is about: of other axes some values; everywhere without."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if [bool(self.order), self.near is not None, self.within is not None].count(True) != 1:
            raise ValueError("a claim has one of `order`, `near` and `within`")
        if self.near is None and not self.along:
            raise ValueError("an `order`, and a `within`, has an axis that it goes `along`")
        if self.order and (len(self.order) < 2 or not all(self.groups)):
            raise ValueError("an `order` has two values at least")
        return self

    @property
    def groups(self) -> list[list[str]]:
        """The values of an order, place by place."""
        return [[each] if isinstance(each, str) else each for each in self.order]

    def check(self, axes: Mapping[str, Mapping[str, Any]], figures: Mapping[str, Any]) -> None:
        """That it is about what there is."""
        axes = {**axes, FIGURES: figures} if self.along == FIGURES else axes
        if self.figure and self.figure not in figures:
            raise IsthmusError(f"claims: there is no figure '{self.figure}': {did_you_mean(self.figure, figures)}")
        if self.along and self.along not in axes:
            raise IsthmusError(f"claims: there is no axis '{self.along}': {did_you_mean(self.along, axes)}")
        for value in itertools.chain(*self.groups):
            if value not in axes[self.along]:
                raise IsthmusError(
                    f"claims: axis '{self.along}' has no '{value}': {did_you_mean(value, axes[self.along])}"
                )

    def covers(self, place: Mapping[str, str]) -> bool:
        """Whether a cell at this place is among those that it is about."""
        inside = all(place[axis] in values for axis, values in self.at.items())
        compared = not self.order or self.along == FIGURES or place[self.along] in itertools.chain(*self.groups)
        return inside and compared

    def judged(
        self, axes: Mapping[str, Sequence[str]], ours: Ours, paper: Callable[[Mapping[str, str]], float | None]
    ) -> Verdict:
        """Whether our means show it, place by place.

        What is compared are means over the seeds that all cells of a comparison have, for figures hang on seeds too.

        Arguments:
            axes: by name the values of each.
            ours: by seed what was measured at a place.
            paper: its number for a place, where there is one.
        """
        found = self._near(axes, ours, paper) if self.near is not None else self._compared(axes, ours)
        return Verdict(self, list(found))

    def _places(self, axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
        names = [name for name in axes if name != self.along]
        for values in itertools.product(*(self.at.get(name, axes[name]) for name in names)):
            yield dict(zip(names, values, strict=True))

    def _compared(self, axes: Mapping[str, Sequence[str]], ours: Ours) -> Iterator[Judged]:
        groups = self.groups or [self.at.get(self.along, list(axes[self.along]))]
        for place in self._places(axes):
            runs = [[ours({**place, self.along: value}) for value in group] for group in groups]
            everything = [each for group in runs for each in group]
            if seeds := set.intersection(*(set(each) for each in everything)):
                means = [[statistics.fmean(each[seed] for seed in seeds) for each in group] for group in runs]
                yield Judged(", ".join(place.values()), self._holds(means), self._telling(means), len(seeds))

    def _holds(self, means: Sequence[Sequence[float]]) -> bool:
        if self.within is not None:
            return max(means[0]) - min(means[0]) <= self.within
        sign = -1 if self.lower else 1
        gains = [
            sign * high - sign * low for group, below in itertools.pairwise(means) for high in group for low in below
        ]
        return min(gains) > self.by

    def _telling(self, means: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """One of each group: its worst where others follow, and the best of those that follow."""
        if self.within is not None:
            return min(means[0]), max(means[0])
        worst, best = (max, min) if self.lower else (min, max)
        return (worst(means[0]), *(best(group) for group in means[1:]))

    def _near(self, axes: Mapping[str, Sequence[str]], ours: Ours, paper: Published) -> Iterator[Judged]:
        assert self.near is not None
        for place in self._places(axes):
            mine, theirs = ours(place), paper(place)
            if mine and theirs is not None:
                mean = statistics.fmean(mine.values())
                yield Judged(", ".join(place.values()), abs(mean - theirs) <= self.near, (mean, theirs), len(mine))


@dataclass(frozen=True)
class Judged:
    """A claim at one place, and the means that say so."""

    place: str
    holds: bool
    means: tuple[float, ...]
    seeds: int
    """Over how many its means are."""


@dataclass(frozen=True)
class Verdict:
    """A claim at all places that were run."""

    claim: Claim
    places: Sequence[Judged]

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
    def rests(self) -> str:
        """On how many comparisons, of how many seeds; nothing where none was made."""
        if not self.places:
            return ""
        seeds = [each.seeds for each in self.places]
        count, fewest, most = len(seeds), min(seeds), max(seeds)
        told = f"{most} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"
        return f"{count} comparison{'s' * (count > 1)}, {told}"
