"""Hosts without a network: messages are made bytes and handed over within this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isthmus import store
from isthmus.deploy.hosted import HostSide
from isthmus.deploy.remote import Message, Post


class InBytes(Post):
    """Hands messages to hosts that live here, as bytes, and lets a test meddle with them.

    Arguments:
        side: makes a host.
        meddle: gets the host and a message to it; what it returns is the reply, None lets the host answer.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        side: Callable[[], HostSide],
        meddle: Callable[[str, Message], Message | str | None] = lambda host, message: None,
    ) -> None:
        self.sites = tuple(hosts)
        self.sides = {host: side() for host in hosts}
        self.meddle = meddle
        self.sent: list[tuple[str, Message]] = []

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        return {host: self._one(host, message) for host, message in messages.items()}

    def _one(self, host: str, message: Message) -> Message | str:
        message = store.unpack(store.pack(message))
        self.sent.append((host, message))
        reply = self.meddle(host, message)
        if isinstance(reply, str):
            return reply
        return store.unpack(store.pack(self.sides[host].handle(message) if reply is None else reply))
