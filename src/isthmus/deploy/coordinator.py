"""The coordinator's part of a federation: the set-up, then every method with every seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.deploy.approval import Proposal, split_shares
from isthmus.deploy.reconciling import reconcile
from isthmus.deploy.remote import Message, Post, RemoteTransport
from isthmus.deploy.setup import Agreement, agree, totals_to_payload
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.ledger import Ledger
from isthmus.federation.verbs import Federation, format_missing
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.models import describe_model
from isthmus.study.run import Watcher, run_methods
from isthmus.study.setup import check_task, module_of


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
    split_shares(study)


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
    begin: Message = {"do": "begin", "study": Proposal(study, tuple(post.sites)).text}
    transport = RemoteTransport(post, {**begin, "run": f"{name}/set-up", "stage": "set-up"}, **fixed)
    if transport.absent:
        raise IsthmusError(f"the set-up needs all parties, and these are missing: {format_missing(transport.absent)}")
    federation = Federation(transport)
    agreement = agree(federation)
    task = agreement.task(study.named_task())
    in_set_up = reconcile(transport, federation.ledger, "set-up")["differences"]
    runs: list[RunResult] = []

    def train(method: Method, seed: int, **options: Any) -> RunResult:
        plan = begin_run(begin, method, seed, agreement, f"{name}/{method.name}-{seed}")
        try:
            transport = RemoteTransport(post, plan, **fixed)
            module = module_of(study.encoder(), agreement.features, task, seed)
            check_task(method, task)
            method.check(module)
            about = describe_model(
                method, study.encoder(), task, seed, agreement.features, agreement.labels, agreement.encoding()
            )
            where: dict[str, Any] = {"seed": seed, "save_every": save_every, "transport": transport, **options}
            run = Run(method, (), task, module, description=about, **where)
            result = run.go()
            result.reconciled = reconcile(transport, result.ledger, f"{method.name}, seed {seed}")
            result.reconciled["differences"][:0], in_set_up[:] = in_set_up, ()
        except IsthmusError as error:
            kind = TooFewAnswers if isinstance(error, TooFewAnswers) else IsthmusError
            raise kind(f"{method.name}, seed {seed}: {error}") from error
        transport.close()
        return result

    for seed in study.seeds:
        runs += run_methods(study.method_list(), seed, train, watcher or Watcher(), state)
    return Outcome(runs, federation.ledger)


def begin_run(begin: Message, method: Method, seed: int, agreement: Agreement, run: str) -> Message:
    """Return the message that begins a run: the study, which run of it, and what the set-up agreed on."""
    totals = wire.encode(totals_to_payload(agreement.totals))
    which = {"run": run, "stage": "run", "method": method.name, "seed": seed}
    return {**begin, **which, "kind": agreement.kind, "totals": totals}
