"""A study whose parties are on machines of their own: the coordinator's part of it, and a party's."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from isthmus import store
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.limits import Limits
from isthmus.data.folder.loading import build_party
from isthmus.data.folder.reading import Contents, check_folder
from isthmus.deploy.setup import Introduction, Joined, encoding_of, join, named_totals, of_named
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.ledger import Ledger
from isthmus.federation.remote import Message, PartySide, Post, Present, RemoteTransport
from isthmus.federation.verbs import Federation, told_reasons
from isthmus.methods.base import Method
from isthmus.nn.draws import seed_of
from isthmus.nn.encoders import Encoder
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.run import Watcher
from isthmus.study.setup import check_task, extended, module_of
from isthmus.tasks.base import Task

if TYPE_CHECKING:
    from isthmus.protect.sealing import Keyring

log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What a federation's study gave.

    Attributes:
        ledger: of the set-up; every run has its own.
    """

    runs: list[RunResult]
    ledger: Ledger = field(repr=False)


def fit_for_federation(study: Study) -> None:
    """Errors that show before any party is asked for anything."""
    for method in study.method_list():
        if method.pooled:
            raise IsthmusError(f"method '{method.name}' needs all data in one place: leave it out of a federation")
    _shares(study)


def coordinate(
    study: Study, post: Post, name: str, state: Path, *, watcher: Watcher | None = None, save_every: float = 2.0
) -> Outcome:
    """The coordinator's part: settle the set-up, then run every method with every seed.

    Arguments:
        post: reaches the parties.
        name: of this study; under the same name a study that was cut off goes on.
        state: folder for checkpoints, and for runs that are done.
    """
    watcher = watcher or Watcher()
    fit_for_federation(study)
    fixed: dict[str, Any] = {"protect": study.protect, "rules": study.federation}
    entrance = RemoteTransport(post, {"do": "begin", "run": f"{name}/set-up", "stage": "set-up"}, **fixed)
    if entrance.out:
        raise IsthmusError(f"all parties must settle the set-up together, these cannot: {told_reasons(entrance.out)}")
    federation = Federation(entrance)
    joined = join(federation)
    task = joined.task(study.named_task())
    runs = []
    for seed in study.seeds:
        for method in study.method_list():
            done = state / f"{method.name}-{seed}.run"
            if done.exists():
                runs.append(RunResult.of_dump(store.load(done)))
                continue
            watcher.run_started(method, seed)
            plan = plan_of(study, method, task, joined, f"{name}/{method.name}-{seed}", seed)
            try:
                result = _driven(study, method, task, joined, RemoteTransport(post, plan, **fixed), seed, state,
                                 watcher, save_every)  # fmt: skip
            except IsthmusError as error:
                kind = TooFewAnswers if isinstance(error, TooFewAnswers) else IsthmusError
                raise kind(f"{method.name}, seed {seed}: {error}") from error
            store.save(done, result.dump())
            watcher.run_done(result)
            runs.append(result)
    return Outcome(runs, federation.ledger)


def _driven(
    study: Study,
    method: Method,
    task: Task,
    joined: Joined,
    transport: RemoteTransport,
    seed: int,
    state: Path,
    watcher: Watcher,
    save_every: float,
) -> RunResult:
    checkpoint = state / f"{method.name}-{seed}.checkpoint"
    module = module_of(study.encoder(), joined.features, task, seed)
    check_task(method, task)
    method.check(module)
    result = Run(
        method,
        (),
        task,
        module,
        seed=seed,
        checkpoint=checkpoint,
        save_every=save_every,
        on_round=lambda at, metrics: watcher.round_done(method, seed, at, metrics),
        transport=transport,
    ).go()
    checkpoint.unlink(missing_ok=True)
    transport.end()
    return result


def plan_of(study: Study, method: Method, task: Task, joined: Joined, run: str, seed: int) -> Message:
    """What a party is told of a run: everything but its own data."""
    shares = _shares(study)
    plan = {
        "method": {"name": method.name, **method.model_dump()},
        "task": {"name": task.name, **task.model_dump()},
        "model": {"encoder": study.encoder().name, **study.encoder().model_dump()},
        "seed": seed,
        "split": {"seed": seed if study.data_seed is None else study.data_seed, **shares},
        "unlabelled": study.unlabelled,
    }
    totals = wire.encode(named_totals(joined.totals))
    return {"do": "begin", "run": run, "stage": "run", "plan": json.dumps(plan), "totals": totals}


def _shares(study: Study) -> dict[str, float]:
    """Shares of the labelled items to train and to validate on, for parties whose files have no split."""
    data = study.data_set()
    given = data if isinstance(data, PartyFolders) else PartyFolders(path="")
    return {"train": given.train, "val": given.val}


class Member(PartySide):
    """A party's part: it answers from its own party folder, within its own limits.

    Arguments:
        folder: the party folder.
        state: folder on this machine for what a restart needs, and for models that the party keeps.
        name: that the federation knows the party by; its `party.toml` must say the same.
        key: that the parties share.
        ring: the party's own key to seal with, and the public ones of the others.
    """

    def __init__(
        self, folder: Path, state: Path, name: str, key: bytes | None = None, ring: Keyring | None = None
    ) -> None:
        super().__init__(name, ring)
        self.folder, self.state, self.key = folder, state, key
        self.digest = ""
        self.contents = self._read()

    def _read(self) -> Contents:
        contents, problems = check_folder(self.folder, self.key)
        severe = [problem for problem in problems if problem.severe]
        if contents is None or severe:
            raise IsthmusError(f"{self.folder}: {severe[0]} (all of it: isthmus party check {self.folder})")
        if contents.settings.name != self.name:
            raise IsthmusError(
                f"{self.folder} is of party '{contents.settings.name}', this place is for '{self.name}': "
                "use that party's kit, or its folder"
            )
        return contents

    @property
    def limits(self) -> Limits:
        """What the party allows, whatever it is asked."""
        return self.contents.settings.limits

    def floor(self) -> int:
        return self.limits.least

    def permit(self, message: Message) -> None:
        self.limits.permit_call(str(message["verb"]), str(message["action"]), int(message["under"]))

    def begin(self, plan: Message) -> Present:
        self.limits.permit_protection(self.protect.protection().name)
        if plan["stage"] == "set-up":
            return self._introduction()
        if plan["stage"] != "run":
            raise IsthmusError(f"there is no stage '{plan['stage']}' of a study")
        told = json.loads(plan["plan"])
        method, task = _method_of(told), _named(Task, told["task"], "name")
        self.limits.permit_method(method, self.protect)
        check_task(method, task)
        totals = of_named(wire.decode(plan["totals"]), len(self.contents.settings.columns))
        party = build_party(self.contents, encoding_of(self.contents, totals), key=self.key, **told["split"])
        (party,) = task.taken_by([party])
        if told["unlabelled"] == "error" and not bool(party.training_mask.any()):
            raise IsthmusError("it has no training label: label some, or let such parties be idle: unlabelled = 'idle'")
        self.digest = hashlib.sha256(plan["plan"].encode() + plan["totals"]).hexdigest()[:16]
        module = module_of(_named(Encoder, told["model"], "encoder"), party.features, task, told["seed"])
        noise = self._noise_seed(told["seed"])
        return method.site([party], task, extended(method, module, told["seed"]), seed=told["seed"], noise_seed=noise)

    def _noise_seed(self, seed: int) -> int:
        """Of noise; the same whenever the same study runs, for the same noise spends nothing twice."""
        if self.protect.noise == "study" or self.ring is None:
            return seed
        return seed_of(seed, "noise", self.ring.own.hex())

    def _introduction(self) -> Introduction:
        try:
            self.contents = self._read()
        except IsthmusError as error:  # it quotes the folder, which is nobody else's business
            log.error("party '%s': %s", self.name, error)
            raise IsthmusError("its folder has a problem (the log at the party says more)") from error
        return Introduction(self.contents, self.key)

    def keep(self, run: str, mark: str, saved: Mapping[str, Any]) -> None:
        store.save(self._file(run, mark), saved, private=True)
        others = sorted(self._files(run), key=lambda file: file.stat().st_mtime_ns)
        for file in others[:-2]:  # the server may not have written down the last one
            file.unlink(missing_ok=True)

    def kept(self, run: str, mark: str) -> Mapping[str, Any]:
        path = self._file(run, mark)
        if not path.exists():
            raise IsthmusError(f"party '{self.name}' has kept no such state of this run")
        found: Mapping[str, Any] = store.load(path)
        return found

    def choose(self, run: str, weights: wire.Payload) -> None:
        flat = {name: value.contiguous().clone() for name, value in wire.flatten(weights)}
        store.write(self.state / "weights" / f"{_plain(run)}.safetensors", save(flat), private=True)

    def end(self, run: str) -> None:
        for file in self._files(run):
            file.unlink(missing_ok=True)

    def _files(self, run: str) -> Iterator[Path]:
        return (self.state / "kept").glob(f"{_plain(run)}-{self.digest}-*.state")

    def _file(self, run: str, mark: str) -> Path:
        """A state is of one run and of one plan: under another method it would mean something else."""
        return self.state / "kept" / f"{_plain(run)}-{self.digest}-{_plain(mark)}.state"


def _plain(run: str) -> str:
    """A run's name as that of a file."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run)


def _method_of(told: Mapping[str, Any]) -> Method:
    method: Method = _named(Method, told["method"], "name")
    return method


def _named(kind: Any, table: Mapping[str, Any], key: str) -> Any:
    found = kind.named(str(table[key]))
    return found.read({name: value for name, value in table.items() if name != key}, f"{found.kind} '{found.name}'")
