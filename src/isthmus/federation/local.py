"""All parties in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.packed import PackedReply, open_mail, open_request, pack_mail, pack_request
from isthmus.federation.site import Site
from isthmus.federation.transport import Command, Each, Transport


class LocalTransport(Transport):
    """Calls sites that live here.

    Arguments:
        sites: each hosts one party or several.
        wire: encode every payload as bytes and decode it again, as between machines; results are the same.
        limit: largest payload, in bytes.
    """

    def __init__(self, sites: Sequence[Site], *, wire: bool = False, limit: int = wire.LIMIT) -> None:
        self.sites = tuple(sites)
        self.wire = wire
        self.limit = limit
        self.parties = tuple(name for site in self.sites for name in site.hosted.names)

    def send(self, command: Command) -> list[Reply]:
        if command.do == "deliver" and self.wire:
            packed = {party: pack_mail(came, self.parties, self.limit) for party, came in command.payload.items()}
            mail = {party: open_mail(data, self.limit) for party, data in packed.items()}
            command = replace(command, payload=mail)
        asked = set(command.of)
        concerned = [site for site in self.sites if not asked.isdisjoint(site.hosted.names)]
        return [self._answer(site, command) if command.do == "answer" else site.handle(command) for site in concerned]

    def _answer(self, site: Site, command: Command) -> Reply:
        asked, request = set(command.of), command.payload
        here = tuple(name for name in site.hosted.names if name in asked)
        if isinstance(request, Each):
            request = Each({name: request.payloads[name] for name in here})
        if not self.wire:
            return site.handle(replace(command, of=here, payload=request))
        request = open_request(pack_request(request, here, self.limit), self.limit)
        reply = site.handle(replace(command, of=here, payload=request))
        return PackedReply.of(command.action, reply, self.limit).open(command.action, self.limit)
