"""Answers of parties, and the sums over them that a server reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers, did_you_mean
from isthmus.federation import wire
from isthmus.nn.stacks import Column, is_stack, length, not_finite, outline, pick, slice_of, slices

Letters: TypeAlias = Mapping[str, Any]
"""By addressee a payload, which may be sealed (`wire.Sealed`)."""


@dataclass(frozen=True)
class Answer:
    """The answer of a site for all parties asked, side by side.

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
    """Messages to other parties: for each party asked a mapping of addressees to payloads."""

    letters: Sequence[Mapping[str, wire.Payload]]


@dataclass
class Reply:
    """The reply of one site: the answers of some of its parties, and why others have none."""

    parties: tuple[str, ...]
    columns: dict[str, Column] = field(default_factory=dict)
    weights: dict[str, Column] = field(default_factory=dict)
    letters: Sequence[Letters] = ()
    failures: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """What a transport needs to restore the site, or models by party; empty in replies to actions."""

    @classmethod
    def of(cls, parties: Sequence[str], answer: Answer | Mail) -> Reply:
        if isinstance(answer, Mail):
            _check_length("mail", answer.letters, len(parties))
            return cls(tuple(parties), letters=answer.letters)
        columns = dict(wire.flatten(answer.fields))
        weights: dict[str, Column] = {}
        if isinstance(answer.weight, Mapping):
            weights = dict(answer.weight)
        elif answer.weight is not None:
            weights = {"": answer.weight}
        for name, column in columns.items():
            _check_length(f"field '{name}'", column, len(parties))
        for name, column in weights.items():
            if name and name not in answer.fields:
                raise PayloadError(f"a weight for '{name}', which is no field: {did_you_mean(name, answer.fields)}")
            _check_length(f"the weight of '{name or 'all'}'", column, len(parties))
        return cls(tuple(parties), columns, weights)

    @classmethod
    def of_one(cls, party: str, answer: Mapping[str, Any]) -> Reply:
        """A reply with the answer of one party, as the server reads it."""
        return cls((party,), {name: [value] for name, value in wire.flatten(answer)})

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
        if count and all(map(is_stack, stacks)):
            return (wire.size(self._outline(0)),) * count
        return tuple(wire.size(self._outline(at)) for at in range(count))

    def _outline(self, at: int) -> dict[str, Any]:
        """As `payload`, with shapes instead of data where a slice would have to be assembled."""
        named = {**self.columns, **{f"weight of/{name or 'all'}": column for name, column in self.weights.items()}}
        return wire.unflatten({name: outline(column, at) for name, column in named.items()})

    def describe(self) -> str:
        return wire.describe(self._outline(0)) if self.parties and self.columns else ""

    def keep(self, positions: Sequence[int]) -> Reply:
        """The answers of some of the parties."""
        at = list(positions)
        return Reply(
            tuple(self.parties[i] for i in at),
            {name: pick(column, at) for name, column in self.columns.items()},
            {name: pick(column, at) for name, column in self.weights.items()},
            [self.letters[i] for i in at] if self.letters else (),
            dict(self.failures),
        )

    def unsendable(self) -> dict[int, str]:
        """Positions of parties with an answer that cannot travel (`wire.check`), and what is wrong with it."""
        bad: dict[int, str] = {}
        named = {**self.columns, **{f"weight of/{name or 'all'}": column for name, column in self.weights.items()}}
        for name, column in named.items():
            for at in _to_check(column):
                if why := _problem(wire.unflatten({name: slice_of(column, at)})):
                    bad.setdefault(at, why)
        for at, letters in enumerate(self.letters):
            for payload in letters.values():
                if why := _problem(payload):
                    bad.setdefault(at, why)
        return bad


def _check_length(what: str, values: Any, parties: int) -> None:
    """Raise an error unless there is one value for each party."""
    count = length(values)
    if what.startswith("field") and count and not is_stack(values) and any(isinstance(v, Mapping) for v in values):
        raise PayloadError(f"{what} is a list of groups: answer a group of lists")
    if count != parties:
        got = f"one {type(values).__name__}" if count is None else f"{count} values"
        raise PayloadError(f"{what} has {got}, the parties asked are {parties}: answer a stack or a list")


def _problem(payload: wire.Payload | wire.Sealed) -> str:
    """Return why this payload cannot travel, or an empty text."""
    try:
        wire.check(payload)
    except PayloadError as error:
        return str(error)
    return ""


def _to_check(column: Column) -> Sequence[int]:
    """Positions of parties whose values need a check before they travel."""
    strange = isinstance(column, Tensor) and (column.layout != torch.strided or column.dtype not in wire.DTYPES)
    return not_finite(column) if is_stack(column) and not strange else range(length(column) or 0)


def _on_cpu(payload: wire.Payload) -> dict[str, Any]:
    """Move a payload to the CPU, where the server reads it."""
    fields = wire.flatten(payload)
    return wire.unflatten({name: value.cpu() if isinstance(value, Tensor) else value for name, value in fields})


class Answers(Mapping[str, Mapping[str, Any]]):
    """The answers to `ask`, by party; `missing` says who has none, and why."""

    def __init__(self, replies: Sequence[Reply], asked: Sequence[str]) -> None:
        found = {party: _on_cpu(reply.payload(at)) for reply in replies for at, party in enumerate(reply.parties)}
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
    """The ids that some parties hold, agreed at set-up: sorted, each once.

    Arguments:
        ids: `[rows]`.
        holders: how many parties hold each, `[rows]`.
        held: by party the rows of its ids, in its own order.
    """

    ids: Tensor
    holders: Tensor
    held: Mapping[str, Tensor] = field(default_factory=dict)

    def save(self) -> dict[str, Any]:
        """Return plain data for a server's state; `IdUnion(**saved)` restores the union."""
        return {"ids": self.ids, "holders": self.holders, "held": dict(self.held)}

    def positions(self, ids: Tensor) -> Tensor:
        """Rows of these ids in a sum over the union."""
        at = torch.searchsorted(self.ids, ids).clamp(max=max(0, self.ids.numel() - 1))
        if ids.numel() and (self.ids.numel() == 0 or not bool((self.ids[at] == ids).all())):
            raise PayloadError("ids outside the agreed union")
        return at


class Total:
    """A sum over parties; nobody sees a summand.

    Arguments:
        sums: by path of a field.
        weights: by path the sum of the weights; a number, or one for each row.
        contributors: how many parties are in the sum.
        missing: by party why it is not.
        rows: a union of ids; then every field is keyed by rows.
        opened: rows with enough contributors; others are zero.
    """

    def __init__(
        self,
        sums: dict[str, Tensor],
        weights: dict[str, Any],
        contributors: int,
        missing: Mapping[str, str],
        rows: IdUnion | None = None,
        opened: Tensor | None = None,
    ) -> None:
        self.sums, self.weights = sums, weights
        self.contributors, self.missing = contributors, dict(missing)
        self.rows, self.opened = rows, opened

    def sum(self, name: str) -> Any:
        """The (weighted) sum of a field or group of fields; rows that are not opened are zero."""
        return self._read(name, lambda path: self.sums[path].contiguous().cpu())

    def mean(self, name: str, default: Any = None) -> Any:
        """The weighted mean of a field or group of fields.

        Arguments:
            default: the mean where all weights are zero, as when only parties without training items were sampled;
                None raises an error then.
        """
        weights = [self.weights[path] for path in self.sums if path == name or path.startswith(f"{name}/")]
        if default is not None and weights and all(not isinstance(w, Tensor) and w == 0 for w in weights):
            return default
        return self._read(name, lambda path: self._mean(path).cpu())

    def payload(self) -> dict[str, Any]:
        """Return all sums as a payload."""
        return wire.unflatten(self.sums)

    def _read(self, name: str, value: Any) -> Any:
        if name in self.sums:
            return value(name)
        paths = [path for path in self.sums if path.startswith(f"{name}/")]
        if not paths:
            raise IsthmusError(f"no party answered a field '{name}' (there are: {', '.join(self.sums) or 'none'})")
        return wire.unflatten({path.removeprefix(f"{name}/"): value(path) for path in paths})

    def _mean(self, path: str) -> Tensor:
        total = self.weights[path]
        value = self.sums[path]
        value = value if value.is_floating_point() else value.double()
        if isinstance(total, Tensor):
            shaped = total.to(value.dtype).clamp(min=torch.finfo(value.dtype).tiny)
            return value / shaped.view(-1, *[1] * (value.dim() - 1))
        if total == 0:
            raise IsthmusError(f"the mean of '{path}' has no weight: no party that answered counts anything")
        return (value / total).contiguous()


class PlainTotal(Total):
    """A total that the server adds up itself, from answers that it can read.

    Arguments:
        replies: the answers, added in the order of `asked` with one multiplication and one addition each, so the bits
            of the sum do not depend on how parties are spread over sites.
        rows: a union of ids; then every field is keyed by rows, and each answer names its own in the field `ids`.
        min_contributors: rows with fewer contributors are not opened; a whole sum with fewer is an error.
    """

    def __init__(
        self, replies: Sequence[Reply], asked: Sequence[str], rows: IdUnion | None = None, min_contributors: int = 1
    ) -> None:
        missing = {party: why for reply in replies for party, why in reply.failures.items()}
        super().__init__({}, {}, sum(len(reply.parties) for reply in replies), missing, rows)
        self._scratch: dict[str, Tensor] = {}
        self._min_contributors = min_contributors
        order = {party: at for at, party in enumerate(asked)}
        ordered = [_in_order(reply, order) for reply in replies]
        turns = sorted(
            (order[party], which, at) for which, reply in enumerate(ordered) for at, party in enumerate(reply.parties)
        )
        if rows is None:
            require_contributors(self.contributors, min_contributors, "a total")
        rows_of: dict[str, Tensor] = {}
        if rows is not None:
            rows_of = {
                party: _named_rows(reply, at, rows) for reply in ordered for at, party in enumerate(reply.parties)
            }
        paths = dict.fromkeys(path for reply in ordered for path in reply.columns)
        if rows is not None:
            paths.pop("ids", None)
            self.opened = torch.ones(rows.ids.numel(), dtype=torch.bool)
            for path in paths:
                self.opened &= _contributors(path, ordered, rows_of, rows) >= min_contributors
        for path in paths:
            self._add(path, [(ordered[which], at) for _, which, at in turns], rows_of)
        self._scratch.clear()

    def _add(self, path: str, turns: Sequence[tuple[Reply, int]], rows_of: Mapping[str, Tensor]) -> None:
        """Add up one field, party after party."""
        contributors = 0
        values: dict[int, Iterator[Any]] = {}
        for reply, positions in _consecutive([turn for turn in turns if path in turn[0].columns]):
            contributors += len(positions)
            column = reply.columns[path]
            weights = _weights_of(path, reply)
            if self._min_contributors > 1 and weights is not None:  # a part of weight zero hides nobody else's
                contributors -= sum(_is_zero(slice_of(weights, at)) for at in positions)
            if (
                not rows_of
                and isinstance(column, Tensor)
                and len(positions) == column.size(0)
                and _one_per_party(weights)
            ):
                self._add_stack(path, column, weights, reply)
                continue
            values.setdefault(id(reply), slices(column))
            for at in positions:
                value = _number(path, next(values[id(reply)]))
                weight: Any = None if weights is None else slice_of(weights, at)
                if weight is not None and not value.is_floating_point():
                    value = value.double()
                rows_at = rows_of.get(reply.parties[at])
                self._check_shape(path, value, rows_at, reply.parties[at])
                if rows_at is None and path in self.sums and _is_zero(weight):
                    continue  # it would add only zeros
                if rows_at is None:
                    self._add_whole(path, value, weight)
                else:
                    self._add_rows(path, value, weight, rows_at)
            if positions[-1] == len(reply.parties) - 1:
                values.pop(id(reply))  # frees the buffer of its slices
        if self._min_contributors > 1 and self.rows is None:
            require_contributors(contributors, self._min_contributors, f"a total of '{path}'")

    def _add_stack(self, path: str, column: Tensor, weights: Tensor | None, reply: Reply) -> None:
        """As `_add_whole` for every slice of a stack: the same arithmetic, to the bit, in fewer calls."""
        stack = _number(path, column)
        stack = stack.double() if weights is not None and not stack.is_floating_point() else stack
        self._check_shape(path, stack[0], None, reply.parties[0])
        self.weights[path] = sum([1] * len(stack) if weights is None else weights.tolist(), self.weights.get(path, 0))
        if not stack.is_floating_point():  # whole numbers have one sum in any order
            self.sums[path] = self.sums.get(path, 0) + stack.sum(0)
            return
        if weights is not None:
            wide = stack.float() if stack.dtype.itemsize < 4 else stack  # as torch multiplies a half by a number
            stack = (wide * weights.to(wide).view(-1, *[1] * (stack.dim() - 1))).to(stack.dtype)
        zero = [False] * len(stack) if weights is None else (weights == 0).tolist()
        for value, nothing in zip(stack.unbind(0), zero, strict=True):
            if path not in self.sums:
                self.sums[path] = value.clone()
            elif not nothing:
                self.sums[path] += value

    def _check_shape(self, path: str, value: Tensor, rows_at: Tensor | None, party: str) -> None:
        if rows_at is not None and (value.dim() == 0 or value.size(0) != rows_at.numel()):
            raise PayloadError(f"party '{party}': field '{path}' is {list(value.shape)}, its ids are {rows_at.numel()}")
        due = self.sums.get(path)
        if due is None:
            return
        skip = 0 if rows_at is None else 1
        if value.shape[skip:] != due.shape[skip:] or value.dtype != due.dtype:
            raise PayloadError(
                f"party '{party}': field '{path}' is {value.dtype} {list(value.shape)}, "
                f"that of others is {due.dtype} {list(due.shape)}"
            )

    def _add_whole(self, path: str, value: Tensor, weight: Any) -> None:
        rowwise = isinstance(weight, Tensor) and weight.dim() > 0
        if rowwise and (value.dim() == 0 or weight.shape != value.shape[:1]):
            raise PayloadError(f"field '{path}' is {list(value.shape)}, its weight per row {list(weight.shape)}")
        counted: Any = weight if rowwise else 1 if weight is None else float(weight)
        factor = counted.to(value.dtype).view(-1, *[1] * (value.dim() - 1)) if rowwise else counted
        self.weights[path] = self.weights.get(path, 0) + counted
        if path not in self.sums:  # the first value sets the memory layout, which keeps later additions fast
            self.sums[path] = value.clone() if weight is None else value * factor
        elif weight is None:
            self.sums[path] += value
        else:
            if path not in self._scratch:
                self._scratch[path] = torch.empty_like(self.sums[path])
            self.sums[path] += torch.mul(value, factor, out=self._scratch[path])

    def _add_rows(self, path: str, value: Tensor, weight: Any, rows_at: Tensor) -> None:
        assert self.rows is not None
        assert self.opened is not None
        opened = self.opened[rows_at].to(value.device)
        at, value = rows_at.to(value.device)[opened], value[opened]
        length = self.rows.ids.numel()
        if path not in self.sums:
            self.sums[path] = value.new_zeros(length, *value.shape[1:])
            self.weights[path] = torch.zeros(length, dtype=torch.float64, device=value.device)
        row_weight = torch.as_tensor(1.0 if weight is None else weight, dtype=torch.float64, device=value.device)
        row_weight = row_weight[opened] if row_weight.dim() else row_weight.expand(at.numel())
        if weight is not None:
            value = value * row_weight.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
        self.sums[path].index_add_(0, at, value)
        self.weights[path].index_add_(0, at, row_weight)


def require_contributors(contributors: int, min_contributors: int, what: str) -> None:
    """Raise an error for a sum with too few contributors."""
    if contributors < min_contributors:
        raise TooFewAnswers(
            f"{what} of {contributors} part{'y' if contributors == 1 else 'ies'} is not opened: "
            f"at least {min_contributors} must contribute"
        )


def contributed(reply: Reply, rows: IdUnion | None) -> dict[str, Tensor]:
    """By field, whether one party's answer contributes: 0 or 1, or one of these for each row."""
    paths = [path for path in reply.columns if path != "ids" or rows is None]
    if rows is not None:
        rows_of = {reply.parties[0]: _named_rows(reply, 0, rows)}
        return {path: _contributors(path, [reply], rows_of, rows) for path in paths}
    weights = {path: _weights_of(path, reply) for path in paths}
    return {
        path: torch.tensor(0 if weight is not None and _is_zero(slice_of(weight, 0)) else 1)
        for path, weight in weights.items()
    }


def _consecutive(turns: Sequence[tuple[Reply, int]]) -> Iterator[tuple[Reply, list[int]]]:
    """Group consecutive turns of one reply."""
    for _, run in itertools.groupby(turns, key=lambda turn: id(turn[0])):
        members = list(run)
        yield members[0][0], [at for _, at in members]


def _one_per_party(weights: Column | None) -> TypeGuard[Tensor | None]:
    """Whether there is one weight for each party, or none at all."""
    return weights is None or (isinstance(weights, Tensor) and weights.dim() == 1)


def _contributors(path: str, replies: Sequence[Reply], rows_of: Mapping[str, Tensor], rows: IdUnion) -> Tensor:
    """How many parties contribute to each row of a field."""
    count = torch.zeros(rows.ids.numel(), dtype=torch.long)
    for reply in replies:
        if path not in reply.columns:
            continue
        weights = _weights_of(path, reply)
        for at, party in enumerate(reply.parties):
            weight = torch.as_tensor(1.0 if weights is None else slice_of(weights, at))
            counted = weight.cpu().expand(rows_of[party].numel()) != 0
            count[rows_of[party][counted].unique()] += 1  # a party counts once, however often it names a row
    return count


def _weights_of(path: str, reply: Reply) -> Column | None:
    """The weights that count for a field: its own, or those of all fields."""
    return reply.weights.get(path.split("/", 1)[0], reply.weights.get(""))


def _is_zero(weight: Any) -> bool:
    """Whether a single weight is zero."""
    rowwise = isinstance(weight, Tensor) and weight.dim() > 0
    return weight is not None and not rowwise and float(weight) == 0


def _in_order(reply: Reply, order: Mapping[str, int]) -> Reply:
    """The reply with its parties in this order."""
    turns = [order[party] for party in reply.parties]
    return reply if turns == sorted(turns) else reply.keep(sorted(range(len(turns)), key=turns.__getitem__))


def _named_rows(reply: Reply, at: int, rows: IdUnion) -> Tensor:
    """The rows of a sum that one party's answer adds to."""
    party = reply.parties[at]
    if "ids" not in reply.columns:
        raise PayloadError(f"party '{party}': rows need a field 'ids': answer the id of each row")
    try:
        return rows.positions(slice_of(reply.columns["ids"], at).cpu())
    except PayloadError as error:
        raise PayloadError(f"party '{party}': {error}") from error


def _number(path: str, value: Any) -> Tensor:
    """A summand as a tensor; whole numbers count in 64 bits, so that their sum does not overflow."""
    if isinstance(value, str):
        raise PayloadError(f"field '{path}' is a text: texts have no sum")
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.long)
    return value.detach() if value.is_floating_point() else value.long()


@dataclass(frozen=True)
class Receipt:
    """What the server learns of messages between parties: who sent how many bytes to whom."""

    sizes: Mapping[tuple[str, str], int]
    missing: Mapping[str, str] = field(default_factory=dict)
