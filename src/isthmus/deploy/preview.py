"""What a federation would disclose, before anything runs: the ledger of a dry run, extrapolated."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.loading import find_folders
from isthmus.data.folder.settings import FILE, PartyFile
from isthmus.data.folder.writing import write_parties
from isthmus.deploy.approval import Proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.remote import InProcessPost
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger
from isthmus.methods.base import Method
from isthmus.report.wording import format_bytes
from isthmus.study.config import Study, read_toml

ROUNDS = 3
"""Rounds of the dry run; the last of them stands for all later rounds."""
KINDS = ("verb", "action", "eyes", "protection", "fields")
"""Columns of a ledger that identify a kind of message."""


@dataclass(frozen=True)
class Disclosure:
    """What one kind of message discloses.

    Attributes:
        method: the method that sends it, or `set-up`.
        parties: number of parties that send it.
        times: how often it is sent in a whole run with one seed.
        smallest, largest: bytes that a party sends each time.
        sent: bytes that all parties send in a whole run.
        most_sent: bytes that one party sends at most in a whole run.
        received: bytes that all parties receive in a whole run.
    """

    method: str
    verb: str
    action: str
    eyes: str
    protection: str
    fields: str
    parties: int
    times: int
    smallest: int
    largest: int
    sent: int
    most_sent: int
    received: int


def preview(study: Study) -> list[Disclosure]:
    """Return what each method of a study would disclose in a federation of its parties.

    The study's own data stand in for the parties' data, so sizes that depend on a party's data are estimates.
    """
    from isthmus.protect.sealing import generate_keyrings  # what it needs is an extra

    with tempfile.TemporaryDirectory() as temporary:
        folders = _folders(study, Path(temporary) / "data")
        rings = generate_keyrings(tuple(folders))
        members = {
            name: Member(folder, Path(temporary) / "state" / name, name, ring=rings[name])
            for name, folder in folders.items()
        }
        dry = study.model_copy(
            update={
                "seeds": study.seeds[:1],
                "methods": [_with_few_rounds(method) for method in study.method_list()],
                "training": {},
            }
        )
        proposal = Proposal(dry, tuple(members))
        for member in members.values():
            member.approvals.approve(proposal)
        outcome = coordinate(dry, InProcessPost(members), "preview", Path(temporary) / "server")
    disclosures = list(_disclosures("set-up", outcome.ledger, None))
    for run, method in zip(outcome.runs, study.method_list(), strict=True):
        disclosures += _disclosures(method.name, run.ledger, method)
    return disclosures


def for_parties(study: Study, count: int) -> Study:
    """Return a study whose stand-in data have so many parties; party folders are as many as there are."""
    if not isinstance(study.data_set(), PartyFolders):
        return study.model_copy(update={"parties": count})
    found = len(stand_ins(study))
    if found != count:
        raise IsthmusError(f"--parties names {count} parties, '{study.data['path']}' has {found} party folders")
    return study


def stand_ins(study: Study) -> tuple[str, ...]:
    """Return the names of the parties whose data stand in for those of the federation's."""
    with tempfile.TemporaryDirectory() as temporary:
        return tuple(_folders(study, Path(temporary) / "data"))


def _with_few_rounds(method: Method) -> dict[str, Any]:
    """Return the settings of a method for the dry run."""
    few = {"rounds": min(ROUNDS, method.rounds), "every": 1, "patience": 0}
    return {"name": method.name, **method.model_dump(), **few}


def _folders(study: Study, temporary: Path) -> dict[str, Path]:
    """Return the party folders by party; data of other kinds are written to temporary folders."""
    data = study.data_set()
    if isinstance(data, PartyFolders):
        folders = find_folders(Path(data.path).expanduser())
    else:
        cut = study.cut_data(study.seeds[0])
        write_parties(temporary, cut.parties, cut.classes)
        folders = find_folders(temporary)
    return {PartyFile.read(read_toml(folder / FILE), FILE).name: folder for folder in folders}


def _disclosures(name: str, ledger: Ledger, method: Method | None) -> Iterable[Disclosure]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in ledger.rows():
        groups.setdefault(tuple(row[column] for column in KINDS), []).append(row)
    for kind, rows in groups.items():
        verb, action, eyes, protection, fields = kind
        times = len({row["call"] for row in rows})
        if method is not None:
            times = _times(action, rows, method)
        sent = [row["sent"] for row in rows if row["sent"]] or [0]  # in a delivery no party sends anything
        by_party: dict[str, int] = {}
        for row in rows:
            by_party[row["party"]] = by_party.get(row["party"], 0) + row["sent"]
        scale = times / len({row["call"] for row in rows})  # from the dry run to a whole run
        yield Disclosure(
            name,
            verb,
            action,
            eyes,
            protection,
            fields,
            parties=len(by_party),
            times=times,
            smallest=min(sent),
            largest=max(sent),
            sent=round(sum(sent) * scale),
            most_sent=round(max(by_party.values()) * scale),
            received=round(sum(row["received"] for row in rows) * scale),
        )


def _times(action: str, rows: list[dict[str, Any]], method: Method) -> int:
    """Return how often an action is called in a whole run; later rounds count like the last round of the dry run."""
    rounds = min(ROUNDS, method.rounds)
    calls = {at: len({row["call"] for row in rows if row["round"] == at}) for at in range(rounds + 1)}
    if action in ("evaluate", "lend"):
        return calls[rounds] * math.ceil(method.rounds / method.every)
    return sum(calls.values()) + calls[rounds] * (method.rounds - rounds)


def disclosure_tables(disclosures: Sequence[Disclosure]) -> Iterator[Table | str]:
    """Yield a table for each method, with a row for each kind of message, and a line with the sums."""
    for method in dict.fromkeys(each.method for each in disclosures):
        own = [each for each in disclosures if each.method == method]
        shown = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title=escape(method), title_justify="left")
        for head in ("action", "who sees it", "what"):
            shown.add_column(head, overflow="fold")
        for head in ("parties", "times", "each"):
            shown.add_column(head, justify="right", no_wrap=True)
        for each in own:
            sizes = " to ".join(map(format_bytes, sorted({each.smallest, each.largest})))
            under = "" if each.protection == "none" else f" ({each.protection})"
            shown.add_row(
                each.action, f"{each.eyes}{under}", escape(each.fields), str(each.parties), f"{each.times:,}", sizes
            )
        yield shown
        sums = (sum(getattr(each, name) for each in own) for name in ("sent", "most_sent", "received"))
        sent, most_sent, received = map(format_bytes, sums)
        yield (
            f"{escape(method)}, one seed: all parties send {sent} together, one party at most {most_sent}; "
            f"they receive {received}\n"
        )
