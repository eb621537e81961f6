"""Molecules of the MoleculeNet collection (Wu et al. 2018)."""

from __future__ import annotations

import csv
import gzip
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.cache import cache_root
from isthmus.data.checked import labelled
from isthmus.data.datasets.public import PublicDataSet, Sizes, data_root, download
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool, Share, numpy_generator, split_by_share
from isthmus.data.smiles import AtomFeatures, read_molecules, scaffolds_of, structural_columns
from isthmus.errors import IsthmusError, did_you_mean

ROWS_NAMED = 20
"""Unreadable rows that a note names; the others it counts."""


class MolecularGraphs(PublicDataSet):
    """Molecules with one label or several, any of which may be missing; needs the extra `molecules`.

    What is a molecule's text and what are its labels in a file, PyTorch Geometric's class knows. The file itself is
    read here: that class leaves out molecules that it cannot read without saying so.
    """

    folder: ClassVar[str] = "molnet"

    features: AtomFeatures = "one-hot"
    """How an atom is told: nine categories each one-hot; their numbers as they are; or those that no bond tells."""
    split: Literal["random", "scaffold"] = "random"
    """Molecules drawn by seed, or whole scaffolds: those of most molecules to train on, rare ones for testing."""
    split_seed: int | None = Field(None, ge=0)
    """Draws the split for all seeds of a study, which are then of training, cut and noise alone."""
    train: Share = 0.8
    """Share of the molecules to train on."""
    val: Share = 0.1
    """Share of the molecules to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        smiles, y = self._table()
        kept = cache_root() / "molecules"
        found = read_molecules(smiles, self.features, cache_folder=kept)
        if not found.graphs:
            raise self.unreadable(ValueError("no SMILES in it is a molecule"), self.source())
        readable = torch.ones(len(smiles), dtype=torch.bool)
        readable[list(found.unreadable)] = False
        texts = tuple(smiles[at] for at in readable.nonzero().flatten().tolist())
        graph = Data(x=found.x, edge_index=found.edge_index, batch=found.batch, y=y[readable])
        graph.num_nodes, graph.num_graphs = found.x.size(0), found.graphs
        drawn = seed if self.split_seed is None else self.split_seed
        masks = labelled(self._split(texts, drawn, kept), graph.y)
        party = Party("pooled", graph, "graph", masks["train"], masks["val"], masks["test"])
        party = replace(party, structural=structural_columns(self.features))
        return Pool(party, classes=y.size(1), smiles=texts, note=note(found.unreadable, len(smiles)))

    def raw(self) -> Path:
        return data_root() / self.folder / self.key() / "raw"

    def key(self) -> str:
        """What PyG's class calls the data set, also the name of its folder."""
        return self.title.lower()

    def shared_encoding(self) -> str:
        return f"smiles {self.features}"

    def needed(self) -> Sequence[str]:
        return (f"{self._layout()[2]}.csv",)

    def source(self) -> str:
        from torch_geometric.datasets import MoleculeNet

        return str(MoleculeNet.url.format(self._layout()[1]))

    def download(self, folder: Path) -> None:
        path = download(self.source(), folder)
        if path.suffix == ".gz":
            with gzip.open(path) as packed, (folder / self.needed()[0]).open("wb") as file:
                shutil.copyfileobj(packed, file)
            path.unlink()

    def _layout(self) -> tuple[str, str, str, int, int | slice]:
        """Title, file to download, file to read, column of the SMILES, columns of the labels."""
        from torch_geometric.datasets import MoleculeNet

        names: dict[str, tuple[str, str, str, int, int | slice]] = MoleculeNet.names
        if self.key() not in names:
            raise IsthmusError(
                f"data set '{self.name}': unknown title '{self.title}': {did_you_mean(self.title, names)}"
            )
        return names[self.key()]

    def _table(self) -> tuple[list[str], Tensor]:
        with self.published() as raw:
            return read_table(raw / self.needed()[0], *self._layout()[3:])

    def _split(self, smiles: Sequence[str], seed: int, kept: Path) -> dict[str, Tensor]:
        if self.split == "scaffold":
            return scaffold_split(scaffolds_of(smiles, cache_folder=kept), self.train, self.val)
        masks = split_by_share(
            torch.zeros(len(smiles), dtype=torch.long), self.train, self.val, numpy_generator(seed, "split")
        )
        return {split: masks[f"{split}_mask"] for split in SPLITS}


def read_table(path: Path, smiles: int, labels: int | slice) -> tuple[list[str], Tensor]:
    """The texts and the labels of a CSV file with a head, labels as real numbers `[rows, tasks]`, NaN where empty.

    Arguments:
        smiles: position of the column of texts.
        labels: position of the column of labels, or of several.
    """
    from pyarrow import csv as arrow
    from pyarrow import float64, string

    with path.open(encoding="utf-8", newline="") as file:
        head = csv.reader(file)
        places = range(len(next(head)))
        lines = head.line_num
    tasks = places[labels] if isinstance(labels, slice) else [places[labels]]
    if isinstance(labels, slice) and len(tasks) < labels.stop - (labels.start or 0):
        raise ValueError(f"{path.name} has {len(places)} columns, too few for the labels")
    kinds = {f"f{places[smiles]}": string(), **{f"f{at}": float64() for at in tasks}}
    table = arrow.read_csv(
        path,
        arrow.ReadOptions(skip_rows=lines, autogenerate_column_names=True),
        arrow.ParseOptions(newlines_in_values=True),
        arrow.ConvertOptions(include_columns=list(kinds), column_types=kinds),
    )
    values = [torch.from_numpy(table.column(f"f{at}").to_numpy().copy()) for at in tasks]
    return table.column(0).to_pylist(), torch.stack(values, dim=1).float()


def scaffold_split(of: Tensor, train: float, val: float) -> dict[str, Tensor]:
    """Masks of molecules, every scaffold whole in one of them, in the manner of DeepChem; no seed plays a part.

    Scaffolds of most molecules come first, of equally many the one that appears last: files are often sorted by class,
    and with it this also decides whether the many scaffolds of one molecule, of which most of validation and testing is
    made, are of more than one. Each goes to training while it fits into that share of the molecules, else to
    validation while it fits, else to testing. Molecules without rings are one group here, which its size mostly
    brings to training.

    Arguments:
        of: the scaffold of every molecule, -1 for none, `[molecules]`.
        train, val: shares of the molecules.

    >>> masks = scaffold_split(torch.tensor([3, 0, 3, 1, 3]), 0.6, 0.2)
    >>> {split: mask.nonzero().flatten().tolist() for split, mask in masks.items()}
    {'train': [0, 2, 4], 'val': [3], 'test': [1]}
    """
    if train + val > 1:
        raise IsthmusError(f"train = {train} and val = {val} are more than the whole: lower one of them")
    _, first, group, counts = np.unique(of.numpy(), return_index=True, return_inverse=True, return_counts=True)
    room = {"train": round(train * of.numel()), "val": round((train + val) * of.numel())}
    room["val"] -= room["train"]
    side = np.full(counts.size, SPLITS.index("test"))
    for at in np.lexsort((-first, -counts)):
        fits = next((split for split, left in room.items() if counts[at] <= left), None)
        if fits is not None:
            side[at] = SPLITS.index(fits)
            room[fits] -= int(counts[at])
    return {split: torch.from_numpy(side[group] == at) for at, split in enumerate(SPLITS)}


def note(unreadable: Sequence[int], rows: int) -> str:
    """What the reader of a report is told about texts that are no molecules.

    >>> note([6, 17], 1484)
    '2 of 1,484 SMILES are no molecules to rdkit and left out: rows 7, 18.'
    """
    if not unreadable:
        return ""
    named = ", ".join(str(at + 1) for at in unreadable[:ROWS_NAMED])
    more = f" and {len(unreadable) - ROWS_NAMED:,} more" if len(unreadable) > ROWS_NAMED else ""
    return f"{len(unreadable):,} of {rows:,} SMILES are no molecules to rdkit and left out: rows {named}{more}."


class Sider(MolecularGraphs):
    """Drugs and their side effects by organ system."""

    name: ClassVar[str] = "sider"
    title: ClassVar[str] = "SIDER"
    sizes: ClassVar[Sizes] = Sizes(nodes=48006, edges=50456, features=177, classes=27, graphs=1427)


class Bace(MolecularGraphs):
    """Inhibitors of human beta-secretase 1, binding or not."""

    name: ClassVar[str] = "bace"
    title: ClassVar[str] = "BACE"
    sizes: ClassVar[Sizes] = Sizes(nodes=51577, edges=55768, features=177, classes=1, graphs=1513)


class ClinTox(MolecularGraphs):
    """Drugs, approved or failed for toxicity in trials."""

    name: ClassVar[str] = "clintox"
    title: ClassVar[str] = "ClinTox"
    sizes: ClassVar[Sizes] = Sizes(nodes=38846, edges=41416, features=177, classes=2, graphs=1480)


class Bbbp(MolecularGraphs):
    """Compounds that pass the blood-brain barrier or not."""

    name: ClassVar[str] = "bbbp"
    title: ClassVar[str] = "BBBP"
    sizes: ClassVar[Sizes] = Sizes(nodes=49068, edges=52921, features=177, classes=1, graphs=2039)


class Tox21(MolecularGraphs):
    """Compounds and twelve pathways of toxicity, many labels missing."""

    name: ClassVar[str] = "tox21"
    title: ClassVar[str] = "Tox21"
    sizes: ClassVar[Sizes] = Sizes(nodes=145256, edges=150901, features=177, classes=12, graphs=7823)


class AnyMolecules(MolecularGraphs):
    """Any set of MoleculeNet by its title: ESOL, FreeSolv, Lipo, PCBA, MUV, HIV, ToxCast, ..."""

    name: ClassVar[str] = "moleculenet"

    title: str  # type: ignore[misc]  # here what the other sets know of themselves is an option
    """What PyTorch Geometric calls the set; upper and lower case are the same."""
