"""What public data sets have in common: where their files lie, how they are read, how their nodes are split."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, draws, rank_within
from isthmus.errors import IsthmusError


def data_root() -> Path:
    """The folder of all downloaded data: `ISTHMUS_DATA` from the environment, or `~/.cache/isthmus/data`.

    A data set of the family `tu`, say, has its files, as published, in `tu/ENZYMES/raw` below it.
    """
    named = os.environ.get("ISTHMUS_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "isthmus" / "data"


class PublicDataSet(DataSet):
    """A data set that a dataset class of PyTorch Geometric reads, and downloads where its files are missing.

    A new one is a class of a few lines below the base of its family: `name`, `title` (what PyG calls it) and a
    docstring; a new family is a base of its own that says which PyG class reads it and how its items are split.
    """

    reader: ClassVar[str]
    """The class in `torch_geometric.datasets`."""
    folder: ClassVar[str]
    """The family's folder under the data root."""
    title: ClassVar[str]
    """What PyG calls the data set."""
    place: ClassVar[str] = ""
    """The data set's folder inside the family's, where PyG does not call it by the title."""

    def raw(self) -> Path:
        """The folder of the files as published."""
        return data_root() / self.folder / (self.place or self.title) / "raw"

    def fetch(self, **options: Any) -> Any:
        """PyG's dataset; `options` go to its class."""
        from torch_geometric import datasets

        reader = getattr(datasets, self.reader)
        try:
            with _beside(self.raw()) as root, contextlib.redirect_stderr(io.StringIO()):
                return reader(root, self.title, **options)
        except Exception as error:  # what a failed download or a broken file raises is up to the libraries below
            raise self.unreadable(error, getattr(reader, "url", "the data set's home page")) from error

    def unreadable(self, error: Exception, url: str) -> IsthmusError:
        """The error for files that are not there or cannot be read, to be raised."""
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raw = self.raw()
        if raw.is_dir() and any(raw.iterdir()):
            return IsthmusError(
                f"data set '{self.name}': cannot read the files in {raw} ({why}): replace them by those from {url}"
            )
        return IsthmusError(
            f"data set '{self.name}': no files in {raw} and the download failed ({why}): put those from {url} there"
        )


class OneGraph(PublicDataSet):
    """One graph whose nodes are classified; its training, validation and test nodes are drawn by seed."""

    train_per_class: int = Field(20, ge=1)
    """Training nodes of each class."""
    val: int = Field(500, ge=0)
    """Validation nodes."""
    test: int = Field(1000, ge=0)
    """Test nodes."""

    def load(self, seed: int) -> Pool:
        data = self.fetch()[0]
        data.update(self.drawn_split(data.y, draws(seed, "split")))
        return node_pool(data)

    def drawn_split(self, y: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """`train_per_class` nodes of every class, then `val` and `test` of the others, as masks."""
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
def _beside(raw: Path) -> Iterator[str]:
    """A root as PyG wants it, for as long as a data set is read.

    PyG writes what it has processed beside the raw files. Those may lie in a read-only folder, and two processes may
    read them at once; so it writes into a folder of its own, where the raw files are a link.
    """
    raw.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="isthmus-") as root:
        inside = Path(root) / raw.parent.name
        inside.mkdir()
        (inside / "raw").symlink_to(raw.resolve(), target_is_directory=True)
        yield root
