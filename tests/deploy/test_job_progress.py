"""While a job runs, the study's record says how far it is and how each party stands."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.deploy.federated_studies import failing_at, study_of
from tests.federation.by_hand import ByHand, Meddler, at_folders, members_of

from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.job_progress import JobProgress
from isthmus.deploy.party_side import Message
from isthmus.deploy.records import Records, Throttle
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding
from isthmus.methods.base import Method
from isthmus.study.config import Study

NAME = "0" * 32
PARTIES = ("party-0", "party-1", "party-2")
FEDAVG = Study.of({"methods": [{"name": "fedavg", "rounds": 10}]})


def progress_in(folder: Path, study: Study = FEDAVG) -> JobProgress:
    records = Records(folder)
    progress = JobProgress(records, records.start(NAME, "job-1", ["fedavg"]), study, PARTIES)
    progress.throttle = Throttle(0.0)
    return progress


def recorded(progress: JobProgress) -> dict[str, PartyStanding]:
    record = progress.records.read(NAME)
    assert record is not None
    return record.parties


class Looking(JobProgress):
    """Keeps what the record says after each round."""

    rounds: list[dict[str, PartyStanding]]

    def round_done(self, *done: Any) -> None:
        super().round_done(*done)
        self.rounds.append(recorded(self))


def followed(base: Path, meddle: Meddler | None = None, **options: Any) -> tuple[Looking, Outcome]:
    """A study in a federation by hand."""
    study = at_folders(study_of("fedavg", **{"rounds": 3, **options}), base / "data")
    records = Records(base / "server")
    progress = Looking(records, records.start(NAME, "job-1", ["fedavg"]), study, PARTIES)
    progress.throttle, progress.rounds = Throttle(0.0), []
    post = ByHand(members_of(base / "data", base / "parties", study), meddle)
    outcome = coordinate(study, post, NAME, records.place(NAME), watcher=progress, begun=progress.begun)
    return progress, outcome


def test_the_record_has_the_bytes_of_the_ledgers_and_the_round_of_each_party(tmp_path: Path) -> None:
    progress, outcome = followed(tmp_path)
    assert [[each[party].round for party in PARTIES] for each in progress.rounds] == [[at] * 3 for at in (1, 2, 3)]
    assert 0 < progress.rounds[0]["party-0"].sent < progress.rounds[1]["party-0"].sent
    progress.update()
    found = progress.record.parties
    rows = [row for ledger in (outcome.ledger, outcome.runs[0].ledger) for row in ledger.rows()]
    for party in PARTIES:
        own = [row for row in rows if row["party"] == party]
        assert found[party].sent == sum(row["sent"] for row in own)
        assert found[party].received == sum(row["received"] for row in own)


def test_a_party_that_is_out_is_recorded_with_the_reason_and_its_last_round(tmp_path: Path) -> None:
    more = {"training": {"rounds": 3, "quorum": 0.5}}
    progress, _ = followed(tmp_path, failing_at("party-1", {2}, "no answer within 8 s"), **more)
    assert [each["party-1"].absent for each in progress.rounds][:2] == ["", "no answer within 8 s"]
    assert [each["party-1"].round for each in progress.rounds][:2] == [1, 1]
    assert [each["party-0"].round for each in progress.rounds] == [1, 2, 3]


def test_restored_runs_count_and_a_new_run_begins_without_a_round(tmp_path: Path) -> None:
    progress, outcome = followed(tmp_path / "first")
    again = progress_in(tmp_path / "again")
    again.run_restored(outcome.runs[0])
    again.update()
    sent = sum(row["sent"] for row in outcome.runs[0].ledger.rows() if row["party"] == "party-0")
    assert again.record.parties["party-0"].sent == sent
    empty: Any = SimpleNamespace(ledger=SimpleNamespace(entries=[]), absent={})
    progress.begun(empty, empty)
    progress.update()
    assert progress.record.parties["party-0"].round is None


def test_the_time_left_is_recorded(tmp_path: Path) -> None:
    progress, now = progress_in(tmp_path), iter([0.0, 5.0, 7.0])
    progress.pace._clock = lambda: next(now)
    method = Method.named("fedavg")(rounds=10)
    progress.run_started(method, 0)
    assert progress.record.left is None
    progress.round_done(method, 0, 1, {})
    progress.round_done(method, 0, 2, {"val_accuracy": 0.5})
    record = progress.records.read(NAME)
    assert record is not None
    assert record.left == 16.0
    assert (record.lines[-1]["at"], record.lines[-1]["metrics"]) == (2, {"val_accuracy": 0.5})


def test_a_full_disk_stops_no_run_while_the_server_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = progress_in(tmp_path)

    def full(record: Any) -> None:
        raise IsthmusError("no space left")

    monkeypatch.setattr(progress.records, "write", full)
    progress.waiting()
    with pytest.raises(IsthmusError, match="no space left"):
        progress.run_started(Method.named("fedavg")(rounds=2), 0)


# ---- who is asked, and who replies


def proxies_that(held: dict[str, threading.Event]) -> dict[str, Any]:
    """FLARE's proxies of parties; those that are held reply when they are let go."""

    def answering(party: str) -> Any:
        def handle(message: Message) -> Message:
            if party in held:
                held[party].wait(30)
            return {"from": party}

        return lambda timeout: SimpleNamespace(handle=handle)

    return {party: answering(party) for party in PARTIES}


def test_while_the_server_waits_the_record_says_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare")
    from isthmus.deploy import flare

    monkeypatch.setattr(flare, "EVERY_SECONDS", 0.01)
    progress, held = progress_in(tmp_path), {"party-1": threading.Event()}
    seen: list[dict[str, PartyStanding]] = []

    def waiting() -> None:
        JobProgress.waiting(progress)
        found = recorded(progress)
        if found["party-0"].seen and found["party-2"].seen and not seen:
            seen.append(found)
            held["party-1"].set()

    monkeypatch.setattr(progress, "waiting", waiting)
    replies = flare.FlarePost(proxies_that(held), progress).send({party: {"do": "call"} for party in PARTIES}, 60.0)
    assert replies == {party: {"from": party} for party in PARTIES}
    assert [(bool(seen[0][party].asked), bool(seen[0][party].seen)) for party in PARTIES] == [
        (False, True), (True, False), (False, True)
    ]  # fmt: skip
    late = progress.record.parties["party-1"]
    assert (late.asked, late.seconds > 0.0, late.seen >= seen[0]["party-1"].asked) == ("", True, True)


def test_a_party_that_does_not_reply_stays_asked(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from isthmus.deploy import flare

    progress, held = progress_in(tmp_path), {"party-1": threading.Event()}
    try:
        replies = flare.FlarePost(proxies_that(held), progress).send({party: {"do": "call"} for party in PARTIES}, 0.3)
        assert replies["party-1"] == "no answer within 0.3 s"
        assert [bool(progress.record.parties[party].asked) for party in PARTIES] == [False, True, False]
    finally:
        held["party-1"].set()


def test_of_a_study_that_is_stopped_no_party_is_named(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from nvflare.collab.api.exceptions import CollabCallError

    from isthmus.deploy import flare

    def given_up(message: dict[str, Any]) -> dict[str, Any]:
        raise CollabCallError("party", "handle", RuntimeError("timed out"))

    proxies = dict.fromkeys(PARTIES, lambda timeout: SimpleNamespace(handle=given_up))
    messages: dict[str, Any] = {party: {"do": "call"} for party in PARTIES}
    late = flare.FlarePost(proxies, progress_in(tmp_path / "late")).send(messages, 8.0)
    assert set(late.values()) == {"no answer within 8 s"}
    with pytest.raises(IsthmusError, match="stopped with isthmus federation stop"):
        flare.FlarePost(proxies, progress_in(tmp_path / "stopped"), lambda: True).send(messages, 8.0)
