"""Citation networks with the split of Planetoid (Yang et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from torch_geometric.data import Data

from isthmus.data.datasets.public import Sizes, SplitGraph, download


class Citations(SplitGraph):
    """A citation network of papers with bags of words, as published with Planetoid."""

    reader: ClassVar[str] = "Planetoid"
    folder: ClassVar[str] = "planetoid"
    url: ClassVar[str] = "https://github.com/kimiyoung/planetoid/raw/master/data"

    normalize: bool = True
    """Divide every paper's features by their sum."""

    def required_files(self) -> Sequence[str]:
        parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
        return [f"ind.{self.title.lower()}.{part}" for part in parts]

    def download(self, folder: Path) -> None:
        for name in self.required_files():
            download(f"{self.url}/{name}", folder)

    def graph(self) -> Data:
        from torch_geometric.transforms import NormalizeFeatures

        return self.fetch(transform=NormalizeFeatures() if self.normalize else None)[0]


class Cora(Citations):
    """Machine learning papers."""

    name: ClassVar[str] = "cora"
    title: ClassVar[str] = "Cora"
    sizes: ClassVar[Sizes] = Sizes(nodes=2708, edges=5278, features=1433, classes=7)


class CiteSeer(Citations):
    """Computer science papers."""

    name: ClassVar[str] = "citeseer"
    title: ClassVar[str] = "CiteSeer"
    sizes: ClassVar[Sizes] = Sizes(nodes=3327, edges=4552, features=3703, classes=6)


class PubMed(Citations):
    """Papers on diabetes, with TF-IDF features."""

    name: ClassVar[str] = "pubmed"
    title: ClassVar[str] = "PubMed"
    sizes: ClassVar[Sizes] = Sizes(nodes=19717, edges=44324, features=500, classes=3)
