"""What left each party, to whose eyes, how many bytes, under which protection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verb = Literal["ask", "total", "exchange"]
Eyes = Literal["server sees each answer", "server sees the sum", "parties see the sum", "the addressed party"]

COLUMNS = (
    "round", "call", "verb", "action", "party", "eyes", "fields", "rows", "sent", "received", "protection", "status",
    "note",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One use of a verb: what each asked party received and sent, in bytes of real payloads.

    `notes` says for each party that did not answer why; `rows` how many rows by id were in what it sent, or in what
    came to it, where that can be seen.
    """

    round: int
    call: int
    verb: Verb
    action: str
    eyes: Eyes
    fields: str
    protection: str
    parties: tuple[str, ...]
    sent: tuple[int, ...]
    received: tuple[int, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


class Ledger:
    """Writes itself: the federation adds a call for every use of a verb, a row of it per party.

    >>> ledger = Ledger()
    >>> ledger.add(Call(1, 0, "total", "train", "server sees the sum", "weights/b[2]", "none", ("a",), (80,), (72,)))
    >>> next(ledger.rows())["sent"]
    80
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def add(self, call: Call) -> None:
        self.calls.append(call)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per action and party, with the columns `COLUMNS`."""
        for call in self.calls:
            for party, sent, received in zip(call.parties, call.sent, call.received, strict=True):
                note = call.notes.get(party, "")
                yield {
                    "round": call.round,
                    "call": call.call,
                    "verb": call.verb,
                    "action": call.action,
                    "party": party,
                    "eyes": call.eyes,
                    "fields": call.fields,
                    "rows": call.rows.get(party, 0),
                    "sent": sent,
                    "received": received,
                    "protection": call.protection,
                    "status": "failed" if party in call.notes else "answered",
                    "note": note,
                }

    @property
    def sent(self) -> int:
        """Bytes that left the parties, all together."""
        return sum(sum(call.sent) for call in self.calls)

    @property
    def received(self) -> int:
        """Bytes that came to the parties, all together."""
        return sum(sum(call.received) for call in self.calls)

    def dump(self) -> list[dict[str, Any]]:
        """The calls as plain data, for a checkpoint."""
        return [asdict(call) for call in self.calls]

    def restore(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Start from the calls of a checkpoint."""
        tuples = ("parties", "sent", "received")
        self.calls = []
        for call in calls:
            fields: dict[str, Any] = {name: tuple(v) if name in tuples else v for name, v in call.items()}
            self.calls.append(Call(**fields))
