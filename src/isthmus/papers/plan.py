"""A table of a paper as a file says it: a study, what varies from cell to cell, the paper's numbers and its claims."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.options import Options
from isthmus.papers.claims import Claim
from isthmus.papers.measures import Measure
from isthmus.study.config import Study, merged, read_toml, settings

Place = Mapping[str, str]
"""Where a cell stands: of each axis one of its values, by names."""


class Axis(Options):
    """What varies in one direction of a table."""

    name: str
    """What it is called: data, method, parties, ..."""
    option: str = ""
    """The study's option that takes the values, with points: `method.neighbours`."""
    values: list[str | int | float] | dict[str, dict[str, Any]]
    """What the option is, one value after another; or by name the tables of a study that it changes."""

    @model_validator(mode="after")
    def _has_its_option(self) -> Self:
        if isinstance(self.values, list) != bool(self.option):
            raise ValueError("a list of values needs an `option` that takes them, named values need none")
        return self

    def changes(self) -> dict[str, dict[str, Any]]:
        """By name of a value what it changes."""
        if isinstance(self.values, dict):
            return self.values
        return {str(value): nested({self.option: value}) for value in self.values}


class Figure(Options):
    """A number that every cell has."""

    metric: str
    """Its name among the run's metrics."""
    title: str = ""
    """What it is, for people."""
    times: float = 100.0
    """What it is multiplied with: 100 makes percent of shares."""
    digits: NonNegativeInt = 1
    """After the point, as a table shows it."""


class Tuning(Options):
    """Options that are chosen for every cell on validation data, with seeds that are not reported."""

    options: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(min_length=1)
    """The study's options with points, and what is tried of each."""
    metric: str = "val_accuracy"
    """Metric whose mean is best where it is largest."""
    seeds: list[NonNegativeInt] = Field(default=[1000], min_length=1)
    """Seeds of the trials."""


class Where(Options):
    """What is otherwise at some places."""

    at: dict[str, list[str]]
    """By axis the values it is about."""
    study: dict[str, Any] = Field(default={})
    """What is changed there."""
    tune: Tuning | None = None
    """What is chosen by validation there."""
    measure: dict[str, Any] | None = None
    """What is done with the study of a cell there."""
    skip: bool = False
    """There is nothing there."""


OWN = ("published", "claims", "seeds", "like")
"""What a table does not take from another one."""


class Table(Options):
    """A table or a figure of a paper, cell by cell a study with one method.

    Cells are all combinations of the axes' values, in order. The study of a cell is `study` with what its values change
    on top, axis after axis, then what `where` says. In it `method` is one table, of the only method.
    """

    title: str
    """What it shows."""
    like: str = ""
    """Another table of the paper: what is not said here is as there, but for its numbers, claims and seeds."""
    setting: str = ""
    """How it was run, and what the paper leaves open."""
    seeds: int = Field(5, ge=1)
    """Runs of every cell: with the seeds 0, 1, 2, ..."""
    study: dict[str, Any] = Field(default={})
    """What all cells have in common."""
    axes: list[Axis] = Field(min_length=1)
    """What varies."""
    where: list[Where] = Field(default=[])
    """What is otherwise at some places."""
    tune: Tuning | None = None
    """What is chosen by validation."""
    measure: dict[str, Any] = Field(default={"name": "training"})
    """What is done with the study of a cell."""
    figures: dict[str, Figure] = Field(min_length=1)
    """By name what is told of every cell; the first one is the headline."""
    columns: Literal["axis", "figures"] = "axis"
    """What is side by side: values of the last axis, in one table for each figure, or all figures."""
    spread: Literal["std", "range"] = "std"
    """What is told of the seeds beside their mean: their deviation, or their lowest and highest value too."""
    published: dict[str, Any] = Field(default={})
    """The paper's numbers: by figure, then by the values of the axes in order."""
    claims: list[Claim] = Field(default=[])
    """What the paper says that its numbers show."""
    quick: dict[str, Any] = Field(default={})
    """What of all studies is changed in a quick run, which has one seed."""

    @classmethod
    def of_file(cls, path: Path) -> Table:
        """What a file says, everything checked that can be checked without data."""
        values = read_toml(path)
        if isinstance(like := values.get("like"), str):
            base = read_toml(path.with_name(f"{like}.toml"))
            values = merged({key: base[key] for key in base if key not in OWN}, {"setting": f"As {like}.", **values})
        table = cls.read(values, str(path))
        try:
            table._check()
        except IsthmusError as error:
            raise IsthmusError(f"{path}: {error}") from error
        return table

    def _check(self) -> None:
        by_name = {axis.name: axis.changes() for axis in self.axes}
        for each in [*(w.at for w in self.where), *(c.at for c in self.claims)]:
            for axis, values in each.items():
                if axis not in by_name:
                    raise IsthmusError(f"there is no axis '{axis}': {did_you_mean(axis, by_name)}")
                for value in values:
                    if value not in by_name[axis]:
                        raise IsthmusError(f"axis '{axis}' has no '{value}': {did_you_mean(value, by_name[axis])}")
        for claim in self.claims:
            claim.check(by_name, self.figures)
        for figure, numbers in self.published.items():
            if figure not in self.figures:
                raise IsthmusError(f"published: there is no figure '{figure}': {did_you_mean(figure, self.figures)}")
            _check_published(numbers, [list(values) for values in by_name.values()], f"published.{figure}")
        for cell in self.cells():
            cell.how()
            for options in cell.trials() or [{}]:
                cell.planned(0, nested(options))

    def cells(self) -> Iterator[Cell]:
        """All of them, in order."""
        changes = [axis.changes() for axis in self.axes]
        for values in itertools.product(*changes):
            place = {axis.name: value for axis, value in zip(self.axes, values, strict=True)}
            study = self.study
            for of, value in zip(changes, values, strict=True):
                study = merged(study, of[value])
            tune, measure, skip = self.tune, self.measure, False
            for each in self.where:
                if all(place[axis] in found for axis, found in each.at.items()):
                    study, skip = merged(study, each.study), skip or each.skip
                    tune, measure = each.tune or tune, each.measure or measure
            if not skip:
                yield Cell(place, study, tune, measure)

    def quickly(self) -> Table:
        """The same with one seed and what `quick` changes, to see that it runs; without what the paper found."""
        last = Where(at={}, study=self.quick)
        tune = None if self.tune is None else self.tune.model_copy(update={"seeds": self.tune.seeds[:1]})
        return self.model_copy(
            update={"seeds": 1, "where": [*self.where, last], "tune": tune, "claims": [], "published": {}}
        )

    def paper(self, figure: str, place: Place) -> float | None:
        """The paper's number."""
        found: Any = self.published.get(figure)
        for axis in self.axes:
            found = found.get(place[axis.name]) if isinstance(found, Mapping) else None
        return None if found is None else float(found)


def _check_published(numbers: Any, values: list[list[str]], where: str) -> None:
    if not values:
        if not isinstance(numbers, int | float):
            raise IsthmusError(f"{where} is {numbers!r}: give a number")
        return
    if not isinstance(numbers, Mapping):
        raise IsthmusError(f"{where} is {numbers!r}: give a table with values of the axes, in their order")
    for name, inner in numbers.items():
        if name not in values[0]:
            raise IsthmusError(f"{where}: the axis has no '{name}': {did_you_mean(name, values[0])}")
        _check_published(inner, values[1:], f"{where}.{name}")


@dataclass(frozen=True)
class Cell:
    """One place in a table and its study."""

    place: Place
    study: Mapping[str, Any]
    tune: Tuning | None
    measure: Mapping[str, Any]

    @property
    def name(self) -> str:
        return ", ".join(self.place.values())

    @property
    def digest(self) -> str:
        """What its figures depend on, but for the code: figures of another digest are of another setting."""
        said = [self.study, None if self.tune is None else self.tune.model_dump(), self.measure]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def how(self) -> Measure:
        """What is done with the study."""
        options = {key: value for key, value in self.measure.items() if key != "name"}
        return Measure.named(str(self.measure.get("name"))).read(options, "measure")

    def planned(self, seed: int, changes: Mapping[str, Any] | None = None) -> Study:
        """Its study with one seed, and perhaps some options otherwise."""
        whole = merged(self.study, changes or {})
        method = whole.pop("method", {"name": "fedavg"})
        return Study.of({**whole, "methods": [method], "seeds": [seed]}, self.name)

    def trials(self) -> list[dict[str, Any]]:
        """What is tried: one option after another, by its name with points."""
        if self.tune is None:
            return []
        every = itertools.product(*self.tune.options.values())
        return [dict(zip(self.tune.options, values, strict=True)) for values in every]


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with points as tables.

    >>> nested({"method.local.lr": 0.1})
    {'method': {'local': {'lr': 0.1}}}
    """
    return settings([f"{name}={json.dumps(value)}" for name, value in options.items()])
