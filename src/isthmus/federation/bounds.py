"""What a party may answer at most: what it introduced in the set-up, and what a sum over all parties can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from isthmus.errors import PayloadError
from isthmus.federation.answers import IdUnion, Reply, Total
from isthmus.nn.stacks import Column, slice_of

ROUNDING = 1e-6
"""Share by which a sum of weights may exceed its bound: masked sums are rounded."""
COUNT_ROUNDING = 1e-3
"""By so much a sum of counts may miss its bound: encrypted sums are rounded."""

Held = Literal["items", "labels", "nodes"]
"""What a party introduces, which bounds what it can count."""


@dataclass(frozen=True)
class Introduced:
    """How much parties said in the set-up that they hold.

    Arguments:
        items: nodes, or graphs.
        labels: labels of these; with several tasks, of all tasks together.
        nodes: as many as items, unless these are graphs or edges.
        parties: how many parties this is the sum of.
        rows: of tables whose rows are edges, which have columns as nodes do.
    """

    items: int
    labels: int
    nodes: int
    parties: int = 1
    rows: int = 0

    @classmethod
    def sum(cls, several: Iterable[Introduced]) -> Introduced:
        """What several parties hold together.

        >>> Introduced.sum([Introduced(3, 2, 3), Introduced(5, 5, 5)])
        Introduced(items=8, labels=7, nodes=8, parties=2, rows=0)
        """
        each = list(several)
        return cls(*(sum(getattr(one, name.name) for one in each) for name in fields(cls)))

    @property
    def counted(self) -> int:
        """The most rows that have a column."""
        return self.nodes + self.rows


def weight_faults(reply: Reply) -> dict[int, str]:
    """Positions of parties with a weight that is no weight: negative, not finite, or not a number."""
    faulty: dict[int, str] = {}
    for name, column in reply.weights.items():
        if isinstance(column, Tensor) and bool((column >= 0).all()) and bool(torch.isfinite(column).all()):
            continue
        for at in range(len(reply.parties)):
            if why := weight_problem(name, slice_of(column, at)):
                faulty.setdefault(at, why)
    return faulty


def weight_problem(name: str, weight: Any, most: float = math.inf) -> str:
    """Say what is wrong with the weight of one party, or with its weights per row.

    >>> weight_problem("", -3.0), weight_problem("", 40.0, most=30)
    ('its weight is negative: -3', 'its weight is 40, but it introduced 30 items')
    """
    whose = f"its weight of '{name}'" if name else "its weight"
    if isinstance(weight, str) or (isinstance(weight, Tensor) and weight.dim() > 1):
        return f"{whose} is neither a number nor a number per row"
    values = torch.as_tensor(weight, dtype=torch.float64)
    if not values.numel():
        return ""
    least, largest = float(values.min()), float(values.max())
    if not (math.isfinite(least) and math.isfinite(largest)):
        return f"{whose} is not finite"
    if least < 0:
        return f"{whose} is negative: {least:g}"
    return f"{whose} is {largest:g}, but it introduced {most:g} items" if largest > most else ""


def answer_problem(reply: Reply, at: int, introduced: Introduced, parties: int, rows: IdUnion | None) -> str:
    """Say what is wrong with one party's part of a total, before it is added up.

    Arguments:
        introduced: what the party introduced.
        parties: how many parts there are, at most: no sum of so many parts like this one may overflow.
        rows: a union of ids, if the fields are keyed by rows.
    """
    if rows is not None and (why := _row_problem(reply, at, rows)):
        return why
    weights = {name: slice_of(column, at) for name, column in reply.weights.items()}
    for name, weight in weights.items():
        if why := weight_problem(name, weight, introduced.items):
            return why
    for path, column in reply.columns.items():
        if rows is not None and path in ("ids", "wants"):
            continue
        value = slice_of(column, at)
        weight = weights.get(path.split("/", 1)[0], weights.get(""))
        if why := _summand_problem(path, value, weight, parties):
            return why
    return ""


def count_problem(bounds: Mapping[str, Held | None], answer: Mapping[str, Any], introduced: Introduced) -> str:
    """Say what is wrong with counts of one party, or with a sum of counts.

    Arguments:
        bounds: by field what none of its whole numbers may exceed; None: real numbers that are not negative.
        introduced: what the party introduced, or all parties in the sum together.

    >>> held = Introduced(items=30, labels=20, nodes=30)
    >>> count_problem({"right": "labels"}, {"right": torch.tensor(21)}, held)
    "field 'right' counts 21, but 20 labels were introduced"
    """
    one = introduced.parties == 1
    slack = 0.0 if one else COUNT_ROUNDING
    for name, held in bounds.items():
        if not isinstance(answer.get(name), Tensor | float | int):
            return f"no numbers in field '{name}'"
        values = torch.as_tensor(answer[name], dtype=torch.float64)
        if not bool((values >= -slack).all()) or not bool(values.isfinite().all()):
            return f"field '{name}' is negative or not finite"
        if held is None or not values.numel():
            continue
        if one and not torch.equal(values, values.round()):
            return f"field '{name}' counts in fractions"
        if float(values.max()) > (most := getattr(introduced, held)) + slack:
            return f"field '{name}' counts {float(values.max()):g}, but {most} {held} were introduced"
    return ""


def _row_problem(reply: Reply, at: int, rows: IdUnion) -> str:
    """Say what is wrong with the ids of rows in an answer, or with fields that do not have one row for each."""
    for name in ("ids", "wants"):
        if name not in reply.columns:
            if name == "ids":
                return "rows need a field 'ids', with the id of each row"
            continue
        ids = slice_of(reply.columns[name], at)
        if why := ids_problem(ids):
            return f"field '{name}' {why}"
        try:
            rows.positions(ids.cpu())
        except PayloadError as error:
            return f"field '{name}': {error}"
    count = len(slice_of(reply.columns["ids"], at))
    for path, column in [*reply.columns.items(), *_weights_per_row(reply, at)]:
        value = slice_of(column, at)
        if path != "wants" and (not isinstance(value, Tensor) or not value.dim() or len(value) != count):
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            return f"field '{path}' is {shape}, its ids are {count}"
    return ""


def _weights_per_row(reply: Reply, at: int) -> list[tuple[str, Column]]:
    """The weights of a party that has one for each row."""
    found = []
    for name, column in reply.weights.items():
        weight = slice_of(column, at)
        if isinstance(weight, Tensor) and weight.dim():
            found.append((f"weight of {name or 'all'}", column))
    return found


def ids_problem(ids: Any, most: int | None = None) -> str:
    """Say what is wrong with a list of ids; the text goes on after the field's name.

    >>> ids_problem(torch.tensor([0.5]))
    'is no list of ids'
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
        return "is no list of ids"
    if most is not None and len(ids) > most:
        return f"lists {len(ids)} ids, but only {most} nodes were introduced"
    return ""


def _summand_problem(path: str, value: Any, weight: Any, parties: int) -> str:
    """Say why a value cannot be added up, or why so many like it would overflow."""
    if isinstance(value, str):
        return f"field '{path}' is a text: texts have no sum"
    number = torch.as_tensor(value)
    if not number.numel():
        return ""
    low, high = (float(each) for each in torch.aminmax(number))
    factor = 1.0 if weight is None else float(torch.as_tensor(weight, dtype=torch.float64).max())
    if number.is_floating_point():
        most = torch.finfo(number.dtype).max if number.dtype.itemsize >= 4 else torch.finfo(torch.float32).max
    else:
        most = 2.0**63 if weight is None else torch.finfo(torch.float64).max
    if max(-low, high) * max(1.0, factor) >= most / (2 * parties):
        return f"field '{path}' has a number of {max(-low, high):.3g}, too large for a sum over {parties} parties"
    return ""


def total_problem(total: Total, introduced: Introduced) -> str:
    """Say what is wrong with a sum whose parts nobody could check.

    Arguments:
        introduced: what the parties in it introduced, together.
    """
    for path, weight in total.weights.items():
        values = torch.as_tensor(weight, dtype=torch.float64)
        if not values.numel():
            continue
        most = introduced.items * (1 + ROUNDING) + ROUNDING * introduced.parties
        least, largest = float(values.min()), float(values.max())
        if not least >= -ROUNDING * introduced.parties:
            return f"the weights of '{path}' sum up to {least:g}"
        if not largest <= most:
            return f"the weights of '{path}' sum up to {largest:g}, but the parties introduced {introduced.items} items"
    return ""
