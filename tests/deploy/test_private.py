"""A private federation: noise of the parties' own in masked sums, no set-up sums, evaluations at the parties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import federated, study_of, with_limits
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.data.folder.columns import Number
from isthmus.deploy.approval import Proposal, describe_proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.remote import Message
from isthmus.deploy.setup import SetUpHandler
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.privacy.options import EdgePrivacy, PartyPrivacy
from isthmus.study.config import Study
from isthmus.study.results import Results


def private(name: str = "fedavg", **more: Any) -> Study:
    tables = {"privacy": {"epsilon": 50.0, "dropouts": 1}, "protect": {"total": "masks"}, **more}
    return study_of(name, rounds=2, **tables)


def test_a_private_federation_trains_and_keeps_evaluations_at_the_parties(tmp_path: Path) -> None:
    study = at_folders(private(), tmp_path / "data")
    outcome = federated(study, tmp_path)
    (run,) = outcome.runs
    assert run.privacy["epsilon"] == pytest.approx(50.0)
    assert run.metrics == {}
    assert run.chosen_round == 2
    assert all(weight.isfinite().all() for weight in run.weights.values())
    released = {(entry.verb, entry.action): entry.fields for entry in run.ledger.entries}
    assert released["ask", "evaluate"] == ""
    assert all(part.startswith("update/") for part in released["total", "train"].split(", "))
    assert not run.reconciled["differences"]
    for file in (tmp_path / "parties").glob("*/evaluations/*.jsonl"):
        assert len([json.loads(line)["test_accuracy"] for line in file.read_text().splitlines()]) == 2
    assert len(list((tmp_path / "parties").glob("*/evaluations/*.jsonl"))) == len(run.ledger.entries[0].parties)
    Results(study.resolved(), [run]).save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["runs"][0]["privacy"]["of"] == "party"


def test_the_set_up_tells_no_sizes_and_no_sums_of_columns(tmp_path: Path) -> None:
    study = at_folders(private(), tmp_path / "data")
    (member, *_) = members_of(tmp_path / "data", tmp_path / "parties", study).values()
    handler = SetUpHandler(member.contents, privacy=PartyPrivacy(epsilon=1.0))
    (told,) = [handler.answer("introduce", {}, (member.name,)).payload(0)]
    assert {key: told[key] for key in ("items", "labels", "nodes")} == {"items": 1, "labels": 1, "nodes": 1}
    handler.columns = {"amount": Number()}
    with pytest.raises(IsthmusError, match="refused: column 'amount' is encoded by sums over rows of all parties"):
        handler.answer("first", {}, (member.name,))


def test_noise_is_of_each_partys_own_key(tmp_path: Path) -> None:
    weights = []
    for name in ("s", "t"):
        study = at_folders(private(), tmp_path / name / "data")
        (run,) = federated(study, tmp_path / name).runs
        weights.append(torch.cat([weight.flatten() for weight in run.weights.values()]))
    assert not torch.allclose(*weights, atol=1e-3)
    keys = {file.read_bytes() for file in tmp_path.glob("*/parties/*/noise.key")}
    assert len(keys) == len(list(tmp_path.glob("*/parties/*/noise.key"))) > 2


def test_parties_hide_their_items_by_noise_of_their_own_in_local_training(tmp_path: Path) -> None:
    """No masks are needed: what a party sends has all of the noise."""
    privacy, weights = {"unit": "item", "epsilon": 50.0}, []
    for name in ("s", "t"):
        tables = {"privacy": privacy, "protect": {"total": "none"}, "model": {"encoder": "mlp", "hidden": 4}}
        study = at_folders(study_of("fedavg", rounds=2, **tables), tmp_path / name / "data")
        (run,) = federated(study, tmp_path / name).runs
        weights.append(torch.cat([weight.flatten() for weight in run.weights.values()]))
    assert run.privacy["of"] == "item"
    assert run.privacy["epsilon"] == pytest.approx(50.0)
    assert run.metrics == {}
    assert {entry.fields for entry in run.ledger.entries if entry.action == "evaluate"} == {""}
    assert not torch.allclose(*weights, atol=1e-3)  # keys differ, seeds do not
    tables["protect"] = {"total": "masks", "noise": "study"}
    study = at_folders(study_of("fedavg", rounds=2, **tables), tmp_path / "u" / "data")
    with pytest.raises(IsthmusError, match="whoever knows the study's seed knows its noise"):
        federated(study, tmp_path / "u")


def test_parties_hide_their_edges_by_noise_of_their_own_in_sums_over_neighbours(tmp_path: Path) -> None:
    tables = {"privacy": {"unit": "edge", "epsilon": 5.0}, "model": {"encoder": "gap", "hidden": 4}}
    study = at_folders(study_of("fedavg", rounds=2, **tables), tmp_path / "data")
    with_limits(tmp_path / "data", "epsilon = 6.0")
    (run,) = federated(study, tmp_path).runs
    assert run.privacy["of"] == "edge"
    assert run.privacy["epsilon"] == pytest.approx(5.0)
    assert "test_accuracy" in run.metrics  # items are not hidden
    assert list((tmp_path / "parties").glob("*/noise.key"))


PRIVACY = [{"unit": "edge", "epsilon": 5.0}, {"unit": "node", "epsilon": 50.0, "neighbours": 500}]


METHODS = [{"name": "fedgcn"}, {"name": "fedcog", "lnnc": False, "through": "totals", "trainer": "ditto"}]


@pytest.mark.parametrize("method", METHODS, ids=["fedgcn", "fedcog"])
@pytest.mark.parametrize("privacy", PRIVACY, ids=["edge", "node"])
@pytest.mark.thinned(3)  # fedgcn with edges, fedcog with nodes
def test_parties_hide_edges_that_cross_by_shares_of_noise_in_sums_over_all(
    privacy: Any, method: dict[str, Any], tmp_path: Path
) -> None:
    tables = {"privacy": privacy, "protect": {"total": "masks"}, "model": {"encoder": "gap", "hidden": 4, "dropout": 0}}
    study = at_folders(study_of("fedgcn", rounds=2, methods=[method], **tables), tmp_path / "data")
    (run,) = federated(study, tmp_path).runs
    assert run.privacy["epsilon"] == pytest.approx(privacy["epsilon"], rel=1e-3)
    rows = {row["action"]: row for row in run.ledger.rows()}
    assert rows["add_hop"]["protection"] == "masks"
    assert rows["add_hop"]["eyes"] == "parties see the sum"
    assert all(weight.isfinite().all() for weight in run.weights.values())
    assert not run.reconciled["differences"]


def test_sums_over_edges_that_cross_need_masks_and_hashed_ids(tmp_path: Path) -> None:
    tables = {"privacy": PRIVACY[0], "model": {"encoder": "gap", "hidden": 4}}
    for protect, why in (
        ({"total": "none"}, "which hides nothing with protect.total = 'none'"),
        ({"total": "masks", "exchange": "sealed", "matching": "oblivious"}, "set protect.matching = 'hashes'"),
    ):
        base = tmp_path / protect["total"]
        study = at_folders(study_of("fedgcn", rounds=1, protect=protect, **tables), base / "data")
        with pytest.raises(IsthmusError, match=why):
            federated(study, base)


@pytest.mark.parametrize(
    ("protect", "why"),
    [
        ({"total": "none"}, "which hides nothing with protect.total = 'none': set protect.total = 'masks'"),
        (
            {"total": "masks", "noise": "study"},
            "whoever knows the study's seed knows its noise: set",
        ),
    ],
)
def test_protections_under_which_shares_hide_nothing_are_refused(protect: Any, why: str, tmp_path: Path) -> None:
    study = at_folders(private(protect=protect), tmp_path / "data")
    with pytest.raises(IsthmusError, match=why):
        federated(study, tmp_path)


def test_parties_open_no_sum_with_too_little_noise(tmp_path: Path) -> None:
    """Two of three parties are lost, and one may be: the others do not help to open their sum."""
    study = at_folders(private(methods=[{"name": "fedavg", "quorum": 0.0}]), tmp_path / "data")

    def lose(to: str, message: Message) -> str | None:
        lost = message["do"] == "call" and message.get("action") == "train" and to in ("party-0", "party-1")
        return "gone" if lost else None

    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    with pytest.raises(TooFewAnswers) as failed:
        coordinate(study, ByHand(members, lose), "s", tmp_path / "server")
    assert "2 parties, 1 of 3 are left" in str(failed.value)


def test_limits_of_a_party_count_the_studys_epsilon(tmp_path: Path) -> None:
    study = at_folders(private(), tmp_path / "data")
    assert any("spends epsilon 50, delta 1e-05 in each run on the unit 'party'" in line for line in describe_proposal(
        Proposal(study, ("party-0", "party-1"))
    ))  # fmt: skip
    with_limits(tmp_path / "data", "epsilon = 20.0")
    with pytest.raises(IsthmusError, match=r"spends epsilon 50, limits\.epsilon is 20"):
        federated(study, tmp_path)


def test_columns_that_follow_from_secret_edges_are_not_summed_in_the_set_up(tmp_path: Path) -> None:
    study = at_folders(private(), tmp_path / "data")
    (member, *_) = members_of(tmp_path / "data", tmp_path / "parties", study).values()
    handler = SetUpHandler(member.contents, privacy=EdgePrivacy(epsilon=1.0))
    handler.columns = {"degree": Number(structural=True)}
    with pytest.raises(IsthmusError, match="refused: column 'degree' is encoded by sums over rows of all parties"):
        handler.answer("first", {}, (member.name,))
