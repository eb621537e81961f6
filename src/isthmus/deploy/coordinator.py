"""The coordinator's part of a federation: the set-up, then every method with every seed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.data.datasets.folder import PartyFolders
from isthmus.deploy.remote import Message, Post, RemoteTransport
from isthmus.deploy.setup import Agreement, agree, totals_to_payload
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.ledger import Ledger
from isthmus.federation.verbs import Federation, format_missing
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.run import Watcher, run_methods
from isthmus.study.setup import check_task, module_of
from isthmus.tasks.base import Task


@dataclass
class Outcome:
    """The results of a study in a federation.

    Attributes:
        ledger: the ledger of the set-up; every run has its own.
    """

    runs: list[RunResult]
    ledger: Ledger = field(repr=False)


def check_federation(study: Study) -> None:
    """Refuse a study that no federation can run."""
    for method in study.method_list():
        if method.role == "pooled":
            raise IsthmusError(f"method '{method.name}' needs all data in one place: leave it out of a federation")
        method.aggregation().permit(study.protect.protection().name)
    _shares(study)


def coordinate(
    study: Study, post: Post, name: str, state: Path, *, watcher: Watcher | None = None, save_every: float = 2.0
) -> Outcome:
    """Do the set-up, then run every method with every seed.

    Arguments:
        post: carries messages to the parties.
        name: name of this study; an interrupted study is resumed under the same name.
        state: folder for checkpoints and finished runs.
    """
    check_federation(study)
    fixed: dict[str, Any] = {"protect": study.protect, "rules": study.federation}
    transport = RemoteTransport(post, {"do": "begin", "run": f"{name}/set-up", "stage": "set-up"}, **fixed)
    if transport.absent:
        raise IsthmusError(f"the set-up needs all parties, and these are missing: {format_missing(transport.absent)}")
    federation = Federation(transport)
    agreement = agree(federation, study.federation.largest_share)
    fixed["introduced"] = agreement.introduced
    task = agreement.task(study.named_task())
    runs: list[RunResult] = []

    def train(method: Method, seed: int, **options: Any) -> RunResult:
        plan = build_plan(study, method, task, agreement, f"{name}/{method.name}-{seed}", seed)
        try:
            transport = RemoteTransport(post, plan, **fixed)
            module = module_of(study.encoder(), agreement.features, task, seed)
            check_task(method, task)
            method.check(module)
            run = Run(method, (), task, module, seed=seed, save_every=save_every, transport=transport, **options)
            result = run.go()
        except IsthmusError as error:
            kind = TooFewAnswers if isinstance(error, TooFewAnswers) else IsthmusError
            raise kind(f"{method.name}, seed {seed}: {error}") from error
        transport.close()
        return result

    for seed in study.seeds:
        runs += run_methods(study.method_list(), seed, train, watcher or Watcher(), state)
    return Outcome(runs, federation.ledger)


def build_plan(study: Study, method: Method, task: Task, agreement: Agreement, run: str, seed: int) -> Message:
    """Return what a party must know about a run: everything but its own data."""
    shares = _shares(study)
    plan = {
        "method": {"name": method.name, **method.model_dump()},
        "task": {"name": task.name, **task.model_dump()},
        "model": {"encoder": study.encoder().name, **study.encoder().model_dump()},
        "seed": seed,
        "split": {"seed": seed if study.data_seed is None else study.data_seed, **shares},
        "unlabelled": study.unlabelled,
    }
    totals = wire.encode(totals_to_payload(agreement.totals))
    return {"do": "begin", "run": run, "stage": "run", "plan": json.dumps(plan), "totals": totals}


def _shares(study: Study) -> dict[str, float]:
    """Return the training and validation shares of labelled items, for parties whose files have no split."""
    data = study.data_set()
    given = data if isinstance(data, PartyFolders) else PartyFolders(path="")
    return {"train": given.train, "val": given.val}
