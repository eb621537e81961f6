"""Requests, replies and mail as bytes, for other machines and for `wire = true`."""

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
"""The group of an answer that has its weights."""


@dataclass(frozen=True)
class PackedReply:
    """One site's reply as bytes: its parties' answers, or their messages to others, and the failures."""

    parties: tuple[str, ...]
    answers: Sequence[bytes]
    letters: Sequence[Mapping[str, bytes | wire.Sealed]] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, action: str, reply: Reply, limit: int) -> PackedReply:
        """Pack a reply; a party whose answer cannot travel counts as failed."""
        failures, parties = dict(reply.failures), list[str]()
        answers: list[bytes] = []
        letters: list[Mapping[str, bytes | wire.Sealed]] = []
        for at, party in enumerate(reply.parties):
            try:
                answer = wire.encode(reply.payload(at), limit=limit)
                sent = _pack_letters(reply.letters[at], limit) if reply.letters else {}
            except PayloadError as error:
                failures[party] = f"action '{action}', {error}"
                continue
            parties.append(party)
            answers.append(answer)
            letters.append(sent)
        return cls(tuple(parties), answers, letters if reply.letters else (), failures)

    def open(self, action: str, limit: int) -> Reply:
        """Unpack the reply; a party whose bytes are no answer with the first one's fields counts as failed."""
        failures = dict(self.failures)
        fields: dict[str, dict[str, Any]] = {}
        letters: dict[str, Letters] = {}
        for at, party in enumerate(self.parties):
            try:
                found = dict(wire.flatten(wire.decode(self.answers[at], limit=limit)))
                _check_same_fields(found, next(iter(fields.values()), found))
                letters[party] = _open_letters(self.letters[at], limit) if self.letters else {}
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


def pack_request(request: wire.Payload | Each, of: Sequence[str], limit: int) -> bytes | dict[str, bytes]:
    """Pack one request for all, or one for each of these parties."""
    if isinstance(request, Each):
        return {party: wire.encode(request.payloads[party], limit=limit) for party in of}
    return wire.encode(request, limit=limit)


def open_request(data: bytes | Mapping[str, bytes], limit: int) -> wire.Payload | Each:
    """Reverse `pack_request`."""
    if isinstance(data, Mapping):
        return Each(_open_all(data, limit))
    return wire.decode(data, limit=limit)


def pack_mail(came: Mapping[str, Any], senders: Sequence[str], limit: int) -> bytes | dict[str, bytes]:
    """Pack a sum, or messages by sender: each message is a payload, and a sender's name need not be a field's name."""
    if all(name in senders and isinstance(value, Mapping | wire.Sealed) for name, value in came.items()):
        return {sender: _pack(payload, limit) for sender, payload in came.items()}
    return wire.encode(came, limit=limit)


def open_mail(data: bytes | Mapping[str, bytes], limit: int) -> Mapping[str, Any]:
    """Reverse `pack_mail`."""
    return _open_all(data, limit) if isinstance(data, Mapping) else wire.decode(data, limit=limit)


def message_size(value: Any) -> int:
    """Count the bytes in a message."""
    if isinstance(value, Mapping):
        return sum(map(message_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(message_size, value))
    return len(value) if isinstance(value, bytes) else 0


def _open_all(payloads: Mapping[str, bytes], limit: int) -> dict[str, Any]:
    return {name: wire.decode(data, limit=limit) for name, data in payloads.items()}


def _pack(payload: wire.Payload | wire.Sealed, limit: int) -> bytes:
    return payload.data if isinstance(payload, wire.Sealed) else wire.encode(payload, limit=limit)


def _pack_letters(letters: Mapping[str, Any], limit: int) -> dict[str, bytes | wire.Sealed]:
    return {to: _pack(payload, limit) for to, payload in letters.items()}


def _open_letters(letters: Mapping[str, Any], limit: int) -> dict[str, wire.Payload | wire.Sealed]:
    return {
        name: data if isinstance(data, wire.Sealed) else wire.decode(data, limit=limit)
        for name, data in letters.items()
    }


def _check_same_fields(found: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    if found.keys() != first.keys():
        name = min(found.keys() ^ first.keys())
        raise PayloadError(f"field '{name}' is not in the answers of all parties here")
