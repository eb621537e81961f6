"""A federation gives what the study in one process gives, and says what is wrong where something is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from groups import TwoGroups
from safetensors.torch import load_file
from tests.federation.by_hand import ByHand, Meddler, at_folders, members_of

from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.remote import ActionHandler, Message, RemoteTransport
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.site import Site
from isthmus.federation.transport import Command
from isthmus.progress.terminal import unanswered_lines
from isthmus.protect.options import Protect
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.results import Results
from isthmus.study.setup import module_for

assert TwoGroups.name == "two-groups"  # importing it registers it
BANKS = {"data": {"name": "banks"}}
MOTIFS = {"data": {"name": "motifs", "graphs": 20}}
SGD = {"optimizer": "sgd", "lr": 0.1}
FEDGC_BY_SGD = {
    "name": "fedgc", "ratio": 0.1, "teaching": 10, "local": SGD, "transforming": {**SGD, "epochs": 20},
    "descent": SGD, "edge_lr": 0.1, "target": {**SGD, "epochs": 50}, "tuning": SGD,
}  # fmt: skip
"""FedGC whose steps are as long as its gradients: Adam makes a whole one of a gradient that is next to nothing but for
a sum's rounding, and a model that is trained on the graph for hundreds of epochs goes its own way from there. So do two
models one after another that are trained for thirty rounds each: after ten all is within 1e-6."""
STUDIES: dict[str, dict[str, Any]] = {
    "fedavg": {**BANKS, "methods": [{"name": "fedavg"}]},
    "fedcog": {**BANKS, "model": {"encoder": "sgc"}, "methods": [{"name": "fedcog"}]},
    "fedcog-gcn": {**BANKS, "methods": [{"name": "fedcog-gcn"}]},
    "fedgcn": {**BANKS, "methods": [{"name": "fedgcn"}]},
    "fedgl": {"data": {"name": "hospitals"}, "methods": [{"name": "fedgl"}]},
    "fgcl": {**MOTIFS, "methods": [{"name": "fgcl"}], "protect": {"noise": "study"}},
    "fclg": {**MOTIFS, "task": {"name": "graph-clustering"}, "methods": [{"name": "fclg"}]},
    "fedgc": {**BANKS, "methods": [{"name": "fedgc", "ratio": 0.1}]},
    "fedgc by sgd": {**BANKS, "methods": [FEDGC_BY_SGD]},
    "local": {**BANKS, "methods": [{"name": "local"}]},
    "fedper": {**BANKS, "methods": [{"name": "fedper"}]},
    "fedrep": {**BANKS, "methods": [{"name": "fedrep", "head_epochs": 2}]},
    "ditto": {**BANKS, "methods": [{"name": "ditto"}]},
    "fedproto": {**BANKS, "methods": [{"name": "fedproto"}]},
    "two-groups": {**BANKS, "methods": [{"name": "two-groups"}]},
}


def study_of(name: str, rounds: int = 3, **more: Any) -> Study:
    return Study.of({"training": {"rounds": rounds}, "unlabelled": "idle", **STUDIES[name], **more})


def in_one_process(study: Study) -> RunResult:
    """As cohorts of one, with sums in party order."""
    loaded = study.load(0)
    module = module_for(study.encoder(), loaded.parties, loaded.task, 0)
    return Run(study.method_list()[0], loaded.parties, loaded.task, module, seed=0, side_by_side=False).go()


def federated(study: Study, base: Path, meddle: Meddler | None = None) -> Outcome:
    post = ByHand(members_of(base / "data", base / "parties"), meddle)
    return coordinate(study, post, "s", base / "server", save_every=0)


@pytest.mark.parametrize("name", STUDIES)
def test_a_federation_gives_the_numbers_of_the_study_bit_for_bit(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name), tmp_path / "data")
    here, there = in_one_process(study), federated(study, tmp_path).runs[0]
    assert "parties" not in there.models
    for owner in ("shared", "groups"):
        mine, theirs = dict(wire.flatten(here.models.get(owner, {}))), dict(wire.flatten(there.models.get(owner, {})))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[path], theirs[path]) for path in mine)
    assert here.groups == there.groups
    found = {(at, metric): value for at, metric, value in here.history}
    assert there.history
    assert all(found[at, metric] == value for at, metric, value in there.history)
    assert [{**row, "protection": "sealed" if row["verb"] == "exchange" else "none"} for row in here.ledger.rows()] == (
        list(there.ledger.rows())
    )


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in ("local", "two-groups")])
@pytest.mark.parametrize("total", ["masks", "ckks"])
def test_protected_totals_give_the_same_numbers_to_their_precision(name: str, total: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name, protect={"total": total, "noise": "study"}), tmp_path / "data")
    here, there = in_one_process(study), federated(study, tmp_path).runs[0]
    found = {(at, metric): value for at, metric, value in here.history}
    assert there.history
    for at, metric, value in there.history:
        assert abs(found[at, metric] - value) < 2e-3, (at, metric)
    if name != "fedgc":  # see FEDGC_BY_SGD
        mine, theirs = dict(wire.flatten(here.weights)), dict(wire.flatten(there.weights))
        near = {"masks": 5e-6, "ckks": 2e-5}[total]
        assert all(torch.allclose(mine[path].double(), theirs[path].double(), atol=near) for path in mine)
    elif total == "masks":
        assert torch.allclose(here.graph["x"], there.graph["x"], atol=1e-3, rtol=0)
    due, seen = list(here.ledger.rows()), list(there.ledger.rows())
    same = ("round", "call", "verb", "action", "party", "eyes", "fields", "status")
    assert [[row[key] for key in same] for row in seen] == [[row[key] for key in same] for row in due]
    assert {row["protection"] for row in seen if row["verb"] == "total"} == {total}
    assert all(row["protection"] == "sealed" for row in seen if row["verb"] == "exchange")


@pytest.mark.parametrize("name", ["fedavg", "local", "fedper", "ditto", "two-groups", "fedcog-gcn"])
def test_every_party_gets_its_own_model_and_nobody_elses(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name), tmp_path / "data")
    here, there = in_one_process(study), federated(study, tmp_path).runs[0]
    for party in ("party-0", "party-1", "party-2"):
        (file,) = (tmp_path / "parties" / party / "weights").iterdir()
        assert file.name == f"s-{name}-0.safetensors"
        group = next((here.models["groups"][name] for name, own in here.groups.items() if party in own), {})
        due = {**here.weights, **group, **here.models.get("parties", {}).get(party, {})}
        found = load_file(file)
        assert found.keys() == due.keys()
        assert all(torch.equal(found[weight], due[weight]) for weight in due)
    own = set(here.models.get("parties", {"": {}}).get("party-0", {})) - set(there.weights)
    assert not own & {path.rpartition("/")[2] for path, _ in wire.flatten(there.models)}


def test_the_set_up_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    rows = list(federated(study, tmp_path).ledger.rows())
    assert {(row["verb"], row["action"]) for row in rows} == {("ask", "introduce"), ("ask", "encode")}


def columns_of_all_kinds(folder: Path) -> None:
    """Numbers to be scaled and categories without declared values, beside the features that are there."""
    import pyarrow as pa
    from pyarrow import parquet

    for at, party in enumerate(sorted(folder.iterdir())):
        table = parquet.read_table(party / "nodes.parquet")
        rows = range(len(table))
        table = table.append_column("age", pa.array([float(20 + (7 * row + at) % 40) for row in rows]))
        table = table.append_column("town", pa.array([("bonn", "ulm", f"only-{at}")[row % 3] for row in rows]))
        parquet.write_table(table, party / "nodes.parquet")
        with (party / "party.toml").open("a") as file:
            file.write('\n[columns.age]\nkind = "number"\n\n[columns.town]\nkind = "category"\nstructural = false\n')


def test_encodings_are_settled_by_totals(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    columns_of_all_kinds(tmp_path / "data")
    here, outcome = in_one_process(study), federated(study, tmp_path)
    assert here.history == outcome.runs[0].history
    said = {(row["verb"], row["action"]) for row in outcome.ledger.rows()}
    assert {("total", "first"), ("total", "second"), ("ask", "values")} <= said


def test_parties_that_declare_other_columns_are_named(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    path = tmp_path / "data" / "party-1" / "party.toml"
    path.write_text(path.read_text().replace("classes = ", "classes = 1"))
    with pytest.raises(IsthmusError, match=r"'party-1': 'classes' in party\.toml differs from that of 'party-0'"):
        federated(study, tmp_path)


# ---- what goes wrong


def failing_at(party: str, rounds: set[int], reply: Message | str) -> Meddler:
    """Calls to train of these rounds get this reply instead of the party's, and so does the greeting after one."""
    count, greeted = [0], [0]

    def meddle(to: str, message: Message) -> Message | str | None:
        if to == party and message["do"] == "greet":
            greeted[0] += 1
            return reply if greeted[0] == 1 else None
        if to == party and message.get("action") == "train":
            count[0] += 1
            return reply if count[0] in rounds else None
        return None

    return meddle


def test_a_party_that_is_cut_off_is_named_and_comes_back(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    run = federated(study, tmp_path, failing_at("party-1", {2}, "no answer within 600 s")).runs[0]
    assert run.rounds == 3
    failed = [(row["round"], row["action"], row["note"]) for row in run.ledger.rows() if row["status"] == "failed"]
    assert failed[0] == (2, "train", "action 'train', no answer within 600 s")
    assert {at for at, _, _ in failed} == {2}


def test_a_party_that_was_started_anew_goes_on_from_its_state(tmp_path: Path) -> None:
    study = at_folders(study_of("local", rounds=4), tmp_path / "data")
    folder = tmp_path / "data"
    members = members_of(folder, tmp_path / "parties")
    began = [0]

    def killed_once(to: str, message: Message) -> Message | str | None:
        if to == "party-1" and message.get("action") == "train":
            began[0] += 1
            if began[0] == 3:
                post.members["party-1"] = members_of(folder, tmp_path / "parties")["party-1"]
        return None

    post = ByHand(members, killed_once)
    run = coordinate(study, post, "s", tmp_path / "server", save_every=0).runs[0]
    failed = [(row["round"], row["action"]) for row in run.ledger.rows() if row["status"] == "failed"]
    assert failed == [(3, "train")]
    assert ("party-1", "restore") in [(to, message["do"]) for to, message in post.sent]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({"parties": ["party-1"], "answers": [b"garbage"], "letters": [], "failures": {}, "answered": 2}, "no payload"),
        ({"parties": ["party-0"], "answers": [b""], "letters": [], "failures": {}, "answered": 2}, "other parties"),
        ({"parties": 3}, "no message"),
        ({"wrong": "out of memory"}, "out of memory"),
        ({"parties": [], "answers": [], "letters": [], "failures": {"party-0": "x"}, "answered": 1}, "other parties"),
    ],
)
def test_a_reply_that_is_none_is_the_fault_of_its_party_alone(reply: Message, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    run = federated(study, tmp_path, failing_at("party-1", {2}, reply)).runs[0]
    notes = {row["party"]: row["note"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert set(notes) == {"party-1"}
    assert why in notes["party-1"]


def test_too_few_parties_end_the_run_with_a_word(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 3, "quorum": 1.0}), tmp_path / "data")
    with pytest.raises(TooFewAnswers, match=r"2 of 3 parties answered.*'party-1'.*no answer within 600 s"):
        federated(study, tmp_path, failing_at("party-1", {2}, "no answer within 600 s"))


@pytest.mark.parametrize("total", ["none", "masks"])
def test_a_coordinator_that_was_killed_goes_on(total: str, tmp_path: Path) -> None:
    """Every party answered, so the result is that of an uninterrupted run."""
    study = at_folders(study_of("fedavg", rounds=5, protect={"total": total}), tmp_path / "data")
    whole = in_one_process(study)

    class Killed(KeyboardInterrupt):
        pass

    count = [0]

    def killing(to: str, message: Message) -> Message | str | None:
        if message.get("action") == "train" and to == "party-0":
            count[0] += 1
            if count[0] == 4:
                raise Killed
        return None

    with pytest.raises(Killed):
        federated(study, tmp_path, killing)
    assert list((tmp_path / "server").glob("*.checkpoint"))
    again = federated(study, tmp_path).runs[0]
    near = 0.0 if total == "none" else 1e-6
    assert [each[:2] for each in again.history] == [each[:2] for each in whole.history]
    assert all(abs(one[2] - other[2]) <= near for one, other in zip(again.history, whole.history, strict=True))
    assert all(torch.allclose(again.weights[name], whole.weights[name], atol=near, rtol=0) for name in whole.weights)
    if total == "none":
        assert list(again.ledger.rows()) == list(whole.ledger.rows())


def changed_at(party: str, at: int, change: Callable[[Message], None]) -> Callable[[ByHand], Meddler]:
    """The party's own answer to its `at`-th call to train, changed on its way."""

    def of(post: ByHand) -> Meddler:
        count = [0]

        def meddle(to: str, message: Message) -> Message | str | None:
            if to != party or message.get("action") != "train":
                return None
            count[0] += 1
            if count[0] != at:
                return None
            reply = post.members[party].handle(message)
            change(reply)
            return reply

        return meddle

    return of


def test_a_part_that_does_not_fit_the_others_is_left_out(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")

    def other_form(reply: Message) -> None:
        reply["answers"] = [wire.encode({"weights": {"w": torch.ones(3)}, "more": torch.ones(2)})]

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties"))
    post.meddle = changed_at("party-1", 2, other_form)(post)
    run = coordinate(study, post, "s", tmp_path / "server").runs[0]
    notes = {(row["party"], row["round"]): row["note"] for row in run.ledger.rows() if row["note"]}
    assert notes == {("party-1", 2): "action 'train', its part is not like the others'"}


def test_a_party_that_lost_its_state_is_not_believed(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")

    def forgetful(reply: Message) -> None:
        reply["answered"] -= 1

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties"))
    post.meddle = changed_at("party-1", 2, forgetful)(post)
    run = coordinate(study, post, "s", tmp_path / "server").runs[0]
    first = next(row for row in run.ledger.rows() if row["note"])
    assert first["party"] == "party-1"
    assert first["note"].endswith("its state is after 2 actions, not after 3: it was lost")


def test_what_was_delivered_meanwhile_comes_to_who_was_cut_off(tmp_path: Path) -> None:
    members = members_of_banks(tmp_path)
    cut = {"party-1"}
    post = ByHand(members, lambda to, message: "cut off" if to in cut else None)
    transport = RemoteTransport(post, {"do": "begin", "run": "r", "stage": "set-up"})
    assert set(transport.out) == {"party-1"}
    transport.send(
        Command("deliver", transport.parties, "sum_up", payload={p: {"sum": torch.ones(1)} for p in members})
    )
    cut.clear()
    with pytest.raises(IsthmusError, match="nothing is delivered in the set-up"):
        members["party-0"].handler.deliver("sum_up", {})
    transport.send(Command("answer", ("party-1",), "introduce", "ask", {}))
    assert [message["action"] for to, message in post.sent if to == "party-1" and message["do"] == "deliver"] == [
        "sum_up"
    ]


def members_of_banks(base: Path) -> dict[str, Member]:
    at_folders(study_of("fedavg"), base / "data")
    return members_of(base / "data", base / "parties")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"do": "begin", "run": "r", "stage": "x"}, "unknown stage 'x'"),
        ({"do": "call", "verb": "exchange", "action": "introduce", "under": 3, "request": b""}, "these bytes are no"),
        ({"do": "dance"}, "does not know what 'dance' asks for"),
        ({"do": "restore", "mark": "../../../etc/passwd"}, "has kept no such state"),
    ],
)
def test_a_message_that_is_none_is_refused(message: Message, why: str, tmp_path: Path) -> None:
    member = members_of_banks(tmp_path)["party-0"]
    begin = {"run": "r", "stage": "set-up", "protect": Protect().model_dump_json(), "norm": 1000.0}
    member.handle({"do": "begin", **begin})
    assert why in member.handle({**begin, **message})["wrong"]


def test_messages_to_others_leave_by_exchange_alone(tmp_path: Path) -> None:
    """A coordinator that says `total` does not get at what `limits.verbs` forbids."""
    study = at_folders(study_of("fedcog"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties")

    def lying(to: str, message: Message) -> Message | str | None:
        return members[to].handle({**message, "verb": "total"}) if message.get("verb") == "exchange" else None

    with pytest.raises(IsthmusError, match="is not answered by 'total'"):
        coordinate(study, ByHand(members, lying), "s", tmp_path / "server")


def test_a_party_at_work_says_so(tmp_path: Path) -> None:
    member = members_of_banks(tmp_path)["party-0"]
    with member._at_work:
        assert member.handle({"do": "greet"}) == {"busy": True}
    assert member.handle({"do": "greet"}) == {"run": "", "answered": 0}


def test_who_refuses_to_begin_is_not_asked_again(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    with (tmp_path / "data" / "party-1" / "party.toml").open("a") as file:
        file.write("\n[limits]\nmethods = []\n")
    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties"))
    coordinate(study, post, "s", tmp_path / "server")
    assert [message["do"] for to, message in post.sent if to == "party-1"].count("begin") == 2  # set-up, and the run


def test_states_are_gone_when_a_run_is_over(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    federated(study, tmp_path)
    assert not list((tmp_path / "parties").glob("*/kept/*"))


# ---- limits


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ('methods = ["fedprox"]', "refused: method 'fedavg' is not among limits.methods (fedprox)"),
        ('actions = ["introduce", "encode", "evaluate"]', "refused: action 'train' is not among limits.actions"),
        ('verbs = ["ask"]', "refused: 'total' is not among limits.verbs (ask)"),
        ("min_contributors = 4", "refused: a total of 3, limits.min_contributors is 4"),
        ("epsilon = 1.0", "refused: method 'fedavg' adds no noise, but limits.epsilon demands it"),
    ],
)
def test_a_party_refuses_what_its_limits_do_not_allow(limits: str, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    with (tmp_path / "data" / "party-1" / "party.toml").open("a") as file:
        file.write(f"\n[limits]\n{limits}\n")
    run = federated(study, tmp_path).runs[0]
    notes = {row["party"]: row["note"] for row in run.ledger.rows() if row["note"]}
    assert set(notes) == {"party-1"}
    assert why in notes["party-1"]
    assert run.metrics


def test_unknown_name_in_the_limits_of_a_party_is_an_error(tmp_path: Path) -> None:
    at_folders(study_of("fedavg"), tmp_path / "data")
    limited(tmp_path / "data", 'methods = ["fedvag"]')
    with pytest.raises(IsthmusError, match=r"limits\.methods: unknown name 'fedvag': did you mean 'fedavg'\?"):
        members_of(tmp_path / "data", tmp_path / "parties")


def test_who_did_not_answer_is_told_with_the_first_reason(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    outcome = federated(study, tmp_path, failing_at("party-1", {2}, "no answer within 600 s"))
    (line,) = unanswered_lines(Results(study.resolved(), outcome.runs))
    assert line.startswith("party 'party-1' did not answer ")
    assert line.endswith("first in round 2 of fedavg: action 'train', no answer within 600 s")


def test_what_ends_a_run_names_the_method_and_parties_of_one_reason_together(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 3, "quorum": 1.0}), tmp_path / "data")

    def silent(to: str, message: Message) -> Message | str | None:
        return "gone" if message.get("action") == "train" and to != "party-2" else None

    with pytest.raises(TooFewAnswers, match=r"^fedavg, seed 0: .*Missing: 'party-0', 'party-1' \(.*gone\)"):
        federated(study, tmp_path, silent)


def test_what_a_method_spends_is_known_before_it_runs(tmp_path: Path) -> None:
    more: dict[str, Any] = {"methods": [{"name": "fgcl", "epsilons": [1.0, 0.5]}], "protect": {}}
    study = at_folders(study_of("fgcl", **more), tmp_path / "data")
    for party, epsilon in (("party-0", 1.5), ("party-1", 1.4)):
        with (tmp_path / "data" / party / "party.toml").open("a") as file:
            file.write(f"\n[limits]\nepsilon = {epsilon}\n")
    run = federated(study, tmp_path).runs[0]
    notes = {row["party"]: row["note"] for row in run.ledger.rows() if row["note"]}
    assert set(notes) == {"party-1"}
    assert "spends epsilon 1.5, limits.epsilon is 1.4" in notes["party-1"]


def test_methods_that_pool_are_no_federation(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", methods=[{"name": "centralized"}]), tmp_path / "data")
    with pytest.raises(IsthmusError, match="'centralized' needs all data in one place"):
        federated(study, tmp_path)


def test_a_folder_of_another_party_is_refused(tmp_path: Path) -> None:
    at_folders(study_of("fedavg"), tmp_path / "data")
    (tmp_path / "data" / "party-1").rename(tmp_path / "data" / "party-9")
    with pytest.raises(IsthmusError, match="is of party 'party-1', but the kit is of 'party-9'"):
        members_of(tmp_path / "data", tmp_path / "parties")


# ---- noise


def noisy(member: Member) -> torch.Tensor:
    """The first view of a party's graphs."""
    site = member.handler
    assert isinstance(site, Site)
    with site.asked():
        return site.kept.each("prepared")[0]["0"]


def test_noise_is_drawn_from_what_the_server_does_not_know(tmp_path: Path) -> None:
    views: dict[str, torch.Tensor] = {}
    for noise, name in (("own", "s"), ("own", "t"), ("study", "u")):
        study = at_folders(study_of("fgcl", protect={"noise": noise}), tmp_path / name / "data")
        members = members_of(tmp_path / name / "data", tmp_path / name / "parties")
        coordinate(study, ByHand(members), name, tmp_path / name / "server")
        views[name] = noisy(members["party-0"])
    assert torch.equal(views["s"], views["t"])  # the same study spends nothing twice
    assert not torch.equal(views["s"], views["u"])


def test_a_party_that_limits_epsilon_wants_noise_of_its_own(tmp_path: Path) -> None:
    study = at_folders(study_of("fgcl"), tmp_path / "data")
    limited(tmp_path / "data", "epsilon = 100.0")
    run = federated(study, tmp_path).runs[0]
    notes = {row["party"]: row["note"] for row in run.ledger.rows() if row["note"]}
    assert set(notes) == {"party-1"}
    assert "refused: limits.epsilon demands noise of the party's own" in notes["party-1"]


# ---- answers that are too large, and envelopes


def enlarging(member: Member, times: float) -> None:
    """Have a party answer weights that are so many times as large; its own check does not hold it back."""
    called = member._called

    def lying(present: ActionHandler, message: Message) -> Message:
        if message["action"] == "train":
            answer = present.answer

            def enlarged(name: str, request: Any, of: Any) -> Reply:
                reply = answer(name, request, of)
                columns = {path: column * times for path, column in reply.columns.items()}  # type: ignore[operator]
                return Reply(reply.parties, columns, reply.weights, (), reply.failures)

            present = SimpleNamespace(answer=enlarged, answered=present.answered)  # type: ignore[assignment, attr-defined]
        return called(present, message)

    member._called = lying  # type: ignore[method-assign]


@pytest.mark.parametrize("total", ["none", "masks"])
def test_a_party_whose_answer_is_far_too_large_is_named_and_the_run_goes_on(total: str, tmp_path: Path) -> None:
    """In the open the server finds out; under masks the party checks itself before it closes its part."""
    study = study_of("fedavg", protect={"total": total}, training={"rounds": 3, "quorum": 0.5})
    study = at_folders(study, tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties")
    enlarging(members["party-1"], 1e4)
    run = coordinate(study, ByHand(members), "s", tmp_path / "server").runs[0]
    failed = {(row["action"], row["party"], row["note"]) for row in run.ledger.rows() if row["status"] == "failed"}
    why = "action 'train', more than 1000 times as large as what was sent (federation.norm)"
    assert failed == {("train", "party-1", why)}
    assert run.rounds == 3


def test_without_its_own_check_a_far_too_large_part_is_found_by_halves(tmp_path: Path) -> None:
    study = study_of("fedavg", protect={"total": "masks"}, training={"rounds": 3, "quorum": 0.5})
    plan = study.model_copy(update={"data": {"name": "banks", "nodes": 400}})
    study = at_folders(plan, tmp_path / "data", parties=8)
    members = members_of(tmp_path / "data", tmp_path / "parties")
    enlarging(members["party-5"], 1e4)
    begun = members["party-5"]._begun

    def careless(message: Message) -> Message:
        return begun({**message, "norm": 1e30})

    members["party-5"]._begun = careless  # type: ignore[method-assign]
    run = coordinate(study, ByHand(members), "s", tmp_path / "server").runs[0]
    failed = {row["party"]: row["note"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert "party-5" in failed
    assert len(failed) == 2
    assert "left out: more than 125 times as large as what was sent" in failed["party-5"]
    assert all(float(value.abs().max()) < 10 for _, value in wire.flatten(run.weights))


@pytest.mark.parametrize("how", ["again", "swapped", "changed"])
def test_an_envelope_that_is_not_as_it_was_sent_is_refused(how: str, tmp_path: Path, caplog: Any) -> None:
    study = study_of("fedcog", training={"rounds": 1, "quorum": 0.5})
    study = at_folders(study, tmp_path / "data")
    kept: list[Message] = []

    def meddle(to: str, message: Message) -> Message | str | None:
        if to != "party-1" or message["do"] != "deliver" or not isinstance(message["mail"], dict):
            return None
        kept.append({**message, "mail": dict(message["mail"])})
        mail = message["mail"]
        if how == "again" and len(kept) == 2:
            return post.members[to].handle(kept[0])
        if how == "swapped" and len(mail) > 1:
            message["mail"] = dict(zip(mail, reversed(mail.values()), strict=True))
        if how == "changed":
            message["mail"] = {sender: data[:-1] + bytes([data[-1] ^ 1]) for sender, data in mail.items()}
        return None

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties"), meddle)
    with suppress(IsthmusError):  # all must take part in propagation
        coordinate(study, post, "s", tmp_path / "server")
    assert "party 'party-1': refused: an envelope from" in caplog.text


def test_the_server_sees_of_messages_no_more_than_their_size(tmp_path: Path) -> None:
    study = at_folders(study_of("fedcog", rounds=1), tmp_path / "data")
    found: list[bytes] = []

    class Nosy(ByHand):
        def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
            replies = super().send(messages, seconds)
            for reply in replies.values():
                for letters in reply.get("letters", []) if isinstance(reply, dict) else []:
                    found.extend(each["sealed"] for each in letters.values())
            return replies

    coordinate(study, Nosy(members_of(tmp_path / "data", tmp_path / "parties")), "s", tmp_path / "server")
    assert found
    for envelope in found:
        with pytest.raises(IsthmusError, match="no payload"):
            wire.decode(envelope[8:])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: {**{k: v for k, v in m.items() if k != "shield"}}, "totals of this run are protected"),
        (lambda m: {**m, "shield": {**m["shield"], "agreement": "x"}}, "keys for this sum are not agreed on"),
    ],
)
def test_a_party_does_not_answer_in_the_open_what_is_to_be_protected(change: Any, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", protect={"total": "masks"}), tmp_path / "data")

    def meddle(to: str, message: Message) -> Message | str | None:
        if message["do"] == "call" and message["verb"] == "total":
            return post.members[to].handle(change(message))
        return None

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties"), meddle)
    with pytest.raises(TooFewAnswers, match=why):
        coordinate(study, post, "s", tmp_path / "server")


def limited(folder: Path, text: str) -> None:
    path = folder / "party-1" / "party.toml"
    path.write_text(f"{path.read_text()}\n[limits]\n{text}\n")


def test_a_party_may_ask_for_protected_totals(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    limited(tmp_path / "data", 'totals = ["masks"]')
    with pytest.raises(
        IsthmusError, match=r"these are missing: 'party-1' \(refused: protect.total is 'none', limits.totals"
    ):
        federated(study, tmp_path)
    masked = study.model_copy(update={"protect": Protect.read({"total": "masks"}, "protect")})
    assert federated(masked, tmp_path).runs[0].rounds == 3


def test_a_party_may_allow_an_action_for_totals_alone(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 2, "quorum": 0.5}), tmp_path / "data")
    limited(tmp_path / "data", 'actions = ["introduce", "encode", "total:train", "ask:evaluate"]')
    run = federated(study, tmp_path).runs[0]
    failed = {row["action"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert failed == {"evaluate"}


def test_a_party_without_a_key_to_seal_with_says_so(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties")
    members["party-2"].ring = None
    with pytest.raises(IsthmusError, match="'party-2' has no key to seal with"):
        coordinate(study, ByHand(members), "s", tmp_path / "server")
    open_study = study.model_copy(update={"protect": Protect(exchange="none")})
    assert coordinate(open_study, ByHand(members), "t", tmp_path / "server").runs[0].rounds == 3


def test_a_party_that_starts_anew_is_in_masked_sums_again(tmp_path: Path) -> None:
    study = study_of("fedcog", training={"rounds": 6, "quorum": 0.5}, protect={"total": "masks"})
    study = at_folders(study, tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties")
    trained = [0]

    def killed_once(to: str, message: Message) -> Message | str | None:
        if to == "party-1" and message.get("action") == "train":
            trained[0] += 1
            if trained[0] == 3:
                post.members["party-1"] = members_of(tmp_path / "data", tmp_path / "parties")["party-1"]
        return None

    post = ByHand(members, killed_once)
    run = coordinate(study, post, "s", tmp_path / "server", save_every=0).runs[0]
    rounds = {row["round"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert rounds == {3}
    assert run.rounds == 6


def test_of_a_full_disk_the_server_learns_that_and_not_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties")

    def full(*told: Any, **more: Any) -> None:
        error = OSError(28, "No space left on device")
        raise IsthmusError(f"cannot write {tmp_path}/secret: No space left on device") from error

    monkeypatch.setattr(members["party-1"], "keep", full)
    said: list[Message | str] = []

    class Listening(ByHand):
        def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
            replies = super().send(messages, seconds)
            said.extend(replies.values())
            return replies

    run = coordinate(study, Listening(members), "s", tmp_path / "server", save_every=0).runs[0]
    assert run.rounds == 3
    assert "cannot keep its state: No space left on device" in str(said)
    assert "secret" not in str(said)
