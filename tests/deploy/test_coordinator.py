"""A federation gives what the study in one process gives, and says what is wrong where something is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.deploy.federated_studies import (
    CANNOT_BE_MASKED,
    NEED_PROTECTION,
    STUDIES,
    failing_at,
    federated,
    in_one_process,
    study_of,
    with_groups_of_one,
    with_limits,
)
from tests.federation.by_hand import ByHand, Meddler, at_folders, members_of

from helpers import slow_but
from isthmus.data.datasets import ledgers
from isthmus.data.folder.from_database import DatabaseSource, create_databases
from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.party_side import Message
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.progress.terminal import absence_lines
from isthmus.study.config import Study
from isthmus.study.results import Results


@pytest.mark.parametrize("name", NEED_PROTECTION)
def test_sums_over_neighbours_are_not_sent_without_protection(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name), tmp_path / "data")
    with pytest.raises(IsthmusError, match=r"'sum_up' answers is not for the server: set protect.total = 'masks'"):
        federated(study, tmp_path)


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in NEED_PROTECTION])
@pytest.mark.thinned(15)
def test_a_federation_gives_the_numbers_of_the_study_bit_for_bit(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name), tmp_path / "data")
    if name == "two-groups":
        with_groups_of_one(tmp_path / "data")
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


@pytest.mark.parametrize("name", CANNOT_BE_MASKED)
def test_a_sum_for_each_party_is_refused_under_masks(name: str, tmp_path: Path) -> None:
    study = at_folders(study_of(name, protect={"total": "masks"}), tmp_path / "data")
    with pytest.raises(IsthmusError, match=r"cannot make another one for each addressee: set protect.total = 'none'"):
        federated(study, tmp_path)


SUMMED = [name for name in STUDIES if name not in ("local", "two-groups", *CANNOT_BE_MASKED)]
QUICK = ("fedavg", "fedgcn")
"""Studies that show every way of summing up: for the server, and for the parties."""


def steady(study: Study) -> Study:
    """With a learning rate at which an error of encoding does not grow from round to round."""
    return study.with_methods([each.with_rate(0.01) for each in study.listed_methods()])


@pytest.mark.parametrize("total", ["masks", "ckks"])
@pytest.mark.parametrize("name", slow_but(QUICK, SUMMED))
@pytest.mark.thinned(6)
def test_protected_totals_give_the_same_numbers_to_their_precision(name: str, total: str, tmp_path: Path) -> None:
    study = at_folders(steady(study_of(name, protect={"total": total, "noise": "study"})), tmp_path / "data")
    here, there = in_one_process(study), federated(study, tmp_path).runs[0]
    found = {(at, metric): value for at, metric, value in here.history}
    assert there.history
    for at, metric, value in there.history:
        # weights are compared below; here an item between two classes may get the other one
        assert abs(found[at, metric] - value) < 1e-2 * max(1.0, abs(value)), (at, metric)
    if name != "fedgc":  # see FEDGC_BY_SGD
        mine, theirs = dict(wire.flatten(here.weights)), dict(wire.flatten(there.weights))
        near = {"masks": 2e-5, "ckks": 1e-4}[total]  # AdamW turns an error in a gradient near zero into a longer step
        assert all(torch.allclose(mine[path].double(), theirs[path].double(), atol=near) for path in mine)
    elif total == "masks":
        assert torch.allclose(here.graph["x"], there.graph["x"], atol=1e-2, rtol=0)
    due, seen = list(here.ledger.rows()), list(there.ledger.rows())
    same = ("round", "call", "verb", "action", "party", "eyes", "fields", "status")
    assert [[row[key] for key in same] for row in seen] == [[row[key] for key in same] for row in due]
    assert {row["protection"] for row in seen if row["verb"] == "total"} == {total}
    assert all(row["protection"] == "sealed" for row in seen if row["verb"] == "exchange")


@pytest.mark.slow
def test_sums_over_relations_of_tables_are_those_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (first, *_) = ledgers.write(tmp_path / "out", parties=3, customers=15, transfers=10, laundering=0.1)
    source = DatabaseSource([first.parent / "*"], "transfers.laundering", owners=["accounts.account=bank"])
    create_databases(tmp_path / "data", source)
    study = Study.of({
        "data": {"name": "folder", "path": str(tmp_path / "data")}, "model": {"encoder": "rgcn"}, "unlabelled": "idle",
        "methods": [{"name": "fedgcn", "rounds": 3, "local": {"lr": 0.01}}], "protect": {"total": "masks"},
    })  # fmt: skip
    mine, theirs = (
        dict(wire.flatten(each.weights)) for each in (in_one_process(study), federated(study, tmp_path).runs[0])
    )
    assert all(torch.allclose(mine[path].double(), theirs[path].double(), atol=2e-5) for path in mine)


def test_too_few_parties_end_the_run_with_a_word(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 3, "quorum": 1.0}), tmp_path / "data")
    with pytest.raises(TooFewAnswers, match=r"2 of 3 parties answered.*party-1.*no answer within 600 s"):
        federated(study, tmp_path, failing_at("party-1", {2}, "no answer within 600 s"))


@pytest.mark.parametrize("total", ["none", "masks"])
@pytest.mark.thinned(2)
def test_a_coordinator_that_was_killed_goes_on(total: str, tmp_path: Path) -> None:
    """Every party answered, so the result is that of an uninterrupted run."""
    study = at_folders(steady(study_of("fedavg", rounds=5, protect={"total": total})), tmp_path / "data")
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


def test_unknown_name_in_the_limits_of_a_party_is_an_error(tmp_path: Path) -> None:
    at_folders(study_of("fedavg"), tmp_path / "data")
    with_limits(tmp_path / "data", 'methods = ["fedvag"]')
    with pytest.raises(IsthmusError, match=r"limits\.methods: unknown name 'fedvag': did you mean 'fedavg'\?"):
        members_of(tmp_path / "data", tmp_path / "parties")


def test_who_did_not_count_is_said_by_round_with_the_first_reason(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    outcome = federated(study, tmp_path, failing_at("party-1", {2}, "no answer within 600 s"))
    results = Results(study.resolved(), outcome.runs)
    assert absence_lines(results) == [
        "fedavg, seed 0: party 'party-1' did not count in 1 of 3 rounds, first in round 2: "
        "action 'train', no answer within 600 s"
    ]
    assert results.on_subset()
    spans = results.to_dict()["runs"][0]["turnout"]
    assert [(each["first"], each["last"], list(each["counted"]), list(each["missing"])) for each in spans] == [
        (1, 1, ["party-0", "party-1", "party-2"], []),
        (2, 2, ["party-0", "party-2"], ["party-1"]),
        (3, 3, ["party-0", "party-1", "party-2"], []),
    ]


def test_what_ends_a_run_names_the_method_and_parties_of_one_reason_together(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 3, "quorum": 1.0}), tmp_path / "data")

    def silent(to: str, message: Message) -> Message | str | None:
        return "gone" if message.get("action") == "train" and to != "party-2" else None

    with pytest.raises(TooFewAnswers, match=r"^fedavg, seed 0: .*Missing: party-0, party-1 \(.*gone\)"):
        federated(study, tmp_path, silent)


def test_methods_that_pool_are_no_federation(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", methods=[{"name": "centralized"}]), tmp_path / "data")
    with pytest.raises(IsthmusError, match="'centralized' needs all data in one place"):
        federated(study, tmp_path)


def gone_at(party: str, rounds: set[int]) -> Meddler:
    """From its call to train in the first of these rounds on, a party is not there at all."""
    count = [0]

    def meddle(to: str, message: Message) -> Message | str | None:
        if to == party:
            count[0] += message.get("action") == "train"
            if count[0] in rounds:
                return "it cannot be reached"
        return None

    return meddle


def test_a_study_whose_majority_vanished_goes_on_from_the_last_round_that_a_quorum_has(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 6, "quorum": 0.6}), tmp_path / "data")
    whole = in_one_process(study)
    gone = [gone_at(party, {4}) for party in ("party-0", "party-2")]

    def vanishing(to: str, message: Message) -> Message | str | None:
        return next((said for each in gone if (said := each(to, message)) is not None), None)

    done = Outcome()
    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study), vanishing)
    with pytest.raises(TooFewAnswers, match=r"round 4, train: only 1 of 3 parties answered"):
        coordinate(study, post, "s", tmp_path / "server", outcome=done)
    (partial,) = done.runs
    assert (partial.rounds, partial.history) == (3, [each for each in whole.history if each[0] <= 3])
    assert "only 1 of 3 parties answered" in partial.stopped
    assert set(done.absent) == {"party-0", "party-2"}
    again = federated(study, tmp_path).runs[0]
    assert again.history == whole.history
    trained = [row["round"] for row in again.ledger.rows() if row["action"] == "train" and row["party"] == "party-1"]
    assert trained == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_too_few_parties_have_replaces_nothing(tmp_path: Path) -> None:
    """The others die while round 3 is saved; only one party has it, so all go on from round 2."""
    study = at_folders(study_of("fedavg", training={"rounds": 5, "quorum": 0.6}), tmp_path / "data")
    whole = in_one_process(study)
    saves = dict.fromkeys(("party-0", "party-2"), 0)

    def dying(to: str, message: Message) -> Message | str | None:
        if to in saves:
            saves[to] += message["do"] == "save"
            return "it cannot be reached" if saves[to] >= 3 else None
        return None

    with pytest.raises(IsthmusError, match="only 0 of 3 parties answered"):
        federated(study, tmp_path, dying)
    assert federated(study, tmp_path).runs[0].history == whole.history


def test_the_checkpoint_before_serves_where_the_last_one_is_of_no_use(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", training={"rounds": 6, "quorum": 0.6}), tmp_path / "data")
    whole = in_one_process(study)
    with pytest.raises(IsthmusError, match="only 0 of 3"):
        federated(study, tmp_path, lambda to, message: gone_now(message, 5))
    for party in ("party-0", "party-1"):  # their last state is lost, as when a disk was not flushed
        files = sorted((tmp_path / "parties" / party / "kept").iterdir(), key=lambda file: file.stat().st_mtime_ns)
        assert len(files) >= 2
        files[-1].unlink()
    assert federated(study, tmp_path).runs[0].history == whole.history


def gone_now(message: Message, at: int) -> str | None:
    """What a party says that is not there any more once so many rounds were saved."""
    seen = gone_now.__dict__.setdefault("marks", set())
    if message["do"] == "save":
        seen.add(message["mark"])
    return "it cannot be reached" if len(seen) >= at and message["do"] == "call" else None


def test_parties_delete_what_they_saved_only_when_the_result_is_on_the_disk(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", rounds=2), tmp_path / "data")
    ended = list[bool]()

    def watching(to: str, message: Message) -> Message | str | None:
        if message["do"] == "end":
            ended.append((tmp_path / "server" / "fedavg-0.run").exists())
        return None

    federated(study, tmp_path, watching)
    assert ended == [True] * 3
