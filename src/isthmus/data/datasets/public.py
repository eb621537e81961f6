"""What public data sets have in common: where their files lie, how they get there, how nodes are split."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import urllib.request
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, numpy_generator, rank_within
from isthmus.errors import IsthmusError


def data_root() -> Path:
    """The folder of all downloaded data: `ISTHMUS_DATA` from the environment, or `~/.cache/isthmus/data`.

    A data set of the family `tu`, say, has its files, as published, in `tu/ENZYMES/raw` below it.
    """
    named = os.environ.get("ISTHMUS_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "isthmus" / "data"


@dataclass(frozen=True)
class Sizes:
    """How large a data set is, for the docs and for the test that reads the real files.

    Arguments:
        nodes: nodes of all graphs together.
        edges: pairs of nodes that are joined, of all graphs together; an edge that goes both ways counts once.
        features: width of the features.
        classes: of labels for several tasks, how many tasks.
        graphs: how many graphs are classified; none where nodes are.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    graphs: int | None = None

    def __str__(self) -> str:
        items = f"{self.nodes:,} nodes, {self.edges:,} edges" if self.graphs is None else f"{self.graphs:,} graphs"
        return f"{items}, {self.features:,} features"


class PublicDataSet(DataSet):
    """A data set that others have published: read from a folder of its own, downloaded where its files are missing.

    A new one is a class of a few lines below the base of its family: `name`, `title` (what its publishers call it),
    `sizes` and a docstring. A new family is a base of its own. Either a dataset class of PyTorch Geometric reads it:
    then the base names the class in `reader` and calls `fetch`. Or it reads the files itself within `published`: then
    it says what files those are (`needed`), where they come from (`source`) and, where that is more than one address,
    how they are downloaded (`download`).
    """

    reader: ClassVar[str]
    """The class in `torch_geometric.datasets`, where one is used."""
    folder: ClassVar[str]
    """The family's folder under the data root."""
    title: ClassVar[str]
    """What its publishers, and PyG, call the data set."""
    place: ClassVar[str] = ""
    """The data set's folder inside the family's, where that is not the title."""
    url: ClassVar[str]
    """Where its file is published, where that is one; the families of PyG's classes have theirs there."""
    sizes: ClassVar[Sizes | None] = None
    """What is read with the default options; none where that depends on an option."""

    @classmethod
    def describe(cls) -> dict[str, Any]:
        found = super().describe()
        if cls.sizes is None:
            return found
        return {**found, "summary": f"{found['summary'].rstrip('.')}: {cls.sizes}.", "sizes": asdict(cls.sizes)}

    def raw(self) -> Path:
        """The folder of the files as published."""
        return data_root() / self.folder / (self.place or self.title) / "raw"

    def shared_encoding(self) -> str:
        """A name for its features: sets with the same one have the same features in the same order; empty: its own."""
        return ""

    def fetch(self, **options: Any) -> Any:
        """PyG's dataset; `options` go to its class."""
        from torch_geometric import datasets

        reader = getattr(datasets, self.reader)
        with self._guarded(getattr(reader, "url", "the data set's home page")), _beside(self.raw()) as root:
            return reader(root, self.title, **options)

    def needed(self) -> Sequence[str]:
        """The files in `raw` without which the data set cannot be read."""
        return ()

    def source(self) -> str:
        """The address of the files."""
        return self.url

    def download(self, folder: Path) -> None:
        """Put the needed files into a folder."""
        download(self.source(), folder)

    @contextlib.contextmanager
    def published(self) -> Iterator[Path]:
        """The folder of the needed files, downloaded where they are missing, to read them in.

        What goes wrong on the way or while reading becomes one line. A reader that finds something wrong in a file
        raises a ValueError that says what.
        """
        with self._guarded(self.source()), contextlib.ExitStack() as stack:
            files = self.raw()
            if not all((files / name).is_file() for name in self.needed()):
                files = stack.enter_context(arriving(files))
                self.download(files)
            yield files

    def unreadable(self, error: Exception, url: str) -> IsthmusError:
        """The error for files that are not there or cannot be read, to be raised."""
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raw, needed = self.raw(), self.needed()
        missing = [name for name in needed if not (raw / name).is_file()]
        if not needed and not (raw.is_dir() and any(raw.iterdir())):
            missing = ["files"]
        if missing:
            return IsthmusError(
                f"data set '{self.name}': no {missing[0]} in {raw} and the download failed ({why}): "
                f"put those from {url} there"
            )
        return IsthmusError(
            f"data set '{self.name}': cannot read the files in {raw} ({why}): replace them by those from {url}"
        )

    @contextlib.contextmanager
    def _guarded(self, url: str) -> Iterator[None]:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                yield
        except IsthmusError:
            raise
        except Exception as error:  # what a failed download or a broken file raises is up to the libraries below
            raise self.unreadable(error, url) from error


class OneGraph(PublicDataSet):
    """One graph whose nodes are classified; its training, validation and test nodes are drawn by seed."""

    train_per_class: int = Field(20, ge=1)
    """Training nodes of each class; a class that has fewer gives all it has."""
    val: int = Field(500, ge=0)
    """Validation nodes."""
    test: int = Field(1000, ge=0)
    """Test nodes."""

    @abstractmethod
    def graph(self) -> Data:
        """The graph as published, with masks where it has a split."""

    def load(self, seed: int) -> Pool:
        data = self.graph()
        data.update(self.drawn_split(data.y, numpy_generator(seed, "split")))
        return node_pool(data)

    def drawn_split(self, y: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """`train_per_class` nodes of every class, then `val` and `test` of the others, as masks."""
        labelled = y >= 0
        train = labelled & (rank_within(y + 1, generator) < self.train_per_class)
        rest = torch.from_numpy(generator.permutation(torch.nonzero(labelled & ~train).flatten().numpy()))
        if self.val + self.test > rest.numel():
            raise IsthmusError(
                f"data set '{self.name}': {rest.numel()} of {y.numel()} nodes are left beside the training ones, "
                f"val = {self.val} and test = {self.test} are more: lower them or train_per_class"
            )
        held = {"val": rest[: self.val], "test": rest[self.val : self.val + self.test]}
        masks = {f"{split}_mask": torch.zeros_like(train).index_fill_(0, at, True) for split, at in held.items()}
        return {"train_mask": train, **masks}


class SplitGraph(OneGraph):
    """One graph whose nodes are classified, published with a split."""

    split: Literal["public", "random"] = "public"
    """The published split, or one drawn by seed with `train_per_class`, `val` and `test` nodes."""

    def load(self, seed: int) -> Pool:
        return node_pool(self.graph()) if self.split == "public" else super().load(seed)


def node_pool(data: Data) -> Pool:
    """One graph with `train_mask`, `val_mask` and `test_mask` as a pool; bags of words become sparse.

    >>> graph = Data(x=torch.eye(20), edge_index=torch.tensor([[0], [1]]), y=torch.arange(20) % 3)
    >>> pool = node_pool(graph)
    >>> pool.classes, rows.is_sparse(pool.party.graph.x), pool.party.ids.numel()
    (3, True, 20)
    """
    data.x = rows.sparsify(data.x)
    party = Party.of_graph("pooled", data, ids=torch.arange(data.x.size(0)))
    return Pool(party, classes=int(data.y.max()) + 1)


@contextlib.contextmanager
def arriving(folder: Path) -> Iterator[Path]:
    """A folder to download into; its files move to `folder` when they could be read, so nothing half-written stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".arriving-", dir=folder.parent) as made:
        yield Path(made)
        for each in sorted(Path(made).rglob("*")):
            if each.is_file():
                place = folder / each.relative_to(made)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(each, place)


def download(url: str, folder: Path, name: str = "") -> Path:
    """Download a file into a folder, under its own name or another."""
    path = folder / (name or url.rpartition("/")[2])
    with urllib.request.urlopen(url, timeout=60) as answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive; what it holds in one folder of its own comes without that folder."""
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        with zipfile.ZipFile(archive) as file:
            file.extractall(aside)
        inside = [each for each in Path(aside).iterdir() if not each.name.startswith(("__", "."))]
        top = inside[0] if len(inside) == 1 and inside[0].is_dir() else Path(aside)
        for each in top.iterdir():
            each.replace(folder / each.name)


@contextlib.contextmanager
def _beside(raw: Path) -> Iterator[str]:
    """A root as PyG wants it, for as long as a data set is read.

    PyG writes what it has processed beside the raw files. Those may lie in a read-only folder, and two processes may
    read them at once; so it writes into a folder of its own, where the raw files are a link.
    """
    with contextlib.ExitStack() as stack:
        there = raw.is_dir() and any(raw.iterdir())
        files = raw if there else stack.enter_context(arriving(raw))
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-"))
        inside = Path(root) / raw.parent.name
        inside.mkdir()
        (inside / "raw").symlink_to(files.resolve(), target_is_directory=True)
        yield root
