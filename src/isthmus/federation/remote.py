"""Parties on other machines: the messages between the two sides, whatever engine carries them.

An engine has one duty, `Post.send`. A message is a mapping of texts, whole numbers, bytes, and lists and mappings of
these; what parties say in it is bytes that `wire` checks. Every reply says how many actions its parties have answered,
so that a party that has lost its state is found out before its answer is used.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.ledger import Verb
from isthmus.federation.packed import PackedReply, opened_mail, opened_request, packed_mail, packed_request
from isthmus.federation.verbs import Each, Transport

log = logging.getLogger(__name__)

Message = dict[str, Any]
GREETING = 5.0
"""Seconds that a party which did not answer before has to say that it is there again."""
GLANCE = 0.02
"""Seconds that others wait for it to say so."""


class Post(ABC):
    """How messages get to the sites on other machines: the one thing that an engine does."""

    sites: tuple[str, ...]
    """Names of the sites; each hosts the party of its name."""

    @abstractmethod
    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        """Send every named site its message at once; its reply, or why there is none after so many seconds."""


class Nearby(Post):
    """Hands messages to parties in this process."""

    def __init__(self, parties: Mapping[str, PartySide]) -> None:
        self.members = dict(parties)
        self.sites = tuple(parties)

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        return {party: self.members[party].handle(message) for party, message in messages.items()}


class Present(Protocol):
    """What stands at a party while a federation runs: a method's `Site`, or what comes before it."""

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply: ...

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None: ...

    def save(self) -> dict[str, Any]: ...

    def restore(self, saved: Mapping[str, Any]) -> None: ...


class RemoteTransport(Transport):
    """Calls sites on other machines.

    A site that does not answer in time is out until it says that it is there again; nobody waits for it twice. What
    it then needs is `begin`, and its state as it was last saved.

    Arguments:
        post: carries the messages.
        begin: what a party is told when a run begins; sent again to one that comes back.
        seconds: that parties have for an action.
        limit: largest payload, in bytes.
    """

    def __init__(self, post: Post, begin: Message, *, seconds: float = 600.0, limit: int = wire.LIMIT) -> None:
        self.post = post
        self.begin = begin
        self.seconds = seconds
        self.limit = limit
        self.parties = post.sites
        self.answered = dict.fromkeys(self.parties, 0)
        self.out: dict[str, str] = {}
        self.marks = 0
        self._greeter = ThreadPoolExecutor(1, thread_name_prefix="greeter")
        self._greeting: Future[dict[str, Message | str]] | None = None
        for party, reply in self._sent(dict.fromkeys(self.parties, begin)).items():
            if isinstance(reply, str):
                self.out[party] = reply

    def call(self, verb: Verb, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
        self._welcome()
        asked = [party for party in of if party not in self.out]
        packed = packed_request(request, asked, self.limit)
        head = {"do": "call", "verb": verb, "action": action, "under": len(of)}
        messages = {
            party: {**head, "request": {party: packed[party]} if isinstance(packed, dict) else packed}
            for party in asked
        }
        replies = [self._reply(party, action, reply) for party, reply in self._sent(messages).items()]
        away = {party: f"action '{action}', out: {self.out[party]}" for party in of if party not in asked}
        return [*replies, Reply((), failures=away)] if away else replies

    def deliver(self, action: str, mail: Mapping[str, Mapping[str, Any]]) -> None:
        here = {party: came for party, came in mail.items() if party not in self.out}
        messages = {
            party: {"do": "deliver", "action": action, "mail": packed_mail(came, self.parties, self.limit)}
            for party, came in here.items()
        }
        for party, reply in self._sent(messages).items():
            if isinstance(reply, str):
                self._lose(party, reply)

    def save(self) -> dict[str, Any]:
        """Every party keeps its state on its own machine, under a mark; the mark is all that comes here."""
        self.marks += 1
        here = [party for party in self.parties if party not in self.out]
        self._tell(here, {"do": "save", "mark": self.marks})
        return {"mark": self.marks, "answered": dict(self.answered), "out": dict(self.out)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.marks = int(saved["mark"])
        self.answered = {party: int(count) for party, count in saved["answered"].items()}
        for party in self.parties:
            if party not in self.out:
                self._call_back(party)

    def own_weights(self) -> dict[str, Any]:
        """Parties that keep models of their own keep them on their own machines."""
        self._tell([party for party in self.parties if party not in self.out], {"do": "choose"})
        return {}

    # ---- who is there

    def _welcome(self) -> None:
        """Take back those who were out and are there again; what they say is listened for while the others go on."""
        if not self.out:
            return
        if self._greeting is None:
            greetings: dict[str, Message] = {party: {"do": "greet"} for party in self.out}
            self._greeting = self._greeter.submit(self._sent, greetings, GREETING)
        try:
            said = self._greeting.result(GLANCE)
        except TimeoutError:
            return
        self._greeting = None
        for party, reply in said.items():
            if isinstance(reply, str) or party not in self.out:
                continue
            if reply.get("run") == self.begin["run"]:  # it was only slow, or cut off
                del self.out[party]
                self.answered[party] = int(reply.get("answered", 0))
                log.warning("party '%s' is back", party)
                continue
            found = self._sent({party: self.begin})[party]
            if not isinstance(found, str):
                del self.out[party]
                self._call_back(party)

    def _call_back(self, party: str) -> None:
        """Have a party go on from the state that it saved last."""
        if not self.marks:
            self.answered[party] = 0
            return
        reply = self._sent({party: {"do": "restore", "mark": self.marks}})[party]
        if isinstance(reply, str):
            self._lose(party, reply)
        else:
            self.answered[party] = int(reply["answered"])
            log.warning("party '%s' goes on from its state", party)

    def _lose(self, party: str, why: str) -> None:
        self.out[party] = why
        log.warning("party '%s' is out: %s", party, why)

    # ---- messages

    def _tell(self, parties: Sequence[str], message: Message) -> None:
        """Tell them something that needs no answer but that it came."""
        for party, reply in self._sent(dict.fromkeys(parties, message)).items():
            if isinstance(reply, str):
                self._lose(party, reply)

    def _sent(self, messages: Mapping[str, Message], seconds: float | None = None) -> dict[str, Message | str]:
        """Replies in the order of the parties; one that says that something is wrong is the text that it says."""
        found = self.post.send(messages, self.seconds if seconds is None else seconds) if messages else {}
        replies: dict[str, Message | str] = {}
        for party in messages:
            reply = found.get(party, "no reply")
            if not isinstance(reply, str) and (not isinstance(reply, dict) or "wrong" in reply):
                reply = str(reply.get("wrong")) if isinstance(reply, dict) else "a reply that is no message"
            replies[party] = reply
        return replies

    def _reply(self, party: str, action: str, reply: Message | str) -> Reply:
        if isinstance(reply, str):
            self._lose(party, reply)
            return Reply((), failures={party: f"action '{action}', {reply}"})
        try:
            found = PackedReply(
                tuple(reply["parties"]), list(reply["answers"]), list(reply["letters"]), dict(reply["failures"])
            ).open(action, self.limit)
            answered = int(reply["answered"])
        except (KeyError, TypeError, ValueError):
            return Reply((), failures={party: f"action '{action}', a reply that is no message"})
        if set(found.parties) | set(found.failures) != {party}:
            return Reply((), failures={party: f"action '{action}', a reply for other parties"})
        if not found.parties:
            self.answered[party] = answered
            return found
        if answered != self.answered[party] + 1:
            why = f"its state is after {answered} actions, not after {self.answered[party] + 1}: it was lost"
            return Reply((), failures={party: f"action '{action}', {why}"})
        self.answered[party] = answered
        return found


class PartySide(ABC):
    """What a party's machine does with the messages that come; the engine hands them on as they are.

    Arguments:
        name: of the party.
        limit: largest payload, in bytes.
    """

    def __init__(self, name: str, *, limit: int = wire.LIMIT) -> None:
        self.name = name
        self.limit = limit
        self.run = ""
        self.present: Present | None = None

    @abstractmethod
    def begin(self, plan: Message) -> Present:
        """What stands at this party from now on."""

    @abstractmethod
    def permit(self, message: Message) -> None:
        """An error for what the party's limits do not allow."""

    @abstractmethod
    def keep(self, run: str, mark: int, saved: Mapping[str, Any]) -> None:
        """Put a state aside on this machine."""

    @abstractmethod
    def choose(self, run: str, weights: wire.Payload) -> None:
        """Write down the party's own model, which is the best so far."""

    @abstractmethod
    def kept(self, run: str, mark: int) -> Mapping[str, Any]:
        """The state put aside under this mark."""

    def handle(self, message: Message) -> Message:
        """The reply to any message; whatever goes wrong is a reply too."""
        try:
            return self._handle(message)
        except IsthmusError as error:
            return {"wrong": " ".join(str(error).split())}
        except Exception as error:  # a foreign text may quote data: it stays in the log of this machine
            log.exception("party '%s'", self.name)
            return {"wrong": f"{type(error).__name__} (the log at the party says more)"}

    def _handle(self, message: Message) -> Message:
        do = message.get("do")
        if do == "greet":
            return {"run": self.run, "answered": self._answered()}
        if do == "begin":
            self.present, self.run = None, ""  # a plan that is refused leaves nothing of the one before
            self.permit(message)
            self.present, self.run = self.begin(message), str(message["run"])
            return {"answered": 0}
        if self.present is None:
            raise IsthmusError(f"party '{self.name}' has not begun this run")
        self.permit(message)
        if do == "call":
            return self._called(self.present, str(message["action"]), message["request"])
        if do == "deliver":
            self.present.deliver(str(message["action"]), {self.name: opened_mail(message["mail"], self.limit)})
        elif do == "save":
            self.keep(self.run, int(message["mark"]), self.present.save())
        elif do == "choose":
            kept = self.present.save().get(self.name, {}).get("kept", {})
            if "weights" in kept:
                self.choose(self.run, kept["weights"])
        elif do == "restore":
            self.present.restore(self.kept(self.run, int(message["mark"])))
        else:
            raise IsthmusError(f"party '{self.name}' does not know what '{do}' asks for")
        return {"answered": self._answered()}

    def _called(self, present: Present, action: str, request: Any) -> Message:
        reply = present.answer(action, opened_request(request, self.limit), (self.name,))
        packed = PackedReply.of(action, reply, self.limit)
        return {
            "parties": list(packed.parties),
            "answers": list(packed.answers),
            "letters": [dict(each) for each in packed.letters],
            "failures": dict(packed.failures),
            "answered": self._answered(),
        }

    def _answered(self) -> int:
        return sum(getattr(self.present, "answered", ()))
