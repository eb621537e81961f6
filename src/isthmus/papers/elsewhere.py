"""Runs of a paper's other tables: what several tables show is run once."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from isthmus.errors import IsthmusError
from isthmus.papers.plan import Cell, nested
from isthmus.papers.shelf import ShelfEntry

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """A run of another table.

    Attributes:
        table: its name.
        metrics: by name, those of the table's figures that the run has.
        asked: names of all metrics that are figures of the table.
        versions: of the libraries that made it.
    """

    table: str
    run: Mapping[str, Any]
    metrics: Mapping[str, float]
    asked: Set[str]
    versions: Mapping[str, str]

    def with_figures(self, metrics: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
        """The run with these figures, by the names of their metrics, for a table that chose these options."""
        figures = {name: self.metrics[metric] for name, metric in metrics.items() if metric in self.metrics}
        about = {name: value for name, value in self.run.items() if name not in ("with", "chosen")}
        return {**about, "figures": figures, **({"chosen": options} if options else {}), "from": self.table}


@dataclass(frozen=True)
class Elsewhere:
    """The runs of other tables by present code.

    Arguments:
        tables: are read once a run is looked for.
    """

    tables: Sequence[ShelfEntry] = ()

    def find(
        self, cell: Cell, seed: int, options: Mapping[str, Any], metrics: Mapping[str, str], device: str | None
    ) -> Found | None:
        """Return a run of the same study, with the same measure and seed, that was asked for all of these metrics."""
        if not self.tables:
            return None
        found = self._runs.get(_what(cell, seed, options, device), ())
        return next((each for each in found if each.asked >= set(metrics.values())), None)

    @cached_property
    def _runs(self) -> dict[str, list[Found]]:
        found: dict[str, list[Found]] = defaultdict(list)
        for each in self.tables:
            try:
                own = list(_runs_of(each))
            except IsthmusError as error:
                log.warning("%s is left out, as it cannot be read: %s", each.name, error)
                continue
            for what, run in own:
                found[what].append(run)
        return dict(found)


def _runs_of(entry: ShelfEntry) -> Iterator[tuple[str, Found]]:
    """The runs of a table by present code, each with what it is of."""
    table, results = entry.outline, entry.results
    of = {name: figure.metric for name, figure in table.figures.items()}
    for cell in table.cells():
        for run in results.runs(cell):
            if not results.is_older(run):
                metrics = {of[name]: value for name, value in run["figures"].items()}
                found = Found(entry.table, run, metrics, set(of.values()), results.versions[run.get("with", 0)])
                yield _what(cell, run["seed"], run.get("chosen", {}), run.get("device")), found


def _what(cell: Cell, seed: int, options: Mapping[str, Any], device: str | None) -> str:
    """What a run is of, with all defaults filled in."""
    study = cell.study_for(seed, nested(options)).resolved()
    return json.dumps([study | ({"device": device} if device else {}), cell.measure], sort_keys=True)
