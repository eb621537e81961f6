"""How a server side reaches its sites: one narrow interface, with an in-process and a network implementation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import IdUnion, Reply, Total
from isthmus.federation.bounds import Introduced
from isthmus.federation.ledger import Verb


@dataclass(frozen=True)
class Each:
    """A request that differs by party."""

    payloads: Mapping[str, wire.Payload]


Request = wire.Payload | Each | None
To = Literal["server", "parties"]


class PartiesLost(IsthmusError):  # noqa: N818 - reads as what happened
    """Parties went away with the process that hosted them. They can start again (`Transport.restart`)."""


@dataclass(frozen=True)
class Command:
    """What sites are to do.

    Arguments:
        do: answer an action; take what other parties, or a total, deliver to them; save or restore their state; or
            hand every party the model that it evaluated last (replies carry it where the sites are on this machine);
            or give the counts of an evaluation that stay at the parties, to a study that measures them.
        of: the parties concerned.
        among: all parties concerned, if these are only some of them: others are reached in another way.
        action, verb: of an answer; of a delivery the action that it belongs to.
        payload: the request of an answer, the mail by party, the state to restore, or of models the threshold of
            decisions that validation items chose.
        sum_only: of the answers only the plain sum is wanted, so a transport may add them up as they come.
        to: who reads a total.
        same_form: fields of the request that come back must have the same shapes and types.
    """

    do: Literal["answer", "deliver", "save", "restore", "models", "counted"]
    of: tuple[str, ...]
    action: str = ""
    verb: Verb | None = None
    payload: Any = None
    sum_only: bool = False
    same_form: bool = True
    to: To = "server"
    among: tuple[str, ...] = ()


class Transport(ABC):
    """Carries commands to the sites and brings back their replies: in this process, or over a network.

    Attributes:
        parties: all of them, in order.
        limit: the largest payload, in bytes.
        sums: makes totals whose summands the server cannot see; None: the server's process adds up plain summands.
        protections: by verb, what protects its payloads.
        recovers: parties that are lost can be started again.
        introduced: by party what it introduced in the set-up, which bounds its answers; empty where the parties are of
            this process, and before the set-up.
        norm: how many times as large as what was sent an answer may be.
    """

    parties: tuple[str, ...]
    limit: int = wire.LIMIT
    sums: Sums | None = None
    protections: Mapping[Verb, str] = {}
    recovers: bool = False
    introduced: Mapping[str, Introduced] = {}
    norm: float = math.inf

    @abstractmethod
    def send(self, command: Command) -> list[Reply]:
        """Carry out a command; a party that cannot is in a reply's `failures`, a saved state in its `state`."""

    def restart(self) -> None:
        """Start all parties again, as they were before the run; only where `recovers` says so."""
        raise NotImplementedError

    def present(self) -> tuple[str, ...]:
        """Return the parties that can be asked at all."""
        return self.parties

    def kept_by(self, saved: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the parties whose part of a saved state exists."""
        return self.parties

    def confirm(self, saved: Mapping[str, Any]) -> None:  # noqa: B027 - most transports keep the state themselves
        """The checkpoint with this saved state is written: sites go back to it if they start again."""

    def close(self) -> None:  # noqa: B027 - most transports have nothing to do
        """The run is over: sites may drop what they saved for it."""


AnswerCheck = Callable[[Mapping[str, Any], Introduced], str]
"""Says what is wrong with an answer, or with a sum of answers, of parties that introduced so much; or nothing."""


@dataclass(frozen=True)
class TotalRequest:
    """The arguments of `Federation.total`, and how many parties must be in the sum by the quorum.

    Arguments:
        check: says what is wrong with the sum, once it is open.
    """

    action: str
    request: wire.Payload | Each
    asked: tuple[str, ...]
    to: To = "server"
    rows: IdUnion | None = None
    min_contributors: int = 1
    quorum: int = 1
    check: Callable[[Total, Introduced], str] = lambda total, introduced: ""


@dataclass(frozen=True)
class TotalResult:
    """A total that was made without the server seeing a summand.

    Attributes:
        total: what the server reads of it; without sums where only the parties do.
        fields: of an answer, in short.
        sent, received: bytes, by party.
        delivered: by party the bytes of its part of a sum that went to the parties.
    """

    total: Total
    fields: str
    sent: Mapping[str, int]
    received: Mapping[str, int]
    delivered: Mapping[str, int]


class Sums(ABC):
    """A way to make totals whose summands the server does not see."""

    @abstractmethod
    def total(self, wanted: TotalRequest) -> TotalResult:
        """The total over those parties that could be summed over."""

    @abstractmethod
    def restart(self) -> None:
        """Parties restarted, so earlier agreements with them are void."""
