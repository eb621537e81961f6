"""The results of a table: a JSON file that is rewritten as a whole after every run."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.papers.plan import Cell, Table
from isthmus.study.results import versions
from isthmus.version import LAWS

Runs = list[dict[str, Any]]


@dataclass
class TableResults:
    """All runs of a table, each `{"seed", "figures", "curves", ...}`.

    Attributes:
        cells: by place, `{"at": place, "of": digest of the setting, "tuned": values of trials, "runs": runs}`.
        versions: sets of library versions; a run with another set than the first has its position as `with`.
    """

    cells: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    versions: list[Mapping[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> TableResults:
        """Read a file of results; a missing file has none."""
        if not path.exists():
            return cls()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls({tuple(cell["at"].values()): cell for cell in content["cells"]}, list(content["versions"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IsthmusError(f"{path} is not a file of results: delete it, or run with --force") from error

    def write(self, path: Path) -> None:
        """Write the file, a line per run."""
        head = json.dumps({"versions": self.versions, "threads": 1}, indent=1)[:-2]
        cells = ",\n".join(_lines(cell) for cell in self.cells.values() if cell["runs"] or cell["tuned"])
        store.write(path, f'{head},\n "cells": [\n{cells}\n ]\n}}\n')

    def runs(self, cell: Cell) -> Runs:
        """Return the runs of a cell in its present setting."""
        return list(self._current(cell)["runs"])

    def tuned(self, cell: Cell) -> dict[str, Any]:
        """Return the tuning metric by trial (its options as JSON) and seed."""
        return dict(self._current(cell)["tuned"])

    def _current(self, cell: Cell) -> dict[str, Any]:
        entry = self.cells.get(tuple(cell.place.values()))
        if entry is not None and entry["of"] == cell.digest:
            return entry
        return {"at": dict(cell.place), "of": cell.digest, "tuned": {}, "runs": []}

    def options(self, cell: Cell, *, again: bool = False) -> dict[str, Any] | None:
        """Return the options chosen for a cell: those of its runs, else of the trial with the best mean over seeds.

        None while trials are missing; the first of equal trials wins.

        Arguments:
            again: choose by the trials, whatever its runs have.
        """
        if cell.tune is None:
            return {}
        if (runs := self.runs(cell)) and not again:
            return dict(runs[0]["chosen"])
        return self._best(cell, self.trials(cell))

    def trials(self, cell: Cell) -> list[dict[str, Any]]:
        """List what to try for a cell: what its plan says and, where that was tried, what lies beyond a best end."""
        trials = cell.trials()
        for _ in range(cell.tune.widen if cell.tune else 0):
            best = self._best(cell, trials)
            further = cell.tune.beyond(trials, best) if cell.tune and best else []
            trials += [trial for trial in further if trial not in trials and cell.allows(trial)]
        return trials

    def _best(self, cell: Cell, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The trial with the best mean over seeds; None while trials are missing."""
        assert cell.tune is not None
        tuned, means = self.tuned(cell), []
        for trial in trials:
            values = tuned.get(json.dumps(trial), {})
            if any(str(seed) not in values for seed in cell.tune.seeds):
                return None
            figures = [values[str(seed)] for seed in cell.tune.seeds]
            means.append((-math.inf if None in figures else statistics.fmean(figures), trial))
        return dict(max(means, key=lambda each: each[0])[1])

    def add(self, cell: Cell, run: dict[str, Any], made_by: Mapping[str, str] | None = None) -> None:
        """Add a run in place of an older one with its seed.

        Results of another setting of the cell are dropped, and runs with other options than these.

        Arguments:
            made_by: versions of the libraries that made it; by default those that are installed.
        """
        current = made_by or versions()
        if current not in self.versions:
            self.versions.append(current)
        entry = self._entry(cell)
        runs = entry["runs"] = [
            each for each in entry["runs"] if each["seed"] != run["seed"] and each.get("chosen") == run.get("chosen")
        ]
        runs.append({**run, "with": position} if (position := self.versions.index(current)) else run)
        runs.sort(key=lambda each: each["seed"])

    def add_trial(self, cell: Cell, trial: str, seed: int, value: float) -> None:
        """Add the result of a trial; one that is not finite is kept as null."""
        self._entry(cell)["tuned"].setdefault(trial, {})[str(seed)] = value if math.isfinite(value) else None

    def _entry(self, cell: Cell) -> dict[str, Any]:
        entry = self.cells[tuple(cell.place.values())] = self._current(cell)
        return entry

    def is_older(self, run: Mapping[str, Any]) -> bool:
        """Whether code with other laws made a run, so that the same seed would now give other figures."""
        return self.versions[run.get("with", 0)].get("laws") != str(LAWS)

    def stale(self, table: Table) -> list[str]:
        """Name the cells whose runs have another setting than the table, or that the table no longer has."""
        digests = {tuple(cell.place.values()): cell.digest for cell in table.cells()}
        return [", ".join(key) for key, cell in self.cells.items() if cell["runs"] and digests.get(key) != cell["of"]]


def _lines(cell: Mapping[str, Any]) -> str:
    head = json.dumps({key: value for key, value in cell.items() if key != "runs"})[:-1]
    runs = ",\n".join(f"   {json.dumps(run)}" for run in cell["runs"])
    return f'  {head}, "runs": [\n{runs}\n  ]}}' if runs else f'  {head}, "runs": []}}'


def figure_values(table: Table, runs: Runs, figure: str) -> list[float]:
    """Return a figure of all runs, scaled for display."""
    times = table.figures[figure].times
    return [times * run["figures"][figure] for run in runs if figure in run["figures"]]


def by_seed(table: Table, results: TableResults, figure: str) -> dict[tuple[str, ...], dict[int, float]]:
    """Map each place (values of the axes in order) to a figure of its runs by seed, scaled for display."""
    times = table.figures[figure].times
    values = {}
    for cell in table.cells():
        if runs := [run for run in results.runs(cell) if figure in run["figures"]]:
            values[tuple(cell.place.values())] = {run["seed"]: times * run["figures"][figure] for run in runs}
    return values


def means(table: Table, results: TableResults, figure: str) -> dict[tuple[str, ...], float]:
    """Map each place to the mean of a figure over seeds."""
    return {place: statistics.fmean(values.values()) for place, values in by_seed(table, results, figure).items()}


def early_runs(table: Table, runs: Runs) -> list[bool]:
    """Say for each run whether it chose, or ended at, one of the first `table.early` rounds.

    A run of one round had no choice: it shows a model that was not trained.
    """
    return [
        run.get("rounds") != 1 and (run.get("round") or run.get("rounds") or math.inf) <= table.early for run in runs
    ]


def count_older(table: Table, results: TableResults) -> int:
    """Return how many of the runs that `count_runs` counts older code made."""
    return sum(results.is_older(run) for cell in table.cells() for run in results.runs(cell)[: table.seeds])


def count_runs(table: Table, results: TableResults) -> tuple[int, int]:
    """Return how many runs there are, and how many the whole table has."""
    cells = list(table.cells())
    return sum(min(len(results.runs(cell)), table.seeds) for cell in cells), table.seeds * len(cells)
