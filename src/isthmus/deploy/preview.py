"""What a federation would disclose, before anything runs: the ledger of a dry run."""

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
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.remote import InProcessPost
from isthmus.federation.ledger import Ledger
from isthmus.methods.base import Method
from isthmus.report.wording import format_bytes
from isthmus.study.config import Study, read_toml

ROUNDS = 3
"""Rounds of the dry run; what happens in the last of them happens in all that follow."""


KINDS = ("verb", "action", "eyes", "protection", "fields")
"""Columns of a ledger that tell one kind of message from another."""


@dataclass(frozen=True)
class Disclosure:
    """What one kind of message discloses.

    Attributes:
        method: that it is part of, or `set-up`.
        parties: who sends it, each in the same way.
        times: how often in a whole run; of one seed.
        least, most: bytes that a party sends each time.
        total: bytes that all parties send in a whole run.
        share: bytes that the party sends that sends most, in a whole run.
        back: bytes that come to all parties in a whole run.
    """

    method: str
    verb: str
    action: str
    eyes: str
    protection: str
    fields: str
    parties: int
    times: int
    least: int
    most: int
    total: int
    share: int
    back: int


def preview(study: Study) -> list[Disclosure]:
    """What each method of a study would disclose in a federation of its parties.

    The study's own data stand in for the parties': sizes that depend on how much a party holds are theirs.
    """
    from isthmus.protect.sealing import generate_keyrings  # what it needs is an extra

    with tempfile.TemporaryDirectory() as aside:
        folders = _folders(study, Path(aside) / "data")
        rings = generate_keyrings(tuple(folders))
        members = {
            name: Member(folder, Path(aside) / "state" / name, name, ring=rings[name])
            for name, folder in folders.items()
        }
        dry = study.model_copy(
            update={
                "seeds": study.seeds[:1],
                "methods": [_short(method) for method in study.method_list()],
                "training": {},
            }
        )
        outcome = coordinate(dry, InProcessPost(members), "preview", Path(aside) / "server")
    found = list(_rows("set-up", outcome.ledger, None))
    for run, method in zip(outcome.runs, study.method_list(), strict=True):
        found += _rows(method.name, run.ledger, method)
    return found


def _short(method: Method) -> dict[str, Any]:
    """The method with few rounds, each evaluated."""
    few = {"rounds": min(ROUNDS, method.rounds), "every": 1, "patience": 0}
    return {"name": method.name, **method.model_dump(), **few}


def _folders(study: Study, aside: Path) -> dict[str, Path]:
    """By party its folder; of other data than folders those that are written aside."""
    data = study.data_set()
    if isinstance(data, PartyFolders):
        folders = find_folders(Path(data.path).expanduser())
    else:
        cut = study.cut_data(study.seeds[0])
        write_parties(aside, cut.parties, cut.classes)
        folders = find_folders(aside)
    return {PartyFile.read(read_toml(folder / FILE), FILE).name: folder for folder in folders}


def _rows(name: str, ledger: Ledger, method: Method | None) -> Iterable[Disclosure]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in ledger.rows():
        groups.setdefault(tuple(row[column] for column in KINDS), []).append(row)
    for kind, rows in groups.items():
        verb, action, eyes, protection, fields = kind
        times = len({row["call"] for row in rows})
        if method is not None:
            times = _times(action, rows, method)
        sent = [row["sent"] for row in rows if row["sent"]] or [0]  # of a delivery, to which nobody sends anything
        by_party: dict[str, int] = {}
        for row in rows:
            by_party[row["party"]] = by_party.get(row["party"], 0) + row["sent"]
        more = times / len({row["call"] for row in rows})  # whole runs in a dry one
        yield Disclosure(
            name,
            verb,
            action,
            eyes,
            protection,
            fields,
            parties=len(by_party),
            times=times,
            least=min(sent),
            most=max(sent),
            total=round(sum(sent) * more),
            share=round(max(by_party.values()) * more),
            back=round(sum(row["received"] for row in rows) * more),
        )


def _times(action: str, rows: list[dict[str, Any]], method: Method) -> int:
    """How often in a whole run: once for a step of set-up, else as often in every round as in the last of the dry."""
    rounds = min(ROUNDS, method.rounds)
    calls = {at: len({row["call"] for row in rows if row["round"] == at}) for at in range(rounds + 1)}
    if action in ("evaluate", "lend"):
        return calls[rounds] * math.ceil(method.rounds / method.every)
    return sum(calls.values()) + calls[rounds] * (method.rounds - rounds)


def disclosure_tables(found: Sequence[Disclosure]) -> Iterator[Table | str]:
    """A table for each method, with a row for each kind of message, and a line with the sums."""
    for method in dict.fromkeys(each.method for each in found):
        own = [each for each in found if each.method == method]
        shown = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title=escape(method), title_justify="left")
        for head in ("action", "who sees it", "what"):
            shown.add_column(head, overflow="fold")
        for head in ("parties", "times", "each"):
            shown.add_column(head, justify="right", no_wrap=True)
        for each in own:
            sizes = " to ".join(map(format_bytes, sorted({each.least, each.most})))
            under = "" if each.protection == "none" else f" ({each.protection})"
            shown.add_row(
                each.action, f"{each.eyes}{under}", escape(each.fields), str(each.parties), f"{each.times:,}", sizes
            )
        yield shown
        sums = (sum(getattr(each, name) for each in own) for name in ("total", "share", "back"))
        total, share, back = map(format_bytes, sums)
        yield (
            f"{escape(method)}, of one seed: {total} leave all parties together, of one at most {share}; "
            f"{back} come to them\n"
        )
