"""Parties on several machines of one owner: each of these hosts a range of the parties, as one site.

Machines of one owner hide nothing from each other, so messages hold plain tensors and stacks, which the engine encodes
with `store.pack`. A lost host stops the run. Dropping its parties instead would make a result depend on the machines;
the last checkpoint has the state of every party, so the run resumes on any hosts.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.deploy.remote import Message, Post
from isthmus.errors import IsthmusError
from isthmus.federation.answers import Reply
from isthmus.federation.checks import leave_out
from isthmus.federation.site import Site
from isthmus.federation.transport import Command, Each, Transport
from isthmus.nn.stacks import Column, dense, is_stack

log = logging.getLogger(__name__)


class HostTransport(Transport):
    """Calls one site at every host.

    Arguments:
        post: carries the messages to the hosts.
        held: by host the parties that it holds.
        begin: by host the message with which a run begins.
        seconds: time that hosts have for one message.
    """

    def __init__(
        self, post: Post, held: Mapping[str, Sequence[str]], begin: Mapping[str, Message], seconds: float
    ) -> None:
        self.post, self.held, self.seconds = post, held, seconds
        self.parties = tuple(party for parties in held.values() for party in parties)
        self._sent({host: {"do": "begin", **begin[host]} for host in held})

    def send(self, command: Command) -> list[Reply]:
        messages: dict[str, Message] = {}
        for host, names in self.held.items():
            here = tuple(party for party in names if party in command.of)
            # every host gets a delivery, because it replaces the one before under the same action
            if here or command.do == "deliver":
                messages[host] = _message(command, here)
        return [_reply(said) for said in self._sent(messages).values()]

    def _sent(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Send messages to hosts and return their replies in the same order."""
        found = self.post.send(messages, self.seconds)
        for host, reply in found.items():
            if isinstance(reply, str):
                raise IsthmusError(
                    f"host '{host}' is lost: {reply}; start it again, and with --out and --resume the run goes on "
                    "from its last checkpoint"
                )
            if "wrong" in reply:
                raise IsthmusError(f"host '{host}': {reply['wrong']}")
        return {host: found[host] for host in messages}  # type: ignore[misc]


class HostSide(ABC):
    """Answers the messages of one server at a host, while a run lasts."""

    def __init__(self) -> None:
        self.site: Site | None = None

    @abstractmethod
    def begin(self, plan: Message) -> Site:
        """Return the site with this host's parties."""

    def handle(self, message: Message) -> Message:
        """Reply to any message; an error is a reply too."""
        try:
            return self._handle(message)
        except IsthmusError as error:
            return {"wrong": " ".join(str(error).split())}
        except Exception as error:
            log.exception("a message failed")
            text = " ".join(str(error).split())
            return {"wrong": f"{type(error).__name__}: {text} (the host's own output says more)"}

    def _handle(self, message: Message) -> Message:
        if message["do"] == "begin":
            self.site = None  # free the memory of the last run first
            self.site = self.begin(message)
            return {}
        if self.site is None:
            raise IsthmusError("no run has begun here")
        request = Each(message["each"]) if "each" in message else message["payload"]
        action = message["action"]
        reply = self.site.handle(Command(message["do"], tuple(message["of"]), action, payload=request))
        reply = leave_out(action, reply, reply.unsendable())
        return {
            "parties": reply.parties,
            "columns": _stacks(reply.columns),
            "weights": _stacks(reply.weights),
            "letters": list(reply.letters),
            "failures": reply.failures,
            "state": reply.state,
        }


def _message(command: Command, here: tuple[str, ...]) -> Message:
    """Return the part of a command that concerns one host's parties."""
    message: Message = {"do": command.do, "action": command.action, "of": here}
    if isinstance(command.payload, Each):
        return {**message, "each": {party: command.payload.payloads[party] for party in here}}
    if command.do in ("deliver", "restore"):
        return {**message, "payload": {party: command.payload[party] for party in here if party in command.payload}}
    return {**message, "payload": command.payload}


def _stacks(columns: Mapping[str, Column]) -> dict[str, Any]:
    return {name: dense(each) if is_stack(each) else each for name, each in columns.items()}


def _reply(said: Message) -> Reply:
    return Reply(
        tuple(said["parties"]), said["columns"], said["weights"], said["letters"], said["failures"], said["state"]
    )
