"""A study that runs on other machines, from where it is started: progress, results, and going on after a stop."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from isthmus import store
from isthmus.deploy.coordinator import fit_for_federation
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.results import Results, ordered
from isthmus.study.run import STATE, Watcher, prepare_folder

State = Literal["under way", "done", "lost"]
"""How a job stands: one that is lost has ended before its end."""


class Administrator(Protocol):
    """Whoever may start studies in a federation; an engine has one."""

    @property
    def parties(self) -> Sequence[str]: ...

    def missing(self) -> list[str]: ...

    def submit(self, study: Mapping[str, Any], run: str) -> str: ...

    def progress(self, job: str) -> list[dict[str, Any]]: ...

    def state(self, job: str) -> State: ...

    def outcome(self, job: str) -> dict[str, Any]: ...


def run_away(
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
        resume: go on with what `out` has begun: with its job if that still runs, else with its last checkpoint.
        wait: seconds until all parties must be there.
        pause: seconds between two looks at how it goes.
        waiting: told who is not there yet, once.
    """
    fit_for_federation(study)
    more = {"federation": study.federation.model_dump(), "protect": study.protect.model_dump()}
    resolved = {**study.resolved(), **more}
    prepare_folder(out, resolved, resume=resume, force=force)
    place = out / STATE / "job"
    watcher = watcher or Watcher()
    watcher.study_started(resolved)
    begun = store.load(place) if resume and place.exists() else {"run": uuid4().hex, "job": ""}
    told: dict[tuple[str, int], int] = {}

    def watched() -> dict[str, Any]:
        _watch(admin, begun["job"], study, watcher, pause, told)
        done = admin.state(begun["job"]) == "done"
        return admin.outcome(begun["job"]) if done else {"wrong": "the run was stopped, or the server that ran it"}

    outcome: dict[str, Any] = watched() if begun["job"] else {"wrong": ""}
    if "wrong" in outcome:  # never begun, or ended before its end: from its last checkpoint on
        _all_here(admin, wait, pause, waiting)
        begun["job"] = admin.submit(resolved, begun["run"])
        store.save(place, begun)
        outcome = watched()
    if "wrong" in outcome:
        raise IsthmusError(f"{outcome['wrong']} (isthmus federation run --resume goes on when that is mended)")
    ledger = Ledger()
    ledger.restore(outcome["ledger"])
    runs = [_checked(RunResult.of_dump(run), study) for run in outcome["runs"]]
    shares = {name: resolved["data"][name] for name in ("train", "val") if name in resolved["data"]}
    held = {"parties": len(admin.parties), "data": {"name": "folder", **shares}, "partition": {"name": "given"}}
    results = Results(
        {**resolved, **held}, ordered(runs, [method.name for method in study.method_list()]), set_up=ledger
    )
    results.save(out)
    shutil.rmtree(out / STATE, ignore_errors=True)
    return results


_NAME = re.compile(r"[\w-][\w.-]*")
"""Names of groups that can be names of files."""


def _checked(run: RunResult, study: Study) -> RunResult:
    """A run of this study: what comes from another machine names files here."""
    known = run.method in [method.name for method in study.method_list()] and run.seed in study.seeds
    groups = run.models.get("groups", {})
    if not known or run.models.keys() - {"shared", "groups"} or not all(_NAME.fullmatch(name) for name in groups):
        raise IsthmusError("what the server sent is no result of this study: look into the server")
    return run


def _all_here(admin: Administrator, wait: float, pause: float, waiting: Callable[[list[str]], None]) -> None:
    until, told = time.monotonic() + wait, False
    while missing := admin.missing():
        if not told:
            waiting(missing)
            told = True
        if time.monotonic() > until:
            names = ", ".join(f"'{party}'" for party in missing)
            raise IsthmusError(f"not there after {wait:g} s: {names}; is isthmus federation join running at each?")
        time.sleep(pause)


def _watch(
    admin: Administrator, job: str, study: Study, watcher: Watcher, pause: float, told: dict[tuple[str, int], int]
) -> None:
    """Tell the watcher what changes until the job is over."""
    methods = {method.name: method for method in study.method_list()}
    while admin.state(job) == "under way":
        for line in admin.progress(job):
            _tell(watcher, methods[line["method"]], line, told)
        time.sleep(pause)


def _tell(watcher: Watcher, method: Method, line: Mapping[str, Any], told: dict[tuple[str, int], int]) -> None:
    key = (method.name, int(line["seed"]))
    if key not in told:
        watcher.run_started(method, key[1])
        told[key] = 0
    if line["at"] > told[key]:
        told[key] = int(line["at"])
        watcher.round_done(method, key[1], told[key], line["metrics"])
