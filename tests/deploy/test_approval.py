"""Which studies a party answers, and how many calls of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import STUDIES, study_of

from isthmus.data.folder.limits import Limits
from isthmus.deploy import approval
from isthmus.deploy.approval import Approvals, Proposal, Tally, describe_proposal
from isthmus.errors import IsthmusError
from isthmus.nn.decoupled import Sgc
from isthmus.study.config import Study

PARTIES = ("a", "b", "c")
BOUNDS: dict[str, Any] = {
    "standing": True,
    "methods": ["fedavg"],
    "rounds": 9,
    "epochs": 9,
    "runs": 1,
    "totals": ["masks"],
}


def proposal(**more: Any) -> Proposal:
    return Proposal(study_of("fedavg", **more), PARTIES)


def test_equal_studies_have_equal_hashes_however_they_are_written() -> None:
    written = proposal(data={"name": "banks", "nodes": 70}, methods=[{"name": "fedavg", "local": {"epochs": 5}}])
    assert written.hash == proposal().hash == Proposal(proposal().study, ("c", "a", "b")).hash
    assert len(written.hash) == 32


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_was_sent_is_the_one_that_was_previewed(name: str) -> None:
    sent = Proposal(study_of(name), PARTIES)
    received = Proposal.read(sent.text)
    assert received.hash == sent.hash
    assert received.study.method_list() == sent.study.method_list()
    shown = "\n".join(describe_proposal(received))
    for method in sent.study.method_list():
        assert f"method {method.name}: rounds = 3" in shown
        times = -(-3 // method.every)
        assert f"evaluate: at most {times} times in a run; the server reads the sum over parties" in shown


@pytest.mark.parametrize(
    "other",
    [
        {"purpose": "Sell it."},
        {"rounds": 4},
        {"seeds": [1]},
        {"data_seed": 1},
        {"unlabelled": "error"},
        {"model": {"encoder": "sgc"}},
        {"protect": {"total": "masks"}},
        {"protect": {"exchange": "none"}},
        {"federation": {"norm": 10.0}},
        {"data": {"name": "folder", "path": "x", "train": 0.5}},
        {"methods": [{"name": "fedavg"}, {"name": "local"}]},
        {"task": {"name": "node-classification", "classes": 9}},
    ],
)
def test_everything_that_a_party_can_check_is_in_the_hash(other: dict[str, Any]) -> None:
    assert proposal(**other).hash != proposal().hash
    assert Proposal(proposal().study, PARTIES[:2]).hash != proposal().hash


def test_a_party_reads_the_purpose_before_it_approves() -> None:
    sent = proposal(purpose="Find fraud.")
    assert Proposal.read(sent.text).study.purpose == "Find fraud."
    assert "purpose: Find fraud." in describe_proposal(sent)
    assert "purpose: none is stated" in describe_proposal(proposal())


def test_a_study_waits_until_a_person_approves_it(tmp_path: Path) -> None:
    approvals, study = Approvals(tmp_path), proposal()
    with pytest.raises(IsthmusError, match=f"study {study.hash} is not approved there: approve it with isthmus fed"):
        approvals.permit(study, Limits(), PARTIES)
    assert [each.hash for each in approvals.waiting()] == [study.hash]
    approvals.approve(approvals.find(study.hash))
    assert approvals.waiting() == []
    assert approvals.permit(study, Limits(), PARTIES) == 2
    assert approvals.permit(study, Limits(repeats=0), PARTIES) == 1
    approvals.approve(study)
    assert Approvals(tmp_path).permit(study, Limits(), PARTIES) == 4
    for part in ("f00", study.hash[:8]):
        with pytest.raises(IsthmusError, match=f"'{part}' is the hash of no known study: give all 32 digits"):
            approvals.find(part)


def test_a_server_cannot_fill_the_disk_with_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval, "KEPT", 5)
    approvals = Approvals(tmp_path)
    approvals.approve(proposal(seeds=[999]))
    for seed in range(9):
        with pytest.raises(IsthmusError, match="not approved"):
            approvals.permit(proposal(seeds=[seed]), Limits(), PARTIES)
    assert len(approvals.waiting()) == 5
    assert approvals.permit(proposal(seeds=[999]), Limits(), PARTIES)


def test_a_damaged_approval_is_one_line(tmp_path: Path) -> None:
    approvals, study = Approvals(tmp_path), proposal()
    approvals.approve(study)
    (path,) = tmp_path.glob("*.json")
    for text in ("", "[]", "[" * 10_000, json.dumps({"format": 1})):
        path.write_text(text)
        with pytest.raises(IsthmusError, match="delete it"):
            approvals.permit(study, Limits(), PARTIES)


def test_a_standing_approval_is_for_so_many_studies_of_all_parties(tmp_path: Path) -> None:
    approvals, limits = Approvals(tmp_path), Limits(**BOUNDS, studies=2)
    for seed in (0, 1):
        study = proposal(seeds=[seed])
        assert approvals.permit(study, limits, PARTIES) == 2  # and it counts before anything is called
    assert approvals.permit(proposal(seeds=[0]), limits, PARTIES) == 2
    with pytest.raises(IsthmusError, match=r"is beyond the 2 of limits\.studies there: approve it"):
        approvals.permit(proposal(seeds=[2]), limits, PARTIES)
    with pytest.raises(
        IsthmusError, match="is not approved there"
    ):  # the difference to one of all would show one party
        approvals.permit(Proposal(proposal().study, PARTIES[:2]), limits, PARTIES)
    approvals.approve(proposal(seeds=[2]))
    assert approvals.permit(proposal(seeds=[2]), limits, PARTIES) == 2


@pytest.mark.parametrize("missing", ["methods", "rounds", "epochs", "runs", "totals"])
def test_a_standing_approval_names_its_bounds(missing: str) -> None:
    found = Limits.problems({name: value for name, value in BOUNDS.items() if name != missing})
    assert found == [f"a standing approval needs limits.{missing}, too"]


def test_calls_are_counted_over_processes_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "h.calls"
    one, other = Tally(path), Tally(path)
    one.count("a", "train", 2, 1)
    other.count("b", "train", 2, 1)
    for tally in (one, other, Tally(path)):
        tally.count("a", "train", 2, 1)  # the same call again
        tally.count("b", "train", 2, 1)
        with pytest.raises(IsthmusError, match="the study plans 2 calls of train, and 2 were answered"):
            tally.count("c", "train", 2, 1)
        with pytest.raises(IsthmusError, match="plans 0 calls of other"):
            tally.count("d", "other", 0, 9)
    assert [line.split(" ", 1)[1] for line in path.read_text().splitlines()] == ["a train", "b train"]


def test_a_damaged_tally_answers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "h.calls"
    Tally(path).count("a", "train", 1, 1)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(IsthmusError, match="its record of this study is damaged"):
            Tally(path).count("b", "train", 1, 1)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IsthmusError, match="not a regular file but a pipe"):
        Tally(path).count("b", "train", 1, 1)


def test_a_flipped_bit_approves_nothing(tmp_path: Path) -> None:
    approvals, study = Approvals(tmp_path), proposal()
    with pytest.raises(IsthmusError, match="is not approved"):
        approvals.permit(study, Limits(), PARTIES)
    (path,) = tmp_path.glob("*.json")
    text = path.read_text()
    for other in ("1", "-3", "true"):
        path.write_text(text.replace('"approved": 0', f'"approved": {other}'))
        with pytest.raises(IsthmusError, match="damaged: delete it"):
            approvals.permit(study, Limits(), PARTIES)
    path.unlink()
    approvals.approve(proposal(seeds=[7]))
    (other_file,) = tmp_path.glob("*.json")
    other_file.rename(path)  # another study's approval
    with pytest.raises(IsthmusError, match="damaged: delete it"):
        approvals.permit(study, Limits(), PARTIES)


def test_a_study_names_its_method_options_as_text() -> None:
    study = Study.of({"methods": [{"name": "fedavg", "rounds": 7}], "protect": {"total": "none"}})
    shown = list(describe_proposal(Proposal(study, PARTIES)))
    assert "totals: none: the server can read every party's part; messages: sealed; noise: own" in shown
    assert any(line.startswith("method fedavg: rounds = 7, patience = 0") for line in shown)


def test_parties_see_the_learning_rate_that_a_study_leaves_to_the_encoder() -> None:
    named = {**STUDIES["fedcog"], "task": {"name": "node-classification"}}
    sent = Proposal(Study.of_federation(named), PARTIES)
    assert f"local.lr = {Sgc.lr}" in "\n".join(describe_proposal(Proposal.read(sent.text)))
    unnamed = "\n".join(describe_proposal(Proposal(Study.of_federation(STUDIES["fedcog"]), PARTIES)))
    assert f"no rate and no task named: local.lr = {Sgc.lr:g} if parties hold nodes, 0.01 if graphs" in unnamed
