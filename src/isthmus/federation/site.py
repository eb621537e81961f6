"""The party side of a method: its actions, what it keeps, its random draws."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from isthmus.data.party import SPLITS, Cohort, Party
from isthmus.errors import IsthmusError, PartyFailed, did_you_mean
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.verbs import Each
from isthmus.nn.draws import generator
from isthmus.nn.per_party import PerParty
from isthmus.nn.stacks import slice_of
from isthmus.tasks.base import Step, Task

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from isthmus.methods.base import Method

Action = TypeVar("Action", bound=Callable[..., Any])


def action(function: Action) -> Action:
    """Mark a method of a `Site` as something a server may ask for."""
    function.__dict__["is_action"] = True
    return function


class Kept:
    """What a site keeps between actions, by name: a value per party, saved with a checkpoint.

    Reading gives the values of the parties asked now: a stack `[parties, ...]` where the value is a tensor, a mapping
    of stacks, or a list of one value per party where they differ in shape. Writing changes those parties' alone.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[int, Any]] = {}
        self._whole: dict[str, tuple[tuple[int, ...], Any]] = {}
        self.now: tuple[int, ...] = ()

    def __contains__(self, name: str) -> bool:
        """Whether every party asked now has a value of this name."""
        if name in self._whole and set(self.now) <= set(self._whole[name][0]):
            return True
        return name in self._values and all(at in self._values[name] for at in self.now)

    def __getitem__(self, name: str) -> Any:
        if name in self._whole and self._whole[name][0] == self.now:
            return self._whole[name][1]
        if name not in self:
            raise IsthmusError(f"nothing is kept under '{name}' yet")
        self._unpack(name)
        return _joined([self._values[name][at] for at in self.now])

    def __setitem__(self, name: str, value: Any) -> None:
        kept = self._whole.get(name)
        if kept is not None and not set(kept[0]) <= set(self.now):
            self._unpack(name)
        if name in self._values:
            for position, at in enumerate(self.now):
                self._values[name][at] = _part(value, position)
            return
        self._whole[name] = (self.now, value)

    def __delitem__(self, name: str) -> None:
        """What the parties asked now keep under this name has served."""
        self._unpack(name)
        for at in self.now:
            self._values.get(name, {}).pop(at, None)
        if not self._values.get(name):
            self._values.pop(name, None)

    def get(self, name: str, default: Any) -> Any:
        """As reading, with `default` (one party's value) for parties that have none."""
        if name in self:
            return self[name]
        self._unpack(name)
        have = self._values.get(name, {})
        return _joined([have.get(at, default) for at in self.now])

    def each(self, name: str) -> list[Any]:
        """As reading, always a list of one value per party."""
        if name not in self:
            raise IsthmusError(f"nothing is kept under '{name}' yet")
        self._unpack(name)
        return [self._values[name][at] for at in self.now]

    def _unpack(self, name: str) -> None:
        """From one stack to a value per party: what a sampled part of the parties reads and writes."""
        if name in self._whole:
            positions, value = self._whole.pop(name)
            self._values[name] = {at: _part(value, position) for position, at in enumerate(positions)}

    def save(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        for name in list(self._whole):
            self._unpack(name)
        return {
            party: {name: values[at] for name, values in self._values.items() if at in values}
            for at, party in enumerate(names)
        }

    def restore(self, names: Sequence[str], saved: Mapping[str, Mapping[str, Any]]) -> None:
        self._values, self._whole = {}, {}
        for at, party in enumerate(names):
            for name, value in saved.get(party, {}).items():
                self._values.setdefault(name, {})[at] = value

    def copy(self) -> Kept:
        """The same values; tensors are replaced, never changed, so a shallow copy is enough."""
        twin = Kept()
        twin._values = {name: dict(values) for name, values in self._values.items()}
        twin._whole = dict(self._whole)
        twin.now = self.now
        return twin


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return {name: _joined([value[name] for value in values]) for name in first}
    if isinstance(first, Tensor) and all(
        isinstance(v, Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values
    ):
        return torch.stack(list(values))
    return list(values)


def _part(value: Any, position: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _part(inner, position) for name, inner in value.items()}
    return slice_of(value, position)


class Site:
    """Hosts one party or several side by side and answers actions; a method's `AtParty` extends it.

    Inside an action `self.cohort` and `self.model` hold the parties asked now, in their order, whatever else the site
    hosts; `self.kept` is what each of them keeps.

    Arguments:
        method: with its options.
        parties: all that this site hosts.
        task: loss and metrics.
        module: the model before training, the same at every site.
        seed: of the run.
    """

    def __init__(
        self,
        method: Method,
        parties: Sequence[Party],
        task: Task,
        module: nn.Module,
        *,
        seed: int = 0,
        noise_seed: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.method = method
        self.task = task
        self.seed = seed
        self.noise_seed = seed if noise_seed is None else noise_seed
        self.hosted = Cohort(tuple(parties), device or torch.device("cpu"))
        self.kept = Kept()
        self.answered = [0] * len(self.hosted)
        self.cohort = self.hosted
        self.model = PerParty(module, len(self.hosted), self.hosted.device)
        self.inbox: dict[str, dict[int, Any]] = {}

    # ---- for methods

    def generators(self, *purpose: object) -> list[torch.Generator]:
        """One generator for each party asked now, seeded by run, party, the actions it has answered, and purpose."""
        return [
            generator(self.seed, name, self.answered[at], *purpose)
            for name, at in zip(self.cohort.names, self.kept.now, strict=True)
        ]

    def received(self, name: str) -> list[Any]:
        """For each party asked now what came for it under this action: a sum, or `{sender: payload}`."""
        box = self.inbox.get(name, {})
        return [box.get(at, {}) for at in self.kept.now]

    def weights_of_mean(self) -> Tensor:
        """How much each party counts in a mean, by the method's option `weighting`: `[parties]`."""
        return self.method.weighting_of(self.cohort).to(torch.float64)

    @action
    def evaluate(self, request: wire.Payload) -> Answer:
        """Counts from which the metrics are computed, of the weights in the request or of those the parties keep."""
        output, masks = self.task.postprocess(self._outputs(request), self.cohort.items), dict(self.cohort.masks)
        if self.cohort.pair_rows is not None:
            output, here = self._with_lent(output)
            masks = {split: mask & here[self.cohort.pair_rows].all(1) for split, mask in masks.items()}
        with torch.no_grad():
            counts: dict[str, Any] = {
                split: self.task.counts(self._step(output, masks[split])) for split in SPLITS if split != "train"
            }
        return Answer(counts)

    @action
    def lend(self, request: wire.Payload) -> Mail:
        """The outputs of own nodes that other parties' pairs end at go to those parties, before they evaluate."""
        letters: list[dict[str, wire.Payload]] = [{} for _ in self.cohort.names]
        outputs = self._outputs(request).split(self.cohort.block.sizes)
        for letter, party, output in zip(letters, self.cohort.parties, outputs, strict=True):
            if (pairs := party.pairs) is None or party.ids is None:
                continue
            counts = torch.bincount(pairs.borrower, minlength=len(pairs.owners)).tolist()
            ids, lent = party.ids[pairs.lent].split(counts), output[pairs.lent.to(output.device)].split(counts)
            for name, count, own, rows in zip(pairs.owners, counts, ids, lent, strict=True):
                letter |= {name: {"ids": own, "output": rows}} if count else {}
        return Mail(letters)

    def outputs(self, weights: wire.Payload) -> Tensor:
        """What the model says of all items of all hosted parties, for a study that holds them all; no action."""
        positions = tuple(range(len(self.hosted)))
        self.kept.now, self.cohort = positions, self.cohort_of(positions)
        self.model.resize(len(positions))
        return self._outputs({"weights": weights})

    def _outputs(self, request: wire.Payload) -> Tensor:
        """The model's output for every node, or graph."""
        self.model.load(request["weights"] if "weights" in request else self.kept["weights"])
        with torch.no_grad():
            return self.model(self.cohort.block)

    def _with_lent(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of own nodes and, after them, of borrowed ones; and a mask of what is there: not what a party
        would have to lend that did not answer."""
        parts, here = [output], [torch.ones(len(output), dtype=torch.bool, device=output.device)]
        for name, borrowed, came in zip(self.cohort.names, self.cohort.borrowed, self.received("lend"), strict=True):
            for owner, ids in borrowed.items():
                letter = came.get(owner, {"ids": ids, "output": output.new_zeros(ids.numel(), output.size(1))})
                if not torch.equal(letter["ids"].cpu(), ids) or letter["output"].shape != (ids.numel(), output.size(1)):
                    raise PartyFailed(
                        name, f"party '{owner}' lent other outputs than those of the nodes that it knows of"
                    )
                parts.append(letter["output"])
                here.append(torch.full((ids.numel(),), owner in came, device=output.device))
        return torch.cat(parts), torch.cat(here)

    def _step(self, output: Tensor, mask: Tensor) -> Step:
        cohort = self.cohort
        at = mask.nonzero().squeeze(1)
        sizes = torch.bincount(cohort.party[at], minlength=len(cohort))
        return Step(output[cohort.rows_of(at)], cohort.y[at], tuple(sizes.tolist()), at)

    def cohort_of(self, positions: Sequence[int]) -> Cohort:
        """The hosted parties at these positions; a method that trains on something else than they hold says so here."""
        return self.hosted.take(positions)

    # ---- for transports

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply:
        """Have the hosted ones among these parties answer; who cannot is named in the reply with the reason."""
        asked = set(of)
        positions = tuple(at for at, party in enumerate(self.hosted.names) if party in asked)
        actions = self.actions()
        if name not in actions:
            raise IsthmusError(f"method '{self.method.name}' has no action '{name}': {did_you_mean(name, actions)}")
        before = self.kept.copy(), list(self.answered)
        try:
            return self._answer(actions[name], request, positions)
        except Exception as error:
            self.kept, self.answered = before  # what the attempt changed is taken back
            self.forget()
            if len(positions) == 1:
                return self._failed(positions[0], name, error)
            # who of them it was shows when each is asked alone
            replies = [self.answer(name, request, (self.hosted.names[at],)) for at in positions]
            if not any(reply.parties for reply in replies):
                raise
            return _joined_replies(replies)

    def _answer(self, function: Any, request: wire.Payload | Each, positions: tuple[int, ...]) -> Reply:
        self.kept.now = positions
        self.cohort = self.cohort_of(positions)
        self.model.resize(len(positions))
        for at in positions:
            self.answered[at] += 1
        if isinstance(request, Each):
            request = _joined([request.payloads[name] for name in self.cohort.names])
        result = function(self, _to(request, self.hosted.device))
        result = Answer({}) if result is None else result
        return Reply.of(self.cohort.names, result)

    def _failed(self, at: int, name: str, error: Exception) -> Reply:
        party = self.hosted.names[at]
        why = error.reason if isinstance(error, PartyFailed) else str(error)
        if not isinstance(error, IsthmusError):  # a foreign text may quote data: it stays in the log of this machine
            log.error("party '%s', action '%s': %s", party, name, error, exc_info=error)
            why = f"{type(error).__name__} (the log at the party says more)"
        return Reply((), failures={party: f"action '{name}', {' '.join(why.split())}"})

    def forget(self) -> None:
        """What was made of `kept` is to be made again."""

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None:
        """Keep what came for hosted parties until the next delivery under the same action."""
        names, device = self.hosted.names, self.hosted.device
        self.inbox[name] = {at: _to(mail[party], device) for at, party in enumerate(names) if party in mail}

    def save(self) -> dict[str, Any]:
        """By party: what it keeps, what came for it, how many actions it has answered."""
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
        """The way back from `save`."""
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
            found |= {name: value for name, value in vars(each).items() if getattr(value, "is_action", False)}
        return found


class Prepared(Site):
    """A site whose parties train on something else than what they hold, once a set-up has made it.

    The set-up keeps what it made under `prepared`; `trained_on` says what party that makes.
    """

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self._made: Cohort | None = None

    @property
    def held(self) -> Cohort:
        """What the parties asked now hold themselves, beside what is made of it in `cohort`."""
        return self.hosted.take(self.kept.now)

    def weights_of_mean(self) -> Tensor:
        """As ever, by what parties hold: made nodes, copies and labels count for nothing."""
        return self.method.weighting_of(self.held).to(torch.float64)

    def begin(self, **values: Sequence[Any]) -> None:
        """What each hosted party keeps before any set-up: one that fails in it has this."""
        self.kept.now = tuple(range(len(self.hosted)))
        for name, each in values.items():
            self.kept[name] = list(each)
        self.forget()

    def trained_on(self, party: Party, prepared: Any) -> Party:
        """What the party trains on, by what it keeps under `prepared`."""
        raise NotImplementedError

    def cohort_of(self, positions: Sequence[int]) -> Cohort:
        if self._made is None:
            self.kept.now = tuple(range(len(self.hosted)))
            if "prepared" in self.kept:
                made = map(self.trained_on, self.hosted.parties, self.kept.each("prepared"))
                self._made = Cohort(tuple(made), self.hosted.device)
            self.kept.now = tuple(positions)
        return (self._made or self.hosted).take(positions)

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.forget()

    def forget(self) -> None:
        self._made = None


def _joined_replies(replies: Sequence[Reply]) -> Reply:
    """Replies of single parties as one; values stay in lists, for parties may differ in shape."""
    answered = [reply for reply in replies if reply.parties]
    first = answered[0]
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
