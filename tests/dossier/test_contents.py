"""The dossier of a result folder says what is in it; a party's has nothing of another party."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from result_folders import SEEDS, Build, audit_record, spends, write_folder

from isthmus import run as run_method
from isthmus.dossier.contents import content_of_run, privacy_of
from isthmus.errors import IsthmusError
from isthmus.report.loading import RunSummary
from isthmus.result_files import write_audit

DAY = "2026-05-04"


def test_it_names_every_file_and_model_by_its_hash(run: Path) -> None:
    content = content_of_run(run, DAY)
    for each in [*content["files"], *content["models"]]:
        assert each["sha256"] == hashlib.sha256((run / each["file"]).read_bytes()).hexdigest()
    assert {each["file"] for each in content["models"]} == {
        path.relative_to(run).as_posix() for path in (run / "weights").rglob("*.safetensors")
    }
    results = json.loads((run / "results.json").read_text())
    assert content["data"]["fingerprints"] == [{"what": "seed 0", "digest": results["fingerprint"]["digest"]}]
    assert content["study"]["hash"] == hashlib.sha256((run / "study.toml").read_bytes()).hexdigest()
    assert content["study"]["parties"] == ["party-0", "party-1", "party-2"]


def test_a_partys_has_nothing_of_another_party(run: Path) -> None:
    whole, content = (content_of_run(run, DAY, party=party) for party in ("", "party-1"))
    own = json.dumps(content)
    scores = [each["parties"] for each in json.loads((run / "results.json").read_text())["runs"]]
    private = [str(each[party]["test_loss"]) for each in scores for party in ("party-0", "party-2")]
    assert all(len(value) > 8 for value in private)  # so that none is in it by chance
    assert not [value for value in private if value in own]
    assert all(str(each["party-1"]["test_loss"]) in own for each in scores)
    assert "party-0" in {each["owner"] for each in whole["models"]}
    assert {each["owner"] for each in content["models"]} == {"all parties", "party-1"}
    assert not content["data"]["fingerprints"]  # which are of all data together
    del content["study"]["parties"]
    assert not [party for party in ("party-0", "party-2") if party in json.dumps(content)]


def test_an_unknown_party_is_named(run: Path) -> None:
    with pytest.raises(IsthmusError, match="--party: the results have no party 'party-9': did you mean 'party-"):
        content_of_run(run, DAY, party="party-9")


def test_intervals_are_over_seeds_or_over_test_items(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "several", methods=("fedavg",))
    (row,) = (each for each in content_of_run(folder, DAY)["metrics"] if each["metric"] == "test_accuracy")
    assert row["interval_of"] == "over seeds (Student's t)"
    values = [each["metrics"]["test_accuracy"] for each in json.loads((folder / "results.json").read_text())["runs"]]
    mean, half = sum(values) / 3, 4.302653 * 0.004 / 3**0.5  # of two degrees of freedom
    assert row["interval"] == pytest.approx([mean - half, mean + half], abs=1e-6)
    folder = write_folder(tmp_path, "one", methods=("fedavg",), seeds=(0,))
    (row,) = (each for each in content_of_run(folder, DAY)["metrics"] if each["metric"] == "test_accuracy")
    assert row["interval_of"] == "over test items (Wilson)"
    assert row["interval"][0] < row["mean"] < row["interval"][1]


def test_the_worst_party_is_named(build: Build) -> None:
    def change(parts: dict[str, object]) -> None:
        for at, each in enumerate(parts["results"]["runs"]):  # type: ignore[index]
            worst = {
                "mean": 0.7,
                "weighted": 0.7,
                "worst": 0.5 + at / 10,
                "worst_party": f"party-{at}",
                "worst_items": 4,
            }
            each["over_parties"] = {"test_accuracy": worst}

    content = content_of_run(build(methods=("fedavg",), change=change), DAY)
    row = next(each for each in content["metrics"] if each["metric"] == "test_accuracy")
    assert row["worst"] == {"mean": pytest.approx(0.6), "parties": ["party-0", "party-1", "party-2"], "items": 4}


def test_the_privacy_account_is_that_of_the_results() -> None:
    run = {"method": "any", "seed": 3}
    account = {**spends(0.01), "others": [{**spends(0.02), "unit": "a party"}]}
    edge, party = privacy_of(RunSummary.model_validate({**run, "privacy": account}))
    assert (edge["unit"], edge["epsilon"], edge["delta"]) == ("one edge of <one> graph", 7.0, 1e-5)
    assert edge["releases"] == [{"epsilon": 0.01, "delta": 0.0, "times": 1200}]
    assert "epsilon = 12" in edge["said"]
    assert "a party" not in edge["said"]
    assert (party["unit"], party["epsilon"]) == ("a party", 14.0)
    (none,) = privacy_of(RunSummary.model_validate(run))
    assert none["said"] == "no noise was added"


def test_what_left_is_summed_over_all_runs(build: Build) -> None:
    actions = content_of_run(build(methods=("fedavg",)), DAY)["sent"]["actions"]
    train = next(each for each in actions if each["action"] == "train")
    assert train["calls"] == 12 * len(SEEDS)
    assert train["sent"] == 12 * len(SEEDS) * 4 * 8000
    assert train["parties"] == [4, 4]
    assert train["said"].startswith("Each of 4 parties: the server saw only the sum of model weights")


def test_a_study_states_its_purpose_and_nobody_else_another_one(build: Build) -> None:
    folder = build(change=lambda parts: parts["results"]["study"].update(purpose="Find fraud."))
    assert content_of_run(folder, DAY)["purpose"] == "Find fraud."
    with pytest.raises(IsthmusError, match=r"--purpose: the study states another one, 'Find fraud\.': leave it out"):
        content_of_run(folder, DAY, purpose="Sell it.")


def test_audits_and_their_findings_are_those_of_the_folder(build: Build) -> None:
    folder = build()
    assert any("No audit was run" in each for each in content_of_run(folder, DAY)["known_limits"])
    record = audit_record(folder)
    write_audit(folder, record)
    content = content_of_run(folder, DAY)
    (found,) = content["audits"]
    assert (found["audit"]["name"], found["sections"]) == ("membership", record.sections)
    assert "a better attack may find more" in " ".join(content["known_limits"])
    assert not content_of_run(folder, DAY, party="party-1")["audits"]


def test_runs_that_a_grid_did_not_choose_count_too(tmp_path: Path) -> None:
    run_method(
        "fedavg", data={"name": "banks", "nodes": 120}, rounds=1, grid={"local.lr": [0.01, 0.1]}, out=tmp_path / "grid"
    )
    content = content_of_run(tmp_path / "grid", DAY)
    labels = {"fedavg local.lr=0.01", "fedavg local.lr=0.1"}
    assert {each["method"] for each in content["sent"]["actions"]} == labels
    assert {each["method"] for each in content["models"]} == labels
    assert len({each["method"] for each in content["metrics"]}) == 1
