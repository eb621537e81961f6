"""All parties in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import PayloadError
from isthmus.federation import wire
from isthmus.federation.answers import Column, Reply
from isthmus.federation.site import Site
from isthmus.federation.verbs import Each, Transport


class LocalTransport(Transport):
    """Calls sites that live here.

    Arguments:
        sites: each hosts one party or several.
        wire: every payload really goes through bytes, as between machines; results are the same.
        limit: largest payload, in bytes.
    """

    def __init__(self, sites: Sequence[Site], *, wire: bool = False, limit: int = wire.LIMIT) -> None:
        self.sites = tuple(sites)
        self.wire = wire
        self.limit = limit
        self.parties = tuple(name for site in self.sites for name in site.hosted.names)

    def call(self, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
        asked = set(of)
        replies = []
        for site in self.sites:
            if asked.isdisjoint(site.hosted.names):
                continue
            here = [name for name in site.hosted.names if name in asked]
            asks = Each({name: request.payloads[name] for name in here}) if isinstance(request, Each) else request
            reply = site.answer(action, self._through_bytes(asks) if self.wire else asks, here)
            replies.append(self._through_wire(action, reply) if self.wire else reply)
        return replies

    def deliver(self, action: str, mail: Mapping[str, Mapping[str, Any]]) -> None:
        if self.wire:
            mail = {party: self._copied_mail(payload) for party, payload in mail.items()}
        for site in self.sites:
            site.deliver(action, mail)

    def save(self) -> dict[str, Any]:
        return {party: saved for site in self.sites for party, saved in site.save().items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        for site in self.sites:
            site.restore(saved)

    def _copied_mail(self, came: Mapping[str, Any]) -> Mapping[str, Any]:
        """A sum, or messages by sender: each of these is a payload of its own, and a sender's name is no field."""
        if all(name in self.parties and isinstance(value, Mapping) for name, value in came.items()):
            return {sender: _copy(payload, self.limit) for sender, payload in came.items()}
        return _copy(came, self.limit)

    def _through_bytes(self, request: wire.Payload | Each) -> wire.Payload | Each:
        if isinstance(request, Each):
            return Each({party: _copy(payload, self.limit) for party, payload in request.payloads.items()})
        return _copy(request, self.limit)

    def _through_wire(self, action: str, reply: Reply) -> Reply:
        """The reply as it arrives: every party's payload encoded and decoded, who cannot be carried named."""
        payloads: dict[str, dict[str, Any]] = {}
        letters: list[Mapping[str, wire.Payload]] = []
        failures = dict(reply.failures)
        for at, party in enumerate(reply.parties):
            try:
                decoded = _copy(reply.payload(at), self.limit)
                sent = {to: _copy(p, self.limit) for to, p in reply.letters[at].items()} if reply.letters else {}
            except PayloadError as error:
                failures[party] = f"action '{action}', {error}"
                continue
            payloads[party] = dict(wire.flatten(decoded))
            letters.append(sent)
        arrived = tuple(payloads)
        if not arrived:
            return Reply((), failures=failures)
        weight_of = "weight of/"
        columns: dict[str, Column] = {n: [payloads[party][n] for party in arrived] for n in reply.columns}
        weights: dict[str, Column] = {
            n: [payloads[party][f"{weight_of}{n or 'all'}"] for party in arrived] for n in reply.weights
        }
        return Reply(arrived, columns, weights, letters if reply.letters else (), failures)


def _copy(payload: wire.Payload, limit: int) -> dict[str, Any]:
    return wire.decode(wire.encode(payload, limit=limit), limit=limit)
