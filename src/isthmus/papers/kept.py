"""What was run of a table: a JSON file beside it that is whole after every run."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.papers.plan import Cell, Table
from isthmus.study.results import versions

Runs = list[dict[str, Any]]


@dataclass
class Kept:
    """Runs by cell, each `{"seed", "figures", "curves", ...}`.

    Attributes:
        cells: `{"at": place, "of": the setting's digest, "tuned": options, "runs": runs}` by place.
    """

    cells: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    versions: list[Mapping[str, str]] = field(default_factory=list)
    """Of the libraries; a run that is not of the first set says which one it is `with`."""

    @classmethod
    def read(cls, path: Path) -> Kept:
        """What a file holds; nothing where there is none."""
        if not path.exists():
            return cls()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls({tuple(cell["at"].values()): cell for cell in found["cells"]}, list(found["versions"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IsthmusError(f"{path} holds no results of a table: delete it, or run with --force") from error

    def write(self, path: Path) -> None:
        """Whole or not at all, a line for each run."""
        head = json.dumps({"versions": self.versions, "threads": 1}, indent=1)[:-2]
        cells = ",\n".join(_lines(cell) for cell in self.cells.values() if cell["runs"] or cell["tuned"])
        store.write(path, f'{head},\n "cells": [\n{cells}\n ]\n}}\n')

    def runs(self, cell: Cell) -> Runs:
        """Of a cell in its present setting."""
        found = self.cells.get(tuple(cell.place.values()))
        return list(found["runs"]) if found is not None and found["of"] == cell.digest else []

    def tuned(self, cell: Cell) -> dict[str, Any]:
        """By trial, as JSON, and seed the metric that options are chosen by."""
        found = self.cells.get(tuple(cell.place.values()))
        return dict(found["tuned"]) if found is not None and found["of"] == cell.digest else {}

    def options(self, cell: Cell) -> dict[str, Any] | None:
        """What was chosen for a cell: what its runs have, else the first trial whose mean over all seeds is best; none
        while trials are left."""
        if cell.tune is None:
            return {}
        if runs := self.runs(cell):
            return dict(runs[0]["chosen"])
        tuned, means = self.tuned(cell), []
        for trial in cell.trials():
            values = tuned.get(json.dumps(trial), {})
            if any(str(seed) not in values for seed in cell.tune.seeds):
                return None
            mean = statistics.fmean(values[str(seed)] for seed in cell.tune.seeds)
            means.append((-math.inf if math.isnan(mean) else mean, trial))
        return max(means, key=lambda each: each[0])[1]

    def add(self, cell: Cell, run: dict[str, Any]) -> None:
        """One run more; those of another setting are gone then."""
        now = versions()
        if now not in self.versions:
            self.versions.append(now)
        runs = self._own(cell)["runs"]
        runs.append({**run, "with": at} if (at := self.versions.index(now)) else run)
        runs.sort(key=lambda each: each["seed"])

    def add_trial(self, cell: Cell, trial: str, seed: int, value: float) -> None:
        """One trial more."""
        self._own(cell)["tuned"].setdefault(trial, {})[str(seed)] = value

    def _own(self, cell: Cell) -> dict[str, Any]:
        key = tuple(cell.place.values())
        if key not in self.cells or self.cells[key]["of"] != cell.digest:
            self.cells[key] = {"at": dict(cell.place), "of": cell.digest, "tuned": {}, "runs": []}
        return self.cells[key]

    def stale(self, table: Table) -> list[str]:
        """Names of cells with runs of a setting that is not the table's any more, or that the table does not have."""
        now = {tuple(cell.place.values()): cell.digest for cell in table.cells()}
        return [", ".join(key) for key, cell in self.cells.items() if cell["runs"] and now.get(key) != cell["of"]]


def _lines(cell: Mapping[str, Any]) -> str:
    head = json.dumps({key: value for key, value in cell.items() if key != "runs"})[:-1]
    runs = ",\n".join(f"   {json.dumps(run)}" for run in cell["runs"])
    return f'  {head}, "runs": [\n{runs}\n  ]}}' if runs else f'  {head}, "runs": []}}'


def values_of(table: Table, runs: Runs, figure: str) -> list[float]:
    """A figure of all runs, as the table tells it."""
    told = table.figures[figure]
    return [told.times * run["figures"][figure] for run in runs if figure in run["figures"]]


def by_seed(table: Table, kept: Kept, figure: str) -> dict[tuple[str, ...], dict[int, float]]:
    """A figure of all runs, as the table tells it, by place, as values of the axes in order, and seed."""
    times = table.figures[figure].times
    found = {}
    for cell in table.cells():
        runs = [run for run in kept.runs(cell) if figure in run["figures"]]
        if runs:
            found[tuple(cell.place.values())] = {run["seed"]: times * run["figures"][figure] for run in runs}
    return found


def means(table: Table, kept: Kept, figure: str) -> dict[tuple[str, ...], float]:
    """The mean over seeds by place."""
    return {place: statistics.fmean(values.values()) for place, values in by_seed(table, kept, figure).items()}


def counted(table: Table, kept: Kept) -> tuple[int, int]:
    """Runs that there are, and runs of the whole table."""
    cells = list(table.cells())
    return sum(min(len(kept.runs(cell)), table.seeds) for cell in cells), table.seeds * len(cells)
