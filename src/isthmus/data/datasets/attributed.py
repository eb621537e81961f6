"""Networks of papers, pages and people with bags of words, in npz files of one layout.

A file holds `edge_index` (`[2, pairs]`, each pair once), `y` (`[nodes]`, classes from 0) and the nodes' words as the
parts of a CSR matrix: `data`, `indices`, `indptr` and `shape`. Four of the networks are converted from the text files
of AM-GCN (Wang et al. 2020); for `wiki` no single source has all parts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from isthmus.data.datasets.bags import Arrays, Bags, binarize, node_labels, read_matrix, undirected_edges
from isthmus.data.datasets.public import Sizes, data_root, download, unpack

AMGCN = "https://github.com/zhumeiqiBUPT/AM-GCN/raw/master/data"


class Attributed(Bags):
    """A network whose nodes have bags of words, in an npz file of the layout above."""

    folder: ClassVar[str] = "npz"

    def raw_folder(self) -> Path:
        return data_root() / self.folder

    def required_files(self) -> Sequence[str]:
        return (f"{self.name.replace('-', '')}.npz",)

    def parse(self, arrays: Arrays) -> tuple[csr_matrix, Tensor, Tensor]:
        words, pairs = read_matrix(arrays, ""), arrays["edge_index"]
        if pairs.ndim != 2 or pairs.shape[0] != 2:
            raise ValueError(f"edge_index has shape {list(pairs.shape)}, it must be [2, pairs]")
        nodes = words.shape[0]
        return words, undirected_edges(pairs[0], pairs[1], nodes), node_labels(arrays["y"], nodes)


class AmGcn(Attributed):
    """A network from the text files of AM-GCN. As there, word counts become 1: the word occurs."""

    edges: ClassVar[str] = ".edge"
    """What follows the title in the name of the text file with the edges."""

    def source(self) -> str:
        return f"{AMGCN}/{self.title}.zip"

    def parse(self, arrays: Arrays) -> tuple[csr_matrix, Tensor, Tensor]:
        words, edge_index, y = super().parse(arrays)
        return binarize(words), edge_index, y

    def download(self, folder: Path) -> None:
        """Build the npz file from the archive, downloaded unless it is there."""
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            texts, archive = Path(unpacked), self.raw_folder() / f"{self.title}.zip"
            unpack(archive if archive.is_file() else download(self.source(), texts), texts)
            words = csr_matrix(np.loadtxt(texts / f"{self.title}.feature", dtype=np.float32, ndmin=2))
            y = np.loadtxt(texts / f"{self.title}.label", dtype=np.int64, ndmin=1)
            pairs = np.loadtxt(texts / f"{self.title}{self.edges}", dtype=np.int64, ndmin=2)[:, :2].T
        edge_index = undirected_edges(pairs[0], pairs[1], words.shape[0]).numpy()
        np.savez_compressed(
            folder / self.required_files()[0],
            edge_index=edge_index[:, edge_index[0] < edge_index[1]],
            y=node_labels(y, words.shape[0]).numpy(),
            shape=np.array(words.shape),
            data=words.data,
            indices=words.indices,
            indptr=words.indptr,
        )


class Acm(AmGcn):
    """Papers of three fields, joined where they share an author."""

    name: ClassVar[str] = "acm"
    title: ClassVar[str] = "acm"
    edges: ClassVar[str] = "_PAP.edge"
    sizes: ClassVar[Sizes] = Sizes(nodes=3025, edges=13128, features=1870, classes=3)


class Uai2010(AmGcn):
    """Web documents by topic, joined by references."""

    name: ClassVar[str] = "uai2010"
    title: ClassVar[str] = "uai"
    sizes: ClassVar[Sizes] = Sizes(nodes=3067, edges=28308, features=4973, classes=19)


class BlogCatalog(AmGcn):
    """Bloggers by topic, joined by friendship; features are their keywords."""

    name: ClassVar[str] = "blogcatalog"
    title: ClassVar[str] = "BlogCatalog"
    sizes: ClassVar[Sizes] = Sizes(nodes=5196, edges=171743, features=8189, classes=6)


class Flickr7575(AmGcn):
    """Users of a photo site by their group, joined by friendship; features are tags of their interests."""

    name: ClassVar[str] = "flickr-7575"
    title: ClassVar[str] = "flickr"
    sizes: ClassVar[Sizes] = Sizes(nodes=7575, edges=239738, features=12047, classes=9)


class Wiki(Attributed):
    """Wikipedia pages by subject, joined by links, with TF-IDF features."""

    name: ClassVar[str] = "wiki"
    title: ClassVar[str] = "wiki"
    url: ClassVar[str] = "https://github.com/albertyang33/TADW"
    sizes: ClassVar[Sizes] = Sizes(nodes=2405, edges=11596, features=4973, classes=17)

    def download(self, folder: Path) -> None:
        raise self.error(
            f"no {self.required_files()[0]} in {self.raw_folder()}: build it as docs/data.md describes, "
            f"from the graph and labels of {self.url} and the words of https://github.com/tempcode06/GAGE"
        )
