"""Studies in a federation, from the administrator's machine; the federation is a fake one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import federated, study_of
from tests.federation.by_hand import at_folders

from isthmus.deploy.coordinator import Outcome
from isthmus.deploy.launch import run_federation
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding
from isthmus.methods.base import Method
from isthmus.report.report import write_report
from isthmus.result_files import STATE
from isthmus.study.config import Study
from isthmus.study.folder import hold_folder
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher

pytest.importorskip("nvflare")
from isthmus.deploy.admin import JobState, Standing

PARTIES = ("party-0", "party-1", "party-2")
METHODS = [{"name": name, "rounds": 2} for name in ("fedavg", "fedproto")]
"""The models of the second stay with the parties; its result has what is predicted with."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Outcome]:
    base = tmp_path_factory.mktemp("finished")
    study = study_of("fedavg", rounds=2).model_copy(update={"methods": METHODS})
    study = at_folders(study, base / "data")
    return study, federated(study, base)


class Fake:
    """An administrator whose studies end as told: 'done', 'lost', or 'running' first and then done."""

    parties = PARTIES

    def __init__(self, outcome: dict[str, Any], *ends: JobState, absent: int = 0) -> None:
        self.result, self.ends, self.absent = outcome, list(ends), absent
        self.names: list[str] = []
        self.cleared: list[str] = []

    def missing(self) -> list[str]:
        self.absent -= 1
        return ["party-1"] if self.absent >= 0 else []

    def submit(self, study: Mapping[str, Any], name: str) -> str:
        self.names.append(name)
        return f"job-{len(self.names)}"

    def follow(self, name: str, job: str) -> Standing:
        lines = [{"method": "fedavg", "seed": 0, "rounds": 2, "at": 1, "metrics": {"test_accuracy": 0.5}}]
        state = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        why = "the job or its server was stopped" if state == "lost" else ""
        return Standing(state, lines, why, {"party-1": PartyStanding(1, absent="no answer within 8 s")})

    def outcome(self, name: str) -> dict[str, Any]:
        return self.result

    def clear(self, name: str) -> None:
        self.cleared.append(name)


def dumped(outcome: Outcome, wrong: str = "") -> dict[str, Any]:
    return {**outcome.dump(), "wrong": wrong}


class Listening(Watcher):
    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.absent: list[str] = []
        self.done: list[RunResult] = []
        self.study: Mapping[str, Any] = {}

    def study_started(self, study: Mapping[str, Any]) -> None:
        self.study = study

    def parties_seen(self, parties: Mapping[str, PartyStanding]) -> None:
        self.absent += [party for party, standing in parties.items() if standing.absent]

    def run_done(self, result: RunResult) -> None:
        self.done.append(result)

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self.rounds.append(at)


def test_results_of_the_job_become_a_result_folder(finished: tuple[Study, Outcome], tmp_path: Path) -> None:
    study, outcome = finished
    listening, asked = Listening(), []
    admin = Fake(dumped(outcome), "running", "running", "done", absent=2)
    results = run_federation(
        admin, study, tmp_path / "out", watcher=listening, pause=0.0, waiting=lambda missing: asked.append(missing)
    )
    assert [run.method for run in results.runs] == ["fedavg", "fedproto"]
    assert [run.metrics for run in results.runs] == [run.metrics for run in outcome.runs]
    assert (tmp_path / "out" / "weights" / "fedproto-0.context.safetensors").exists()
    assert results.study["parties"] == 3
    assert listening.rounds == [1]  # a round is reported once, however often it is seen
    assert listening.absent == ["party-1"] * 3
    assert listening.done == results.runs
    assert (listening.study["parties"], listening.study["data"]["name"]) == (3, "folder")
    assert asked == [["party-1"]]
    assert (tmp_path / "out" / "set-up.parquet").exists()
    assert not (tmp_path / "out" / STATE).exists()
    assert admin.cleared == admin.names


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [3]},
        {"runs": [{"ledger": 3}]},
        {"ledger": [{"round": "first"}]},
        {"wrong": None, "runs": 3},
        {"runs": {"a": 1}},
    ],
)
def test_an_outcome_of_other_types_is_one_line(
    finished: tuple[Study, Outcome], change: dict[str, Any], tmp_path: Path
) -> None:
    study, outcome = finished
    admin = Fake({**dumped(outcome), **change}, "done")
    with pytest.raises(IsthmusError, match=r"cannot use what the server sent: .*; check the server") as raised:
        run_federation(admin, study, tmp_path / "out", pause=0.0)
    assert "\n" not in str(raised.value)


def test_a_lost_job_is_resumed_under_the_name_of_its_run(finished: tuple[Study, Outcome], tmp_path: Path) -> None:
    study, outcome = finished
    lost = Fake(dumped(outcome), "lost")
    with pytest.raises(IsthmusError, match="continue with isthmus federation run --resume"):
        run_federation(lost, study, tmp_path / "out", pause=0.0)
    assert not lost.cleared
    again = Fake(dumped(outcome), "lost", "done")
    assert run_federation(again, study, tmp_path / "out", resume=True, pause=0.0).runs
    assert again.names == lost.names


def test_a_study_that_ended_unseen_is_fetched_and_not_run_again(
    finished: tuple[Study, Outcome], tmp_path: Path
) -> None:
    study, outcome = finished

    class Cut(Fake):
        """The server is gone before the results are fetched."""

        def outcome(self, name: str) -> dict[str, Any]:
            raise IsthmusError("the server does not answer")

    first = Cut(dumped(outcome), "running", "done")
    with pytest.raises(IsthmusError, match="does not answer"):
        run_federation(first, study, tmp_path / "out", pause=0.0)
    again = Fake(dumped(outcome), "done")
    assert run_federation(again, study, tmp_path / "out", resume=True, pause=0.0).runs
    assert again.names == []
    assert again.cleared == first.names


def test_a_study_that_had_to_stop_leaves_what_is_finished_and_goes_on(
    finished: tuple[Study, Outcome], tmp_path: Path
) -> None:
    study, outcome = finished
    partial = Outcome([replace(outcome.runs[0], rounds=1, stopped="round 2, train: only 1 of 3")], outcome.ledger)
    stopped = Fake(dumped(partial, "round 2, train: only 1 of 3"), "done")
    with pytest.raises(IsthmusError, match=r"only 1 of 3 \(when that is fixed, .*has what is finished so far\)"):
        run_federation(stopped, study, tmp_path / "out", pause=0.0)
    assert stopped.cleared == []
    (run,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert (run["rounds"], run["stopped"]) == (1, "round 2, train: only 1 of 3")
    assert "stopped early. round 2" in write_report([tmp_path / "out"]).read_text()
    again = Fake(dumped(outcome), "done")
    again.result, before = dumped(partial, "round 2"), dumped(outcome)
    again.submit = lambda study, name: again.__dict__.update(result=before) or "job-2"  # type: ignore[method-assign,func-returns-value]
    assert not run_federation(again, study, tmp_path / "out", resume=True, pause=0.0).runs[0].stopped
    assert not (tmp_path / "out" / STATE).exists()


def test_one_folder_is_for_one_study_at_a_time(finished: tuple[Study, Outcome], tmp_path: Path) -> None:
    study, outcome = finished
    with hold_folder(tmp_path / "out"), pytest.raises(IsthmusError, match="is in use by another study"):
        run_federation(Fake(dumped(outcome), "done"), study, tmp_path / "out", pause=0.0)


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
