"""What a paper says that its numbers show, and whether ours show it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from isthmus.errors import IsthmusError, nearest
from isthmus.options import Options


class Claim(Options):
    """An order of means along one axis, or nearness to the paper's numbers, wherever cells are run."""

    says: str
    """The claim in words."""
    figure: str = ""
    """The figure it is about; the first one without."""
    along: str = ""
    """The axis whose values are compared."""
    order: list[str] = Field(default=[])
    """Its values from best to worst."""
    by: float = 0.0
    """How much better each must be than the next; below zero, how much worse it may be."""
    lower: bool = False
    """Small figures are the better ones."""
    near: float | None = Field(None, gt=0)
    """How far from the paper's number ours may be."""
    at: dict[str, list[str]] = Field(default={})
    """Where it is about: of other axes some values; everywhere without."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if bool(self.order) == (self.near is not None):
            raise ValueError("a claim has either an `order` or a `near`")
        if self.order and (len(self.order) < 2 or not self.along):
            raise ValueError("an `order` has two values at least, and an axis that it goes `along`")
        return self

    def check(self, axes: Mapping[str, Mapping[str, Any]], figures: Mapping[str, Any]) -> None:
        """That it is about what there is."""
        if self.figure and self.figure not in figures:
            raise IsthmusError(f"claims: there is no figure '{self.figure}': {nearest(self.figure, figures)}")
        if self.order and self.along not in axes:
            raise IsthmusError(f"claims: there is no axis '{self.along}': {nearest(self.along, axes)}")
        for value in self.order:
            if value not in axes[self.along]:
                raise IsthmusError(f"claims: axis '{self.along}' has no '{value}': {nearest(value, axes[self.along])}")

    def covers(self, place: Mapping[str, str]) -> bool:
        """Whether a cell at this place is among those that it is about."""
        inside = all(place[axis] in values for axis, values in self.at.items())
        return inside and (not self.order or place[self.along] in self.order)

    def judged(
        self,
        axes: Mapping[str, Sequence[str]],
        ours: Callable[[Mapping[str, str]], float | None],
        paper: Callable[[Mapping[str, str]], float | None],
    ) -> Verdict:
        """Whether our means show it, place by place.

        Arguments:
            axes: by name the values of each.
            ours, paper: the mean at a place, where there is one.
        """
        found = list(self._orders(axes, ours) if self.order else self._near(axes, ours, paper))
        return Verdict(self, found)

    def _places(self, axes: Mapping[str, Sequence[str]], without: str) -> Iterator[dict[str, str]]:
        names = [name for name in axes if name != without]
        for values in itertools.product(*(self.at.get(name, axes[name]) for name in names)):
            yield dict(zip(names, values, strict=True))

    def _orders(self, axes: Mapping[str, Sequence[str]], ours: Any) -> Iterator[Judged]:
        for place in self._places(axes, self.along):
            means = [ours({**place, self.along: value}) for value in self.order]
            if None not in means:
                gains = [low - high if self.lower else high - low for high, low in itertools.pairwise(means)]
                yield Judged(", ".join(place.values()), min(gains) > self.by, tuple(means))

    def _near(self, axes: Mapping[str, Sequence[str]], ours: Any, paper: Any) -> Iterator[Judged]:
        assert self.near is not None
        for place in self._places(axes, ""):
            mine, theirs = ours(place), paper(place)
            if mine is not None and theirs is not None:
                yield Judged(", ".join(place.values()), abs(mine - theirs) <= self.near, (mine, theirs))


@dataclass(frozen=True)
class Judged:
    """A claim at one place, and the means that say so."""

    place: str
    holds: bool
    means: tuple[float, ...]


@dataclass(frozen=True)
class Verdict:
    """A claim at all places that were run."""

    claim: Claim
    places: Sequence[Judged]
    seeds: Sequence[int] = ()
    """How many runs each cell that it is about has, where there are any."""

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
        count, fewest, most = len(self.places), min(self.seeds, default=0), max(self.seeds, default=0)
        seeds = f"{most} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"
        return f"{count} comparison{'s' * (count > 1)}, {seeds}"
