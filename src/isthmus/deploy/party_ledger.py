"""A party's ledger: what it disclosed, what it refused, and which sums it helped to open, in a chain of hashes.

A line is written before the answer that it is about leaves the party. It is JSON, and carries its number, the hash of
the line before it, and its own hash. A second file, the head, has the number and the hash of the last line. A chain
shows that a line was changed, removed or moved; the head shows that the end was cut off. Whoever can write both files
can write another ledger, which only a head that somebody else holds shows: the results of a study have one per party.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isthmus import store
from isthmus.deploy.records import utc_now
from isthmus.errors import IsthmusError

log = logging.getLogger(__name__)

FILE = "ledger.jsonl"
"""The ledger's name in a party's state folder."""
FORMAT = 1
"""Format number of a ledger, in its head."""
START = 64 * "0"
"""The hash before the first line."""

REFUSALS = 1000
"""Refusals of a day that have a line each."""
LARGEST = 1 << 30
"""Bytes from which on a ledger takes no more lines."""

KEYS = ("study", "run", "method", "verb", "action", "eyes", "protection")
"""What the answers in one row of totals have in common."""

Line = dict[str, Any]


_Count = Annotated[int, Field(ge=0, le=1 << 62)]


class _Form(BaseModel):
    """The types of what is looked up in a line."""

    model_config = ConfigDict(strict=True)

    time: str = ""
    event: str
    study: str = ""
    run: str = ""
    method: str = ""
    verb: str = ""
    action: str = ""
    eyes: str = ""
    protection: str = ""
    sent: _Count = 0
    rows: _Count = 0
    times: _Count = 1
    states: list[str] = []
    parties: list[str] = []


class LedgerFault(IsthmusError):  # noqa: N818 - reads as what it is
    """The files of a ledger are not as they were written."""


class PartyLedger:
    """Appends lines to a party's ledger, and checks every line that it reads.

    Several processes may append to one ledger, one after the other.

    Arguments:
        path: the file; the head is beside it.
        on_line: called with every line, old and new, in order.
    """

    def __init__(self, path: Path, on_line: Callable[[Line], None] = lambda line: None) -> None:
        self.path, self.head_path = path, path.with_suffix(".head")
        self.on_line = on_line
        self.entries, self.hash = 0, START
        self.salt = b""
        self._size = 0

    @property
    def head(self) -> Line:
        """The number of lines and the hash of the last one."""
        return {"entries": self.entries, "hash": self.hash}

    def load(self) -> None:
        """Read and check what is new in the files; repair a line that a crash has torn."""
        with self._locked():
            pass

    def append(self, event: str, check: Callable[[], str] = str, **what: Any) -> None:
        """Write a line, to the disk, before this returns.

        Arguments:
            check: called when all lines are read and nobody else can append; if it says why not, that is the error.
        """
        with self._locked() as file:
            why = check()
            if self._size > LARGEST:
                why = f"its ledger has more than {LARGEST:,} bytes: move {FILE} and its head to another folder"
            if why:
                raise IsthmusError(why)
            self._write(file, event, what)

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                store.check_file(self.path, limit=None)
            with open(self.path, "a+b", opener=partial(os.open, mode=0o600)) as file:
                store.hold(file.fileno())
                self._read(file)
                yield file
        except OSError as error:
            raise IsthmusError(f"cannot write {self.path}: {error.strerror or error}; make room") from error

    def _read(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        if size < self._size:
            raise _fault(self.path, f"its end is cut off: it had {self.entries} lines")
        store.check_memory(self.path, 3 * (size - self._size))
        file.seek(self._size)
        data = file.read()
        head = self._read_head(empty=not data and not self._size)
        if not data and head["entries"] == self.entries:
            return
        whole, newline, torn = data.rpartition(b"\n")
        known = self.hash if head["entries"] == self.entries else ""
        for raw in whole.split(b"\n") if newline else ():
            line = check_line(raw, self.entries + 1, self.hash, self.path)
            self._note(line, len(raw) + 1)
            known = self.hash if self.entries == head["entries"] else known
        if self.entries < head["entries"]:
            raise _fault(
                self.path, f"its end is cut off: {head['entries']} lines were written, {self.entries} are left"
            )
        if known != head["hash"] and head["entries"]:
            raise _fault(self.path, f"line {head['entries']} is not the one that {self.head_path.name} knows")
        if torn:
            log.warning("%s: its last line is torn, as a crash leaves it: it is removed, and a line says so", self.path)
            file.truncate(self._size)
            self._write(file, "repair", {"bytes": len(torn), "torn": hashlib.sha256(torn).hexdigest()})

    def _read_head(self, empty: bool) -> Line:
        if empty and not self.head_path.exists() and not self.entries:
            self.salt = secrets.token_bytes(16)
            self._write_head()
        head = read_head(self.head_path)
        self.salt = bytes.fromhex(head["salt"])
        return head

    def _write(self, file: BinaryIO, event: str, what: Mapping[str, Any]) -> None:
        line = {"number": self.entries + 1, "time": utc_now(), "event": event, **what, "previous": self.hash}
        line["hash"] = hash_of(line)
        raw = json.dumps(line).encode() + b"\n"
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
        self._note(line, len(raw))
        self._write_head()

    def _note(self, line: Line, size: int) -> None:
        self.entries, self.hash, self._size = line["number"], line["hash"], self._size + size
        self.on_line(line)

    def _write_head(self) -> None:
        head = {"format": FORMAT, **self.head, "salt": self.salt.hex()}
        store.write(self.head_path, json.dumps(head), private=True)


def hash_of(line: Mapping[str, Any]) -> str:
    """The SHA-256 of a line without its hash, which includes the hash of the line before."""
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_line(raw: bytes, number: int, previous: str, path: Path) -> Line:
    """Return the line with this number, which follows the one with this hash; another one is a fault."""
    try:
        line = json.loads(raw)
        sound = isinstance(line, dict) and line["hash"] == hash_of(line)
    except (ValueError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise _fault(path, f"line {number} was changed")
    if line.get("number") != number or line.get("previous") != previous:
        raise _fault(path, f"line {number} has the number {line.get('number')}: lines were removed, added or moved")
    try:
        _Form.model_validate(line)
    except ValidationError as error:
        key = error.errors()[0]["loc"][0]
        raise _fault(path, f"line {number} is not what isthmus writes: a wrong '{key}'") from error
    found: Line = line
    return found


def read_head(path: Path) -> Line:
    """Read the head of a ledger."""
    try:
        head = store.parse_json(store.read(path))
        bytes.fromhex(head["salt"])
        sound = type(head["entries"]) is int and head["entries"] >= 0 and isinstance(head["hash"], str)
    except FileNotFoundError as error:
        raise _fault(path, "the head of the ledger is missing") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise _fault(path, "it is not the head of a ledger")
    store.check_format(path, head, FORMAT, "move the ledger and its head to another folder")
    found: Line = head
    return found


def read_ledger(path: Path) -> tuple[list[Line], str]:
    """Return all lines of a ledger, checked, and a note on a last line that a crash has torn; change nothing."""
    head = read_head(path.with_suffix(".head"))
    try:
        store.check_memory(path, 8 * path.stat().st_size)
        data = store.read(path, limit=None)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise _fault(path, error.strerror or str(error)) from error
    whole, newline, torn = data.rpartition(b"\n")
    lines: list[Line] = []
    for raw in whole.split(b"\n") if newline else ():
        lines.append(check_line(raw, len(lines) + 1, lines[-1]["hash"] if lines else START, path))
    if len(lines) < head["entries"]:
        raise _fault(path, f"its end is cut off: {head['entries']} lines were written, {len(lines)} are left")
    check_head(lines, head["entries"], head["hash"], path)
    return lines, "the last line is torn, as a crash leaves it; the party repairs it when it joins" if torn else ""


def check_head(lines: Sequence[Line], entries: int, hash_: str, path: Path) -> None:
    """Raise an error unless a ledger has had this head: so many lines, the last one with this hash."""
    if entries > len(lines):
        raise _fault(path, f"it has {len(lines)} lines, and the head is of {entries}: its end is cut off, or rewritten")
    if (lines[entries - 1]["hash"] if entries else START) != hash_:
        raise _fault(path, f"line {entries} has another hash than the head: the ledger was rewritten")


def _fault(path: Path, what: str) -> LedgerFault:
    return LedgerFault(f"{path}: {what}: keep both files as evidence, and move them away to start a new ledger")


class Totals:
    """What a party answered and refused: a row for each run, verb, action, eyes and protection.

    >>> sums = Totals()
    >>> for _ in range(2):
    ...     sums.add({"event": "answer", "run": "r", "verb": "ask", "action": "train", "sent": 5})
    >>> sums.rows()[0]["answers"], sums.rows()[0]["sent"]
    (2, 10)
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], Line] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        if line["event"] not in ("answer", "again", "refusal"):
            return
        key = tuple(str(line.get(each, "")) for each in KEYS)
        new = {**dict(zip(KEYS, key, strict=True)), "answers": 0, "sent": 0, "rows": 0, "refusals": 0}
        row = self._rows.setdefault(key, new)
        row["answers"] += line["event"] == "answer"
        row["refusals"] += line.get("times", 1) if line["event"] == "refusal" else 0
        row["sent"] += line.get("sent", 0)
        row["rows"] += line.get("rows", 0)

    def rows(self) -> list[Line]:
        return list(self._rows.values())


class Index:
    """What a party looks up in its ledger: sums by the state that it answered from, and totals by run.

    Attributes:
        refusals: how many refusals the lines of the last day with one count.
        uncounted: refusals that no line counts yet.
    """

    def __init__(self) -> None:
        self.closed: Counter[str] = Counter()
        self.sets: dict[str, list[frozenset[str]]] = {}
        self.totals: dict[str, Totals] = {}
        self.refusals = self.uncounted = 0
        self._day = ""

    def refusal_due(self) -> int:
        """Count a refusal; return how many the next line must count, or 0 if none is due.

        Of a day the first `REFUSALS` have a line each. Then a line is due when their number has doubled, so whoever
        asks again and again cannot fill the disk.
        """
        self.uncounted += 1
        full = self._day == utc_now()[:10] and self.refusals >= REFUSALS
        return 0 if full and self.uncounted < self.refusals else self.uncounted

    def add(self, line: Line) -> None:
        if line["event"] == "sum":
            for state in line.get("states", ()):
                of = self.sets.setdefault(state, [])
                if (parties := frozenset(line.get("parties", ()))) not in of:
                    of.append(parties)
            return
        if line["event"] == "refusal":
            same_day = self._day == (day := line.get("time", "")[:10])
            self._day, self.refusals = day, line.get("times", 1) + (self.refusals if same_day else 0)
        self.closed.update(line.get("states", ()))
        self.totals.setdefault(line.get("run", ""), Totals()).add(line)
