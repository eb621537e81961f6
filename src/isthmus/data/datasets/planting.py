"""Many small graphs, each a random tree with planted motifs, generated at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from isthmus.data.matrices import Bools, Floats, Ints

Edges = Sequence[tuple[int, int]]


def cycle(size: int) -> Edges:
    return [(at, (at + 1) % size) for at in range(size)]


def clique(size: int) -> Edges:
    return list(combinations(range(size), 2))


def star(size: int) -> Edges:
    return [(0, at) for at in range(1, size)]


def wheel(size: int) -> Edges:
    return [(0, at) for at in range(1, size)] + [(at, at % (size - 1) + 1) for at in range(1, size)]


def path(size: int) -> Edges:
    return [(at, at + 1) for at in range(size - 1)]


MOTIFS = (cycle, clique, star, wheel, path)


@dataclass(frozen=True, eq=False)
class PlantedGraphs:
    """The layout of many small graphs: of each, first the nodes of its tree, then those of its motifs.

    Arguments:
        trees: number of nodes of each graph's tree, at least one, `[graphs]`.
        planted: which motifs each graph has, `[graphs, motifs]`.
        size: nodes of a motif.

    >>> graphs = PlantedGraphs(trees=np.array([3, 2]), planted=np.array([[True], [False]]), size=4)
    >>> graphs.nodes.tolist(), graphs.edges([cycle(4)], 1.0, np.random.default_rng(0)).shape
    ([7, 2], torch.Size([2, 16]))
    """

    trees: Ints
    planted: Bools
    size: int

    @property
    def nodes(self) -> Ints:
        """Nodes of each graph, `[graphs]`."""
        return self.trees + self.size * self.planted.sum(1)

    @property
    def batch(self) -> Tensor:
        """The graph of each node, `[nodes]`."""
        nodes = torch.from_numpy(self.nodes)
        return torch.arange(nodes.numel()).repeat_interleave(nodes)

    def roots(self) -> Ints:
        """The first node of each graph, `[graphs]`."""
        nodes = self.nodes
        return nodes.cumsum() - nodes

    def motif_starts(self) -> list[tuple[Ints, Ints]]:
        """For each motif the graphs that have it, and the motif's first node in each of them."""
        before: Ints = np.cumsum(self.planted, axis=1) - self.planted
        first = (self.roots() + self.trees)[:, None] + self.size * before
        return [(graphs := np.flatnonzero(has), first[graphs, at]) for at, has in enumerate(self.planted.T)]

    def edges(self, shapes: Sequence[Edges], bend: Floats | float, generator: np.random.Generator) -> Tensor:
        """Edges both ways, graph after graph, `[2, edges]`.

        Arguments:
            shapes: the edges of each motif; one more edge ties it to a random node of the tree.
            bend: the shape of each graph's tree. The parent of node i is node `int(u ** bend * i)` with u uniform in
                [0, 1): any earlier node at 1; near 0 mostly the previous one (a chain); far above 1 mostly the root.
        """
        once = [len(shape) + 1 for shape in shapes]
        of_motifs = self.planted * np.array(once, dtype=np.int64)
        counts = self.trees - 1 + of_motifs.sum(1)
        starts = counts.cumsum() - counts
        edges = np.empty((2, int(counts.sum())), dtype=np.int64)
        graph, child = self._children()
        power = np.broadcast_to(bend, self.trees.shape)[graph]
        root = self.roots()[graph]
        parent = (generator.random(child.size) ** power * child).astype(np.int64)
        at = starts[graph] + child - 1
        edges[0, at], edges[1, at] = root + parent, root + child
        starts = (starts + self.trees - 1)[:, None] + of_motifs.cumsum(1) - of_motifs
        for motif, (graphs, first) in enumerate(self.motif_starts()):
            tie = self.roots()[graphs] + generator.integers(self.trees[graphs])
            source, target = np.array(shapes[motif]).T
            at = starts[graphs, motif][:, None] + np.arange(once[motif])
            edges[0, at] = np.concatenate([first[:, None] + source, tie[:, None]], axis=1)
            edges[1, at] = np.concatenate([first[:, None] + target, first[:, None]], axis=1)
        return torch.from_numpy(np.stack([edges, edges[::-1]], axis=2).reshape(2, -1))

    def _children(self) -> tuple[Ints, Ints]:
        """For each tree node except the roots, its graph and its position in the tree."""
        graph = np.arange(self.trees.size).repeat(self.trees - 1)
        before = (self.trees - 1).cumsum() - (self.trees - 1)
        return graph, np.arange(graph.size) - before[graph] + 1
