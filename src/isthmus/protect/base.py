"""Protections of totals: what all of them have in common, at the server and at a party.

A protected total goes in steps, each a message to every party and its reply. A party runs the action, keeps its part,
and replies with it closed; closed parts add up to a closed sum, which then is opened for the server, or at the parties
alone. Where a sum needs a least number of contributors, or parties alone read its rows, closed counts come first, and
parts leave out rows of fewer.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import IdUnion, Reply, Total, require_contributors
from isthmus.federation.packed import packed_request
from isthmus.federation.transport import Each, Sums, TotalRequest, TotalResult
from isthmus.nn.stacks import slice_of
from isthmus.protect.parts import Form, Part, form_of, form_read, form_text, totals
from isthmus.protect.sealing import Channel

Message = dict[str, Any]
FEWEST = 2
"""Parties that a sum is over at least: one of a single party is its answer."""
LONGEST = 4000
"""Characters of what a party says of its fields."""


class Lines(Protocol):
    """How the server reaches the parties; who cannot be reached is not heard of again in a total."""

    parties: tuple[str, ...]
    limit: int

    def there(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Those among these parties that are there."""

    def tell(self, action: str, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
        """Replies of parties that did as they were told, and why others did not."""

    def outside(self, asked: Sequence[str]) -> dict[str, str]:
        """Why others of these parties are not there."""


class Guard(ABC):
    """A party's side of a protection: keeps the part that the party has answered, and closes it.

    Arguments:
        channel: to the other parties.
        floor: parties that must be in a sum that this one helps to open, at least.
    """

    def __init__(self, channel: Channel, floor: int = FEWEST) -> None:
        self.channel = channel
        self.name = channel.ring.name
        self.floor = self.least = max(FEWEST, floor)
        self._part: Part | None = None
        self._ids: IdUnion | None = None
        self._wants: Tensor | None = None
        self._opened: list[frozenset[str]] = []

    @abstractmethod
    def step(self, message: Message) -> Message:
        """The reply to a step of the protection's own."""

    @abstractmethod
    def close(self, columns: Mapping[str, Tensor], message: Message) -> Any:
        """Columns as they leave the party."""

    @abstractmethod
    def open(self, closed: Any, form: Form, at: Tensor | None, message: Message) -> dict[str, Tensor]:
        """The columns of a closed sum that came to the parties, or these rows of them."""

    def answered(self, reply: Reply, message: Message, limit: int) -> Message:
        """What leaves for a total: the part of the one party that a reply is of, closed.

        Arguments:
            message: the call; `shield` says how it is to be closed, and of what.
        """
        wanted = message["shield"]
        told: Message = {"fields": reply.describe(), "floor": self.floor}
        self._opened, self._ids = [], None
        self.least = max(self.floor, int(wanted["least"]))
        if "ids" in wanted:
            ids = wire.decode(wanted["ids"], limit=limit)["ids"]
            self._ids = IdUnion(ids, torch.ones_like(ids))
            own = reply.columns.get("ids")
            wants = reply.columns.pop("wants", own)
            self._wants = ids[:0] if wants is None else slice_of(wants, 0)
        self._part = Part.of(reply, self._ids, weights=wanted["to"] == "server")
        if wanted["to"] == "parties" and self._wants is not None:
            told["wants"] = wire.encode({"ids": self._wants})
        return {**told, **self.again(wanted, limit)}

    def again(self, wanted: Message, limit: int) -> Message:
        """The kept part closed once more: its counts, its sums, or these for fewer rows or another set of parties."""
        if self._part is None:
            raise IsthmusError(f"party '{self.name}' has no part of a sum")
        part = self._part
        if wanted["what"] == "counts":
            columns: Mapping[str, Tensor] = part.counts
        elif "opened" in wanted:
            columns = part.only(wire.decode(wanted["opened"], limit=limit)["rows"]).columns
        else:
            columns = part.columns
        return {"form": form_text(form_of(columns)), "closed": self.close(columns, wanted)}

    def delivered(self, message: Message, limit: int) -> dict[str, Any]:
        """What a total for the parties gives this one."""
        form = form_read(message["form"])
        at = None
        if self._ids is not None:
            assert self._wants is not None
            at = self._ids.positions(self._wants)
        fields: dict[str, Any] = dict(self.open(message["closed"], form, at, message))
        if at is not None:
            rows = wire.decode(message["opened"], limit=limit)["rows"]
            fields |= {"ids": self._wants, "opened": rows}
        return wire.unflatten(fields)

    def permit_opening(self, of: Sequence[str], what: str) -> None:
        """Refuse to open what would show one party's part, now or with what was opened before of the same answers."""
        if self.name not in of or len(set(of)) < self.least:
            raise IsthmusError(f"refused: a sum of {len(set(of))} is not opened, at least {self.least} must be in it")
        if what != "sums":
            return
        sets = [*self._opened, frozenset(of)]
        alike = Counter(tuple(party in each for each in sets) for party in set().union(*sets))
        if min(alike.values()) < self.least:
            raise IsthmusError("refused: beside what was opened before, this sum would show too few parties' parts")
        self._opened = sets


@dataclass
class Book:
    """What one total took: bytes by party, and why parties are not in it."""

    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missing: dict[str, str] = field(default_factory=dict)
    fields: str = ""
    wants: dict[str, bytes] = field(default_factory=dict)
    floor: int = 0

    def count(self, messages: Mapping[str, Message], replies: Mapping[str, Message]) -> None:
        for party, message in messages.items():
            self.received[party] += size(message)
        for party, reply in replies.items():
            self.sent[party] += size(reply)


def size(value: Any) -> int:
    """Bytes in a message, whatever holds them."""
    if isinstance(value, Mapping):
        return sum(map(size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size, value))
    return len(value) if isinstance(value, bytes) else 0


@dataclass
class Closed:
    """Closed parts of one step, added up.

    Attributes:
        of: the parties whose parts are in it.
        form: of all of them.
        value: as the protection has it.
    """

    of: tuple[str, ...]
    form: Form
    value: Any


Check = Callable[[Total, wire.Payload | Each], str]
"""Says of a total, beside the request, what is wrong with it; nothing where all is well."""


class ClosedSums(Sums):
    """The server's side of a protection.

    Arguments:
        lines: reach the parties.
        wrong: a sum of which it says something is drawn again without some of the parties.
        tries: sums drawn again, at most, for one that is wrong.
    """

    def __init__(self, lines: Lines, wrong: Check, tries: int) -> None:
        self.lines, self.wrong, self.tries = lines, wrong, tries
        self.suspects: dict[str, str] = {}

    @abstractmethod
    def ready(self, action: str, asked: tuple[str, ...], book: Book) -> tuple[tuple[str, ...], dict[str, Message]]:
        """Keys for a sum over these parties; those that have theirs, and what each is told with the call."""

    @abstractmethod
    def fits(self, closed: Any, form: Form) -> bool:
        """Whether this is a closed part of this form."""

    @abstractmethod
    def add(self, step: Step, parts: Mapping[str, Any], form: Form, book: Book) -> Closed:
        """Closed parts to a closed sum."""

    @abstractmethod
    def read(self, closed: Closed, step: Step, book: Book) -> dict[str, Tensor]:
        """The columns of a closed sum."""

    @abstractmethod
    def parcel(self, closed: Closed, at: Tensor | None) -> Message:
        """What of a closed sum goes to one party: these rows, or all of it."""

    def total(self, wanted: TotalRequest) -> TotalResult:
        book = Book(missing=self.lines.outside(wanted.asked))
        book.missing |= {party: why for party, why in self.suspects.items() if party in wanted.asked}
        there = tuple(party for party in self.lines.there(wanted.asked) if party not in self.suspects)
        step = Step(wanted, "sums", first=True)
        if wanted.min_contributors > 1 or (wanted.rows is not None and wanted.to == "parties"):
            closed, step = self._counted(wanted, there, book)
        else:
            closed = self._closed(step, there, book)
        opened = step.opened
        if wanted.to == "parties":
            delivered = self._deliver(wanted, closed, opened, book)
            unread = Total({}, {}, len(closed.of), book.missing, wanted.rows, opened)
            return self._made(wanted, unread, book, delivered)
        total = self._total(closed, step, book)
        if why := self.wrong(total, wanted.request):
            total = self._halved(step, closed, why, book)
        return self._made(wanted, total, book, {})

    def _counted(self, wanted: TotalRequest, there: tuple[str, ...], book: Book) -> tuple[Closed, Step]:
        """A closed sum, after counts of those who contribute. Whoever is gone in between was counted: then anew."""
        count = Step(wanted, "counts", first=True)
        while True:
            counts = self._closed(count, there, book)
            opened = _enough(wanted, self.read(counts, count, book))
            step = Step(wanted, "sums", first=False, opened=opened, of=counts.of)
            try:
                return self._closed(step, counts.of, book), step
            except _Gone as gone:
                count, there = Step(wanted, "counts", first=False), gone.left

    def _total(self, closed: Closed, step: Step, book: Book) -> Total:
        """A closed sum as the server reads it."""
        sums, weights = totals(self.read(closed, step, book))
        opened = step.opened
        if step.wanted.rows is not None and opened is None:
            opened = torch.stack([weight != 0 for weight in weights.values()]).all(0)
        return Total(sums, weights, len(closed.of), book.missing, step.wanted.rows, opened)

    def _made(self, wanted: TotalRequest, total: Total, book: Book, delivered: dict[str, int]) -> TotalResult:
        received = {party: book.received[party] for party in wanted.asked}
        return TotalResult(total, book.fields, dict(book.sent), received, delivered)

    def _closed(self, step: Step, there: tuple[str, ...], book: Book) -> Closed:
        """One closed sum over those among these parties that are heard of."""
        wanted = step.wanted
        there, heads = self.ready(wanted.action, there, book)
        _require(wanted, there, book)
        messages = {party: step.message(party, len(there), heads[party], self.lines.limit) for party in there}
        replies = self.tell(
            wanted.action, messages, book, lambda _, reply: self.fits(reply["closed"], form_read(reply["form"]))
        )
        form = _commonest(replies)
        parts = {party: reply["closed"] for party, reply in replies.items() if reply["form"] == form}
        for party in replies.keys() - parts.keys():
            book.missing[party] = f"action '{wanted.action}', its part is not like the others'"
        _require(wanted, parts, book)
        if step.of and parts.keys() != set(step.of):
            raise _Gone(tuple(party for party in step.of if party in parts))
        if step.first:
            book.fields = str(next(iter(replies.values())).get("fields", ""))[:LONGEST]
            book.wants = {party: reply["wants"] for party, reply in replies.items() if "wants" in reply}
            book.floor = max(int(reply.get("floor", 0)) for reply in replies.values())
        return self.add(step, parts, form_read(form), book)

    def tell(
        self,
        action: str,
        messages: Mapping[str, Message],
        book: Book,
        fit: Callable[[str, Message], bool] | None = None,
    ) -> dict[str, Message]:
        """Replies to messages of one step; who has none is in the book, and so are the bytes.

        Arguments:
            fit: whether a party's reply is one to this step; others are dropped.
        """
        replies, missing = self.lines.tell(action, messages)
        book.missing |= missing
        book.count(messages, replies)
        for party in [party for party, reply in replies.items() if fit and not _fits(fit, party, reply)]:
            book.missing[party] = f"action '{action}', its reply to a step of a protected total is none"
            del replies[party]
        return replies

    def _deliver(self, wanted: TotalRequest, closed: Closed, opened: Tensor | None, book: Book) -> dict[str, int]:
        """Send the parties what of a closed sum is for each; bytes of it."""
        messages: dict[str, Message] = {}
        for party in closed.of:
            at = None
            more: Message = {}
            if wanted.rows is not None and opened is not None:
                try:
                    ids = wire.decode(book.wants[party], limit=self.lines.limit)["ids"]
                    at = wanted.rows.positions(ids).view(len(ids))
                except Exception:  # whatever a reader stumbles over in a message from outside
                    book.missing[party] = f"action '{wanted.action}', it wants rows that are none"
                    continue
                more = {"opened": wire.encode({"rows": opened[at]})}
            parcel = {**self.parcel(closed, at), **more}
            messages[party] = {"do": "deliver", "action": wanted.action, "shield": parcel}
        _, missing = self.lines.tell(wanted.action, messages)
        book.missing |= missing
        return {party: size(message) for party, message in messages.items()}

    def _halved(self, step: Step, bad: Closed, why: str, book: Book) -> Total:
        """The total of those of whom it is known that nothing of theirs is wrong; the others are left out from now on.

        Nobody can be named: sums are drawn again without halves of the parties, of two parties at least, so that no
        difference of two sums shows one party's part.
        """
        suspect, tries, fewest = bad.of, self.tries, max(FEWEST, book.floor)
        good: tuple[str, ...] = ()
        found: Total | None = None
        while tries > 0 and len(suspect) >= 2 * fewest:
            one, other = _halves(suspect)
            for half, rest in ((one, other), (other, one)):
                tries -= 1
                of = good + half
                again = Step(step.wanted, "sums", first=False, opened=step.opened, of=of)
                total = self._right(of, again, book)
                if total is not None:
                    good, suspect, found = good + half, rest, total
                    break
            else:
                suspect = one  # wrong parts in both: the other half stays out
        if found is None:
            raise TooFewAnswers(
                f"action '{step.wanted.action}': {why}, and whose part it is cannot be found among {len(bad.of)} "
                "parties without showing what others said"
            )
        out = tuple(party for party in bad.of if party not in good)
        reason = f"action '{step.wanted.action}', left out: {why}, of one of {', '.join(out)}"
        self.suspects |= dict.fromkeys(out, reason)
        found.missing |= dict.fromkeys(out, reason)
        return found

    def _right(self, of: tuple[str, ...], again: Step, book: Book) -> Total | None:
        """The total of these parties, if nothing is wrong with it; without one of them it is not opened."""
        try:
            total = self._total(self._closed(again, of, book), again, book)
        except _Gone as gone:
            raise TooFewAnswers(
                f"action '{again.wanted.action}': parties were lost while a wrong sum was drawn again"
            ) from gone
        return None if self.wrong(total, again.wanted.request) else total


@dataclass(frozen=True)
class Step:
    """One closed sum on the way to a total.

    Attributes:
        what: counts of those who contribute, or sums.
        first: parties run the action; otherwise they close once more what they have answered.
        opened: rows that sums are of.
        of: parties that must all be in it: beside what was opened before, a sum without one would show its part.
    """

    wanted: TotalRequest
    what: Literal["counts", "sums"]
    first: bool
    opened: Tensor | None = None
    of: tuple[str, ...] = ()

    def message(self, party: str, under: int, head: Message, limit: int) -> Message:
        wanted = self.wanted
        shield: Message = {**head, "what": self.what, "to": wanted.to, "least": wanted.min_contributors}
        if self.opened is not None:
            shield["opened"] = wire.encode({"rows": self.opened})
        if not self.first:
            return {"do": "shield", "step": "again", "shield": shield}
        if wanted.rows is not None:
            shield["ids"] = wire.encode({"ids": wanted.rows.ids})
        packed = packed_request(wanted.request, (party,), limit)
        return {"do": "call", "verb": "total", "action": wanted.action, "under": under, "request": packed,
                "shield": shield}  # fmt: skip


def _fits(fit: Callable[[str, Message], bool], party: str, reply: Message) -> bool:
    try:
        return fit(party, reply)
    except Exception:  # whatever a reader stumbles over in a message from outside
        return False


class _Gone(Exception):  # noqa: N818 - reads as what happened
    """Parties of a sum that must have all of them are gone.

    Arguments:
        left: those that are there.
    """

    def __init__(self, left: tuple[str, ...]) -> None:
        super().__init__()
        self.left = left


def _require(wanted: TotalRequest, of: Collection[str], book: Book) -> None:
    """An error for a sum that could not be opened, with the reasons why parties are not in it."""
    needed = max(FEWEST, wanted.min_contributors, wanted.quorum)
    if len(of) >= needed:
        return
    missing = [f"'{party}' ({why})" for party, why in book.missing.items()][:3]
    raise TooFewAnswers(
        f"action '{wanted.action}': a protected total of {len(of)} of {len(wanted.asked)} parties is not opened, at "
        f"least {needed} must be in it{'; missing: ' * bool(missing)}{', '.join(missing)}"
    )


def _enough(wanted: TotalRequest, counts: Mapping[str, Tensor]) -> Tensor | None:
    """Rows to which enough parties contribute, by every field; of a whole sum too few are an error."""
    if wanted.rows is None:
        for path, count in counts.items():
            require_contributors(int(count), wanted.min_contributors, f"a total of '{path}'")
        return None
    opened = torch.ones(wanted.rows.ids.numel(), dtype=torch.bool)
    for count in counts.values():
        opened &= count >= wanted.min_contributors
    return opened


def _commonest(replies: Mapping[str, Message]) -> str:
    """The form that most parts have."""
    return Counter(str(reply.get("form", "")) for reply in replies.values()).most_common(1)[0][0] if replies else ""


def _halves(of: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two halves drawn at random, each in the order of the parties."""
    drawn = set(random.SystemRandom().sample(of, len(of) // 2))
    return tuple(party for party in of if party in drawn), tuple(party for party in of if party not in drawn)
