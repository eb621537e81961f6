"""All parties in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.ledger import Verb
from isthmus.federation.packed import PackedReply, opened_mail, opened_request, packed_mail, packed_request
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
        self.evaluated: Sequence[Reply] = ()
        """What came back from the last evaluation, party by party; only a study has it."""

    def call(self, verb: Verb, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
        asked = set(of)
        replies = []
        for site in self.sites:
            if asked.isdisjoint(site.hosted.names):
                continue
            here = [name for name in site.hosted.names if name in asked]
            asks = Each({name: request.payloads[name] for name in here}) if isinstance(request, Each) else request
            if self.wire:
                asks = opened_request(packed_request(asks, here, self.limit), self.limit)
            reply = site.answer(action, asks, here)
            replies.append(PackedReply.of(action, reply, self.limit).open(action, self.limit) if self.wire else reply)
        if action == "evaluate":
            self.evaluated = replies
        return replies

    def deliver(self, action: str, mail: Mapping[str, Mapping[str, Any]]) -> None:
        if self.wire:
            packed = {party: packed_mail(came, self.parties, self.limit) for party, came in mail.items()}
            mail = {party: opened_mail(data, self.limit) for party, data in packed.items()}
        for site in self.sites:
            site.deliver(action, mail)

    def save(self) -> dict[str, Any]:
        return {party: saved for site in self.sites for party, saved in site.save().items()}

    def own_weights(self) -> dict[str, Any]:
        return {party: each["kept"]["weights"] for party, each in self.save().items() if "weights" in each["kept"]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        for site in self.sites:
            site.restore(saved)
