"""Public data sets by name, read by PyTorch Geometric's own dataset classes.

A new one is a class of five lines below the base that reads its family: `name`, `title` (what PyG calls it) and a
docstring; a new family is a base of its own that says which PyG class reads it and how its items are split.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.data.pool import DataSet as DataSet
from isthmus.data.pool import Pool as Pool
from isthmus.data.pool import Share, draws, rank_within, split_by_share

# The generated sets are known by name like the public ones: a look-up imports this module only.
from isthmus.data.synthetic import Banks as Banks
from isthmus.data.synthetic import Motifs as Motifs
from isthmus.errors import IsthmusError


def data_root() -> Path:
    """The folder of all downloaded data: `ISTHMUS_DATA` from the environment, or `~/.cache/isthmus/data`.

    A data set of the family `tu`, say, has its files, as published, in `tu/ENZYMES/raw` below it.
    """
    named = os.environ.get("ISTHMUS_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "isthmus" / "data"


class PublicDataSet(DataSet):
    """A data set that a dataset class of PyTorch Geometric reads, and downloads where its files are missing."""

    reader: ClassVar[str]
    """The class in `torch_geometric.datasets`."""
    folder: ClassVar[str]
    """The family's folder under the data root."""
    title: ClassVar[str]
    """What PyG calls the data set; also the name of its folder."""

    @classmethod
    def raw(cls) -> Path:
        """The folder of the files as published."""
        return data_root() / cls.folder / cls.title / "raw"

    def fetch(self, **options: Any) -> Any:
        """PyG's dataset; `options` go to its class."""
        from torch_geometric import datasets

        reader = getattr(datasets, self.reader)
        try:
            with _beside(self.raw(), self.title) as root, contextlib.redirect_stderr(io.StringIO()):
                return reader(root, self.title, **options)
        except Exception as error:  # what a failed download or a broken file raises is up to the libraries below
            raise self._unreadable(reader, error) from error

    def _unreadable(self, reader: Any, error: Exception) -> IsthmusError:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raw, url = self.raw(), getattr(reader, "url", "the data set's home page")
        if raw.is_dir() and any(raw.iterdir()):
            return IsthmusError(
                f"data set '{self.name}': cannot read the files in {raw} ({why}): replace them by those from {url}"
            )
        return IsthmusError(
            f"data set '{self.name}': no files in {raw} and the download failed ({why}): put those from {url} there"
        )


class Citations(PublicDataSet):
    """A citation network of papers with bags of words, as Planetoid published it."""

    reader: ClassVar[str] = "Planetoid"
    folder: ClassVar[str] = "planetoid"

    split: Literal["public", "random"] = "public"
    """The published split, or one drawn by seed."""
    train_per_class: int = Field(20, ge=1)
    """Training papers of each class; only for the random split."""
    val: int = Field(500, ge=0)
    """Validation papers; only for the random split."""
    test: int = Field(1000, ge=0)
    """Test papers; only for the random split."""
    normalize: bool = True
    """Divide every paper's features by their sum."""

    def load(self, seed: int) -> Pool:
        from torch_geometric.transforms import NormalizeFeatures

        data = self.fetch(transform=NormalizeFeatures() if self.normalize else None)[0]
        if self.split == "random":
            data.update(self._random_split(data.y, draws(seed, "split")))
        return node_pool(data)

    def _random_split(self, y: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        train = rank_within(y, generator) < self.train_per_class
        rest = torch.from_numpy(generator.permutation(torch.nonzero(~train).flatten().numpy()))
        if self.val + self.test > rest.numel():
            raise IsthmusError(
                f"data set '{self.name}': {rest.numel()} of {y.numel()} nodes are left beside the training ones, "
                f"val = {self.val} and test = {self.test} are more: lower them or train_per_class"
            )
        held = {"val": rest[: self.val], "test": rest[self.val : self.val + self.test]}
        masks = {f"{split}_mask": torch.zeros_like(train).index_fill_(0, at, True) for split, at in held.items()}
        return {"train_mask": train, **masks}


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


def node_pool(data: Data) -> Pool:
    """One graph with `train_mask`, `val_mask` and `test_mask` as a pool; bags of words become sparse.

    >>> graph = Data(x=torch.eye(20), edge_index=torch.tensor([[0], [1]]), y=torch.arange(20) % 3)
    >>> pool = node_pool(graph)
    >>> pool.classes, rows.is_sparse(pool.party.graph.x), pool.party.ids.numel()
    (3, True, 20)
    """
    data.x = rows.sparsified(data.x)
    party = Party.of_graph("pooled", data, ids=torch.arange(data.x.size(0)))
    return Pool(party, classes=int(data.y.max()) + 1)


@contextlib.contextmanager
def _beside(raw: Path, title: str) -> Iterator[str]:
    """A root as PyG wants it, for as long as a data set is read.

    PyG writes what it has processed beside the raw files. Those may lie in a read-only folder, and two processes may
    read them at once; so it writes into a folder of its own, where the raw files are a link.
    """
    raw.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="isthmus-") as root:
        (Path(root) / title).mkdir()
        (Path(root) / title / "raw").symlink_to(raw.resolve(), target_is_directory=True)
        yield root
