"""What all protections of totals share, at the server and at a party.

A protected total takes several steps; in each, the server sends every party a message and gets a reply. A party runs
the action, keeps its part, and replies with the closed part: masked or encrypted. The server adds closed parts up to a
closed sum, which is opened for the server or only at the parties. If a sum has a minimum number of contributors, or if
only parties read its rows, closed counts come first, and parts leave out rows with too few contributors.
"""

from __future__ import annotations

import random
import secrets
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import IdUnion, Reply, Total, require_contributors
from isthmus.federation.packed import message_size, pack_request
from isthmus.federation.transport import Sums, TotalRequest, TotalResult
from isthmus.nn.stacks import slice_of
from isthmus.protect.parts import Form, Part, form_of, format_form, parse_form, split_weights
from isthmus.protect.sealing import Channel, fingerprint
from isthmus.protect.sums_opened import SumRecord

Message = dict[str, Any]
MIN_PARTIES = 2
"""Parties in any protected sum, at least: a sum over one party is its answer."""
MAX_TEXT = 4000
"""Characters kept of a party's description of its fields."""


class PartyLinks(Protocol):
    """How the server reaches the parties; a party that did not answer gets no further message of the same total."""

    parties: tuple[str, ...]
    limit: int

    def reachable(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return those of these parties that can be reached."""

    def send_step(self, action: str, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
        """Send messages; return the replies, and by party the reason for a missing one."""

    def unreachable(self, asked: Sequence[str]) -> dict[str, str]:
        """Return those of these parties that cannot be reached, with the reason."""


WHAT = ("counts", "sums")
"""What a closed sum may be of."""


@dataclass(frozen=True)
class Closing:
    """What a party closes: the server chooses when, so everything about it is kept together.

    Attributes:
        what: counts or sums.
        about: a digest of all that the server told, which it must tell all parties of the sum alike.
        required: parties that the sum needs.
        states: fingerprints of what the part was made from.
        of: the parties that must be in it: those over which contributors were counted; empty if none were.
    """

    what: str
    about: str
    required: int
    states: tuple[str, ...] = ()
    of: tuple[str, ...] = ()

    @property
    def looked_up(self) -> tuple[str, ...]:
        """The states under which a record has sums of this kind."""
        return self.states if self.what == "sums" else tuple(f"{state} counts" for state in self.states)


def call_digest(action: str, shield: Message, request: bytes | Mapping[str, bytes]) -> str:
    """What the server tells all parties alike when it calls them for a sum; of a request for each, only that it is."""
    common = request if isinstance(request, bytes) else b""
    each = "" if isinstance(request, bytes) else "each"
    return fingerprint(action, str(shield["to"]), str(shield["least"]), shield.get("ids", b""), each, common)


def sum_digest(call: str, what: str, opened: bytes) -> str:
    """What the server tells all parties of one closed sum alike."""
    return fingerprint(call, what, opened)


class Guard(ABC):
    """A party's side of a protection: it keeps the party's part of a sum, and closes it.

    Arguments:
        channel: the party's envelopes to other parties.
        min_parties: how many parties a sum needs for this party to help open it.

    Attributes:
        record: of the sums that the party closed and opened; where it keeps a ledger, of all runs.
    """

    def __init__(self, channel: Channel, min_parties: int = MIN_PARTIES) -> None:
        self.channel = channel
        self.name = channel.ring.name
        self.min_parties = self.required = max(MIN_PARTIES, min_parties)
        self.record = SumRecord()
        self._part: Part | None = None
        self._ids: IdUnion | None = None
        self._wants: Tensor | None = None
        self._to = "server"
        self._call = ""
        self._contributors = 1
        self._states: tuple[str, ...] = ()

    @abstractmethod
    def answer_step(self, message: Message) -> Message:
        """Answer a message of the protection's own protocol."""

    @abstractmethod
    def close(self, columns: Mapping[str, Tensor], message: Message, closing: Closing) -> Any:
        """Close columns, so that they can leave the party."""

    @abstractmethod
    def open(self, closed: Any, form: Form, rows: Tensor | None, message: Message) -> dict[str, Tensor]:
        """Open a closed sum that is for the parties: all rows of its columns, or these."""

    def counted(self, wanted: Message) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Return by field the number of contributors to the sum, and the parties over which they were counted.

        It raises an error if the server has changed the counts.
        """
        raise IsthmusError("refused: contributors of this sum cannot be counted")

    def close_answer(
        self,
        reply: Reply,
        message: Message,
        limit: int,
        least: int = 1,
        contributors: int = 1,
        states: tuple[str, ...] = (),
    ) -> Message:
        """Keep this party's reply as its part of a sum, and close it.

        Arguments:
            message: the call; its `shield` says what to close, and how.
            least: parties that the sum needs, whatever the server says.
            contributors: parties that must contribute to the sum, or to a row of it, whatever the server says.
            states: fingerprints of what the reply was made from.
        """
        wanted = message["shield"]
        self._call = call_digest(str(message.get("action")), wanted, message.get("request", b""))
        answer: Message = {"fields": reply.describe(), "floor": self.min_parties}
        self._states, self._ids = (*states, secrets.token_hex(8)), None  # this answer is a state of its own
        self.required = max(self.min_parties, int(wanted["least"]), least)
        self._contributors = contributors
        self._to = str(wanted["to"])
        if "ids" in wanted:
            ids = wire.decode(wanted["ids"], limit=limit)["ids"]
            self._ids = IdUnion(ids, torch.ones_like(ids))
            own = reply.columns.get("ids")
            wants = reply.columns.pop("wants", own)
            self._wants = ids[:0] if wants is None else slice_of(wants, 0)
        self._part = Part.of(reply, self._ids, weights=wanted["to"] == "server")
        if wanted["to"] == "parties" and self._wants is not None:
            answer["wants"] = wire.encode({"ids": self._wants})
        return {**answer, **self.close_again(wanted, limit)}

    def close_again(self, wanted: Message, limit: int) -> Message:
        """Close the kept part: its counts or its sums, perhaps for fewer rows or another set of parties."""
        if self._part is None:
            raise IsthmusError(f"party '{self.name}' has no part of a sum to close")
        if wanted["to"] != self._to:
            raise IsthmusError(f"refused: this sum is for the {self._to}, not for the {wanted['to']}")
        part, what, opened, of = self._part, wanted["what"], wanted.get("opened", b""), tuple[str, ...]()
        rows = wire.decode(opened, limit=limit)["rows"] if opened else None
        if what not in WHAT or (rows is not None and (self._ids is None or rows.shape != self._ids.ids.shape)):
            raise IsthmusError(f"refused: a sum is of {' or '.join(WHAT)}, and of rows that the call named")
        columns = part.counts
        if what == "sums":
            of = self._check_contributors(rows, wanted)
            columns = (part if rows is None else part.with_rows(rows)).columns
        about = sum_digest(self._call, what, opened)
        closed = self.close(columns, wanted, Closing(what, about, self.required, self._states, of))
        if what == "sums":
            self.record.note_closed(self._states)
        return {"form": format_form(form_of(columns)), "closed": closed}

    def _check_contributors(self, rows: Tensor | None, wanted: Message) -> tuple[str, ...]:
        """Refuse a sum, or rows, with too few contributors; return the parties that were counted."""
        if self._contributors < 2:
            return ()
        counts, of = self.counted(wanted)
        for name, count in counts.items():
            few = (count < self._contributors) if rows is None else (count < self._contributors) & rows
            if bool(few.any()):
                raise IsthmusError(f"refused: fewer than {self._contributors} parties contribute to '{name}'")
        return of

    def read_total(self, message: Message, limit: int) -> dict[str, Any]:
        """Open a total for the parties, and return this party's payload."""
        form = parse_form(message["form"])
        positions = None
        if self._ids is not None:
            assert self._wants is not None
            positions = self._ids.positions(self._wants)
        fields: dict[str, Any] = dict(self.open(message["closed"], form, positions, message))
        if positions is not None:
            rows = wire.decode(message["opened"], limit=limit)["rows"]
            fields |= {"ids": self._wants, "opened": rows}
        return wire.unflatten(fields)

    def permit_opening(self, of: Sequence[str], closing: Closing) -> None:
        """Refuse to open a sum that shows too few parties' parts, alone or with earlier sums from the same state."""
        if self.name not in of or len(set(of)) < closing.required:
            raise IsthmusError(f"refused: a sum over {len(set(of))} is not opened, it needs {closing.required} parties")
        if closing.of and set(of) != set(closing.of):
            raise IsthmusError(f"refused: contributors were counted over {', '.join(closing.of)}, not {', '.join(of)}")
        self.record.open(frozenset(of), closing.required, closing.looked_up)

    def repeats(self, closing: Closing) -> bool:
        """Whether this part left before: in another closed sum, or in an answer from the same state."""
        return closing.what == "sums" and self.record.times_closed(closing.states) > 1


@dataclass
class Tally:
    """What one total has taken so far: bytes by party, and why parties are missing from it."""

    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missing: dict[str, str] = field(default_factory=dict)
    fields: str = ""
    wants: dict[str, bytes] = field(default_factory=dict)
    min_parties: int = 0

    def count(self, messages: Mapping[str, Message], replies: Mapping[str, Message]) -> None:
        for party, message in messages.items():
            self.received[party] += message_size(message)
        for party, reply in replies.items():
            self.sent[party] += message_size(reply)


@dataclass
class ClosedSum:
    """The sum of the closed parts of some parties, all of one form; `value` is in the protection's own format.

    Counts have a `proof` for the parties, by which they know that nobody changed them.
    """

    of: tuple[str, ...]
    form: Form
    value: Any
    proof: bytes = b""


SumCheck = Callable[[Total, TotalRequest, Sequence[str]], str]
"""Says what is wrong with a total over these parties; empty if nothing is."""


class ProtectedSums(Sums):
    """The server's side of a protection.

    Arguments:
        check: finds faults in an opened sum; a faulty one is repeated without some of the parties.
        tries: how often a faulty sum is repeated, at most.
    """

    def __init__(self, links: PartyLinks, check: SumCheck, tries: int) -> None:
        self.links, self.check, self.tries = links, check, tries
        self.suspects: dict[str, str] = {}
        self._request: bytes | dict[str, bytes] = b""
        self._shield: Message = {}
        self._call = ""

    @abstractmethod
    def ready(self, action: str, asked: tuple[str, ...], tally: Tally) -> tuple[tuple[str, ...], dict[str, Message]]:
        """Prepare keys for a sum; return the parties that have theirs, and what the call tells each of them."""

    @abstractmethod
    def fits(self, closed: Any, form: Form, what: str) -> bool:
        """Whether this is a closed part of this form: counts, or sums."""

    @abstractmethod
    def add(self, step: SumStep, parts: Mapping[str, Any], form: Form, tally: Tally) -> ClosedSum:
        """Add closed parts up."""

    @abstractmethod
    def read(self, closed: ClosedSum, step: SumStep, tally: Tally) -> dict[str, Tensor]:
        """Open a closed sum."""

    @abstractmethod
    def parcel(self, closed: ClosedSum, rows: Tensor | None) -> Message:
        """What one party gets of a closed sum: these rows, or all of it."""

    def total(self, wanted: TotalRequest) -> TotalResult:
        tally = Tally(missing=self.links.unreachable(wanted.asked))
        tally.missing |= {party: why for party, why in self.suspects.items() if party in wanted.asked}
        parties = tuple(party for party in self.links.reachable(wanted.asked) if party not in self.suspects)
        self._request = pack_request(wanted.request, wanted.asked, self.links.limit)
        self._shield = shield_of(wanted)
        self._call = call_digest(wanted.action, self._shield, self._request)
        step = SumStep(wanted, "sums", first=True)
        if wanted.min_contributors > 1 or (wanted.rows is not None and wanted.to == "parties"):
            closed, step = self._counted_sum(wanted, parties, tally)
        else:
            closed = self._closed_sum(step, parties, tally)
        opened = step.opened
        if wanted.to == "parties":
            delivered = self._deliver(wanted, closed, opened, tally)
            unread = Total({}, {}, len(closed.of), tally.missing, wanted.rows, opened)
            return self._made(wanted, unread, tally, delivered)
        total = self._total(closed, step, tally)
        if why := self.check(total, wanted, closed.of):
            total = self._without_faulty(step, closed, why, tally)
        return self._made(wanted, total, tally, {})

    def _counted_sum(self, wanted: TotalRequest, parties: tuple[str, ...], tally: Tally) -> tuple[ClosedSum, SumStep]:
        """Count contributors, then compute a closed sum; start again if a counted party is lost in between."""
        count = SumStep(wanted, "counts", first=True)
        while True:
            counts = self._closed_sum(count, parties, tally)
            opened = _opened_rows(wanted, self.read(counts, count, tally))
            step = SumStep(wanted, "sums", first=False, opened=opened, of=counts.of, proof=counts.proof)
            try:
                return self._closed_sum(step, counts.of, tally), step
            except _PartiesLost as lost:
                count, parties = SumStep(wanted, "counts", first=False), lost.left

    def _total(self, closed: ClosedSum, step: SumStep, tally: Tally) -> Total:
        """Open a closed sum for the server."""
        sums, weights = split_weights(self.read(closed, step, tally))
        opened = step.opened
        if step.wanted.rows is not None and opened is None:
            opened = torch.stack([weight != 0 for weight in weights.values()]).all(0)
        return Total(sums, weights, len(closed.of), tally.missing, step.wanted.rows, opened)

    def _made(self, wanted: TotalRequest, total: Total, tally: Tally, delivered: dict[str, int]) -> TotalResult:
        received = {party: tally.received[party] for party in wanted.asked}
        return TotalResult(total, tally.fields, dict(tally.sent), received, delivered)

    def _closed_sum(self, step: SumStep, parties: tuple[str, ...], tally: Tally) -> ClosedSum:
        """Compute a closed sum over those of these parties that answer."""
        wanted = step.wanted
        parties, heads = self.ready(wanted.action, parties, tally)
        _require(step, parties, tally)
        messages = {party: self._message(step, party, len(parties), heads[party]) for party in parties}

        def fit(_: str, reply: Message) -> bool:
            floor = reply["floor"] if step.first else 0
            return type(floor) is int and 0 <= floor <= len(parties) and self._has_form(reply, step.what)

        replies = self.send_step(wanted.action, messages, tally, fit)
        form = _most_common_form(replies)
        parts = {party: reply["closed"] for party, reply in replies.items() if reply["form"] == form}
        for party in replies.keys() - parts.keys():
            tally.missing[party] = f"action '{wanted.action}', its part has another form than the others'"
        _require(step, parts, tally)
        if step.of and parts.keys() != set(step.of):
            raise _PartiesLost(tuple(party for party in step.of if party in parts))
        if step.first:
            tally.fields = str(next(iter(replies.values())).get("fields", ""))[:MAX_TEXT]
            tally.wants = {party: reply["wants"] for party, reply in replies.items() if "wants" in reply}
            tally.min_parties = max(int(reply["floor"]) for reply in replies.values())
        return self.add(step, parts, parse_form(form), tally)

    def _message(self, step: SumStep, party: str, under: int, head: Message) -> Message:
        wanted = step.wanted
        shield: Message = {**self._shield, **head, "what": step.what}
        if step.opened is not None:
            shield["opened"] = step.opened_rows
        if step.proof:
            shield["counted"] = step.proof
        if not step.first:
            shield.pop("ids", None)  # the party has them since the call
            return {"do": "shield", "step": "again", "shield": shield}
        request = self._request if isinstance(self._request, bytes) else {party: self._request[party]}
        return {"do": "call", "verb": "total", "action": wanted.action, "under": under, "request": request,
                "shield": shield}  # fmt: skip

    def about(self, step: SumStep) -> str:
        """The digest that the parties of this closed sum have of what they were told."""
        return sum_digest(self._call, step.what, step.opened_rows)

    def _has_form(self, reply: Message, what: str) -> bool:
        """Whether a reply is a closed part of the form that it says."""
        form = reply["form"]
        small = isinstance(form, str) and len(form) <= wire.LONGEST_HEADER
        return small and self.fits(reply["closed"], parse_form(form), what)

    def send_step(
        self,
        action: str,
        messages: Mapping[str, Message],
        tally: Tally,
        fit: Callable[[str, Message], bool] | None = None,
    ) -> dict[str, Message]:
        """Send the messages of one step; return the replies, and record bytes and missing parties.

        Arguments:
            fit: whether a party's reply is valid in this step; others are dropped.
        """
        replies, missing = self.links.send_step(action, messages)
        tally.missing |= missing
        tally.count(messages, replies)
        for party in [party for party, reply in replies.items() if fit and not _fits(fit, party, reply)]:
            tally.missing[party] = f"action '{action}', its reply to a step of a protected total is not valid"
            del replies[party]
        return replies

    def _deliver(self, wanted: TotalRequest, closed: ClosedSum, opened: Tensor | None, tally: Tally) -> dict[str, int]:
        """Send each party its share of a closed sum; return the bytes."""
        messages: dict[str, Message] = {}
        for party in closed.of:
            positions = None
            more: Message = {}
            if wanted.rows is not None and opened is not None:
                try:
                    ids = wire.decode(tally.wants[party], limit=self.links.limit)["ids"]
                    positions = wanted.rows.positions(ids).view(len(ids))
                except Exception:  # a message from outside may be wrong in any way
                    tally.missing[party] = f"action '{wanted.action}', it asks for rows that do not exist"
                    continue
                more = {"opened": wire.encode({"rows": opened[positions]})}
            parcel = {**self.parcel(closed, positions), **more}
            messages[party] = {"do": "deliver", "action": wanted.action, "shield": parcel}
        _, missing = self.links.send_step(wanted.action, messages)
        tally.missing |= missing
        return {party: message_size(message) for party, message in messages.items()}

    def _without_faulty(self, step: SumStep, bad: ClosedSum, why: str, tally: Tally) -> Total:
        """Compute a total over parties whose parts are known to be good, and leave out the others from now on.

        A protected sum cannot name the faulty party, so sums over halves of the suspects are tried. Every half has at
        least two parties, so that no difference of two sums shows one party's part.
        """
        suspects, fewest = bad.of, max(MIN_PARTIES, tally.min_parties)
        tries = 0 if step.proof else self.tries  # contributors were counted over all of them
        good: tuple[str, ...] = ()
        found: Total | None = None
        while tries > 0 and len(suspects) >= 2 * fewest:
            one, other = _halves(suspects)
            for half, rest in ((one, other), (other, one)):
                tries -= 1
                of = good + half
                again = SumStep(step.wanted, "sums", first=False, opened=step.opened, of=of)
                total = self._good_total(of, again, tally)
                if total is not None:
                    good, suspects, found = good + half, rest, total
                    break
            else:
                suspects = one  # both halves are faulty: leave the other one out
        if found is None:
            raise TooFewAnswers(
                f"action '{step.wanted.action}': {why}, and the faulty part of {len(bad.of)} cannot be found "
                "without showing others' parts"
            )
        out = tuple(party for party in bad.of if party not in good)
        reason = f"action '{step.wanted.action}', left out: {why}, in the part of one of {', '.join(out)}"
        self.suspects |= dict.fromkeys(out, reason)
        found.missing |= dict.fromkeys(out, reason)
        return found

    def _good_total(self, of: tuple[str, ...], again: SumStep, tally: Tally) -> Total | None:
        """Return the total of exactly these parties if it has no fault."""
        try:
            total = self._total(self._closed_sum(again, of, tally), again, tally)
        except _PartiesLost as lost:
            raise TooFewAnswers(
                f"action '{again.wanted.action}': parties were lost while a faulty sum was repeated"
            ) from lost
        return None if self.check(total, again.wanted, of) else total


@dataclass(frozen=True)
class SumStep:
    """One closed sum on the way to a total.

    Attributes:
        what: counts of contributors, or sums.
        first: parties run the action; in later steps they close their kept answer again.
        opened: the rows to sum.
        proof: of the counts of contributors.
        of: parties that must all be in it, because a sum without one of them would show its part.
    """

    wanted: TotalRequest
    what: Literal["counts", "sums"]
    first: bool
    opened: Tensor | None = None
    of: tuple[str, ...] = ()
    proof: bytes = b""

    @cached_property
    def opened_rows(self) -> bytes:
        return b"" if self.opened is None else wire.encode({"rows": self.opened})


def shield_of(wanted: TotalRequest) -> Message:
    """What a call for a total says about the sum."""
    shield: Message = {"to": wanted.to, "least": wanted.min_contributors}
    return shield if wanted.rows is None else {**shield, "ids": wire.encode({"ids": wanted.rows.ids})}


def _fits(fit: Callable[[str, Message], bool], party: str, reply: Message) -> bool:
    try:
        return fit(party, reply)
    except Exception:  # a message from outside may be wrong in any way
        return False


class _PartiesLost(Exception):  # noqa: N818 - it is not an error of its own
    """Parties were lost that a sum needs; `left` are the others."""

    def __init__(self, left: tuple[str, ...]) -> None:
        super().__init__()
        self.left = left


def _require(step: SumStep, of: Collection[str], tally: Tally) -> None:
    """Raise an error, with the reasons for missing parties, if too few are left to open a sum.

    The quorum counts when the search for a faulty part is over: sums over halves have fewer parties.
    """
    wanted = step.wanted
    needed = max(MIN_PARTIES, wanted.min_contributors, 0 if step.of else wanted.quorum)
    if len(of) >= needed:
        return
    missing = [f"'{party}' ({why})" for party, why in tally.missing.items()][:3]
    raise TooFewAnswers(
        f"action '{wanted.action}': a protected total needs at least {needed} parties, {len(of)} of "
        f"{len(wanted.asked)} are left{'; missing: ' * bool(missing)}{', '.join(missing)}"
    )


def _opened_rows(wanted: TotalRequest, counts: Mapping[str, Tensor]) -> Tensor | None:
    """Return which rows have enough contributors in every field; without rows, too few are an error."""
    if wanted.rows is None:
        for path, count in counts.items():
            require_contributors(int(count), wanted.min_contributors, f"a total of '{path}'")
        return None
    opened = torch.ones(wanted.rows.ids.numel(), dtype=torch.bool)
    for count in counts.values():
        opened &= count >= wanted.min_contributors
    return opened


def _most_common_form(replies: Mapping[str, Message]) -> str:
    """Return the form that most parts have."""
    return Counter(str(reply.get("form", "")) for reply in replies.values()).most_common(1)[0][0] if replies else ""


def _halves(of: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Draw two halves at random, each in the order of the parties."""
    drawn = set(random.SystemRandom().sample(of, len(of) // 2))
    return tuple(party for party in of if party in drawn), tuple(party for party in of if party not in drawn)
