"""Parties on other machines: the messages between the server and the parties, whatever engine carries them.

An engine implements one method, `Post.send`. A message is a mapping of texts, whole numbers, bytes, and lists and
mappings of these; payloads in it are bytes that `wire` checks. Every reply says how many actions the party has
answered, so a party that lost its state is noticed before its answer is used.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import torch
from torch import Tensor

from isthmus.deploy.logs import printable
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.actions import Binding
from isthmus.federation.answers import Reply, Total
from isthmus.federation.bounds import Introduced, total_problem, weight_problem
from isthmus.federation.checks import changed_fields
from isthmus.federation.ledger import Verb
from isthmus.federation.packed import PackedReply, message_size, open_mail, open_request, pack_mail, pack_request
from isthmus.federation.rules import Rules
from isthmus.federation.transport import Command, Each, TotalRequest, Transport
from isthmus.nn.stacks import slice_of
from isthmus.protect.options import Protect

if TYPE_CHECKING:
    from isthmus.deploy.run_record import RunRecord
    from isthmus.protect.base import Guard
    from isthmus.protect.sealing import Channel, Keyring

log = logging.getLogger(__name__)

Message = dict[str, Any]
LONGEST_REASON = 300
"""Characters shown of the reason that a party gives."""
LONGEST_DESCRIPTION = 4000
"""Characters kept of a party's description of the fields in an envelope."""
LARGE_MEAN = 20.0
"""A mean of answers may be this many times as large as the request, over however many parties."""
GREETING_SECONDS = 5.0
"""Seconds that an absent party has to answer a greeting."""
END_SECONDS = 30.0
"""Seconds that parties have to hear that a run is over."""
GREETING_PAUSE = 0.02
"""Seconds that a call waits for answers to greetings; later ones count in the next call."""


class Refusal(str):
    """The reason of a party that replied but did not do what it was asked.

    Attributes:
        begun: whether it has begun the run; after a restart of its process it has not.
        answered: how many actions it has answered.
    """

    begun: bool = True
    answered: Any = None


class Post(ABC):
    """Carries messages to the sites on other machines: the one duty of an engine."""

    sites: tuple[str, ...]
    """Names of the sites; each hosts the party of its name."""

    @abstractmethod
    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        """Send the messages at once; return each site's reply, or the reason why none came within so many seconds."""


class InProcessPost(Post):
    """Hands messages over to parties in this process."""

    def __init__(self, parties: Mapping[str, PartySide]) -> None:
        self.members = dict(parties)
        self.sites = tuple(parties)

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        return {party: self.members[party].handle(message) for party, message in messages.items()}


class ActionHandler(Protocol):
    """Answers actions at a party: a method's `Site`, or `Introduction` during set-up."""

    def binding(self, name: str) -> Binding: ...

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply: ...

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None: ...

    def save(self) -> dict[str, Any]: ...

    def restore(self, saved: Mapping[str, Any]) -> None: ...

    def models(self) -> Mapping[str, Mapping[str, Any]]: ...


class RemoteTransport(Transport):
    """Calls sites on other machines.

    A party that does not answer in time is absent, and not asked again, until it answers a greeting. It then gets the
    deliveries that it missed; if its process restarted, it first begins the run again and restores its last saved
    state. A party that refuses to begin stays absent.

    Arguments:
        post: carries the messages.
        begin: the message with which a run begins; sent again to a party that restarted.
        protect: how totals and messages are protected.
        rules: how long parties have for an action, and how large answers may be.
        limit: largest payload, in bytes.
        introduced: by party what it introduced in the set-up.
    """

    def __init__(
        self,
        post: Post,
        begin: Message,
        *,
        protect: Protect | None = None,
        rules: Rules | None = None,
        limit: int = wire.LIMIT,
        introduced: Mapping[str, Introduced] | None = None,
    ) -> None:
        self.introduced = introduced or {}
        protect, self.rules = protect or Protect(), rules or Rules()
        self.post = post
        more = {"protect": protect.model_dump_json(), "norm": self.rules.norm, "parties": list(post.sites)}
        self.begin = {**begin, **more}
        self.limit = limit
        self.sealed = protect.exchange == "sealed"
        protection = protect.protection()
        self.sums = protection.sums(self, self._check_sum, self.rules.tries)
        self.protections = {"exchange": "sealed"} if self.sealed else {}
        if self.sums is not None:
            self.protections = {**self.protections, "total": protection.name}
        self.sessions: dict[str, bytes] = {}
        self.parties = post.sites
        self.answered = dict.fromkeys(self.parties, 0)
        self.absent: dict[str, str] = {}
        self.refused: set[str] = set()
        self.mark, self.mark_before = "", ""
        self.answered_at_mark = dict(self.answered)
        self.undelivered: dict[str, dict[str, Message]] = {}
        self._greeter = ThreadPoolExecutor(1, thread_name_prefix="greeter")
        self._greeting: Future[dict[str, Message | str]] | None = None
        for party, reply in self._replies_to(dict.fromkeys(self.parties, self.begin)).items():
            if isinstance(reply, str):
                self.absent[party] = reply
            else:
                self._register(party, reply)
            if isinstance(reply, Refusal):
                self.refused.add(party)
        self._share_sessions()

    def send(self, command: Command) -> list[Reply]:
        if command.do == "answer":
            return self._call(command)
        if command.do == "deliver":
            self._deliver(command)
        elif command.do == "save":  # every party saves its state on its own machine, under this mark
            mark, answered = uuid4().hex, dict(self.answered)
            self._notify_all({"do": "save", "mark": mark, "keep": [self.mark, self.mark_before]})
            return [Reply((), state={"mark": mark, "answered": answered, "saved": list(self.present())})]
        elif command.do == "restore":
            self._restore(command.payload)
        elif command.do == "models":
            self._notify_all({"do": "models"})
        else:
            raise IsthmusError(f"unknown command '{command.do}': run the same version of isthmus everywhere")
        return []

    def _call(self, command: Command) -> list[Reply]:
        self._readmit()
        action, verb, request = command.action, command.verb, command.payload
        assert verb is not None
        asked = [party for party in command.of if party not in self.absent]
        packed = pack_request(request, asked, self.limit)
        head = {"do": "call", "verb": verb, "action": action, "under": len(asked), "to": command.to}
        messages = {
            party: {**head, "request": {party: packed[party]} if isinstance(packed, dict) else packed}
            for party in asked
        }
        replies = [self._reply(verb, party, action, reply) for party, reply in self._replies_to(messages).items()]
        if verb == "total":
            replies = [self._in_bounds(action, reply, request) for reply in _of_commonest_form(action, replies)]
        unasked = self.unreachable([party for party in command.of if party not in asked])
        absent = {party: f"action '{action}', absent: {why}" for party, why in unasked.items()}
        return [*replies, Reply((), failures=absent)] if absent else replies

    def _deliver(self, command: Command) -> None:
        """Parties without mail get an empty delivery, which replaces the one before under the same action."""
        messages: dict[str, Message] = {}
        for party in command.of:
            mail = pack_mail(command.payload.get(party, {}), self.parties, self.limit)
            messages[party] = {"do": "deliver", "action": command.action, "mail": mail}
        self._notify({party: message for party, message in messages.items() if party not in self.absent})
        for party in messages.keys() & self.absent.keys():
            missed = self.undelivered.setdefault(party, {})
            missed.pop(command.action, None)  # the last delivery comes last
            missed[command.action] = messages[party]

    def present(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party not in self.absent)

    def kept_by(self, saved: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(saved["saved"])

    def confirm(self, saved: Mapping[str, Any]) -> None:
        self.mark_before, self.mark = self.mark, str(saved["mark"])
        self.answered_at_mark = {party: int(count) for party, count in saved["answered"].items()}

    def restart(self) -> None:
        """Have the parties begin the run again, after they could not restore a state."""
        self.mark = self.mark_before = ""
        self.answered = dict.fromkeys(self.parties, 0)
        for party, reply in self._replies_to(dict.fromkeys(self.parties, self.begin)).items():
            self.absent.pop(party, None)
            if isinstance(reply, str):
                self._exclude(party, reply)
            else:
                self._register(party, reply)
        self._share_sessions()

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.confirm(saved)
        for party in self.parties:
            if party not in self.absent:
                self._restore_party(party)

    def close(self) -> None:
        """Have the parties drop what they saved for this run."""
        ends: dict[str, Message] = {party: {"do": "end"} for party in self.present()}
        for party, reply in self._replies_to(ends, min(self.rules.seconds, END_SECONDS)).items():
            if isinstance(reply, str):
                self._exclude(party, reply)

    def accounts(self) -> dict[str, Message | str]:
        """Ask every party what its own ledger says that it answered in this run."""
        return self._replies_to({party: {"do": "account"} for party in self.parties if party not in self.absent})

    # ---- for protected totals

    def reachable(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return those of these parties that are not absent."""
        self._readmit()
        return tuple(party for party in asked if party not in self.absent)

    def unreachable(self, asked: Sequence[str]) -> dict[str, str]:
        """Return those of these parties that are absent, with the reason."""
        return {party: self.absent[party] for party in asked if party in self.absent}

    def send_step(self, action: str, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
        """Send messages; return the replies, and by party the reason for a missing one."""
        found, missing = {}, {}
        for party, reply in self._replies_to(messages).items():
            if isinstance(reply, str):
                self._note_failure(party, reply)
                missing[party] = f"action '{action}', {reply}"
            elif why := self._check_count(party, reply, {1 if messages[party]["do"] == "call" else 0}):
                missing[party] = f"action '{action}', {why}"
            else:
                found[party] = reply
        return found, missing

    def _check_sum(self, total: Total, wanted: TotalRequest, of: Sequence[str]) -> str:
        """Return what is wrong with a sum of unchecked parts; a large part hides in a mean, so the limit is lower."""
        if why := norm_problem(
            total.single_means(), wanted.request, max(LARGE_MEAN, self.rules.norm / total.contributors)
        ):
            return why
        known = [self.introduced[party] for party in of if party in self.introduced]
        if len(known) < len(of):
            return ""
        introduced = Introduced.sum(known)
        return total_problem(total, introduced) or wanted.check(total, introduced)

    # ---- who is there

    def _readmit(self) -> None:
        """Greet absent parties in the background, and take back those that have answered."""
        if not self.absent.keys() - self.refused:
            return
        if self._greeting is None:
            greetings: dict[str, Message] = {party: {"do": "greet"} for party in self.absent.keys() - self.refused}
            self._greeting = self._greeter.submit(self._replies_to, greetings, GREETING_SECONDS)
        try:
            said = self._greeting.result(GREETING_PAUSE)
        except TimeoutError:
            return
        self._greeting = None
        for party, reply in said.items():
            if isinstance(reply, str) or party not in self.absent or reply.get("busy"):
                continue
            count, due = reply.get("answered"), self.answered[party]
            if reply.get("run") == self.begin["run"] and count in (
                due,
                due + 1,
            ):  # it was slow or cut off, not restarted
                del self.absent[party]
                self.answered[party] = int(count)
                self._deliver_missed(party)  # before it gets new session keys: these are sealed with the old ones
                self._share_sessions()
                log.warning("party '%s' is back", party)
                continue
            found = self._replies_to({party: self.begin})[party]
            if not isinstance(found, str):
                del self.absent[party]
                self._register(party, found)
                self._share_sessions()
                self._restore_party(party)

    def _register(self, party: str, reply: Message) -> None:
        """Keep the session key of a party that has begun; envelopes for its earlier session are useless."""
        if "session" in reply:
            from isthmus.protect.sealing import is_public_key  # needs an extra

            if not is_public_key(reply["session"]):
                self._exclude(party, "its session key is not a public key")
                self.refused.add(party)
                return
            self.sessions[party] = reply["session"]
        if self.sealed:
            sums = {k: each for k, each in self.undelivered.get(party, {}).items() if isinstance(each["mail"], bytes)}
            self.undelivered[party] = sums

    def _share_sessions(self) -> None:
        """Send every party the session keys of all; agreements made under earlier keys are void."""
        if self.sums is not None:
            self.sums.restart()
        if self.sessions:
            self._notify_all({"do": "meet", "sessions": dict(self.sessions)})

    def _deliver_missed(self, party: str) -> None:
        """Send a party the deliveries that it missed."""
        for message in self.undelivered.pop(party, {}).values():
            self._notify({party: message})

    def _restore_party(self, party: str) -> None:
        """Have a party restore the state that it saved last."""
        if not self.mark:
            self.answered[party] = 0
            self._deliver_missed(party)
            return
        reply = self._replies_to({party: {"do": "restore", "mark": self.mark}})[party]
        due = self.answered_at_mark[party]
        if isinstance(reply, str):
            self._exclude(party, reply)
        elif reply.get("answered") != due:
            self._exclude(party, _lost_state(reply.get("answered"), due))
        else:
            self.answered[party] = due
            self._deliver_missed(party)
            log.warning("party '%s' is back, with its last saved state", party)

    def _exclude(self, party: str, why: str) -> None:
        self.absent[party] = why
        log.warning("party '%s' is absent: %s", party, why)

    # ---- messages

    def _notify(self, messages: Mapping[str, Message]) -> None:
        """Send messages whose replies carry nothing; a party that does not reply is absent."""
        for party, reply in self._replies_to(messages).items():
            if isinstance(reply, str):
                self._exclude(party, reply)

    def _notify_all(self, message: Message) -> None:
        """Send one message to all parties that are not absent."""
        self._notify({party: message for party in self.parties if party not in self.absent})

    def _replies_to(self, messages: Mapping[str, Message], seconds: float | None = None) -> dict[str, Message | str]:
        """Send messages and return the replies in their order, or the reason why there is none.

        A reply repeats the nonce of its message: an earlier reply, or one to another message, is none.
        """
        nonces = {party: token_hex(16) for party in messages}
        asked = {party: {**message, "nonce": nonces[party]} for party, message in messages.items()}
        found = self.post.send(asked, self.rules.seconds if seconds is None else seconds) if messages else {}
        return {party: _checked(found.get(party, "no reply"), nonces[party]) for party in messages}

    def _reply(self, verb: Verb, party: str, action: str, reply: Message | str) -> Reply:
        if isinstance(reply, str):
            self._note_failure(party, reply)
            return Reply((), failures={party: f"action '{action}', {reply}"})
        try:
            found = self._unpacked(party, reply).open(action, self.limit)
        except Exception:  # a message from outside may break a reader in any way
            return Reply((), failures={party: f"action '{action}', malformed reply"})
        letters_to = {to for letters in found.letters for to in letters}
        if found.parties and (bool(found.letters) != (verb == "exchange") or not letters_to <= set(self.parties)):
            return Reply((), failures={party: f"action '{action}', a reply to another verb than '{verb}'"})
        if set(found.parties) | set(found.failures) != {party}:
            return Reply((), failures={party: f"action '{action}', a reply for other parties"})
        if why := self._check_count(party, reply, {1} if found.parties else {0, 1}):
            return Reply((), failures={party: f"action '{action}', {why}"})
        return found

    def _unpacked(self, party: str, reply: Message) -> PackedReply:
        """The parts of one party's reply; a reply with more of them than one party can have is an error."""
        parties, answers, failures = list(reply["parties"]), list(reply["answers"]), dict(reply["failures"])
        letters = list(reply["letters"])
        several = max(map(len, (parties, answers, letters, failures))) > 1
        if several or len(answers) != len(parties) or any(len(each) > len(self.parties) for each in letters):
            raise IsthmusError(f"party '{party}': its reply has too many parties, answers or messages")
        reasons = {str(name): printable(why, LONGEST_REASON) for name, why in failures.items()}
        return PackedReply(tuple(map(str, parties)), answers, [self._letters(each) for each in letters], reasons)

    def _letters(self, letters: Mapping[str, Any]) -> dict[str, bytes | wire.Sealed]:
        if not self.sealed:
            return dict(letters)
        found: dict[str, bytes | wire.Sealed] = {}
        for to, each in letters.items():
            inside, fields = each["inside"], printable(each["fields"], LONGEST_DESCRIPTION)
            if type(inside) is not int or not 0 <= inside <= len(each["sealed"]):
                raise IsthmusError("an envelope has a payload of another size than it says")
            found[str(to)] = wire.Sealed(bytes(each["sealed"]), inside, fields)
        return found

    def _note_failure(self, party: str, reply: str) -> None:
        """Note that a party failed: it is absent, or only refused."""
        if not isinstance(reply, Refusal) or not reply.begun:
            self._exclude(party, reply)
        elif reply.answered == self.answered[party] + 1:  # it ran the action and refused to send the result
            self.answered[party] += 1

    def _check_count(self, party: str, reply: Message, more: set[int]) -> str:
        """Return why a reply must not be used: its party has not answered as many actions as it should.

        Arguments:
            more: how many it may have answered since the last reply; where an action failed, none or one.
        """
        answered, before = reply.get("answered"), self.answered[party]
        if type(answered) is int and answered - before in more:
            self.answered[party] = answered
            return ""
        why = _lost_state(answered, before + max(more))
        self._exclude(party, why)
        return why

    def _in_bounds(self, action: str, reply: Reply, request: wire.Payload | Each) -> Reply:
        """Drop answers that are much larger than the request."""
        if not reply.parties:
            return reply
        why = norm_problem(_fields_of(reply), request, self.rules.norm)
        return Reply((), failures=dict.fromkeys(reply.parties, f"action '{action}', {why}")) if why else reply


def _fields_of(reply: Reply) -> dict[str, Any]:
    """The fields of the only party in a reply."""
    return {name: slice_of(column, 0) for name, column in reply.columns.items()}


def norm_problem(fields: Mapping[str, Any], request: wire.Payload | Each, norm: float) -> str:
    """Return a complaint if an answer, or a mean of answers, is more than `norm` times as large as the request."""
    sent = {} if isinstance(request, Each) else dict(wire.flatten(request))
    pairs = [
        (value, sent[name])
        for name, value in fields.items()
        if isinstance(value, Tensor) and value.is_floating_point()
        and isinstance(sent.get(name), Tensor) and sent[name].shape == value.shape
    ]  # fmt: skip
    values, likes = [value for value, _ in pairs], [like for _, like in pairs]
    # single precision is a tenth of the work, and enough for all answers but those near the limit
    if 2 * _norm(values) <= norm * (1 + _norm(likes) / 2):
        return ""
    within = _norm(values, torch.float64) <= norm * (1 + _norm(likes, torch.float64))
    return "" if within else f"more than {norm:g} times as large as what was sent (federation.norm)"


def _norm(values: Sequence[Tensor], dtype: torch.dtype | None = None) -> float:
    """The root of the sum of squares of all values."""
    floats = [value if value.is_floating_point() else value.double() for value in values]
    return math.hypot(*(float(torch.linalg.vector_norm(value, dtype=dtype)) for value in floats))


def _lost_state(answered: Any, due: int) -> str:
    return f"its state is after {answered} actions, not after {due}: it was lost"


def _checked(reply: Any, nonce: str) -> Message | str:
    """A reply to the message with this nonce, or the reason why there is none."""
    if isinstance(reply, str):
        return reply
    if not isinstance(reply, dict):
        return "malformed reply"
    if reply.get("nonce") != nonce:
        return "its reply belongs to another request"
    if "wrong" not in reply:
        return reply
    wrong = Refusal(printable(reply["wrong"], LONGEST_REASON))
    wrong.begun, wrong.answered = bool(reply.get("begun", True)), reply.get("answered")
    return wrong


def _of_commonest_form(action: str, replies: Sequence[Reply]) -> list[Reply]:
    """Leave out parts of a sum whose fields or shapes differ from those of most parties."""
    forms = [_form_of(reply) for reply in replies]
    counted = Counter(form for form, reply in zip(forms, replies, strict=True) if reply.parties)
    if len(counted) < 2:
        return list(replies)
    (most, times), (_, next_times) = counted.most_common(2)
    why = "its part differs from the others' in fields or shapes"
    if times == next_times:  # a tie does not say which ones are wrong: none can be added up if a field has two forms
        if not _contradict(counted):
            return list(replies)
        most, why = (), "parts differ in fields or shapes, and no form is the commonest"
    return [
        reply
        if form == most or not reply.parties
        else Reply((), failures=dict.fromkeys(reply.parties, f"action '{action}', {why}"))
        for form, reply in zip(forms, replies, strict=True)
    ]


def _contradict(forms: Iterable[tuple[Any, ...]]) -> bool:
    """Whether a field has another type or shape in one form than in another."""
    of_name: dict[str, set[Any]] = {}
    for form in forms:
        for name, *rest in form:
            of_name.setdefault(name, set()).add(tuple(rest))
    return any(len(each) > 1 for each in of_name.values())


def _form_of(reply: Reply) -> tuple[Any, ...]:
    """Field names, and dtypes and shapes that tensors need to be added; the number of rows by id may differ."""
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
    """Answers the server's messages on a party's machine, as the engine hands them over.

    Arguments:
        name: of the party.
        ring: its keys, to seal messages with.
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
        self.record: RunRecord | None = None
        self._lock = Lock()

    @abstractmethod
    def begin(self, plan: Message) -> ActionHandler:
        """Return what answers this party's actions in the run."""

    @abstractmethod
    def check_call(self, message: Message) -> None:
        """Raise an error for a call that the party's limits do not allow."""

    def note_delivery(self, action: str, mail: Mapping[str, Any]) -> None:
        """Take into account that this is about to be delivered, as it was opened."""
        return

    @abstractmethod
    def min_parties(self) -> int:
        """Return how many parties a sum needs for this party to help open it."""

    @abstractmethod
    def save_state(self, run: str, mark: str, saved: Mapping[str, Any], keep: Sequence[str]) -> None:
        """Write a state on this machine, and delete all others of the run but those under the marks to keep."""

    @abstractmethod
    def load_state(self, run: str, mark: str) -> Mapping[str, Any]:
        """Read the state that was written under this mark."""

    @abstractmethod
    def write_model(self, run: str, weights: wire.Payload) -> None:
        """Write the party's model, the best so far, to this machine."""

    @abstractmethod
    def delete_states(self, run: str) -> None:
        """Delete all states of a run that is over."""

    def open_record(self, plan: Message) -> RunRecord | None:
        """Return what the party writes into its ledger in a run; none where it keeps no ledger."""
        return None

    def introduced(self) -> Introduced | None:
        """Return what the party introduces in the set-up, which its answers are checked against before they leave."""
        return None

    def handle(self, message: Message) -> Message:
        """Reply to any message, one at a time, with its nonce; an error is a reply too."""
        return {**self._reply_to(message), "nonce": message.get("nonce")}

    def _reply_to(self, message: Message) -> Message:
        if message.get("do") == "greet" and not self._lock.acquire(blocking=False):
            return {"busy": True}
        if message.get("do") != "greet":
            self._lock.acquire()
        try:
            return self._handle(message)
        except IsthmusError as error:
            text = " ".join(str(error).split())
            log.info("party '%s' did not answer: %s", self.name, text)  # shows auditors what it refused
            return self._refusal(text, message)
        except Exception as error:  # its text may quote data, so it stays in the log of this machine
            log.exception("party '%s'", self.name)
            return self._refusal(f"{type(error).__name__} (see the log at the party)", message)
        finally:
            self._lock.release()

    def _handle(self, message: Message) -> Message:
        do = message.get("do")
        if do == "greet":
            return {"run": self.run, "answered": self._count_answered()}
        if do == "begin":
            return self._begin_run(message)
        if self.handler is None:
            raise IsthmusError(f"party '{self.name}' has not begun this run")
        if do == "call":
            self.check_call(message)
            return self._answer(self.handler, message)
        if do == "restore":
            saved = self._saved_state(str(message["mark"]))
            self.handler.restore(saved)
        elif do == "meet":
            if self.channel is not None:
                others = {party: key for party, key in message["sessions"].items() if party != self.name}
                self.channel.set_sessions(others)
        elif do == "shield":
            return {**self._answer_step(message), "answered": self._count_answered()}
        elif do == "deliver":
            action, mail = str(message["action"]), self._open_mail(message)
            self.note_delivery(action, mail)
            self.handler.deliver(action, {self.name: mail})
        elif do == "save":
            with self._on_disk():
                keep = [str(mark) for mark in message["keep"][:2]]  # two checkpoints of the server's need theirs
                self.save_state(self.run, str(message["mark"]), self.handler.save(), keep)
        elif do == "models":
            if model := self.handler.models().get(self.name):
                with self._on_disk():
                    self.write_model(self.run, model)
        elif do == "account":
            return {} if self.record is None else self.record.account()
        elif do == "end":
            self.delete_states(self.run)
        else:
            raise IsthmusError(
                f"party '{self.name}': unknown message '{do}': run the same version of isthmus everywhere"
            )
        return {"answered": self._count_answered()}

    def _begin_run(self, message: Message) -> Message:
        """Begin a run; if the party refuses the plan, nothing is left of the run before."""
        self._reset()
        self.protect, self.norm = Protect.model_validate_json(message["protect"]), float(message["norm"])
        protection, run = self.protect.protection(), str(message["run"])
        self.channel = self.guard = None
        self.record = self.open_record(message)
        parties = list(map(str, message.get("parties", ())))
        if self.ring is not None:
            self._check_parties(parties)
            from isthmus.protect.sealing import Channel  # needs an extra

            self.channel = Channel(self.ring, run)
            self.guard = protection.guard(self.channel, self.min_parties())
            if self.guard is not None and self.record is not None:
                self.guard.record = self.record
        elif self.protect.exchange == "sealed" or protection.name != "none":
            raise IsthmusError(
                f"party '{self.name}' has no key to seal with: make its kit again with isthmus federation new"
            )
        handler = self.begin(message)
        if self.record is not None:
            self.record.begun(parties)
        self.handler, self.run = handler, run
        return {"answered": 0, **({} if self.channel is None else {"session": self.channel.session})}

    def _check_parties(self, parties: Sequence[str]) -> None:
        """Refuse a study over parties that are not in the own kit, or over so few that a sum shows one of them."""
        assert self.ring is not None
        known = self.ring.public_keys
        if self.name not in parties or not known.keys() >= set(parties) or len(set(parties)) < len(parties):
            raise IsthmusError(
                f"refused: a study over the parties {', '.join(parties)}; its kit has {', '.join(known)}"
            )
        least = max(self.min_parties(), min(2, len(known)))
        if len(parties) < least:
            raise IsthmusError(f"refused: a study over {len(parties)} of {len(known)} parties, it needs {least}")

    def _answer(self, handler: ActionHandler, message: Message) -> Message:
        action, verb, shield = str(message["action"]), str(message["verb"]), message.get("shield")
        binding = handler.binding(action)
        to, before = str(message.get("to", "server") if shield is None else shield["to"]), self._count_answered()
        binding.permit(action, verb, to)
        hidden = shield is not None if verb == "total" else self.protect.exchange == "sealed" and verb == "exchange"
        binding.permit_disclosure(action, verb, int(message["under"]), protected=hidden)
        request = open_request(message["request"], self.limit)
        if message["verb"] == "total" and self.guard is not None and "shield" not in message:
            raise IsthmusError(f"refused: totals of this run are protected, action '{action}' is not")
        reply = handler.answer(action, request, (self.name,))
        if bool(reply.letters) != (message["verb"] == "exchange") and reply.parties:
            raise IsthmusError(f"refused: action '{action}' is not answered by '{message['verb']}'")
        if "shield" in message:
            states = () if self.record is None else self.record.states(action, request, to, before, reply)
            closed = self._close_part(action, reply, request, message, binding.least, states)
            if self.record is not None:
                self.record.answered(message, reply, message_size(closed))
            return {**closed, "answered": self._count_answered()}
        packed = PackedReply.of(action, reply, self.limit)
        letters = [self._seal(action, each, own) for each, own in zip(packed.letters, reply.letters, strict=False)]
        if self.record is not None and reply.parties:
            self.record.answered(message, reply, message_size(packed.letters or packed.answers))
        return {
            "parties": list(packed.parties),
            "answers": list(packed.answers),
            "letters": letters,
            "failures": dict(packed.failures),
            "answered": self._count_answered(),
        }

    def _close_part(
        self,
        action: str,
        reply: Reply,
        request: wire.Payload | Each,
        message: Message,
        least: int,
        states: tuple[str, ...],
    ) -> Message:
        """Close a part of a protected sum, after the checks that nobody can make on a closed one."""
        if self.guard is None:
            raise IsthmusError(f"refused: totals of this run are not protected, action '{action}' is")
        faults = [*reply.failures.values(), *reply.unsendable().values(), *changed_fields(reply, request).values()]
        why = next(iter(faults), "")
        if not why:
            why = norm_problem(_fields_of(reply), request, self.norm) or self._weight_problem(reply)
        if why:
            raise IsthmusError(why.removeprefix(f"action '{action}', "))
        return self.guard.close_answer(reply, message, self.limit, least, states)

    def _weight_problem(self, reply: Reply) -> str:
        """Return what is wrong with the weights in a reply of this party."""
        introduced = self.introduced()
        most = math.inf if introduced is None else introduced.items
        return next(filter(None, (weight_problem(name, slice_of(w, 0), most) for name, w in reply.weights.items())), "")

    def _answer_step(self, message: Message) -> Message:
        if self.guard is None:
            raise IsthmusError("refused: totals of this run are not protected")
        if message["step"] == "again":
            closed = self.guard.close_again(message["shield"], self.limit)
            if self.record is not None:
                self.record.closed_again(message_size(closed))
            return closed
        return self.guard.answer_step(message)

    def _seal(self, action: str, packed: Mapping[str, Any], letters: Mapping[str, Any]) -> dict[str, Any]:
        """Seal letters, each with its size and fields for the ledger."""
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

    def _open_mail(self, message: Message) -> Mapping[str, Any]:
        if "shield" in message:
            if self.guard is None:
                raise IsthmusError("refused: totals of this run are not protected")
            return self.guard.read_total(message["shield"], self.limit)
        mail, action = message["mail"], str(message["action"])
        if isinstance(mail, Mapping) and self.protect.exchange == "sealed" and self.channel is not None:
            mail = {sender: data for sender, each in mail.items() if (data := self._open_letter(sender, each, action))}
        return open_mail(mail, self.limit)

    def _open_letter(self, sender: str, envelope: bytes, action: str) -> bytes:
        """Open an envelope; one that cannot be opened, or has no payload in it, is dropped."""
        assert self.channel is not None
        try:
            data = self.channel.open(sender, envelope, f"exchange {action}")
            wire.decode(data, limit=self.limit)
        except IsthmusError as error:
            log.warning("party '%s': %s", self.name, error)
            return b""
        return data

    def _refusal(self, why: str, message: Message) -> Message:
        with suppress(IsthmusError):  # a ledger that cannot be written is in the log, and nothing leaves
            if (record := self.record or self.open_record({})) is not None:
                record.refused(message, why)
        return {"wrong": why, "begun": self.handler is not None, "answered": self._count_answered()}

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Leave the name of the folder out of errors of this machine's disk."""
        try:
            yield
        except IsthmusError as error:
            log.error("party '%s': %s", self.name, error)
            reason = getattr(error.__cause__, "strerror", None) or "see the log at the party"
            raise IsthmusError(f"cannot write its state: {reason}") from error

    def _saved_state(self, mark: str) -> Mapping[str, Any]:
        """Read the state under a mark; a party without it has lost its state, so it must begin again."""
        try:
            return self.load_state(self.run, mark)
        except IsthmusError:
            self._reset()
            raise

    def _reset(self) -> None:
        self.handler, self.run = None, ""

    def _count_answered(self) -> int:
        return sum(getattr(self.handler, "answered", ()))
