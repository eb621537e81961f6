"""Sites behind messages: every party has its own site, and what it writes to disk stays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scripted import small_parties

from isthmus import store
from isthmus.deploy.party_side import Message, PartySide
from isthmus.deploy.remote import InProcessPost, RemoteTransport
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.rules import Rules
from isthmus.federation.site import Site
from isthmus.protect.options import Protect
from isthmus.protect.sealing import Keyring, generate_keyrings


class SiteSide(PartySide):
    """A party whose site is created again whenever a run begins.

    Attributes:
        states: by mark the states that it wrote.
        model: the model that it wrote last.
        refuses: what it refuses to begin with; empty begins.
    """

    def __init__(self, name: str, make: Callable[[], Site], ring: Keyring | None = None) -> None:
        super().__init__(name, ring)
        self.make = make
        self.states: dict[str, bytes] = {}
        self.model: Mapping[str, Any] = {}
        self.refuses = ""

    def begin(self, plan: Message) -> Site:
        if self.refuses:
            raise IsthmusError(self.refuses)
        return self.make()

    def check_call(self, message: Message) -> None:
        pass

    def min_parties(self) -> int:
        return 1

    def save_state(self, run: str, mark: str, saved: Mapping[str, Any], keep: Sequence[str]) -> None:
        self.states = {each: state for each, state in self.states.items() if each in keep}
        self.states[mark] = store.pack(saved)

    def load_state(self, run: str, mark: str) -> Mapping[str, Any]:
        if mark not in self.states:
            raise IsthmusError("no state under this mark")
        found: Mapping[str, Any] = store.unpack(self.states[mark])
        return found

    def write_model(self, run: str, weights: wire.Payload, threshold: float | None) -> None:
        self.model = dict(weights)

    def delete_states(self, run: str) -> None:
        self.states.clear()


class Post(InProcessPost):
    """Hands messages over in this process; `replies` has, by party, what comes instead of its own reply.

    A reply may be a text (the party did not answer), or a function of the message and of the party's own reply.
    """

    members: Mapping[str, SiteSide]  # type: ignore[assignment]

    def __init__(self, members: Mapping[str, SiteSide]) -> None:
        super().__init__(members)
        self.replies: dict[str, Any] = {}
        self.sent: list[tuple[str, Message]] = []

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        found: dict[str, Message | str] = {}
        for party, message in messages.items():
            self.sent.append((party, message))
            instead = self.replies.get(party)
            if isinstance(instead, str):
                found[party] = instead
                continue
            found[party] = self.members[party].handle(message)
            if instead is not None:
                reply = instead(message, found[party])
                found[party] = {"nonce": message["nonce"], **reply} if isinstance(reply, dict) else reply
        return found


def transport_of(
    site_of: Callable[..., Site], protect: Protect | None = None, rules: Rules | None = None, **options: Any
) -> tuple[RemoteTransport, Post]:
    """The four small parties behind messages, each with a site that `site_of([party])` makes."""
    parties = small_parties()
    rings = generate_keyrings(tuple(party.name for party in parties))
    sides = {
        party.name: SiteSide(party.name, lambda party=party: site_of([party]), rings[party.name])  # type: ignore[misc]
        for party in parties
    }
    post = Post(sides)
    return RemoteTransport(
        post,
        {"do": "begin", "run": "r"},
        protect=protect or Protect.read({"total": "none"}, "protect"),
        rules=rules,
        **options,
    ), post
