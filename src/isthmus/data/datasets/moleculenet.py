"""Molecules of the MoleculeNet collection (Wu et al. 2018)."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.cache import cache_root
from isthmus.data.datasets.public import PublicDataSet, Sizes, data_root, download, write_bounded
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool, Share, check_shares, numpy_generator, split_by_share
from isthmus.data.smiles import AtomFeatures, read_molecules, scaffolds_of, structural_columns
from isthmus.data.validation import drop_unlabelled
from isthmus.errors import did_you_mean

ROWS_NAMED = 20
"""Unreadable rows that a note names; it counts the others."""


class MolecularGraphs(PublicDataSet):
    """Molecules with one label or several, any of which may be missing; needs the extra `molecules`.

    PyTorch Geometric's class says which columns hold the SMILES and the labels. Isthmus reads the file itself, because
    that class drops unreadable molecules silently.
    """

    folder: ClassVar[str] = "molnet"

    features: AtomFeatures = "one-hot"
    """Features of an atom: nine categories one-hot; the same as nine numbers; or the atomic number alone, one-hot."""
    split: Literal["random", "scaffold"] = "random"
    """Molecules drawn at random, or whole scaffolds: frequent ones for training, rare ones for testing."""
    split_seed: int | None = Field(None, ge=0)
    """Seed of the split for all seeds of a study, which then vary only training, cut and noise."""
    train: Share = 0.8
    """Share of the molecules to train on."""
    val: Share = 0.1
    """Share of the molecules to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        with self.published_files() as raw:
            smiles, y = read_table(raw / self.required_files()[0], *self._layout()[3:])
        cache_folder = cache_root() / "molecules"
        parsed = read_molecules(smiles, self.features, cache_folder=cache_folder)
        if not parsed.graphs:
            raise self.read_error(ValueError("rdkit can read none of its SMILES"), self.source())
        readable = torch.ones(len(smiles), dtype=torch.bool)
        readable[list(parsed.unreadable)] = False
        texts = tuple(smiles[at] for at in readable.nonzero().flatten().tolist())
        graph = Data(x=parsed.x, edge_index=parsed.edge_index, batch=parsed.batch, y=y[readable])
        graph.num_nodes, graph.num_graphs = parsed.x.size(0), parsed.graphs
        split_seed = seed if self.split_seed is None else self.split_seed
        if self.split == "scaffold":
            splits = scaffold_split(scaffolds_of(texts, cache_folder=cache_folder), self.train, self.val)
        else:
            one_group = torch.zeros(len(texts), dtype=torch.long)
            splits = split_by_share(one_group, self.train, self.val, numpy_generator(split_seed, "split"))
        masks = drop_unlabelled(splits, graph.y)
        structural = structural_columns(self.features)
        more: dict[str, Any] = {"structural": structural, **masks}
        party = Party("pooled", graph, "graph", **more)
        return Pool(party, classes=y.size(1), smiles=texts, note=unreadable_note(parsed.unreadable, len(smiles)))

    def raw_folder(self) -> Path:
        return data_root() / self.folder / self.key() / "raw"

    def key(self) -> str:
        """The data set's name in PyG's class, and the name of its folder."""
        return self.title.lower()

    def shared_encoding(self) -> str:
        return f"smiles {self.features}"

    def required_files(self) -> Sequence[str]:
        return (f"{self._layout()[2]}.csv",)

    def source(self) -> str:
        from torch_geometric.datasets import MoleculeNet

        return str(MoleculeNet.url.format(self._layout()[1]))

    def download(self, folder: Path) -> None:
        path = download(self.source(), folder)
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                write_bounded(folder / self.required_files()[0], packed)
            path.unlink()

    def _layout(self) -> tuple[str, str, str, int, int | slice]:
        """Title, file to download, file to read, column of the SMILES, column or columns of the labels."""
        from torch_geometric.datasets import MoleculeNet

        names: dict[str, tuple[str, str, str, int, int | slice]] = MoleculeNet.names
        if self.key() not in names:
            raise self.error(f"unknown title '{self.title}': {did_you_mean(self.title, names)}")
        return names[self.key()]


def read_table(path: Path, smiles: int, labels: int | slice) -> tuple[list[str], Tensor]:
    """The SMILES and the labels `[rows, tasks]`, NaN where empty, of a CSV file with a header.

    Arguments:
        smiles: position of the column with the SMILES.
        labels: position of the column, or columns, with labels.
    """
    from pyarrow import csv as arrow
    from pyarrow import float64, string

    with path.open(encoding="utf-8", newline="") as file:
        header = csv.reader(file)
        columns = range(len(next(header)))
        lines = header.line_num
    tasks = columns[labels] if isinstance(labels, slice) else [columns[labels]]
    if isinstance(labels, slice) and len(tasks) < labels.stop - (labels.start or 0):
        raise ValueError(f"{path.name} has {len(columns)} columns, too few for the labels")
    kinds = {f"f{columns[smiles]}": string(), **{f"f{at}": float64() for at in tasks}}
    table = arrow.read_csv(
        path,
        arrow.ReadOptions(skip_rows=lines, autogenerate_column_names=True),
        arrow.ParseOptions(newlines_in_values=True),
        arrow.ConvertOptions(include_columns=list(kinds), column_types=kinds),
    )
    values = [torch.from_numpy(table.column(f"f{at}").to_numpy().copy()) for at in tasks]
    return table.column(0).to_pylist(), torch.stack(values, dim=1).float()


def scaffold_split(scaffold: Tensor, train: float, val: float) -> dict[str, Tensor]:
    """Masks over molecules that keep each scaffold in one split, as in DeepChem; no seed plays a part.

    Scaffolds are sorted by their number of molecules, the largest first. Each goes to training if it still fits there,
    else to validation if it fits there, else to testing. Of equally large scaffolds the one that appears last in the
    file goes first: files are often sorted by class, and most of validation and testing are scaffolds of one molecule,
    so the other order could leave these splits with one class. Molecules without rings count as one scaffold, which is
    mostly large enough to go to training.

    Arguments:
        scaffold: the scaffold of every molecule, -1 for none, `[molecules]`.
        train, val: shares of the molecules.

    >>> masks = scaffold_split(torch.tensor([3, 0, 3, 1, 3]), 0.6, 0.2)
    >>> {split: mask.nonzero().flatten().tolist() for split, mask in masks.items()}
    {'train': [0, 2, 4], 'val': [3], 'test': [1]}
    """
    check_shares(train, val)
    _, first, group, counts = np.unique(scaffold.numpy(), return_index=True, return_inverse=True, return_counts=True)
    room = {"train": round(train * scaffold.numel()), "val": round((train + val) * scaffold.numel())}
    room["val"] -= room["train"]
    split_of = np.full(counts.size, SPLITS.index("test"))
    for at in np.lexsort((-first, -counts)):
        fits = next((split for split, left in room.items() if counts[at] <= left), None)
        if fits is not None:
            split_of[at] = SPLITS.index(fits)
            room[fits] -= int(counts[at])
    return {split: torch.from_numpy(split_of[group] == at) for at, split in enumerate(SPLITS)}


def unreadable_note(unreadable: Sequence[int], rows: int) -> str:
    """A sentence for the report about SMILES that are not molecules.

    >>> unreadable_note([6, 17], 1484)
    '2 of 1,484 SMILES cannot be read by rdkit and are left out: rows 7, 18.'
    """
    if not unreadable:
        return ""
    named = ", ".join(str(at + 1) for at in unreadable[:ROWS_NAMED])
    more = f" and {len(unreadable) - ROWS_NAMED:,} more" if len(unreadable) > ROWS_NAMED else ""
    return f"{len(unreadable):,} of {rows:,} SMILES cannot be read by rdkit and are left out: rows {named}{more}."


class Sider(MolecularGraphs):
    """Drugs and their side effects by organ system."""

    name: ClassVar[str] = "sider"
    title: ClassVar[str] = "SIDER"
    sizes: ClassVar[Sizes] = Sizes(nodes=48006, edges=50456, features=177, classes=27, graphs=1427)


class Bace(MolecularGraphs):
    """Candidate inhibitors of human beta-secretase 1, binding or not."""

    name: ClassVar[str] = "bace"
    title: ClassVar[str] = "BACE"
    sizes: ClassVar[Sizes] = Sizes(nodes=51577, edges=55768, features=177, classes=1, graphs=1513)


class ClinTox(MolecularGraphs):
    """Drugs, approved or failed for toxicity in trials."""

    name: ClassVar[str] = "clintox"
    title: ClassVar[str] = "ClinTox"
    sizes: ClassVar[Sizes] = Sizes(nodes=38846, edges=41416, features=177, classes=2, graphs=1480)


class Bbbp(MolecularGraphs):
    """Compounds, able to pass the blood-brain barrier or not."""

    name: ClassVar[str] = "bbbp"
    title: ClassVar[str] = "BBBP"
    sizes: ClassVar[Sizes] = Sizes(nodes=49068, edges=52921, features=177, classes=1, graphs=2039)


class Tox21(MolecularGraphs):
    """Compounds tested for twelve kinds of toxicity; many labels are missing."""

    name: ClassVar[str] = "tox21"
    title: ClassVar[str] = "Tox21"
    sizes: ClassVar[Sizes] = Sizes(nodes=145256, edges=150901, features=177, classes=12, graphs=7823)


class AnyMolecules(MolecularGraphs):
    """Any set of MoleculeNet by its title: ESOL, FreeSolv, Lipo, PCBA, MUV, HIV, ToxCast, ..."""

    name: ClassVar[str] = "moleculenet"

    title: str  # type: ignore[misc]  # a class variable in the other sets, an option here
    """The set's name in PyTorch Geometric, in upper or lower case."""
