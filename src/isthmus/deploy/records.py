"""What a federation's server records of each study, so that finished work outlives machines and jobs.

A study has a folder of its own name at the server: its record, checkpoints, finished runs, and in the end its outcome.
All of it stays until the administrator has fetched the outcome; the record stays for `isthmus federation status`.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding

RECORD = "record.json"
"""The file that says how far a study is, and how it ended."""
OUTCOME = "outcome.isthmus"
"""The file with the results, or why there are none."""
EVERY_SECONDS = 0.5
"""Least time between two notes of how far a study is."""
NAME = re.compile(r"[0-9a-f]{32}")
"""Names of studies, which become names of folders."""

State = Literal["running", "finished", "stopped", "lost"]


@dataclass
class Record:
    """How far a study is, and how it ended.

    Attributes:
        job: the job that runs it, or ran it last.
        state: `stopped` if it can be resumed; `lost` if it can, but the outcome so far could not be kept.
        why: why it stopped.
        parties: how each party stands.
        lines: for each run its method, seed, rounds, the round it is at, and the metrics of that round.
        left: seconds that the study will still take, if that can be said.
        fetched: whether the administrator has the results, so that they are no longer here.
    """

    name: str
    job: str
    methods: list[str]
    started: str
    state: State = "running"
    why: str = ""
    ended: str = ""
    parties: dict[str, PartyStanding] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    left: float | None = None
    fetched: bool = False


class Records:
    """The records in one folder.

    Arguments:
        folder: with a folder for each study.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, name: str) -> Path:
        """Return the folder of a study."""
        if not NAME.fullmatch(name):
            raise IsthmusError(f"study '{name}': the name of a study has 32 hexadecimal digits")
        return self.folder / name

    def start(self, name: str, job: str, methods: list[str]) -> Record:
        """Record that a job starts or resumes a study; an earlier outcome is void."""
        record = Record(name, job, methods, utc_now())
        (self.place(name) / OUTCOME).unlink(missing_ok=True)
        self.write(record)
        return record

    def write(self, record: Record) -> None:
        before = self.read(record.name)  # another process may have written meanwhile that the results were fetched
        record.fetched |= before is not None and before.job == record.job and before.fetched
        store.write(self.place(record.name) / RECORD, json.dumps(asdict(record), indent=1))

    def end(self, record: Record, outcome: Mapping[str, Any], why: str = "") -> None:
        """Write an outcome, and only then record that the study has ended.

        On a full disk the record takes the room of the one before, so that the administrator hears the reason.
        """
        record.state, record.why, record.ended = "stopped" if why else "finished", why, utc_now()
        try:
            store.save(self.place(record.name) / OUTCOME, outcome)
        except IsthmusError as error:
            record.state, record.why = "lost", why or str(error)
            (self.place(record.name) / RECORD).unlink(missing_ok=True)
        self.write(record)

    def read(self, name: str) -> Record | None:
        """Return the record of a study; none if it never started or cannot be read."""
        try:
            content = store.parse_json(store.read_text(self.place(name) / RECORD))
            return TypeAdapter(Record).validate_python(content)
        except (OSError, ValueError, TypeError):
            return None

    def all(self) -> list[Record]:
        """Return all records, the newest first."""
        names = [each.name for each in self.folder.iterdir()] if self.folder.is_dir() else []
        found = [record for name in names if NAME.fullmatch(name) and (record := self.read(name)) is not None]
        return sorted(found, key=lambda record: record.started, reverse=True)

    def clear(self, name: str) -> None:
        """Delete what was kept of a study whose results were fetched, but for its record."""
        record = self.read(name)
        if record is None or record.state != "finished":
            return
        record.fetched = True
        self.write(record)
        for path in self.place(name).iterdir():
            if path.name != RECORD:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class Throttle:
    """Says when the next note is due, so that fast rounds do not wait for a disk."""

    def __init__(self, seconds: float = EVERY_SECONDS) -> None:
        self.seconds, self.last = seconds, -seconds

    def due(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


def utc_now() -> str:
    """Return the time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
