"""Studies in a federation, from the administrator's machine; the federation is a fake one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import federated, study_of
from tests.federation.by_hand import at_folders

from isthmus.deploy.coordinator import Outcome
from isthmus.deploy.launch import JobState, run_federation
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.run import STATE, Watcher

PARTIES = ("party-0", "party-1", "party-2")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Outcome]:
    base = tmp_path_factory.mktemp("finished")
    study = at_folders(study_of("fedavg", rounds=2), base / "data")
    return study, federated(study, base)


class Fake:
    """An administrator whose jobs end as told: 'done', 'lost', or 'running' first and then done."""

    parties = PARTIES

    def __init__(self, outcome: dict[str, Any], *ends: JobState, absent: int = 0) -> None:
        self.result, self.ends, self.absent = outcome, list(ends), absent
        self.runs: list[str] = []

    def missing(self) -> list[str]:
        self.absent -= 1
        return ["party-1"] if self.absent >= 0 else []

    def submit(self, study: Mapping[str, Any], run: str) -> str:
        self.runs.append(run)
        return f"job-{len(self.runs)}"

    def progress(self, job: str) -> list[dict[str, Any]]:
        return [{"method": "fedavg", "seed": 0, "rounds": 2, "at": 1, "metrics": {"test_accuracy": 0.5}}]

    def state(self, job: str) -> JobState:
        return self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]

    def outcome(self, job: str) -> dict[str, Any]:
        return self.result


def dumped(outcome: Outcome) -> dict[str, Any]:
    return {"runs": [run.dump() for run in outcome.runs], "ledger": outcome.ledger.dump()}


class Listening(Watcher):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self.rounds.append(at)


def test_results_of_the_job_become_a_result_folder(finished: tuple[Study, Outcome], tmp_path: Path) -> None:
    study, outcome = finished
    listening, asked = Listening(), []
    admin = Fake(dumped(outcome), "running", "running", "done", absent=2)
    results = run_federation(
        admin, study, tmp_path / "out", watcher=listening, pause=0.0, waiting=lambda missing: asked.append(missing)
    )
    assert results.runs[0].metrics == outcome.runs[0].metrics
    assert results.study["parties"] == 3
    assert listening.rounds == [1]  # a round is reported once, however often it is seen
    assert asked == [["party-1"]]
    assert (tmp_path / "out" / "set-up.parquet").exists()
    assert not (tmp_path / "out" / STATE).exists()


def test_a_lost_job_is_resumed_under_the_name_of_its_run(finished: tuple[Study, Outcome], tmp_path: Path) -> None:
    study, outcome = finished
    lost = Fake(dumped(outcome), "lost")
    with pytest.raises(IsthmusError, match="continue with isthmus federation run --resume"):
        run_federation(lost, study, tmp_path / "out", pause=0.0)
    again = Fake(dumped(outcome), "lost", "lost", "done")
    assert run_federation(again, study, tmp_path / "out", resume=True, pause=0.0).runs
    assert again.runs == lost.runs


def test_parties_that_do_not_connect_are_named(finished: tuple[Study, Outcome], tmp_path: Path) -> None:
    study, outcome = finished
    with pytest.raises(IsthmusError, match="not connected after 0 s: 'party-1'; start isthmus federation join there"):
        run_federation(Fake(dumped(outcome), "done", absent=99), study, tmp_path / "out", wait=0.0, pause=0.0)


@pytest.mark.parametrize("change", [{"method": "../../etc"}, {"seed": 7}])
def test_a_result_of_another_study_is_refused(
    change: dict[str, Any], finished: tuple[Study, Outcome], tmp_path: Path
) -> None:
    study, outcome = finished
    content = dumped(outcome)
    content["runs"][0] |= change
    with pytest.raises(IsthmusError, match="not of this study: check the server"):
        run_federation(Fake(content, "done"), study, tmp_path / "out", pause=0.0)
    assert not (tmp_path / "out" / "results.json").exists()
