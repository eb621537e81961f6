"""Stacks, which hold a slice per party, and columns: one field of several parties, in whatever form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from isthmus.nn.products import Columns


@dataclass
class FirstLayer:
    """A stack of first-layer weights `[out, in]` for sparse features, stored as the rows `[in, out]` that differ.

    A party's data give no gradient to weights of features that the party never has. Only weight decay or a pull to the
    global weights moves these, and it moves them equally at all parties that train. So they are stored once:
    `rest[1]` for the parties that train, `rest[0]` for the others. Measured on Cora with 100 parties: a quarter of
    the memory and of the optimiser's work.
    """

    columns: Columns
    kept: Tensor
    rest: Tensor
    trains: tuple[bool, ...]

    def slices(self) -> Iterator[Tensor]:
        """Every party's whole weight `[out, in]`, one after another, in one buffer: valid until the next is asked."""
        rests = self.rest.detach().unbind(0)
        buffers = [rest.clone() for rest in rests]
        parts = zip(
            self.columns.index.split(self.columns.sizes), self.kept.detach().split(self.columns.sizes), strict=True
        )
        for (index, kept), trains in zip(parts, self.trains, strict=True):
            buffer, rest = buffers[int(trains)], rests[int(trains)]
            buffer.index_copy_(0, index, kept)
            yield buffer.t()
            buffer.index_copy_(0, index, rest.index_select(0, index))

    def outline(self) -> Tensor:
        """A tensor with the shape of one slice and without its data."""
        return self.rest.new_empty(1).expand(self.rest.size(2), self.rest.size(1))

    def slice(self, at: int) -> Tensor:
        """The whole weight `[out, in]` of the party at this position."""
        start = sum(self.columns.sizes[:at])
        size = self.columns.sizes[at]
        whole = self.rest.detach()[int(self.trains[at])].clone()
        whole[self.columns.index[start : start + size]] = self.kept.detach()[start : start + size]
        return whole.t()

    def stack(self) -> Tensor:
        """All slices, `[parties, out, in]`."""
        return torch.stack([each.contiguous() for each in self.slices()])


Stack: TypeAlias = Tensor | FirstLayer
"""A slice per party: a tensor with a leading party dimension, or a first layer that is stored in parts."""
Column: TypeAlias = Stack | Sequence[Any]
"""One field of several parties: a stack, or a list of one value per party."""


def is_stack(column: Column) -> TypeGuard[Stack]:
    """Whether all values are tensors of one shape."""
    return isinstance(column, Tensor | FirstLayer)


def length(column: Any) -> int | None:
    """The number of values; None for what is no column: a number, a text, a mapping.

    >>> length(torch.zeros(3, 2)), length([1.0, 2.0]), length("text")
    (3, 2, None)
    """
    if isinstance(column, FirstLayer):
        return len(column.trains)
    if isinstance(column, Tensor):
        return column.size(0) if column.dim() else None
    return len(column) if isinstance(column, Sequence) and not isinstance(column, str | bytes) else None


def slice_of(column: Column, at: int) -> Any:
    """The value of the party at this position, without its gradient."""
    if isinstance(column, FirstLayer):
        return column.slice(at)
    value = column[at]
    return value.detach() if isinstance(value, Tensor) else value


def slices(column: Column) -> Iterator[Any]:
    """The value of every party, in party order; use each before you ask for the next, which may reuse its memory."""
    yield from column.slices() if isinstance(column, FirstLayer) else column


def outline(column: Column, at: int) -> Any:
    """A value of the shape and type of `slice_of(column, at)`, without data where those would have to be copied."""
    return column.outline() if isinstance(column, FirstLayer) else slice_of(column, at)


def pick(column: Column, positions: Sequence[int]) -> Column:
    """The values of the parties at these positions."""
    if isinstance(column, Tensor | FirstLayer):
        return dense(column)[list(positions)]
    return [column[at] for at in positions]


def dense(stack: Stack) -> Tensor:
    """The stack as one tensor `[parties, ...]`."""
    return stack if isinstance(stack, Tensor) else stack.stack()


def not_finite(stack: Stack) -> list[int]:
    """Positions of slices that may hold a value that is not finite: those whose sum is not."""
    if isinstance(stack, Tensor):
        flat = stack.detach().reshape(stack.size(0), math.prod(stack.shape[1:]))
        return flat.sum(1).isfinite().logical_not().nonzero().flatten().tolist()
    if bool(torch.isfinite(stack.kept.detach().sum() + stack.rest.detach().sum())):
        return []
    rest = torch.isfinite(stack.rest.detach()).flatten(1).all(1).tolist()
    parts = zip(stack.kept.detach().split(stack.columns.sizes), stack.trains, strict=True)
    return [at for at, (part, trains) in enumerate(parts) if not rest[trains] or not bool(part.sum().isfinite())]
