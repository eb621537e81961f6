"""Answers of parties, and the sums over them that a server reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers, did_you_mean
from isthmus.federation import wire
from isthmus.federation.sums import AT_ONCE, ROWS, Nodes, RowTrees, TreeSum, tree_over
from isthmus.nn.stacks import Column, FirstLayer, is_stack, length, not_finite, outline, pick, slice_of, slices

Letters: TypeAlias = Mapping[str, Any]
"""By addressee a payload, which may be sealed (`wire.Sealed`)."""
Weighing: TypeAlias = tuple[str | None, tuple[str, ...]]
"""The name of a weight (None without), and the fields that it counts for."""

Forms: TypeAlias = dict[str, tuple[torch.dtype, torch.Size]]
"""By field the type and shape that all parties' values have."""


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


@dataclass(frozen=True)
class Arrival:
    """What the ledger records of a reply: bytes and rows by id that each party sent, and the fields in short.

    Arguments:
        fields: those of one party, by its position. The ledger has those of the first party, whatever order replies
            come in.
    """

    sent: Mapping[str, int]
    fields: Mapping[int, str]
    rows: Mapping[str, int]


@dataclass(frozen=True)
class PartialSums:
    """Partial sums of several parties' answers, as plain data that can be sent.

    Arguments:
        fields: by path of a field.
        weights: by weighing, the sums of the weights.
        contributors: by weighing, how many parties have a weight other than zero.
    """

    fields: Mapping[str, Nodes]
    weights: Mapping[Weighing, Nodes]
    contributors: Mapping[Weighing, int]


@dataclass
class Reply:
    """The reply of one site: the answers of some of its parties, or their sums, and why other parties have none."""

    parties: tuple[str, ...]
    columns: dict[str, Column] = field(default_factory=dict)
    weights: dict[str, Column] = field(default_factory=dict)
    letters: Sequence[Letters] = ()
    failures: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """What a transport needs to restore the site, or models by party; empty in replies to actions."""
    sums: PartialSums | None = None
    """Instead of columns, where only the sum is wanted."""
    arrival: Arrival | None = None
    """Set when the answers have been checked."""

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

    def fields(self, at: int) -> dict[str, Any]:
        """By path the fields of the party at this position."""
        return {path: slice_of(column, at) for path, column in self.columns.items()}

    def payload(self, at: int) -> dict[str, Any]:
        """The answer of the party at this position as it travels."""
        fields = self.fields(at)
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

    def describe(self, at: int = 0) -> str:
        """The fields of the answer of the party at this position, in short."""
        return wire.describe(self._outline(at)) if self.parties and self.columns else ""

    def keep(self, positions: Sequence[int]) -> Reply:
        """The answers of some of the parties."""
        at = list(positions)
        return Reply(
            tuple(self.parties[i] for i in at),
            {name: pick(column, at) for name, column in self.columns.items()},
            {name: pick(column, at) for name, column in self.weights.items()},
            [self.letters[i] for i in at] if self.letters else (),
            dict(self.failures),
            arrival=self.arrival,
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

    Attributes:
        means: by path a mean that was not made of the sum.
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
        self.means: Mapping[str, Tensor] = {}

    def sum(self, name: str) -> Any:
        """The (weighted) sum of a field or group of fields; rows that are not opened are zero."""
        if any(path == name or path.startswith(f"{name}/") for path in self.means):
            raise IsthmusError(f"'{name}' was combined in another way than by a sum: set aggregate = 'mean'")
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

    def single_means(self) -> dict[str, Tensor]:
        """By path the means of the fields that have one weight, above zero."""
        ones = {path: weight for path, weight in self.weights.items() if isinstance(weight, float | int) and weight > 0}
        return {path: self.sums[path] / weight for path, weight in ones.items()}

    def _read(self, name: str, value: Any) -> Any:
        if name in self.sums:
            return value(name)
        paths = [path for path in self.sums if path.startswith(f"{name}/")]
        if not paths:
            raise IsthmusError(f"no party answered a field '{name}' (there are: {', '.join(self.sums) or 'none'})")
        return wire.unflatten({path.removeprefix(f"{name}/"): value(path) for path in paths})

    def _mean(self, path: str) -> Tensor:
        if path in self.means:
            return self.means[path]
        total = self.weights[path]
        value = self.sums[path]
        value = value if value.is_floating_point() else value.double()
        if isinstance(total, Tensor):
            shaped = total.to(value.dtype).clamp(min=torch.finfo(value.dtype).tiny)
            return value / shaped.view(-1, *[1] * (value.dim() - 1))
        if total == 0:
            raise IsthmusError(f"the mean of '{path}' has no weight: no party that answered counts anything")
        return (value / total).contiguous()


class PartialTotal:
    """A total that replies are added to in any order, without rows by id.

    Arguments:
        positions: by party its position in the federation.
        asked: the parties that may contribute.
    """

    def __init__(self, positions: Mapping[str, int], asked: Sequence[str]) -> None:
        self.positions = positions
        self.tree = tree_over(tuple(sorted(positions[party] for party in asked)))
        self.parties: list[str] = []
        self.failures: dict[str, str] = {}
        self.sent: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.described: dict[int, str] = {}
        self.fields: dict[str, TreeSum] = {}
        self.weights: dict[Weighing, TreeSum] = {}
        self.contributors: dict[Weighing, int] = {}
        self._forms: Forms = {}
        self._failed: list[int] = []
        self._buffers: dict[torch.dtype, Tensor] = {}

    def add(self, reply: Reply) -> None:
        """Add the answers, or the partial sums, of some parties."""
        if reply.sums is not None:
            self._merge(reply.sums)
        else:
            failed = [self.positions[party] for party in reply.failures]
            for sums in self.fields.values():
                sums.skip(failed)
            self._failed += failed
            self._add_columns(reply)
        self.parties += reply.parties
        self.failures |= reply.failures
        if (arrival := reply.arrival) is not None:
            self.sent |= arrival.sent
            self.rows |= arrival.rows
            self.described |= arrival.fields

    def reply(self) -> Reply:
        """One reply that stands for all that were added."""
        arrival = Arrival(self.sent, self.described, self.rows)
        return Reply(tuple(self.parties), failures=self.failures, sums=self.partial_sums(), arrival=arrival)

    def partial_sums(self) -> PartialSums:
        """Return what was added so far."""
        return PartialSums(
            {path: sums.nodes() for path, sums in self.fields.items()},
            {weighing: sums.nodes() for weighing, sums in self.weights.items()},
            dict(self.contributors),
        )

    def sum_weights(self, path: str) -> Any:
        """The sum of the weights that count for a field: a number, or one for each row."""
        whole = TreeSum(self.tree)
        for (_, paths), sums in self.weights.items():
            if path in paths:
                whole.merge({key: None if value is None else value.clone() for key, value in sums.nodes().items()})
        total = whole.total()
        return total if total.dim() else total.item()

    def count(self, path: str) -> int:
        """How many parties contribute to a field."""
        return sum(count for (_, paths), count in self.contributors.items() if path in paths)

    def _add_columns(self, reply: Reply) -> None:
        if not reply.parties:
            return
        at = tuple(self.positions[party] for party in reply.parties)
        weighings: dict[str | None, list[str]] = {}
        for path in reply.columns:
            weighings.setdefault(_name_of_weight(path, reply), []).append(path)
        for name, paths in weighings.items():
            weights = None if name is None else _joined(reply.weights[name])
            for path in paths:
                self._add(path, at, reply, weights)
            self._weigh((name, tuple(paths)), at, weights)

    def _weigh(self, weighing: Weighing, at: tuple[int, ...], weights: Tensor | Sequence[Any] | None) -> None:
        if weighing not in self.weights:
            self.weights[weighing], self.contributors[weighing] = TreeSum(self.tree, self._buffers), 0
        sums = self.weights[weighing]
        if weights is None or isinstance(weights, Tensor):
            stack = torch.ones(len(at), dtype=torch.float64) if weights is None else weights.double()
            sums.add(at, stack)
            nothing = int((stack == 0).sum()) if stack.dim() == 1 else 0
        else:
            for position, weight in zip(at, weights, strict=True):
                sums.add_one(position, torch.as_tensor(weight, dtype=torch.float64))
            nothing = sum(map(_is_zero, weights))
        self.contributors[weighing] += len(at) - nothing  # a part of weight zero hides nobody else's

    def _add(self, path: str, at: tuple[int, ...], reply: Reply, weights: Tensor | Sequence[Any] | None) -> None:
        """Add one field."""
        column = reply.columns[path]
        by_party = weights is None or (isinstance(weights, Tensor) and weights.dim() == 1)
        if isinstance(column, Tensor) and by_party:
            assert weights is None or isinstance(weights, Tensor)
            stack = _summand(path, column, weights)
            self._sum_of(path, stack[0], reply.parties[0]).add(at, stack, weights)
            return
        if isinstance(column, FirstLayer) and by_party:
            assert weights is None or isinstance(weights, Tensor)
            self._sum_of(path, column.outline(), reply.parties[0]).add_first_layer(at, column, weights)
            return
        few: list[tuple[int, Tensor]] = []
        factors: Sequence[Any] = [None] * len(at) if weights is None else weights  # type: ignore[assignment]
        for i, value in enumerate(slices(column)):
            summand = _summand(path, value, weights)
            sums = self._sum_of(path, summand, reply.parties[i])
            if by_party and summand.numel() * ROWS <= AT_ONCE:
                few.append((i, summand))
            else:
                _check_rows(path, summand, factors[i])
                single = weights is None or (isinstance(factors[i], Tensor) and factors[i].dim())
                sums.add_one(at[i], summand, factors[i] if single else float(factors[i]))
            if few and (i == len(at) - 1 or len(few) * summand.numel() >= AT_ONCE):  # small values: all in a few calls
                which = [j for j, _ in few]
                some = weights[which] if isinstance(weights, Tensor) else None
                sums.add([at[j] for j in which], torch.stack([each for _, each in few]), some)
                few.clear()

    def _sum_of(self, path: str, value: Tensor, party: str) -> TreeSum:
        """The sum of a field, which begins with the first value; all others must have its form."""
        _check_form(self._forms, path, value.dtype, value.shape, party)
        if path not in self.fields:
            self.fields[path] = TreeSum(self.tree, self._buffers)
            self.fields[path].skip(self._failed)
        return self.fields[path]

    def _merge(self, partial: PartialSums) -> None:
        for path, nodes in partial.fields.items():
            for value in nodes.values():
                if value is not None:
                    self._sum_of(path, value, "of another site")
            self.fields[path].merge(nodes)
        for weighing, nodes in partial.weights.items():
            self.weights.setdefault(weighing, TreeSum(self.tree)).merge(nodes)
            self.contributors[weighing] = self.contributors.get(weighing, 0) + partial.contributors[weighing]


class PlainTotal(Total):
    """A total that the server adds up itself, from answers that it can read, by the law of sums (`federation.sums`).

    Arguments:
        replies: the answers, or partial sums of them.
        positions: by party its position in the federation.
        rows: a union of ids; then every field is keyed by rows, and each answer names its own in the field `ids`.
        min_contributors: rows with fewer contributors are not opened; a whole sum with fewer is an error.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        positions: Mapping[str, int],
        rows: IdUnion | None = None,
        min_contributors: int = 1,
    ) -> None:
        missing = {party: why for reply in replies for party, why in reply.failures.items()}
        super().__init__({}, {}, sum(len(reply.parties) for reply in replies), missing, rows)
        self._forms: Forms = {}
        if rows is None:
            require_contributors(self.contributors, min_contributors, "a total")
            self._add_whole(replies, positions, min_contributors)
        else:
            self._add_rows(replies, positions, rows, min_contributors)

    def _add_whole(self, replies: Sequence[Reply], positions: Mapping[str, int], min_contributors: int) -> None:
        partial = PartialTotal(positions, [party for reply in replies for party in (*reply.parties, *reply.failures)])
        for reply in replies:
            partial.add(reply)
        for path, sums in partial.fields.items():
            if min_contributors > 1:
                require_contributors(partial.count(path), min_contributors, f"a total of '{path}'")
            self.sums[path], self.weights[path] = sums.total(), partial.sum_weights(path)

    def _add_rows(
        self, replies: Sequence[Reply], positions: Mapping[str, int], rows: IdUnion, min_contributors: int
    ) -> None:
        rows_of = {party: _named_rows(reply, at, rows) for reply in replies for at, party in enumerate(reply.parties)}
        twice = _naming_twice(rows_of)
        paths = dict.fromkeys(path for reply in replies for path in reply.columns if path != "ids")
        self.opened = torch.ones(rows.ids.numel(), dtype=torch.bool)
        for path in paths:
            self.opened &= _contributors(path, replies, rows_of, rows, twice) >= min_contributors
        for path in paths:
            parts = [
                self._opened_part(path, reply, at, value, rows_of[party], party in twice)
                for reply in replies
                if path in reply.columns
                for at, (party, value) in enumerate(zip(reply.parties, slices(reply.columns[path]), strict=True))
            ]
            if not parts:
                continue
            at = [positions[party] for reply in replies if path in reply.columns for party in reply.parties]
            values, factors, weights, where = zip(*parts, strict=True)
            ones = [torch.ones_like(weight) for weight in weights]
            trees = RowTrees(where, at, rows.ids.numel())
            self.sums[path], self.weights[path] = trees.sum(values, factors), trees.sum(weights, ones)

    def _opened_part(
        self, path: str, reply: Reply, at: int, value: Any, rows_at: Tensor, twice: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The opened rows of one party's field: values, factors, weights, and where they are in the sum, each once."""
        assert self.opened is not None
        weights, party = _weights_of(path, reply), reply.parties[at]
        weight = torch.as_tensor(1.0 if weights is None else slice_of(weights, at), dtype=torch.float64)
        value = _summand(path, value, weights)
        if value.dim() == 0 or value.size(0) != rows_at.numel():
            raise PayloadError(f"party '{party}': field '{path}' is {list(value.shape)}, its ids are {rows_at.numel()}")
        _check_form(self._forms, path, value.dtype, value.shape[1:], party)
        opened = self.opened[rows_at].to(value.device)
        weight = weight.to(value.device).expand(rows_at.numel())[opened]
        if not bool(opened.all()):
            value, rows_at = value[opened], rows_at[opened.cpu()]
        if not twice:
            return value, weight, weight, rows_at
        once, where = rows_at.unique(return_inverse=True)
        value = value * weight.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
        where, one = where.to(value.device), torch.ones(once.numel(), dtype=torch.float64, device=value.device)
        values = value.new_zeros(once.numel(), *value.shape[1:]).index_add_(0, where, value)
        return values, one, torch.zeros_like(one).index_add_(0, where, weight), once


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
        twice = _naming_twice(rows_of)
        return {path: _contributors(path, [reply], rows_of, rows, twice) for path in paths}
    weights = {path: _weights_of(path, reply) for path in paths}
    return {
        path: torch.tensor(0 if weight is not None and _is_zero(slice_of(weight, 0)) else 1)
        for path, weight in weights.items()
    }


def _naming_twice(rows_of: Mapping[str, Tensor]) -> set[str]:
    """The parties that name a row more than once."""
    return {party for party, rows in rows_of.items() if rows.unique().numel() < rows.numel()}


def _contributors(
    path: str, replies: Sequence[Reply], rows_of: Mapping[str, Tensor], rows: IdUnion, twice: Collection[str]
) -> Tensor:
    """How many parties contribute to each row of a field."""
    count = torch.zeros(rows.ids.numel(), dtype=torch.long)
    for reply in replies:
        if path not in reply.columns:
            continue
        weights = _weights_of(path, reply)
        for at, party in enumerate(reply.parties):
            weight = torch.as_tensor(1.0 if weights is None else slice_of(weights, at))
            counted = weight.cpu().expand(rows_of[party].numel()) != 0
            named = rows_of[party] if bool(counted.all()) else rows_of[party][counted]
            count[named.unique() if party in twice else named] += 1  # a party counts once, however often it names a row
    return count


def _weights_of(path: str, reply: Reply) -> Column | None:
    """The weights that count for a field: its own, or those of all fields."""
    name = _name_of_weight(path, reply)
    return None if name is None else reply.weights[name]


def _name_of_weight(path: str, reply: Reply) -> str | None:
    """The name of the weights that count for a field: its own, or those of all fields; None without."""
    return next((name for name in (path.split("/", 1)[0], "") if name in reply.weights), None)


def _joined(weights: Column) -> Tensor | Sequence[Any]:
    """One weight per party as a stack; weights per row as they are."""
    if isinstance(weights, Tensor):
        return weights
    assert not isinstance(weights, FirstLayer)
    if any(isinstance(weight, Tensor) and weight.dim() for weight in weights):
        return weights
    return torch.tensor([float(weight) for weight in weights], dtype=torch.float64)


def _check_rows(path: str, value: Tensor, weight: Any) -> None:
    rowwise = isinstance(weight, Tensor) and weight.dim() > 0
    if rowwise and (value.dim() == 0 or weight.shape != value.shape[:1]):
        raise PayloadError(f"field '{path}' is {list(value.shape)}, its weight per row {list(weight.shape)}")


def _check_form(forms: Forms, path: str, dtype: torch.dtype, shape: torch.Size, party: str) -> None:
    """Raise an error unless this party's value has the type and shape of others, which the first one sets."""
    due = forms.setdefault(path, (dtype, shape))
    if due != (dtype, shape):
        raise PayloadError(
            f"party '{party}': field '{path}' is {dtype} {list(shape)}, that of others is {due[0]} {list(due[1])}"
        )


def _is_zero(weight: Any) -> bool:
    """Whether a single weight is zero."""
    rowwise = isinstance(weight, Tensor) and weight.dim() > 0
    return weight is not None and not rowwise and float(weight) == 0


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


def _summand(path: str, value: Any, weights: Any) -> Tensor:
    """A value, or a stack of them, as it is added up: whole numbers with weights count in double precision."""
    number = _number(path, value)
    return number if weights is None or number.is_floating_point() else number.double()


@dataclass(frozen=True)
class Receipt:
    """What the server learns of messages between parties: who sent how many bytes to whom."""

    sizes: Mapping[tuple[str, str], int]
    missing: Mapping[str, str] = field(default_factory=dict)
