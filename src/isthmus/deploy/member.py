"""A party's part of a federation: it answers from its own party folder, within its own limits."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from isthmus import store
from isthmus.data.folder.limits import Limits
from isthmus.data.folder.loading import build_party
from isthmus.data.folder.reading import Contents, check_folder
from isthmus.deploy.limits import limit_problems
from isthmus.deploy.remote import ActionHandler, Message, PartySide
from isthmus.deploy.setup import Introduction, encoding_of, of_named
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.methods.base import Method
from isthmus.nn.draws import seed_of
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import check_task, extended, module_of
from isthmus.tasks.base import Task

if TYPE_CHECKING:
    from isthmus.protect.sealing import Keyring

log = logging.getLogger(__name__)


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
        if contents is not None:
            problems += limit_problems(contents.settings.limits)
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

    def min_parties(self) -> int:
        return self.limits.min_contributors

    def permit(self, message: Message) -> None:
        self.limits.permit_call(str(message["verb"]), str(message["action"]), int(message["under"]))

    def begin(self, plan: Message) -> ActionHandler:
        self.limits.permit_protection(self.protect.protection().name)
        if plan["stage"] == "set-up":
            return self._introduction()
        if plan["stage"] != "run":
            raise IsthmusError(f"there is no stage '{plan['stage']}' of a study")
        told = json.loads(plan["plan"])
        method, task = _named(Method, told["method"], "name"), _named(Task, told["task"], "name")
        self.limits.permit_method(method, self.protect.noise)
        check_task(method, task)
        totals = of_named(wire.decode(plan["totals"]), len(self.contents.settings.columns))
        party = build_party(self.contents, encoding_of(self.contents, totals), key=self.key, **told["split"])
        (party,) = task.set_masks([party])
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
        return seed_of(seed, "noise", self.ring.private_key.hex())

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

    def write_model(self, run: str, weights: wire.Payload) -> None:
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


def _named(kind: Any, table: Mapping[str, Any], key: str) -> Any:
    found = kind.named(str(table[key]))
    return found.read({name: value for name, value in table.items() if name != key}, f"{found.kind} '{found.name}'")
