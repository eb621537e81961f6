"""What a party has agreed to: studies that a person approved there, and what of them was answered.

A study is approved as a whole, by its hash: methods with all options, task, encoder, seeds, protection, rules, and the
parties that take part. The party computes the hash itself. It keeps in its state folder what it approved and which
calls it answered, so that neither a new job nor a new name lets a server ask for more than the study plans.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus import store
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.limits import Limits
from isthmus.data.schema import SMALLEST
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.training import PLAIN_LR, LocalTraining
from isthmus.nn.weights import count_numbers
from isthmus.study.config import Study
from isthmus.study.setup import outline, suited
from isthmus.tasks.base import Task

log = logging.getLogger(__name__)

FORMAT = 2
"""Format number of the file of a proposal."""
LONGEST = 1_000_000
"""Characters of a proposal's text, at most."""
KEPT = 50
"""Proposals without an approval that a party keeps; the oldest go first."""
DIGITS = 32
"""Hexadecimal digits of a hash: 128 bits of SHA-256."""

OPTIONS = ("seeds", "data_seed", "unlabelled", "task", "model", "methods")
"""Tables and options of a study that a party can check."""
SHARES = ("train", "val")
"""Those of its data set."""

READERS = {
    ("ask", "server"): "the server reads the answer",
    ("total", "server"): "the server reads the sum over parties",
    ("total", "parties"): "parties read the sum over parties",
    ("exchange", "server"): "the addressed party reads it",
}
"""Who reads an answer, by verb and by whom a total is for."""


@dataclass(frozen=True)
class Proposal:
    """A study as parties approve it, and the parties that are to take part."""

    study: Study
    parties: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Proposal:
        """Read the text of a proposal, which may come from a server; refuse all that `text` does not have."""
        remedy = "use one version of isthmus at server and parties"
        if len(text) > LONGEST:
            raise IsthmusError(f"refused: the study has more than {LONGEST:,} characters")
        try:
            values = dict(json.loads(text))
            parties = tuple(map(str, values.pop("parties")))
            shares = dict(values.pop("split"))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise IsthmusError(f"refused: the server sent no study: {remedy}") from error
        known = {*OPTIONS, "purpose", "privacy", "protect", "federation"}
        if unknown := [*(values.keys() - known), *(shares.keys() - {*SHARES})]:
            raise IsthmusError(f"refused: the server sent a study with '{min(unknown)}': {remedy}")
        data = {"name": "folder", "path": ".", **shares}
        return cls(Study.of_federation({**values, "data": data}, "study"), parties)

    @cached_property
    def text(self) -> str:
        """All that a party can check of a study, with every default spelled out; equal studies have equal texts."""
        study, protect = self.study, self.study.protect
        protection = protect.protection()
        resolved = study.resolved()
        content = {
            **({"purpose": study.purpose} if study.purpose else {}),
            **{name: resolved[name] for name in (*OPTIONS, "privacy") if name in resolved},
            "split": split_shares(study),
            "protect": {**protect.model_dump(), "total": protection.to_dict()},
            "federation": study.federation.model_dump(),
            "parties": sorted(self.parties),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:DIGITS]


def describe_proposal(proposal: Proposal) -> Iterator[str]:
    """Yield lines on what a study does, and what a party that approves it answers at most."""
    study, protect = proposal.study, proposal.study.protect
    total = protect.protection()
    yield f"study {proposal.hash}"
    yield f"purpose: {study.purpose or 'none is stated'}"
    yield f"parties: {', '.join(proposal.parties)}"
    readable = "" if total.name != "none" else ": the server can read every party's part"
    yield f"totals: {total.name}{readable}; messages: {protect.exchange}; noise: {protect.noise}"
    if protect.matching == "oblivious":
        yield "ids: matched by pseudonyms that all parties make together; what a party has, within an eighth, is known"
    yield f"model: {_assignments(study.resolved()['model'])}; seeds: {', '.join(map(str, study.seeds))}"
    two = Task.named("node-classification").read({"classes": 2}, "task")
    task = (study.named_task() or two).complete_from(two)  # the number of classes changes no call
    for method in study.method_list():
        yield f"method {method.name}: {_assignments(method.model_dump())}"
        if (on_nodes := suited(method, study.encoder(), "node")) != method:
            yield f"  no rate and no task named: {_rates(on_nodes)} if parties hold nodes, {PLAIN_LR:g} if graphs"
        if (own := method.most_spent()) is not None:
            yield f"  spends epsilon {own:g} in each run on what its noise protects"
        if (privacy := study.named_privacy()) is not None:
            each = f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g}"
            yield f"  spends {each} in each run on the unit '{privacy.name}'"
        actions = method.site_type().actions()
        module = outline(method, study.encoder(), SMALLEST, task)
        yield f"  a model of {count_numbers(module):,} numbers, if there were one feature and two classes"
        for action, times in method.calls(module).items():
            binding = actions[action].binding
            evaluates = "ask" if privacy is not None and privacy.hides_items else method.evaluate_by
            verbs = (evaluates,) if action == "evaluate" else binding.verbs
            what = " or ".join(READERS[verb, binding.to] for verb in verbs)
            if times and action != "lend":  # which needs pairs, that no federation has
                yield f"  {action}: at most {times:,} times in a run; {what}"


def _rates(method: Method) -> str:
    """The learning rates of local trainings, as text."""
    return ", ".join(f"{name}.lr = {each.rate:g}" for name, each in method if isinstance(each, LocalTraining))


def _assignments(options: Mapping[str, Any], prefix: str = "") -> str:
    """Options as text.

    >>> _assignments({"rounds": 3, "local": {"lr": 0.1}})
    'rounds = 3, local.lr = 0.1'
    """
    found = [
        _assignments(value, f"{prefix}{name}.") if isinstance(value, Mapping) else f"{prefix}{name} = {value}"
        for name, value in options.items()
    ]
    return ", ".join(found)


def split_shares(study: Study) -> dict[str, float]:
    """Return the training and validation shares of labelled items, for parties whose files have no split."""
    data = study.data_set()
    given = data if isinstance(data, PartyFolders) else PartyFolders(path="")
    return {name: getattr(given, name) for name in SHARES}


class Approvals:
    """The studies that a party knows.

    Arguments:
        folder: where they are kept.
        kit: the party's kit, for the command in messages.
    """

    def __init__(self, folder: Path, kit: str = "KIT") -> None:
        self.folder, self.kit = folder, kit

    def approve(self, proposal: Proposal) -> int:
        """Approve a study, once more if it was approved before; return how often it is approved now."""
        count = self._count(proposal.hash) + 1
        self._write(proposal, count)
        return count

    def waiting(self) -> list[Proposal]:
        """Return the studies that a server began and nobody approved, the newest first."""
        return [proposal for proposal, count in self._read_all() if not count]

    def find(self, study: str) -> Proposal:
        """Return the study with this hash; a few of its digits are not enough, as another study may begin so."""
        found = next((each for each, _ in self._read_all() if each.hash == study.lower()), None)
        if found is None:
            raise IsthmusError(
                f"'{study}' is the hash of no known study: give all {DIGITS} digits that isthmus federation preview "
                "printed, or the study's TOML file"
            )
        return found

    def approved(self, study: str) -> tuple[Proposal | None, int]:
        """Return the study with this hash, if it is kept here, and how often it is approved."""
        return self._content(self._file(study)) if self._file(study).exists() else (None, 0)

    def permit(self, proposal: Proposal, limits: Limits, known: Sequence[str]) -> int:
        """Return how often the calls of a study may be answered; refuse one that nobody approved.

        Arguments:
            known: the parties in this party's kit; a standing approval is for studies of all of them.
        """
        count = self._count(proposal.hash)
        if count:
            return count * (1 + limits.repeats)
        if not limits.standing or set(proposal.parties) != set(known):
            self._keep(proposal)
            raise self._unapproved(proposal.hash, "not approved")
        if not self._counted(proposal.hash, limits.studies):
            self._keep(proposal)
            raise self._unapproved(proposal.hash, f"beyond the {limits.studies} of limits.studies")
        return 1 + limits.repeats

    def _counted(self, study: str, most: int) -> bool:
        """Count a study among those without an approval of their own, unless there are so many others."""
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("a") as file:
                store.hold(file.fileno())  # two jobs may begin at once
                others = [path for path in self.folder.glob("*.calls") if path.stem != study]
                if sum(not self._count(path.stem) for path in others) >= most:
                    return False
                self._calls(study).touch()
        return True

    def tally(self, proposal: Proposal) -> Tally:
        """What was answered of a study."""
        return Tally(self._calls(proposal.hash))

    def _unapproved(self, study: str, why: str) -> IsthmusError:
        log.warning(
            "study %s is %s here: read and approve it with isthmus federation approve %s %s",
            study,
            why,
            self.kit,
            study,
        )
        return IsthmusError(f"refused: study {study} is {why} there: {remedy(study)}")

    def _keep(self, proposal: Proposal) -> None:
        """Keep a study that a server began, so that a person can read it."""
        if not self._file(proposal.hash).exists():
            self._write(proposal, 0)
        for each in self.waiting()[KEPT:]:
            self._file(each.hash).unlink(missing_ok=True)

    def _file(self, study: str) -> Path:
        return self.folder / f"{study}.json"

    def _calls(self, study: str) -> Path:
        return self.folder / f"{study}.calls"

    def _write(self, proposal: Proposal, count: int) -> None:
        content = {"format": FORMAT, "approved": count, "study": json.loads(proposal.text)}
        store.write_json(self._file(proposal.hash), content, private=True)

    def _count(self, study: str) -> int:
        return self.approved(study)[1]

    def _read_all(self) -> list[tuple[Proposal, int]]:
        paths = sorted(self.folder.glob("*.json"), key=lambda path: -path.stat().st_mtime_ns)
        return list(map(self._content, paths))

    def _content(self, path: Path) -> tuple[Proposal, int]:
        """Return the study that a file is of, and how often it is approved."""
        again = "delete it and approve the study again"
        try:
            content = store.read_json(path, within=self.folder)
            store.check_format(path, content, FORMAT, again)
            count = content["approved"]
            proposal = Proposal.read(json.dumps(content["study"]))
            if type(count) is not int or count < 0 or proposal.hash != path.stem:
                raise ValueError("it is of another study")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise IsthmusError(f"{path} is damaged: {again}") from error
        return proposal, count


def remedy(study: str) -> str:
    """What the party's owner types; a server gets no path of the party's machine."""
    return f"approve it with isthmus federation approve KIT {study}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Leave the path out of errors of this machine's disk."""
    try:
        yield
    except OSError as error:
        log.error("%s: %s", path, error)
        raise IsthmusError(f"cannot write down what it answers: {error.strerror}") from error


def digest_of(*parts: Any) -> str:
    """The hash of texts, numbers, bytes, tensors, and lists and mappings of these; the order of keys does not matter.

    >>> digest_of({"a": b"x", "b": 1}) == digest_of({"b": 1, "a": b"x"}) != digest_of({"a": "x", "b": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def bytes_of(value: Tensor) -> bytes:
    """The numbers of a tensor, as they are in memory."""
    return value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _plain(value: Tensor | bytes) -> list[Any]:
    """What stands for bytes, or a tensor, in JSON."""
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), hashlib.sha256(bytes_of(value)).hexdigest()]
    return ["bytes", hashlib.sha256(value).hexdigest()]


class Tally:
    """The calls of a study that a party answered, over all jobs, in a file that is only added to.

    A call is known by a digest of all calls and deliveries before it in its run and of its own content. One that was
    answered before repeats the same answer, so it is free; a resumed run consists of such calls as long as the same
    parties answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answered: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._at = 0

    def count(self, call: str, kind: str, planned: int, times: int) -> None:
        """Count a call before it is answered; refuse one that is more than the study plans.

        Arguments:
            call: digest of the call and of those before it.
            kind: what is counted together, such as an action of one run.
            planned: how often the study plans it.
            times: how often this may be answered.
        """
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                store.check_file(self.path, within=self.path.parent)
            with self.path.open("a+b") as file:
                store.hold(file.fileno())  # two jobs may run at once
                self._read_on(file)
                if call in self.answered:
                    return
                if self.counts[kind] >= planned * times:
                    raise IsthmusError(
                        f"refused: the study plans {planned:,} calls of {kind}, and {self.counts[kind]:,} were answered"
                        f" (limits.repeats): {remedy(self.path.stem)}"
                    )
                file.write(f"{_with_sum(f'{call} {kind}')}\n".encode())
                file.flush()
                self._read_on(file)

    def _read_on(self, file: Any) -> None:
        """Read what was added since the last time."""
        file.seek(self._at)
        *lines, rest = file.read().decode(errors="replace").split("\n")
        for line in lines if not rest else [rest]:
            call, _, kind = line.partition(" ")[2].partition(" ")
            if rest or line != _with_sum(f"{call} {kind}"):
                log.error("%s is damaged: delete it, which forgets what was answered of this study", self.path)
                raise IsthmusError("refused: its record of this study is damaged (read the log at the party)")
            self.answered.add(call)
            self.counts[kind] += 1
        self._at = file.tell()


def _with_sum(line: str) -> str:
    """A line of a tally with a checksum before it.

    >>> _with_sum("call kind")
    '403ecab734331cba call kind'
    """
    return f"{hashlib.sha256(line.encode()).hexdigest()[:16]} {line}"
