"""Generated small graphs: nothing to download, the same data for the same seed."""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch_geometric.data import Data

from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, Share, draws, split_by_share


def _cycle(size: int) -> list[tuple[int, int]]:
    return [(at, (at + 1) % size) for at in range(size)]


def _clique(size: int) -> list[tuple[int, int]]:
    return list(combinations(range(size), 2))


def _star(size: int) -> list[tuple[int, int]]:
    return [(0, at) for at in range(1, size)]


def _wheel(size: int) -> list[tuple[int, int]]:
    return [(0, at) for at in range(1, size)] + [(at, at % (size - 1) + 1) for at in range(1, size)]


def _path(size: int) -> list[tuple[int, int]]:
    return [(at, at + 1) for at in range(size - 1)]


PLANTED = (_cycle, _clique, _star, _wheel, _path)


class Motifs(DataSet):
    """Small graphs, each a random tree with one planted motif: a cycle, a clique, a star, a wheel or a path."""

    name: ClassVar[str] = "motifs"

    graphs: int = Field(300, ge=1)
    """Graphs of all parties together."""
    classes: int = Field(3, ge=1, le=len(PLANTED))
    """Kinds of motif, in the order above; a graph's class is its motif."""
    features: int = Field(8, ge=1)
    """Kinds of node, one-hot; they say nothing about the class."""
    size: int = Field(6, ge=4)
    """Nodes of a motif."""
    smallest: int = Field(8, ge=1)
    """Least nodes of a tree; the largest tree has twice as many."""
    train: Share = 0.6
    """Share of the graphs to train on, the same in every class."""
    val: Share = 0.2
    """Share of the graphs to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """All graphs as one pile.

        >>> pool = Motifs(graphs=12).load(seed=0)
        >>> pool.party.level, pool.party.items, pool.party.features
        ('graph', 12, 8)
        """
        generator = draws(seed, "motifs")
        y = generator.permutation(np.arange(self.graphs) % self.classes)
        trees = generator.integers(self.smallest, 2 * self.smallest + 1, size=self.graphs)
        graphs = [self._graph(int(label), int(tree), generator) for label, tree in zip(y, trees, strict=True)]
        labels = torch.from_numpy(y)
        masks = split_by_share(labels, self.train, self.val, draws(seed, "split"))
        splits = {key.removesuffix("_mask"): mask for key, mask in masks.items()}
        party = Party.of_graphs("pooled", graphs, **splits)
        return Pool(party, self.classes, note="Generated trees with planted motifs.")

    def _graph(self, label: int, tree: int, generator: np.random.Generator) -> Data:
        child = np.arange(1, tree)
        parent = (generator.random(tree - 1) * child).astype(np.int64)  # any node before it
        motif = np.array(PLANTED[label](self.size)).T + tree
        link = np.array([[int(generator.integers(tree))], [tree]])
        once = np.concatenate([np.stack([parent, child]), motif, link], axis=1)
        kinds = generator.integers(self.features, size=tree + self.size)
        return Data(
            x=torch.eye(self.features)[torch.from_numpy(kinds)],
            edge_index=torch.from_numpy(np.concatenate([once, once[::-1]], axis=1)),
            y=torch.tensor([label]),
        )
