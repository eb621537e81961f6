"""Everything a server may do to parties: ask, total, exchange. The verb says who sees what."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, overload

import torch

from isthmus.errors import Diverged, IsthmusError, NotFinite, PayloadError, TooFewAnswers, did_you_mean
from isthmus.federation import wire
from isthmus.federation.answers import Answers, IdUnion, PlainTotal, Receipt, Reply, Total
from isthmus.federation.bounds import Held, Introduced, answer_problem, count_problem, ids_problem
from isthmus.federation.checks import check_reply, count_rows, leave_out, size_problems, sum_problem
from isthmus.federation.ledger import DELIVERY, Entry, Eyes, Ledger, Verb
from isthmus.federation.private import Private
from isthmus.federation.robust import Aggregation, Comparison, Mean, stack_returned
from isthmus.federation.sums import positions_of
from isthmus.federation.transport import AnswerCheck, Command, Each, Request, To, TotalRequest, Transport
from isthmus.nn.draws import draws_of
from isthmus.nn.stacks import slice_of

log = logging.getLogger(__name__)

Needed = Literal["never", "set-up", "always"]
BoundCheck = Callable[[Reply, int, Introduced], str]
Coefficients = Mapping[str, Mapping[str, float]]
"""By addressee, by contributor: how much of the contributor's answer the addressee gets."""


class Federation:
    """The server's side of the three verbs.

    Arguments:
        transport: reaches the parties.
        seed: of the sampling of parties.
        quorum: the smallest share of the asked parties that must answer; a call with fewer answers is an error that
            names the missing parties and the reasons.
        everyone: when all parties that are asked must answer, whatever the quorum: never, before the first round, or
            always.
        clock: returns the current round, for the ledger and for sampling.
        watch: by action, a function that is called with the replies of every call whose answers reach this process.
        checks: by action, what is wrong with an answer of a party on another machine, or with a sum of such answers.
        bounds: by action, fields that count something (`Binding.bounds`). Other real numbers of an action without a
            check are bounded by what was sent, or by the answers of the other parties.
        aggregation: how means of what parties trained are made.
        tell_round: tell parties the round with every request (`Site.round`).
        private: how parties answer under differential privacy.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        seed: int = 0,
        quorum: float = 1.0,
        everyone: Needed = "never",
        clock: Callable[[], int] = lambda: 0,
        watch: Mapping[str, Callable[[Sequence[Reply]], None]] | None = None,
        checks: Mapping[str, AnswerCheck] | None = None,
        bounds: Mapping[str, Mapping[str, Held | None]] | None = None,
        aggregation: Aggregation | None = None,
        tell_round: bool = False,
        private: Private | None = None,
    ) -> None:
        self.aggregation = aggregation or Mean()
        self.aggregation.permit("none" if transport.sums is None else transport.protections.get("total", "masks"))
        self.transport = transport
        self.parties = transport.parties
        self.positions = positions_of(self.parties)
        self.ledger = Ledger()
        self.seed, self.quorum, self.everyone = seed, quorum, everyone
        self.tell_round, self.private = tell_round, private
        self.clock, self.watch, self.checks, self.bounds = clock, watch or {}, dict(checks or {}), bounds or {}

    def sample(self, fraction: float, *purpose: object) -> tuple[str, ...]:
        """Sample a share of the parties, at least one, anew for every round and purpose."""
        count = max(1, round(fraction * len(self.parties)))
        if count >= len(self.parties):
            return self.parties
        chosen = draws_of(self.seed, "sample", self.clock(), *purpose).some(len(self.parties), count)
        return tuple(self.parties[at] for at in chosen.tolist())

    def ask(self, action: str, request: Request = None, *, of: Sequence[str] | None = None) -> Answers:
        """Ask parties for answers that the server reads one by one."""
        asked, request = self._check(action, request, of)
        return Answers(self._call(Command("answer", asked, action, "ask", request), "server sees each answer"), asked)

    @overload
    def total(
        self,
        action: str,
        request: Request = ...,
        *,
        of: Sequence[str] | None = ...,
        to: Literal["server"] = ...,
        rows: IdUnion | None = ...,
        min_contributors: int = ...,
    ) -> Total: ...

    @overload
    def total(
        self,
        action: str,
        request: Request = ...,
        *,
        of: Sequence[str] | None = ...,
        to: Literal["parties"],
        rows: IdUnion | None = ...,
        min_contributors: int = ...,
        coefficients: Coefficients | None = ...,
    ) -> Receipt: ...

    def total(
        self,
        action: str,
        request: Request = None,
        *,
        of: Sequence[str] | None = None,
        to: To = "server",
        rows: IdUnion | None = None,
        min_contributors: int = 1,
        coefficients: Coefficients | None = None,
    ) -> Total | Receipt:
        """Add up the parties' answers to one sum, or weighted mean; nobody sees a summand.

        Arguments:
            to: who reads the sum: the server, or only the parties (`Site.received`).
            rows: fields are keyed by rows over this union (see `agree`); each answer names its ids in `ids`. A party
                receives the rows that it names in `wants` (its own `ids` without it).
            min_contributors: a sum, or a row of it, with fewer contributors is not opened.
            coefficients: one weighted sum per addressee, sum_j c_ij x_j, that only the addressee receives. Contributors
                with coefficient 0 do not count towards `min_contributors`; an addressee with too few gets no sum, and
                the receipt says why.
        """
        asked, request = self._check(action, request, of)
        sums = None if self.private is None else self.private.sums
        private = sums if sums is not None and action in sums.actions else None
        if private is not None:
            if to != "server" or rows is not None:
                raise IsthmusError(f"privacy: action '{action}' makes no sum over all for the server")
            request = private.request(action, request, asked)
        eyes: Eyes = "server sees the sum" if to == "server" else "parties see the sum"
        if coefficients is not None:
            self._check_coefficients(action, coefficients, to, rows)
        if self.transport.sums is not None:

            def check(total: Total, introduced: Introduced) -> str:
                why = self.aggregation.problem(total.single_means(), request)
                why = why or self._problem(action, total.payload(), introduced)
                return why or ("" if action in self.checks else sum_problem(total, request, self.transport.norm))

            wanted = TotalRequest(action, request, asked, to, rows, min_contributors, self.needed(asked), check)
            if private is not None:  # a sum with noise is opened once
                least = max(wanted.quorum, private.plan.least(len(asked)))
                wanted = replace(wanted, quorum=least, check=TotalRequest.check)
            closed = self._closed_total(self.transport.sums.total(wanted), wanted, eyes)
            return closed if private is None else private.opened(action, cast(Total, closed), request, asked)
        rule = self.aggregation
        sum_only = to == "server" and rows is None and action not in self.watch and not isinstance(rule, Comparison)
        command = Command("answer", asked, action, "total", request, sum_only, same_form=to == "server", to=to)

        def in_bounds(reply: Reply, at: int, introduced: Introduced) -> str:
            return answer_problem(reply, at, introduced, len(asked), rows)

        replies = self._call(command, eyes, in_bounds)
        wants = _values(replies, "wants") if rows is not None else {}
        for reply in replies if rows is not None else ():
            reply.columns.pop("wants", None)
        if coefficients is not None:
            parcels, refused = _weighted_sums(replies, self.positions, coefficients, min_contributors)
            return self._deliver(action, parcels, {}, _failures(replies) | refused)
        total = PlainTotal(replies, self.positions, rows, min_contributors)
        if private is not None:
            return private.opened(action, total, request, asked)
        if total.opened is not None and len(total.opened) and not bool(total.opened.any()):
            log.warning("round %d, %s: no row has %d contributors", self.clock(), action, min_contributors)
        if to == "server":
            if isinstance(rule, Comparison) and (values := stack_returned(replies, request, self.positions)):
                total.means = rule.combine(values)
            return total
        ids = _values(replies, "ids") | wants
        parcels = {party: _parcel(total, ids.get(party)) for party in asked}
        return self._deliver(action, parcels, {party: len(own) for party, own in ids.items()}, total.missing)

    def exchange(self, action: str, request: Request = None, *, of: Sequence[str] | None = None) -> Receipt:
        """Pass messages between parties; the server learns their sizes, not their content."""
        asked, request = self._check(action, request, of)
        replies = self._call(Command("answer", asked, action, "exchange", request), "the addressed party")
        known = set(self.parties)
        inboxes: dict[str, dict[str, Any]] = {}
        sizes: dict[tuple[str, str], int] = {}
        sent = [each for reply in replies for each in zip(reply.parties, reply.letters, strict=True)]
        for sender, letters in sorted(sent, key=lambda each: self.positions[each[0]]):
            for addressee, payload in letters.items():
                if addressee not in known:
                    raise PayloadError(
                        f"party '{sender}', action '{action}': a message to '{addressee}', "
                        f"which is not in the federation: {did_you_mean(addressee, self.parties)}"
                    )
                inboxes.setdefault(addressee, {})[sender] = payload
                sizes[sender, addressee] = wire.size(payload)
        received = {party: sum(sizes[sender, party] for sender in senders) for party, senders in inboxes.items()}
        rows = {party: sum(map(count_rows, inbox.values())) for party, inbox in inboxes.items()}
        delivered = self._send("deliver", payload=inboxes, action=action)
        refused = _refused(action, delivered, sizes)
        self._book_received(received, rows, refused)
        missing = _failures(replies) | refused
        self._require_answers(action, asked, len(set(asked) - missing.keys()), missing)
        return Receipt(sizes, missing)

    def agree(self, action: str, request: Request = None) -> IdUnion:
        """The union of the (hashed) ids that the parties answer in the field `ids`: a step of set-up."""
        asked, request = self._check(action, request, None)

        def has_ids(reply: Reply, at: int, introduced: Introduced) -> str:
            if "ids" not in reply.columns:
                return "no field 'ids' in the answer"
            nodes = sum(each.nodes for each in self.transport.introduced.values())  # a party may know others' nodes
            why = ids_problem(slice_of(reply.columns["ids"], at), nodes)
            return why and f"field 'ids' {why}"

        command = Command("answer", asked, action, "ask", request)
        answers = Answers(self._call(command, "server sees each answer", has_ids), asked)
        for party, answer in answers.items():
            if "ids" not in answer:
                raise PayloadError(f"party '{party}', action '{action}': no field 'ids' in the answer")
        held = torch.cat([answer["ids"].unique() for answer in answers.values()])
        ids, holders = torch.unique(held, return_counts=True)
        union = IdUnion(ids, holders)
        return IdUnion(ids, holders, {party: union.positions(answer["ids"]) for party, answer in answers.items()})

    # ---- state and models of the sites, which no verb shows

    def save(self) -> dict[str, Any]:
        """Save the sites' state; return it, or the mark under which parties keep it."""
        return self._states("save")

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the sites' state from the value that `save` returned."""
        self._send("restore", payload=saved)

    def models(self, threshold: float | list[float] | None = None) -> dict[str, Any]:
        """Return by party the model that it evaluated last; parties on other machines write theirs there instead.

        Arguments:
            threshold: of decisions, if validation items chose it; a party writes it beside its model.
        """
        return self._states("models", payload=threshold)

    def counted(self) -> dict[str, Any]:
        """Return by party the counts of its evaluation, which stay there, for a study with all sites at hand."""
        return self._states("counted")

    def _states(self, do: Literal["save", "models", "counted"], **what: Any) -> dict[str, Any]:
        found = {party: state for reply in self._send(do, **what) for party, state in reply.state.items()}
        return dict(sorted(found.items(), key=lambda item: self.positions.get(item[0], 0)))

    def _send(self, do: Literal["deliver", "save", "restore", "models", "counted"], **what: Any) -> list[Reply]:
        return self.transport.send(Command(do, self.parties, **what))

    # ---- what the verbs have in common

    def _check(self, action: str, request: Request, of: Sequence[str] | None) -> tuple[tuple[str, ...], Any]:
        """Return the parties asked and the request, after a check of both."""
        asked = self.parties if of is None else tuple(of)
        request = {} if request is None else request
        known = set(self.parties)
        for party in asked:
            if party not in known:
                raise IsthmusError(f"action '{action}': unknown party '{party}': {did_you_mean(party, known)}")
            if isinstance(request, Each) and party not in request.payloads:
                raise IsthmusError(f"action '{action}': no request for party '{party}'")
        if len(set(asked)) < len(asked) or not asked:
            double = next((party for party in asked if asked.count(party) > 1), "")
            what = f"party '{double}' was asked twice" if double else "no party was asked"
            raise IsthmusError(f"action '{action}': {what}")
        if self.tell_round:
            request = _with_round(request, self.clock())
        _check_request(action, request, asked, self.transport.limit)
        return asked, request

    def _check_coefficients(self, action: str, coefficients: Coefficients, to: To, rows: IdUnion | None) -> None:
        if to != "parties" or rows is not None:
            raise IsthmusError(f"action '{action}': coefficients go with to='parties' and without rows")
        self.permit_coefficients(action)
        for party, own in coefficients.items():
            for name in (party, *own):
                if name not in self.parties:
                    raise IsthmusError(
                        f"action '{action}': coefficients of an unknown party '{name}': "
                        f"{did_you_mean(name, self.parties)}"
                    )
            if not all(math.isfinite(value) for value in own.values()):
                raise NotFinite(f"action '{action}': coefficients for party '{party}' are not finite")

    def permit_coefficients(self, action: str) -> None:
        """Refuse sums with coefficients where a protection hides the summands."""
        if self.transport.sums is not None:
            name = self.transport.protections.get("total", "a protection")
            raise IsthmusError(
                f"action '{action}': '{name}' hides the summands of one sum and cannot make another one for each "
                "addressee: set protect.total = 'none', or use a method that needs one sum for all"
            )

    def _closed_total(self, result: Any, wanted: TotalRequest, eyes: Eyes) -> Total | Receipt:
        """Add a protected total to the ledger and check that enough parties are in it."""
        total, action, asked = result.total, wanted.action, wanted.asked
        self._book("total", action, result.received, asked, result.sent, result.fields, total.missing, eyes)
        self._require_answers(action, asked, total.contributors, total.missing)
        if wanted.to == "server":
            return total
        self._book_received(result.delivered)
        if others := tuple(party for party in self.parties if party not in result.delivered):
            self.transport.send(Command("deliver", others, action, payload={}))  # an earlier delivery is void
        return Receipt({("total", party): size for party, size in result.delivered.items()}, total.missing)

    def _deliver(
        self, action: str, parcels: Mapping[str, Any], rows: Mapping[str, int], missing: Mapping[str, str]
    ) -> Receipt:
        """Hand parties their parts of a total."""
        sizes = {party: wire.size(parcel) for party, parcel in parcels.items()}
        self._book_received(sizes, rows)
        self._send("deliver", payload=parcels, action=action)
        return Receipt({("total", party): size for party, size in sizes.items()}, missing)

    def _problem(self, action: str, answer: Mapping[str, Any], introduced: Introduced) -> str:
        """Say what is wrong with an answer to an action, or with a sum of answers."""
        if action in self.checks:
            return self.checks[action](answer, introduced)
        return count_problem(self.bounds.get(action, {}), answer, introduced)

    def _out_of_bounds(self, reply: Reply, command: Command, bounds: BoundCheck | None) -> dict[int, str]:
        """Positions of parties on other machines whose answers cannot be true, or cannot be used."""
        faulty: dict[int, str] = {}
        for at, party in enumerate(reply.parties):
            introduced = self.transport.introduced.get(party)
            if introduced is None or command.verb == "exchange":
                continue
            fields = reply.fields(at)
            why = "" if bounds is None else bounds(reply, at, introduced)
            why = why or self.aggregation.problem(fields, command.payload)
            if why := why or self._problem(command.action, wire.unflatten(fields), introduced):
                faulty[at] = why
        return faulty

    def _without_largest(self, replies: list[Reply], command: Command) -> list[Reply]:
        """Replies to a total, without answers that are much larger than what was sent, or than most."""
        if command.verb != "total" or command.action in self.checks or not self.transport.introduced:
            return replies
        counts, reach = self.bounds.get(command.action, {}), self.transport
        faults = size_problems(replies, command.payload, reach.introduced, reach.norm, [n for n in counts if counts[n]])
        at = [{i: faults[party] for i, party in enumerate(each.parties) if party in faults} for each in replies]
        return [leave_out(command.action, each, own) for each, own in zip(replies, at, strict=True)]

    def _call(self, command: Command, eyes: Eyes, bounds: BoundCheck | None = None) -> list[Reply]:
        """Call an action; return the replies without faulty answers, and add the call to the ledger.

        Arguments:
            bounds: says what is wrong with an answer of a party on another machine, by its position in a reply.
        """
        action, asked, verb = command.action, command.of, command.verb
        assert verb is not None
        limit = self.transport.limit
        sent_back = self.transport.send(command)
        replies = [check_reply(each, command, limit, self.positions) for each in sent_back]
        replies = [leave_out(action, each, self._out_of_bounds(each, command, bounds)) for each in replies]
        replies = self._without_largest(replies, command)
        arrivals = [reply.arrival for reply in replies if reply.arrival is not None]
        sent = {party: size for arrival in arrivals for party, size in arrival.sent.items()}
        rows = {party: count for arrival in arrivals for party, count in arrival.rows.items()}
        described = {at: fields for arrival in arrivals for at, fields in arrival.fields.items()}
        fields = described[min(described)] if described else ""
        missing = _failures(replies)
        self._book(verb, action, request_sizes(command.payload, asked), asked, sent, fields, missing, eyes, rows)
        self._require_answers(action, asked, sum(len(reply.parties) for reply in replies), missing)
        if action in self.watch:
            self.watch[action](replies)
        return replies

    def _book(
        self,
        verb: Verb,
        action: str,
        received: Mapping[str, int],
        asked: tuple[str, ...],
        sent: Mapping[str, int],
        fields: str,
        missing: Mapping[str, str],
        eyes: Eyes,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        for party, why in missing.items():
            log.warning("party '%s' is left out of round %d: %s", party, self.clock(), why)
        self.ledger.add(
            Entry(
                round=self.clock(),
                call=len(self.ledger.entries),
                verb=verb,
                action=action,
                eyes=eyes,
                fields=fields,
                protection=self.transport.protections.get(verb, "none"),
                parties=asked,
                sent=tuple(sent.get(party, 0) for party in asked),
                received=tuple(received[party] for party in asked),
                notes=missing,
                rows=rows or {},
            )
        )

    def _book_received(
        self,
        sizes: Mapping[str, int],
        rows: Mapping[str, int] | None = None,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Add the deliveries of the last call to the ledger: sums, or other parties' messages."""
        last, refused = self.ledger.entries[-1], refused or {}
        for party, why in refused.items():
            log.warning("party '%s' is left out of round %d: %s", party, self.clock(), why)
        sizes = {**dict.fromkeys(refused, 0), **sizes}
        delivery = replace(
            last,
            call=len(self.ledger.entries),
            action=f"{last.action}{DELIVERY}",
            parties=tuple(sizes),
            sent=(0,) * len(sizes),
            received=tuple(sizes.values()),
            notes=refused,
            rows=rows or {},
        )
        self.ledger.add(delivery)

    def needed(self, asked: Sequence[str] | None = None) -> int:
        """Return how many of these parties must answer; without an argument, of all."""
        asked = self.parties if asked is None else asked
        if self.everyone == "always" or (self.everyone == "set-up" and self.clock() == 0):
            return len(asked)
        return max(1, math.ceil(self.quorum * len(asked) - 1e-9))  # 0.07 * 100 is a little more than 7

    def _require_answers(self, action: str, asked: Sequence[str], answered: int, missing: Mapping[str, str]) -> None:
        needed = self.needed(asked)
        if answered >= needed and not (missing and needed == len(asked)):
            return
        due = "all must" if needed == len(asked) else f"quorum {needed}"
        reasons = {party: why.removeprefix(f"action '{action}', ") for party, why in missing.items()}
        kind = Diverged if missing and all(NotFinite.HINT in why for why in missing.values()) else TooFewAnswers
        raise kind(
            f"round {self.clock()}, {action}: only {answered} of {len(asked)} parties answered ({due}). "
            f"Missing: {format_missing(reasons)}"
        )


def format_missing(notes: Mapping[str, str]) -> str:
    """List missing parties with the reasons: parties with the same reason together, at most three reasons.

    >>> format_missing({"north": "timed out", "south": "disk full", "west": "timed out"})
    'north, west (timed out), south (disk full)'
    """
    by_reason: dict[str, list[str]] = {}
    for party, why in notes.items():
        by_reason.setdefault(why, []).append(party)
    reasons = [
        f"{', '.join(parties[:3])}{f' and {len(parties) - 3} more' if len(parties) > 3 else ''} ({why})"
        for why, parties in by_reason.items()
    ]
    more = f" and {sum(map(len, list(by_reason.values())[3:]))} more" if len(reasons) > 3 else ""
    return f"{', '.join(reasons[:3])}{more}"


def request_sizes(request: wire.Payload | Each, asked: Sequence[str]) -> dict[str, int]:
    """Bytes of what every party is sent."""
    if isinstance(request, Each):
        return {party: wire.size(request.payloads[party]) for party in asked}
    return dict.fromkeys(asked, wire.size(request))


def _with_round(request: wire.Payload | Each, at: int) -> wire.Payload | Each:
    if isinstance(request, Each):
        return Each({party: {**payload, "round": at} for party, payload in request.payloads.items()})
    return {**request, "round": at}


def _check_request(action: str, request: wire.Payload | Each, asked: Sequence[str], limit: int) -> None:
    payloads = {f" to party '{p}'": request.payloads[p] for p in asked} if isinstance(request, Each) else {"": request}
    for whom, payload in payloads.items():
        try:
            wire.check(payload, limit=limit)
        except PayloadError as error:
            raise type(error)(f"server, request of action '{action}'{whom}: {error}") from error


def _failures(replies: Sequence[Reply]) -> dict[str, str]:
    """By party why it has no answer."""
    return {party: why for reply in replies for party, why in reply.failures.items()}


def _refused(action: str, delivered: Sequence[Reply], sent: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """By party why its messages count as not sent, or not received.

    A sender whose message one addressee refuses may have lied, and so may the addressee. If most addressees refuse its
    messages it is the sender, otherwise it is who refuses.
    """
    refusals = [
        (sender, reply.parties[0], why)
        for reply in delivered
        for sender, why in reply.failures.items()
        if (sender, reply.parties[0]) in sent
    ]
    addressed, refused = Counter(sender for sender, _ in sent), Counter(sender for sender, _, _ in refusals)
    by_most = {sender for sender, count in refused.items() if 2 * count > addressed[sender]}
    said: dict[str, str] = {}
    for sender in by_most:
        of_it = {to: why for each, to, why in refusals if each == sender}
        said[sender] = f"action '{action}', its message was refused by {_named(of_it)}"
    for addressee in {to for _, to, _ in refusals}:
        of_it = {each: why for each, to, why in refusals if to == addressee and each not in by_most}
        if of_it:
            said.setdefault(addressee, f"action '{action}', it refused the message of {_named(of_it)}")
    return said


def _named(reasons: Mapping[str, str]) -> str:
    """Parties, and the reason of the first."""
    return f"{', '.join(map(repr, reasons))}: {next(iter(reasons.values()))}"


def _weighted_sums(
    replies: Sequence[Reply], positions: Mapping[str, int], coefficients: Coefficients, min_contributors: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return by addressee its weighted sum, and by addressee without one the reason."""
    if any(reply.weights for reply in replies):
        raise PayloadError("answers to a total with coefficients have no weight: the coefficients are the weights")
    parcels: dict[str, Any] = {}
    refused: dict[str, str] = {}
    made: dict[tuple[tuple[str, float], ...], dict[str, Any]] = {}  # addressees may have the same coefficients
    for addressee, own in coefficients.items():
        if (same := made.get(tuple(own.items()))) is not None:
            parcels[addressee] = same
            continue
        weighted = []
        for reply in replies:
            at = [at for at, party in enumerate(reply.parties) if own.get(party, 0.0) != 0]
            part = reply if len(at) == len(reply.parties) else reply.keep(at)  # which copies
            weights = torch.tensor([own[party] for party in part.parties], dtype=torch.float64)
            weighted.append(Reply(part.parties, part.columns, {"": weights}))
        try:
            total = PlainTotal(weighted, positions, None, min_contributors)
        except TooFewAnswers as error:
            refused[addressee] = str(error)
            continue
        if total.contributors:
            parcels[addressee] = made[tuple(own.items())] = total.payload()
    return parcels, refused


def _values(replies: Sequence[Reply], name: str) -> dict[str, Any]:
    """One field of every party that answered it."""
    return {
        party: slice_of(reply.columns[name], at)
        for reply in replies
        if name in reply.columns
        for at, party in enumerate(reply.parties)
    }


def _parcel(total: Total, wants: Any) -> dict[str, Any]:
    """The part of a sum that goes to one party."""
    if total.rows is None:
        return total.payload()
    wants = total.rows.ids[:0] if wants is None else wants
    assert total.opened is not None
    at = total.rows.positions(wants.cpu())
    fields = {name: value[at.to(value.device)] for name, value in dict(wire.flatten(total.payload())).items()}
    return wire.unflatten({**fields, "ids": wants, "opened": total.opened[at]})
