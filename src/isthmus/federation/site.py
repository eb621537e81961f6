"""The party side of a method: its actions, what it keeps, its random draws."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from traceback import format_exception
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from isthmus.data.cohort import Cohort
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError, PartyFailed, did_you_mean, out_of_memory
from isthmus.federation import wire
from isthmus.federation.actions import Binding, action
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.kept import Kept, join
from isthmus.federation.letters import letter_problem
from isthmus.federation.private import EVALUATE, Asked, Private
from isthmus.federation.robust import Aggregation
from isthmus.federation.transport import Command, Each
from isthmus.nn.draws import Draws, seed_of
from isthmus.nn.layerwise import infer
from isthmus.nn.per_party import PerParty
from isthmus.nn.stacks import Stack, dense, slice_of
from isthmus.nn.weights import Weights
from isthmus.own_code import is_own, where_raised
from isthmus.privacy.random_bits import NoiseKey
from isthmus.tasks.base import Step, Task

log = logging.getLogger(__name__)

OWN = "own model"
"""Name under which a party keeps the weights that are its own: a whole model, or a head."""
TRAINED = "trained model"
"""Name under which it keeps its model as local training left it, where that one is evaluated."""


class PartySideOf(Protocol):
    """What a site needs of its method."""

    name: ClassVar[str]

    @property
    def evaluate_with(self) -> Literal["sent", "trained"]: ...

    @property
    def evaluate_by(self) -> Literal["total", "ask"]: ...

    def averaging_weights(self, cohort: Cohort) -> Tensor: ...

    def aggregation(self) -> Aggregation: ...


class Site:
    """Hosts one party or several side by side and answers actions; a method's `AtParty` extends it.

    Inside an action, and inside `with site.asked(positions)`, `self.cohort` and `self.model` hold the parties asked, in
    their order, whatever else the site hosts; `self.kept` reads and writes the values of these parties.

    Arguments:
        method: with its options.
        parties: all that this site hosts.
        task: loss and metrics.
        module: the model before training, the same at every site.
        seed: of the run.
        noise_key: a party's secret key for noise that protects; without one, noise follows from `seed`.
        private: hides each party's data in what it answers.
    """

    method: Any

    def __init__(
        self,
        method: PartySideOf,
        parties: Sequence[Party],
        task: Task,
        module: nn.Module,
        *,
        seed: int = 0,
        noise_key: bytes | None = None,
        private: Private | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.method = method
        self.task = task
        self.seed = seed
        self.noise = NoiseKey(seed if noise_key is None else noise_key)
        if not getattr(method, "typed", True):  # it may change edges, whose features would then be those of others
            parties = [party.without_edge_features() for party in parties]
        self.private, self.counted = private, dict[str, Any]()
        self.hosted = Cohort(tuple(parties), device or torch.device("cpu"))
        self.kept = Kept()
        self.answered = [0] * len(self.hosted)
        self._draws = Draws.seeded([seed_of(seed, name) for name in self.hosted.names])
        self.cohort = self.hosted
        self.model = PerParty(module, len(self.hosted), self.hosted.device)
        self.inbox: dict[str, dict[int, Any]] = {}
        self._evaluated: list[tuple[tuple[str, ...], dict[str, Stack]]] = []
        self._failures: dict[str, list[str]] = {}
        self._request: wire.Payload | Each = {}

    @property
    def _held_back(self) -> Private | None:
        """How answers are held back; None where all may leave."""
        return self.private if self.private is not None and self.private.hides_items else None

    # ---- for methods

    @contextmanager
    def asked(self, positions: Sequence[int] | None = None) -> Iterator[None]:
        """Work for the hosted parties at these positions (all without): `cohort`, `model` and `kept` are theirs."""
        at = tuple(range(len(self.hosted))) if positions is None else tuple(positions)
        with self.kept.of(at):
            self.cohort = self.cohort_of(at)
            self.model.resize(len(at))
            yield

    @property
    def positions(self) -> tuple[int, ...]:
        """Where the parties asked stand among the hosted ones."""
        return self.kept.positions

    @property
    def round(self) -> int:
        """The round that the server is in, as the request says; only where the method `follows_rounds`."""
        request = next(iter(self._request.payloads.values())) if isinstance(self._request, Each) else self._request
        told = request.get("round")
        if type(told) is not int:
            raise IsthmusError("the request does not say which round it is: run the same version of isthmus everywhere")
        return told

    def draws(self, *purpose: object) -> Draws:
        """Draws of the parties asked, by run, party, the actions that it has answered, and purpose."""
        at = list(self.positions)
        return Draws(self._draws.keys[at]).of_counts([self.answered[i] for i in at]).of(*purpose)

    def received(self, name: str) -> list[Any]:
        """For each party asked, what was delivered to it under this action: a sum, or `{sender: payload}`."""
        box = self.inbox.get(name, {})
        return [box.get(at, {}) for at in self.positions]

    def averaging_weights(self) -> Tensor:
        """How much each party counts in a weighted mean, by the method's option `weighting`: `[parties]`."""
        weights: Tensor = self.method.averaging_weights(self.cohort)
        return weights.to(torch.float64)

    def load_model(self, sent: Mapping[str, Tensor]) -> None:
        """Load the parties' models: the initial weights, over them those that the server sent, then the own ones."""
        self.model.load(self.with_kept(OWN, {**self.model.initial, **sent}))

    def keep_model(self, names: Collection[str] | None = None) -> None:
        """Keep weights as they are now, those of these names or all, as the parties' own: no server ever gets them.

        A party without training items has learned nothing and keeps nothing.
        """
        self._keep(OWN, names)

    def with_kept(self, name: str, weights: Weights) -> Weights:
        """The weights, for each party replaced by those that it keeps under this name."""
        kept = self.kept.get(name, {})
        if isinstance(kept, Mapping):  # all parties keep the same weights, or none keeps any
            return {**weights, **kept}
        like = self.model.initial
        stacks: Weights = {}
        for weight in dict.fromkeys(weight for own in kept for weight in own):
            value = weights[weight].to(self.hosted.device)
            rows = value if value.dim() > like[weight].dim() else [value] * len(kept)
            stacks[weight] = torch.stack([own.get(weight, rows[at]) for at, own in enumerate(kept)])
        return {**weights, **stacks}

    def after_training(self) -> None:
        """Local training is over: keep the model where the trained one is evaluated."""
        if self.method.evaluate_with == "trained":
            self._keep(TRAINED, None)

    @action("total", "ask")
    def evaluate(self, request: wire.Payload) -> Answer:
        """The counts from which the metrics of validation and test items follow."""
        output, masks = self.task.postprocess(self.predict(request), self.cohort.items), dict(self.cohort.masks)
        if self.cohort.pair_rows is not None:
            output, present = self._with_lent(output)
            masks = {split: mask & present[self.cohort.pair_rows].all(1) for split, mask in masks.items()}
        with torch.no_grad():
            counts: dict[str, Any] = {
                split: self.task.counts(self.step(output, mask=masks[split])) for split in SPLITS if split != "train"
            }
        return Answer(counts)

    @action("exchange", protected=True)
    def lend(self, request: wire.Payload) -> Mail:
        """Send outputs of own nodes to the parties whose pairs end at them; they evaluate next."""
        letters: list[dict[str, wire.Payload]] = [{} for _ in self.cohort.names]
        outputs = self.predict(request).split(self.cohort.block.sizes)
        for letter, party, output in zip(letters, self.cohort.parties, outputs, strict=True):
            if (pairs := party.pairs) is None or party.ids is None:
                continue
            counts = torch.bincount(pairs.borrower, minlength=len(pairs.owners)).tolist()
            ids, lent = party.ids[pairs.lent].split(counts), output[pairs.lent.to(output.device)].split(counts)
            for name, count, own, rows in zip(pairs.owners, counts, ids, lent, strict=True):
                letter |= {name: {"ids": own, "output": rows}} if count else {}
        return Mail(letters)

    def predict(self, request: wire.Payload) -> Tensor:
        """The output for every node, graph or labelled edge, of the models that request and parties make together."""
        self.load_evaluated(request)
        output: Tensor = infer(self.model, self.cohort.block)
        return output

    def embed(self) -> tuple[Tensor, Tensor]:
        """Outputs and embeddings of all nodes, graphs or labelled edges, by the models as they are now."""
        output, embedding = infer(self.model, self.cohort.block, embed=True)
        return output, embedding

    def load_evaluated(self, request: wire.Payload) -> None:
        """Load the models that are evaluated, and remember them for `models`."""
        self.load_model(request.get("weights", {}))
        if self.method.evaluate_with == "trained":
            self.model.load(self.with_kept(TRAINED, self.model.stacks()))
        self._evaluated.append((self.cohort.names, self.model.weights()))

    def predict_all(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The outputs of a model for all items of all hosted parties; no action."""
        with self.asked():
            return self.predict({"weights": weights})

    def models(self) -> dict[str, Weights]:
        """By party the whole model that the last action evaluated."""
        return {
            party: {weight: slice_of(stack, at).clone() for weight, stack in stacks.items()}
            for names, stacks in self._evaluated
            for at, party in enumerate(names)
        }

    def context(self, party: str) -> dict[str, Tensor]:
        """The tensors that the last action was sent for a party beside weights, such as prototypes."""
        request = self._request.payloads.get(party, {}) if isinstance(self._request, Each) else self._request
        return {name: value for name, value in (request or {}).items() if isinstance(value, Tensor)}

    def step(self, output: Tensor, embedding: Tensor | None = None, *, mask: Tensor) -> Step:
        """The items in a mask with their outputs and labels, as the task's loss and counts take them."""
        cohort = self.cohort
        at = mask.nonzero().squeeze(1)
        sizes = torch.bincount(cohort.party[at], minlength=len(cohort))
        rows = at if cohort.level == "edge" else cohort.rows_of(at)
        self.check_output(output, rows)
        own = None if embedding is None else embedding[rows]
        return Step(output[rows], cohort.y[at], tuple(sizes.tolist()), at, own)

    def cohort_of(self, positions: Sequence[int]) -> Cohort:
        """The hosted parties at these positions; override where parties train on something else than they hold."""
        return self.hosted.take(positions)

    @property
    def has_own_model(self) -> bool:
        """Whether the model is of a user's own code."""
        return is_own(self.model.module)

    def check_output(self, output: Any, rows: Tensor) -> None:
        """Refuse what a user's own model may return where a tensor of real numbers is to have these rows."""
        if not self.has_own_model:
            return
        if not isinstance(output, Tensor):
            found = f"a {type(output).__name__}"
        elif not output.is_floating_point():
            found = f"numbers of type {str(output.dtype).removeprefix('torch.')}"
        elif rows.numel() and len(output) <= int(rows.max()):
            found = f"{len(output)} rows"
        else:
            return
        raise IsthmusError(
            f"model {type(self.model.module).__name__}: its forward returns {found}: return a tensor of real numbers "
            f"with a row for every {self.cohort.level}"
        )

    def _keep(self, name: str, only: Collection[str] | None) -> None:
        trained = (self.cohort.counts("train") > 0).nonzero().flatten().tolist()
        if trained:
            weights = {key: dense(stack) for key, stack in self.model.weights().items() if only is None or key in only}
            everyone = len(trained) == len(self.cohort)
            with self.kept.of([self.positions[at] for at in trained]):
                self.kept[name] = weights if everyone else {key: stack[trained] for key, stack in weights.items()}

    def _with_lent(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of own nodes and then of borrowed ones; a mask leaves out those whose lender did not answer."""
        parts, present = [output], [torch.ones(len(output), dtype=torch.bool, device=output.device)]
        for name, borrowed, came in zip(self.cohort.names, self.cohort.borrowed, self.received("lend"), strict=True):
            for owner, ids in borrowed.items():
                letter = came.get(owner, {"ids": ids, "output": output.new_zeros(ids.numel(), output.size(1))})
                if not torch.equal(letter["ids"].cpu(), ids) or letter["output"].shape != (ids.numel(), output.size(1)):
                    raise PartyFailed(name, f"party '{owner}' lent outputs of other nodes than those on both lists")
                parts.append(letter["output"])
                present.append(torch.full((ids.numel(),), owner in came, device=output.device))
        return torch.cat(parts), torch.cat(present)

    # ---- for transports

    def handle(self, command: Command) -> Reply:
        """Carry out a command for the parties among `command.of` that are hosted here."""
        if command.do == "answer":
            return self.answer(command.action, command.payload, command.of)
        if command.do in ("save", "models"):
            return Reply((), state=self.save() if command.do == "save" else self.models())
        if command.do == "counted":
            return Reply((), state=self.counted)
        if command.do == "deliver":
            self.deliver(command.action, command.payload)
        elif command.do == "restore":
            self.restore(command.payload)
        else:
            raise IsthmusError(f"unknown command '{command.do}': run the same version of isthmus everywhere")
        return Reply(())

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply:
        """As `attempt`; if several parties were asked and none can answer, the method is wrong: the error is raised."""
        reply, error = self.attempt(name, request, of)
        if error is not None and not reply.parties and len(reply.failures) > 1:
            raise error
        self.log_failures()
        return reply

    def attempt(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> tuple[Reply, Exception | None]:
        """Have the hosted ones among these parties answer.

        The reply names those who cannot, with the reason; the first error is returned beside it. The caller logs the
        failures (`log_failures`), unless it raises the error.
        """
        asked = set(of)
        positions = tuple(at for at, party in enumerate(self.hosted.names) if party in asked)
        actions = self.actions()
        if name not in actions:
            raise IsthmusError(f"method '{self.method.name}' has no action '{name}': {did_you_mean(name, actions)}")
        self._evaluated, self._request, self.counted, self._failures = [], request, {}, {}
        return self._attempt(name, actions[name], request, positions)

    def _attempt(
        self, name: str, function: Any, request: wire.Payload | Each, positions: tuple[int, ...]
    ) -> tuple[Reply, Exception | None]:
        inbox = {name: dict(box) for name, box in self.inbox.items()}
        before = self.kept.copy(), list(self.answered), list(self._evaluated), inbox
        try:
            return self.perform(function, request, positions), None
        except Exception as error:
            self.kept, self.answered, self._evaluated, self.inbox = before  # undo what the attempt changed
            self.invalidate()
            if len(positions) == 1:
                return self._failed(positions[0], name, error), error
            # asking each alone shows who it was
            replies = [self._attempt(name, function, request, (at,))[0] for at in positions]
            return _joined_replies(replies), error

    def perform(self, function: Any, request: wire.Payload | Each, positions: tuple[int, ...]) -> Reply:
        """Run one action for the parties at these positions."""
        with self.asked(positions):
            for at in positions:
                self.answered[at] += 1
            if isinstance(request, Each):
                request = join([request.payloads[name] for name in self.cohort.names])
            request = _to(request, self.hosted.device)
            result = function(self, request)
            if isinstance(result, Answer):
                result = self.method.aggregation().limit(result, request)
                if self._held_back is not None:
                    result = self._hidden(self._held_back, function.__name__, result, request)
            elif self._held_back is not None and result is not None:
                raise IsthmusError("refused: privacy does not cover messages to other parties")
            return Reply.of(self.cohort.names, Answer({}) if result is None else result)

    def _hidden(self, private: Private, name: str, answer: Answer, request: Any) -> Answer:
        """Replace an answer by what may leave the parties under the privacy account."""
        names = self.cohort.names
        if name != EVALUATE:
            return private.answer(
                name, answer, request, Asked(names, [self.answered[at] for at in self.positions], self.noise)
            )
        reply = Reply.of(names, answer)
        self.counted |= {party: reply.payload(at) for at, party in enumerate(names)}
        return Answer({})

    def _failed(self, at: int, name: str, error: Exception) -> Reply:
        party = self.hosted.names[at]
        why = error.reason if isinstance(error, PartyFailed) else str(error)
        if not isinstance(error, IsthmusError):  # a foreign text may quote data: it stays in the log of this machine
            place, full = where_raised(error), out_of_memory(error)
            said = full or (f"{type(error).__name__}: {error}" if place else "".join(format_exception(error)).rstrip())
            what = f"{place}: {said}" if place else said
            self._failures.setdefault(f"action '{name}': {what}", []).append(party)
            log.debug("party '%s', action '%s'", party, name, exc_info=error)
            why = f"{'out of memory' if full else type(error).__name__} (see the log at the party)"
        return Reply((), failures={party: f"action '{name}', {' '.join(why.split())}"})

    def log_failures(self) -> None:
        """Log what was no message for others when parties failed in the last attempt, a line for each different text.

        An error of a user's own code is the same at every party, most often.
        """
        for what, parties in self._failures.items():
            more = f" and {len(parties) - 1:,} more" if len(parties) > 1 else ""
            log.error("party '%s'%s, %s", parties[0], more, what)

    def least(self, name: str, request: wire.Payload | Each) -> int:
        """How many parties must be in a total of an action that was asked for so."""
        least = self.binding(name).least
        return least if self.private is None else max(least, self.private.least(name, request))

    def free(self) -> None:
        """Let go of the weights that the last action trained: another site of this process works next."""
        self.model.resize(len(self.hosted))

    def invalidate(self) -> None:
        """Invalidate everything derived from `kept`."""

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None:
        """Keep what came for hosted parties until the next delivery under the same action."""
        names, device = self.hosted.names, self.hosted.device
        self.inbox[name] = {at: _to(mail[party], device) for at, party in enumerate(names) if party in mail}

    def letter_problems(self, name: str, mail: Mapping[str, Any], norm: float) -> dict[str, str]:
        """By sender what is wrong with its message to the one party that is hosted here (`action(form=...)`).

        Arguments:
            norm: the largest number, as a multiple of 1 and the largest that the form has.
        """
        if (form := self.binding(name).form) is None:
            return {}
        with self.asked():
            problems = {sender: letter_problem(letter, form(self, sender), norm) for sender, letter in mail.items()}
        return {sender: why for sender, why in problems.items() if why}

    def save(self) -> dict[str, Any]:
        """By party: what it keeps, what was delivered to it, how many actions it has answered."""
        kept = self.kept.save(self.hosted.names)
        return {
            party: {
                "kept": kept[party],
                "inbox": {name: box[at] for name, box in self.inbox.items() if at in box},
                "answered": self.answered[at],
            }
            for at, party in enumerate(self.hosted.names)
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` returned."""
        names = self.hosted.names
        saved = _to(saved, self.hosted.device)
        self.kept.restore(names, {party: saved[party].get("kept", {}) for party in names})
        self.answered = [int(saved[party]["answered"]) for party in names]
        self.inbox = {}
        for at, party in enumerate(names):
            for name, value in saved[party].get("inbox", {}).items():
                self.inbox.setdefault(name, {})[at] = value

    @classmethod
    def actions(cls) -> dict[str, Any]:
        """What this site may be asked for, by name."""
        found: dict[str, Any] = {}
        for each in reversed(cls.__mro__):
            found |= {name: value for name, value in vars(each).items() if hasattr(value, "binding")}
        return found

    def binding(self, name: str) -> Binding:
        """How an action may be called."""
        actions = self.actions()
        if name not in actions:
            raise IsthmusError(f"method '{self.method.name}' has no action '{name}': {did_you_mean(name, actions)}")
        binding: Binding = actions[name].binding
        if isinstance(binding.contributors, str):
            binding = replace(binding, contributors=getattr(self.method, binding.contributors))
        if name != EVALUATE:
            return binding
        return replace(binding, verbs=("ask" if self._held_back else self.method.evaluate_by,))


class Prepared(Site):
    """A site whose parties train on what a set-up made of their data.

    The set-up keeps its result under `prepared`; `trained_on` turns that into the party that is trained on.
    """

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self._prepared: Cohort | None = None

    @property
    def held(self) -> Cohort:
        """What the parties asked hold themselves, beside what is made of it in `cohort`."""
        return self.hosted.take(self.positions)

    def averaging_weights(self) -> Tensor:
        """As always, counting what parties hold themselves: generated nodes, copies and labels count for nothing."""
        weights: Tensor = self.method.averaging_weights(self.held)
        return weights.to(torch.float64)

    def begin(self, **values: Sequence[Any]) -> None:
        """Keep a first value for each hosted party, so that one that fails in the set-up has it."""
        with self.kept.of(range(len(self.hosted))):
            for name, each in values.items():
                self.kept[name] = list(each)
        self.invalidate()

    def trained_on(self, party: Party, prepared: Any) -> Party:
        """The party that is trained on, given what is kept under `prepared`."""
        raise NotImplementedError

    def cohort_of(self, positions: Sequence[int]) -> Cohort:
        if self._prepared is None:
            with self.kept.of(range(len(self.hosted))):
                if "prepared" in self.kept:
                    parties = map(self.trained_on, self.hosted.parties, self.kept.each("prepared"))
                    self._prepared = Cohort(tuple(parties), self.hosted.device)
        return (self._prepared or self.hosted).take(positions)

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.invalidate()

    def invalidate(self) -> None:
        self._prepared = None


def _joined_replies(replies: Sequence[Reply]) -> Reply:
    """Replies of single parties as one; values stay in lists, because parties may differ in shape."""
    answered = [reply for reply in replies if reply.parties]
    first = answered[0] if answered else Reply(())
    return Reply(
        tuple(reply.parties[0] for reply in answered),
        {name: [slice_of(reply.columns[name], 0) for reply in answered] for name in first.columns},
        {name: [slice_of(reply.weights[name], 0) for reply in answered] for name in first.weights},
        [reply.letters[0] for reply in answered] if first.letters else (),
        {party: why for reply in replies for party, why in reply.failures.items()},
    )


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _to(inner, device) for name, inner in value.items()}
    return value
