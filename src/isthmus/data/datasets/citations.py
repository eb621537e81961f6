"""Citation networks with the split of Planetoid (Yang et al. 2016)."""

from __future__ import annotations

from typing import ClassVar, Literal

from isthmus.data.datasets.public import OneGraph, node_pool
from isthmus.data.pool import Pool, draws


class Citations(OneGraph):
    """A citation network of papers with bags of words, as Planetoid published it."""

    reader: ClassVar[str] = "Planetoid"
    folder: ClassVar[str] = "planetoid"

    split: Literal["public", "random"] = "public"
    """The published split, or one drawn by seed with `train_per_class`, `val` and `test` nodes."""
    normalize: bool = True
    """Divide every paper's features by their sum."""

    def load(self, seed: int) -> Pool:
        from torch_geometric.transforms import NormalizeFeatures

        data = self.fetch(transform=NormalizeFeatures() if self.normalize else None)[0]
        if self.split == "random":
            data.update(self.drawn_split(data.y, draws(seed, "split")))
        return node_pool(data)


class Cora(Citations):
    """Machine learning papers: 2,708 nodes, 5,278 edges, 1,433 words, 7 classes."""

    name: ClassVar[str] = "cora"
    title: ClassVar[str] = "Cora"


class CiteSeer(Citations):
    """Computer science papers: 3,327 nodes, 4,552 edges, 3,703 words, 6 classes."""

    name: ClassVar[str] = "citeseer"
    title: ClassVar[str] = "CiteSeer"


class PubMed(Citations):
    """Diabetes papers: 19,717 nodes, 44,324 edges, 500 TF-IDF features, 3 classes."""

    name: ClassVar[str] = "pubmed"
    title: ClassVar[str] = "PubMed"
