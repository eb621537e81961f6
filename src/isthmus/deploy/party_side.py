"""A party's side of a federation: it answers the server's messages, and checks each before it does."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.actions import Binding
from isthmus.federation.answers import Reply
from isthmus.federation.bounds import Introduced, weight_problem
from isthmus.federation.checks import changed_fields, norm_problem
from isthmus.federation.packed import PackedReply, message_size, open_mail, open_request
from isthmus.federation.transport import Each
from isthmus.nn.stacks import slice_of
from isthmus.protect.options import Protect

if TYPE_CHECKING:
    from isthmus.deploy.run_record import RunRecord
    from isthmus.protect.base import Guard
    from isthmus.protect.sealing import Channel, Keyring

log = logging.getLogger(__name__)

Message = dict[str, Any]
"""Texts, numbers, bytes, and lists and mappings of these."""


class ActionHandler(Protocol):
    """Answers actions at a party: a method's `Site`, or `Introduction` during set-up."""

    def binding(self, name: str) -> Binding: ...

    def least(self, name: str, request: wire.Payload | Each) -> int: ...

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply: ...

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None: ...

    def letter_problems(self, name: str, mail: Mapping[str, Any], norm: float) -> Mapping[str, str]: ...

    def save(self) -> dict[str, Any]: ...

    def restore(self, saved: Mapping[str, Any]) -> None: ...

    def models(self) -> Mapping[str, Mapping[str, Any]]: ...


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

    def note_answer(self) -> None:
        """Write down what an answer left at the party."""
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
    def write_model(self, run: str, weights: wire.Payload, threshold: float | list[float] | None) -> None:
        """Write the party's model, the best so far, to this machine.

        Arguments:
            threshold: of decisions, if the validation items of all parties chose it.
        """

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
        if not isinstance(message, dict):  # from outside
            message = {}
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
            answer = self._answer(self.handler, message)
            self.note_answer()
            return answer
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
            return {"refused": self._deliver(self.handler, message), "answered": self._count_answered()}
        elif do == "save":
            with self._on_disk():
                keep = [str(mark) for mark in message["keep"][:2]]  # two checkpoints of the server's need theirs
                self.save_state(self.run, str(message["mark"]), self.handler.save(), keep)
        elif do == "models":
            if model := self.handler.models().get(self.name):
                with self._on_disk():
                    self.write_model(self.run, model, message.get("threshold"))
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
        self._check_parties(parties)
        if self.ring is not None:
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
        known = set(parties) if self.ring is None else self.ring.public_keys.keys()
        if self.name not in parties or not known >= set(parties) or len(set(parties)) < len(parties):
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
        binding = replace(binding, least=max(binding.least, handler.least(action, request)))
        reply = handler.answer(action, request, (self.name,))
        if bool(reply.letters) != (message["verb"] == "exchange") and reply.parties:
            raise IsthmusError(f"refused: action '{action}' is not answered by '{message['verb']}'")
        if "shield" in message:
            states = () if self.record is None else self.record.states(action, request, to, before, reply)
            closed = self._close_part(action, reply, request, message, binding, states)
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
        binding: Binding,
        states: tuple[str, ...],
    ) -> Message:
        """Close a part of a protected sum, after the checks that nobody can make on a closed one."""
        if self.guard is None:
            raise IsthmusError(f"refused: totals of this run are not protected, action '{action}' is")
        faults = [*reply.failures.values(), *reply.unsendable().values(), *changed_fields(reply, request).values()]
        why = next(iter(faults), "")
        if not why:
            why = norm_problem(reply.fields(0), request, self.norm) or self._weight_problem(reply)
        if why:
            raise IsthmusError(why.removeprefix(f"action '{action}', "))
        return self.guard.close_answer(reply, message, self.limit, binding.least, int(binding.contributors), states)

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

    def _open_mail(self, handler: ActionHandler, message: Message) -> Mapping[str, Any]:
        """Open what is delivered, a sum or messages: the server does not choose whether it is closed."""
        action = str(message["action"])
        binding = handler.binding(action)
        if "shield" in message:
            binding.permit(action, "total", "parties")
            if self.guard is None:
                raise IsthmusError("refused: totals of this run are not protected")
            return self.guard.read_total(message["shield"], self.limit)
        mail, letters = message["mail"], "exchange" in binding.verbs
        if self.guard is not None and not letters:
            raise IsthmusError(f"refused: totals of this run are protected, what is delivered of '{action}' is not")
        if letters and self.protect.exchange == "sealed" and self.channel is not None:
            if isinstance(mail, Mapping):
                mail = {who: data for who, each in mail.items() if (data := self._open_letter(who, each, action))}
            elif self.guard is not None or binding.to != "parties":  # it is no sum for the parties
                raise IsthmusError(f"refused: messages of this run are sealed, what is delivered of '{action}' is not")
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

    def _deliver(self, handler: ActionHandler, message: Message) -> dict[str, str]:
        """Deliver a sum, or messages that have the form of their action; return by sender why others are refused."""
        action, mail = str(message["action"]), self._open_mail(handler, message)
        self.note_delivery(action, mail)
        letters = "shield" not in message and isinstance(message["mail"], Mapping)
        refused = dict(handler.letter_problems(action, mail, self.norm)) if letters else {}
        for sender, why in refused.items():
            log.warning("party '%s' refuses the message of party '%s' (%s): %s", self.name, sender, action, why)
        handler.deliver(action, {self.name: {each: mail[each] for each in mail if each not in refused}})
        return refused

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
