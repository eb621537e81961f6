"""Stacks, which hold a slice per party, and columns: one field of several parties, in whatever form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from isthmus.nn.products import Columns, transposed


@dataclass
class FirstLayer:
    """A stack of first-layer weights `[out, in]` for sparse features, stored as the rows `[in, out]` that differ.

    A party's data give no gradient to weights of features that the party never has. Only weight decay or a pull to the
    global weights moves these, and it moves them equally at all parties that train. So they are stored once, in
    `shared_rows`: row 1 for the parties that train, row 0 for the others. Measured on Cora with 100 parties, this takes
    a quarter of the memory and of the optimiser's work.

    Arguments:
        columns: the rows of the weight that each party has in `party_rows`.
        party_rows: those rows, party after party, `[rows, out]`.
        shared_rows: the whole weight for parties that rest and for parties that train, `[2, in, out]`.
        trains: which parties train.
    """

    columns: Columns
    party_rows: Tensor
    shared_rows: Tensor
    trains: tuple[bool, ...]

    def slices(self) -> Iterator[Tensor]:
        """Every party's whole weight `[out, in]`, one after another, in one buffer: valid until the next is asked."""
        shared = self.shared_rows.detach().unbind(0)
        buffers = [rows.clone() for rows in shared]
        sizes = self.columns.sizes
        parts = zip(self.columns.index.split(sizes), self.party_rows.detach().split(sizes), self.trains, strict=True)
        for index, own, trains in parts:
            buffer = buffers[trains]
            buffer.index_copy_(0, index, own)
            yield buffer.t()
            buffer.index_copy_(0, index, shared[trains].index_select(0, index))

    def blocks(
        self, parties: Tensor, weights: Tensor | None, width: int, buffer: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """The slices of these parties, each times its weight, some inputs at a time: `[parties, inputs, out]`.

        Arguments:
            parties: positions, `[parties]`.
            weights: one factor per party in `parties`, `[parties]`.
            width: inputs of a block.
            buffer: memory of the blocks; a block is valid until the next is asked.
        """
        own, shared = self.party_rows.detach(), self.shared_rows.detach()
        row, column, party = self.columns.by_column
        place = torch.full((len(self.trains),), -1, device=row.device)
        place[parties] = torch.arange(parties.numel(), device=row.device)
        place = place[party]
        if parties.numel() < len(self.trains):
            chosen = (place >= 0).nonzero().squeeze(1)
            row, column, place = row[chosen], column[chosen], place[chosen]
        trains = torch.tensor(self.trains, dtype=torch.long, device=row.device)[parties]
        alike = int(trains[0]) if bool((trains == trains[0]).all()) else None
        weights = None if weights is None else weights.view(-1, 1, 1)
        begins = torch.arange(0, shared.size(1) + width, width, device=row.device)
        entries = torch.searchsorted(column, begins).tolist()
        for at, begin in enumerate(range(0, shared.size(1), width)):
            inputs, of = slice(begin, min(begin + width, shared.size(1))), slice(entries[at], entries[at + 1])
            count = inputs.stop - inputs.start
            block = buffer[: parties.numel() * count * shared.size(2)].view(parties.numel(), count, shared.size(2))
            values = own.index_select(0, row[of])
            if weights is not None:
                values.mul_(weights[place[of], 0])
            if weights is not None and alike is not None:
                torch.mul(shared[alike, inputs], weights, out=block)
            else:
                torch.index_select(shared[:, inputs], 0, trains, out=block)
                if weights is not None:
                    block.mul_(weights)
            block.view(-1, shared.size(2)).index_copy_(0, place[of] * count + column[of] - begin, values)
            yield inputs, block

    def outline(self) -> Tensor:
        """A tensor with the shape of one slice and without its data."""
        return self.shared_rows.new_empty(1).expand(self.shared_rows.size(2), self.shared_rows.size(1))

    def slice(self, at: int) -> Tensor:
        """The whole weight `[out, in]` of the party at this position."""
        sizes = self.columns.sizes
        whole = self.shared_rows.detach()[int(self.trains[at])].clone()
        whole[self.columns.index.split(sizes)[at]] = self.party_rows.detach().split(sizes)[at]
        return whole.t()

    def stack(self) -> Tensor:
        """All slices, `[parties, out, in]`."""
        if not self.columns.touched:  # every party has all rows
            return transposed(self.party_rows.detach().view(len(self.trains), -1, self.party_rows.size(1)))
        return torch.stack([each.clone(memory_format=torch.contiguous_format) for each in self.slices()])


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
    if bool(torch.isfinite(stack.party_rows.detach().sum() + stack.shared_rows.detach().sum())):
        return []
    shared = torch.isfinite(stack.shared_rows.detach()).flatten(1).all(1).tolist()
    parts = zip(stack.party_rows.detach().split(stack.columns.sizes), stack.trains, strict=True)
    return [at for at, (part, trains) in enumerate(parts) if not shared[trains] or not bool(part.sum().isfinite())]
