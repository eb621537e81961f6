"""An engine without a network: messages are handed over within this process, so that tests can meddle with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from isthmus.data.folder.writing import write_parties
from isthmus.deploy.approval import Proposal
from isthmus.deploy.member import Member
from isthmus.deploy.party_side import Message, PartySide
from isthmus.deploy.remote import InProcessPost
from isthmus.protect.sealing import Keyring, generate_keyrings
from isthmus.study.config import Study

Meddler = Callable[[str, Message], Message | str | None]
"""Gets the party and a message to it; what it returns is the reply, None lets the party answer."""


class ByHand(InProcessPost):
    """Hands messages to parties that live here, as copies, and lets a test meddle with them."""

    def __init__(self, members: Mapping[str, PartySide], meddle: Meddler | None = None) -> None:
        super().__init__(members)
        self.meddle = meddle
        self.sent: list[tuple[str, Message]] = []

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        return {party: self._one(party, deepcopy(message)) for party, message in messages.items()}

    def _one(self, party: str, message: Message) -> Message | str:
        self.sent.append((party, message))
        reply = None if self.meddle is None else self.meddle(party, message)
        if isinstance(reply, dict):  # what a test says instead of the party belongs to this message
            return {"nonce": message["nonce"], **reply}
        return self.members[party].handle(message) if reply is None else reply


def at_folders(study: Study, folder: Path, parties: int = 3) -> Study:
    """The same study of party folders, which its data are written to."""
    plan = study.model_copy(update={"parties": parties})
    cut = plan.cut_data(0)
    write_parties(folder, cut.parties, cut.classes)
    data = {"name": "folder", "path": str(folder)}
    more = {"federation": plan.federation.model_dump(), "protect": plan.protect.model_dump()}
    return Study.of({**plan.resolved(), **more, "parties": None, "data": data, "partition": {}})


def members_of(folder: Path, state: Path, *approved: Study) -> dict[str, Member]:
    """The parties of some folders, each with a place of its own for what it keeps, and studies that it has approved."""
    names = tuple(sorted(each.name for each in folder.iterdir() if each.is_dir()))
    rings = rings_of(names)
    members = {name: Member(folder / name, state / name, name, ring=rings[name]) for name in names}
    for study in approved:
        for member in members.values():
            member.approvals.approve(Proposal(study, names))
    return members


@lru_cache(maxsize=32)
def rings_of(names: tuple[str, ...]) -> dict[str, Keyring]:
    """The keys of parties, the same whenever they start anew."""
    return generate_keyrings(names)
