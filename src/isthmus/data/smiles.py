"""Molecules written as SMILES: to graphs in one encoding that needs no fitting, and to their scaffolds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.cache import cached, digest
from isthmus.errors import missing_extra

AtomFeatures = Literal["one-hot", "raw", "no-bonds"]
"""How an atom is told: its nine categories each one-hot, side by side; or their numbers as they are; or one-hot, but
only its atomic number, which alone does not follow from its bonds, not even by the rules of valence."""
UNBOUND = (0,)
"""That category."""


def structural_columns(features: AtomFeatures) -> Tensor:
    """Which columns of the features follow from the bonds, ascending.

    >>> structural_columns("raw").tolist()
    [1, 2, 3, 4, 5, 6, 7, 8]
    """
    widths = [1] * len(_widths()) if features == "raw" else _widths()
    if features == "no-bonds":
        widths = [widths[at] for at in UNBOUND]
    category = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    return torch.isin(category, torch.tensor(UNBOUND), invert=True).nonzero().squeeze(1)


@dataclass(frozen=True, eq=False)
class ParsedMolecules:
    """Graphs of molecules, one after another: atoms are nodes, a bond is an edge in either direction.

    Arguments:
        x: features, `[atoms, features]`.
        edge_index: `[2, edges]`.
        batch: for every atom its graph, ascending, `[atoms]`.
        graphs: how many there are.
        unreadable: positions of the SMILES that are no molecule, ascending; they have no graph.
    """

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    graphs: int
    unreadable: tuple[int, ...]


def read_molecules(
    smiles: Sequence[str], features: AtomFeatures = "one-hot", *, cache_folder: Path | None = None
) -> ParsedMolecules:
    """Molecules as graphs, as `torch_geometric.utils.from_smiles` reads them: without hydrogens, rings aromatic.

    PyTorch Geometric tells an atom by nine categories (atomic number, chirality, degree, formal charge, hydrogens,
    radical electrons, hybridisation, in an aromatic ring, in a ring) and lists the values of each. With "one-hot" a
    feature is 1 where an atom has that value, a sparse matrix of 177 columns; with "raw" there are nine columns, the
    values' positions in those lists. Neither is fitted to the molecules, so all parties share it from the start. Text
    that is no molecule, or whose atoms are not in the lists, is unreadable.

    Arguments:
        smiles: one molecule each.
        features: how an atom is told.
        cache_folder: a folder of molecules read before; the same ones are read there, new ones are added.

    >>> found = read_molecules(["CCO", "C(", "c1ccccc1"])
    >>> found.graphs, found.unreadable, list(found.x.shape), found.batch.tolist()
    (2, (1,), [9, 177], [0, 0, 0, 1, 1, 1, 1, 1, 1])
    """
    found = _cached("graphs", smiles, cache_folder, _read)
    atoms = found["atoms"].long()
    batch = torch.arange(atoms.numel()).repeat_interleave(atoms)
    unreadable = tuple(found["unreadable"].tolist())
    return ParsedMolecules(_encoded(found["x"], features), found["edge_index"].long(), batch, atoms.numel(), unreadable)


def scaffolds_of(smiles: Sequence[str], *, cache_folder: Path | None = None) -> Tensor:
    """For every molecule the number of its scaffold, in the order in which scaffolds first appear, `[molecules]`.

    The scaffold is that of Bemis and Murcko (1996), rings and what links them, without chirality. Molecules without
    rings have none: -1. A molecule that rdkit cannot take apart is a scaffold of its own.

    Arguments:
        smiles: one molecule each.
        cache_folder: as for `read_molecules`.

    >>> scaffolds_of(["CCO", "Cc1ccccc1", "C1CC1", "Oc1ccccc1"]).tolist()
    [-1, 0, 1, 0]
    """
    return _cached("scaffolds", smiles, cache_folder, lambda texts: {"of": _scaffolds(texts)})["of"]


def _cached(
    what: str, smiles: Sequence[str], folder: Path | None, make: Callable[[Sequence[str]], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """What `make` finds out about the molecules, kept by their texts and by rdkit's version, which may read another."""
    try:
        import rdkit
    except ImportError as error:
        raise missing_extra("rdkit", "molecules", "reading SMILES") from error
    if folder is None:
        return make(smiles)
    return cached(folder, digest(what, str(rdkit.__version__), list(smiles)), lambda: make(smiles))


@contextmanager
def _silent() -> Iterator[None]:
    """No word from rdkit, whatever is called inside; then its logs are as they were."""
    from rdkit import rdBase

    with rdBase.BlockLogs():
        yield


def _read(smiles: Sequence[str]) -> dict[str, Tensor]:
    """All that is read from the texts, in the smallest types that hold it."""
    from torch_geometric.utils import from_smiles

    x, edges, atoms, unreadable = [], [], [], []
    first = 0
    with _silent():
        for at, text in enumerate(smiles):
            try:
                graph = from_smiles(text)
            except (TypeError, ValueError, RuntimeError):  # no text, or an atom with a property that is in no list
                graph = None
            if graph is None or not graph.num_nodes:
                unreadable.append(at)
                continue
            x.append(graph.x.to(torch.uint8))
            edges.append((graph.edge_index + first).int())
            atoms.append(graph.num_nodes)
            first += graph.num_nodes
    return {
        "x": torch.cat([torch.zeros(0, len(_widths()), dtype=torch.uint8), *x]),
        "edge_index": torch.cat([torch.zeros(2, 0, dtype=torch.int32), *edges], dim=1),
        "atoms": torch.tensor(atoms, dtype=torch.int32),
        "unreadable": torch.tensor(unreadable, dtype=torch.long),
    }


def _widths() -> list[int]:
    """How many values each category of an atom has."""
    from torch_geometric.utils.smiles import x_map

    return [len(values) for values in x_map.values()]


def _encoded(x: Tensor, features: AtomFeatures) -> Tensor:
    if features == "raw":
        return x.to(torch.get_default_dtype())
    widths = torch.tensor(_widths())
    if features == "no-bonds":
        x, widths = x[:, list(UNBOUND)], widths[list(UNBOUND)]
    column = x.long() + widths.cumsum(0) - widths
    row = torch.arange(x.size(0) + 1) * widths.numel()
    return rows.csr(row, column.flatten(), torch.ones(column.numel()), (x.size(0), int(widths.sum())))


def _scaffolds(smiles: Sequence[str]) -> Tensor:
    known = {"": -1}
    with _silent():
        return torch.tensor([known.setdefault(_scaffold(text), len(known) - 1) for text in smiles], dtype=torch.long)


def _scaffold(text: str) -> str:
    from rdkit import Chem
    from rdkit.Chem.Scaffolds import MurckoScaffold

    try:
        rings = MurckoScaffold.GetScaffoldForMol(Chem.MolFromSmiles(text))
        return str(Chem.MolToSmiles(rings, isomericSmiles=False))
    except (TypeError, ValueError, RuntimeError):
        return text
