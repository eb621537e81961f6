"""Audits: attacks on a method that use only what their attackers have, and the messages that such attackers read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.answers import Reply
from isthmus.federation.local import LocalTransport
from isthmus.federation.transport import Command
from isthmus.options import Registered
from isthmus.study.config import Loaded, Study
from isthmus.study.setup import module_for
from isthmus.tasks.base import Task


class Audit(Registered):
    """A measurement of what a method leaks, by an attack that uses only what its attackers have."""

    kind: ClassVar[str] = "audit"
    built_in_module: ClassVar[str] = "isthmus.audit"
    attacked: ClassVar[str] = ""
    """The name of the method that it attacks; empty if it attacks any method."""
    by_name_only: ClassVar[bool] = False
    """Whether it attacks too few models to be anyone's first choice."""
    of_noise: ClassVar[bool] = False
    """Whether it attacks the noise of `[privacy]`; others train without it."""

    @abstractmethod
    def run(self, parties: Sequence[Party], task: Task, module: nn.Module, method: Any, *, seed: int = 0) -> list[Any]:
        """Attack a method under one protection after another.

        Arguments:
            module: the model before training.
            method: the method and its options; the audit replaces its protections.
        """

    def run_study(self, study: Study, loaded: Loaded, method: Any) -> list[Any]:
        """Attack a method of a study, on the loaded cut and the initial model of the study's first seed."""
        privacy, more = study.named_privacy(), dict[str, Any]()
        if self.of_noise:
            more = {"privacy": privacy}
        elif privacy is not None:
            raise IsthmusError(
                f"audit '{self.name}' does not train under [privacy]: use the audit 'epsilon', or take the table out "
                "to attack the method without noise"
            )
        module = module_for(study.encoder(method), loaded.parties, loaded.task, study.seeds[0])
        return self.run(loaded.parties, loaded.task, module, method, seed=study.seeds[0], **more)

    @abstractmethod
    def table(self, found: Any, parties: int) -> AuditTable:
        """Show what `run` found among this many parties."""


@dataclass(frozen=True)
class AuditTable:
    """What an audit found, for people.

    Attributes:
        corner: the head of the first column.
        columns: one per protection.
        sections: groups of lines; each line is a title and one cell per column.
        notes: sentences below the table.
        curves: ROC curves by title, each as false and true positive rates.
        lower_bounds: epsilons that it shows, see `isthmus.result_files.ShownEpsilon`.
    """

    corner: str
    columns: Sequence[str]
    sections: Sequence[Sequence[tuple[str, Sequence[str]]]]
    notes: Sequence[str]
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    lower_bounds: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, eq=False)
class Letter:
    """A message from one party to another, as the addressee received it."""

    action: str
    sender: str
    addressee: str
    payload: Mapping[str, Any]


class Recorder(LocalTransport):
    """A local transport that keeps a copy of every message between parties.

    The ledger counts the same payloads as received. An attack gets those of its attackers.
    """

    def __init__(self, sites: Sequence[Any], **options: Any) -> None:
        super().__init__(sites, **options)
        self.letters: list[Letter] = []

    def send(self, command: Command) -> list[Reply]:
        if command.do == "deliver":
            for addressee, mail in command.payload.items():
                for sender, payload in mail.items():
                    if sender in self.parties and isinstance(payload, Mapping):  # else it is a field of a sum
                        self.letters.append(Letter(command.action, sender, addressee, payload))
        return super().send(command)
