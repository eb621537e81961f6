"""A party's part of a federation: it answers from its own party folder, within its own limits."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import store
from isthmus.data.fingerprint import digest_of_tables, tables_of
from isthmus.data.folder.limits import Limits
from isthmus.data.folder.loading import build_party
from isthmus.data.folder.matched import category_values, values_to_match, with_pseudonyms
from isthmus.data.folder.reading import Contents, check_folder
from isthmus.data.folder.settings import FILE
from isthmus.data.ids import PLAIN, Hashing, PlainHash, Pseudonyms
from isthmus.deploy.approval import DIGITS, Approvals, Proposal, digest_of, split_shares
from isthmus.deploy.introductions import shares_values
from isthmus.deploy.limits import limit_problems
from isthmus.deploy.party_ledger import FILE as LEDGER
from isthmus.deploy.party_ledger import Index, PartyLedger
from isthmus.deploy.party_side import ActionHandler, Message, PartySide
from isthmus.deploy.run_record import RunRecord
from isthmus.deploy.setup import (
    Agreement,
    SetUpHandler,
    build_encoding,
    introduced_of,
    matches_ids,
    totals_from_payload,
)
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.bounds import Introduced
from isthmus.federation.site import Site
from isthmus.methods.base import Method
from isthmus.nn.weights import count_numbers
from isthmus.privacy.random_bits import KEY, derive_key
from isthmus.study.config import Study
from isthmus.study.model_files import write_models
from isthmus.study.models import describe_model
from isthmus.study.private import check_private, most_spent, private_answers
from isthmus.study.setup import check_task, extended, judged, module_of, outline, suited, without_training

if TYPE_CHECKING:
    from isthmus.deploy.matching import Match
    from isthmus.protect.sealing import Keyring

log = logging.getLogger(__name__)

NOISE = "noise.key"
"""The file in a party's state with its secret for noise and matching."""
MATCHING, MATCHINGS = "matching", 5
"""The folder in a party's state with its pseudonyms in the last studies that matched ids, and how many it keeps."""
APPROVALS = "studies"
"""The folder in a party's state with the studies that it knows."""
SHAPES = ("what", "to", "least", "ids", "opened")
"""What of a protection's part of a call shapes the answer; the rest differs whenever the call is repeated."""


class Member(PartySide):
    """A party of a federation: it answers from its own party folder, within its own limits.

    Arguments:
        folder: the party folder.
        state: folder on this machine for what a restart needs, and for the party's own models.
        name: the party's name in the federation; its `party.toml` must say the same.
        hashing: how ids become numbers where a study does not match them: with the key that parties share, or plain.
        ring: the party's private key to seal with, and the public keys of all parties.
    """

    def __init__(
        self, folder: Path, state: Path, name: str, hashing: Hashing = PLAIN, ring: Keyring | None = None
    ) -> None:
        super().__init__(name, ring)
        self.folder, self.state, self.hashing = folder, state, hashing
        self.approvals = Approvals(state / APPROVALS, str(state.parent))
        self.digest = self.call = self.stage = self.study = self.model = ""
        self.planned: Mapping[str, int] = {}
        self.times = 0
        self.site: Site | None = None
        self.description: Mapping[str, Any] = {}
        self.index = Index()
        self.ledger = PartyLedger(state / LEDGER, self.index.add)
        self.contents, self.read_with = self._read(hashing), hashing
        self.pseudonyms: Pseudonyms | None = None
        self.matching = ""
        self._data: tuple[list[Any], str] = [], ""

    def _read(self, hashing: Hashing) -> Contents:
        contents, problems = check_folder(self.folder, hashing)
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
        """Refuse what the limits do not allow, and what is more than the study plans."""
        action, verb, under = str(message["action"]), str(message["verb"]), int(message["under"])
        self.limits.permit_call(verb, action, under)
        assert self.handler is not None
        self.handler.binding(action)  # refuses an unknown one
        request, shield = message.get("request", b""), message.get("shield")
        if isinstance(request, Mapping) and set(request) != {self.name}:
            raise IsthmusError(f"refused: action '{action}' with requests for other parties than '{self.name}'")
        shape = None if shield is None else {key: shield.get(key) for key in SHAPES}
        before = self.call, self._count_answered()
        digest = digest_of(before, action, verb, message.get("to"), under, request, shape)
        self.tally.count(digest, f"'{action}' in {self.stage}", self.planned.get(action, 0), self.times)
        self.call = digest

    def note_delivery(self, action: str, mail: Mapping[str, Any]) -> None:
        """Later answers depend on what is delivered, so the digests of calls do, too."""
        self.call = digest_of(self.call, action, mail)

    def begin(self, plan: Message) -> ActionHandler:
        proposal = Proposal.read(str(plan["study"]))
        study = proposal.study
        hashing = PlainHash(of_integers=True) if study.protect.matching == "oblivious" else self.hashing
        if plan["stage"] == "set-up" or hashing != self.read_with:
            self._refresh(hashing)
        if str(plan["study"]) != proposal.text or set(plan.get("parties", ())) != set(proposal.parties):
            raise IsthmusError("refused: the server begins another study than it sent, or over other parties")
        self._check_plan(proposal)
        known = proposal.parties if self.ring is None else tuple(self.ring.public_keys)
        self.times = self.approvals.permit(proposal, self.limits, known)
        self.tally, self.study = self.approvals.tally(proposal), proposal.hash
        if plan["stage"] == "set-up":
            privacy, match = study.named_privacy(), self._match(proposal, plan)
            handler = SetUpHandler(self.contents, hashing, privacy=privacy, match=match, keep=self._keep_pseudonyms)
            self._plan("the set-up", handler.calls(), plan)
            return handler
        if plan["stage"] != "run":
            raise IsthmusError(f"unknown stage '{plan['stage']}': use one version of isthmus at server and parties")
        if self._shares(proposal):
            self._recall_pseudonyms(proposal, plan)
        elif self.pseudonyms is not None:
            self._refresh(hashing)
        method, seed = self._run_of(study, str(plan["method"]), plan["seed"])
        if self.record is not None:
            self.record.epsilon = most_spent(method, study.named_privacy())
        totals = totals_from_payload(wire.decode(plan["totals"]), len(self.contents.settings.feature_columns()))
        task = Agreement.of_party(self.contents, str(plan["kind"]), totals).task(
            study.named_task(), study.task_options()
        )
        check_task(method, task)
        encoding = build_encoding(self.contents, totals)
        numbered, drawn = self.pseudonyms or hashing, study.draw_of(seed)
        party = build_party(self.contents, encoding, hashing=numbered, seed=drawn, **split_shares(study))
        (party,) = task.set_masks([party])
        if study.unlabelled == "error" and without_training([party]):
            raise IsthmusError("it has no training label: label some items, or set unlabelled = 'idle' in the study")
        encoder, own = study.encoder(), self.contents.settings
        method = suited(method, encoder, task.level)
        self.limits.permit_model(method.name, count_numbers(outline(method, encoder, party.inputs, task)))
        module = extended(method, module_of(encoder, party.inputs, task, seed), seed)
        planned = method.calls(module)
        self.limits.permit_plan(method.name, planned)
        self._plan(f"method {method.name}, seed {seed}", planned, plan)
        self.digest, self.model = self.call[:16], f"{self.study}-{_file_name(method.name)}-{seed}"
        labels = tuple(own.labels or own.tasks or ())
        columns = {**encoding.to_dict(), "molecules": own.smiles and own.smiles.features}
        columns |= self._known_categories()
        hidden = study.named_privacy()
        about = party.inputs, labels, columns, hidden, [party]
        self.description = describe_model(method, encoder, task, seed, *about)
        where: dict[str, Any] = {"seed": seed, "noise_key": self._noise_key(seed)}
        where["private"] = private_answers(hidden, method, module, task)
        self.site = method.site([party], judged(task, method), module, **where)
        return self.site

    def open_record(self, plan: Message) -> RunRecord:
        sealed = {"exchange": "sealed"} if self.protect.exchange == "sealed" else {}
        protections = {**sealed, "total": self.protect.protection().name}
        limits = self.limits.model_dump()
        return RunRecord(self.ledger, self.index, plan, self._data_digest(), protections, limits)

    def _data_digest(self) -> str:
        """A hash of the tables in the party folder, computed again only if one of them has changed."""
        files = [(each.name, each.stat()) for each in tables_of(self.folder)]
        stats = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in files]
        if stats != self._data[0]:
            self._data = stats, digest_of_tables(self.folder)
        return self._data[1]

    def _check_plan(self, proposal: Proposal) -> None:
        """Refuse a study beyond the limits, or begun in another way than it says."""
        study = proposal.study
        same = Proposal(study.model_copy(update={"protect": self.protect}), proposal.parties)
        if same.text != proposal.text or self.norm != study.federation.norm:
            raise IsthmusError("refused: the server begins with other [protect] or [federation] than the study has")
        check_private(study)
        self.limits.permit_protection(self.protect.protection().name)
        self.limits.permit_matching(self.protect.matching)
        methods, seeds = study.method_list(), len(study.seeds)
        self.limits.permit_runs(len(methods) * seeds)
        for method in methods:
            spent = most_spent(method, study.named_privacy())
            self.limits.permit_method(method, self.protect.noise, seeds, spent)

    @staticmethod
    def _run_of(study: Study, name: str, seed: Any) -> tuple[Method, int]:
        """Return the method and the seed of a run, which must be one of the study's."""
        method = next((each for each in study.method_list() if each.name == name), None)
        if method is None or seed not in study.seeds or type(seed) is not int:
            raise IsthmusError(f"refused: the study has no run of method '{name}' with seed {seed}")
        return method, seed

    def _plan(self, stage: str, planned: Mapping[str, int], plan: Message) -> None:
        """Set what may be called from here on; the same begin leads to the same digests of calls."""
        self.stage, self.planned = stage, planned
        said = [str(plan.get(key)) for key in ("study", "stage", "method", "seed", "kind")]
        begun = hashlib.sha256("\n".join([*said, *_state_of(self.folder)]).encode())
        begun.update(plan.get("totals", b""))
        self.call = begun.hexdigest()[:DIGITS]

    def note_answer(self) -> None:
        """Write down the metrics of an evaluation whose counts stay here."""
        if self.site is None or not self.site.counted:
            return
        counts, task = self.site.counted[self.name], self.site.task
        found = {f"{split}_{name}": value for split, own in counts.items() for name, value in task.metrics(own).items()}
        path = self.state / "evaluations" / f"{self.model}.jsonl"
        with self._on_disk():
            before = path.read_text() if path.exists() else ""
            store.write(path, f"{before}{json.dumps(found)}\n", private=True)

    def _noise_key(self, seed: int) -> bytes | None:
        """Return the key of noise, which is equal if the study runs again: equal noise spends no further budget.

        It follows from a secret that this machine drew, and that never leaves it; None if noise follows from the seed.
        """
        if self.protect.noise == "study":
            return None
        return derive_key(self._secret(), seed)

    def _secret(self) -> bytes:
        """Return the party's secret, for noise and matching; the operating system draws it when it is first needed."""
        path = self.state / NOISE
        with self._on_disk():
            if not path.exists():
                store.write(path, secrets.token_bytes(KEY), private=True)
            secret = path.read_bytes()
        if len(secret) != KEY:
            raise IsthmusError(f"the file '{NOISE}' in its state is damaged: delete it to draw a new secret")
        return secret

    def _shares(self, proposal: Proposal) -> bool:
        """Whether the parties of a study match ids, or values of categories, with each other."""
        return matches_ids(proposal.study, proposal.parties) and shares_values(self.contents.settings.common)

    def _match(self, proposal: Proposal, plan: Message) -> Match | None:
        """Return this party's part of a matching; None if the study matches nothing."""
        if not self._shares(proposal):
            return None
        from isthmus.deploy.matching import Match  # needs an extra

        self.matching = _matching_of(proposal, plan)
        secret = derive_key(self._secret(), "matching", self.matching)  # equal if the study is resumed
        values, context = values_to_match(self.contents), self.matching.encode()
        return Match(self.name, proposal.parties, values, secret, context, self.limits.matched)

    def _keep_pseudonyms(self, pseudonyms: Pseudonyms) -> Contents:
        """Use pseudonyms from now on, and write them to the disk for a restart of this process."""
        self.contents, self.pseudonyms = with_pseudonyms(self.contents, pseudonyms), pseudonyms
        folder = self.state / MATCHING
        with self._on_disk():
            found = {"known": pseudonyms.known, "pseudonyms": pseudonyms.pseudonyms}
            store.save(folder / f"{self.matching}.state", found, private=True)
            for old in sorted(folder.glob("*.state"), key=lambda file: file.stat().st_mtime)[:-MATCHINGS]:
                old.unlink(missing_ok=True)
        return self.contents

    def _recall_pseudonyms(self, proposal: Proposal, plan: Message) -> None:
        """Use the pseudonyms of a study whose ids were matched before this process started."""
        matching = _matching_of(proposal, plan)
        if self.pseudonyms is not None and self.matching == matching:
            return
        path = self.state / MATCHING / f"{matching}.state"
        if not path.exists():
            raise IsthmusError("refused: ids of this study were not matched")
        if self.pseudonyms is not None:
            self._refresh(self.read_with)
        found = store.load(path)
        self.pseudonyms, self.matching = Pseudonyms(found["known"], found["pseudonyms"]), matching
        self.contents = with_pseudonyms(self.contents, self.pseudonyms)

    def _known_categories(self) -> dict[str, Any]:
        """Return the pseudonyms of the party's own values of categories, with which its model encodes new rows."""
        if self.pseudonyms is None:
            return {}
        own = self.pseudonyms.only(category_values(self.contents))
        return {"pseudonyms": [own.known.tolist(), own.pseudonyms.tolist()]} if own.known.numel() else {}

    def _refresh(self, hashing: Hashing) -> None:
        """Read the folder again: a study begins with its present content and limits."""
        self.pseudonyms, self.matching = None, ""
        try:
            self.contents, self.read_with = self._read(hashing), hashing
        except IsthmusError as error:  # its text names the folder, which the server must not learn
            log.error("party '%s': %s", self.name, error)
            raise IsthmusError("its folder has a problem (read the log at the party)") from error

    def save_state(self, run: str, mark: str, saved: Mapping[str, Any], keep: Sequence[str]) -> None:
        store.save(self._file(mark), {**saved, "call": self.call}, private=True)
        kept = {self._file(each) for each in (mark, *keep)}
        for file in self._files():
            if file not in kept:
                file.unlink(missing_ok=True)

    def load_state(self, run: str, mark: str) -> Mapping[str, Any]:
        path = self._file(mark)
        if not path.exists():
            raise IsthmusError(f"party '{self.name}' has no such saved state: start the study again with --force")
        found = dict(store.load(path))
        self.call = str(found.pop("call"))
        return found

    def write_model(self, run: str, weights: wire.Payload, threshold: float | list[float] | None) -> None:
        description, models = self.description, {"shared": weights, "context": {}}
        if self.site is not None:
            models["context"] = self.site.context(self.name)
            if threshold is not None:
                task = self.site.task.with_threshold(threshold)
                description = {**description, "task": task.to_dict()}
        write_models(self.state / "weights", self.model, models, description, private=True)

    def delete_states(self, run: str) -> None:
        for file in self._files(self.digest):
            file.unlink(missing_ok=True)

    def _files(self, plan: str = "") -> Iterator[Path]:
        """The files of states of a study, whatever the server calls its runs; of one plan, or of all."""
        return (self.state / "kept").glob(f"{self.study}-{plan}*.state")

    def _file(self, mark: str) -> Path:
        """Return the file of a state, which belongs to one study and one plan."""
        return self.state / "kept" / f"{self.study}-{self.digest}-{_file_name(mark)}.state"


def _matching_of(proposal: Proposal, plan: Message) -> str:
    """Return the name of a matching: of the study, and of the job, which has the same name when it is resumed."""
    job = str(plan["run"]).rpartition("/")[0]
    return digest_of(proposal.hash, job)


def _file_name(text: str) -> str:
    """Return a text as a part of a file name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)


def _state_of(folder: Path) -> list[str]:
    """Names, sizes and times of a party folder's files: what a party answers from."""
    found = [(file.name, file.stat()) for file in sorted(folder.iterdir()) if file.name != FILE]
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in found]
