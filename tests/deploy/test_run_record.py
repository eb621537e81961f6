"""What a party records in its ledger, and how it consults it: sums of several studies must not show one party."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import study_of
from tests.federation.by_hand import ByHand, at_folders, members_of
from typer.testing import CliRunner

from isthmus.cli.party import app
from isthmus.deploy import party_ledger
from isthmus.deploy.approval import Proposal
from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.party_ledger import FILE, Index, PartyLedger, read_ledger
from isthmus.deploy.party_side import Message
from isthmus.deploy.run_record import RunRecord, study_digest
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.answers import Reply
from isthmus.federation.transport import Each
from isthmus.study.config import Study

MASKS = {"total": "masks"}
ANSWER = Reply(("a",), {"w": [torch.ones(2)]})
ALL = ("party-0", "party-1", "party-2", "party-3")


class Several:
    """Studies over one federation of four, each over some of the parties."""

    def __init__(self, base: Path, **more: Any) -> None:
        self.base, self.more = base, more
        self.study = at_folders(study_of("fedavg", rounds=1, protect=MASKS, **more), base / "data", parties=4)
        self.members = members_of(base / "data", base / "parties")

    def run(self, name: str, parties: Sequence[str] = ALL, meddle: Any = None, **changed: Any) -> Outcome:
        table = self.study.model_dump()
        study = Study.of({**table, **changed, "protect": MASKS})
        some = {party: self.members[party] for party in parties}
        for member in some.values():
            member.approvals.approve(Proposal(study, tuple(parties)))
        return coordinate(study, ByHand(some, meddle), name, self.base / f"server-{name}")

    def restarted(self) -> None:
        self.members = members_of(self.base / "data", self.base / "parties")

    def lines(self, party: str = "party-0") -> list[Message]:
        return read_ledger(self.base / "parties" / party / FILE)[0]


def at_train(party: str) -> Any:
    return lambda to, m: "gone" if to == party and m.get("action") == "train" and m["do"] == "call" else None


def methods(**options: Any) -> list[dict[str, Any]]:
    return [{"name": "fedavg", "rounds": 1, **options}]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"methods": methods(patience=3)},
        {"methods": methods(rounds=2)},
        {"methods": methods(local={"lr": 0.010001})},
    ],
    ids=["the same", "an option of no effect", "more rounds", "an option of little effect"],
)
@pytest.mark.thinned(9)
def test_two_studies_that_differ_by_one_party_do_not_show_its_part(
    changed: dict[str, Any], restart: bool, tmp_path: Path
) -> None:
    """The first study is over four parties. In the second one the server leaves party-3 out of the first round."""
    several = Several(tmp_path)
    several.run("one")
    if restart:
        several.restarted()
    with pytest.raises(TooFewAnswers, match="with sums opened earlier, this one would show the part of party-3 alone"):
        several.run("two", ALL, at_train("party-3"), **changed)


def test_a_study_over_one_party_fewer_is_refused_in_the_set_up_or_before_its_first_sum(tmp_path: Path) -> None:
    several = Several(tmp_path)
    several.run("one")
    with pytest.raises(TooFewAnswers, match="would show the part of party-3 alone"):
        several.run("two", ALL[:3])


def test_without_the_record_the_difference_of_two_studies_is_one_partys_part(tmp_path: Path) -> None:
    """What the record prevents: with the ledgers gone, the two means give party-3's weights to 1e-6."""
    several, parts = Several(tmp_path), dict[str, Any]()

    def watch(party: str, message: Message) -> Message | None:
        if message["do"] != "call" or message.get("action") != "train":
            return None
        reply, guard = several.members[party].handle(message), several.members[party].guard
        assert guard is not None
        assert guard._part is not None
        parts[party] = {name: value.double() for name, value in guard._part.columns.items()}
        return reply

    one = several.run("one", ALL, watch).runs[0].weights
    for party in ALL:
        for file in (tmp_path / "parties" / party).glob("ledger.*"):
            file.unlink()
    several.restarted()
    two = several.run("two", ALL, at_train("party-3")).runs[0].weights
    named = next(name for name in parts["party-0"] if name.startswith("weight of "))
    weight = {party: float(own[named]) for party, own in parts.items()}
    left = sum(weight[party] for party in ALL[:3])
    for name in one:
        shown = (one[name].double() * sum(weight.values()) - two[name].double() * left) / weight["party-3"]
        own = parts["party-3"][f"weights/{name}"] / weight["party-3"]
        assert torch.allclose(shown, own, atol=1e-6)


@pytest.mark.slow
def test_the_same_set_may_sum_up_again(tmp_path: Path) -> None:
    several = Several(tmp_path)
    one, two = several.run("one").runs[0], several.run("two").runs[0]
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


def test_sums_that_differ_by_enough_parties_are_opened(tmp_path: Path) -> None:
    several = Several(tmp_path)
    several.run("one")
    assert several.run("two", ALL[:2]).runs[0].rounds == 1


def test_other_seeds_and_other_data_are_other_states(tmp_path: Path) -> None:
    several = Several(tmp_path)
    several.run("one")
    assert several.run("two", ALL, at_train("party-3"), seeds=[7]).runs[0].rounds == 1


def test_what_a_party_discloses_is_written_before_it_leaves(tmp_path: Path) -> None:
    several = Several(tmp_path)
    counts: list[tuple[str, int]] = []

    def watch(party: str, message: Message) -> Message | None:
        if party != "party-0" or message["do"] not in ("call", "shield"):
            return None
        before = several.members[party].ledger.entries
        reply = several.members[party].handle(message)
        written = [line for line in several.lines() if line["number"] > before]
        counts.extend((str(line["event"]), line.get("sent", 0)) for line in written)
        if message["do"] == "call":
            (line,) = written
            assert (line["event"], line["action"], line["verb"]) == ("answer", message["action"], message["verb"])
        elif message["step"] == "confirm" and several.members[party].guard is not None:
            assert [line["event"] for line in written] == ["sum"] or not written  # of counts nothing is opened
        return reply

    several.run("one", ALL, watch)
    train = next(line for line in several.lines() if line.get("action") == "train")
    assert train["eyes"] == "server sees the sum"
    assert train["protection"] == "masks"
    assert train["method"] == "fedavg"
    assert train["study"] == Proposal(several.study, ALL).hash
    assert train["fields"].startswith("weights/")
    assert {event for event, _ in counts} == {"answer", "sum"}
    (one, *_) = [line for line in several.lines() if line["event"] == "sum"]
    assert one["parties"] == list(ALL)
    (begun, *_) = [line for line in several.lines() if line["event"] == "begin"]
    assert begun["parties"] == list(ALL)
    assert begun["limits"]["min_contributors"] == 2
    assert len(begun["data"]) == 64


def test_what_a_party_refuses_is_written_too(tmp_path: Path) -> None:
    several = Several(tmp_path)

    def lie(party: str, message: Message) -> None:
        if party == "party-0" and message.get("action") == "train" and message["do"] == "call":
            told = {key: value for key, value in message.items() if key != "shield"}
            assert "refused" in several.members[party].handle({**told, "verb": "ask"})["wrong"]

    several.run("one", ALL, lie)
    (refusal,) = [line for line in several.lines() if line["event"] == "refusal"]
    assert (refusal["action"], refusal["verb"]) == ("train", "ask")
    assert refusal["why"].startswith("refused: action 'train' is answered by total, not by ask")


def test_refusals_without_end_do_not_fill_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_ledger, "REFUSALS", 4)
    for _ in range(2):  # as if the party had been started again
        one = record(tmp_path)
        one.ledger.load()
        for at in range(28):
            one.refused({"do": "call", "action": f"train {at}"}, f"refused: {at}")
    lines = read_ledger(tmp_path / FILE)[0]
    assert [line.get("times", 1) for line in lines] == [1, 1, 1, 1, 4, 8, 16]
    assert sum(row["refusals"] for row in one.index.totals["r"].rows()) == 32
    monkeypatch.setattr(party_ledger, "utc_now", lambda: "2100-01-01")
    one.refused({"do": "call"}, "refused: on another day")
    assert read_ledger(tmp_path / FILE)[0][-1]["times"] == 13


def test_texts_of_a_server_are_one_line_in_a_ledger_and_where_it_is_shown(tmp_path: Path) -> None:
    text = "x\n3 lines, none changed\x1b[8m"
    one = record(tmp_path)
    one.refused({"do": "call", "action": text, "verb": text}, f"refused: {text}")
    one.ledger.append("refusal", action=text, run=text)  # as an earlier version wrote it
    (line, _) = read_ledger(tmp_path / FILE)[0]
    assert (line["action"], line["why"]) == ("x 3 lines, none changed [8m", "refused: x 3 lines, none changed [8m")
    (tmp_path / "state").mkdir()
    for file in tmp_path.glob("ledger.*"):
        file.rename(tmp_path / "state" / file.name)
    shown = CliRunner().invoke(app, ["ledger", str(tmp_path)]).output
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 4


def test_what_a_study_may_spend_is_in_the_ledger(tmp_path: Path) -> None:
    study = at_folders(study_of("fgcl", rounds=1, protect={}), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    coordinate(study, ByHand(members), "s", tmp_path / "server")
    lines, _ = read_ledger(tmp_path / "parties" / "party-0" / FILE)
    spent = study.method_list()[0].most_spent()
    assert spent
    assert {line.get("epsilon") for line in lines if line["method"] == "fgcl"} == {spent}


def test_nothing_leaves_a_party_whose_ledger_cannot_be_written(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", rounds=1), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    for break_it, why in (
        (lambda path: (path.unlink(), path.mkdir()), "cannot write its ledger: Is a directory"),
        (lambda path: path.write_text("{}\n"), "its ledger is not as it was written (read the log at the party)"),
    ):
        path = members["party-1"].ledger.path
        if path.is_dir():
            path.rmdir()
        members["party-1"].ledger.load() if not path.exists() else None
        kept = path.read_bytes()
        break_it(path)
        with pytest.raises(IsthmusError) as caught:
            coordinate(study, ByHand(members), "s", tmp_path / "server")
        assert why in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(kept)


def record(folder: Path, data: str = "d", seed: int = 0, stage: str = "run", **options: Any) -> RunRecord:
    index = Index()
    text = json.dumps({"methods": [{"name": "m", **options}, {"name": "other"}], "task": {}})
    begin = {"run": "r", "stage": stage, "study": text, "method": "m", "seed": seed}
    return RunRecord(PartyLedger(folder / FILE, index.add), index, begin, data, {"total": "masks"})


def test_states_are_those_of_the_data_and_the_plan_or_of_what_the_server_sends(tmp_path: Path) -> None:
    first, sent = record(tmp_path), {"w": torch.ones(2)}
    base = set(first.states("train", sent, "server", 3, ANSWER))
    again = record(tmp_path, rounds=9, every=2)
    assert set(again.states("train", sent, "server", 3, ANSWER)) == base
    for other, alike in (
        (first.states("train", {"w": torch.zeros(2)}, "server", 3, ANSWER), True),  # the same place in the plan
        (first.states("train", sent, "server", 4, ANSWER), True),  # what the server sends is the same
        (first.states("train", Each({"a": sent}), "server", 4, ANSWER), True),  # to this party
        (first.states("train", Each({"a": {}}), "server", 4, ANSWER), False),
        (record(tmp_path, seed=1).states("train", sent, "server", 3, ANSWER), True),
        (first.states("train", {"w": torch.zeros(2)}, "server", 4, ANSWER), False),
        (first.states("train", {"w": torch.ones(1, 2)}, "server", 4, ANSWER), False),
        (first.states("evaluate", sent, "server", 3, ANSWER), False),
        (record(tmp_path, data="e").states("train", sent, "server", 3, ANSWER), False),
    ):
        assert bool(base & set(other)) == alike
    assert set(first.states("sum_up", {}, "parties", 0, ANSWER)) & set(
        record(tmp_path, seed=5).states("sum_up", {}, "parties", 0, ANSWER)
    )
    assert record(tmp_path, stage="set-up").states("first", {}, "server", 0, ANSWER) == record(
        tmp_path, stage="set-up"
    ).states("first", sent, "server", 9, ANSWER)


def test_sums_for_parties_of_the_same_answer_are_alike_whatever_was_asked_before(tmp_path: Path) -> None:
    def states(at: int, ids: list[int], value: float, **more: Any) -> set[str]:
        columns: dict[str, Any] = {"ids": [torch.tensor(ids)], "sum": [torch.full((len(ids), 2), value)]}
        return set(record(tmp_path, **more).states("sum_up", {}, "parties", at, Reply(("a",), columns)))

    assert states(1, [4, 7], 0.5) & states(2, [4, 7], 0.5, seed=1)
    assert not states(1, [4, 7], 0.5) & states(2, [4, 7], 0.6)
    assert not states(1, [], 0.0) & states(2, [], 0.0)  # who has no rows adds nothing, hop after hop


def test_fingerprints_of_data_differ_from_party_to_party(tmp_path: Path) -> None:
    """They have a salt that never leaves, so nobody can test in a ledger what data a party has."""
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert not set(one.states("train", {}, "server", 0, ANSWER)) & set(two.states("train", {}, "server", 0, ANSWER))


def test_a_study_has_one_digest() -> None:
    assert study_digest({"study": "x", "run": "a"}) == study_digest({"study": "x", "run": "b"}) != study_digest({})
