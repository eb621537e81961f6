"""The coordinator's part of a federation: the set-up, then every method with every seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.deploy.approval import Proposal, split_shares
from isthmus.deploy.party_side import Message
from isthmus.deploy.reconciling import reconcile
from isthmus.deploy.remote import Post, RemoteTransport
from isthmus.deploy.setup import Agreement, agree, matches_ids, totals_to_payload
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.ledger import Ledger
from isthmus.federation.verbs import Federation, format_missing
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.models import describe_model
from isthmus.study.private import check_private
from isthmus.study.run import Watcher, run_methods
from isthmus.study.setup import check_task, module_of, suited


@dataclass
class Outcome:
    """The results of a study in a federation.

    Attributes:
        ledger: the ledger of the set-up; every run has its own.
        absent: by party that was not there when the last run ended the reason.
    """

    runs: list[RunResult] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    absent: dict[str, str] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {"runs": [run.dump() for run in self.runs], "ledger": self.ledger.dump(), "absent": self.absent}


def check_federation(study: Study) -> None:
    """Refuse a study that no federation can run."""
    for method in study.method_list():
        if method.role == "pooled":
            raise IsthmusError(f"method '{method.name}' needs all data in one place: leave it out of a federation")
        method.aggregation().permit(study.protect.protection().name)
    check_private(study)
    split_shares(study)


def coordinate(
    study: Study,
    post: Post,
    name: str,
    state: Path,
    *,
    watcher: Watcher | None = None,
    save_every: float = 0.0,
    outcome: Outcome | None = None,
    begun: Callable[[Federation, RemoteTransport], None] = lambda federation, transport: None,
) -> Outcome:
    """Do the set-up, then run every method with every seed.

    Arguments:
        post: carries messages to the parties.
        name: name of this study; an interrupted study is resumed under the same name.
        state: folder for checkpoints and finished runs.
        save_every: least seconds between two checkpoints; a resumed study repeats rounds that are in none.
        outcome: filled as the study proceeds, so that it has what is finished if the study has to stop.
        begun: called when the set-up begins, and each run.
    """
    check_federation(study)
    fixed: dict[str, Any] = {"protect": study.protect, "rules": study.federation}
    begin: Message = {"do": "begin", "study": Proposal(study, tuple(post.sites)).text}
    transport = RemoteTransport(post, {**begin, "run": f"{name}/set-up", "stage": "set-up"}, **fixed)
    if transport.absent:
        raise IsthmusError(f"the set-up needs all parties, and these are missing: {format_missing(transport.absent)}")
    federation = Federation(transport)
    begun(federation, transport)
    agreement = agree(federation, study.federation.largest_share, matching=matches_ids(study, federation.parties))
    fixed["introduced"] = agreement.introduced
    task = agreement.task(study.named_task(), study.task_options())
    in_set_up = reconcile(transport, federation.ledger, "set-up")["differences"]
    outcome = outcome or Outcome()
    outcome.ledger = federation.ledger

    def train(method: Method, seed: int, **options: Any) -> RunResult:
        nonlocal transport
        plan = begin_run(begin, method, seed, agreement, f"{name}/{method.name}-{seed}")
        run: Run | None = None
        try:
            transport = RemoteTransport(post, plan, **fixed)
            module = module_of(study.encoder(), agreement.inputs, task, seed)
            check_task(method, task)
            method = suited(method, study.encoder(), task.level)
            method.check(module)
            read = agreement.inputs, agreement.labels, agreement.encoding()
            privacy = study.named_privacy()
            about = describe_model(method, study.encoder(), task, seed, *read, privacy)
            where: dict[str, Any] = {"seed": seed, "save_every": save_every, "transport": transport, **options}
            where["privacy"] = privacy
            run = Run(method, (), task, module, description=about, features=agreement.features, **where)
            begun(run.federation, transport)
            result = run.go()
            result.reconciled = reconcile(transport, result.ledger, f"{method.name}, seed {seed}")
            result.reconciled["differences"][:0], in_set_up[:] = in_set_up, ()
            return result
        except IsthmusError as error:
            text = f"{method.name}, seed {seed}: {error}"
            if run is not None and (partial := run.so_far(text)) is not None:
                outcome.runs.append(partial)
            kind = TooFewAnswers if isinstance(error, TooFewAnswers) else IsthmusError
            raise kind(text) from error

    def close() -> None:
        """The result is on the disk, so the parties may delete what they saved for the run."""
        transport.close()

    try:
        for seed in study.seeds:
            for result in run_methods(study.method_list(), seed, train, watcher or Watcher(), state, close):
                outcome.runs.append(result)
    finally:
        outcome.absent = dict(transport.absent)
    return outcome


def begin_run(begin: Message, method: Method, seed: int, agreement: Agreement, run: str) -> Message:
    """Return the message that begins a run: the study, which run of it, and what the set-up agreed on."""
    totals = wire.encode(totals_to_payload(agreement.totals))
    which = {"run": run, "stage": "run", "method": method.name, "seed": seed}
    return {**begin, **which, "kind": agreement.kind, "totals": totals}
