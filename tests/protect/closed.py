"""Protected totals without an engine and without methods: parties with fixed answers, and a server that keeps all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Answer, IdUnion, PlainTotal, Reply
from isthmus.federation.sums import positions_of
from isthmus.federation.transport import TotalRequest, TotalResult
from isthmus.protect.base import Guard, Message
from isthmus.protect.masks import MaskingGuard
from isthmus.protect.options import Protection
from isthmus.protect.sealing import Channel, generate_keyrings

NAMES = tuple("abcdefgh")
KINDS = ("masks", "ckks")
LAST = ("confirm", "open")
"""Steps that open a closed sum."""
NEAR = {"masks": 2e-8, "ckks": 2e-6}
UNION = IdUnion(torch.tensor([3, 5, 8, 11]), torch.tensor([2, 2, 2, 2]))

Meddler = Callable[[str, Message], Message | str | None]
"""Gets the party and a message to it; what it returns is the reply, None lets the party answer."""


class Table:
    """A server and parties at one table.

    Arguments:
        replies: by party its answer, whatever it is asked.
        min_parties: parties that must be in a sum, as each party has it.
        contributors: parties that must contribute to a sum or to a row of it, as each party has it.
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
        contributors: int = 1,
        **options: Any,
    ) -> None:
        kind = Protection.named(protection).read(options, protection)
        self.parties, self.limit = tuple(replies), wire.LIMIT
        self.replies, self.meddle, self.contributors = dict(replies), meddle, contributors
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
            return guard.close_answer(kept, message, self.limit, contributors=self.contributors)
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
        return PlainTotal(kept, positions_of(self.parties), rows, min_contributors)


def weights_of(parties: int, seed: int = 0) -> dict[str, Reply]:
    """Model weights, weighted by counts, and a metric's counts."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: Reply.of(
            name,
            Answer(
                {
                    "weights": {"w": torch.randn(1, 4, 3, generator=draw), "b": torch.randn(1, 3, generator=draw)},
                    "right": torch.randint(0, 50, (1, 2), generator=draw),
                    "loss": torch.rand(1, generator=draw, dtype=torch.float64),
                },
                {"weights": torch.randint(0, 9, (1,), generator=draw).double()},
            ),
        )
        for name in NAMES[:parties]
    }


def rows_of(parties: int, seed: int = 0, wants: bool = False) -> dict[str, Reply]:
    """Rows of a union, each party two of them, with a weight for each."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for at, name in enumerate(NAMES[:parties]):
        ids = UNION.ids[[at % 4, (at + 1) % 4]].unsqueeze(0)
        fields = {"ids": ids, "x": torch.randn(1, 2, 5, generator=draw)}
        more = {"wants": UNION.ids[[(at + 2) % 4, at % 4, 1]].unsqueeze(0)} if wants else {}
        found[name] = Reply.of(name, Answer({**fields, **more}, torch.tensor([[1.0, float(at % 3)]])))
    return found


def same(found: Any, due: Any, near: float) -> None:
    mine, theirs = dict(wire.flatten(found)), dict(wire.flatten(due))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype
        assert torch.allclose(value.double(), theirs[name].double(), atol=near, rtol=1e-6), name


def at_step(party: str, step: str) -> Any:
    def meddle(to: str, message: Message) -> Message | str | None:
        return "gone" if to == party and message.get("step", message["do"]) == step else None

    return meddle


def bytes_in(value: Any) -> Iterator[bytes]:
    """All bytes in a message."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from bytes_in(each)
    elif isinstance(value, bytes):
        yield value


def everything(table: Table) -> bytes:
    """All bytes that the server has sent or got."""
    return b"|".join(each for _, *both in table.seen for each in bytes_in(both))


def sets_opened(table: Table) -> list[tuple[str, ...]]:
    """The parties of every sum that was to be opened."""
    step = "confirm" if any(m.get("step") == "confirm" for _, m, _ in table.seen) else "open"
    return [tuple(m["in"]) for _, m, _ in table.seen if m.get("step") == step]


def opened(table: Table, party: str, of: Sequence[str], **more: Any) -> Message:
    """What a party says that is to open its last sum as one over these parties, which all of them confirm."""
    at = next(m["shield"] for to, m, _ in reversed(table.seen) if to == party and m["do"] == "call")
    head = {"do": "shield", "agreement": at["agreement"]} | ({"at": at["at"]} if "at" in at else {})
    if not isinstance(table.guards[party], MaskingGuard):
        return table.guards[party].answer_step({**head, "step": "open", "in": list(of), "what": "sums", **more})
    said = {each: confirmed(table, each, of, head) for each in of}
    return table.guards[party].answer_step({**head, "step": "open", "confirmed": for_party(party, said), **more})


def confirmed(table: Table, party: str, of: Sequence[str], head: Message) -> Message:
    """The envelopes in which a party tells the others that these parties are in a masked sum."""
    envelopes: Message = table.guards[party].answer_step({**head, "step": "confirm", "in": list(of)})["confirmed"]
    return envelopes


def for_party(party: str, said: Mapping[str, Message]) -> dict[str, bytes]:
    return {other: envelopes[party] for other, envelopes in said.items() if party in envelopes}


def closed_only(kind: str = "masks", parties: int = 4, **options: Any) -> Table:
    """Parts are closed, and nothing is opened."""
    table = Table(
        kind,
        weights_of(parties),
        meddle=lambda to, m: "gone" if m.get("step") in LAST else None,
        **options,
    )
    with pytest.raises(TooFewAnswers):
        table.total()
    return table


def fields_of(reply: Reply) -> dict[str, Any]:
    return wire.unflatten(reply.columns)
