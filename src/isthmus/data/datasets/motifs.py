"""Generated small graphs: nothing to download, the same data for the same seed, time linear in the graphs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import one_hot
from torch_geometric.data import Data

from isthmus.data.datasets.planting import MOTIFS, PlantedGraphs
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, Share, numpy_generator, split_by_share


class Motifs(DataSet):
    """Small graphs, each a random tree with one planted motif: a cycle, a clique, a star, a wheel or a path."""

    name: ClassVar[str] = "motifs"

    graphs: int = Field(300, ge=1)
    """Graphs of all parties together."""
    classes: int = Field(3, ge=1, le=len(MOTIFS))
    """Number of motifs, in the order above; a graph's class is its motif."""
    features: int = Field(8, ge=1)
    """Kinds of node, one-hot; they are independent of the class."""
    size: int = Field(6, ge=4)
    """Nodes of a motif."""
    smallest: int = Field(8, ge=1)
    """Nodes of the smallest tree; the largest has twice as many."""
    train: Share = 0.6
    """Share of the graphs to train on, the same in every class."""
    val: Share = 0.2
    """Share of the graphs to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """All graphs in one party.

        >>> pool = Motifs(graphs=12).load(seed=0)
        >>> pool.party.level, pool.party.items, pool.party.features
        ('graph', 12, 8)
        """
        generator = numpy_generator(seed, "motifs")
        y = generator.permutation(np.arange(self.graphs) % self.classes)
        trees = generator.integers(self.smallest, 2 * self.smallest + 1, size=self.graphs)
        planted = PlantedGraphs(trees, y[:, None] == np.arange(self.classes), self.size)
        shapes = [motif(self.size) for motif in MOTIFS[: self.classes]]
        edge_index = planted.edges(shapes, 1.0, generator)
        batch = planted.batch
        kinds = torch.from_numpy(generator.integers(self.features, size=batch.numel()))
        labels = torch.from_numpy(y)
        graph = Data(x=one_hot(kinds, self.features).float(), edge_index=edge_index, y=labels, batch=batch)
        splits = split_by_share(labels, self.train, self.val, numpy_generator(seed, "split"))
        party = Party.of_batch("pooled", graph, **splits)
        return Pool(party, self.classes, note="Generated trees with planted motifs.")
