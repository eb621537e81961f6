"""Everything a server may do to parties: ask, total, exchange. The verb says who sees what."""

from __future__ import annotations

import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers, did_you_mean
from isthmus.federation import wire
from isthmus.federation.answers import Answers, IdUnion, PlainTotal, Receipt, Reply, Total
from isthmus.federation.ledger import Call, Eyes, Ledger, Verb
from isthmus.nn.draws import generator
from isthmus.nn.stacks import is_stack, outline, slice_of

log = logging.getLogger(__name__)

_IDS = re.compile(r"(?:^|, )ids\[([0-9]{1,12})\]")
"""The field that has a row's ids, as `wire.describe` tells it."""


@dataclass(frozen=True)
class Each:
    """A request that differs by party."""

    payloads: Mapping[str, wire.Payload]


Request = wire.Payload | Each | None
To = Literal["server", "parties"]


@dataclass(frozen=True)
class Wanted:
    """A total that is wanted, as `Federation.total` says it."""

    action: str
    request: wire.Payload | Each
    asked: tuple[str, ...]
    to: To = "server"
    rows: IdUnion | None = None
    least: int = 1
    needed: int = 1
    """Parties that must be in it by the quorum; a sum of fewer is not opened."""


@dataclass(frozen=True)
class Made:
    """A total that a transport has made without seeing a summand.

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
    def total(self, wanted: Wanted) -> Made:
        """The total, of those parties that could be summed over."""

    @abstractmethod
    def renewed(self) -> None:
        """Parties have begun anew: what was agreed on with them has served."""


class Transport(ABC):
    """How requests reach the sites and answers come back: in this process, or over a network."""

    parties: tuple[str, ...]
    limit: int = wire.LIMIT
    """Largest payload, in bytes."""
    sums: Sums | None = None
    """What makes totals here; None: the server adds up summands that come to it as they are."""
    protections: Mapping[Verb, str] = {}
    """What protects what goes by a verb, where something does."""

    @abstractmethod
    def call(self, verb: Verb, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
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

    @abstractmethod
    def own_weights(self) -> dict[str, Any]:
        """By party the model that it keeps for itself now, where that may be seen here."""


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

    def sample(self, fraction: float, *purpose: object) -> tuple[str, ...]:
        """A share of the parties, at least one, drawn anew every round and for every other purpose within it."""
        count = max(1, round(fraction * len(self.parties)))
        if count >= len(self.parties):
            return self.parties
        order = torch.randperm(len(self.parties), generator=generator(self.seed, "sample", self.clock(), *purpose))
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
        to: To = "server",
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
        if self.transport.sums is not None:
            return self._protected(self.transport.sums, action, request, of, to, rows, least, eyes)
        asked, replies = self._call("total", action, request, of, eyes, like=to == "server")
        wants = _values(replies, "wants") if rows is not None else {}
        for reply in replies if rows is not None else ():
            reply.columns.pop("wants", None)
        total = PlainTotal(replies, asked, rows, least)
        if to == "server":
            return total
        named = _values(replies, "ids") | wants
        parcels = {party: _parcel(total, named.get(party)) for party in asked}
        sizes = {("total", party): wire.size(parcel) for party, parcel in parcels.items()}
        self._book_received(tuple(parcels), tuple(sizes.values()), {party: len(ids) for party, ids in named.items()})
        self.transport.deliver(action, parcels)
        return Receipt(sizes, total.missing)

    def exchange(self, action: str, request: Request = None, *, of: Sequence[str] | None = None) -> Receipt:
        """Parties' messages to each other pass through; the server learns sizes, not content."""
        _, replies = self._call("exchange", action, request, of, "the addressed party")
        known = set(self.parties)
        inboxes: dict[str, dict[str, Any]] = {}
        sizes: dict[tuple[str, str], int] = {}
        for reply in replies:
            for sender, letters in zip(reply.parties, reply.letters, strict=True):
                for addressee, payload in letters.items():
                    if addressee not in known:
                        raise PayloadError(
                            f"party '{sender}', action '{action}': a message to '{addressee}', "
                            f"who is not in the federation: {did_you_mean(addressee, self.parties)}"
                        )
                    inboxes.setdefault(addressee, {})[sender] = payload
                    sizes[sender, addressee] = wire.size(payload)
        came = {party: sum(sizes[sender, party] for sender in senders) for party, senders in inboxes.items()}
        rows = {party: sum(map(_rows, inbox.values())) for party, inbox in inboxes.items()}
        self._book_received(tuple(came), tuple(came.values()), rows)
        self.transport.deliver(action, inboxes)
        return Receipt(sizes, {party: why for reply in replies for party, why in reply.failures.items()})

    def agree(self, action: str, request: Request = None) -> IdUnion:
        """The union of the (hashed) ids that the parties answer in the field `ids`: a step of set-up."""
        answers = self.ask(action, request)
        for party, answer in answers.items():
            if "ids" not in answer:
                raise PayloadError(f"party '{party}', action '{action}': no field 'ids' in the answer")
        held = torch.cat([answer["ids"].unique() for answer in answers.values()])
        ids, holders = torch.unique(held, return_counts=True)
        union = IdUnion(ids, holders)
        return IdUnion(ids, holders, {party: union.places(answer["ids"]) for party, answer in answers.items()})

    # ---- what stands behind the verbs

    def _protected(
        self,
        sums: Sums,
        action: str,
        request: Request,
        of: Sequence[str] | None,
        to: To,
        rows: IdUnion | None,
        least: int,
        eyes: Eyes,
    ) -> Total | Receipt:
        """A total that the transport makes."""
        asked, request = self._checked(action, request, of)
        made = sums.total(Wanted(action, request, asked, to, rows, least, self._needed(asked)))
        total = made.total
        self._book("total", action, made.received, asked, made.sent, made.fields, total.missing, eyes)
        self._require_quorum(action, asked, total.contributors, total.missing)
        if to == "server":
            return total
        self._book_received(tuple(made.delivered), tuple(made.delivered.values()))
        return Receipt({("total", party): size for party, size in made.delivered.items()}, total.missing)

    def _checked(
        self, action: str, request: Request, of: Sequence[str] | None
    ) -> tuple[tuple[str, ...], wire.Payload | Each]:
        """Who is asked, and for what."""
        asked = self.parties if of is None else tuple(of)
        request = {} if request is None else request
        self._check_asked(action, request, asked)
        _check_request(action, request, asked, self.transport.limit)
        return asked, request

    def _call(
        self,
        verb: Verb,
        action: str,
        request: Request,
        of: Sequence[str] | None,
        eyes: Eyes,
        like: bool = True,
    ) -> tuple[tuple[str, ...], list[Reply]]:
        asked, request = self._checked(action, request, of)
        replies = self.transport.call(verb, action, request, asked)
        sent: dict[str, int] = {}
        for at, reply in enumerate(replies):
            _check_verb(verb, action, reply)
            arrived = without(action, reply, reply.not_carried())
            sizes = _sizes(arrived)
            over = _too_large(arrived, sizes, self.transport.limit)
            sent |= {party: 0 if i in over else sizes[i] for i, party in enumerate(arrived.parties)}
            arrived = without(action, arrived, over)
            replies[at] = without(action, arrived, not_due(arrived, request if like else {}))
        notes = {party: why for reply in replies for party, why in reply.failures.items()}
        fields = next((text for reply in replies if (text := _fields(verb, reply))), "")
        rows = {party: count for reply in replies for party, count in _rows_sent(reply).items()}
        self._book(verb, action, request_sizes(request, asked), asked, sent, fields, notes, eyes, rows)
        self._require_quorum(action, asked, sum(len(reply.parties) for reply in replies), notes)
        return asked, replies

    def _check_asked(self, action: str, request: wire.Payload | Each, asked: Sequence[str]) -> None:
        known = set(self.parties)
        for party in asked:
            if party not in known:
                raise IsthmusError(f"action '{action}': unknown party '{party}': {did_you_mean(party, known)}")
            if isinstance(request, Each) and party not in request.payloads:
                raise IsthmusError(f"action '{action}': no request for party '{party}'")
        if len(set(asked)) < len(asked) or not asked:
            double = next((party for party in asked if asked.count(party) > 1), "")
            what = f"party '{double}' was asked twice" if double else "no party was asked"
            raise IsthmusError(f"action '{action}': {what}")

    def _book(
        self,
        verb: Verb,
        action: str,
        received: Mapping[str, int],
        asked: tuple[str, ...],
        sent: Mapping[str, int],
        fields: str,
        notes: Mapping[str, str],
        eyes: Eyes,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        for party, why in notes.items():
            log.warning("party '%s' is left out of round %d: %s", party, self.clock(), why)
        self.ledger.add(
            Call(
                round=self.clock(),
                call=len(self.ledger.calls),
                verb=verb,
                action=action,
                eyes=eyes,
                fields=fields,
                protection=self.transport.protections.get(verb, "none"),
                parties=asked,
                sent=tuple(sent.get(party, 0) for party in asked),
                received=tuple(received[party] for party in asked),
                notes=notes,
                rows=rows or {},
            )
        )

    def _book_received(
        self, parties: tuple[str, ...], sizes: tuple[int, ...], rows: Mapping[str, int] | None = None
    ) -> None:
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
                rows=rows or {},
            )
        )

    def _needed(self, asked: Sequence[str]) -> int:
        """How many of these parties must answer."""
        return max(1, math.ceil(self.quorum * len(asked) - 1e-9))  # 0.07 * 100 is a little more than 7

    def _require_quorum(self, action: str, asked: Sequence[str], answered: int, notes: Mapping[str, str]) -> None:
        needed = self._needed(asked)
        if answered >= needed:
            return
        raise TooFewAnswers(
            f"round {self.clock()}, action '{action}': {answered} of {len(asked)} parties answered, "
            f"at least {needed} must; missing: {told_reasons(notes)}"
        )


def told_reasons(notes: Mapping[str, str]) -> str:
    """Parties with why they are missing, those of one reason together; the first three reasons.

    >>> told_reasons({"a": "gone", "b": "slow", "c": "gone"})
    "'a', 'c' (gone), 'b' (slow)"
    """
    by_reason: dict[str, list[str]] = {}
    for party, why in notes.items():
        by_reason.setdefault(why, []).append(f"'{party}'")
    told = [
        f"{', '.join(parties[:3])}{f' and {len(parties) - 3} more' if len(parties) > 3 else ''} ({why})"
        for why, parties in by_reason.items()
    ]
    more = f" and {sum(map(len, list(by_reason.values())[3:]))} more" if len(told) > 3 else ""
    return f"{', '.join(told[:3])}{more}"


def request_sizes(request: wire.Payload | Each, asked: Sequence[str]) -> dict[str, int]:
    """Bytes of what every party is sent."""
    if isinstance(request, Each):
        return {party: wire.size(request.payloads[party]) for party in asked}
    return dict.fromkeys(asked, wire.size(request))


def _check_request(action: str, request: wire.Payload | Each, asked: Sequence[str], limit: int) -> None:
    payloads = {f" to party '{p}'": request.payloads[p] for p in asked} if isinstance(request, Each) else {"": request}
    for whom, payload in payloads.items():
        try:
            wire.check(payload, limit=limit)
        except PayloadError as error:
            raise PayloadError(f"server, request of action '{action}'{whom}: {error}") from error


def _check_verb(verb: Verb, action: str, reply: Reply) -> None:
    """Messages to other parties go by `exchange`, answers by `ask` and `total`."""
    if reply.parties and bool(reply.letters) != (verb == "exchange"):
        made = "mail, which goes by exchange" if reply.letters else "an answer, which goes by ask or total"
        raise IsthmusError(f"action '{action}' was called by {verb} and makes {made}")


def _rows_sent(reply: Reply) -> dict[str, int]:
    """By party how many rows by id it sent."""
    if reply.letters:
        return {p: sum(map(_rows, of.values())) for p, of in zip(reply.parties, reply.letters, strict=True)}
    return {party: count for party, ids in _values([reply], "ids").items() if (count := _rows({"ids": ids}))}


def _rows(payload: Any) -> int:
    """How many rows by id a message has; of one that is sealed what its sender says."""
    if isinstance(payload, wire.Sealed):
        told = _IDS.search(payload.fields)
        return int(told[1]) if told else 0
    ids = payload.get("ids") if isinstance(payload, Mapping) else None
    return len(ids) if isinstance(ids, Tensor) and ids.dim() else 0


def _sizes(reply: Reply) -> tuple[int, ...]:
    """Bytes of what each party of the reply sent."""
    if not reply.letters:
        return reply.sizes()
    return tuple(sum(wire.size(payload) for payload in letters.values()) for letters in reply.letters)


def _too_large(reply: Reply, sizes: Sequence[int], limit: int) -> dict[int, str]:
    """Positions of parties with a payload over the limit; every message is a payload of its own."""
    over: dict[int, str] = {}
    for at, size in enumerate(sizes):
        if size > limit and reply.letters:
            size = max(wire.size(payload) for payload in reply.letters[at].values())
        if size > limit:
            over[at] = f"payload of {size} bytes is over the limit of {limit}"
    return over


def not_due(reply: Reply, request: wire.Payload | Each) -> dict[int, str]:
    """Positions of parties that answered a field of the request in another shape or type than it was sent."""
    expected = {} if isinstance(request, Each) else dict(wire.flatten(request))
    faulty: dict[int, str] = {}
    for name, column in reply.columns.items():
        like = expected.get(name)
        if not isinstance(like, torch.Tensor):
            continue
        for at in range(len(reply.parties)):
            value = outline(column, at)
            if not isinstance(value, torch.Tensor) or value.shape != like.shape or value.dtype != like.dtype:
                tensor = isinstance(value, torch.Tensor)
                got = f"{value.dtype} {list(value.shape)}" if tensor else f"a {type(value).__name__}"
                faulty.setdefault(at, f"field '{name}' is {got}, due is {like.dtype} {list(like.shape)}")
            elif is_stack(column):
                break  # all slices have one shape and type
    return faulty


def without(action: str, reply: Reply, faulty: Mapping[int, str]) -> Reply:
    """The reply without the parties whose answers must not be used, each of them named with the reason."""
    if not faulty:
        return reply
    kept = reply.keep([at for at in range(len(reply.parties)) if at not in faulty])
    kept.failures |= {reply.parties[at]: f"action '{action}', {why}" for at, why in faulty.items()}
    return kept


def _fields(verb: Verb, reply: Reply) -> str:
    if verb != "exchange":
        return reply.describe()
    return next((wire.describe(payload) for letters in reply.letters for payload in letters.values()), "")


def _values(replies: Sequence[Reply], name: str) -> dict[str, Any]:
    """One field of every party that answered it."""
    return {
        party: slice_of(reply.columns[name], at)
        for reply in replies
        if name in reply.columns
        for at, party in enumerate(reply.parties)
    }


def _parcel(total: Total, wants: Any) -> dict[str, Any]:
    """What of a sum goes to one party."""
    if total.rows is None:
        return total.payload()
    wants = total.rows.ids[:0] if wants is None else wants
    assert total.opened is not None
    at = total.rows.places(wants.cpu())
    fields = {name: value[at.to(value.device)] for name, value in dict(wire.flatten(total.payload())).items()}
    return wire.unflatten({**fields, "ids": wants, "opened": total.opened[at]})
