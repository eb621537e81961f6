"""Reading a graph from the gradient of one step on it, in the manner of GRAIN (Drencheva et al. 2025).

For a graph convolution Z = A H W, A with loops and 1 / sqrt of both degrees, the gradient is dL/dW = H^T (A^T dL/dZ).
So it is spanned by rows of H, and spans all of them if the layer is wide enough and the pieces do not coincide:

1. A node's features are among those that lie in the span of the first layer's gradient.
2. What a node and its neighbours, a block, make of the first layer lies in the span of the second layer's gradient.
   The nodes of a block are a kind each: features and a degree, for A reads degrees.
3. Blocks are glued: a node whose neighbours are not all there yet gets those of a block that fits, new nodes or old
   ones. Of the graphs without loose ends the best one is that whose own gradient is nearest to the gradient.

GRAIN reads blocks of every layer and all features that the data's form allows. Here blocks are of the first layer only,
kinds are those of a given vocabulary, and the search ends after so many graphs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

WITHIN = 1e-2
"""Relative distance from the span up to which a row counts as in it."""
BLOCKS = 2_000_000
"""Blocks that are compared with the span, at most."""
MANY = 500
"""Blocks in the span from which on it tells too little of a graph to search for it."""
AT_ONCE = 50_000


@dataclass(frozen=True)
class Vocabulary:
    """What a node can be.

    Arguments:
        rows: different feature rows, `[rows, features]`.
        row, degree: of each kind, `[kinds]`.
    """

    rows: Tensor
    row: Tensor
    degree: Tensor

    @classmethod
    def of(cls, x: Tensor, degree: Tensor) -> Vocabulary:
        """The kinds of these nodes."""
        rows, row = torch.unique(x, dim=0, return_inverse=True)
        kinds = torch.unique(torch.stack([row, degree]), dim=1)
        return cls(rows.double(), kinds[0], kinds[1])

    def kind_of(self, x: Tensor, degree: Tensor) -> list[int]:
        """The kind of each node; -1 if it is none."""
        known = {
            (tuple(self.rows[row].tolist()), degree): kind
            for kind, (row, degree) in enumerate(zip(self.row.tolist(), self.degree.tolist(), strict=True))
        }
        return [known.get((tuple(a), b), -1) for a, b in zip(x.double().tolist(), degree.tolist(), strict=True)]


Block = tuple[int, tuple[int, ...]]
"""The kind of a node, and those of its neighbours, ascending."""


def span_of(gradient: Tensor, rounding: float) -> Tensor:
    """An orthonormal basis of the rows of a gradient, `[rank, width]`.

    Arguments:
        rounding: standard deviation of the error of its numbers.
    """
    _, sizes, basis = torch.linalg.svd(gradient.double(), full_matrices=False)
    return basis[sizes > 2 * rounding * (math.sqrt(gradient.size(0)) + math.sqrt(gradient.size(1)))]


def distance(rows: Tensor, basis: Tensor) -> Tensor:
    """How far rows are from a span, as a share of their norm; 1 for rows of zeros."""
    norms = rows.norm(dim=1)
    rest = (rows - rows @ basis.t() @ basis).norm(dim=1)
    return torch.where(norms > 0, rest / norms.clamp(min=1e-300), torch.ones_like(rest))


def kinds_in(gradient: Tensor, rounding: float, vocabulary: Vocabulary) -> list[int]:
    """The kinds whose features lie in the span of the first layer's gradient `[hidden, features]`."""
    near = distance(vocabulary.rows, span_of(gradient, rounding)) < WITHIN
    return torch.nonzero(near[vocabulary.row]).squeeze(1).tolist()


def blocks_in(
    gradient: Tensor, rounding: float, weight: Tensor, bias: Tensor | None, kinds: Sequence[int], vocabulary: Vocabulary
) -> list[Block] | None:
    """The blocks of these kinds that lie in the span of the second layer's gradient; None if too many are or could be.

    Arguments:
        weight, bias: of the first layer, `[hidden, features]`.
    """
    by_degree: dict[int, list[int]] = {}
    for kind in kinds:
        by_degree.setdefault(int(vocabulary.degree[kind]), []).append(kind)
    if sum(len(centres) * _choices(len(kinds), degree) for degree, centres in by_degree.items()) > BLOCKS:
        return None
    product, basis = vocabulary.rows @ weight.double().t(), span_of(gradient, rounding)
    scale = (1 + vocabulary.degree.double()).rsqrt()
    offset = 0.0 if bias is None else bias.double()
    found: list[Block] = []
    for degree, centres in by_degree.items():
        around = torch.tensor(list(itertools.combinations_with_replacement(kinds, degree)), dtype=torch.long)
        for some in around.view(-1, degree).split(AT_ONCE):
            sums = (product[vocabulary.row[some]] * scale[some].unsqueeze(2)).sum(1)
            for centre in centres:
                own = product[vocabulary.row[centre]] * scale[centre]
                h = ((sums + own) * scale[centre] + offset).relu()
                near = distance(h, basis) < WITHIN
                found += [(centre, tuple(each)) for each in some[near].tolist()]
                if len(found) > MANY:
                    return None
    return _consistent(found)


def _choices(kinds: int, size: int) -> int:
    """Multisets of so many kinds."""
    found = 1
    for at in range(size):
        found = found * (kinds + at) // (at + 1)
    return found


def _consistent(blocks: Sequence[Block]) -> list[Block]:
    """Blocks each neighbour of which has a block with the centre among its neighbours."""
    kept = list(blocks)
    while True:
        pairs = {(centre, near) for centre, around in kept for near in around}
        fewer = [(centre, around) for centre, around in kept if all((near, centre) in pairs for near in around)]
        if len(fewer) == len(kept):
            return kept
        kept = fewer


@dataclass
class Piece:
    """A graph that grows.

    Attributes:
        kinds: of each node.
        around: by node its neighbours.
        whole: nodes whose neighbours are all there.
    """

    kinds: list[int]
    around: list[set[int]]
    whole: set[int] = field(default_factory=set)

    def copy(self) -> Piece:
        return Piece(list(self.kinds), [set(each) for each in self.around], set(self.whole))

    def form(self) -> object:
        """Equal for graphs that differ in the order of their nodes alone, and rarely for others: refined colours."""
        colours: list[object] = list(self.kinds)
        for _ in range(4):
            near = [tuple(sorted(hash(colours[each]) for each in around)) for around in self.around]
            colours = [hash(pair) for pair in zip(colours, near, strict=True)]
        return tuple(sorted(map(hash, colours)))

    @property
    def edge_index(self) -> Tensor:
        pairs = [(a, b) for a, near in enumerate(self.around) for b in near]
        return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()


def glued(blocks: Sequence[Block], least: int, most: int, pieces: int) -> Iterator[Piece]:
    """Connected graphs of which every node and its neighbours are one of these blocks: small ones first.

    Arguments:
        least, most: nodes of a graph.
        pieces: that are looked at for each number of nodes; then it goes on with larger graphs.
    """
    by_centre: dict[int, list[Block]] = {}
    for block in blocks:
        by_centre.setdefault(block[0], []).append(block)
    seen = set[object]()
    for size in range(least, most + 1) if blocks else ():
        stack = [Piece([centre], [set()]) for centre in sorted(by_centre, key=lambda each: -len(by_centre[each]))]
        for _ in range(pieces):
            if not stack:
                break
            piece = stack.pop()
            node = next((each for each in range(len(piece.kinds)) if each not in piece.whole), None)
            if node is not None:
                for _, around in by_centre.get(piece.kinds[node], ()):
                    stack += _with_block(piece, node, around, size, by_centre)
            elif len(piece.kinds) == size and (form := piece.form()) not in seen:
                seen.add(form)
                yield piece


def _with_block(
    piece: Piece, node: int, around: Sequence[int], most: int, by_centre: Mapping[int, Sequence[Block]]
) -> Iterator[Piece]:
    """The piece with all neighbours of a node: those that it has, old nodes with loose ends, and new ones."""
    missing = list(around)
    for near in piece.around[node]:
        if piece.kinds[near] not in missing:
            return
        missing.remove(piece.kinds[near])
    loose = [each for each in range(len(piece.kinds)) if each not in piece.whole and each != node]
    loose = [each for each in loose if each not in piece.around[node] and piece.kinds[each] in missing]
    for count in range(min(len(missing), len(loose)) + 1):
        for old in itertools.combinations(loose, count):
            new = list(missing)
            if not all(_take(new, piece.kinds[each]) for each in old):
                continue
            grown = piece.copy()
            grown.whole.add(node)
            for each in old:
                grown.around[node].add(each)
                grown.around[each].add(node)
            for kind in new:
                grown.around[node].add(len(grown.kinds))
                grown.kinds.append(kind)
                grown.around.append({node})
            if len(grown.kinds) <= most and all(_fits(grown, each, by_centre) for each in (*old, *piece.around[node])):
                yield grown


def _take(kinds: list[int], kind: int) -> bool:
    if kind in kinds:
        kinds.remove(kind)
        return True
    return False


def _fits(piece: Piece, node: int, by_centre: Mapping[int, Sequence[Block]]) -> bool:
    """Whether a block has all neighbours that a node has so far."""
    if node in piece.whole:
        return True
    have = sorted(piece.kinds[near] for near in piece.around[node])
    for _, around in by_centre.get(piece.kinds[node], ()):
        left = list(around)
        if all(_take(left, kind) for kind in have):
            return True
    return False
