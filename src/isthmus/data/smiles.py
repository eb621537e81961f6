"""Converts SMILES to graphs, in an encoding that needs no fitting, and to scaffolds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.cache import cached, digest
from isthmus.errors import missing_extra

AtomFeatures = Literal["one-hot", "raw", "no-bonds"]
"""Features of an atom: its nine categories one-hot, the same as nine numbers, or only the atomic number, one-hot. All
other categories can be inferred from the bonds."""
BOND_FREE = (0,)
"""The categories that do not follow from the bonds: the atomic number."""


def structural_columns(features: AtomFeatures) -> Tensor:
    """Columns of the features that follow from the bonds, ascending.

    >>> structural_columns("raw").tolist()
    [1, 2, 3, 4, 5, 6, 7, 8]
    """
    widths = [1] * len(_widths()) if features == "raw" else _widths()
    if features == "no-bonds":
        widths = [widths[at] for at in BOND_FREE]
    category = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    return torch.isin(category, torch.tensor(BOND_FREE), invert=True).nonzero().squeeze(1)


@dataclass(frozen=True, eq=False)
class ParsedMolecules:
    """Graphs of molecules, one after another: atoms are nodes, a bond is an edge in each direction.

    Arguments:
        x: features, `[atoms, features]`.
        edge_index: `[2, edges]`.
        batch: the graph of every atom, ascending, `[atoms]`.
        graphs: number of molecules.
        unreadable: positions of the SMILES that are not a molecule, ascending; they have no graph.
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

    PyTorch Geometric describes an atom by nine categories (atomic number, chirality, degree, formal charge, hydrogens,
    radical electrons, hybridisation, aromaticity, in a ring), each with a list of values. "one-hot" gives a sparse
    matrix with a column for each value, 177 in all; "raw" gives nine columns with positions in those lists. Neither is
    fitted to the molecules, so all parties share the encoding. Text that is not a molecule, or has an atom whose values
    are not in the lists, is unreadable.

    Arguments:
        cache_folder: a folder that caches results for lists of molecules.

    >>> parsed = read_molecules(["CCO", "C(", "c1ccccc1"])
    >>> parsed.graphs, parsed.unreadable, list(parsed.x.shape), parsed.batch.tolist()
    (2, (1,), [9, 177], [0, 0, 0, 1, 1, 1, 1, 1, 1])
    """
    parsed = _cached("graphs", smiles, cache_folder, _read)
    atoms = parsed["atoms"].long()
    batch = torch.arange(atoms.numel()).repeat_interleave(atoms)
    unreadable = tuple(parsed["unreadable"].tolist())
    x, edge_index = _encoded(parsed["x"], features), parsed["edge_index"].long()
    return ParsedMolecules(x, edge_index, batch, atoms.numel(), unreadable)


def scaffolds_of(smiles: Sequence[str], *, cache_folder: Path | None = None) -> Tensor:
    """The number of every molecule's scaffold, in order of first appearance, `[molecules]`.

    Scaffolds are those of Bemis and Murcko (1996), rings and what links them, without chirality. Molecules without
    rings have none: -1. A molecule that rdkit cannot process is its own scaffold. `cache_folder` is as for
    `read_molecules`.

    >>> scaffolds_of(["CCO", "Cc1ccccc1", "C1CC1", "Oc1ccccc1"]).tolist()
    [-1, 0, 1, 0]
    """
    return _cached("scaffolds", smiles, cache_folder, lambda texts: {"of": _scaffolds(texts)})["of"]


def _cached(
    what: str, smiles: Sequence[str], folder: Path | None, compute: Callable[[Sequence[str]], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors of `compute`, cached by the SMILES and the version of rdkit."""
    try:
        import rdkit
    except ImportError as error:
        raise missing_extra("rdkit", "molecules", "reading SMILES") from error
    if folder is None:
        return compute(smiles)
    return cached(folder, digest(what, str(rdkit.__version__), list(smiles)), lambda: compute(smiles))


def _silent() -> Any:
    """A context manager that turns the log of rdkit off."""
    from rdkit import rdBase

    return rdBase.BlockLogs()


def _read(smiles: Sequence[str]) -> dict[str, Tensor]:
    """The graphs of the SMILES, in the smallest types that hold them."""
    from torch_geometric.utils import from_smiles

    x, edges, atoms, unreadable = [], [], [], []
    first = 0
    with _silent():
        for at, text in enumerate(smiles):
            try:
                graph = from_smiles(text)
            except (TypeError, ValueError, RuntimeError):  # not a text, or an atom with a value in no list
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
    """Number of values of each category."""
    from torch_geometric.utils.smiles import x_map

    return [len(values) for values in x_map.values()]


def _encoded(x: Tensor, features: AtomFeatures) -> Tensor:
    if features == "raw":
        return x.to(torch.get_default_dtype())
    widths = torch.tensor(_widths())
    if features == "no-bonds":
        x, widths = x[:, list(BOND_FREE)], widths[list(BOND_FREE)]
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
