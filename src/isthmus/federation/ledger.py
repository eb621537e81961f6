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
class Entry:
    """One use of a verb: what each asked party received and sent, in bytes of real payloads.

    `notes` gives, for each party that did not answer, the reason; `rows` the number of rows by id in what it sent or
    received, where that can be seen.
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
    """The federation adds an entry for every use of a verb; `rows` gives a row of it per party.

    >>> ledger = Ledger()
    >>> ledger.add(Entry(1, 0, "total", "train", "server sees the sum", "weights/b[2]", "none", ("a",), (80,), (72,)))
    >>> next(ledger.rows())["sent"]
    80
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per action and party, with the columns `COLUMNS`."""
        for entry in self.entries:
            for party, sent, received in zip(entry.parties, entry.sent, entry.received, strict=True):
                note = entry.notes.get(party, "")
                yield {
                    "round": entry.round,
                    "call": entry.call,
                    "verb": entry.verb,
                    "action": entry.action,
                    "party": party,
                    "eyes": entry.eyes,
                    "fields": entry.fields,
                    "rows": entry.rows.get(party, 0),
                    "sent": sent,
                    "received": received,
                    "protection": entry.protection,
                    "status": "failed" if party in entry.notes else "answered",
                    "note": note,
                }

    @property
    def sent(self) -> int:
        """Bytes that left the parties, all together."""
        return sum(sum(entry.sent) for entry in self.entries)

    @property
    def received(self) -> int:
        """Bytes that came to the parties, all together."""
        return sum(sum(entry.received) for entry in self.entries)

    def dump(self) -> list[dict[str, Any]]:
        """The entries as plain data, for a checkpoint."""
        return [asdict(entry) for entry in self.entries]

    def restore(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Go on from the entries of a checkpoint."""
        tuples = ("parties", "sent", "received")
        self.entries = []
        for entry in entries:
            fields: dict[str, Any] = {name: tuple(v) if name in tuples else v for name, v in entry.items()}
            self.entries.append(Entry(**fields))
