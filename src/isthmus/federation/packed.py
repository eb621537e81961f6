"""Requests, replies and mail as bytes: what travels between machines, and through `wire = true` within one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.errors import PayloadError
from isthmus.federation import wire
from isthmus.federation.answers import Letters, Reply
from isthmus.federation.transport import Each
from isthmus.nn.stacks import Column

_WEIGHT_OF = "weight of"
"""The group in which an answer has its weights, beside its fields."""


@dataclass(frozen=True)
class PackedReply:
    """One site's reply as bytes: the answers of its parties, or what they send to others, and who has failed."""

    parties: tuple[str, ...]
    answers: Sequence[bytes]
    letters: Sequence[Mapping[str, bytes | wire.Sealed]] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, action: str, reply: Reply, limit: int) -> PackedReply:
        """A party whose answer cannot be carried is among the failed ones."""
        failures, parties = dict(reply.failures), list[str]()
        answers: list[bytes] = []
        letters: list[Mapping[str, bytes | wire.Sealed]] = []
        for at, party in enumerate(reply.parties):
            try:
                answer = wire.encode(reply.payload(at), limit=limit)
                sent = _packed_letters(reply.letters[at], limit) if reply.letters else {}
            except PayloadError as error:
                failures[party] = f"action '{action}', {error}"
                continue
            parties.append(party)
            answers.append(answer)
            letters.append(sent)
        return cls(tuple(parties), answers, letters if reply.letters else (), failures)

    def open(self, action: str, limit: int) -> Reply:
        """The way back; a party whose bytes are no answer like the first one's is among the failed ones."""
        failures = dict(self.failures)
        fields: dict[str, dict[str, Any]] = {}
        letters: dict[str, Letters] = {}
        for at, party in enumerate(self.parties):
            try:
                found = dict(wire.flatten(wire.decode(self.answers[at], limit=limit)))
                _check_like(found, next(iter(fields.values()), found))
                letters[party] = _opened_letters(self.letters[at], limit) if self.letters else {}
            except PayloadError as error:
                failures[party] = f"action '{action}', {error}"
                continue
            fields[party] = found
        if not fields:
            return Reply((), failures=failures)
        names = next(iter(fields.values()))
        columns: dict[str, Column] = {name: [each[name] for each in fields.values()] for name in names}
        weights: dict[str, Column] = {}
        for path in names:
            group, _, name = path.partition("/")
            if group == _WEIGHT_OF:
                weights["" if name == "all" else name] = columns.pop(path)
        return Reply(tuple(fields), columns, weights, list(letters.values()) if self.letters else (), failures)


def packed_request(request: wire.Payload | Each, of: Sequence[str], limit: int) -> bytes | dict[str, bytes]:
    """One request for all, or one for each of these parties."""
    if isinstance(request, Each):
        return {party: wire.encode(request.payloads[party], limit=limit) for party in of}
    return wire.encode(request, limit=limit)


def opened_request(data: bytes | Mapping[str, bytes], limit: int) -> wire.Payload | Each:
    """The way back from `packed_request`."""
    if isinstance(data, Mapping):
        return Each(_opened(data, limit))
    return wire.decode(data, limit=limit)


def packed_mail(came: Mapping[str, Any], senders: Sequence[str], limit: int) -> bytes | dict[str, bytes]:
    """A sum, or messages by sender: each of these is a payload of its own, and a sender's name is no field."""
    if all(name in senders and isinstance(value, Mapping | wire.Sealed) for name, value in came.items()):
        return {sender: _packed(payload, limit) for sender, payload in came.items()}
    return wire.encode(came, limit=limit)


def opened_mail(data: bytes | Mapping[str, bytes], limit: int) -> Mapping[str, Any]:
    """The way back from `packed_mail`."""
    return _opened(data, limit) if isinstance(data, Mapping) else wire.decode(data, limit=limit)


def _opened(payloads: Mapping[str, bytes], limit: int) -> dict[str, Any]:
    return {name: wire.decode(data, limit=limit) for name, data in payloads.items()}


def _packed(payload: wire.Payload | wire.Sealed, limit: int) -> bytes:
    return payload.data if isinstance(payload, wire.Sealed) else wire.encode(payload, limit=limit)


def _packed_letters(letters: Mapping[str, Any], limit: int) -> dict[str, bytes | wire.Sealed]:
    return {to: _packed(payload, limit) for to, payload in letters.items()}


def _opened_letters(letters: Mapping[str, Any], limit: int) -> dict[str, wire.Payload | wire.Sealed]:
    return {
        name: data if isinstance(data, wire.Sealed) else wire.decode(data, limit=limit)
        for name, data in letters.items()
    }


def _check_like(found: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    if found.keys() != first.keys():
        name = min(found.keys() ^ first.keys())
        raise PayloadError(f"field '{name}' is not in the answers of all parties here")
