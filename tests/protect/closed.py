"""Protected totals without an engine and without methods: parties with fixed answers, and a server that keeps all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import IdUnion, PlainTotal, Reply
from isthmus.federation.transport import TotalRequest, TotalResult
from isthmus.protect.base import Guard, Message
from isthmus.protect.options import Protection
from isthmus.protect.sealing import Channel, generate_keyrings

Meddler = Callable[[str, Message], Message | str | None]
"""Gets the party and a message to it; what it returns is the reply, None lets the party answer."""


class Table:
    """A server and parties at one table.

    Arguments:
        replies: by party its answer, whatever it is asked.
        min_parties: parties that must be in a sum, as each party has it.
    """

    def __init__(
        self,
        protection: str,
        replies: Mapping[str, Reply],
        *,
        meddle: Meddler | None = None,
        wrong: Callable[..., str] = lambda *sum_of: "",
        tries: int = 5,
        min_parties: int = 1,
        **options: Any,
    ) -> None:
        kind = Protection.named(protection).read(options, protection)
        self.parties, self.limit = tuple(replies), wire.LIMIT
        self.replies, self.meddle = dict(replies), meddle
        channels = {party: Channel(ring, "run") for party, ring in generate_keyrings(self.parties).items()}
        for party, channel in channels.items():
            channel.set_sessions({other: each.session for other, each in channels.items() if other != party})
        self.guards: dict[str, Guard] = {}
        for party, channel in channels.items():
            guard = kind.guard(channel, min_parties)
            assert guard is not None
            self.guards[party] = guard
        sums = kind.sums(self, wrong, tries)
        assert sums is not None
        self.sums = sums
        self.gone: dict[str, str] = {}
        self.seen: list[tuple[str, Message, Message]] = []
        self.delivered: dict[str, Mapping[str, Any]] = {}

    def reachable(self, asked: Sequence[str]) -> tuple[str, ...]:
        return tuple(party for party in asked if party not in self.gone)

    def unreachable(self, asked: Sequence[str]) -> dict[str, str]:
        return {party: self.gone[party] for party in asked if party in self.gone}

    def send_step(self, action: str, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
        found: dict[str, Message] = {}
        missing: dict[str, str] = {}
        for party, message in messages.items():
            reply = self.meddle(party, message) if self.meddle else None
            if isinstance(reply, str):
                self.gone[party] = missing[party] = reply
                continue
            try:
                found[party] = self.answer(party, message) if reply is None else reply
            except IsthmusError as error:
                missing[party] = str(error)
                continue
            self.seen.append((party, message, found[party]))
        return found, missing

    def answer(self, party: str, message: Message) -> Message:
        guard = self.guards[party]
        if message["do"] == "call":
            reply = self.replies[party]
            kept = Reply(reply.parties, dict(reply.columns), dict(reply.weights))
            return guard.close_answer(kept, message, self.limit)
        if message["do"] == "deliver":
            self.delivered[party] = guard.read_total(message["shield"], self.limit)
            return {}
        if message["step"] == "again":
            return guard.close_again(message["shield"], self.limit)
        return guard.answer_step(message)

    def total(
        self,
        request: Mapping[str, Any] | None = None,
        *,
        rows: IdUnion | None = None,
        to: Any = "server",
        min_contributors: int = 1,
    ) -> TotalResult:
        return self.sums.total(TotalRequest("say", request or {}, self.parties, to, rows, min_contributors))

    def plain(self, of: Sequence[str], rows: IdUnion | None = None, min_contributors: int = 1) -> PlainTotal:
        """The same total, added up of what parties say."""
        kept = []
        for party in of:
            reply = self.replies[party]
            columns = {name: column for name, column in reply.columns.items() if name != "wants"}
            kept.append(Reply(reply.parties, columns, reply.weights))
        return PlainTotal(kept, of, rows, min_contributors)
