"""Parties on other machines: the server's side of the messages between them, whatever engine carries these.

An engine implements one method, `Post.send`. Payloads in a message are bytes that `wire` checks. Every reply says how
many actions the party has answered, so a party that lost its state is noticed before its answer is used.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from secrets import token_hex
from typing import Any
from uuid import uuid4

from torch import Tensor

from isthmus.deploy.logs import printable
from isthmus.deploy.party_side import Message, PartySide
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply, Total
from isthmus.federation.bounds import Introduced, total_problem
from isthmus.federation.checks import norm_problem
from isthmus.federation.ledger import Verb
from isthmus.federation.packed import PackedReply, pack_mail, pack_request
from isthmus.federation.rules import Rules
from isthmus.federation.transport import Command, Each, TotalRequest, Transport
from isthmus.protect.options import Protect

log = logging.getLogger(__name__)

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
        self.post, self.norm = post, self.rules.norm
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
            return self._deliver(command)
        if command.do == "save":  # every party saves its state on its own machine, under this mark
            mark, answered = uuid4().hex, dict(self.answered)
            self._notify_all({"do": "save", "mark": mark, "keep": [self.mark, self.mark_before]})
            return [Reply((), state={"mark": mark, "answered": answered, "saved": list(self.present())})]
        if command.do == "restore":
            self._restore(command.payload)
        elif command.do == "models":
            self._notify_all({"do": "models", "threshold": command.payload})
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

    def _deliver(self, command: Command) -> list[Reply]:
        """Deliver mail; return of each party that refuses messages who sent these, and why.

        Parties without mail get an empty delivery, which replaces the one before under the same action.
        """
        messages: dict[str, Message] = {}
        for party in command.of:
            mail = pack_mail(command.payload.get(party, {}), self.parties, self.limit)
            messages[party] = {"do": "deliver", "action": command.action, "mail": mail}
        replies = self._notify({party: message for party, message in messages.items() if party not in self.absent})
        for party in messages.keys() & self.absent.keys():
            missed = self.undelivered.setdefault(party, {})
            missed.pop(command.action, None)  # the last delivery comes last
            missed[command.action] = messages[party]
        return [Reply((party,), failures=self._refused(reply)) for party, reply in replies.items()]

    def _refused(self, reply: Message) -> dict[str, str]:
        """By sender why a party refuses its message."""
        refused = reply.get("refused")
        known = refused.items() if isinstance(refused, dict) else ()
        return {sender: printable(why, LONGEST_REASON) for sender, why in known if sender in self.parties}

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

    def _notify(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Send messages that ask for no answer and return the replies; a party that does not reply is absent."""
        found = {}
        for party, reply in self._replies_to(messages).items():
            if isinstance(reply, str):
                self._exclude(party, reply)
            else:
                found[party] = reply
        return found

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
        why = norm_problem(reply.fields(0), request, self.rules.norm)
        return Reply((), failures=dict.fromkeys(reply.parties, f"action '{action}', {why}")) if why else reply


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
