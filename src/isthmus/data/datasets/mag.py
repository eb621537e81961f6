"""Papers with their authors, institutions and fields of study."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch_geometric.data import HeteroData

from isthmus.data.datasets.bags import node_labels
from isthmus.data.datasets.large import split_masks
from isthmus.data.datasets.public import PublicDataSet, data_root
from isthmus.data.datasets.text import read_numbers
from isthmus.data.party import Party
from isthmus.data.pool import Pool

LABELLED = "paper"


class OgbnMag(PublicDataSet):
    """Papers by venue, with their authors, institutions and fields of study; the split is by year (Hu et al. 2020).

    Read from the tables of OGB's `mag.zip`. Only papers have features. With `reverse` each relation between two types
    has one in the other direction, without which nothing reaches a paper from its fields of study.
    """

    name: ClassVar[str] = "ogbn-mag"
    folder: ClassVar[str] = "ogb/mag"
    url: ClassVar[str] = "http://snap.stanford.edu/ogb/data/nodeproppred/mag.zip"
    parts: ClassVar[dict[str, str]] = {"train": "train", "val": "valid", "test": "test"}

    reverse: bool = True
    """Add the reverse of each relation, and make citations edges both ways."""

    def raw_folder(self) -> Path:
        return data_root() / self.folder

    def required_files(self) -> Sequence[str]:
        tables = ("triplet-type-list", "num-node-dict", "node-feat/paper/node-feat", "node-label/paper/node-label")
        splits = [f"split/time/paper/{part}.csv.gz" for part in self.parts.values()]
        return [*(f"raw/{table}.csv.gz" for table in tables), *splits]

    def load(self, seed: int) -> Pool:
        with self.published_files() as raw:
            graph = self.parse(raw)
        party = Party.of_graph("pooled", graph, ids=torch.arange(int(graph.num_nodes or 0)))
        return Pool(party, int(graph[LABELLED].y.max()) + 1)

    def parse(self, raw: Path) -> HeteroData:
        """The typed graph with its masks, from the files as published."""
        tables = raw / "raw"
        names, counts = _rows(tables / "num-node-dict.csv.gz")[:2]
        sizes = {name: int(count) for name, count in zip(names, counts, strict=True)}
        graph = HeteroData()
        for name, size in sizes.items():
            graph[name].num_nodes = size
        x = torch.from_numpy(read_numbers(tables / "node-feat" / LABELLED / "node-feat.csv.gz", np.float32))
        if x.size(0) != sizes.get(LABELLED):
            raise ValueError(f"node-feat.csv.gz has {x.size(0)} papers, num-node-dict.csv.gz {sizes.get(LABELLED)}")
        graph[LABELLED].x = x
        for source, relation, target in _rows(tables / "triplet-type-list.csv.gz"):
            path = tables / "relations" / f"{source}___{relation}___{target}" / "edge.csv.gz"
            ends = torch.from_numpy(read_numbers(path).T.copy())
            for end, kind in zip(ends, (source, target), strict=True):
                if end.numel() and not 0 <= int(end.min()) <= int(end.max()) < sizes[kind]:
                    raise ValueError(f"{path.parent.name}: an edge names a {kind} outside 0 .. {sizes[kind] - 1}")
            if self.reverse and source == target:
                ends = torch.unique(torch.cat([ends, ends.flip(0)], dim=1), dim=1)
            elif self.reverse:
                graph[target, f"reverse {relation}", source].edge_index = ends.flip(0)
            graph[source, relation, target].edge_index = ends
        labels = read_numbers(tables / "node-label" / LABELLED / "node-label.csv.gz").ravel()
        graph[LABELLED].y = node_labels(labels, x.size(0))
        folder = raw / "split" / "time" / LABELLED
        held = {split: read_numbers(folder / f"{part}.csv.gz").ravel() for split, part in self.parts.items()}
        graph[LABELLED].update(split_masks({split: torch.from_numpy(at) for split, at in held.items()}, x.size(0)))
        return graph


def _rows(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file) if row]
