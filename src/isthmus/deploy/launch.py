"""Runs a study in a federation from the administrator's machine: progress, results, resuming."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from isthmus import store
from isthmus.deploy.coordinator import check_federation
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger
from isthmus.federation.models import GROUP_NAME
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.results import Results, sort_runs
from isthmus.study.run import STATE, Watcher, prepare_folder

JobState = Literal["running", "done", "lost"]
"""State of a job; a lost job has ended without an outcome."""


class Administrator(Protocol):
    """What an engine offers to whoever starts studies in a federation."""

    @property
    def parties(self) -> Sequence[str]: ...

    def missing(self) -> list[str]: ...

    def submit(self, study: Mapping[str, Any], run: str) -> str: ...

    def progress(self, job: str) -> list[dict[str, Any]]: ...

    def state(self, job: str) -> JobState: ...

    def outcome(self, job: str) -> dict[str, Any]: ...


def run_federation(
    admin: Administrator,
    study: Study,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
    wait: float = 120.0,
    pause: float = 0.5,
    waiting: Callable[[list[str]], None] = lambda missing: None,
) -> Results:
    """Start a study in a federation, watch it, and write the same result folder as a study in one process.

    Arguments:
        resume: continue the study in `out`: watch its job if that still runs, else start from its last checkpoint.
        wait: seconds within which all parties must be connected.
        pause: seconds between two polls.
        waiting: called once with the parties that are not connected yet.
    """
    check_federation(study)
    more = {"federation": study.federation.model_dump(), "protect": study.protect.model_dump()}
    resolved = {**study.resolved(), **more}
    prepare_folder(out, resolved, resume=resume, force=force)
    path = out / STATE / "job"
    watcher = watcher or Watcher()
    watcher.study_started(resolved)
    started = store.load(path) if resume and path.exists() else {"run": uuid4().hex, "job": ""}
    reported: dict[tuple[str, int], int] = {}

    def watch() -> dict[str, Any]:
        _watch(admin, started["job"], study, watcher, pause, reported)
        done = admin.state(started["job"]) == "done"
        return admin.outcome(started["job"]) if done else {"wrong": "the job or its server was stopped"}

    outcome: dict[str, Any] = watch() if started["job"] else {"wrong": ""}
    if "wrong" in outcome:  # the job never started, or was lost: start one from the last checkpoint
        _wait_for_parties(admin, wait, pause, waiting)
        started["job"] = admin.submit(resolved, started["run"])
        store.save(path, started)
        outcome = watch()
    if "wrong" in outcome:
        raise IsthmusError(f"{outcome['wrong']} (when that is fixed, continue with isthmus federation run --resume)")
    ledger = Ledger()
    ledger.restore(outcome["ledger"])
    runs = [_check_result(RunResult.of_dump(run), study) for run in outcome["runs"]]
    shares = {name: resolved["data"][name] for name in ("train", "val") if name in resolved["data"]}
    data = {"parties": len(admin.parties), "data": {"name": "folder", **shares}, "partition": {"name": "given"}}
    results = Results(
        {**resolved, **data}, sort_runs(runs, [method.name for method in study.method_list()]), set_up=ledger
    )
    results.save(out)
    shutil.rmtree(out / STATE, ignore_errors=True)
    return results


def _check_result(run: RunResult, study: Study) -> RunResult:
    """Return a run if it is of this study; its method and seed become file names on this machine."""
    known = run.method in [method.name for method in study.method_list()] and run.seed in study.seeds
    groups = run.models.get("groups", {})
    if not known or run.models.keys() - {"shared", "groups"} or not all(map(GROUP_NAME.fullmatch, groups)):
        raise IsthmusError(
            f"the server sent a result ('{run.method}', seed {run.seed}) that is not of this study: check the server"
        )
    return run


def _wait_for_parties(admin: Administrator, wait: float, pause: float, waiting: Callable[[list[str]], None]) -> None:
    until, announced = time.monotonic() + wait, False
    while missing := admin.missing():
        if not announced:
            waiting(missing)
            announced = True
        if time.monotonic() > until:
            names = ", ".join(f"'{party}'" for party in missing)
            raise IsthmusError(f"not connected after {wait:g} s: {names}; start isthmus federation join there")
        time.sleep(pause)


def _watch(
    admin: Administrator, job: str, study: Study, watcher: Watcher, pause: float, reported: dict[tuple[str, int], int]
) -> None:
    """Report changes to the watcher until the job has ended."""
    methods = {method.name: method for method in study.method_list()}
    while admin.state(job) == "running":
        for line in admin.progress(job):
            _report(watcher, methods[line["method"]], line, reported)
        time.sleep(pause)


def _report(watcher: Watcher, method: Method, line: Mapping[str, Any], reported: dict[tuple[str, int], int]) -> None:
    key = (method.name, int(line["seed"]))
    if key not in reported:
        watcher.run_started(method, key[1])
        reported[key] = 0
    if line["at"] > reported[key]:
        reported[key] = int(line["at"])
        watcher.round_done(method, key[1], reported[key], line["metrics"])
