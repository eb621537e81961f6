"""Networks whose nodes have bags of words, each published as one npz file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from isthmus.data import matrices, rows
from isthmus.data.datasets.public import OneGraph, Sizes

Arrays = Mapping[str, NDArray[Any]]
PITFALLS = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
"""Four of the networks of "Pitfalls of graph neural network evaluation" (Shchur et al. 2018)."""


class Bags(OneGraph):
    """A network whose nodes have bags of words: a feature is 1 where the word occurs, as in PyG's classes.

    Isthmus reads the file itself: PyG's class builds a dense matrix, a gigabyte of zeros for the largest network.
    """

    normalize: bool = False
    """Divide every node's features by their sum. For long texts the values get so small that models learn slowly."""

    def required_files(self) -> Sequence[str]:
        return (self.url.rpartition("/")[2],)

    def graph(self) -> Data:
        with self.published_files() as raw, np.load(raw / self.required_files()[0]) as arrays:
            words, edge_index, y = self.parse(arrays)
        if self.normalize:
            words.data /= np.repeat(np.asarray(words.sum(axis=1)).ravel(), np.diff(words.indptr))
        return Data(x=word_features(words), edge_index=edge_index, y=y)

    def parse(self, arrays: Arrays) -> tuple[csr_matrix, Tensor, Tensor]:
        """Words per node, edges in both directions, and labels, from the arrays of the file."""
        words, links = read_matrix(arrays, "attr_"), read_matrix(arrays, "adj_").tocoo()
        nodes = words.shape[0]
        return binarize(words), undirected_edges(links.row, links.col, nodes), node_labels(arrays["labels"], nodes)


def read_matrix(arrays: Arrays, prefix: str) -> csr_matrix:
    """The CSR matrix whose `data`, `indices`, `indptr` and `shape` are in `arrays` under names with this prefix.

    >>> parts = {"data": [5.0], "indices": [2], "indptr": [0, 0, 1], "shape": [2, 3]}
    >>> read_matrix({f"x_{name}": np.array(part) for name, part in parts.items()}, "x_").toarray().tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    """
    shape = tuple(arrays[f"{prefix}shape"].tolist())
    parts = arrays[f"{prefix}data"].astype(np.float32), arrays[f"{prefix}indices"], arrays[f"{prefix}indptr"]
    matrix = csr_matrix(parts, shape=shape)
    matrix.check_format(full_check=True)
    if not np.isfinite(matrix.data).all():
        raise ValueError(f"{prefix}data has NaN or infinite values")
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def binarize(words: csr_matrix) -> csr_matrix:
    """Set every word that occurs to 1, in place."""
    words.data[:] = words.data > 0
    words.eliminate_zeros()
    return words


def word_features(words: csr_matrix) -> Tensor:
    """A sparse matrix as features: CSR if its density is below `rows.SPARSE_BELOW`, else dense.

    >>> rows.is_sparse(word_features(csr_matrix(np.eye(20)))), rows.is_sparse(word_features(csr_matrix(np.eye(5))))
    (True, False)
    """
    count, width = words.shape
    if words.nnz >= rows.SPARSE_BELOW * count * width:
        return torch.from_numpy(words.toarray())
    return matrices.to_tensor(words)


def directed_edges(source: NDArray[Any], target: NDArray[Any], nodes: int) -> Tensor:
    """Edges in their order in the file, `[2, edges]`, checked to join existing nodes."""
    edge_index = torch.from_numpy(np.stack([source, target]).astype(np.int64, copy=False))
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < nodes:
        raise ValueError(f"an edge names a node outside 0 .. {nodes - 1}")
    return edge_index


def undirected_edges(source: NDArray[Any], target: NDArray[Any], nodes: int) -> Tensor:
    """Edges in both directions, sorted, without duplicates and self-loops, `[2, edges]`.

    >>> undirected_edges(np.array([0, 1, 2]), np.array([1, 0, 2]), nodes=3).tolist()
    [[0, 1], [1, 0]]
    """
    return to_undirected(remove_self_loops(directed_edges(source, target, nodes))[0], num_nodes=nodes)


def node_labels(y: NDArray[Any], nodes: int) -> Tensor:
    """The class of each node, `[nodes]`."""
    if y.shape != (nodes,) or y.dtype.kind not in "iu":
        raise ValueError(f"labels are {y.dtype} of shape {list(y.shape)}, not a whole number for each of {nodes} nodes")
    return torch.from_numpy(y.astype(np.int64))


class Dblp(Bags):
    """Papers of four fields of computer science, joined by citations."""

    name: ClassVar[str] = "dblp"
    folder: ClassVar[str] = "citationfull"
    title: ClassVar[str] = "dblp"
    url: ClassVar[str] = "https://github.com/abojchevski/graph2gauss/raw/master/data/dblp.npz"
    sizes: ClassVar[Sizes] = Sizes(nodes=17716, edges=52867, features=1639, classes=4)


class CoauthorCs(Bags):
    """Authors by their field of computer science, joined where they wrote a paper together."""

    name: ClassVar[str] = "coauthor-cs"
    folder: ClassVar[str] = "coauthor"
    title: ClassVar[str] = "CS"
    url: ClassVar[str] = f"{PITFALLS}/ms_academic_cs.npz"
    sizes: ClassVar[Sizes] = Sizes(nodes=18333, edges=81894, features=6805, classes=15)


class CoauthorPhysics(Bags):
    """Authors by their field of physics, joined where they wrote a paper together."""

    name: ClassVar[str] = "coauthor-physics"
    folder: ClassVar[str] = "coauthor"
    title: ClassVar[str] = "Physics"
    url: ClassVar[str] = f"{PITFALLS}/ms_academic_phy.npz"
    sizes: ClassVar[Sizes] = Sizes(nodes=34493, edges=247962, features=8415, classes=5)


class AmazonComputers(Bags):
    """Computers and their parts by kind, joined where they are often bought together; words of reviews."""

    name: ClassVar[str] = "amazon-computers"
    folder: ClassVar[str] = "amazon"
    title: ClassVar[str] = "Computers"
    url: ClassVar[str] = f"{PITFALLS}/amazon_electronics_computers.npz"
    sizes: ClassVar[Sizes] = Sizes(nodes=13752, edges=245861, features=767, classes=10)


class AmazonPhoto(Bags):
    """Products for photographers by kind, joined where they are often bought together; words of reviews."""

    name: ClassVar[str] = "amazon-photo"
    folder: ClassVar[str] = "amazon"
    title: ClassVar[str] = "Photo"
    url: ClassVar[str] = f"{PITFALLS}/amazon_electronics_photo.npz"
    sizes: ClassVar[Sizes] = Sizes(nodes=7650, edges=119081, features=745, classes=8)
