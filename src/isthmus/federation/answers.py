"""What parties say: answers of a cohort, and the sums and selections that the server makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers
from isthmus.federation import wire
from isthmus.nn.per_party import FirstLayer

Column: TypeAlias = Tensor | FirstLayer | Sequence[Any]
"""One field of several parties: a stack (leading party dimension), or a list where parties differ in shape."""


@dataclass(frozen=True)
class Answer:
    """What a site answers for its parties, side by side.

    Arguments:
        fields: names to stacks `[parties, ...]`, to lists of one value per party, or to groups of these.
        weight: how much each party counts in a weighted mean, `[parties]`; or `[parties, rows]`, or a list of one
            tensor per party, for weights per row; or a mapping of field names to these (fields that it does not
            name count as they are). None: every party counts once.
    """

    fields: Mapping[str, Any]
    weight: Any = None


@dataclass(frozen=True)
class Mail:
    """What a site sends for its parties to other parties: for each of them a mapping of addressees to payloads."""

    letters: Sequence[Mapping[str, wire.Payload]]


@dataclass
class Reply:
    """What came back from one site: the answers of some of its parties, and why others have none."""

    parties: tuple[str, ...]
    columns: dict[str, Column] = field(default_factory=dict)
    weights: dict[str, Column] = field(default_factory=dict)
    letters: Sequence[Mapping[str, wire.Payload]] = ()
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, parties: Sequence[str], answer: Answer | Mail) -> Reply:
        if isinstance(answer, Mail):
            return cls(tuple(parties), letters=answer.letters)
        columns = dict(wire.flatten(answer.fields))
        weights: dict[str, Column] = {}
        if isinstance(answer.weight, Mapping):
            weights = dict(answer.weight)
        elif answer.weight is not None:
            weights = {"": answer.weight}
        return cls(tuple(parties), columns, weights)

    def payload(self, at: int) -> dict[str, Any]:
        """The answer of the party at this position as it travels."""
        fields = {name: slice_of(column, at) for name, column in self.columns.items()}
        for name, column in self.weights.items():
            fields[f"weight of/{name or 'all'}"] = slice_of(column, at)
        return wire.unflatten(fields)

    def sizes(self) -> tuple[int, ...]:
        """Bytes of every party's answer."""
        count = len(self.parties)
        stacks = [*self.columns.values(), *self.weights.values()]
        if count and all(isinstance(stack, Tensor | FirstLayer) for stack in stacks):
            return (wire.size(self._outline(0)),) * count
        return tuple(wire.size(self._outline(at)) for at in range(count))

    def _outline(self, at: int) -> dict[str, Any]:
        """As `payload`, shapes without data where a slice would have to be put together."""
        named = {**self.columns, **{f"weight of/{name or 'all'}": column for name, column in self.weights.items()}}
        fields = {
            name: column.outline() if isinstance(column, FirstLayer) else slice_of(column, at)
            for name, column in named.items()
        }
        return wire.unflatten(fields)

    def describe(self) -> str:
        return wire.describe(self._outline(0)) if self.parties and self.columns else ""

    def keep(self, positions: Sequence[int]) -> Reply:
        """The answers of some of the parties."""
        at = list(positions)

        def pick(column: Column) -> Column:
            if isinstance(column, FirstLayer):
                return column.stack()[at]
            return column[at] if isinstance(column, Tensor) else [column[i] for i in at]

        return Reply(
            tuple(self.parties[i] for i in at),
            {name: pick(column) for name, column in self.columns.items()},
            {name: pick(column) for name, column in self.weights.items()},
            [self.letters[i] for i in at] if self.letters else (),
            dict(self.failures),
        )

    def not_finite(self) -> dict[int, str]:
        """Positions of parties whose answer has NaN or infinite values, and in which field."""
        bad: dict[int, str] = {}
        for name, column in self.columns.items():
            for at, fine in enumerate(_finite(column)):
                if not fine:
                    bad.setdefault(at, name)
        return bad


def slice_of(column: Column, at: int) -> Any:
    """One party's value of a field."""
    if isinstance(column, FirstLayer):
        return column.slice(at)
    value = column[at]
    return value.detach() if isinstance(value, Tensor) else value


def each(column: Column) -> Iterator[Any]:
    """Every party's value of a field, in party order; use each before asking for the next."""
    yield from column.slices() if isinstance(column, FirstLayer) else column


def _finite(column: Column) -> list[bool]:
    if isinstance(column, FirstLayer):
        rest = [bool(torch.isfinite(part).all()) for part in column.rest.detach()]
        parts = column.kept.detach().split(column.columns.sizes)
        return [
            rest[int(trains)] and bool(torch.isfinite(part.sum()) or torch.isfinite(part).all())
            for part, trains in zip(parts, column.trains, strict=True)
        ]
    if isinstance(column, Tensor):
        if not column.is_floating_point() or column.numel() == 0:
            return [True] * column.size(0)
        sums = column.detach().reshape(column.size(0), -1).sum(1)  # a sum is finite only if every term is
        if bool(torch.isfinite(sums).all()):
            return [True] * column.size(0)
        return torch.isfinite(column.reshape(column.size(0), -1)).all(1).tolist()
    return [
        bool(torch.isfinite(value).all()) if isinstance(value, Tensor) and value.is_floating_point() else value == value
        for value in (v if not isinstance(v, Tensor) or v.is_floating_point() else 0 for v in column)
    ]


class Answers(Mapping[str, Mapping[str, Any]]):
    """The answers to `ask`, by party; `missing` says who has none, and why."""

    def __init__(self, replies: Sequence[Reply], asked: Sequence[str]) -> None:
        found = {party: reply.payload(at) for reply in replies for at, party in enumerate(reply.parties)}
        self._answers = {party: found[party] for party in asked if party in found}
        self.missing = {party: why for reply in replies for party, why in reply.failures.items()}

    def __getitem__(self, party: str) -> Mapping[str, Any]:
        if party not in self._answers:
            raise IsthmusError(f"party '{party}' has no answer: {self.missing.get(party, 'it was not asked')}")
        return self._answers[party]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)


@dataclass(frozen=True)
class IdUnion:
    """The ids that some parties hold, agreed at set-up: sorted, each once."""

    ids: Tensor
    holders: Tensor

    def places(self, ids: Tensor) -> Tensor:
        """Rows of these ids in a sum over the union."""
        at = torch.searchsorted(self.ids, ids).clamp(max=max(0, self.ids.numel() - 1))
        if self.ids.numel() == 0 or not bool((self.ids[at] == ids).all()):
            raise PayloadError("rows with ids outside the agreed union")
        return at


class Total:
    """A sum over parties; nobody sees a summand.

    Arguments:
        replies: the answers, added in the order of `asked`, one multiplication and one addition each, so that the
            sum is the same to the bit however the parties are spread over sites.
        rows: a union of ids; then every field is keyed by rows, and each answer names its own in the field `ids`.
        least: rows with fewer contributors are not opened; a whole sum with fewer is an error.
    """

    def __init__(self, replies: Sequence[Reply], asked: Sequence[str], rows: IdUnion | None, least: int) -> None:
        self.rows = rows
        self.missing = {party: why for reply in replies for party, why in reply.failures.items()}
        order = {party: at for at, party in enumerate(asked)}
        self._replies = sorted(replies, key=lambda reply: min((order[p] for p in reply.parties), default=0))
        self.contributors = sum(len(reply.parties) for reply in replies)
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, Any] = {}
        if self.contributors < least:
            raise TooFewAnswers(
                f"a total of {self.contributors} part{'y' if self.contributors == 1 else 'ies'} is not opened: "
                f"at least {least} must contribute"
            )
        self.opened: Tensor | None = None
        if rows is not None:
            count = torch.zeros(rows.ids.numel(), dtype=torch.long)
            for reply in self._replies:
                for ids in each(reply.columns["ids"]):
                    count.index_add_(0, rows.places(ids.cpu()), torch.ones(ids.numel(), dtype=torch.long))
            self.opened = count >= least
        self._add()

    def sum(self, name: str) -> Any:
        """The (weighted) sum of a field or group of fields; rows that are not opened are zero."""
        return self._read(name, lambda path: self._sums[path])

    def mean(self, name: str) -> Any:
        """The weighted mean of a field or group of fields."""
        return self._read(name, self._mean)

    def payload(self) -> dict[str, Any]:
        """All sums, as they would travel."""
        return wire.unflatten(self._sums)

    def _read(self, name: str, value: Any) -> Any:
        if name in self._sums:
            return value(name)
        paths = [path for path in self._sums if path.startswith(f"{name}/")]
        if not paths:
            raise IsthmusError(f"no party answered a field '{name}' (there are: {', '.join(self._sums) or 'none'})")
        return wire.unflatten({path.removeprefix(f"{name}/"): value(path) for path in paths})

    def _mean(self, path: str) -> Tensor:
        total = self._weights[path]
        value = self._sums[path]
        if isinstance(total, Tensor):
            shaped = total.to(value.dtype).clamp(min=torch.finfo(value.dtype).tiny)
            return value / shaped.view(-1, *[1] * (value.dim() - 1))
        if total == 0:
            raise IsthmusError(f"the mean of '{path}' has no weight: no party that answered counts anything")
        return value / total

    def _add(self) -> None:
        for reply in self._replies:
            for path, column in reply.columns.items():
                if path == "ids" and self.rows is not None:
                    continue
                group = path.split("/", 1)[0]
                weights = reply.weights.get(group, reply.weights.get(""))
                self._add_column(path, column, weights, reply)

    def _add_column(self, path: str, column: Column, weights: Column | None, reply: Reply) -> None:
        scratch: Tensor | None = None
        for at, value in enumerate(each(column)):
            value = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
            weight: Any = None if weights is None else slice_of(weights, at)
            if self.rows is not None:
                self._add_rows(path, value, weight, slice_of(reply.columns["ids"], at))
                continue
            rowwise = isinstance(weight, Tensor) and weight.dim() > 0
            counted: Any = weight if rowwise else 1 if weight is None else float(weight)
            factor = counted.to(value.dtype).view(-1, *[1] * (value.dim() - 1)) if rowwise else counted
            self._weights[path] = self._weights.get(path, 0) + counted
            if path not in self._sums:
                start = value if weight is None else value * factor
                self._sums[path] = start.clone(memory_format=torch.contiguous_format)
                continue
            if weight is None:
                self._sums[path] += value
                continue
            scratch = torch.empty_like(self._sums[path]) if scratch is None else scratch
            self._sums[path] += torch.mul(value, factor, out=scratch)

    def _add_rows(self, path: str, value: Tensor, weight: Any, ids: Tensor) -> None:
        assert self.rows is not None
        assert self.opened is not None
        at = self.rows.places(ids.cpu()).to(value.device)
        opened = self.opened.to(value.device)[at]
        at, value = at[opened], value[opened]
        length = self.rows.ids.numel()
        if path not in self._sums:
            self._sums[path] = value.new_zeros(length, *value.shape[1:])
            self._weights[path] = torch.zeros(length, device=value.device)
        if weight is None:
            weight = 1.0
        row_weight = weight[opened] if isinstance(weight, Tensor) and weight.dim() else value.new_tensor(float(weight))
        shaped = row_weight.view(-1, *[1] * (value.dim() - 1)) if row_weight.dim() else row_weight
        self._sums[path].index_add_(0, at, (value * shaped).to(value.dtype))
        self._weights[path].index_add_(0, at, row_weight.float().expand(at.numel()))


@dataclass(frozen=True)
class Receipt:
    """What the server learns of messages that only passed through: who sent how many bytes to whom."""

    sizes: Mapping[tuple[str, str], int]
    missing: Mapping[str, str] = field(default_factory=dict)
