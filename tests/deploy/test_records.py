"""What the server records of a study outlives its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus import store
from isthmus.deploy.records import OUTCOME, Records, Throttle
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding

NAME = "0" * 31 + "a"
OTHER = "0" * 31 + "b"


def test_a_study_is_running_until_its_outcome_is_on_the_disk(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record = records.start(NAME, "job-1", ["fedavg"])
    assert records.read(NAME) == record
    assert record.state == "running"
    record.parties["north"] = PartyStanding(absent="no answer within 8 s")
    records.end(record, {"runs": []})
    assert store.load(records.place(NAME) / OUTCOME) == {"runs": []}
    found = records.read(NAME)
    assert found is not None
    assert (found.state, found.why, found.parties) == ("finished", "", record.parties)


def test_a_reason_is_recorded_where_there_is_no_room_for_the_outcome(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record = records.start(NAME, "job-1", ["fedavg"])
    (records.place(NAME) / OUTCOME).mkdir()  # nothing can be written there
    records.end(record, {"runs": []}, "cannot write x: No space left on device")
    found = records.read(NAME)
    assert found is not None
    assert (found.state, found.why) == ("lost", "cannot write x: No space left on device")


def test_what_is_kept_goes_when_the_results_were_fetched_and_not_before(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record = records.start(NAME, "job-1", ["fedavg"])
    checkpoint = records.place(NAME) / "fedavg-0.checkpoint"
    checkpoint.write_bytes(b"x")
    records.clear(NAME)
    assert checkpoint.exists()  # it runs
    records.end(record, {"wrong": "too few"}, "too few")
    records.clear(NAME)
    assert checkpoint.exists()  # it can be resumed
    record = records.start(NAME, "job-2", ["fedavg"])
    assert not (records.place(NAME) / OUTCOME).exists()
    records.end(record, {"runs": []})
    records.clear(NAME)
    assert [each.name for each in records.place(NAME).iterdir()] == ["record.json"]
    assert [each.fetched for each in records.all()] == [True]
    records.write(record)  # by a process that waited for a lost party and does not know
    assert [each.fetched for each in records.all()] == [True]
    assert not records.start(NAME, "job-3", ["fedavg"]).fetched


def test_names_that_are_no_names_of_studies_reach_no_folder(tmp_path: Path) -> None:
    records = Records(tmp_path / "state")
    for name in ("../../etc", "", "A" * 32, NAME + "0"):
        with pytest.raises(IsthmusError, match="32 hexadecimal digits"):
            records.place(name)
    (tmp_path / "state" / "weights").mkdir(parents=True)
    records.start(NAME, "job-1", ["fedavg"])
    records.start(OTHER, "job-2", ["local"])
    (records.place(OTHER) / "record.json").write_text("{")
    assert [each.name for each in records.all()] == [NAME]
    assert records.read(OTHER) is None


def test_notes_keep_a_pace() -> None:
    assert [Throttle(60.0).due(), Throttle(0.0).due()] == [True, True]
    throttle = Throttle(60.0)
    assert [throttle.due(), throttle.due()] == [True, False]
