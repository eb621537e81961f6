"""Small graphs of the TU Dortmund collection (Morris et al. 2020)."""

from __future__ import annotations

from typing import ClassVar

import torch

from isthmus.data.datasets.public import PublicDataSet
from isthmus.data.party import Party
from isthmus.data.pool import Pool, Share, draws, split_by_share


class SmallGraphs(PublicDataSet):
    """Many small graphs, each with one class, from the TU Dortmund collection."""

    reader: ClassVar[str] = "TUDataset"
    folder: ClassVar[str] = "tu"

    train: Share = 0.8
    """Share of the graphs to train on, the same in every class."""
    val: Share = 0.1
    """Share of the graphs to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        graphs = list(self.fetch(use_node_attr=True))
        y = torch.cat([graph.y for graph in graphs])
        masks = split_by_share(y, self.train, self.val, draws(seed, "split"))
        splits = {key.removesuffix("_mask"): mask for key, mask in masks.items()}
        return Pool(Party.of_graphs("pooled", graphs, **splits), classes=int(y.max()) + 1)


class Enzymes(SmallGraphs):
    """Protein structures of six enzyme classes: 600 graphs, 21 features."""

    name: ClassVar[str] = "enzymes"
    title: ClassVar[str] = "ENZYMES"


class Proteins(SmallGraphs):
    """Proteins, enzyme or not: 1,113 graphs, 4 features, 2 classes."""

    name: ClassVar[str] = "proteins"
    title: ClassVar[str] = "PROTEINS"


class Dhfr(SmallGraphs):
    """Inhibitors of dihydrofolate reductase, active or not: 756 graphs, 56 features, 2 classes."""

    name: ClassVar[str] = "dhfr"
    title: ClassVar[str] = "DHFR"


class Nci1(SmallGraphs):
    """Compounds screened against lung cancer cells: 4,110 graphs, 37 features, 2 classes."""

    name: ClassVar[str] = "nci1"
    title: ClassVar[str] = "NCI1"
