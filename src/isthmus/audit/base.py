"""What audits have in common: they are found by name, and they read what parties received."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from isthmus.data.party import Party
from isthmus.federation.local import LocalTransport
from isthmus.options import Registered
from isthmus.tasks.base import Task


class Audit(Registered):
    """A check of what a method gives away, by an attack that uses nothing but what its attackers have."""

    kind: ClassVar[str] = "audit"
    built_in_module: ClassVar[str] = "isthmus.audit"
    attacked: ClassVar[str] = ""
    """The method that it is of; none where it is of any."""

    @abstractmethod
    def of(self, parties: Sequence[Party], task: Task, module: nn.Module, method: Any = None, *, seed: int = 0) -> Any:
        """What is learned, under one protection after another.

        Arguments:
            module: the model before training.
            method: with options of its own; its protections are replaced.
        """

    @abstractmethod
    def shown(self, found: Any, parties: int) -> Shown:
        """What `of` found, as a table for people; `parties` is how many there are."""


@dataclass(frozen=True)
class Shown:
    """A table, and what stands below it.

    Attributes:
        corner: what the titles of its lines are of.
        columns: one for each protection.
        sections: of lines, each a title and a cell for every column.
    """

    corner: str
    columns: Sequence[str]
    sections: Sequence[Sequence[tuple[str, Sequence[str]]]]
    notes: Sequence[str]


@dataclass(frozen=True, eq=False)
class Letter:
    """One party's message to another, as the addressee received it."""

    action: str
    sender: str
    addressee: str
    payload: Mapping[str, Any]


class Recorder(LocalTransport):
    """Calls sites that live here and keeps a copy of every message between parties that it delivers.

    These are the payloads whose bytes the ledger books as received: an attack is given those of its attackers.
    """

    def __init__(self, sites: Sequence[Any], **options: Any) -> None:
        super().__init__(sites, **options)
        self.letters: list[Letter] = []

    def deliver(self, action: str, mail: Mapping[str, Mapping[str, Any]]) -> None:
        for addressee, came in mail.items():
            for sender, payload in came.items():
                if sender in self.parties and isinstance(payload, Mapping):  # else it is a field of a sum
                    self.letters.append(Letter(action, sender, addressee, payload))
        super().deliver(action, mail)
