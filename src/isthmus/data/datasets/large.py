"""Large graphs, each with a published split."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.datasets.bags import directed_edges, node_labels, undirected_edges
from isthmus.data.datasets.public import Sizes, SplitGraph, data_root, download
from isthmus.data.datasets.text import read_numbers


class Large(SplitGraph):
    """A large graph with a published split; its features are not normalised.

    Isthmus reads the files itself: PyG's classes write what they read to another file and read that back.
    """

    def raw_folder(self) -> Path:
        return data_root() / self.folder

    def graph(self) -> Data:
        with self.published_files() as raw:
            return self.parse(raw)

    @abstractmethod
    def parse(self, raw: Path) -> Data:
        """The graph with its masks, from the files as published."""


class Flickr(Large):
    """Photos by subject, joined where they share a place, a gallery or a group (Zeng et al. 2020)."""

    name: ClassVar[str] = "flickr"
    folder: ClassVar[str] = "flickr/raw"
    url: ClassVar[str] = "https://drive.google.com/open?id=1zycmmDES39zVlbVCYs88JTJ1Wm5FbfLz"
    sizes: ClassVar[Sizes] = Sizes(nodes=89250, edges=449878, features=500, classes=7)

    def required_files(self) -> Sequence[str]:
        return ("adj_full.npz", "feats.npy", "class_map.json", "role.json")

    def download(self, folder: Path) -> None:
        from torch_geometric import datasets

        for name in self.required_files():
            key = getattr(datasets.Flickr, f"{name.partition('.')[0]}_id")
            download(f"https://drive.usercontent.google.com/download?id={key}&confirm=t", folder, name)

    def parse(self, raw: Path) -> Data:
        x = torch.from_numpy(np.load(raw / "feats.npy").astype(np.float32))
        with np.load(raw / "adj_full.npz") as arrays:
            crow, col = arrays["indptr"].astype(np.int64), arrays["indices"]
        edge_index = directed_edges(np.repeat(np.arange(crow.size - 1), np.diff(crow)), col, x.size(0))
        kinds = json.loads((raw / "class_map.json").read_text(encoding="utf-8"))
        y = torch.full((x.size(0),), -1)
        y[torch.tensor([int(node) for node in kinds])] = torch.tensor(list(kinds.values()))
        roles = json.loads((raw / "role.json").read_text(encoding="utf-8"))
        held = {split: torch.tensor(roles[role]) for split, role in (("train", "tr"), ("val", "va"), ("test", "te"))}
        return Data(x=x, edge_index=edge_index, y=y, **split_masks(held, x.size(0)))


class Reddit(Large):
    """Posts by community, joined where a user commented on both (Hamilton et al. 2017)."""

    name: ClassVar[str] = "reddit"
    folder: ClassVar[str] = "reddit/raw"
    url: ClassVar[str] = "https://data.dgl.ai/dataset/reddit.zip"
    sizes: ClassVar[Sizes] = Sizes(nodes=232965, edges=57307946, features=602, classes=41)

    def required_files(self) -> Sequence[str]:
        return ("reddit_data.npz", "reddit_graph.npz")

    def parse(self, raw: Path) -> Data:
        with np.load(raw / "reddit_data.npz") as arrays:
            x = torch.from_numpy(arrays["feature"].astype(np.float32))
            y, kinds = node_labels(arrays["label"], x.size(0)), torch.from_numpy(arrays["node_types"])
        with np.load(raw / "reddit_graph.npz") as arrays:
            edge_index = sort_edges(directed_edges(arrays["row"], arrays["col"], x.size(0)), x.size(0))
        held = {f"{split}_mask": kinds == kind for split, kind in (("train", 1), ("val", 2), ("test", 3))}
        return Data(x=x, edge_index=edge_index, y=y, **held)


class OgbnArxiv(Large):
    """Papers in computer science by subject, joined by citations; the split is by year (Hu et al. 2020)."""

    name: ClassVar[str] = "ogbn-arxiv"
    folder: ClassVar[str] = "ogb/arxiv"
    url: ClassVar[str] = "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
    sizes: ClassVar[Sizes] = Sizes(nodes=169343, edges=1157799, features=128, classes=40)
    parts: ClassVar[dict[str, str]] = {"train": "train", "val": "valid", "test": "test"}

    undirected: bool = True
    """Make citations edges both ways, as is usual; otherwise an edge runs from the citing paper to the cited one."""

    def required_files(self) -> Sequence[str]:
        tables = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
        return [f"raw/{table}.csv.gz" for table in tables] + [f"split/time/{p}.csv.gz" for p in self.parts.values()]

    def parse(self, raw: Path) -> Data:
        x = torch.from_numpy(read_numbers(raw / "raw" / "node-feat.csv.gz", np.float32))
        source, target = read_numbers(raw / "raw" / "edge.csv.gz").T
        for what, table, actual in (("nodes", "num-node-list", x.size(0)), ("edges", "num-edge-list", source.size)):
            stated = int(read_numbers(raw / "raw" / f"{table}.csv.gz").sum())
            if stated != actual:
                raise ValueError(f"{actual} {what}, but {table}.csv.gz says {stated}")
        held = {split: read_numbers(raw / "split" / "time" / f"{part}.csv.gz") for split, part in self.parts.items()}
        return Data(
            x=x,
            edge_index=(undirected_edges if self.undirected else directed_edges)(source, target, x.size(0)),
            y=node_labels(read_numbers(raw / "raw" / "node-label.csv.gz").ravel(), x.size(0)),
            **split_masks({split: torch.from_numpy(at.ravel()) for split, at in held.items()}, x.size(0)),
        )


def split_masks(held: dict[str, Tensor], nodes: int) -> dict[str, Tensor]:
    """`train_mask`, `val_mask`, `test_mask` from the positions of the nodes in each split."""
    masks = {}
    for split, at in held.items():
        if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < nodes:
            raise ValueError(f"the split '{split}' names a node outside 0 .. {nodes - 1}")
        masks[f"{split}_mask"] = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, at, True)
    return masks


def sort_edges(edge_index: Tensor, nodes: int) -> Tensor:
    """Edges sorted by source, then target, without duplicates; edges that are sorted already are returned as they are.

    >>> sort_edges(torch.tensor([[1, 0, 1], [0, 1, 0]]), nodes=2).tolist()
    [[0, 1], [1, 0]]
    """
    key = edge_index[0] * nodes + edge_index[1]
    if bool((key[1:] > key[:-1]).all()):
        return edge_index
    key = torch.unique(key)
    return torch.stack([key // nodes, key % nodes])
