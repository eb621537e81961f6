"""A table of a paper, read from TOML: a study, what varies from cell to cell, the paper's numbers and its claims."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PrivateAttr, field_validator, model_validator

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.methods.base import Method
from isthmus.methods.training import PLAIN_LR
from isthmus.options import Options, merge, option_paths, suggest_option
from isthmus.papers.claims import FIGURES, Claim, check_values
from isthmus.papers.measures import Measure
from isthmus.papers.measures.training import Training
from isthmus.study.config import Study, parse_assignments, read_toml
from isthmus.study.settings import flatten
from isthmus.study.setup import suited

Place = Mapping[str, str]
"""Where a cell stands in its table: one value of each axis, by the axis's name."""


class Axis(Options):
    """One direction of a table, and what varies along it."""

    name: str
    """Its name: data, method, parties, ..."""
    option: str = ""
    """The dotted study option that takes the values: `method.neighbours`."""
    values: list[str | int | float] | dict[str, dict[str, Any]]
    """Values of the option; without an option, named changes to the study."""

    @model_validator(mode="after")
    def _has_its_option(self) -> Self:
        if isinstance(self.values, list) != bool(self.option):
            raise ValueError("a list of values needs an `option`, named values must not have one")
        return self

    @field_validator("values")
    @classmethod
    def _has_different_values(cls, values: Any) -> Any:
        names = [str(value) for value in values]
        if not names:
            raise ValueError("there is no value: name at least one")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' is there twice: name each value once")
        return values

    def changes(self) -> dict[str, dict[str, Any]]:
        """Map each value's name to the study options that it changes."""
        if isinstance(self.values, dict):
            return self.values
        return {str(value): nested({self.option: value}) for value in self.values}


class Figure(Options):
    """A number that every cell has."""

    metric: str
    """The metric of the run that it shows."""
    title: str = ""
    """Its title in tables."""
    times: float = 100.0
    """Factor for display: 100 turns shares into percent."""
    digits: NonNegativeInt = 1
    """Digits after the decimal point in tables."""


class Tuning(Options):
    """Hyper-parameters that are chosen for each cell on validation data, with seeds that are not reported."""

    options: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(min_length=1)
    """Dotted study options, each with the values to try."""
    metric: str = "val_accuracy"
    """The metric to choose by: the trial with the largest mean wins."""
    seeds: list[NonNegativeInt] = Field(default=[1000], min_length=1)
    """Seeds of the trials."""
    sample: NonNegativeInt = 0
    """Try so many combinations, drawn at random; 0 tries all. Options may differ from cell to cell at an equal cost."""
    widen: NonNegativeInt = 0
    """While the best trial is at an end of what was tried, go a step further there, so many times at most."""

    @field_validator("metric")
    @classmethod
    def _is_not_of_test_data(cls, metric: str) -> str:
        if "test" in re.split("[_ ]", metric):
            raise ValueError(f"'{metric}' is of test data, which choose nothing: name one of validation data")
        return metric

    def for_quick_run(self) -> Tuning:
        """Return a copy with one seed that goes beyond no end."""
        return self.model_copy(update={"seeds": self.seeds[:1], "widen": 0})

    def beyond(self, trials: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The trials one step beyond each end that the best one is at, by the ratio of the last two numbers.

        >>> Tuning(options={"method.local.lr": [0.01, 0.1]}).beyond([], {"method.local.lr": 0.1})
        [{'method.local.lr': 1.0}]
        """
        further = []
        for name, values in self.options.items():
            tried = sorted(set(only_numbers([*values, *(trial[name] for trial in trials)])))
            for end, inner in ((tried[:1], tried[1:2]), (tried[-1:], tried[-2:-1])):
                if inner and end == [best[name]] and min(tried) > 0:
                    value = type(best[name])(float(f"{end[0] ** 2 / inner[0]:.6g}"))
                    further += [{**best, name: value}] if value > 0 else []
        return further


class Choice(Options):
    """One choice for all cells, by figures of validation data: how embeddings are scaled, which features nodes have."""

    says: str
    """What is chosen, in words."""
    along: str
    """The axis whose values there are to choose from; `figures` chooses among figures of each cell."""
    figure: str = ""
    """Along an axis: the figure to choose by; the value with the largest mean wins."""
    figures: dict[str, str] = Field(default={})
    """Along `figures`: by name of what there is to choose from, the figure to choose by."""
    at: dict[str, list[str]] = Field(default={})
    """The cells that decide, as values by axis; all cells if empty."""

    def check(self, axes: Mapping[str, Collection[str]], figures: Collection[str]) -> None:
        """Raise an error if the table lacks the axis, or a figure."""
        if self.along != FIGURES:
            check_values({self.along: []}, axes, "choices: ")
        check_values(self.at, axes, "choices: ")
        for figure in self.figures.values() if self.along == FIGURES else [self.figure]:
            if figure not in figures:
                raise IsthmusError(f"choices: there is no figure '{figure}': {did_you_mean(figure, figures)}")


class Where(Options):
    """An exception for some cells."""

    at: dict[str, list[str]]
    """The cells, as values by axis."""
    study: dict[str, Any] = Field(default={})
    """Changes to their study."""
    tune: Tuning | Literal[False] | None = None
    """Their tuning, instead of the table's; `false` for none."""
    measure: dict[str, Any] | None = None
    """Their measure, instead of the table's."""
    skip: bool = False
    """Leave these cells out."""


def trial_measure(measure: Measure) -> Measure:
    """What trials do: they train, as runs do or, where these measure something else, plainly."""
    return measure if isinstance(measure, Training) else Training()


def only_numbers(values: Sequence[Any]) -> list[float]:
    """The numbers among the values of an option."""
    return [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]


OWN = ("published", "claims", "seeds", "like")
"""Fields that a table does not inherit through `like`."""


class Table(Options):
    """A table or a figure of a paper. Each cell is a study with one method.

    Cells are all combinations of the axes' values, in order. A cell's study is `study`, then the changes of its axis
    values, axis after axis, then those of `where`. In it, `method` is one table: the only method.
    """

    title: str
    """What it shows."""
    like: str = ""
    """Another table of the paper to inherit from: everything but its numbers, claims and seeds."""
    setting: str = ""
    """How it was run, and what the paper leaves open."""
    seeds: int = Field(5, ge=1)
    """Runs per cell, with the seeds 0, 1, 2, ..."""
    study: dict[str, Any] = Field(default={})
    """What all cells have in common."""
    axes: list[Axis] = Field(min_length=1)
    """What varies."""
    where: list[Where] = Field(default=[])
    """Exceptions for some cells."""
    tune: Tuning | None = None
    """Hyper-parameters to choose on validation data."""
    suited: bool = False
    """Whether a method that names no local learning rate takes the encoder's, as in a study of its own; else 0.01."""
    measure: dict[str, Any] = Field(default={"name": "training"})
    """What to do with a cell's study: a measure and its options."""
    figures: dict[str, Figure] = Field(min_length=1)
    """Numbers of every cell by name; the first is the headline."""
    columns: Literal["axis", "figures"] = "axis"
    """What columns are: values of the last axis, with one table per figure; or all figures in one table."""
    early: NonNegativeInt = 0
    """A run that chose one of so many first rounds is marked; a mean of mostly such runs supports no claim."""
    spread: Literal["std", "range"] = "std"
    """How seeds vary, after their mean: the standard deviation, or also the lowest and highest value."""
    published: dict[str, Any] = Field(default={})
    """The paper's numbers: by figure, then by the values of the axes in order."""
    choices: list[Choice] = Field(default=[])
    """What validation chooses once for all cells."""
    claims: list[Claim] = Field(default=[])
    """What the paper concludes from its numbers."""
    quick: dict[str, Any] = Field(default={})
    """Changes to all studies in a quick run, which has one seed."""
    _folder: Path = PrivateAttr(default=Path())
    """Where its file is. Studies import Python files from there."""

    @classmethod
    def of_file(cls, path: Path, *, check: bool = True) -> Table:
        """Read a table and check everything that can be checked without data: names of options, claims, numbers."""
        table = cls.read(_inherited(path), str(path))
        table._folder = path.parent
        try:
            if check:
                table._check()
        except IsthmusError as error:
            raise IsthmusError(f"{path}: {error}") from error
        return table

    def _check(self) -> None:
        by_name = {axis.name: axis.changes() for axis in self.axes}
        if len(by_name) < len(self.axes):
            raise IsthmusError("axes: two have the same name: give each a name of its own")
        named = [axis.option for axis in self.axes if axis.option]
        named += [name for each in (self.tune, *(where.tune for where in self.where)) if each for name in each.options]
        for name in named:
            if name.partition(".")[0] not in {*Study.option_names(), "method"}:
                in_method = option_paths(Method.known().values(), "method.")
                raise IsthmusError(f"unknown option '{name}' of a study: {suggest_option(name, in_method)}")
        for at in [*(w.at for w in self.where), *(c.at for c in self.claims)]:
            check_values(at, by_name)
        for claim in self.claims:
            claim.check(by_name, self.figures)
        for choice in self.choices:
            choice.check(by_name, self.figures)
        for figure, numbers in self.published.items():
            if figure not in self.figures:
                raise IsthmusError(f"published: there is no figure '{figure}': {did_you_mean(figure, self.figures)}")
            _check_published(numbers, [list(values) for values in by_name.values()], f"published.{figure}")
        seen: set[str] = set()
        tuned: dict[str, Cell] = {}
        changes = [change for of in by_name.values() for change in of.values()]
        studies = (self.study, self.quick, *(where.study for where in self.where), *changes)
        given = {key for each in studies for key in each} | {name.partition(".")[0] for name in named}
        for key, instead in (("methods", "one table, `method`"), ("seeds", "`seeds` of the table"), ("grid", "axes")):
            if key in given:
                raise IsthmusError(f"study: a cell has one method and one seed, and no '{key}': give {instead}")
        for cell in self.cells():
            self._check_metrics(cell)
            if cell.tune is not None:
                self._check_tuning(cell.tune)
                rest = {key: value for key, value in flatten(cell.study).items() if key not in cell.tune.options}
                same = tuned.setdefault(json.dumps([rest, cell.tune.model_dump(), cell.measure], sort_keys=True), cell)
                if same is not cell:
                    raise IsthmusError(
                        f"tune.options: '{same.name}' and '{cell.name}' differ at most in what is tuned: leave one out"
                    )
            trials, method = cell.trials() or [{}], json.dumps([cell.study.get("method"), cell.trials()])
            for options in trials[:1] if method in seen else trials:  # the other trials fit a method or do not
                cell.study_for(0, nested(options))
            seen.add(method)

    def _check_metrics(self, cell: Cell) -> None:
        measure = cell.read_measure()
        if "import" not in cell.study:  # whose tasks may have metrics of their own
            for figure in self.figures.values():
                measure.check_metric(figure.metric)
            if cell.tune is not None:
                trial_measure(measure).check_metric(cell.tune.metric)

    def _check_tuning(self, tune: Tuning) -> None:
        if reported := [seed for seed in tune.seeds if seed < self.seeds]:
            raise IsthmusError(
                f"tune.seeds: {reported[0]} is also a seed of the runs, which choose nothing: give {self.seeds} or more"
            )

    def cells(self) -> Iterator[Cell]:
        """Yield all cells, in order."""
        changes = [axis.changes() for axis in self.axes]
        for values in itertools.product(*changes):
            place = {axis.name: value for axis, value in zip(self.axes, values, strict=True)}
            study = self.study
            for by_value, value in zip(changes, values, strict=True):
                study = merge(study, by_value[value])
            tune, measure, skip = self.tune, self.measure, False
            for each in self.where:
                if all(place[axis] in values for axis, values in each.at.items()):
                    study, skip = merge(study, each.study), skip or each.skip
                    tune = tune if each.tune is None else each.tune or None
                    measure = each.measure or measure
            if not skip:
                yield Cell(place, study, tune, measure, self.suited, self._folder)

    def for_quick_run(self) -> Table:
        """Return a copy with one seed, the changes of `quick`, and neither claims nor the paper's numbers."""
        last = Where(at={}, study=self.quick)
        where = [each.model_copy(update={"tune": each.tune and each.tune.for_quick_run()}) for each in self.where]
        tune = self.tune and self.tune.for_quick_run()
        return self.model_copy(
            update={
                "seeds": 1,
                "where": [*where, last],
                "tune": tune,
                "early": 0,
                "claims": [],
                "choices": [],
                "published": {},
            }
        )

    def published_value(self, figure: str, place: Place) -> float | None:
        """Return the paper's number for a figure of a cell, if it has one."""
        value: Any = self.published.get(figure)
        for axis in self.axes:
            value = value.get(place[axis.name]) if isinstance(value, Mapping) else None
        return None if value is None else float(value)


def _inherited(path: Path) -> dict[str, Any]:
    """Read a file and, beneath its values, those of the table that it is like, which may itself be like another."""
    values = read_toml(path)
    if not isinstance(like := values.get("like"), str) or like == path.stem:
        return values
    other = path.with_name(f"{like}.toml")
    if not other.exists():
        there = sorted(each.stem for each in path.parent.glob("*.toml") if each != path)
        raise IsthmusError(f"{path}: like: there is no table '{like}' beside it: {did_you_mean(like, there)}")
    base = _inherited(other)
    return merge({key: base[key] for key in base if key not in OWN}, {"setting": f"As {like}.", **values})


def _check_published(numbers: Any, values: list[list[str]], where: str) -> None:
    if not values:
        if not isinstance(numbers, int | float):
            raise IsthmusError(f"{where} is {numbers!r}: replace it by a number")
        return
    if not isinstance(numbers, Mapping):
        raise IsthmusError(f"{where} is {numbers!r}: replace it by a table of the axes' values, in their order")
    for name, inner in numbers.items():
        if name not in values[0]:
            raise IsthmusError(f"{where}: the axis has no '{name}': {did_you_mean(name, values[0])}")
        _check_published(inner, values[1:], f"{where}.{name}")


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its place, its study, and what to do with it."""

    place: Place
    study: Mapping[str, Any]
    tune: Tuning | None
    measure: Mapping[str, Any]
    suited: bool = False
    folder: Path = Path()

    @property
    def name(self) -> str:
        return ", ".join(self.place.values())

    @cached_property
    def digest(self) -> str:
        """A hash of the setting and of imported files: results with another digest are stale."""
        own = {"widen"} if self.tune and self.tune.sample else {"widen", "sample"}  # a wider grid keeps its trials
        tune = None if self.tune is None else self.tune.model_dump(exclude=own)
        setting = [self.study, tune, self.measure, *([self._rates()] if self.suited else []), *self._presets()]
        code = [file.read_bytes() for file in self.imported() if file.is_file()]
        return hashlib.sha256(json.dumps(setting, sort_keys=True).encode() + b"".join(code)).hexdigest()[:12]

    def _presets(self) -> list[Mapping[str, Any]]:
        """What the presets stand for that the study names."""
        method = self.study.get("method")
        if not isinstance(method, dict) or not method.get("preset"):
            return []
        return [each.presets[method["preset"]] for each in self.study_for(0).method_list()]

    def _rates(self) -> dict[str, float]:
        """The learning rates that the encoder brings to nodes where the table names none."""
        study = self.study_for(0)
        tuned = {} if self.tune is None else self.tune.options
        (method,) = study.method_list()
        rated = suited(method, study.encoder(), "node")
        changed = [name for name, own in method if getattr(rated, name) != own and f"method.{name}.lr" not in tuned]
        return {name: getattr(rated, name).lr for name in changed}

    def imported(self) -> list[Path]:
        """The Python files that its study imports."""
        files = self.study.get("import")
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            return []  # which a study says in words
        return [self.folder / file for file in files]

    def read_measure(self) -> Measure:
        """Return what is done with the study."""
        options = {key: value for key, value in self.measure.items() if key != "name"}
        return Measure.named(str(self.measure.get("name"))).read(options, "measure")

    def study_for(self, seed: int, changes: Mapping[str, Any] | None = None) -> Study:
        """Return its study with one seed, and with these changes on top."""
        whole = merge(self.study, changes or {})
        method = whole.pop("method", {"name": Method.default_name()})
        if files := self.imported():
            whole["import"] = [str(file) for file in files]
        study = Study.of({**whole, "methods": [method], "seeds": [seed]}, self.name)
        rated = [each.with_rate(PLAIN_LR) for each in study.listed_methods()]
        return study if self.suited else study.with_methods(rated)

    def allows(self, trial: Mapping[str, Any]) -> bool:
        """Whether the study takes these values: a step beyond an end may leave an option's range."""
        try:
            self.study_for(0, nested(trial))
        except IsthmusError:
            return False
        return True

    def trials(self) -> list[dict[str, Any]]:
        """List the combinations of hyper-parameters to try first, as values by dotted option."""
        if self.tune is None:
            return []
        combinations = list(itertools.product(*self.tune.options.values()))
        if 0 < self.tune.sample < len(combinations):
            combinations = random.Random(0).sample(combinations, self.tune.sample)
        return [dict(zip(self.tune.options, values, strict=True)) for values in combinations]


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted options into tables.

    >>> nested({"method.local.lr": 0.1})
    {'method': {'local': {'lr': 0.1}}}
    """
    return parse_assignments([f"{name}={json.dumps(value)}" for name, value in options.items()])
