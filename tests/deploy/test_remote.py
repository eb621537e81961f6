"""Messages between the coordinator and the parties: who is missing, who comes back, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import failing_at, federated, study_of
from tests.federation.at_parties import Post, transport_of
from tests.federation.by_hand import ByHand, Meddler, at_folders, members_of
from tests.federation.scripted import NAMES, number, site_of

from isthmus.deploy.approval import Proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.party_side import ActionHandler, Message
from isthmus.deploy.remote import RemoteTransport
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.rules import Rules
from isthmus.federation.site import Site
from isthmus.federation.transport import Command
from isthmus.federation.verbs import Federation
from isthmus.protect.options import Protect


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
    members = members_of(folder, tmp_path / "parties", study)
    began = [0]

    def killed_once(to: str, message: Message) -> Message | str | None:
        if to == "party-1" and message.get("action") == "train":
            began[0] += 1
            if began[0] == 3:
                post.members["party-1"] = members_of(folder, tmp_path / "parties", study)["party-1"]
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
        ({"parties": 3}, "malformed reply"),
        ({"wrong": "out of memory"}, "out of memory"),
        ({"parties": [], "answers": [], "letters": [], "failures": {"party-0": "x"}, "answered": 1}, "other parties"),
    ],
)
@pytest.mark.thinned(3)
def test_a_reply_that_is_none_is_the_fault_of_its_party_alone(reply: Message, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    run = federated(study, tmp_path, failing_at("party-1", {2}, reply)).runs[0]
    notes = {row["party"]: row["note"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert set(notes) == {"party-1"}
    assert why in notes["party-1"]


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

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study))
    post.meddle = changed_at("party-1", 2, other_form)(post)
    run = coordinate(study, post, "s", tmp_path / "server").runs[0]
    notes = {(row["party"], row["round"]): row["note"] for row in run.ledger.rows() if row["note"]}
    assert notes == {("party-1", 2): "action 'train', its part differs from the others' in fields or shapes"}


def test_a_party_that_lost_its_state_is_not_believed(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")

    def forgetful(reply: Message) -> None:
        reply["answered"] -= 1

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study))
    post.meddle = changed_at("party-1", 2, forgetful)(post)
    run = coordinate(study, post, "s", tmp_path / "server").runs[0]
    first = next(row for row in run.ledger.rows() if row["note"])
    assert first["party"] == "party-1"
    assert first["note"].endswith("its state is after 2 actions, not after 3: it was lost")


def test_what_was_delivered_meanwhile_comes_to_who_was_cut_off(tmp_path: Path) -> None:
    study = study_of("fedavg")
    at_folders(study, tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    set_up = {"stage": "set-up", "study": Proposal(study, tuple(members)).text}
    cut = {"party-1"}
    post = ByHand(members, lambda to, message: "cut off" if to in cut else None)
    transport = RemoteTransport(post, {"do": "begin", "run": "r", **set_up}, protect=study.protect)
    assert set(transport.absent) == {"party-1"}
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


def test_who_refuses_to_begin_is_not_asked_again(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")

    def refusing(to: str, message: Message) -> Message | None:
        return {"wrong": "no", "begun": False} if to == "party-1" and message.get("stage") == "run" else None

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study), refusing)
    coordinate(study, post, "s", tmp_path / "server")
    assert [message["do"] for to, message in post.sent if to == "party-1"].count("begin") == 2  # set-up, and the run


def enlarging(member: Member, times: float) -> None:
    """Have a party answer weights that are so many times as large; its own check does not hold it back."""
    called = member._answer

    def lying(present: ActionHandler, message: Message) -> Message:
        if message["action"] == "train":
            answer = present.answer

            def enlarged(name: str, request: Any, of: Any) -> Reply:
                reply = answer(name, request, of)
                columns = {path: column * times for path, column in reply.columns.items()}  # type: ignore[operator]
                return Reply(reply.parties, columns, reply.weights, (), reply.failures)

            same = {name: getattr(present, name) for name in ("answered", "binding", "least")}
            present = SimpleNamespace(answer=enlarged, **same)  # type: ignore[assignment]
        return called(present, message)

    member._answer = lying  # type: ignore[method-assign]


@pytest.mark.parametrize("total", ["none", "masks"])
def test_a_party_whose_answer_is_far_too_large_is_named_and_the_run_goes_on(total: str, tmp_path: Path) -> None:
    """In the open the server finds out; under masks the party checks itself before it closes its part."""
    study = study_of("fedavg", protect={"total": total}, training={"rounds": 3, "quorum": 0.5})
    study = at_folders(study, tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    enlarging(members["party-1"], 1e4)
    run = coordinate(study, ByHand(members), "s", tmp_path / "server").runs[0]
    failed = {(row["action"], row["party"], row["note"]) for row in run.ledger.rows() if row["status"] == "failed"}
    why = "action 'train', more than 100 times as large as what was sent (federation.norm)"
    assert failed == {("train", "party-1", why)}
    assert run.rounds == 3


def test_without_its_own_check_a_far_too_large_part_is_found_by_halves(tmp_path: Path) -> None:
    study = study_of("fedavg", protect={"total": "masks"}, training={"rounds": 3, "quorum": 0.5})
    plan = study.model_copy(update={"data": {"name": "banks", "nodes": 400}})
    study = at_folders(plan, tmp_path / "data", parties=8)
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    enlarging(members["party-5"], 1e4)
    begun = members["party-5"]._begin_run

    def careless(message: Message) -> Message:
        reply = begun(message)
        members["party-5"].norm = 1e30
        return reply

    members["party-5"]._begin_run = careless  # type: ignore[method-assign]
    run = coordinate(study, ByHand(members), "s", tmp_path / "server").runs[0]
    failed = {row["party"]: row["note"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert "party-5" in failed
    assert len(failed) == 2
    assert "left out: more than 20 times as large as what was sent" in failed["party-5"]
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

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study), meddle)
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

    coordinate(study, Nosy(members_of(tmp_path / "data", tmp_path / "parties", study)), "s", tmp_path / "server")
    assert found
    for envelope in found:
        with pytest.raises(IsthmusError, match="no payload"):
            wire.decode(envelope[8:])


def test_a_party_that_starts_anew_is_in_masked_sums_again(tmp_path: Path) -> None:
    study = study_of("fedcog", training={"rounds": 6, "quorum": 0.5}, protect={"total": "masks"})
    study = at_folders(study, tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    trained = [0]

    def killed_once(to: str, message: Message) -> Message | str | None:
        if to == "party-1" and message.get("action") == "train":
            trained[0] += 1
            if trained[0] == 3:
                post.members["party-1"] = members_of(tmp_path / "data", tmp_path / "parties", study)["party-1"]
        return None

    post = ByHand(members, killed_once)
    run = coordinate(study, post, "s", tmp_path / "server", save_every=0).runs[0]
    rounds = {row["round"] for row in run.ledger.rows() if row["status"] == "failed"}
    assert rounds == {3}
    assert run.rounds == 6


# ---- small sites over messages


def counting(site: Site, request: Any) -> Any:
    """Counts calls and says what came, or sends a message to party-1, or fails."""
    if request.get("fail") and site.cohort.names == ("party-1",):
        raise ValueError("row 17 of the patients")
    if request.get("send"):
        return Mail([{"party-1": {"n": number(name)}} if name != "party-1" else {} for name in site.cohort.names])
    site.kept["calls"] = site.kept.get("calls", torch.tensor(0)) + 1
    return Answer({"calls": site.kept["calls"], "came": [len(box) for box in site.received("say")]})


def over_messages(**options: Any) -> tuple[Federation, RemoteTransport, Post]:
    transport, post = transport_of(lambda here: site_of(counting, here), **options)
    return Federation(transport, quorum=0.5), transport, post


def ask(federation: Federation, **request: Any) -> dict[str, tuple[int, int]]:
    """By party its calls and letters; a greeting may take a moment."""
    time.sleep(0.05)
    answers = federation.ask("say", request)
    return {party: (int(answer["calls"]), answer["came"]) for party, answer in answers.items()}


def test_a_slow_party_is_absent_and_gets_what_it_missed_when_it_is_back() -> None:
    federation, transport, post = over_messages()
    ask(federation)
    post.replies["party-1"] = "no answer within 600 s"
    assert list(ask(federation)) == ["party-0", "party-2", "party-3"]
    federation.exchange("say", {"send": True})
    assert transport.absent == {"party-1": "no answer within 600 s"}
    post.replies.clear()
    assert ask(federation)["party-1"] == (2, 3)
    assert not transport.absent
    notes = [row["note"] for row in federation.ledger.rows() if row["status"] == "failed"]
    assert notes == ["action 'say', no answer within 600 s", "action 'say', absent: no answer within 600 s"]


@pytest.mark.parametrize("saved", [False, True])
def test_a_party_that_restarted_begins_again_and_goes_on_from_its_saved_state(saved: bool) -> None:
    federation, transport, post = over_messages()
    ask(federation)
    if saved:
        transport.confirm(federation.save())
    side = post.members["party-1"]
    side.handler, side.run = None, ""
    assert list(federation.ask("say", {}).missing) == ["party-1"]
    assert "has not begun this run" in transport.absent["party-1"]
    assert ask(federation)["party-1"] == ((2, 0) if saved else (1, 0))


def test_a_party_that_lost_its_saved_state_stays_out() -> None:
    federation, transport, post = over_messages()
    ask(federation)
    transport.confirm(federation.save())
    side = post.members["party-1"]
    side.handler, side.run = None, ""
    side.states.clear()
    for _ in range(3):
        assert "party-1" not in ask(federation)
    assert transport.absent["party-1"] == "no state under this mark"


def test_a_party_that_refuses_to_begin_is_never_asked_again() -> None:
    parties = transport_of(lambda here: site_of(counting, here))[1].members
    parties["party-2"].refuses = "refused: the method is not among limits.methods"
    transport = RemoteTransport(post := Post(parties), {"do": "begin", "run": "r2"})
    federation = Federation(transport, quorum=0.5)
    parties["party-2"].refuses = ""
    post.sent.clear()
    for _ in range(2):
        assert list(ask(federation)) == ["party-0", "party-1", "party-3"]
    assert "party-2" not in {party for party, _ in post.sent}
    assert transport.absent == {"party-2": "refused: the method is not among limits.methods"}


def test_an_error_of_foreign_code_does_not_leave_the_party() -> None:
    federation, transport, _ = over_messages()
    missing = federation.ask("say", {"fail": True}).missing
    assert missing == {"party-1": "action 'say', ValueError (see the log at the party)"}
    assert not transport.absent  # it failed at the action and is there
    assert ask(federation)["party-1"] == (1, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda reply: 7, "malformed reply"),
        (lambda reply: {**reply, "answers": [b"nothing"]}, "not in safetensors form"),
        (lambda reply: {"answered": 1}, "malformed reply"),
        (lambda reply: {**reply, "parties": ["party-2"]}, "a reply for other parties"),
        (lambda reply: {**reply, "letters": [{"party-0": b""}]}, ""),
        (lambda reply: {**reply, "answered": 9}, "its state is after 9 actions, not after 1: it was lost"),
        (lambda reply: {**reply, "answered": "1"}, "its state is after 1 actions, not after 1: it was lost"),
        (lambda reply: {"wrong": "gone\x1b[2J" + "!" * 999}, "gone [2J!!!"),
    ],
)
def test_a_malformed_reply_leaves_its_party_out_and_no_other(change: Any, why: str) -> None:
    federation, _, post = over_messages()

    def meddle(message: Message, reply: Message) -> Any:
        return change(reply) if message["do"] == "call" else reply

    post.replies["party-1"] = meddle
    missing = federation.ask("say", {}).missing
    assert list(missing) == ["party-1"]
    assert why in missing["party-1"]
    assert len(missing["party-1"]) < 400


def test_the_largest_answers_are_dropped() -> None:
    def script(site: Site, request: Any) -> Answer:
        return Answer({"w": torch.tensor([[1e4 if name == "party-1" else 1.0] for name in site.cohort.names])})

    transport, _ = transport_of(lambda here: site_of(script, here), rules=Rules(norm=100.0))
    total = Federation(transport, quorum=0.5).total("say", {"w": torch.ones(1)})
    assert total.missing == {"party-1": "action 'say', more than 100 times as large as what was sent (federation.norm)"}
    assert total.sum("w").tolist() == [3.0]


def test_models_and_states_stay_with_their_parties() -> None:
    def script(site: Site, request: Any) -> None:
        site.predict({})

    transport, post = transport_of(lambda here: site_of(script, here))
    federation = Federation(transport)
    federation.ask("say", of=NAMES[:2])
    assert federation.models() == {}
    assert [bool(side.model) for side in post.members.values()] == [True, True, False, False]
    saved = federation.save()
    assert saved.keys() == {"mark", "answered", "saved"}
    assert all(saved["mark"] in side.states for side in post.members.values())
    transport.close()
    assert not any(side.states for side in post.members.values())


def test_messages_between_parties_are_sealed_unless_the_study_says_otherwise() -> None:
    for exchange, sealed in (("sealed", True), ("none", False)):
        federation, _, post = over_messages(protect=Protect(exchange=exchange))
        seen: list[Any] = []

        def watch(message: Message, reply: Message, seen: list[Any] = seen) -> Message:
            seen.extend(letter for letters in reply.get("letters", ()) for letter in letters.values())
            return reply

        post.replies["party-0"] = watch
        federation.exchange("say", {"send": True})
        assert [isinstance(letter, dict) for letter in seen] == [sealed]
        assert ask(federation)["party-1"] == (1, 3)
