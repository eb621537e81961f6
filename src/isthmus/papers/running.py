"""Runs a table's cells in processes of one thread each; what is killed goes on from its last checkpoint."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import signal
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.papers.kept import Kept
from isthmus.papers.measures import Measure
from isthmus.papers.measures.training import Training
from isthmus.papers.plan import Cell, Table, nested


@dataclass(frozen=True)
class Job:
    """One run in a process of its own.

    Attributes:
        trial: options that are tried, as JSON; empty where a run is reported.
        options: what was chosen by validation, or is tried.
        metrics: what is told of it, by name.
    """

    cell: Cell
    seed: int
    trial: str
    options: Mapping[str, Any]
    metrics: Mapping[str, str]
    measure: Measure
    checkpoint: Path

    @property
    def name(self) -> str:
        return f"{self.cell.name}{f', {self.trial}' if self.trial else ''}, seed {self.seed}"


@dataclass(frozen=True)
class Standing:
    """How far a table is.

    Attributes:
        left: seconds until the end, as cells took so far; none before the first one has ended.
        line: what has just ended.
    """

    done: int
    total: int
    left: float | None = None
    line: str = ""


@dataclass
class Runner:
    """Runs what a table does not have yet.

    Arguments:
        state: folder for what a killed run goes on from.
        most: seeds of a cell, at most.
        only: by axis the values that are run; all of it without.
        keep: called when something new is in `kept`.
        told: called with how far it is.
    """

    table: Table
    kept: Kept
    state: Path
    most: int | None = None
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keep: Callable[[Kept], None] = lambda kept: None
    told: Callable[[Standing], None] = lambda standing: None

    def __post_init__(self) -> None:
        axes = {axis.name: list(axis.changes()) for axis in self.table.axes}
        for axis, values in self.only.items():
            if axis not in axes:
                raise IsthmusError(f"--only {axis}: there is no such axis: {did_you_mean(axis, axes)}")
            for value in values:
                if value not in axes[axis]:
                    raise IsthmusError(
                        f"--only {axis}={value}: there is no such value: {did_you_mean(value, axes[axis])}"
                    )
        self.cells = [
            cell for cell in self.table.cells() if all(cell.place[axis] in found for axis, found in self.only.items())
        ]
        self.seconds = {
            cell.name: [run["seconds"] for run in runs] for cell in self.cells if (runs := self.kept.runs(cell))
        }

    def go(self, processes: int) -> list[str]:
        """Run it all, so many at once; what failed comes back, a line each."""
        with _pool(processes) as pool:
            failed = self._all(pool, list(self._trials()), processes)
            failed += self._all(pool, list(self._runs()), processes)
        for place in (self.state, self.state.parent):
            with suppress(OSError):  # there, and empty: each run takes its checkpoint away itself
                place.rmdir()
        return failed

    def forget(self) -> None:
        """Drop what there is of these cells, checkpoints too."""
        for cell in self.cells:
            self.kept.cells.pop(tuple(cell.place.values()), None)
            for checkpoint in self.state.glob(f"{cell.digest}-*.checkpoint"):
                checkpoint.unlink(missing_ok=True)

    def _trials(self) -> Iterator[Job]:
        """What has to be tried before options are chosen."""
        for cell in self.cells:
            if cell.tune is None or self.kept.runs(cell):
                continue  # what its runs were chosen to be stays
            tuned, how = self.kept.tuned(cell), cell.how()
            trained = how if isinstance(how, Training) else Training()
            for trial in cell.trials():
                said = json.dumps(trial)
                for seed in cell.tune.seeds:
                    if str(seed) not in tuned.get(said, {}):
                        yield self._job(cell, seed, said, trial, trained, {"tuned": cell.tune.metric})

    def _runs(self) -> Iterator[Job]:
        """What is reported, in the setting that trials have chosen; a cell whose trials failed is left out."""
        metrics = {name: figure.metric for name, figure in self.table.figures.items()}
        for cell in self.cells:
            options = self.kept.options(cell)
            there = {run["seed"] for run in self.kept.runs(cell)}
            for seed in range(min(self.table.seeds, self.most or self.table.seeds)):
                if seed not in there and options is not None:
                    yield self._job(cell, seed, "", options, cell.how(), metrics)

    def _job(
        self, cell: Cell, seed: int, trial: str, options: Mapping[str, Any], how: Measure, metrics: Mapping[str, str]
    ) -> Job:
        mark = zlib.crc32(f"{cell.name} {trial}".encode())
        return Job(cell, seed, trial, options, metrics, how, self.state / f"{cell.digest}-{mark}-{seed}.checkpoint")

    def _all(self, pool: ProcessPoolExecutor, jobs: Sequence[Job], processes: int) -> list[str]:
        """Run these; each is kept when it has ended."""
        failed: list[str] = []
        left = {pool.submit(run_job, job): job for job in jobs}
        self.told(Standing(0, len(jobs), self._seconds(left.values(), processes)))
        for done in as_completed(list(left)):
            job = left.pop(done)
            line = self._taken(job, done, failed)
            self.told(Standing(len(jobs) - len(left), len(jobs), self._seconds(left.values(), processes), line))
        return failed

    def _taken(self, job: Job, done: Future[dict[str, Any]], failed: list[str]) -> str:
        try:
            run = done.result()
        except BrokenProcessPool as error:
            raise IsthmusError(
                f"{job.name}: a process was killed, perhaps for want of memory; what had ended is kept: "
                "go on with --resume, and with fewer --jobs"
            ) from error
        except Exception as error:  # what goes wrong in one cell is no reason to lose the others
            kind = "" if isinstance(error, IsthmusError) else f"{type(error).__name__}: "
            failed.append(f"{job.name}: {kind}{' '.join(str(error).split())[:300]}")
            return failed[-1]
        self.seconds.setdefault(job.cell.name, []).append(run["seconds"])
        if job.trial:
            self.kept.add_trial(job.cell, job.trial, job.seed, run["figures"]["tuned"])
        else:
            self.kept.add(job.cell, run)
        self.keep(self.kept)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in run["figures"].items())
        return f"{job.name}: {figures}, in {run['seconds']:.1f} s"

    def _seconds(self, jobs: Any, processes: int) -> float | None:
        """Until these have ended, by the means of their cells."""
        means = {name: statistics.fmean(seconds) for name, seconds in self.seconds.items()}
        if not means:
            return None
        other = statistics.fmean(means.values())
        return sum(means.get(job.cell.name, other) for job in jobs) / processes


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each; who is interrupted does not wait for them."""
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    pool.shutdown()


def _begin() -> None:
    """A process that computes: small kernels want one thread, and it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if (parent := multiprocessing.parent_process()) is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: Any) -> None:
    connection.wait([sentinel])
    os._exit(1)


def run_job(job: Job) -> dict[str, Any]:
    """One run, as it is kept. A checkpoint of an earlier try is gone on from."""
    began = time.perf_counter()
    found = job.measure.of(job.cell.planned(job.seed, nested(job.options)), job.seed, job.checkpoint)
    missing = [metric for metric in job.metrics.values() if metric not in found.metrics]
    if len(missing) == len(job.metrics):
        raise IsthmusError(f"no metric '{missing[0]}': {did_you_mean(missing[0], found.metrics)}")
    figures = {name: found.metrics[metric] for name, metric in job.metrics.items() if metric in found.metrics}
    job.checkpoint.unlink(missing_ok=True)
    return {
        "seed": job.seed,
        "figures": {name: round(value, 6) for name, value in figures.items()},
        **({"curves": found.curves} if found.curves else {}),
        **({"pictures": found.pictures} if found.pictures else {}),
        **({"chosen": job.options} if job.options else {}),
        **found.about,
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.date.today().isoformat(),
    }
