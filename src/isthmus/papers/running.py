"""Runs a table's cells in processes of one thread each; stopped runs resume from their last checkpoint."""

from __future__ import annotations

import datetime
import json
import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.errors import DIVERGED, IsthmusError, did_you_mean
from isthmus.own_code import where_raised
from isthmus.papers.claims import check_values
from isthmus.papers.elsewhere import Elsewhere
from isthmus.papers.measures import Measure
from isthmus.papers.plan import Cell, Table, nested, trial_measure
from isthmus.papers.results import TableResults
from isthmus.study.loop import previous_of
from isthmus.study.processes import Pool, Processes, Send
from isthmus.study.setup import device_named


@dataclass(frozen=True)
class Job:
    """One run in a process of its own.

    Attributes:
        trial: the options to try, as JSON; empty for a reported run.
        options: the options to try, or those chosen by validation.
        metrics: the metrics to report, by figure.
        device: where models are trained, in place of what the plan says.
    """

    cell: Cell
    seed: int
    trial: str
    options: Mapping[str, Any]
    metrics: Mapping[str, str]
    measure: Measure
    checkpoint: Path
    device: str | None

    @property
    def name(self) -> str:
        return f"{self.cell.name}{f', {self.trial}' if self.trial else ''}, seed {self.seed}"


@dataclass(frozen=True)
class Progress:
    """How far a table is.

    Attributes:
        left: estimated seconds until the end; none before the first run has ended.
        line: what has just ended.
    """

    done: int
    total: int
    left: float | None = None
    line: str = ""


@dataclass
class Runner:
    """Runs what a table's results lack.

    Arguments:
        state: folder for checkpoints.
        max_seeds: seeds per cell, at most.
        only: the cells to run, as values by axis; all if empty.
        device: where models are trained, in place of what the plan says; results name it unless it is the CPU.
        renew: also repeat what older code ran. Where a plan widens its trials, also try what lies beyond a best end,
            and repeat the runs of a cell whose best changes.
        elsewhere: other tables, whose runs are taken where they are what this one lacks.
        save: called after every run with the results.
        on_progress: called with the progress.
    """

    table: Table
    results: TableResults
    state: Path
    max_seeds: int | None = None
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    device: str | None = None
    renew: bool = False
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    save: Callable[[TableResults], None] = lambda results: None
    on_progress: Callable[[Progress], None] = lambda progress: None

    def __post_init__(self) -> None:
        check_values(self.only, {axis.name: axis.changes() for axis in self.table.axes}, "--only: ")
        self.cells = [
            cell for cell in self.table.cells() if all(cell.place[axis] in values for axis, values in self.only.items())
        ]
        self.seconds = {
            cell.name: [run["seconds"] for run in runs] for cell in self.cells if (runs := self.results.runs(cell))
        }

    def run(self, processes: int, pool: Pool | None = None) -> list[str]:
        """Run everything, in so many processes, or those of a pool; return a line for each failed run."""
        if pool is None:  # the machines of a pool look for themselves
            device_named(self.device or "cpu")
        self.state.mkdir(parents=True, exist_ok=True)
        try:
            with pool or Processes(processes) as pool:
                failed: list[str] = []
                while (trials := list(self._trials())) and not failed:  # what is best decides on what else to try
                    failed += self._all(pool, trials, processes)
                failed += self._all(pool, self._take(list(self._runs())), processes)
        finally:
            for folder in (self.state, self.state.parent):
                with suppress(OSError):  # with checkpoints of runs that failed, or were stopped
                    folder.rmdir()
        return failed

    def discard(self) -> None:
        """Delete the results and checkpoints of the cells to run."""
        for cell in self.cells:
            self.results.cells.pop(tuple(cell.place.values()), None)
            for checkpoint in self.state.glob(f"{cell.digest}-*.checkpoint*"):
                checkpoint.unlink(missing_ok=True)

    def _trials(self) -> Iterator[Job]:
        """Yield the trials that are missing."""
        for cell in self.cells:
            if cell.tune is None or self._options(cell) is not None:
                continue  # its options are chosen already
            tuned, measure = self.results.tuned(cell), trial_measure(cell.read_measure())
            for trial in self.results.trials(cell):
                text = json.dumps(trial)
                for seed in cell.tune.seeds:
                    if str(seed) not in tuned.get(text, {}):
                        yield self._job(cell, seed, text, trial, measure, {"tuned": cell.tune.metric})

    def _runs(self) -> Iterator[Job]:
        """Yield the runs to report, with the chosen options; a cell whose trials failed is left out."""
        metrics = {name: figure.metric for name, figure in self.table.figures.items()}
        for cell in self.cells:
            options = self._options(cell)
            runs = self.results.runs(cell)
            if self.renew:
                runs = [run for run in runs if not self.results.is_older(run) and run.get("chosen", {}) == options]
            done = {run["seed"] for run in runs}
            for seed in range(min(self.table.seeds, self.max_seeds or self.table.seeds)):
                if seed not in done and options is not None:
                    yield self._job(cell, seed, "", options, cell.read_measure(), metrics)

    def _take(self, jobs: Sequence[Job]) -> list[Job]:
        """Take the runs that other tables have; return the jobs that are left."""
        left = []
        for job in jobs:
            found = self.elsewhere.find(job.cell, job.seed, job.options, job.metrics, job.device)
            if found is None:
                left.append(job)
                continue
            self.results.add(job.cell, found.with_figures(job.metrics, job.options), found.versions)
            self.on_progress(Progress(0, len(jobs), line=f"{job.name}: is in {found.table}"))
        if len(left) < len(jobs):
            self.save(self.results)
        return left

    def _options(self, cell: Cell) -> dict[str, Any] | None:
        """The options chosen for a cell; none while trials are missing."""
        return self.results.options(cell, again=self.renew and cell.tune is not None and cell.tune.widen > 0)

    def _job(
        self, cell: Cell, seed: int, trial: str, options: Mapping[str, Any], how: Measure, metrics: Mapping[str, str]
    ) -> Job:
        mark = zlib.crc32(f"{cell.name} {trial}".encode())
        checkpoint = self.state / f"{cell.digest}-{mark}-{seed}.checkpoint"
        return Job(cell, seed, trial, options, metrics, how, checkpoint, self.device)

    def _all(self, pool: Pool, jobs: Sequence[Job], processes: int) -> list[str]:
        """Run these jobs, and save each result at once."""
        failed: list[str] = []
        left = list(jobs)
        self.on_progress(Progress(0, len(jobs), self._seconds(left, processes)))
        for job, done in pool.run(run_job, jobs):
            left.remove(job)
            line = self._collect(job, done, failed)
            self.on_progress(Progress(len(jobs) - len(left), len(jobs), self._seconds(left, processes), line))
        return failed

    def _collect(self, job: Job, done: Future[dict[str, Any]], failed: list[str]) -> str:
        try:
            run = done.result()
        except Exception as error:  # a failed cell must not stop the others
            text = " ".join(str(error).split())[:300]
            if job.trial and isinstance(error, DIVERGED):
                self.results.add_trial(job.cell, job.trial, job.seed, math.nan)
                self.save(self.results)
                _forget(job)
                return f"{job.name}: diverged, {text}"
            at = where_raised(error)
            kind = "" if isinstance(error, IsthmusError) else f"{f'{at}: ' if at else ''}{type(error).__name__}: "
            failed.append(f"{job.name}: {kind}{text}")
            return failed[-1]
        self.seconds.setdefault(job.cell.name, []).append(run["seconds"])
        if job.trial:
            self.results.add_trial(job.cell, job.trial, job.seed, run["figures"]["tuned"])
        else:
            self.results.add(job.cell, run)
        self.save(self.results)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in run["figures"].items())
        return f"{job.name}: {figures}, in {run['seconds']:.1f} s"

    def _seconds(self, jobs: Sequence[Job], processes: int) -> float | None:
        """Estimate the time until these jobs end from the means of their cells."""
        means = {name: statistics.fmean(seconds) for name, seconds in self.seconds.items()}
        if not means:
            return None
        other = statistics.fmean(means.values())
        return sum(means.get(job.cell.name, other) for job in jobs) / processes


def run_job(job: Job, send: Send) -> dict[str, Any]:
    """Run a job, from its checkpoint if there is one, and return its entry in the results."""
    began = time.perf_counter()
    checkpoint = job.checkpoint if job.checkpoint.parent.is_dir() else None  # another machine may lack the folder
    changes = nested(job.options) | ({} if job.device is None else {"device": job.device})
    study = job.cell.study_for(job.seed, changes)
    measured = job.measure.run(study, job.seed, checkpoint)
    missing = [metric for metric in job.metrics.values() if metric not in measured.metrics]
    if len(missing) == len(job.metrics):
        raise IsthmusError(f"no metric '{missing[0]}': {did_you_mean(missing[0], measured.metrics)}")
    figures = {name: measured.metrics[metric] for name, metric in job.metrics.items() if metric in measured.metrics}
    _forget(job)
    return {
        "seed": job.seed,
        "figures": {name: round(value, 6) for name, value in figures.items()},
        **({"curves": measured.curves} if measured.curves else {}),
        **({"pictures": measured.pictures} if measured.pictures else {}),
        **({"chosen": job.options} if job.options else {}),
        **measured.about,
        **({"device": study.device} if study.device != "cpu" else {}),
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.date.today().isoformat(),
    }


def _forget(job: Job) -> None:
    """Delete the checkpoints of a job that is done."""
    for path in (job.checkpoint, previous_of(job.checkpoint)):
        path.unlink(missing_ok=True)
