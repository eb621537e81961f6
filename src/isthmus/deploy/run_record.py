"""What a party writes into its ledger in one run, and what it looks up there before it helps to open a sum."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from isthmus.deploy.approval import DIGITS, bytes_of, digest_of
from isthmus.deploy.logs import printable
from isthmus.deploy.party_ledger import Index, LedgerFault, PartyLedger, Totals
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.checks import count_rows
from isthmus.federation.transport import Each
from isthmus.nn.stacks import slice_of
from isthmus.protect.sums_opened import SumRecord, too_few_shown

log = logging.getLogger(__name__)

Message = Mapping[str, Any]
BOOKKEEPING = ("rounds", "every", "patience")
"""Options of a method that change no answer, or only by the learning rate of a schedule over `rounds`."""
LONGEST = 500
"""Characters kept of a text that the server sent, or of a description."""


def study_digest(plan: Message) -> str:
    """The hash of the study that a run belongs to, as the message with which the run begins has it."""
    return hashlib.sha256(str(plan.get("study", "")).encode()).hexdigest()[:DIGITS]


class RunRecord(SumRecord):
    """A party's record of one run.

    Arguments:
        ledger: the party's.
        index: of all lines of the ledger.
        plan: the message with which the run begins.
        data: a hash of the party's data.
        protections: by verb, what protects its payloads.
        limits: of the party, as they are now.
    """

    def __init__(
        self,
        ledger: PartyLedger,
        index: Index,
        plan: Message,
        data: str,
        protections: Mapping[str, str],
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.ledger, self.index, self.data, self.protections = ledger, index, data, protections
        self.limits = dict(limits or {})
        self.run, self.stage = (printable(plan.get(key, ""), LONGEST) for key in ("run", "stage"))
        self.method, self.plan = _method_of(plan) if self.stage == "run" else (self.stage, "")
        self.head = {"study": study_digest(plan), "run": self.run, "method": self.method}
        self.epsilon: float | None = None
        self._states: tuple[str, ...] = ()

    # ---- lines

    def begun(self, parties: list[str]) -> None:
        """Write that the run begins, over these parties as the server says, on which data and within which limits."""
        site: dict[str, Any] = {"data": self.data, "limits": self.limits}
        self._append("begin", parties=parties, protection=self.protections.get("total", "none"), **site)

    def answered(self, message: Message, reply: Reply, sent: int) -> None:
        """Write what is about to leave as an answer to a call."""
        verb, shield = str(message["verb"]), message.get("shield")
        to = str(message.get("to", "server") if shield is None else shield["to"])
        if reply.letters:
            fields = next((wire.describe(each) for each in reply.letters[0].values()), "")
            rows = sum(map(count_rows, reply.letters[0].values()))
        else:
            fields = reply.describe()
            rows = count_rows({"ids": slice_of(reply.columns["ids"], 0)}) if "ids" in reply.columns else 0
        what = {"action": message["action"], "verb": verb, "eyes": eyes_of(verb, to), "sent": sent, "rows": rows}
        more: dict[str, Any] = {"fields": fields[:LONGEST], "protection": self.protections.get(verb, "none")}
        self._append("answer", **what, **more, **self._pending())

    def closed_again(self, sent: int) -> None:
        """Write that a part leaves once more, under other masks."""
        self._append("again", verb="total", sent=sent, protection=self.protections.get("total", ""), **self._pending())

    def refused(self, message: Message, why: str) -> None:
        """Write what the party did not do, and why; of very many refusals a line counts several."""
        if not (times := self.index.refusal_due()):
            return
        asked: dict[str, Any] = {
            key: printable(message[key], LONGEST) for key in ("do", "step", "action", "verb") if key in message
        }
        asked |= {"times": times} if times > 1 else {}
        self._append("refusal", **asked, why=printable(why, LONGEST))
        self.index.uncounted = 0

    def account(self) -> dict[str, Any]:
        """What this party answered in this run, and the head of its ledger."""
        self.ledger.load()
        return {"totals": self.index.totals.get(self.run, Totals()).rows(), "head": self.ledger.head}

    # ---- sums

    def states(
        self, action: str, request: wire.Payload | Each, to: str, position: int, reply: Reply
    ) -> tuple[str, ...]:
        """Fingerprints of what the party answers a total from; two answers with one in common are alike.

        One is of the party's data and the place in the plan, whatever the server sends there. The other one is of the
        data and what the server sends to this party, whatever the plan is. Sums for the parties follow from the data,
        not from what the server sends: theirs are of the action's place, and of the answer if it has rows.
        """
        if self.stage != "run":  # it answers from its data alone, as often as it is asked
            return (self._fingerprint(self.method, action),)
        found = [self._fingerprint(self.method, self.plan, action, str(position))]
        (own,) = request.payloads.values() if isinstance(request, Each) else (request,)
        sent = dict(wire.flatten(own))
        if to == "parties":
            found.append(self._fingerprint(self.method, "to parties", action, str(position)))
            if "ids" in reply.columns and len(slice_of(reply.columns["ids"], 0)):
                found.append(self._fingerprint("answer", action, digest_of(reply.payload(0))))
        elif tensors := {name: value for name, value in sent.items() if isinstance(value, Tensor)}:
            found.append(self._fingerprint(self.method, "sent", action, *map(_digest, sorted(tensors.items()))))
        return tuple(found)

    def note_closed(self, states: tuple[str, ...]) -> None:
        self._states = states

    def times_closed(self, states: tuple[str, ...]) -> int:
        self._guarded(self.ledger.load)
        return max((self.index.closed[state] for state in states), default=0)

    def open(self, of: frozenset[str], least: int, states: tuple[str, ...]) -> None:
        def check() -> str:
            return too_few_shown([*self._sets(states), of], least)

        self._append("sum", check, parties=sorted(of), least=least, states=list(states))

    def _sets(self, states: tuple[str, ...]) -> list[frozenset[str]]:
        return [each for state in states for each in self.index.sets.get(state, ())]

    def _pending(self) -> dict[str, Any]:
        states, self._states = self._states, ()
        return {"states": list(states)} if states else {}

    def _fingerprint(self, *parts: str) -> str:
        joined = json.dumps([self.data, *parts]).encode()
        if not self.ledger.salt:
            self._guarded(self.ledger.load)
        return hmac.new(self.ledger.salt, joined, hashlib.sha256).hexdigest()[:32]

    def _append(self, event: str, check: Callable[[], str] = str, **what: Any) -> None:
        more = {} if self.epsilon is None else {"epsilon": self.epsilon}
        self._guarded(lambda: self.ledger.append(event, check, **self.head, **what, **more))

    def _guarded(self, do: Callable[[], object]) -> None:
        """Leave the name of the folder out of errors of this machine's disk."""
        try:
            do()
        except LedgerFault as error:
            log.error("%s", error)
            raise IsthmusError("its ledger is not as it was written (read the log at the party)") from error
        except IsthmusError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            log.error("%s", error)
            reason = error.__cause__.strerror or "see the log at the party"
            raise IsthmusError(f"cannot write its ledger: {reason}") from error


def eyes_of(verb: str, to: str) -> str:
    """Who sees an answer, in the words of the ledger."""
    if verb == "total":
        return "parties see the sum" if to == "parties" else "server sees the sum"
    return {"ask": "server sees each answer", "exchange": "the addressed party"}.get(verb, verb)


def _method_of(plan: Message) -> tuple[str, str]:
    """The name of a plan's method, and the plan without what changes no answer."""
    try:
        study, name = json.loads(plan["study"]), str(plan["method"])
        (method,) = (each for each in study["methods"] if each["name"] == name)
        settings = {key: study.get(key) for key in ("task", "model", "data_seed", "split", "unlabelled")}
        settings["method"] = {key: value for key, value in method.items() if key not in BOOKKEEPING}
        settings["seed"] = plan["seed"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # the party will refuse to begin
        return "", ""
    totals = hashlib.sha256(bytes(plan.get("totals", b""))).hexdigest()
    return printable(name, LONGEST), json.dumps([settings, totals], sort_keys=True)


def _digest(field: tuple[str, Tensor]) -> str:
    name, value = field
    data = bytes_of(value)
    return hashlib.sha256(f"{name} {value.dtype} {tuple(value.shape)} ".encode() + data).hexdigest()
