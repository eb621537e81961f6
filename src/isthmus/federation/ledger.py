"""What left each party, to whose eyes, how many bytes, under which protection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from isthmus.errors import IsthmusError

Verb = Literal["ask", "total", "exchange"]
Eyes = Literal["server sees each answer", "server sees the sum", "parties see the sum", "the addressed party"]

DELIVERY = ": delivery"
"""What the action of an entry ends with that books what parties received, sums or messages."""

UNREADABLE = "the server's record of a study cannot be read: run the same version of isthmus everywhere"

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


@dataclass(frozen=True)
class Turnout:
    """Who counted in the rounds from `first` to `last`, and of who did not the first reason."""

    first: int
    last: int
    counted: tuple[str, ...]
    missing: Mapping[str, str]


@dataclass
class PartyStanding:
    """How a party of a federation stands in a study, as its server sees it.

    Attributes:
        round: the last round of the present run in which it answered a call; 0 is the set-up.
        seconds: that its replies took, all together.
        sent, received: bytes in the ledgers of the set-up and of all runs.
        seen: when it replied last, in UTC.
        asked: since when the server waits for its reply; empty if it does not.
        absent: why it is out; empty if it is not.
    """

    round: int | None = None
    seconds: float = 0.0
    sent: int = 0
    received: int = 0
    seen: str = ""
    asked: str = ""
    absent: str = ""


def read_standings(content: Any) -> dict[str, PartyStanding]:
    """Return how the parties stand, from what another machine sent."""
    try:
        return {
            str(party): PartyStanding(
                round=None if each["round"] is None else int(each["round"]),
                seconds=float(each["seconds"]),
                sent=int(each["sent"]),
                received=int(each["received"]),
                seen=str(each["seen"]),
                asked=str(each["asked"]),
                absent=str(each["absent"]),
            )
            for party, each in content.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise IsthmusError(UNREADABLE) from error


class Ledger:
    """The federation adds an entry for every use of a verb; `rows` and `columns` give a row of it per party.

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
        for columns in self.columns():
            for row in zip(*columns.values(), strict=True):
                yield dict(zip(columns, row, strict=True))

    def columns(self) -> Iterator[dict[str, list[Any]]]:
        """By column the rows of one entry, then of the next: with many parties much faster than `rows`."""
        for entry in self.entries:
            count = len(entry.parties)
            yield {
                "round": [entry.round] * count,
                "call": [entry.call] * count,
                "verb": [entry.verb] * count,
                "action": [entry.action] * count,
                "party": list(entry.parties),
                "eyes": [entry.eyes] * count,
                "fields": [entry.fields] * count,
                "rows": [entry.rows.get(party, 0) for party in entry.parties] if entry.rows else [0] * count,
                "sent": list(entry.sent),
                "received": list(entry.received),
                "protection": [entry.protection] * count,
                "status": ["failed" if party in entry.notes else "answered" for party in entry.parties],
                "note": [entry.notes.get(party, "") for party in entry.parties],
            }

    @property
    def sent(self) -> int:
        """Bytes that left the parties, all together."""
        return sum(sum(entry.sent) for entry in self.entries)

    @property
    def received(self) -> int:
        """Bytes that came to the parties, all together."""
        return sum(sum(entry.received) for entry in self.entries)

    def turnout(self) -> list[Turnout]:
        """By spans of rounds who counted and who did not; a party counts in a round in which it answered every call."""
        rounds: dict[int, tuple[dict[str, None], dict[str, str]]] = {}
        for entry in self.entries:
            asked, missing = rounds.setdefault(entry.round, ({}, {}))
            if not entry.action.endswith(DELIVERY):
                asked.update(dict.fromkeys(entry.parties))
            for party, why in entry.notes.items():
                missing.setdefault(party, why)
        spans: list[Turnout] = []
        for at, (asked, missing) in sorted(rounds.items()):
            counted = tuple(party for party in asked if party not in missing)
            last = spans[-1] if spans else None
            if last is not None and last.counted == counted and last.missing.keys() == missing.keys():
                spans[-1] = replace(last, last=at)
            else:
                spans.append(Turnout(at, at, counted, missing))
        return spans

    def dump(self) -> list[dict[str, Any]]:
        """The entries as plain data, for a checkpoint."""
        return [dict(vars(entry)) for entry in self.entries]

    def restore(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Go on from the entries of a checkpoint; entries of other types are an error of pydantic's."""
        self.entries = TypeAdapter(list[Entry]).validate_python(entries)
