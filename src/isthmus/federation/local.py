"""All parties in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from isthmus.federation import wire
from isthmus.federation.answers import PartialTotal, Reply
from isthmus.federation.checks import check_reply
from isthmus.federation.packed import PackedReply, open_mail, open_request, pack_mail, pack_request
from isthmus.federation.site import Site
from isthmus.federation.sums import positions_of
from isthmus.federation.transport import Command, Each, Transport

Value = TypeVar("Value")


class LocalTransport(Transport):
    """Calls sites that live here.

    Arguments:
        sites: each hosts one party or several.
        parties: all of them in the federation's order; without it, in the order of the sites.
        positions: by party its position among all of the federation, if this transport reaches only some.
        wire: encode every payload as bytes and decode it again, as between machines; results are the same.
        limit: largest payload, in bytes.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        parties: Sequence[str] | None = None,
        *,
        positions: Mapping[str, int] | None = None,
        wire: bool = False,
        limit: int = wire.LIMIT,
    ) -> None:
        self.sites = tuple(sites)
        self.wire = wire
        self.limit = limit
        self.parties = tuple(parties or (name for site in self.sites for name in site.hosted.names))
        self.positions = positions_of(self.parties) if positions is None else positions

    def send(self, command: Command) -> list[Reply]:
        if command.do == "deliver" and self.wire:
            packed = {party: pack_mail(came, self.parties, self.limit) for party, came in command.payload.items()}
            mail = {party: open_mail(data, self.limit) for party, data in packed.items()}
            command = replace(command, payload=mail)
        asked = set(command.of)
        concerned = [site for site in self.sites if not asked.isdisjoint(site.hosted.names)]
        if command.do != "answer":
            return [site.handle(command) for site in concerned]
        for site in concerned[:1]:  # all are of one method
            assert command.verb is not None
            site.binding(command.action).permit(command.action, command.verb, command.to)
        if command.sum_only:
            return [self._sum(command, concerned)]
        return list(self._replies(command, concerned))

    def _sum(self, command: Command, sites: Sequence[Site]) -> Reply:
        """Check and add up replies as they come; a reply is freed before the next one is computed."""
        total = PartialTotal(self.positions, command.among or command.of)
        replies = self._replies(command, sites)
        while (reply := next(replies, None)) is not None:
            total.add(check_reply(reply, command, self.limit, self.positions))
            del reply
        return total.reply()

    def _replies(self, command: Command, sites: Sequence[Site]) -> Iterator[Reply]:
        """One reply per site. If several parties were asked and none can answer, the first site's error is raised."""
        asked, request, first, answered = set(command.of), command.payload, None, False
        for site in sites:
            here = tuple(name for name in site.hosted.names if name in asked)
            own = Each({name: request.payloads[name] for name in here}) if isinstance(request, Each) else request
            if self.wire:
                own = open_request(pack_request(own, here, self.limit), self.limit)
            reply, error = site.attempt(command.action, own, here)
            if len(self.sites) > 1:
                site.free()
            answered = answered or bool(reply.parties)
            first, error = None if answered else first or error, None  # an error holds the memory of its attempt
            if self.wire:
                reply = PackedReply.of(command.action, reply, self.limit).open(command.action, self.limit)
            yield reply
            del reply
        if first is not None and len(asked) > 1:
            raise first
        for site in sites:
            site.log_failures()

    def by_party(self, function: Callable[[Site], Sequence[Value]]) -> list[Value]:
        """What a function gives for the parties of each site, in the federation's order."""
        found = {
            party: value for site in self.sites for party, value in zip(site.hosted.names, function(site), strict=True)
        }
        return [found[party] for party in self.parties]
