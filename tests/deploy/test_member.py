"""A party of a federation: its folder, its limits, its noise, its own files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.deploy.federated_studies import federated, in_one_process, study_of, with_groups_of_one, with_limits
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.deploy.approval import Proposal, describe_proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.remote import Message
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.site import Site
from isthmus.protect.options import Protect
from isthmus.study.config import Study
from isthmus.study.model_files import load_model
from isthmus.study.results import Results
from isthmus.tasks.multilabel import NodeMultiLabel
from party_folders import two_drafts


@pytest.mark.parametrize("name", ["fedavg", "local", "fedper", "ditto", "two-groups", "fedcog-gcn"])
@pytest.mark.thinned(5)
def test_every_party_gets_its_own_model_and_nobody_elses(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name), tmp_path / "data")
    if name == "two-groups":
        with_groups_of_one(tmp_path / "data")
    here, there = in_one_process(study), federated(study, tmp_path).runs[0]
    for party in ("party-0", "party-1", "party-2"):
        (file,) = (tmp_path / "parties" / party / "weights").glob("*-0.safetensors")
        assert file.name == f"{Proposal(study, ('party-0', 'party-1', 'party-2')).hash}-{name}-0.safetensors"
        group = next((here.models["groups"][name] for name, own in here.groups.items() if party in own), {})
        due = {**here.weights, **group, **here.models.get("parties", {}).get(party, {})}
        found = load_file(file)
        assert found.keys() == due.keys()
        assert all(torch.equal(found[weight], due[weight]) for weight in due)
    own = set(here.models.get("parties", {"": {}}).get("party-0", {})) - set(there.weights)
    assert not own & {path.rpartition("/")[2] for path, _ in wire.flatten(there.models)}


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedproto"])
@pytest.mark.thinned(3)
def test_a_party_predicts_from_its_own_disk(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name), tmp_path / "data")
    outcome, here = federated(study, tmp_path), in_one_process(study)
    for party in study.load(0).parties:
        model = load_model(tmp_path / "parties" / party.name, party=None)
        found = model.predict(tmp_path / "data" / party.name)
        assert found["prediction"].to_pylist() == model.predict(party)["prediction"].to_pylist()
        labels = [*model.labels] or [str(at) for at in range(model.task.outputs)]
        due = [labels[at] for at in party.graph.y.tolist()]
        right = torch.tensor([one == two for one, two in zip(found["prediction"].to_pylist(), due, strict=True)])
        assert float(right[party.test].double().mean()) == pytest.approx(here.parties[party.name]["test_accuracy"])
    Results({}, outcome.runs).save(tmp_path / "run")
    if name == "fedavg":  # the server has what is shared, and the sums that the encoding follows from
        served, own = load_model(tmp_path / "run"), load_model(tmp_path / "parties" / "party-0")
        assert served.predict(tmp_path / "data").slice(0, found.num_rows).num_rows
        assert served.description["encoding"] == own.description["encoding"]


def test_states_are_gone_when_a_run_is_over(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    federated(study, tmp_path)
    assert not list((tmp_path / "parties").glob("*/kept/*"))


def test_names_that_a_server_gives_its_runs_neither_replace_models_nor_fill_the_disk(tmp_path: Path) -> None:
    one = at_folders(study_of("fedavg", rounds=1), tmp_path / "data")
    other = one.model_copy(update={"seeds": [1]})
    members = members_of(tmp_path / "data", tmp_path / "parties", one, other)
    place = tmp_path / "parties" / "party-0"
    posts = [ByHand(members), ByHand(members)]
    coordinate(one, posts[0], "s/fedavg-0", tmp_path / "one")
    (first,) = place.glob("weights/*.safetensors")
    before = first.read_bytes()

    def renamed(party: str, message: Message) -> None:
        if message["do"] == "begin":
            message["run"] = "s/fedavg-0/fedavg-0"

    coordinate(other, ByHand(members, renamed), "t", tmp_path / "other")
    assert first.read_bytes() == before
    assert len(list(place.glob("weights/*.safetensors"))) == 2
    begin = next(m for to, m in posts[0].sent if to == "party-0" and m.get("stage") == "run")
    for name in range(5):
        members["party-0"].handle({**begin, "run": str(name)})
        for mark in ("a", "b"):
            assert "wrong" not in members["party-0"].handle({"do": "save", "mark": f"{mark}{name}", "keep": ["a0"]})
    assert sorted(file.stem.rpartition("-")[2] for file in place.glob("kept/*")) == ["a0", "b4"]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ('actions = ["introduce", "encode", "evaluate"]', "refused: action 'train' is not among limits.actions"),
        ('verbs = ["ask"]', "refused: 'total' is not among limits.verbs (ask)"),
    ],
)
def test_a_party_refuses_calls_that_its_limits_do_not_allow(limits: str, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    with (tmp_path / "data" / "party-1" / "party.toml").open("a") as file:
        file.write(f"\n[limits]\n{limits}\n")
    run = federated(study, tmp_path).runs[0]
    notes = {row["party"]: row["note"] for row in run.ledger.rows() if row["note"]}
    assert set(notes) == {"party-1"}
    assert why in notes["party-1"]
    assert run.metrics


@pytest.mark.parametrize("parties", [1, 2])
def test_a_study_over_too_few_of_the_federation_does_not_start(parties: int, tmp_path: Path) -> None:
    """The administrator leaves parties out, or writes fewer into the own kit: a sum over one is its model."""
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    if parties == 2:
        with_limits(tmp_path / "data", "min_contributors = 3")
    members = members_of(tmp_path / "data", tmp_path / "parties")
    some = {name: members[name] for name in list(members)[2 - parties : 2]}
    least = parties + 1
    with pytest.raises(IsthmusError, match=f"refused: a study over {parties} of 3 parties, it needs {least}"):
        coordinate(study, ByHand(some), "s", tmp_path / "server")


def test_a_study_over_parties_of_other_kits_does_not_start(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties")
    some = {**members, "party-x": members["party-2"]}
    with pytest.raises(IsthmusError, match="refused: a study over the parties party-0, party-1, party-2, party-x; its"):
        coordinate(study, ByHand(some), "s", tmp_path / "server")


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ('methods = ["fedprox"]', "refused: method 'fedavg' is not among limits.methods (fedprox)"),
        ("epsilon = 1.0", "refused: method 'fedavg' adds no noise, but limits.epsilon demands it"),
        ("rounds = 2", "refused: method 'fedavg' has 3 rounds, limits.rounds is 2"),
        ("epochs = 4", "refused: method 'fedavg' has 5 epochs, limits.epochs is 4"),
        ("evaluations = 2", "refused: method 'fedavg' has 3 evaluations, limits.evaluations is 2"),
        ("runs = 1", "refused: the study has 2 runs, limits.runs is 1"),
    ],
)
def test_a_study_beyond_the_limits_is_refused_before_anything_is_answered(
    limits: str, why: str, tmp_path: Path
) -> None:
    """Although it was approved: limits hold for every study."""
    study = at_folders(study_of("fedavg", seeds=[0, 1]), tmp_path / "data")
    with_limits(tmp_path / "data", limits)
    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study))
    with pytest.raises(IsthmusError, match=f"missing: party-1 \\({re.escape(why)}"):
        coordinate(study, post, "s", tmp_path / "server")
    assert {message["do"] for _, message in post.sent} <= {"begin", "meet"}


def test_a_party_takes_no_part_in_a_run_that_calls_too_often(tmp_path: Path) -> None:
    """Whatever the method calls its rounds: here it trains a model to label nodes with, in 2 times 2 rounds."""
    rounds = {"teaching": 2, "passes": 2, "hops": 0, "bottleneck": False}
    study = study_of("fedgc", methods=[{"name": "fedgc", "rounds": 1, **rounds}])
    study = at_folders(study, tmp_path / "data")
    with_limits(tmp_path / "data", "rounds = 1\ncalls = 3")
    with pytest.raises(
        IsthmusError, match=r"party-1 \(.*refused: method 'fedgc' calls 'train' 4 times, limits.calls is 3"
    ):
        federated(study, tmp_path)


def test_a_party_takes_no_part_in_a_run_with_too_large_a_model(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", rounds=1, model={"encoder": "gcn", "hidden": 256}), tmp_path / "data")
    stated = "  a model of 1,026 numbers, if there were one feature and two classes"
    assert stated in describe_proposal(Proposal(study, ("party-0",)))
    with_limits(tmp_path / "data", "model_numbers = 1000")
    (run,) = federated(study, tmp_path).runs
    notes = [entry.notes["party-1"] for entry in run.ledger.entries if entry.parties]
    assert all(note.endswith(" numbers, limits.model_numbers is 1,000") for note in notes)


def test_evaluations_are_sums_unless_a_party_allows_more(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 2, "evaluate_by": "ask"}), tmp_path / "data")
    why = "method 'fedavg' evaluates by 'ask', limits.evaluate_by accepts total"
    with pytest.raises(IsthmusError, match=why):
        federated(study, tmp_path)
    for party in sorted((tmp_path / "data").iterdir()):
        with (party / "party.toml").open("a") as file:
            file.write('\n[limits]\nevaluate_by = ["ask"]\n')
    assert federated(study, tmp_path).runs[0].over_parties


def test_what_a_study_spends_is_known_before_it_runs(tmp_path: Path) -> None:
    more: dict[str, Any] = {"methods": [{"name": "fgcl", "epsilons": [1.0, 0.5]}], "protect": {"noise": "own"}}
    study = at_folders(study_of("fgcl", seeds=[0, 1], **more), tmp_path / "data")
    with_limits(tmp_path / "data", "epsilon = 2.9")
    with pytest.raises(IsthmusError, match=r"spends epsilon 3 in 2 runs, limits.epsilon is 2\.9"):
        federated(study, tmp_path)
    once = study.model_copy(update={"seeds": [0]})
    assert federated(once, tmp_path).runs[0].rounds == 3


def test_a_folder_of_another_party_is_refused(tmp_path: Path) -> None:
    at_folders(study_of("fedavg"), tmp_path / "data")
    (tmp_path / "data" / "party-1").rename(tmp_path / "data" / "party-9")
    with pytest.raises(IsthmusError, match="is of party 'party-1', but the kit is of 'party-9'"):
        members_of(tmp_path / "data", tmp_path / "parties")


def noisy(member: Member) -> torch.Tensor:
    """The first view of a party's graphs."""
    site = member.handler
    assert isinstance(site, Site)
    with site.asked():
        return site.kept.each("prepared")[0]["0"]


def test_noise_is_drawn_from_what_the_server_does_not_know(tmp_path: Path) -> None:
    views: dict[str, torch.Tensor] = {}
    for noise, name, state in (("own", "s", "s"), ("own", "t", "s"), ("study", "u", "u"), ("own", "v", "v")):
        study = at_folders(study_of("fgcl", protect={"noise": noise}), tmp_path / name / "data")
        members = members_of(tmp_path / name / "data", tmp_path / state / "parties", study)
        coordinate(study, ByHand(members), name, tmp_path / name / "server")
        views[name] = noisy(members["party-0"])
    assert torch.equal(views["s"], views["t"])  # the same study spends nothing twice
    assert not torch.equal(views["s"], views["u"])
    assert not torch.equal(views["s"], views["v"])  # each machine draws a key of its own


def test_a_party_that_limits_epsilon_wants_noise_of_its_own(tmp_path: Path) -> None:
    study = at_folders(study_of("fgcl"), tmp_path / "data")
    with_limits(tmp_path / "data", "epsilon = 100.0")
    with pytest.raises(IsthmusError, match=r"refused: limits\.epsilon demands noise of the party's own"):
        federated(study, tmp_path)


def test_a_party_may_ask_for_protected_totals(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    with_limits(tmp_path / "data", 'totals = ["masks"]')
    with pytest.raises(
        IsthmusError, match=r"these are missing: party-1 \(refused: protect.total is 'none', limits.totals"
    ):
        federated(study, tmp_path)
    masked = study.model_copy(update={"protect": Protect.read({"total": "masks"}, "protect")})
    assert federated(masked, tmp_path).runs[0].rounds == 3


def test_a_party_writes_its_model_with_the_threshold_of_each_task(tmp_path: Path) -> None:
    for draft in two_drafts():
        nodes = draft.tables["nodes.parquet"]
        high = [float(each == "high") for each in nodes.pop("label")]
        nodes |= {"ill": high, "cured": [None, *(1 - each for each in high[1:])]}
        nodes["split"] = ["train", "train", "train", "val", "val", "val", "test", "test"]
        del draft.settings["labels"]
        draft.with_settings(tasks=["ill", "cured"]).write(tmp_path / "data" / draft.settings["name"])
    table: dict[str, Any] = {"data": {"name": "folder", "path": f"{tmp_path / 'data'}/"}, "protect": {"total": "none"}}
    table |= {"methods": [{"name": "fedavg", "rounds": 2}], "task": {"threshold": "f1"}}
    plan = Study.of(table)
    here, there = in_one_process(plan), federated(plan, tmp_path).runs[0]
    assert there.metrics == here.metrics
    model = load_model(tmp_path / "parties" / "north")
    assert isinstance(model.task, NodeMultiLabel)
    assert isinstance(model.task.threshold, list)
    assert model.task.threshold == there.description["task"]["threshold"]
    assert len(set(model.task.threshold)) == 2
    model.predict(tmp_path / "data" / "north")
    assert model.notes == []
