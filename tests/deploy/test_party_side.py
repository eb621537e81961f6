"""What a party answers to messages of the server, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import study_of
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.deploy.approval import Proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.party_side import Message
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.protect.options import Protect

BANKS = study_of("fedavg")


SET_UP = {"stage": "set-up", "study": Proposal(BANKS, ("party-0", "party-1", "party-2")).text}


def members_of_banks(base: Path) -> dict[str, Member]:
    at_folders(BANKS, base / "data")
    return members_of(base / "data", base / "parties", BANKS)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"do": "begin", "run": "r", "stage": "x"}, "unknown stage 'x'"),
        ({"do": "call", "verb": "ask", "action": "introduce", "under": 3, "request": b""}, "these bytes are no"),
        (
            {"do": "call", "verb": "exchange", "action": "introduce", "under": 3},
            "'introduce' is answered by ask, not by exchange",
        ),
        ({"do": "dance"}, "unknown message 'dance'"),
        ({"do": "restore", "mark": "../../../etc/passwd"}, "has no such saved state"),
    ],
)
def test_a_message_that_is_none_is_refused(message: Message, why: str, tmp_path: Path) -> None:
    member = members_of_banks(tmp_path)["party-0"]
    begin = {"run": "r", **SET_UP, "protect": BANKS.protect.model_dump_json(), "norm": BANKS.federation.norm,
             "parties": ["party-0", "party-1", "party-2"]}  # fmt: skip
    member.handle({"do": "begin", **begin})
    assert why in member.handle({**begin, **message})["wrong"]


def test_messages_to_others_leave_by_exchange_alone(tmp_path: Path) -> None:
    """A coordinator that says `total` does not get at what `limits.verbs` forbids."""
    study = at_folders(study_of("fedcog"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)

    def lying(to: str, message: Message) -> Message | str | None:
        return members[to].handle({**message, "verb": "total"}) if message.get("verb") == "exchange" else None

    with pytest.raises(IsthmusError, match="'propagate' is answered by exchange, not by total"):
        coordinate(study, ByHand(members, lying), "s", tmp_path / "server")


def test_a_party_at_work_says_so(tmp_path: Path) -> None:
    member = members_of_banks(tmp_path)["party-0"]
    with member._lock:
        assert member.handle({"do": "greet", "nonce": "a"}) == {"busy": True, "nonce": "a"}
    assert member.handle({"do": "greet", "nonce": "b"}) == {"run": "", "answered": 0, "nonce": "b"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: {**{k: v for k, v in m.items() if k != "shield"}}, "totals of this run are protected"),
        (lambda m: {**m, "shield": {**m["shield"], "agreement": "x"}}, "there is no agreement on keys for this sum"),
    ],
)
def test_a_party_does_not_answer_in_the_open_what_is_to_be_protected(change: Any, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", protect={"total": "masks"}), tmp_path / "data")

    def meddle(to: str, message: Message) -> Message | str | None:
        if message["do"] == "call" and message["verb"] == "total":
            return post.members[to].handle(change(message))
        return None

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study), meddle)
    with pytest.raises(TooFewAnswers, match=why):
        coordinate(study, post, "s", tmp_path / "server")


def test_a_party_without_a_key_to_seal_with_says_so(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    members["party-2"].ring = None
    with pytest.raises(IsthmusError, match="'party-2' has no key to seal with"):
        coordinate(study, ByHand(members), "s", tmp_path / "server")
    open_study = study.model_copy(update={"protect": Protect(total={"name": "none"}, exchange="none")})
    for member in members.values():
        member.approvals.approve(Proposal(open_study, tuple(members)))
    assert coordinate(open_study, ByHand(members), "t", tmp_path / "server").runs[0].rounds == 3


def test_of_a_full_disk_the_server_learns_that_and_not_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)

    def full(*told: Any, **more: Any) -> None:
        error = OSError(28, "No space left on device")
        raise IsthmusError(f"cannot write {tmp_path}/secret: No space left on device") from error

    monkeypatch.setattr(members["party-1"], "save_state", full)
    said: list[Message | str] = []

    class Listening(ByHand):
        def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
            replies = super().send(messages, seconds)
            said.extend(replies.values())
            return replies

    run = coordinate(study, Listening(members), "s", tmp_path / "server", save_every=0).runs[0]
    assert run.rounds == 3
    assert "cannot write its state: No space left on device" in str(said)
    assert "secret" not in str(said)
