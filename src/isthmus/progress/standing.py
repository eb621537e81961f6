"""How the studies of a federation stand, and each of their parties, by the server's record.

It loads no torch, so that `isthmus federation status` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from isthmus.errors import IsthmusError
from isthmus.federation.ledger import UNREADABLE, PartyStanding, read_standings
from isthmus.report import wording
from isthmus.tasks.metrics import METRICS, metric_of

HEADS = ("party", "answered", "took", "sent", "received", "last reply", "now")
"""Heads of the columns of a party's cells."""
NOTE = (
    "Answered: the last round in which a party answered. Took: all its replies together. Sent and received: bytes in "
    "the ledger. Times are in UTC."
)
"""What the columns mean."""


def party_cells(party: str, standing: PartyStanding) -> tuple[str, ...]:
    """Return the cells of a party's row, for the columns `HEADS`.

    >>> party_cells("north", PartyStanding(3, 12.0, 1200, 800, "2026-05-04T09:30:01.000+00:00"))
    ('north', 'round 3', '12 s', '1.2 kB', '800 B', '09:30:01', '')
    """
    answered = "-" if standing.round is None else f"round {standing.round}" if standing.round else "set-up"
    now = f"out: {standing.absent}" if standing.absent else f"asked {_clock(standing.asked)}" if standing.asked else ""
    amounts = (wording.format_bytes(each) for each in (standing.sent, standing.received))
    return party, answered, wording.format_time(standing.seconds), *amounts, _clock(standing.seen) or "-", now


def shown_parties(parties: Mapping[str, PartyStanding], most: int = wording.MAX_PARTIES) -> dict[str, PartyStanding]:
    """Return the parties that a table has room for: of more than `most` those first that are out, or late."""
    if len(parties) <= most:
        return dict(parties)
    ranked = sorted(parties, key=lambda party: (not parties[party].absent, not parties[party].asked))
    chosen = set(ranked[:most])
    return {party: standing for party, standing in parties.items() if party in chosen}


def parties_table(parties: Mapping[str, PartyStanding], most: int = wording.MAX_PARTIES) -> Table:
    """How the parties stand in a study, a row for each."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for head in HEADS:
        right, last = head in ("took", "sent", "received"), head == HEADS[-1]
        table.add_column(
            head, justify="right" if right else "left", no_wrap=not last, overflow="fold" if last else "ellipsis"
        )
    for party, standing in (shown := shown_parties(parties, most)).items():
        table.add_row(*map(Text, party_cells(party, standing)))
    if len(parties) > len(shown):
        table.caption = f"{len(shown)} of {len(parties)} parties"
    return table


def status_of(
    seen: Mapping[str, Any], lost: Callable[[str], bool], *, follow: bool = False, most: int = wording.MAX_PARTIES
) -> list[RenderableType]:
    """What an administrator sees of a federation: who is connected, and all studies with the parties of those that run.

    Arguments:
        seen: what the server says.
        lost: whether a job has ended without an outcome.
        follow: leave out what is as it should be, or over: connected parties, and all but the newest study.
        most: rows that a table of parties has at most.
    """
    try:
        return list(_status(seen, lost, follow, most))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IsthmusError(UNREADABLE) from error


def _status(seen: Mapping[str, Any], lost: Callable[[str], bool], follow: bool, most: int) -> Iterator[RenderableType]:
    for party, connected in seen["parties"].items():
        if not (follow and connected):
            yield Text(f"{party}: {'connected' if connected else 'not connected'}")
    for party, told in seen["refused"].items():
        yield Text(f"refused '{party}' from {told['place']} at {told['at']}: {told['why']}")
    for study in seen["studies"][: 1 if follow else None]:
        running = study["state"] == "running" and not lost(study["job"])
        yield Text(f"{study['started'][:19]}  {', '.join(study['methods'])}: {_state(study, running)}")
        for line in study["lines"]:
            reached = f"{line['method']}, seed {line['seed']}: round {line['at']} of {line['rounds']}"
            yield Text("  " + ", ".join(filter(None, (reached, validation_figure(line["metrics"])))))
        parties = read_standings(study.get("parties"))
        if running and parties:
            yield parties_table(parties, most)
        for party, standing in () if running else parties.items():
            if standing.absent:
                yield Text(f"  party '{party}' was not there at the end: {standing.absent}")


def validation_figure(metrics: Mapping[str, float], chosen_by: str = "") -> str:
    """Return the metric that chooses the round, or the first one that is known.

    >>> validation_figure({"val_loss": 0.5, "val_accuracy": 0.8152}), validation_figure({})
    ('validation 81.5%', '')
    """
    name = next((name for name in (chosen_by, *(f"val_{each}" for each in METRICS)) if name in metrics), "")
    return f"validation {metric_of(name).shown(metrics[name], '%')}" if name else ""


def _state(study: Mapping[str, Any], running: bool) -> str:
    """Return how a study stands, in words."""
    if running:
        left = study.get("left")
        return f"running, about {wording.format_time(max(1.0, left))} left" if left else "running"
    if study["state"] in ("running", "lost"):
        why = study["why"] if study["state"] == "lost" else "its job or server was killed"
        return f"{why}; continue with isthmus federation run --resume"
    if study["state"] == "stopped":
        return f"stopped: {study['why']}"
    return "finished" if study["fetched"] else "finished; fetch the results with isthmus federation run --resume"


def _clock(time: str) -> str:
    """Return the time of day of a date and time."""
    return time[11:19]
