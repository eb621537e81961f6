"""The results of a folder in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus import result_files
from isthmus.errors import path_of
from isthmus.report.loading import ResultFolder, read_folder


@dataclass(frozen=True, repr=False)
class SavedResults:
    """What the report reads of a result folder, from `load_results`.

    Of a grid or a tuned study, each method stands here with its chosen setting, as in the report.

    Attributes:
        folder: where they are.
        study: the study with all its options spelled out.
        notes: what a reader of the results must know first, a line each.
        search: the settings that a grid or tuning tried, best first; None if each method had one.
    """

    folder: Path
    study: Mapping[str, Any]
    notes: list[str]
    _read: ResultFolder

    @property
    def search(self) -> result_files.Search | None:
        return self._read.results.search

    def __repr__(self) -> str:
        """The folder, the methods, and what to call."""
        runs = self._read.results.runs
        methods = ", ".join(dict.fromkeys(run.method for run in runs))
        count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
        return f"SavedResults of {count} in '{self.folder}': {methods}; see summary(), frame(), history(), model()"

    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds, per method and metric, as `Results.summary` has them."""
        results = self._read.results
        headline = {run.method: f"test_{run.metric}" for run in results.runs}
        return [
            {**score.model_dump(), "headline": score.metric == headline.get(score.method)} for score in results.summary
        ]

    def frame(self) -> Any:
        """A pandas data frame with a row per run: method, seed, rounds, seconds, and a column for each metric."""
        keys = ("method", "seed", "rounds", "chosen_round", "seconds")
        rows = [{**{key: getattr(run, key) for key in keys}, **run.metrics} for run in self._read.results.runs]
        return result_files.data_frame(rows)

    def history(self) -> Any:
        """A pandas data frame with a row per evaluated round and metric: method, seed, round, metric, value."""
        return result_files.data_frame(self._read.history.to_pydict())

    def model(
        self, method: str | None = None, seed: int | None = None, *, party: str | None = None, module: Any = None
    ) -> Any:
        """A trained model of the folder, ready for new data; the arguments are those of `isthmus.load_model`."""
        from isthmus.study.model_files import load_model  # tables need no PyTorch

        return load_model(self.folder, method, seed=seed, party=party, module=module)


def load_results(folder: Path | str) -> SavedResults:
    """Load the results that a study wrote to a folder.

    >>> load_results("runs/nowhere")
    Traceback (most recent call last):
    isthmus.errors.IsthmusError: no study.toml in 'runs/nowhere': name a folder that a finished study has written
    """
    path = path_of(folder, "load_results: folder")
    found = read_folder(path)
    return SavedResults(path, found.results.study, found.results.notes, found)
