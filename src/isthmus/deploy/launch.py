"""Runs a study in a federation from the administrator's machine: progress, results, resuming."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from pydantic import TypeAdapter

from isthmus import store
from isthmus.deploy.coordinator import check_federation
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger
from isthmus.federation.models import GROUP_NAME
from isthmus.methods.base import Method
from isthmus.result_files import STATE
from isthmus.study.config import Study
from isthmus.study.folder import hold_folder, prepare_folder
from isthmus.study.loop import RunResult
from isthmus.study.results import Results, sort_runs
from isthmus.study.run import Watcher
from isthmus.tasks.base import Task

if TYPE_CHECKING:
    from isthmus.deploy.admin import Standing


SENT_MODELS = {"shared", "groups", "context"}
"""What a result has of models: no party's own."""
FROM_SERVER = "what the server sent", "check the server, and run the same version of isthmus everywhere"
"""Names the content in errors, and says what to do."""


class Administrator(Protocol):
    """What an engine offers to whoever starts studies in a federation."""

    @property
    def parties(self) -> Sequence[str]: ...

    def missing(self) -> list[str]: ...

    def submit(self, study: Mapping[str, Any], name: str) -> str: ...

    def follow(self, name: str, job: str) -> Standing: ...

    def outcome(self, name: str) -> dict[str, Any]: ...

    def clear(self, name: str) -> None: ...


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

    If the study has to stop, the folder gets the results of the rounds that are finished, and an error says why.

    Arguments:
        resume: continue the study in `out`: fetch its results if it has ended, watch its job if that still runs, else
            start one from the last checkpoint.
        wait: seconds within which all parties must be connected.
        pause: seconds between two polls.
        waiting: called once with the parties that are not connected yet.
    """
    check_federation(study)
    more = {"federation": study.federation.model_dump(), "protect": study.protect.model_dump()}
    resolved = {**study.resolved(), **more}
    methods = {method.name: method for method in study.method_list()}
    watcher = watcher or Watcher()
    with hold_folder(out):
        prepare_folder(out, resolved, resume=resume, force=force, comparable=False)
        path = out / STATE / "job"
        described = _described(resolved, len(admin.parties))
        watcher.study_started(described)
        started = {"name": uuid4().hex, "job": ""}
        if resume and path.exists():
            with store.expected_content(path):
                started = TypeAdapter(dict[str, str]).validate_python(store.load(path))
        reported: dict[tuple[str, int], int] = {}
        outcome: dict[str, Any] = {"wrong": "not started"}
        if started["job"]:
            outcome = _watch(admin, started, methods, watcher, pause, reported)
        if outcome["wrong"]:  # the job never started, stopped or was lost: start one from the last checkpoint
            _wait_for_parties(admin, wait, pause, waiting)
            started["job"] = admin.submit(resolved, started["name"])
            store.save(path, started)
            outcome = _watch(admin, started, methods, watcher, pause, reported)
        with store.expected_content(*FROM_SERVER):
            results = _results_of(outcome, study, described)
            if results.runs:
                results.save(out)
        if outcome["wrong"]:
            finished = f"; {out} has what is finished so far" if results.runs else ""
            remedy = "when that is fixed, continue with isthmus federation run --resume"
            raise IsthmusError(f"{outcome['wrong']} ({remedy}{finished})")
        shutil.rmtree(out / STATE, ignore_errors=True)
    with suppress(IsthmusError):  # the results are here; what the server keeps of them is in nobody's way
        admin.clear(started["name"])
    _report_results(watcher, methods, results, reported)
    return results


def _described(resolved: Mapping[str, Any], parties: int) -> dict[str, Any]:
    """Return the study as it is in a federation: over the parties' own folders, not over the data that stand in."""
    shares = {name: resolved["data"][name] for name in ("train", "val") if name in resolved["data"]}
    data = {"parties": parties, "data": {"name": "folder", **shares}, "partition": {"name": "given"}}
    return {**resolved, **data}


def _results_of(outcome: Mapping[str, Any], study: Study, described: Mapping[str, Any]) -> Results:
    ledger = Ledger()
    ledger.restore(outcome.get("ledger", []))
    runs = [_check_result(RunResult.of_dump(run), study) for run in outcome.get("runs", [])]
    methods = [method.name for method in study.method_list()]
    if runs:  # a study that names no task has its learning rates only since the parties have said what they hold
        level = Task.named(str(runs[0].description["task"]["name"])).level
        described = {**described, "methods": study.suited(level).resolved()["methods"]}
    return Results(described, sort_runs(runs, methods), set_up=ledger)


def _check_result(run: RunResult, study: Study) -> RunResult:
    """Return a run if it is of this study; its method and seed become file names on this machine."""
    known = run.method in [method.name for method in study.method_list()] and run.seed in study.seeds
    groups = run.models.get("groups", {})
    if not known or run.models.keys() - SENT_MODELS or not all(map(GROUP_NAME.fullmatch, groups)):
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
    admin: Administrator,
    started: Mapping[str, str],
    methods: Mapping[str, Method],
    watcher: Watcher,
    pause: float,
    reported: dict[tuple[str, int], int],
) -> dict[str, Any]:
    """Report changes to the watcher until the study has ended, and return its outcome."""
    while True:
        standing = admin.follow(started["name"], started["job"])
        with store.expected_content(*FROM_SERVER):
            for line in standing.lines:
                _report(watcher, methods[line["method"]], line, reported)
            watcher.parties_seen(standing.parties)
        if standing.state == "done":
            with store.expected_content(*FROM_SERVER):
                outcome = dict(admin.outcome(started["name"]))
                return {**outcome, "wrong": str(outcome["wrong"])}
        if standing.state == "lost":
            return {"wrong": standing.why}
        time.sleep(pause)


def _report(watcher: Watcher, method: Method, line: Mapping[str, Any], reported: dict[tuple[str, int], int]) -> None:
    key = (method.name, int(line["seed"]))
    if key not in reported:
        watcher.run_started(method, key[1])
        reported[key] = 0
    if line["at"] > reported[key]:
        reported[key] = int(line["at"])
        watcher.round_done(method, key[1], reported[key], line["metrics"])


def _report_results(
    watcher: Watcher, methods: Mapping[str, Method], results: Results, reported: dict[tuple[str, int], int]
) -> None:
    """Tell the watcher of the finished runs, also of those that were over before it saw them."""
    for run in results.runs:
        if (run.method, run.seed) not in reported:
            watcher.run_started(methods[run.method], run.seed)
        watcher.run_done(run)
