"""Parties on several machines of one owner: each of these hosts a range of the parties, as one site.

Nothing is hidden between machines of one owner. So a message holds tensors as they are, stacks of many parties as
stacks; the engine makes bytes of it (`store.pack`). A host that is lost ends the run: what comes out is the result of
all parties or none, and the last checkpoint, which holds every party's state, serves whatever hosts there are then.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.ledger import Verb
from isthmus.federation.remote import Message, Post
from isthmus.federation.site import Site
from isthmus.federation.verbs import Each, Transport, without
from isthmus.nn.stacks import Column, dense, is_stack

log = logging.getLogger(__name__)


class HostTransport(Transport):
    """Calls one site at every host.

    Arguments:
        post: carries the messages to the hosts.
        held: by host the parties that it holds.
        begin: what every host is told when a run begins.
        seconds: that hosts have for one message.
    """

    def __init__(
        self, post: Post, held: Mapping[str, Sequence[str]], begin: Mapping[str, Message], seconds: float
    ) -> None:
        self.post, self.held, self.seconds = post, held, seconds
        self.parties = tuple(party for parties in held.values() for party in parties)
        self._sent({host: {"do": "begin", **begin[host]} for host in held})

    def call(self, verb: Verb, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
        messages: dict[str, Message] = {}
        for host, here in self._at_hosts(of).items():
            if isinstance(request, Each):
                asks: Message = {"each": {party: request.payloads[party] for party in here}}
            else:
                asks = {"request": request}
            messages[host] = {"do": "call", "action": action, "of": here, **asks}
        return [_reply(said) for said in self._sent(messages).values()]

    def deliver(self, action: str, mail: Mapping[str, Mapping[str, Any]]) -> None:
        """Every host is told, for what came for others under this action before has served."""
        self._sent(
            {
                host: {"do": "deliver", "action": action, "mail": {name: mail[name] for name in names if name in mail}}
                for host, names in self.held.items()
            }
        )

    def save(self) -> dict[str, Any]:
        return self._of_all({"do": "save"})

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._sent(
            {
                host: {"do": "restore", "saved": {party: saved[party] for party in parties}}
                for host, parties in self.held.items()
            }
        )

    def own_weights(self) -> dict[str, Any]:
        return self._of_all({"do": "weights"})

    def _at_hosts(self, parties: Sequence[str]) -> dict[str, list[str]]:
        """By host those of these parties that it holds, in its order."""
        asked = set(parties)
        at = {host: [party for party in held if party in asked] for host, held in self.held.items()}
        return {host: here for host, here in at.items() if here}

    def _of_all(self, message: Message) -> dict[str, Any]:
        """What every host has of each of its parties."""
        said = self._sent(dict.fromkeys(self.held, message))
        return {party: value for each in said.values() for party, value in each["found"].items()}

    def _sent(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Every host's reply, in their order."""
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
    """What a host does with the messages of one server, while its run lasts."""

    def __init__(self) -> None:
        self.site: Site | None = None

    @abstractmethod
    def begin(self, plan: Message) -> Site:
        """The site with this host's parties."""

    def handle(self, message: Message) -> Message:
        """The reply to any message; whatever goes wrong is a reply too."""
        try:
            return self._handle(message)
        except IsthmusError as error:
            return {"wrong": " ".join(str(error).split())}
        except Exception as error:
            log.exception("cannot do what was asked")
            text = " ".join(str(error).split())
            return {"wrong": f"{type(error).__name__}: {text} (the host's own output says more)"}

    def _handle(self, message: Message) -> Message:
        do = message["do"]
        if do == "begin":
            self.site = None  # what the last run held makes room first
            self.site = self.begin(message)
            return {}
        if self.site is None:
            raise IsthmusError("no run has begun here")
        if do == "call":
            return self._called(self.site, message)
        if do == "save":
            return {"found": self.site.save()}
        if do == "weights":
            kept = {party: saved["kept"] for party, saved in self.site.save().items()}
            return {"found": {party: each["weights"] for party, each in kept.items() if "weights" in each}}
        if do == "deliver":
            self.site.deliver(message["action"], message["mail"])
        elif do == "restore":
            self.site.restore(message["saved"])
        else:
            raise IsthmusError(f"a host does not know what '{do}' asks for")
        return {}

    def _called(self, site: Site, message: Message) -> Message:
        request = Each(message["each"]) if "each" in message else message["request"]
        reply = site.answer(message["action"], request, message["of"])
        reply = without(message["action"], reply, reply.not_carried())
        return {
            "parties": reply.parties,
            "columns": _stacks(reply.columns),
            "weights": _stacks(reply.weights),
            "letters": list(reply.letters),
            "failures": reply.failures,
        }


def _stacks(columns: Mapping[str, Column]) -> dict[str, Any]:
    return {name: dense(each) if is_stack(each) else each for name, each in columns.items()}


def _reply(said: Message) -> Reply:
    return Reply(tuple(said["parties"]), said["columns"], said["weights"], said["letters"], said["failures"])
