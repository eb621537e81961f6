"""The law of sums: a total over parties is a balanced binary tree over their positions.

    node(0, p) = w_p x_p                              for the party at position p of the federation
    node(l, i) = node(l - 1, 2i) + node(l - 1, 2i + 1)

A node without any contributor is skipped: its sibling is the parent. So the bits of a total depend on the positions of
the contributors and on nothing else: not on the order of arrival, nor on the machine that adds up a block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.nn.stacks import FirstLayer

Nodes: TypeAlias = dict[tuple[int, int], Tensor | None]
"""Partial sums by (level, index); None for a node all of whose parties are missing."""
Index: TypeAlias = slice | Tensor

AT_ONCE = 2**19
"""Numbers that are added up in one buffer: it fits into a processor's cache."""
AT_ONCE_ON_DEVICE = 2**26
"""The same on other devices, where a call costs more than memory."""
AT_ONCE_BY_ROW = 2**22
"""The same where rows are added by id."""
LEAST_WIDTH = 16
"""Numbers of a row that are added up at once, at least: a line of a processor's cache."""
ROWS = 64
"""Parties that are added up in one buffer, at least: fewer would make more calls than additions."""
PLANS = 64
"""Plans that a tree keeps."""
TOP = 64
"""A level above every root."""


@dataclass(frozen=True)
class Piece:
    """Rows of a stack that make up one subtree.

    Arguments:
        rows: of the stack, by position.
        first, last: the first rank of the subtree, and the first behind it.
        steps: which of these rows are added to which, level by level.
    """

    rows: Index
    first: int
    last: int
    steps: Sequence[tuple[Index, Index]]


class Tree:
    """The shape of a total: the tree over these positions.

    `levels[k]` is the level at which the leaves before and after border k meet; leaves are ranked by position.

    Arguments:
        positions: of all parties that may contribute, in any order.
    """

    def __init__(self, positions: Collection[int]) -> None:
        self.positions = np.unique(np.fromiter(positions, np.int64, len(positions)))
        self.levels = np.full(len(self.positions) + 1, TOP, np.int8)
        self.levels[1:-1] = _meeting(self.positions)
        self.borders: list[int] = self.levels.tolist()
        self._rank: dict[int, int] = {position: rank for rank, position in enumerate(self.positions.tolist())}
        self._plans: dict[tuple[tuple[int, ...], int], list[Piece]] = {}

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, position: int) -> bool:
        return position in self._rank

    def rank(self, position: int) -> int:
        if position not in self._rank:
            raise IsthmusError(f"position {position} is not among the {len(self)} that this sum is over")
        return self._rank[position]

    def key(self, first: int, last: int) -> tuple[int, int]:
        """The node (level, index) over the leaves of these ranks."""
        begin, end = int(self.positions[first]), int(self.positions[last - 1])
        level = (begin ^ end).bit_length()
        return level, begin >> level

    def ranks_of(self, key: tuple[int, int]) -> tuple[int, int]:
        """The first rank below a node, and the first behind it."""
        level, index = key
        first, last = np.searchsorted(self.positions, [index << level, (index + 1) << level]).tolist()
        if first == last:
            raise IsthmusError(f"node {key} is over none of the {len(self)} positions of this sum")
        return first, last

    def plan(self, positions: tuple[int, ...], most: int) -> list[Piece]:
        """Split the parties at these positions into whole subtrees with at most so many leaves."""
        key = positions, most
        if key not in self._plans:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[key] = list(self._pieces(positions, most))
        return self._plans[key]

    def _pieces(self, positions: tuple[int, ...], most: int) -> Iterator[Piece]:
        ranks = np.array([self.rank(position) for position in positions])
        order = ranks.argsort()
        ranks = ranks[order]
        ends = [*(np.flatnonzero(np.diff(ranks) != 1) + 1).tolist(), len(ranks)]
        for begin, end in zip([0, *ends], ends, strict=False):
            base = int(ranks[begin])
            for first, last in self.subtrees(base, base + end - begin, most):
                rows = index_of(order[begin + first - base : begin + last - base])
                yield Piece(rows, first, last, _steps(self.levels[first + 1 : last].tobytes()))

    def subtrees(self, first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
        """Split leaves of these ranks into whole subtrees with at most so many of them."""
        inner = self.levels[first + 1 : last]
        if not len(inner):
            yield first, last
            return
        root = int(inner.argmax())
        if len(inner) < most and inner[root] < min(self.borders[first], self.borders[last]):
            yield first, last
            return
        yield from self.subtrees(first, first + 1 + root, most)
        yield from self.subtrees(first + 1 + root, last, most)


@lru_cache(maxsize=16)
def tree_over(positions: tuple[int, ...]) -> Tree:
    """The tree over these positions, which rounds share."""
    return Tree(positions)


def positions_of(parties: Sequence[str]) -> dict[str, int]:
    """By party its position in a federation of these parties."""
    return {party: position for position, party in enumerate(parties)}


class TreeSum:
    """A sum that parties, or whole blocks of them, are added to in any order.

    Pairs are added as soon as both sides are there, so of K values that come by position at most log2(K) + 1 are held.

    Arguments:
        tree: over all parties that may contribute. If several processes add up parts of one sum, each is given the
            whole tree, or the part of it below a node.
        buffers: memory that several sums share.
    """

    def __init__(self, tree: Tree, buffers: dict[torch.dtype, Tensor] | None = None) -> None:
        self.tree = tree
        self._buffers = {} if buffers is None else buffers
        self._found: dict[int, tuple[int, Tensor | None]] = {}  # by first rank: the first rank behind, the sum
        self._first: dict[int, int] = {}  # by first rank behind: the first rank
        self._spare: Tensor | None = None

    def add(self, positions: Sequence[int], stack: Tensor, weights: Tensor | None = None) -> None:
        """Add slices of a stack.

        Arguments:
            positions: of the parties, in any order, `[parties]`.
            stack: `[parties, ...]`.
            weights: one factor per party, `[parties]`.
        """
        if len(positions) == 1:
            self.add_one(positions[0], stack[0], None if weights is None else float(weights[0]))
            return
        flat, shape, dims = _flat(stack)
        weights = None if weights is None else _factors(weights, flat).view(-1, 1)
        most = max(ROWS, _at_once(flat) // max(1, flat.size(1)))
        for piece in self.tree.plan(tuple(positions), most):
            value = self._added(flat, weights, piece)
            self._join(piece.first, piece.last, value.view(shape) if dims is None else value.view(shape).permute(dims))

    def add_first_layer(self, positions: Sequence[int], layer: FirstLayer, weights: Tensor | None = None) -> None:
        """As `add` with `layer.stack()`, whose slices are assembled block by block, in a processor's cache."""
        shared = layer.shared_rows.detach()
        for piece in self.tree.plan(tuple(positions), len(positions)):
            parties = torch.arange(len(positions))[piece.rows].to(shared.device)
            factors = None if weights is None else _factors(weights, shared)[parties]
            width = max(1, _at_once(shared) // (parties.numel() * shared.size(2)))
            buffer = self._buffer(shared, parties.numel() * min(width, shared.size(1)) * shared.size(2))
            out = shared.new_empty(shared.shape[1:])
            for inputs, block in layer.blocks(parties, factors, width, buffer):
                add_in_place(block, piece.steps)
                out[inputs] = block[0]
            self._join(piece.first, piece.last, out.t())

    def add_one(self, position: int, value: Tensor, weight: float | Tensor | None = None) -> None:
        """Add one party's value, times its weight: one number, or one for every row."""
        if isinstance(weight, Tensor):
            weight = _factors(weight, value).view(-1, *[1] * (value.dim() - 1))
        spare, self._spare = self._spare, None
        fits = spare is not None and spare.shape == value.shape and spare.stride() == value.stride()
        out = spare if spare is not None and fits else torch.empty_like(value)
        rank = self.tree.rank(position)
        self._join(rank, rank + 1, out.copy_(value) if weight is None else torch.mul(value, weight, out=out))

    def skip(self, positions: Sequence[int]) -> None:
        """Leave out parties that will not contribute."""
        for rank in map(self.tree.rank, positions):
            self._join(rank, rank + 1, None)

    def nodes(self) -> Nodes:
        """Return the partial sums so far."""
        return {self.tree.key(first, last): value for first, (last, value) in self._found.items()}

    def merge(self, nodes: Mapping[tuple[int, int], Tensor | None]) -> None:
        """Add partial sums that were made elsewhere; their memory is this sum's from now on."""
        for key, value in nodes.items():
            self._join(*self.tree.ranks_of(key), value)

    def total(self) -> Tensor:
        """Return the sum; parties that have not come are left out."""
        edges = sorted({0, len(self.tree), *self._found, *self._first})
        gaps = [ranks for ranks in itertools.pairwise(edges) if ranks[0] not in self._found]
        for first, last in gaps if self._found else ():
            for piece in self.tree.subtrees(first, last, len(self.tree)):
                self._join(*piece, None)
        value = self._found[0][1] if self._found else None
        if value is None:
            raise IsthmusError("a sum of no party was read")
        return value

    def _join(self, first: int, last: int, value: Tensor | None) -> None:
        """Take in the sum over whole subtree of these ranks, and add it to its sibling if that is there."""
        levels = self.tree.borders
        while True:
            if levels[last] < levels[first]:
                if last not in self._found or levels[self._found[last][0]] < levels[last]:
                    break
                right = last
                last, other = self._found.pop(right)
                del self._first[last]
                value = self._plus(value, other)
            else:
                if first not in self._first or levels[self._first[first]] < levels[first]:
                    break
                right, first = first, self._first.pop(first)
                value = self._plus(self._found.pop(first)[1], value)
        self._found[first] = last, value
        self._first[last] = first

    def _plus(self, left: Tensor | None, right: Tensor | None) -> Tensor | None:
        if left is None or right is None:
            return right if left is None else left
        self._spare = right
        return left.add_(right)

    def _buffer(self, like: Tensor, numbers: int) -> Tensor:
        buffer = self._buffers.get(like.dtype)
        if buffer is None or buffer.numel() < numbers or buffer.device != like.device:
            buffer = self._buffers[like.dtype] = like.new_empty(numbers)
        return buffer

    def _added(self, flat: Tensor, weights: Tensor | None, piece: Piece) -> Tensor:
        """The weighted sum of some rows `[parties, numbers]`."""
        count, size = piece.last - piece.first, flat.size(1)
        weights = None if weights is None else weights[piece.rows]
        out = flat.new_empty(size)
        blocks = max(1, math.ceil(size * count / _at_once(flat)))
        width = max(1, math.ceil(size / blocks))
        buffer = self._buffer(flat, count * width)
        for begin in range(0, size, width):
            part = flat[:, begin : begin + width]
            sums = buffer[: count * part.size(1)].view(count, part.size(1))
            if isinstance(piece.rows, Tensor):
                torch.index_select(part, 0, piece.rows.to(part.device), out=sums)
                part = sums
            else:
                part = part[piece.rows]
            if weights is not None:
                torch.mul(part, weights, out=sums)
            elif part is not sums:
                sums.copy_(part)
            add_in_place(sums, piece.steps)
            out[begin : begin + width] = sums[0]
        return out


class RowTrees:
    """For each row of a sum the tree over the parties that hold it.

    Arguments:
        rows: by party where its rows are in the sum, each once.
        positions: of the parties.
        length: rows of the sum.
    """

    def __init__(self, rows: Sequence[Tensor], positions: Sequence[int], length: int) -> None:
        self.length = length
        self.turns = sorted(range(len(rows)), key=positions.__getitem__)
        own = [rows[turn] for turn in self.turns]
        at, order = torch.cat(own).sort(stable=True)  # by row, then by position
        of = np.repeat([positions[turn] for turn in self.turns], [each.numel() for each in own])[order.numpy()]
        levels = np.where(at[:-1] == at[1:], _meeting(of), TOP).astype(np.int8)
        self.steps = [(order[left], order[right]) for left, right in _pairs(levels)]
        first = torch.from_numpy(np.flatnonzero(np.concatenate([[TOP] if len(at) else [], levels]) == TOP))
        self.whole, self.filled = order[first], at[first]

    def sum(self, values: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
        """Add up rows; rows that no party holds are zero.

        Arguments:
            values: by party its rows `[own rows, ...]`.
            factors: by party one factor per row, `[own rows]`.
        """
        device, shape = values[0].device, values[0].shape[1:]
        flat = [values[turn].detach().reshape(len(values[turn]), math.prod(shape)) for turn in self.turns]
        wide = [_factors(factors[turn], flat[0]).view(-1, 1) for turn in self.turns]
        whole, filled = self.whole.to(device), self.filled.to(device)
        count, size = sum(map(len, flat)), flat[0].size(1)
        total = flat[0].new_zeros(self.length, size)
        width = max(1, min(size, max(LEAST_WIDTH, AT_ONCE_BY_ROW // max(1, count))))
        buffer = flat[0].new_empty(count * width)
        for begin in range(0, size, width):
            block = slice(begin, min(size, begin + width))
            part = buffer[: count * (block.stop - begin)].view(count, block.stop - begin)
            for value, factor, own in zip(flat, wide, part.split(list(map(len, flat))), strict=True):
                torch.mul(value[:, block], factor, out=own)
            add_in_place(part, self.steps)
            total[:, block].index_copy_(0, filled, part.index_select(0, whole))
        return total.view(self.length, *shape)


def add_in_place(sums: Tensor, steps: Sequence[tuple[Index, Index]]) -> None:
    """Add rows to rows, step by step."""
    for left, right in steps:
        if isinstance(left, slice):
            sums[left].add_(sums[right])
        else:  # no row occurs twice, so the order of these additions changes nothing
            assert isinstance(right, Tensor)
            sums.index_add_(0, left.to(sums.device), sums.index_select(0, right.to(sums.device)))


def _factors(weights: Tensor, values: Tensor) -> Tensor:
    """Weights in the type in which values are multiplied: single precision for halves, as torch does with a number."""
    return weights.to(values.device, torch.float32 if values.dtype.itemsize < 4 else values.dtype)


def _at_once(flat: Tensor) -> int:
    return AT_ONCE if flat.device.type == "cpu" else AT_ONCE_ON_DEVICE


@lru_cache(maxsize=4096)
def _steps(levels: bytes) -> tuple[tuple[Index, Index], ...]:
    """The rows that are added to and those that are added to them, level by level; slices where both are even."""
    steps = []
    for left, right in _pairs(np.frombuffer(levels, np.int8)):
        to, of = index_of(left), index_of(right)
        even = isinstance(to, slice) and isinstance(of, slice)
        steps.append((to, of) if even else (torch.from_numpy(left), torch.from_numpy(right)))
    return tuple(steps)


def _pairs(levels: NDArray[np.int8]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield for every level the rows that are added to, and the rows that are added to them.

    Arguments:
        levels: where neighbouring rows meet; at `TOP` they do not.
    """
    firsts = np.arange(len(levels) + 1)  # the first row of every node
    for level in np.unique(levels[levels < TOP]):
        right = np.flatnonzero(levels[firsts[1:] - 1] == level) + 1
        yield firsts[right - 1], firsts[right]
        firsts = np.delete(firsts, right)


def index_of(rows: NDArray[np.int64]) -> Index:
    """Return a slice, which copies nothing, where the rows are evenly spaced."""
    first, step = int(rows[0]), int(rows[1] - rows[0]) if len(rows) > 1 else 1
    if step > 0 and int(rows[-1]) == first + step * (len(rows) - 1) and bool((np.diff(rows) == step).all()):
        return slice(first, int(rows[-1]) + 1, step)
    return torch.from_numpy(np.ascontiguousarray(rows))


def _meeting(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The level at which neighbouring positions meet: the number of bits from the first one that differs."""
    levels: NDArray[np.int64] = np.frexp((positions[:-1] ^ positions[1:]).astype(np.float64))[1]
    return levels


def _flat(stack: Tensor) -> tuple[Tensor, Sequence[int], list[int] | None]:
    """The stack as `[parties, numbers]` in the order of its memory, and the shape and permutation of a slice."""
    stack = stack.detach()
    if stack.is_contiguous():
        return stack.view(stack.size(0), math.prod(stack.shape[1:])), stack.shape[1:], None
    order = sorted(range(1, stack.dim()), key=stack.stride, reverse=True)
    ordered = stack.permute(0, *order)
    return (
        ordered.reshape(stack.size(0), math.prod(stack.shape[1:])),
        ordered.shape[1:],
        np.argsort([dim - 1 for dim in order]).tolist(),
    )
