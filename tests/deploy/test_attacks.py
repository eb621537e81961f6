"""What a dishonest server tries on parties with default limits, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import study_of
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.remote import Message

MASKS = {"total": "masks"}
Lie = Callable[[Message], Message | None]
"""Makes another message of one that an honest server sends; None: there is nothing to lie about in this one."""


def answers_to(lie: Lie, tmp_path: Path, name: str = "fedavg", **more: Any) -> list[Message]:
    """What parties reply if every message that can be a lie is told as one, before the honest one."""
    study = at_folders(study_of(name, **{"protect": MASKS, **more}), tmp_path / "data", parties=4)
    members = members_of(tmp_path / "data", tmp_path / "parties")
    replies: list[Message] = []

    def meddle(party: str, message: Message) -> None:
        if (told := lie(message)) is not None:
            replies.append(members[party].handle(told))

    coordinate(study, ByHand(members, meddle), "s", tmp_path / "server")
    assert replies
    return replies


def refused(replies: list[Message], why: str) -> bool:
    return all(
        why in reply.get("wrong", "") and reply.keys() <= {"wrong", "begun", "answered", "nonce"} for reply in replies
    )


@pytest.mark.parametrize("action", ["train", "evaluate"])
def test_ask_instead_of_a_masked_total_is_refused(action: str, tmp_path: Path) -> None:
    def lie(message: Message) -> Message | None:
        if message.get("action") != action or message["do"] != "call":
            return None
        return {**{key: value for key, value in message.items() if key != "shield"}, "verb": "ask"}

    assert refused(answers_to(lie, tmp_path), f"refused: action '{action}' is answered by total, not by ask")


@pytest.mark.parametrize(
    ("name", "action"), [("fedgcn", "sum_up"), ("fedcog by totals", "propagate_total")], ids=["fedgcn", "fedcog"]
)
def test_sums_over_neighbours_are_never_for_the_server(name: str, action: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"methods": [{"name": "fedcog", "through": "totals"}]} if name != "fedgcn" else {}
    name = name.partition(" ")[0]

    def to_the_server(message: Message) -> Message | None:
        if message.get("action") != action or message["do"] != "call":
            return None
        return {**message, "shield": {**message["shield"], "to": "server"}}

    why = f"refused: a total of action '{action}' is for the parties, not for the server"
    assert refused(answers_to(to_the_server, tmp_path / "one", name, **more), why)

    def later(message: Message) -> Message | None:
        if message.get("step") != "again" or message["shield"]["to"] != "parties":
            return None
        return {**message, "shield": {**message["shield"], "to": "server"}}

    why = "refused: this sum is for the parties, not for the server"
    assert refused(answers_to(later, tmp_path / "two", name, **more), why)

    def plain(message: Message) -> Message | None:
        if message.get("action") != action or message["do"] != "call":
            return None
        return {key: value for key, value in message.items() if key != "shield"} | {"to": "parties"}

    why = f"refused: what action '{action}' answers is not for the server: set protect.total = 'masks'"
    assert refused(answers_to(plain, tmp_path / "three", name, **more), why)
