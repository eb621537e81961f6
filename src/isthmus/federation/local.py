"""All parties in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from isthmus.federation import wire
from isthmus.federation.answers import PartialTotal, Reply
from isthmus.federation.checks import check_reply
from isthmus.federation.packed import PackedReply, open_mail, open_request, pack_mail, pack_request
from isthmus.federation.site import Site
from isthmus.federation.sums import positions_of
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
        self.positions = positions_of(self.parties)

    def send(self, command: Command) -> list[Reply]:
        if command.do == "deliver" and self.wire:
            packed = {party: pack_mail(came, self.parties, self.limit) for party, came in command.payload.items()}
            mail = {party: open_mail(data, self.limit) for party, data in packed.items()}
            command = replace(command, payload=mail)
        asked = set(command.of)
        concerned = [site for site in self.sites if not asked.isdisjoint(site.hosted.names)]
        if command.do != "answer":
            return [site.handle(command) for site in concerned]
        if command.sum_only:
            return [self._sum(command, concerned)]
        return [reply for site in concerned for reply in self._replies(site, command)]

    def _sum(self, command: Command, sites: Sequence[Site]) -> Reply:
        """Check and add up replies as they come; a reply is freed before the next one is computed."""
        total = PartialTotal(self.positions, command.of)
        for site in sites:
            replies = self._replies(site, command)
            while (reply := next(replies, None)) is not None:
                total.add(check_reply(reply, command, self.limit))
                del reply
        return total.reply()

    def _replies(self, site: Site, command: Command) -> Iterator[Reply]:
        asked, request = set(command.of), command.payload
        here = tuple(name for name in site.hosted.names if name in asked)
        if isinstance(request, Each):
            request = Each({name: request.payloads[name] for name in here})
        if not self.wire:
            return site.replies(replace(command, of=here, payload=request))
        request = open_request(pack_request(request, here, self.limit), self.limit)
        return map(
            partial(self._through_bytes, command.action), site.replies(replace(command, of=here, payload=request))
        )

    def _through_bytes(self, action: str, reply: Reply) -> Reply:
        return PackedReply.of(action, reply, self.limit).open(action, self.limit)
