"""What public data sets have in common: the folder of their files, the download, the split of nodes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import shutil
import tempfile
import urllib.request
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.datasets.sizes import Sizes as Sizes
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, numpy_generator, rank_within
from isthmus.errors import IsthmusError

LARGEST = 1 << 33
"""Bytes of the largest file that is downloaded, and of all files in an archive. Reddit's has 1.3 GB."""


def data_root() -> Path:
    """The folder of all downloaded data: `ISTHMUS_DATA` from the environment, or `~/.cache/isthmus/data`.

    The files of a data set are below it as published: those of ENZYMES, of the family `tu`, in `tu/ENZYMES/raw`.
    """
    named = os.environ.get("ISTHMUS_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "isthmus" / "data"


class PublicDataSet(DataSet):
    """A published data set, read from its own folder; missing files are downloaded.

    To add a data set to a family, subclass the family's base and set `name`, `title`, `sizes` and a docstring. To add a
    family, write a base class. Define `required_files`, `source` (their address) and, for more than one address,
    `download`. Read the files within `published_files`; if a class of PyTorch Geometric reads them, name it in `reader`
    and call `fetch`.
    """

    reader: ClassVar[str]
    """The class in `torch_geometric.datasets` that reads the data, if one does."""
    folder: ClassVar[str]
    """The family's folder under the data root."""
    title: ClassVar[str]
    """The data set's name at its publishers and in PyG, and of its folder inside the family's."""
    url: ClassVar[str]
    """The address of its file, unless a class of PyG knows it or there are several files."""
    sizes: ClassVar[Sizes | None] = None
    """Its size with the default options; none if an option changes it."""

    @classmethod
    def describe(cls) -> dict[str, Any]:
        entry = super().describe()
        if cls.sizes is None:
            return entry
        return {
            **entry,
            "summary": cls.sizes.added_to(entry["summary"]),
            "sizes": asdict(cls.sizes),
        }

    def raw_folder(self) -> Path:
        """The folder of the files as published."""
        return data_root() / self.folder / self.title / "raw"

    def shared_encoding(self) -> str:
        """A name for its encoding: sets with the same name have the same feature columns; empty: columns of its own."""
        return ""

    def fetch(self, **options: Any) -> Any:
        """The dataset of PyG's class, which gets the `options`."""
        from torch_geometric import datasets

        with self.published_files() as raw, _pyg_root(raw) as root:
            return getattr(datasets, self.reader)(root, self.title, **options)

    def required_files(self) -> Sequence[str]:
        """The files in `raw_folder` that are needed to read the data."""
        return ()

    def source(self) -> str:
        """The address of the files."""
        return self.url

    def download(self, folder: Path) -> None:
        """Download the required files into a folder; a zip archive is unpacked."""
        path = download(self.source(), folder)
        if path.suffix == ".zip":
            unpack(path, folder)
            path.unlink()

    @contextlib.contextmanager
    def published_files(self) -> Iterator[Path]:
        """The folder with the required files, for a `with` block that reads them; missing files are downloaded first.

        Downloaded files are compared with the checksums in `SHA256SUMS` beside this module, if they are there. An
        exception while downloading or reading becomes an error of one line. A reader that finds a fault in a file
        raises a ValueError that says which.
        """
        with self._guarded(self.source()), contextlib.ExitStack() as stack:
            files = self.raw_folder()
            if not all((files / name).is_file() for name in self.required_files()):
                files = stack.enter_context(download_folder(files))
                self.download(files)
                self._check_sums(files)
            yield files

    def _check_sums(self, downloaded: Path) -> None:
        place = self.raw_folder().relative_to(data_root()).as_posix()
        for name in self.required_files():
            known = _published_sums().get(f"{place}/{name}")
            with (downloaded / name).open("rb") as file:
                if known not in (None, hashlib.file_digest(file, "sha256").hexdigest()):
                    raise ValueError(f"{name} is another file than the one that was published: its checksum is wrong")

    def read_error(self, error: Exception, url: str) -> IsthmusError:
        """The error for files that are missing or cannot be read, for the caller to raise."""
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raw = self.raw_folder()
        missing = [name for name in self.required_files() if not (raw / name).is_file()]
        if missing:
            return self.error(
                f"no {missing[0]} in {raw} and the download failed ({why}): put the files from {url} there"
            )
        return self.error(f"cannot read the files in {raw} ({why}): replace them with those from {url}")

    @contextlib.contextmanager
    def _guarded(self, url: str) -> Iterator[None]:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                yield
        except IsthmusError:
            raise
        except Exception as error:  # libraries raise anything for a failed download or a broken file
            raise self.read_error(error, url) from error


class OneGraph(PublicDataSet):
    """One graph with classified nodes; training, validation and test nodes are drawn at random."""

    largest_component: bool = False
    """Keep only the largest connected component, whatever the direction of edges, before nodes are drawn."""
    train_per_class: int = Field(20, ge=1)
    """Training nodes per class; a class with fewer nodes gives all of them."""
    val: int = Field(500, ge=0)
    """Validation nodes."""
    test: int = Field(1000, ge=0)
    """Test nodes."""

    @abstractmethod
    def graph(self) -> Data:
        """The graph as published, with masks if it has a split."""

    def load(self, seed: int) -> Pool:
        data, note = self._part()
        data.update(self.draw_split(data.y, numpy_generator(seed, "split")))
        return replace(node_pool(data), note=note)

    def _part(self) -> tuple[Data, str]:
        """What is used of the graph, and a sentence that says so if it is not all."""
        data = self.graph()
        if not self.largest_component:
            return data, ""
        part = largest_component(data)
        return part, f"Of {data.y.numel():,} nodes the {part.y.numel():,} of the largest connected component are used."

    def draw_split(self, y: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """Masks of `train_per_class` nodes of every class, and of `val` and `test` of the others."""
        labelled = y >= 0
        train = labelled & (rank_within(y + 1, generator) < self.train_per_class)
        rest = torch.from_numpy(generator.permutation(torch.nonzero(labelled & ~train).flatten().numpy()))
        if self.val + self.test > rest.numel():
            raise self.error(
                f"{rest.numel()} of {y.numel()} nodes remain after the training nodes, "
                f"but val + test = {self.val + self.test}: lower val, test or train_per_class"
            )
        positions = {"val": rest[: self.val], "test": rest[self.val : self.val + self.test]}
        masks = {f"{split}_mask": torch.zeros_like(train).index_fill_(0, at, True) for split, at in positions.items()}
        return {"train_mask": train, **masks}


class SplitGraph(OneGraph):
    """One graph with classified nodes and a published split."""

    split: Literal["public", "random"] = "public"
    """The published split, or a random one with `train_per_class`, `val` and `test` nodes."""

    def load(self, seed: int) -> Pool:
        if self.split != "public":
            return super().load(seed)
        data, note = self._part()
        return replace(node_pool(data), note=note)


def largest_component(data: Data) -> Data:
    """The largest connected component of a graph, of several the one with the first node; nodes keep their order.

    >>> graph = Data(x=torch.eye(4), edge_index=torch.tensor([[3], [1]]), y=torch.arange(4))
    >>> part = largest_component(graph)
    >>> part.y.tolist(), part.edge_index.tolist()
    ([1, 3], [[1], [0]])
    """
    nodes, (source, target) = data.y.size(0), data.edge_index.numpy()
    adjacency = coo_array((np.ones(source.size, dtype=np.int8), (source, target)), shape=(nodes, nodes))
    component = torch.from_numpy(connected_components(adjacency, directed=False)[1]).long()
    kept = component == torch.bincount(component).argmax()
    at = kept.nonzero().flatten()
    inside = kept[data.edge_index[0]]  # and so is the target
    edges: Tensor = (kept.cumsum(0) - 1)[data.edge_index[:, inside]]
    part = Data(x=rows.take(data.x, at), edge_index=edges, y=data.y[at])
    if data.get("edge_weight") is not None:
        part.edge_weight = data.edge_weight[inside]
    part.update({name: data[name][at] for name in data.keys() if name.endswith("_mask")})  # noqa: SIM118
    return part


def node_pool(data: Data) -> Pool:
    """A pool from one graph with `train_mask`, `val_mask` and `test_mask`; bags of words become sparse.

    >>> graph = Data(x=torch.eye(20), edge_index=torch.tensor([[0], [1]]), y=torch.arange(20) % 3)
    >>> pool = node_pool(graph)
    >>> pool.classes, rows.is_sparse(pool.party.graph.x), pool.party.ids.numel()
    (3, True, 20)
    """
    data.x = rows.sparsify(data.x)
    party = Party.of_graph("pooled", data, ids=torch.arange(data.x.size(0)))
    return Pool(party, classes=int(data.y.max()) + 1)


@contextlib.contextmanager
def download_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to download into; if the `with` block succeeds, its files move to `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as temporary:
        yield Path(temporary)
        for each in sorted(Path(temporary).rglob("*")):
            if each.is_file():
                target = folder / each.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(each, target)


def download(url: str, folder: Path, name: str = "") -> Path:
    """Download a file into a folder, under its own name or the one given."""
    path = folder / (name or url.rpartition("/")[2])
    with urllib.request.urlopen(url, timeout=60) as answer:
        write_bounded(path, answer)
    return path


def write_bounded(path: Path, source: Any) -> None:
    """Write to a file what a binary file has, at most `LARGEST` bytes."""
    with path.open("wb") as file:
        while part := source.read(1 << 20):
            if file.tell() + len(part) > LARGEST:
                raise ValueError(f"{path.name} has more than {LARGEST:,} bytes")
            file.write(part)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive of at most `LARGEST` bytes; if all its files are in one folder, without that folder."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        with zipfile.ZipFile(archive) as file:
            if sum(each.file_size for each in file.infolist()) > LARGEST:
                raise ValueError(f"{archive.name} unpacks to more than {LARGEST:,} bytes")
            file.extractall(temporary)  # keeps every file inside, and makes no links
        inside = [each for each in Path(temporary).iterdir() if not each.name.startswith(("__", "."))]
        top = inside[0] if len(inside) == 1 and inside[0].is_dir() else Path(temporary)
        for each in top.iterdir():
            each.replace(folder / each.name)


@contextlib.contextmanager
def _pyg_root(raw: Path) -> Iterator[str]:
    """A temporary root folder for a class of PyG, in which the raw files are a link.

    PyG writes processed data next to the raw files, but their folder may be read-only, and several processes may read
    them at once.
    """
    with tempfile.TemporaryDirectory(prefix="isthmus-") as root:
        folder = Path(root) / raw.parent.name
        folder.mkdir()
        (folder / "raw").symlink_to(raw.resolve(), target_is_directory=True)
        yield root


@functools.cache
def _published_sums() -> dict[str, str]:
    """The checksums of published files by their place under the data root, those that are known."""
    lines = Path(__file__).with_name("SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
