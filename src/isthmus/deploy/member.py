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
from isthmus.deploy.setup import SetUpHandler, build_encoding, introduced_of, totals_from_payload
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.bounds import Introduced
from isthmus.methods.base import Method
from isthmus.nn.draws import seed_of
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import check_task, extended, module_of
from isthmus.tasks.base import Task

if TYPE_CHECKING:
    from isthmus.protect.sealing import Keyring

log = logging.getLogger(__name__)


class Member(PartySide):
    """A party of a federation: it answers from its own party folder, within its own limits.

    Arguments:
        folder: the party folder.
        state: folder on this machine for what a restart needs, and for the party's own models.
        name: the party's name in the federation; its `party.toml` must say the same.
        key: the key that the parties share.
        ring: the party's private key to seal with, and the public keys of all parties.
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
            raise IsthmusError(f"{self.folder}: {severe[0]} (list all problems: isthmus party check {self.folder})")
        if contents.settings.name != self.name:
            raise IsthmusError(
                f"{self.folder} is of party '{contents.settings.name}', but the kit is of '{self.name}': "
                "use the folder and the kit of one party"
            )
        return contents

    @property
    def limits(self) -> Limits:
        """What the party allows."""
        return self.contents.settings.limits

    def introduced(self) -> Introduced:
        return introduced_of(self.contents)

    def min_parties(self) -> int:
        return self.limits.min_contributors

    def check_call(self, message: Message) -> None:
        self.limits.permit_call(str(message["verb"]), str(message["action"]), int(message["under"]))

    def begin(self, plan: Message) -> ActionHandler:
        self.limits.permit_protection(self.protect.protection().name)
        if plan["stage"] == "set-up":
            return self._set_up()
        if plan["stage"] != "run":
            raise IsthmusError(f"unknown stage '{plan['stage']}': use one version of isthmus at server and parties")
        settings = json.loads(plan["plan"])
        seed = settings["seed"]
        method, task = _named(Method, settings["method"], "name"), _named(Task, settings["task"], "name")
        self.limits.permit_method(method, self.protect.noise)
        check_task(method, task)
        totals = totals_from_payload(wire.decode(plan["totals"]), len(self.contents.settings.columns))
        party = build_party(self.contents, build_encoding(self.contents, totals), key=self.key, **settings["split"])
        (party,) = task.set_masks([party])
        if settings["unlabelled"] == "error" and not bool(party.training_mask.any()):
            raise IsthmusError("it has no training label: label some items, or set unlabelled = 'idle' in the study")
        self.digest = hashlib.sha256(plan["plan"].encode() + plan["totals"]).hexdigest()[:16]
        module = module_of(_named(Encoder, settings["model"], "encoder"), party.features, task, seed)
        return method.site([party], task, extended(method, module, seed), seed=seed, noise_seed=self._noise_seed(seed))

    def _noise_seed(self, seed: int) -> int:
        """Return the seed of noise, which is equal if the study runs again: equal noise spends no further budget."""
        if self.protect.noise == "study" or self.ring is None:
            return seed
        return seed_of(seed, "noise", self.ring.private_key.hex())

    def _set_up(self) -> SetUpHandler:
        try:
            self.contents = self._read()
        except IsthmusError as error:  # its text names the folder, which the server must not learn
            log.error("party '%s': %s", self.name, error)
            raise IsthmusError("its folder has a problem (read the log at the party)") from error
        return SetUpHandler(self.contents, self.key)

    def save_state(self, run: str, mark: str, saved: Mapping[str, Any]) -> None:
        store.save(self._file(run, mark), saved, private=True)
        others = sorted(self._files(run), key=lambda file: file.stat().st_mtime_ns)
        for file in others[:-2]:  # the server may have missed the last one
            file.unlink(missing_ok=True)

    def load_state(self, run: str, mark: str) -> Mapping[str, Any]:
        path = self._file(run, mark)
        if not path.exists():
            raise IsthmusError(f"party '{self.name}' has no such saved state: start the study again with --force")
        found: Mapping[str, Any] = store.load(path)
        return found

    def write_model(self, run: str, weights: wire.Payload) -> None:
        flat = {name: value.contiguous().clone() for name, value in wire.flatten(weights)}
        store.write(self.state / "weights" / f"{_file_name(run)}.safetensors", save(flat), private=True)

    def delete_states(self, run: str) -> None:
        for file in self._files(run):
            file.unlink(missing_ok=True)

    def _files(self, run: str) -> Iterator[Path]:
        return (self.state / "kept").glob(f"{_file_name(run)}-{self.digest}-*.state")

    def _file(self, run: str, mark: str) -> Path:
        """Return the file of a state, which belongs to one run and one plan."""
        return self.state / "kept" / f"{_file_name(run)}-{self.digest}-{_file_name(mark)}.state"


def _file_name(run: str) -> str:
    """Return the name of a run as a file name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run)


def _named(kind: Any, table: Mapping[str, Any], key: str) -> Any:
    found = kind.named(str(table[key]))
    return found.read({name: value for name, value in table.items() if name != key}, f"{found.kind} '{found.name}'")
