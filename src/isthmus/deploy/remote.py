"""Parties on other machines: the messages between the two sides, whatever engine carries them.

An engine has one duty, `Post.send`. A message is a mapping of texts, whole numbers, bytes, and lists and mappings of
these; what parties say in it is bytes that `wire` checks. Every reply says how many actions its parties have answered,
so that a party that has lost its state is found out before its answer is used.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply, Total
from isthmus.federation.ledger import Verb
from isthmus.federation.packed import PackedReply, opened_mail, opened_request, packed_mail, packed_request
from isthmus.federation.rules import Rules
from isthmus.federation.transport import Command, Each, Transport
from isthmus.federation.verbs import not_due
from isthmus.nn.stacks import slice_of
from isthmus.protect.options import Protect

if TYPE_CHECKING:
    from isthmus.protect.base import Guard
    from isthmus.protect.sealing import Channel, Keyring

log = logging.getLogger(__name__)

Message = dict[str, Any]
MOST_SAID = 300
"""Letters of what a party says of itself that are shown."""
LONGEST = 4000
"""Characters of what a party says of the fields in an envelope."""
LARGE_MEAN = 20.0
"""How many times as large as what was sent a mean of answers may be, however many parties it is over."""
GREETING = 5.0
"""Seconds that a party which did not answer before has to say that it is there again."""
GLANCE = 0.02
"""Seconds that others wait for it to say so."""


class Refusal(str):
    """What a party says is wrong, where it has answered at all.

    Attributes:
        begun: whether it has begun the run; one whose process was started anew has not.
        answered: how many actions it has answered.
    """

    begun: bool = True
    answered: Any = None


class Post(ABC):
    """How messages get to the sites on other machines: the one thing that an engine does."""

    sites: tuple[str, ...]
    """Names of the sites; each hosts the party of its name."""

    @abstractmethod
    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        """Send every named site its message at once; its reply, or why there is none after so many seconds."""


class InProcessPost(Post):
    """Hands messages to parties in this process."""

    def __init__(self, parties: Mapping[str, PartySide]) -> None:
        self.members = dict(parties)
        self.sites = tuple(parties)

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        return {party: self.members[party].handle(message) for party, message in messages.items()}


class ActionHandler(Protocol):
    """What stands at a party while a federation runs: a method's `Site`, or what comes before it."""

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply: ...

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None: ...

    def save(self) -> dict[str, Any]: ...

    def restore(self, saved: Mapping[str, Any]) -> None: ...

    def models(self) -> Mapping[str, Mapping[str, Any]]: ...


class RemoteTransport(Transport):
    """Calls sites on other machines.

    A site that does not answer in time is out until it says that it is there again; nobody waits for it twice. It then
    gets what was delivered meanwhile; one whose process was started anew also needs `begin`, and its state as it was
    last saved. One that refuses to begin stays out.

    Arguments:
        post: carries the messages.
        begin: what a party is told when a run begins; sent again to one that comes back.
        protect: how totals and messages are protected.
        rules: how long parties have for an action, and how large answers may be.
        limit: largest payload, in bytes.
    """

    def __init__(
        self,
        post: Post,
        begin: Message,
        *,
        protect: Protect | None = None,
        rules: Rules | None = None,
        limit: int = wire.LIMIT,
    ) -> None:
        protect, self.rules = protect or Protect(), rules or Rules()
        self.post = post
        self.begin = {**begin, "protect": protect.model_dump_json(), "norm": self.rules.norm}
        self.limit = limit
        self.sealed = protect.exchange == "sealed"
        protection = protect.protection()
        self.sums = protection.sums(self, self._wrong, self.rules.tries)
        self.protections = {"exchange": "sealed"} if self.sealed else {}
        if self.sums is not None:
            self.protections = {**self.protections, "total": protection.name}
        self.sessions: dict[str, bytes] = {}
        self.parties = post.sites
        self.answered = dict.fromkeys(self.parties, 0)
        self.out: dict[str, str] = {}
        self.refused: set[str] = set()
        self.mark = ""
        self.at_mark = dict(self.answered)
        self.missed: dict[str, dict[str, Message]] = {}
        self._greeter = ThreadPoolExecutor(1, thread_name_prefix="greeter")
        self._greeting: Future[dict[str, Message | str]] | None = None
        for party, reply in self._sent(dict.fromkeys(self.parties, self.begin)).items():
            if isinstance(reply, str):
                self.out[party] = reply
            else:
                self._came(party, reply)
            if isinstance(reply, Refusal):
                self.refused.add(party)
        self._meet()

    def send(self, command: Command) -> list[Reply]:
        if command.do == "answer":
            assert command.verb is not None
            return self._call(command.verb, command.action, command.payload, command.of)
        if command.do == "deliver":
            self._deliver(command)
        elif command.do == "save":  # every party saves its state on its own machine; here a mark is enough
            self.mark, self.at_mark = uuid4().hex, dict(self.answered)
            self._tell_all({"do": "save", "mark": self.mark})
            return [Reply((), state={"mark": self.mark, "answered": self.at_mark})]
        elif command.do == "restore":
            self._restore(command.payload)
        elif command.do == "models":
            self._tell_all({"do": "models"})
        else:
            raise IsthmusError(f"unknown command '{command.do}': run the same version of isthmus everywhere")
        return []

    def _call(self, verb: Verb, action: str, request: wire.Payload | Each, of: Sequence[str]) -> list[Reply]:
        self._welcome()
        asked = [party for party in of if party not in self.out]
        packed = packed_request(request, asked, self.limit)
        head = {"do": "call", "verb": verb, "action": action, "under": len(asked)}
        messages = {
            party: {**head, "request": {party: packed[party]} if isinstance(packed, dict) else packed}
            for party in asked
        }
        replies = [self._reply(verb, party, action, reply) for party, reply in self._sent(messages).items()]
        if verb == "total":
            replies = [self._in_bounds(action, reply, request) for reply in _alike(action, replies)]
        away = {
            party: f"action '{action}', out: {why}" for party, why in self.unreachable(of).items() if party not in asked
        }
        return [*replies, Reply((), failures=away)] if away else replies

    def _deliver(self, command: Command) -> None:
        """Parties without mail get an empty delivery, which replaces the one before under the same action."""
        messages: dict[str, Message] = {}
        for party in command.of:
            mail = packed_mail(command.payload.get(party, {}), self.parties, self.limit)
            messages[party] = {"do": "deliver", "action": command.action, "mail": mail}
        self._tell({party: message for party, message in messages.items() if party not in self.out})
        for party in messages.keys() & self.out.keys():
            missed = self.missed.setdefault(party, {})
            missed.pop(command.action, None)  # the last delivery comes last
            missed[command.action] = messages[party]

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.mark = str(saved["mark"])
        self.at_mark = {party: int(count) for party, count in saved["answered"].items()}
        for party in self.parties:
            if party not in self.out:
                self._call_back(party)

    def close(self) -> None:
        """Have the parties drop what they saved for this run."""
        self._tell_all({"do": "end"})

    # ---- for protected totals

    def reachable(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Those among these parties that are there."""
        self._welcome()
        return tuple(party for party in asked if party not in self.out)

    def unreachable(self, asked: Sequence[str]) -> dict[str, str]:
        """Why others of these parties are not there."""
        return {party: self.out[party] for party in asked if party in self.out}

    def send_step(self, action: str, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
        """Replies of parties that did as they were told, and why others did not."""
        found, missing = {}, {}
        for party, reply in self._sent(messages).items():
            if isinstance(reply, str):
                self._settle(party, reply)
                missing[party] = f"action '{action}', {reply}"
            elif why := self._count(party, reply, {1 if messages[party]["do"] == "call" else 0}):
                missing[party] = f"action '{action}', {why}"
            else:
                found[party] = reply
        return found, missing

    def _wrong(self, total: Total, request: wire.Payload | Each) -> str:
        """What is wrong with a sum that nobody could check part by part; one part too many makes less of a mean."""
        means = {name: value / total.weights[name] for name, value in total.sums.items() if _counts(total, name)}
        return grown(means, request, max(LARGE_MEAN, self.rules.norm / total.contributors))

    # ---- who is there

    def _welcome(self) -> None:
        """Take back those who were out and are there again; what they say is listened for while the others go on."""
        if not self.out.keys() - self.refused:
            return
        if self._greeting is None:
            greetings: dict[str, Message] = {party: {"do": "greet"} for party in self.out.keys() - self.refused}
            self._greeting = self._greeter.submit(self._sent, greetings, GREETING)
        try:
            said = self._greeting.result(GLANCE)
        except TimeoutError:
            return
        self._greeting = None
        for party, reply in said.items():
            if isinstance(reply, str) or party not in self.out or reply.get("busy"):
                continue
            count, due = reply.get("answered"), self.answered[party]
            if reply.get("run") == self.begin["run"] and count in (due, due + 1):  # only slow, or cut off
                del self.out[party]
                self.answered[party] = int(count)
                self._catch_up(party)  # before it meets the others: what it missed is under their keys of then
                self._meet()
                log.warning("party '%s' is back", party)
                continue
            found = self._sent({party: self.begin})[party]
            if not isinstance(found, str):
                del self.out[party]
                self._came(party, found)
                self._meet()
                self._call_back(party)

    def _came(self, party: str, reply: Message) -> None:
        """A party has begun; envelopes for the one that it was before its process ended nobody can open."""
        if "session" in reply:
            from isthmus.protect.sealing import is_public_key  # what it needs is an extra

            if not is_public_key(reply["session"]):
                self._lose(party, "its key to seal with is none")
                self.refused.add(party)
                return
            self.sessions[party] = reply["session"]
        if self.sealed:
            missed = self.missed.get(party, {})
            self.missed[party] = {action: each for action, each in missed.items() if isinstance(each["mail"], bytes)}

    def _meet(self) -> None:
        """Tell all that are there with which key each party has begun; what was agreed on with others has served."""
        if self.sums is not None:
            self.sums.restart()
        if self.sessions:
            self._tell_all({"do": "meet", "sessions": dict(self.sessions)})

    def _catch_up(self, party: str) -> None:
        """Deliver what it has missed."""
        for message in self.missed.pop(party, {}).values():
            self._tell({party: message})

    def _call_back(self, party: str) -> None:
        """Have a party go on from the state that it saved last."""
        if not self.mark:
            self.answered[party] = 0
            self._catch_up(party)
            return
        reply = self._sent({party: {"do": "restore", "mark": self.mark}})[party]
        due = self.at_mark[party]
        if isinstance(reply, str):
            self._lose(party, reply)
        elif reply.get("answered") != due:
            self._lose(party, f"its state is after {reply.get('answered')} actions, not after {due}: it was lost")
        else:
            self.answered[party] = due
            self._catch_up(party)
            log.warning("party '%s' goes on from its state", party)

    def _lose(self, party: str, why: str) -> None:
        self.out[party] = why
        log.warning("party '%s' is out: %s", party, why)

    # ---- messages

    def _tell(self, messages: Mapping[str, Message]) -> None:
        """Tell parties what needs no answer but that it came; whom it does not reach is out."""
        for party, reply in self._sent(messages).items():
            if isinstance(reply, str):
                self._lose(party, reply)

    def _tell_all(self, message: Message) -> None:
        """Tell all that are there the same."""
        self._tell({party: message for party in self.parties if party not in self.out})

    def _sent(self, messages: Mapping[str, Message], seconds: float | None = None) -> dict[str, Message | str]:
        """Replies in the order of the parties; one that says that something is wrong is the text that it says."""
        found = self.post.send(messages, self.rules.seconds if seconds is None else seconds) if messages else {}
        return {party: _read(found.get(party, "no reply")) for party in messages}

    def _reply(self, verb: Verb, party: str, action: str, reply: Message | str) -> Reply:
        if isinstance(reply, str):
            self._settle(party, reply)
            return Reply((), failures={party: f"action '{action}', {reply}"})
        try:
            letters = [self._letters(each) for each in reply["letters"]]
            found = PackedReply(tuple(reply["parties"]), list(reply["answers"]), letters, dict(reply["failures"])).open(
                action, self.limit
            )
        except Exception:  # whatever a reader stumbles over in a message from outside
            return Reply((), failures={party: f"action '{action}', a reply that is no message"})
        letters_to = {to for letters in found.letters for to in letters}
        if found.parties and (bool(found.letters) != (verb == "exchange") or not letters_to <= set(self.parties)):
            return Reply((), failures={party: f"action '{action}', a reply that does not belong to '{verb}'"})
        if set(found.parties) | set(found.failures) != {party}:
            return Reply((), failures={party: f"action '{action}', a reply for other parties"})
        if why := self._count(party, reply, {1} if found.parties else {0, 1}):
            return Reply((), failures={party: f"action '{action}', {why}"})
        return found

    def _letters(self, letters: Mapping[str, Any]) -> dict[str, bytes | wire.Sealed]:
        if not self.sealed:
            return dict(letters)
        return {
            to: wire.Sealed(each["sealed"], int(each["inside"]), str(each["fields"])[:LONGEST])
            for to, each in letters.items()
        }

    def _settle(self, party: str, reply: str) -> None:
        """A party did not do as it was told: it is out, or has only refused."""
        if not isinstance(reply, Refusal) or not reply.begun:
            self._lose(party, reply)
        elif reply.answered == self.answered[party] + 1:  # it ran the action, and then what came of it was wrong
            self.answered[party] += 1

    def _count(self, party: str, reply: Message, more: set[int]) -> str:
        """Why a reply must not be used: its party has not answered as many actions as it should.

        Arguments:
            more: how many it may have answered since; of one that failed nobody knows when it did.
        """
        answered, before = reply.get("answered"), self.answered[party]
        if type(answered) is int and answered - before in more:
            self.answered[party] = answered
            return ""
        why = f"its state is after {answered} actions, not after {before + max(more)}: it was lost"
        self._lose(party, why)
        return why

    def _in_bounds(self, action: str, reply: Reply, request: wire.Payload | Each) -> Reply:
        """The reply, if it is not much larger than what was sent."""
        if not reply.parties:
            return reply
        why = grown({name: slice_of(column, 0) for name, column in reply.columns.items()}, request, self.rules.norm)
        return Reply((), failures=dict.fromkeys(reply.parties, f"action '{action}', {why}")) if why else reply


def grown(fields: Mapping[str, Any], request: wire.Payload | Each, norm: float) -> str:
    """Says of an answer, or a mean of answers, that it is more than `norm` times as large as what was sent."""
    sent = {} if isinstance(request, Each) else dict(wire.flatten(request))
    pairs = [
        (value.double(), sent[name].double())
        for name, value in fields.items()
        if isinstance(value, Tensor) and value.is_floating_point()
        and isinstance(sent.get(name), Tensor) and sent[name].shape == value.shape
    ]  # fmt: skip
    size = math.sqrt(sum(float(value.square().sum()) for value, _ in pairs))
    due = 1 + math.sqrt(sum(float(like.square().sum()) for _, like in pairs))
    return "" if size <= norm * due else f"more than {norm:g} times as large as what was sent (federation.norm)"


def _counts(total: Total, name: str) -> bool:
    """Whether a field has a mean: one weight, above zero."""
    weight = total.weights[name]
    return isinstance(weight, float | int) and weight > 0


def _read(reply: Any) -> Message | str:
    if isinstance(reply, str):
        return reply
    if not isinstance(reply, dict):
        return "a reply that is no message"
    if "wrong" not in reply:
        return reply
    wrong = Refusal(_cleaned(reply["wrong"]))
    wrong.begun, wrong.answered = bool(reply.get("begun", True)), reply.get("answered")
    return wrong


def _cleaned(text: Any) -> str:
    """A party's own words, fit to be shown: it may send anything at all.

    >>> _cleaned("gone\\x1b[2J" + 400 * "!")[:12]
    'gone [2J!!!!'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[:MOST_SAID])
    return " ".join(printable.split())


def _alike(action: str, replies: Sequence[Reply]) -> list[Reply]:
    """Parts of a sum that fit together: those of most parties; who has another form than these is left out."""
    forms = [_form(reply) for reply in replies]
    counted = Counter(form for form, reply in zip(forms, replies, strict=True) if reply.parties)
    if len(counted) < 2:
        return list(replies)
    (most, times), (_, next_times) = counted.most_common(2)
    if times == next_times:
        return list(replies)  # nobody can say whose is wrong
    return [
        reply
        if form == most or not reply.parties
        else Reply((), failures=dict.fromkeys(reply.parties, f"action '{action}', its part is not like the others'"))
        for form, reply in zip(forms, replies, strict=True)
    ]


def _form(reply: Reply) -> tuple[Any, ...]:
    """Names of the fields, and what tensors must have in common to be added; of keyed rows there may be any number."""
    keyed = "ids" in reply.columns
    said = []
    for name, column in sorted({**reply.columns, **{f"weight of {w}": c for w, c in reply.weights.items()}}.items()):
        value = column[0] if isinstance(column, Sequence) else None
        if isinstance(value, Tensor):
            said.append((name, str(value.dtype), tuple(value.shape[1:] if keyed else value.shape)))
        else:
            said.append((name, type(value).__name__, ()))
    return tuple(said)


class PartySide(ABC):
    """What a party's machine does with the messages that come; the engine hands them on as they are.

    Arguments:
        name: of the party.
        ring: its keys, to seal with.
        limit: largest payload, in bytes.
    """

    def __init__(self, name: str, ring: Keyring | None = None, *, limit: int = wire.LIMIT) -> None:
        self.name = name
        self.ring = ring
        self.limit = limit
        self.run = ""
        self.handler: ActionHandler | None = None
        self.protect = Protect()
        self.norm = math.inf
        self.channel: Channel | None = None
        self.guard: Guard | None = None
        self._at_work = Lock()

    @abstractmethod
    def begin(self, plan: Message) -> ActionHandler:
        """What stands at this party from now on."""

    @abstractmethod
    def permit(self, message: Message) -> None:
        """An error for a call that the party's limits do not allow."""

    @abstractmethod
    def min_parties(self) -> int:
        """Parties that must be in a sum that this one helps to open, at least."""

    @abstractmethod
    def save_state(self, run: str, mark: str, saved: Mapping[str, Any]) -> None:
        """Put a state aside on this machine."""

    @abstractmethod
    def load_state(self, run: str, mark: str) -> Mapping[str, Any]:
        """The state put aside under this mark."""

    @abstractmethod
    def write_model(self, run: str, weights: wire.Payload) -> None:
        """Write the party's model, the best so far, to this machine."""

    @abstractmethod
    def end(self, run: str) -> None:
        """What was put aside for this run has served."""

    def handle(self, message: Message) -> Message:
        """The reply to any message; whatever goes wrong is a reply too. One is worked on at a time."""
        if message.get("do") == "greet" and not self._at_work.acquire(blocking=False):
            return {"busy": True}
        if message.get("do") != "greet":
            self._at_work.acquire()
        try:
            return self._handle(message)
        except IsthmusError as error:
            text = " ".join(str(error).split())
            log.info("party '%s' did not answer: %s", self.name, text)  # who must show what it refused has it here
            return self._wrong(text)
        except Exception as error:  # a foreign text may quote data: it stays in the log of this machine
            log.exception("party '%s'", self.name)
            return self._wrong(f"{type(error).__name__} (the log at the party says more)")
        finally:
            self._at_work.release()

    def _handle(self, message: Message) -> Message:
        do = message.get("do")
        if do == "greet":
            return {"run": self.run, "answered": self._answered()}
        if do == "begin":
            return self._begun(message)
        if self.handler is None:
            raise IsthmusError(f"party '{self.name}' has not begun this run")
        if do == "call":
            self.permit(message)
            return self._called(self.handler, message)
        if do == "restore":
            saved = self._restorable(str(message["mark"]))
            self.handler.restore(saved)
        elif do == "meet":
            if self.channel is not None:
                others = {party: key for party, key in message["sessions"].items() if party != self.name}
                self.channel.set_sessions(others)
        elif do == "shield":
            return {**self._shielded(message), "answered": self._answered()}
        elif do == "deliver":
            self.handler.deliver(str(message["action"]), {self.name: self._mail(message)})
        elif do == "save":
            with self._on_disk():
                self.save_state(self.run, str(message["mark"]), self.handler.save())
        elif do == "models":
            if model := self.handler.models().get(self.name):
                with self._on_disk():
                    self.write_model(self.run, model)
        elif do == "end":
            self.end(self.run)
        else:
            raise IsthmusError(f"party '{self.name}' does not know what '{do}' asks for")
        return {"answered": self._answered()}

    def _begun(self, message: Message) -> Message:
        """Begin a run; a plan that is refused leaves nothing of the one before."""
        self._leave()
        self.protect, self.norm = Protect.model_validate_json(message["protect"]), float(message["norm"])
        protection, run = self.protect.protection(), str(message["run"])
        self.channel = self.guard = None
        if self.ring is not None:
            from isthmus.protect.sealing import Channel  # what it needs is an extra

            self.channel = Channel(self.ring, run)
            self.guard = protection.guard(self.channel, self.min_parties())
        elif self.protect.exchange == "sealed" or protection.name != "none":
            raise IsthmusError(f"party '{self.name}' has no key to seal with: make kits with this version of isthmus")
        self.handler, self.run = self.begin(message), run
        return {"answered": 0, **({} if self.channel is None else {"session": self.channel.session})}

    def _called(self, handler: ActionHandler, message: Message) -> Message:
        action, request = str(message["action"]), opened_request(message["request"], self.limit)
        if message["verb"] == "total" and self.guard is not None and "shield" not in message:
            raise IsthmusError(f"refused: totals of this run are protected, action '{action}' is not")
        reply = handler.answer(action, request, (self.name,))
        if bool(reply.letters) != (message["verb"] == "exchange") and reply.parties:
            raise IsthmusError(f"refused: action '{action}' is not answered by '{message['verb']}'")
        if "shield" in message:
            return {**self._closed(action, reply, request, message), "answered": self._answered()}
        packed = PackedReply.of(action, reply, self.limit)
        letters = [self._sealed(action, each, own) for each, own in zip(packed.letters, reply.letters, strict=False)]
        return {
            "parties": list(packed.parties),
            "answers": list(packed.answers),
            "letters": letters,
            "failures": dict(packed.failures),
            "answered": self._answered(),
        }

    def _closed(self, action: str, reply: Reply, request: wire.Payload | Each, message: Message) -> Message:
        """A part of a protected sum. Nobody can check it once it is closed, so that is done here."""
        if self.guard is None:
            raise IsthmusError(f"refused: totals of this run are not protected, action '{action}' is")
        faults = [*reply.failures.values(), *reply.not_carried().values(), *not_due(reply, request).values()]
        why = next(iter(faults), "")
        if not why:
            why = grown({name: slice_of(column, 0) for name, column in reply.columns.items()}, request, self.norm)
        if why:
            raise IsthmusError(why.removeprefix(f"action '{action}', "))
        return self.guard.close_answer(reply, message, self.limit)

    def _shielded(self, message: Message) -> Message:
        if self.guard is None:
            raise IsthmusError("refused: totals of this run are not protected")
        if message["step"] == "again":
            return self.guard.close_again(message["shield"], self.limit)
        return self.guard.answer_step(message)

    def _sealed(self, action: str, packed: Mapping[str, Any], letters: Mapping[str, Any]) -> dict[str, Any]:
        """Letters in envelopes, each with what the ledger says of it."""
        if self.protect.exchange != "sealed" or self.channel is None:
            return dict(packed)
        about = f"exchange {action}"
        return {
            to: {
                "sealed": self.channel.seal(to, data, about),
                "inside": len(data),
                "fields": wire.describe(letters[to]),
            }
            for to, data in packed.items()
        }

    def _mail(self, message: Message) -> Mapping[str, Any]:
        if "shield" in message:
            if self.guard is None:
                raise IsthmusError("refused: totals of this run are not protected")
            return self.guard.read_total(message["shield"], self.limit)
        mail, action = message["mail"], str(message["action"])
        if isinstance(mail, Mapping) and self.protect.exchange == "sealed" and self.channel is not None:
            mail = {sender: data for sender, each in mail.items() if (data := self._letter(sender, each, action))}
        return opened_mail(mail, self.limit)

    def _letter(self, sender: str, envelope: bytes, action: str) -> bytes:
        """What is in an envelope; one that is refused, or has no payload in it, is as if it had not come."""
        assert self.channel is not None
        try:
            data = self.channel.open(sender, envelope, f"exchange {action}")
            wire.decode(data, limit=self.limit)
        except IsthmusError as error:
            log.warning("party '%s': %s", self.name, error)
            return b""
        return data

    def _wrong(self, why: str) -> Message:
        return {"wrong": why, "begun": self.handler is not None, "answered": self._answered()}

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """What goes wrong on this machine's disk is said without the folder, which is nobody else's business."""
        try:
            yield
        except IsthmusError as error:
            log.error("party '%s': %s", self.name, error)
            reason = getattr(error.__cause__, "strerror", None) or "the log at the party says more"
            raise IsthmusError(f"cannot keep its state: {reason}") from error

    def _restorable(self, mark: str) -> Mapping[str, Any]:
        """The state under a mark; a party that has none has lost what it had, and says so from now on."""
        try:
            return self.load_state(self.run, mark)
        except IsthmusError:
            self._leave()
            raise

    def _leave(self) -> None:
        self.handler, self.run = None, ""

    def _answered(self) -> int:
        return sum(getattr(self.handler, "answered", ()))
