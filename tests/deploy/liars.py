"""A party whose software is not ours: it runs the protocol as it should, but for one lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.federation.by_hand import ByHand, members_of

from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.party_side import ActionHandler, Message
from isthmus.federation.actions import Binding
from isthmus.federation.answers import Reply
from isthmus.study.config import Study

AnswerLie = Callable[[Reply], None]
"""Changes what a party answers, before it is closed or packed."""
ReplyLie = Callable[[Message], Any]
"""Returns what a party sends instead of its reply to a message."""


class LyingHandler:
    """Answers as its model does, but for one action, of which it changes the answer."""

    def __init__(self, model: ActionHandler, action: str, lie: AnswerLie) -> None:
        self.model, self.action, self.lie = model, action, lie

    @property
    def answered(self) -> Any:
        return self.model.answered  # type: ignore[attr-defined]

    def answer(self, name: str, request: Any, of: Sequence[str]) -> Reply:
        reply = self.model.answer(name, request, of)
        if name == self.action:
            self.lie(reply)
        return reply

    def binding(self, name: str) -> Binding:
        return self.model.binding(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Liar(Member):
    """A party that lies in one action, and never looks at what leaves it."""

    def tell(self, action: str, lie: AnswerLie) -> None:
        self.action, self.lie = action, lie

    def begin(self, plan: Message) -> ActionHandler:
        handler = super().begin(plan)
        self.norm = 1e300
        return LyingHandler(handler, self.action, self.lie) if hasattr(self, "lie") else handler  # type: ignore[return-value]

    def _weight_problem(self, reply: Reply) -> str:
        return ""


def run_with_liar(
    study: Study, folder: Path, base: Path, liar: str, action: str, *, answer: AnswerLie | None = None,
    reply: ReplyLie | None = None,
) -> Outcome:  # fmt: skip
    """Run a study in which one party lies in the answers to an action, or in its replies to calls of it."""
    members: dict[str, Member] = dict(members_of(folder, base / "parties", study))
    if answer is not None:
        honest = members[liar]
        lying = Liar(honest.folder, honest.state, liar, ring=honest.ring)
        lying.tell(action, answer)
        members[liar] = lying

    def meddle(to: str, message: Message) -> Any:
        if to != liar or reply is None or message.get("action") != action or message["do"] != "call":
            return None
        return reply(members[to].handle(message))

    return coordinate(study, ByHand(members, meddle), "s", base / "server")


def named(outcome: Outcome) -> Mapping[str, str]:
    """By party that was left out the first reason, in the set-up or in a run."""
    found: dict[str, str] = {}
    for ledger in (outcome.ledger, *(run.ledger for run in outcome.runs)):
        for row in ledger.rows():
            if row["status"] == "failed":
                found.setdefault(row["party"], row["note"])
    return found


def named_by_round(outcome: Outcome) -> list[dict[str, str]]:
    """As `named`, for each round of the only run."""
    (run,) = outcome.runs
    found: list[dict[str, str]] = [{} for _ in range(run.rounds)]
    for row in run.ledger.rows():
        if row["status"] == "failed":
            found[row["round"] - 1].setdefault(row["party"], row["note"])
    return found
