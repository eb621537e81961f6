"""Small graphs of the TU Dortmund collection (Morris et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from isthmus.data import rows
from isthmus.data.datasets.bags import directed_edges
from isthmus.data.datasets.public import PublicDataSet, Sizes, data_root
from isthmus.data.datasets.text import read_numbers
from isthmus.data.party import Party
from isthmus.data.pool import Pool, Share, numpy_generator, split_by_share

MAX_DENSE = 50_000_000
"""One-hot degrees with more entries than this are a sparse matrix."""

SETS_WITH_COORDINATES = frozenset({"BZR", "COX2", "DHFR"})
"""Molecules whose atoms have three coordinates as features; the bonds can be guessed from them."""


MIXED_CASE = (
    "Cuneiform", "Fingerprint", "github_stargazers", "deezer_ego_nets", "reddit_threads", "twitch_egos", "Letter-high",
    "Letter-low", "Letter-med", "Mutagenicity", "Peking_1", "Synthie", "SYNTHETICnew", "PROTEINS_full", "DBLP_v1",
    "dblp_ct1", "dblp_ct2", "facebook_ct1", "facebook_ct2", "highschool_ct1", "highschool_ct2", "infectious_ct1",
    "infectious_ct2", "mit_ct1", "mit_ct2", "tumblr_ct1", "tumblr_ct2", "Yeast", "YeastH",
    "TWITTER-Real-Graph-Partial", "ZINC_full", "alchemy_full", "aspirin", "benzene", "ethanol", "malonaldehyde",
    "naphthalene", "salicylic_acid", "toluene", "uracil",
)  # fmt: skip
"""Sets whose titles are not in capitals throughout, as most are."""


class SmallGraphs(PublicDataSet):
    """Many small graphs, each with one class, from the TU Dortmund collection.

    Features are the nodes' attributes and then their labels, one-hot, as with PyG's class. Isthmus reads the files
    itself for speed: PyG's class splits them line by line, and the largest have millions of lines.
    """

    folder: ClassVar[str] = "tu"

    train: Share = 0.8
    """Share of the graphs to train on, the same in every class."""
    val: Share = 0.1
    """Share of the graphs to validate on; the rest is for testing."""
    split_seed: int | None = Field(None, ge=0)
    """Seed of the split for all seeds of a study, which then vary only training and cut."""
    attributes: bool = True
    """Whether numeric attributes of the nodes are features; without them, only the labels are, as PyG's default."""
    labels: bool = True
    """Whether the nodes' labels are features, one-hot."""
    degrees: bool = False
    """Whether degrees are features, too. They always are where nodes have neither attributes nor labels."""
    max_degree: int = Field(100, ge=1)
    """Degrees as features are one-hot; those above this share the last column."""

    def required_files(self) -> Sequence[str]:
        return [f"{self.title}_{part}.txt" for part in ("A", "graph_indicator")]

    def source(self) -> str:
        return f"https://www.chrsmrrs.com/graphkerneldatasets/{self.title}.zip"

    def load(self, seed: int) -> Pool:
        graph = self.graphs()
        generator = numpy_generator(seed if self.split_seed is None else self.split_seed, "split")
        splits = split_by_share(graph.y, self.train, self.val, generator)
        party = Party.of_batch("pooled", graph, structural=self.structural(graph), **splits)
        return Pool(party, classes=int(graph.y.max()) + 1)

    def has_features(self) -> bool:
        """Whether nodes have attributes or labels that are features."""
        wanted = {"node_attributes": self.attributes, "node_labels": self.labels}
        return any(
            is_on and (self.raw_folder() / f"{self.title}_{part}.txt").exists() for part, is_on in wanted.items()
        )

    def structural(self, graph: Data) -> Tensor | None:
        """Columns of the features that reveal edges, or follow from them: the coordinates of atoms, and degrees."""
        columns = [*range(3)] if self.attributes and self.title in SETS_WITH_COORDINATES else []
        if self.degrees or not self.has_features():
            columns += range(graph.x.size(1) - self.max_degree - 1, graph.x.size(1))
        return torch.tensor(columns) if columns else None

    def graphs(self) -> Data:
        """All graphs in one `Data`; `batch` is the graph of each node."""
        with self.published_files() as raw:
            if not (raw / f"{self.title}_graph_labels.txt").exists():
                raise self.error(
                    f"{self.title} has no {self.title}_graph_labels.txt, so its graphs have no classes: choose another "
                    "set, one for classification"
                )
            graph = read_graphs(raw, self.title, attributed=self.attributes, labelled=self.labels)
        if graph.x is None:
            graph.x = degree_features(graph, self.max_degree)
        elif self.degrees:
            graph.x = torch.cat([graph.x, rows.to_dense(degree_features(graph, self.max_degree))], dim=1)
        return graph


def read_graphs(raw: Path, title: str, *, attributed: bool = True, labelled: bool = True) -> Data:
    """The graphs in the files of a set; `x` is none if nodes have neither of the requested attributes and labels."""

    def path(part: str) -> Path:
        return raw / f"{title}_{part}.txt"

    batch = torch.from_numpy(read_numbers(path("graph_indicator"))[:, 0] - 1)
    labels = read_numbers(path("graph_labels"))
    graphs, nodes = len(labels), batch.numel()
    if labels.shape[1] > 1:
        raise ValueError(f"{path('graph_labels').name}: {labels.shape[1]} labels for each graph, it must be one")
    if bool((batch.diff() < 0).any()) or not 0 <= int(batch[0]) <= int(batch[-1]) < graphs:
        raise ValueError(f"{path('graph_indicator').name}: graphs must be in the order 1 .. {graphs}")
    pairs = read_numbers(path("A")) - 1
    if pairs.shape[1] != 2:
        raise ValueError(f"{path('A').name}: a line must hold the two ends of an edge")
    edge_index = coalesce(remove_self_loops(directed_edges(pairs[:, 0], pairs[:, 1], nodes))[0], num_nodes=nodes)
    if bool((batch[edge_index[0]] != batch[edge_index[1]]).any()):
        raise ValueError(f"{path('A').name}: an edge joins two graphs")
    x = []
    if attributed and path("node_attributes").exists():
        x.append(read_attributes(path("node_attributes"), nodes))
    if labelled and path("node_labels").exists():
        x += one_hot_labels(path("node_labels"), nodes)
    _, y = np.unique(labels[:, 0], return_inverse=True)
    graph = Data(x=torch.cat(x, dim=1) if x else None, edge_index=edge_index, y=torch.from_numpy(y))
    graph.batch, graph.num_nodes, graph.num_graphs = batch, nodes, graphs
    return graph


def read_attributes(path: Path, nodes: int) -> Tensor:
    """Numeric attributes of the nodes, `[nodes, attributes]`."""
    values = torch.from_numpy(read_numbers(path, np.float64)).to(torch.get_default_dtype())
    if values.size(0) != nodes or not bool(torch.isfinite(values).all()):
        raise ValueError(f"{path.name}: it must have a line of finite numbers for each of {nodes} nodes")
    return values


def one_hot_labels(path: Path, nodes: int) -> list[Tensor]:
    """Labels of the nodes, one-hot from the smallest to the largest; one matrix per column of the file."""
    labels = torch.from_numpy(read_numbers(path))
    if labels.size(0) != nodes:
        raise ValueError(f"{path.name}: {labels.size(0)} lines, but there are {nodes} nodes")
    return [one_hot(column - column.min()).to(torch.get_default_dtype()) for column in labels.unbind(dim=1)]


def degree_features(graph: Data, most: int) -> Tensor:
    """Degrees as features, one-hot with a column for each from 0 to `most`; higher degrees share the last column.

    The matrix is dense, which is faster with few columns, unless it would fill more than 200 MB.

    >>> star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    >>> degree_features(star, most=2).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    nodes = int(graph.num_nodes or 0)
    degree = torch.bincount(graph.edge_index[1], minlength=nodes).clamp(max=most)
    if nodes * (most + 1) <= MAX_DENSE:
        return one_hot(degree, most + 1).to(torch.get_default_dtype())
    return rows.csr(torch.arange(nodes + 1), degree, torch.ones(nodes), (nodes, most + 1))


class Tu(SmallGraphs):
    """Any set of the collection by its title, see https://chrsmrrs.github.io/datasets."""

    name: ClassVar[str] = "tu"

    title: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")  # type: ignore[misc]  # a class variable in the other sets, an option here
    """The set's name in the collection, such as MUTAG, in upper or lower case."""

    @field_validator("title")
    @classmethod
    def _as_published(cls, title: str) -> str:
        """The title as the collection writes it: files and addresses are found by it."""
        folder = data_root() / cls.folder
        here = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        known = {each.lower(): each for each in (*MIXED_CASE, *here)}
        return title if title in here else known.get(title.lower(), title.upper() if title.islower() else title)

    def shared_encoding(self) -> str:
        return "" if self.has_features() else f"degrees up to {self.max_degree}"


class Enzymes(SmallGraphs):
    """Protein structures of six enzyme classes."""

    name: ClassVar[str] = "enzymes"
    title: ClassVar[str] = "ENZYMES"
    sizes: ClassVar[Sizes] = Sizes(graphs=600, nodes=19580, edges=37282, features=21, classes=6)


class Proteins(SmallGraphs):
    """Proteins, enzyme or not."""

    name: ClassVar[str] = "proteins"
    title: ClassVar[str] = "PROTEINS"
    sizes: ClassVar[Sizes] = Sizes(graphs=1113, nodes=43471, edges=81044, features=4, classes=2)


class Dhfr(SmallGraphs):
    """Inhibitors of dihydrofolate reductase, active or not."""

    name: ClassVar[str] = "dhfr"
    title: ClassVar[str] = "DHFR"
    sizes: ClassVar[Sizes] = Sizes(graphs=756, nodes=32075, edges=33676, features=56, classes=2)


class Nci1(SmallGraphs):
    """Compounds screened against lung cancer cells."""

    name: ClassVar[str] = "nci1"
    title: ClassVar[str] = "NCI1"
    sizes: ClassVar[Sizes] = Sizes(graphs=4110, nodes=122747, edges=132753, features=37, classes=2)
