"""Everything a server may do to parties: ask, total, exchange. The verb says who sees what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch

from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers, nearest
from isthmus.federation import wire
from isthmus.federation.answers import Answers, IdUnion, Receipt, Reply, Total, slice_of
from isthmus.federation.ledger import Call, Eyes, Ledger, Verb
from isthmus.nn.draws import generator


@dataclass(frozen=True)
class Each:
    """A request that differs by party."""

    payloads: Mapping[str, wire.Payload]


Request = wire.Payload | Each | None


class Transport(ABC):
    """How requests reach the sites and answers come back: in this process, or over a network."""

    parties: tuple[str, ...]
    protection: str = "none"

    @abstractmethod
    def call(self, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
        """Have the sites of these parties answer an action; a party that cannot is in a reply's `failures`."""

    @abstractmethod
    def deliver(self, action: str, mail: Mapping[str, Mapping[str, Any]]) -> None:
        """Hand every named party what has come for it under this action."""

    @abstractmethod
    def save(self) -> dict[str, Any]:
        """What the sites need to go on after a restart, where they are on this machine."""

    @abstractmethod
    def restore(self, saved: Mapping[str, Any]) -> None:
        """The way back from `save`."""


class Federation:
    """The server's side of the three verbs.

    Arguments:
        transport: reaches the parties.
        seed: of the sampling of parties.
        quorum: the least share of the asked parties that must answer; below it a call is an error that names who
            did not answer and why.
        clock: the round that is under way, for the ledger and the sampling.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        seed: int = 0,
        quorum: float = 1.0,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.transport = transport
        self.parties = transport.parties
        self.ledger = Ledger()
        self.seed = seed
        self.quorum = quorum
        self.clock = clock

    def sample(self, fraction: float) -> tuple[str, ...]:
        """A share of the parties, drawn anew every round, at least one."""
        count = max(1, round(fraction * len(self.parties)))
        if count >= len(self.parties):
            return self.parties
        order = torch.randperm(len(self.parties), generator=generator(self.seed, "sample", self.clock()))
        return tuple(self.parties[at] for at in sorted(order[:count].tolist()))

    def ask(self, action: str, request: Request = None, *, of: Sequence[str] | None = None) -> Answers:
        """Every party's answer, read by the server one by one."""
        asked, replies = self._call("ask", action, request, of, "server sees each answer")
        return Answers(replies, asked)

    @overload
    def total(
        self,
        action: str,
        request: Request = ...,
        *,
        of: Sequence[str] | None = ...,
        to: Literal["server"] = ...,
        rows: IdUnion | None = ...,
        least: int = ...,
    ) -> Total: ...

    @overload
    def total(
        self,
        action: str,
        request: Request = ...,
        *,
        of: Sequence[str] | None = ...,
        to: Literal["parties"],
        rows: IdUnion | None = ...,
        least: int = ...,
    ) -> Receipt: ...

    def total(
        self,
        action: str,
        request: Request = None,
        *,
        of: Sequence[str] | None = None,
        to: Literal["server", "parties"] = "server",
        rows: IdUnion | None = None,
        least: int = 1,
    ) -> Total | Receipt:
        """One sum, or weighted mean, of what the parties answer; nobody sees a summand.

        Arguments:
            to: the server reads the sum; or only the parties do (`Site.received`) and the server is blind.
            rows: fields are keyed by rows over this union (see `agree`); each answer names its ids in `ids`. What
                goes to the parties then is, for each, the rows that it names in `wants` (its own `ids` without it).
            least: a sum, or a row of it, with fewer contributors is not opened.
        """
        eyes: Eyes = "server sees the sum" if to == "server" else "parties see the sum"
        asked, replies = self._call("total", action, request, of, eyes, like=to == "server")
        wants = _taken_out(replies, "wants")
        total = Total(replies, asked, rows, least)
        if to == "server":
            return total
        parcels = {party: _parcel(total, wants.get(party), replies, party) for party in asked}
        sizes = {("total", party): wire.size(parcel) for party, parcel in parcels.items()}
        self._book_received(tuple(parcels), tuple(sizes.values()))
        self.transport.deliver(action, parcels)
        return Receipt(sizes, total.missing)

    def exchange(self, action: str, request: Request = None, *, of: Sequence[str] | None = None) -> Receipt:
        """Parties' messages to each other pass through; the server learns sizes, not content."""
        _, replies = self._call("exchange", action, request, of, "the addressed party")
        inboxes: dict[str, dict[str, Any]] = {}
        sizes: dict[tuple[str, str], int] = {}
        for reply in replies:
            for sender, letters in zip(reply.parties, reply.letters, strict=True):
                for addressee, payload in letters.items():
                    if addressee not in self.parties:
                        raise PayloadError(
                            f"party '{sender}', action '{action}': a message to '{addressee}', "
                            f"who is not in the federation: {nearest(addressee, self.parties)}"
                        )
                    inboxes.setdefault(addressee, {})[sender] = payload
                    sizes[sender, addressee] = wire.size(payload)
        came = {party: sum(size for (_, to), size in sizes.items() if to == party) for party in inboxes}
        self._book_received(tuple(came), tuple(came.values()))
        self.transport.deliver(action, inboxes)
        return Receipt(sizes, {party: why for reply in replies for party, why in reply.failures.items()})

    def agree(self, action: str, request: Request = None) -> IdUnion:
        """The union of the (hashed) ids that the parties answer in the field `ids`: a step of set-up."""
        answers = self.ask(action, request)
        ids, holders = torch.unique(torch.cat([answer["ids"] for answer in answers.values()]), return_counts=True)
        return IdUnion(ids, holders)

    # ---- what stands behind the verbs

    def _call(
        self,
        verb: Verb,
        action: str,
        request: Request,
        of: Sequence[str] | None,
        eyes: Eyes,
        like: bool = True,
    ) -> tuple[tuple[str, ...], list[Reply]]:
        asked = self.parties if of is None else tuple(of)
        unknown = [party for party in asked if party not in self.parties]
        if unknown or not asked:
            what = f"unknown party '{unknown[0]}'" if unknown else "no party was asked"
            raise IsthmusError(f"action '{action}': {what}")
        request = {} if request is None else request
        _check_request(action, request)
        replies = self.transport.call(action, request, asked)
        replies = [_without_faulty(action, reply, request if like else {}) for reply in replies]
        self._book(verb, action, request, asked, replies, eyes)
        self._require_quorum(action, asked, replies)
        return asked, replies

    def _book(
        self,
        verb: Verb,
        action: str,
        request: wire.Payload | Each,
        asked: tuple[str, ...],
        replies: Sequence[Reply],
        eyes: Eyes,
    ) -> None:
        sent = dict.fromkeys(asked, 0)
        notes: dict[str, str] = {}
        for reply in replies:
            notes |= reply.failures
            if verb == "exchange":
                for party, letters in zip(reply.parties, reply.letters, strict=True):
                    sent[party] = sum(wire.size(payload) for payload in letters.values())
            else:
                sent |= dict(zip(reply.parties, reply.sizes(), strict=True))
        if isinstance(request, Each):
            received = [wire.size(request.payloads[party]) for party in asked]
        else:
            received = [wire.size(request)] * len(asked)
        fields = next((text for reply in replies if (text := _fields(verb, reply))), "")
        self.ledger.add(
            Call(
                round=self.clock(),
                call=len(self.ledger.calls),
                verb=verb,
                action=action,
                eyes=eyes,
                fields=fields,
                protection=self.transport.protection,
                parties=asked,
                sent=tuple(sent.values()),
                received=tuple(received),
                notes=notes,
            )
        )

    def _book_received(self, parties: tuple[str, ...], sizes: tuple[int, ...]) -> None:
        """What came to parties after the call just booked: sums, or other parties' messages."""
        last = self.ledger.calls[-1]
        self.ledger.add(
            Call(
                round=last.round,
                call=len(self.ledger.calls),
                verb=last.verb,
                action=f"{last.action}: delivery",
                eyes=last.eyes,
                fields=last.fields,
                protection=last.protection,
                parties=parties,
                sent=(0,) * len(parties),
                received=sizes,
            )
        )

    def _require_quorum(self, action: str, asked: Sequence[str], replies: Sequence[Reply]) -> None:
        answered = sum(len(reply.parties) for reply in replies)
        if answered >= max(1, self.quorum * len(asked)):
            return
        missing = [f"'{party}' ({why})" for reply in replies for party, why in reply.failures.items()]
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise TooFewAnswers(
            f"round {self.clock()}, action '{action}': {answered} of {len(asked)} parties answered, "
            f"at least {max(1, self.quorum * len(asked)):.0f} must; missing: {', '.join(missing[:3])}{more}"
        )


def _check_request(action: str, request: wire.Payload | Each) -> None:
    payloads = request.payloads.values() if isinstance(request, Each) else [request]
    for payload in payloads:
        try:
            wire.check(payload)
        except PayloadError as error:
            raise PayloadError(f"server, request of action '{action}': {error}") from error


def _without_faulty(action: str, reply: Reply, request: wire.Payload | Each) -> Reply:
    """The reply without the parties whose answers must not be used, each of them named with the reason."""
    faulty = {at: f"field '{name}' is NaN or infinite" for at, name in reply.not_finite().items()}
    expected = {} if isinstance(request, Each) else dict(wire.flatten(request))
    for name, column in reply.columns.items():
        like = expected.get(name)
        if not isinstance(like, torch.Tensor):
            continue
        for at in range(len(reply.parties)):
            value = column.outline() if not isinstance(column, torch.Tensor | Sequence) else slice_of(column, at)
            if value.shape != like.shape or value.dtype != like.dtype:
                got = f"{value.dtype} {list(value.shape)}"
                faulty.setdefault(at, f"field '{name}' is {got}, due is {like.dtype} {list(like.shape)}")
            elif isinstance(column, torch.Tensor):
                break  # the slices of a stack are alike
    if not faulty:
        return reply
    kept = reply.keep([at for at in range(len(reply.parties)) if at not in faulty])
    kept.failures |= {reply.parties[at]: f"action '{action}', {why}" for at, why in faulty.items()}
    return kept


def _fields(verb: Verb, reply: Reply) -> str:
    if verb != "exchange":
        return reply.describe()
    return next((wire.describe(payload) for letters in reply.letters for payload in letters.values()), "")


def _taken_out(replies: Sequence[Reply], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for reply in replies:
        column = reply.columns.pop(name, None)
        if column is not None:
            found |= {party: slice_of(column, at) for at, party in enumerate(reply.parties)}
    return found


def _parcel(total: Total, wants: Any, replies: Sequence[Reply], party: str) -> dict[str, Any]:
    """What of a sum goes to one party."""
    if total.rows is None:
        return total.payload()
    if wants is None:
        wants = next(
            (slice_of(r.columns["ids"], r.parties.index(party)) for r in replies if party in r.parties),
            total.rows.ids[:0],
        )
    assert total.opened is not None
    at = total.rows.places(wants.cpu())
    fields = {name: value[at.to(value.device)] for name, value in dict(wire.flatten(total.payload())).items()}
    return wire.unflatten({**fields, "ids": wants, "opened": total.opened[at]})
