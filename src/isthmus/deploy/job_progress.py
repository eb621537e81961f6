"""Records how far a federation's job is, and how each party stands, while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import RLock

from isthmus.deploy.records import Record, Records, Throttle, utc_now
from isthmus.deploy.remote import RemoteTransport
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import DELIVERY, Entry, PartyStanding
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method
from isthmus.progress.pace import Pace
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher


class JobProgress(Watcher):
    """Keeps a study's record up to date, for the administrator.

    Arguments:
        records: where the record is written.
        record: of the study.
        parties: names of the parties.
    """

    def __init__(self, records: Records, record: Record, study: Study, parties: Iterable[str]) -> None:
        self.records, self.record = records, record
        self.pace = Pace({method.name: method.rounds for method in study.method_list()}, study.seeds)
        self.throttle = Throttle()
        record.parties = {party: PartyStanding() for party in parties}
        self._now: tuple[Federation, RemoteTransport] | None = None
        self._counted = 0
        self._lock = RLock()  # greetings have a thread of their own

    # ---- runs

    def run_started(self, method: Method, seed: int) -> None:
        line = {"method": method.name, "seed": seed, "rounds": method.rounds, "at": 0, "metrics": {}}
        with self._lock:
            self.pace.run_started(method.name, seed)
            self.record.lines.append(line)
            self._write()

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            self.pace.round_done(method.name, seed, at)
            self.record.lines[-1] |= {"at": at, "metrics": dict(metrics)}
            if self.throttle.due():
                self._write()

    def run_done(self, result: RunResult) -> None:
        with self._lock:
            self.pace.run_done(result.method, result.seed, result.seconds)
            self.record.lines[-1]["at"] = self.record.lines[-1]["rounds"]

    def run_restored(self, result: RunResult) -> None:
        with self._lock:
            self.pace.run_done(result.method, result.seed)
            self._count(result.ledger.entries)

    # ---- parties

    def begun(self, federation: Federation, transport: RemoteTransport) -> None:
        """Read traffic and absences of the set-up, or of a run, from now on."""
        with self._lock:
            self._count_new()
            self._now, self._counted = (federation, transport), 0
            for standing in self.record.parties.values():
                standing.round = None

    def asked(self, parties: Iterable[str]) -> None:
        """Note that messages leave for these parties."""
        with self._lock:
            for party in parties:
                self.record.parties[party].asked = utc_now()

    def replied(self, party: str, seconds: float) -> None:
        """Note that a party has replied, and how long that took."""
        with self._lock:
            standing = self.record.parties[party]
            standing.seconds += seconds
            standing.seen, standing.asked = utc_now(), ""

    def waiting(self) -> None:
        """Note for whom the server waits. The next round notes it again, so a full disk stops nothing here."""
        with self._lock, suppress(IsthmusError):
            if self.throttle.due():
                self._write()

    def update(self) -> None:
        """Bring the record up to date, without writing it."""
        with self._lock:
            self._count_new()
            absent = {} if self._now is None else dict(self._now[1].absent)
            for party, standing in self.record.parties.items():
                standing.absent = absent.get(party, "")
            self.record.left = self.pace.left_in_study()

    def _count_new(self) -> None:
        """Count the ledger's entries since the last time."""
        if self._now is not None:
            new = self._now[0].ledger.entries[self._counted :]
            self._counted += len(new)
            self._count(new)

    def _count(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            for party, sent, received in zip(entry.parties, entry.sent, entry.received, strict=True):
                standing = self.record.parties[party]
                standing.sent += sent
                standing.received += received
                if party not in entry.notes and not entry.action.endswith(DELIVERY):
                    standing.round = entry.round

    def _write(self) -> None:
        self.update()
        self.records.write(self.record)
