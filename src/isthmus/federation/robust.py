"""Ways to combine what parties trained, some of which hold against parties that lie.

They concern the fields of an answer that come back from the request, such as the weights that were sent to be trained;
other fields of a total are added up as always.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Reply
from isthmus.federation.transport import Each
from isthmus.nn.stacks import length, slice_of
from isthmus.options import Registered

TOLERANCE = 1e-3
"""Share by which an update may exceed its bound: parties compute its norm in single precision."""


class Aggregation(Registered):
    """A way to combine what parties trained."""

    kind: ClassVar[str] = "aggregation"
    built_in_module: ClassVar[str] = "isthmus.federation.robust"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Aggregation:
        """The aggregation of a table with a name and options."""
        named = cls.named(str(options.get("name", "mean")))
        return named.read({key: value for key, value in options.items() if key != "name"}, f"aggregate {named.name}")

    def limit(self, answer: Answer, request: wire.Payload) -> Answer:
        """What parties send instead of their answers, side by side; most send them as they are."""
        return answer

    def problem(self, fields: Mapping[str, Any], request: wire.Payload | Each) -> str:
        """Say what is wrong with one party's answer, or with a mean of answers; most take any."""
        return ""

    def permit(self, protection: str) -> None:
        """Refuse a protection of totals under which it cannot work."""


class Comparison(Aggregation):
    """A way to combine answers that compares those of single parties."""

    @abstractmethod
    def combine(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By field the combination of the values `[parties, ...]` of the parties with a weight, in their order."""

    def permit(self, protection: str) -> None:
        if protection != "none":
            raise IsthmusError(
                f"aggregate = '{self.name}' compares the answers of single parties, which protect.total = "
                f"'{protection}' hides: set aggregate = 'clipped-mean', or protect.total = 'none'"
            )


class Mean(Aggregation):
    """The weighted mean. One party that lies can move it anywhere within `federation.norm`."""

    name: ClassVar[str] = "mean"


class ClippedMean(Aggregation):
    r"""The weighted mean of updates that are clipped to a largest norm (Sun et al. 2019), by the parties themselves.

    With w the weights that were sent and x those that party k trained, it sends
    :math:`w + (x - w) \min(1, b (1 + \lVert w\rVert) / \lVert x - w\rVert)`. So a party with the share s of the weight
    moves the mean by at most :math:`s\,b\,(1 + \lVert w\rVert)`. An answer beyond that is refused; under masks, a mean.
    """

    name: ClassVar[str] = "clipped-mean"

    bound: float = Field(1.0, gt=0)
    """b, the largest norm of an update, as a multiple of 1 and the norm of what was sent."""

    def limit(self, answer: Answer, request: wire.Payload) -> Answer:
        fields, sent = dict(wire.flatten(answer.fields)), dict(wire.flatten(request))
        parties = next((length(column) or 0 for column in fields.values()), 0)
        values: dict[str, list[Any]] = {}
        for at in range(parties):
            own = {path: slice_of(column, at) for path, column in fields.items() if path in sent}
            like = {path: _of_party(sent[path], value, at) for path, value in own.items()}
            pairs = {path: (value, like[path]) for path, value in own.items() if _comes_back(value, like[path])}
            factor = self._largest(pairs) / max(_distance(pairs), 1e-30)
            for path, (value, before) in pairs.items():
                clipped = value if factor >= 1 else before + factor * (value - before)
                values.setdefault(path, []).append(clipped.clone())
        whole = {path: column for path, column in values.items() if len(column) == parties}
        return Answer(wire.unflatten({**fields, **whole}), answer.weight) if whole else answer

    def problem(self, fields: Mapping[str, Any], request: wire.Payload | Each) -> str:
        if isinstance(request, Each):
            return ""
        sent = dict(wire.flatten(request))
        pairs = {path: (value, sent[path]) for path, value in fields.items() if _comes_back(value, sent.get(path))}
        size, most = _distance(pairs), self._largest(pairs)
        if not size > most * (1 + TOLERANCE):
            return ""
        return f"its update has the norm {size:.3g}, beyond {most:.3g} (aggregate 'clipped-mean', bound {self.bound:g})"

    def _largest(self, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> float:
        return self.bound * (1 + _norm([before for _, before in pairs.values()]))


class Median(Comparison):
    """The median of every single weight (Yin et al. 2018), over the parties with training items, each of which counts
    once. Holds against liars that are fewer than half."""

    name: ClassVar[str] = "median"

    def combine(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for path, stack in values.items():
            inorder = stack.sort(dim=0).values
            count = len(inorder)
            found[path] = (inorder[(count - 1) // 2] + inorder[count // 2]) / 2
        return found


class TrimmedMean(Comparison):
    """The mean of every single weight without the largest and the smallest values (Yin et al. 2018); each party counts
    once. Holds against liars that are no more than `share`."""

    name: ClassVar[str] = "trimmed-mean"

    share: float = Field(0.2, gt=0, lt=0.5)
    """Share of the values left out at either end, rounded up."""

    def combine(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for path, stack in values.items():
            cut = math.ceil(self.share * len(stack) - 1e-9)
            if len(stack) <= 2 * cut:
                raise TooFewAnswers(f"trimmed-mean without {cut} at either end needs more than {len(stack)} answers")
            found[path] = stack.sort(dim=0).values[cut : len(stack) - cut].mean(dim=0)
        return found


class Krum(Comparison):
    """The mean of the `keep` answers whose nearest answers are closest (Krum, Blanchard et al. 2017).

    An answer's score is the sum of the squared distances to its n - liars - 2 nearest others, n the number of answers;
    `keep` answers with the lowest scores count. Each counts once.
    """

    name: ClassVar[str] = "krum"

    liars: int = Field(1, ge=0)
    """How many parties may lie; it needs more than twice as many and two others."""
    keep: int = Field(1, ge=1)
    """Answers that count; 1 is Krum, more is Multi-Krum."""

    def combine(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = torch.cat([stack.reshape(len(stack), -1).double() for stack in values.values()], dim=1)
        count, nearest = len(flat), len(flat) - self.liars - 2
        if count < 2 * self.liars + 3:
            raise TooFewAnswers(
                f"krum against {self.liars} liars needs {2 * self.liars + 3} answers, there are {count}"
            )
        distances = flat.new_full((count, count), math.inf)
        for at in range(count):
            for other in range(at):
                distances[at, other] = distances[other, at] = (flat[at] - flat[other]).square().sum()
        scores = distances.sort(dim=1).values[:, :nearest].sum(dim=1)
        chosen = scores.sort(stable=True).indices[: self.keep].sort().values
        return {path: stack[chosen].mean(dim=0) for path, stack in values.items()}


def stack_returned(
    replies: Sequence[Reply], request: wire.Payload | Each, positions: Mapping[str, int]
) -> dict[str, Tensor]:
    """By field that comes back from the request, the values of all parties with a weight, in the parties' order."""
    sent = {} if isinstance(request, Each) else dict(wire.flatten(request))
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for reply in replies:
        for path, column in reply.columns.items():
            name = next((each for each in (path.split("/", 1)[0], "") if each in reply.weights), None)
            for at, party in enumerate(reply.parties):
                weight = 1.0 if name is None else slice_of(reply.weights[name], at)
                value = slice_of(column, at)
                if _comes_back(value, sent.get(path)) and float(weight) > 0:
                    found.setdefault(path, []).append((positions[party], value.cpu().clone()))
    ordered = {path: sorted(values, key=lambda each: each[0]) for path, values in found.items()}
    return {path: torch.stack([value for _, value in values]) for path, values in ordered.items()}


def _comes_back(value: Any, sent: Any) -> bool:
    """Whether a value is a trained version of what was sent."""
    if not (isinstance(value, Tensor) and isinstance(sent, Tensor)):
        return False
    return value.is_floating_point() and value.shape == sent.shape


def _of_party(sent: Any, value: Any, at: int) -> Any:
    """What was sent to one party: the same for all, or a slice of a stack."""
    own = isinstance(sent, Tensor) and isinstance(value, Tensor) and sent.dim() == value.dim() + 1
    return sent[at] if own else sent


def _norm(values: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(value.contiguous(), dtype=torch.float64)) for value in values))


def _distance(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> float:
    """The norm of an update."""
    return _norm([value - before.to(value.device, value.dtype) for value, before in pairs.values()])
