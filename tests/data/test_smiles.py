"""SMILES become the graphs that PyTorch Geometric makes of them, in one encoding for all."""

import builtins

import pytest
import torch

from isthmus.data import rows, smiles
from isthmus.data.smiles import read_molecules, scaffolds_of
from isthmus.errors import IsthmusError

rdkit = pytest.importorskip("rdkit", reason="rdkit is not installed: pip install 'isthmus[molecules]'")
utils = pytest.importorskip("torch_geometric.utils.smiles")

READABLE = ["CC(=O)Oc1ccccc1C(=O)O", "[Na+].[Cl-]", "C", "N[C@@H](C)C(=O)O", "F/C=C/F", "C1CC1", "[Og]", "*"]


def test_graphs_are_those_of_pyg_side_by_side():
    found = read_molecules(READABLE, "raw")
    assert (found.graphs, found.unreadable) == (len(READABLE), ())
    first = 0
    for at, text in enumerate(READABLE):
        due = utils.from_smiles(text)
        own = found.batch == at
        assert int(own.sum()) == due.num_nodes
        assert torch.equal(found.x[own], due.x.float())
        edges = own[found.edge_index[0]]
        assert torch.equal(found.edge_index[:, edges] - first, due.edge_index)
        first += due.num_nodes


def test_one_hot_has_a_one_for_each_category_in_a_fixed_column():
    found, raw = read_molecules(READABLE), read_molecules(READABLE, "raw").x.long()
    widths = [len(values) for values in utils.x_map.values()]
    assert rows.is_sparse(found.x)
    parts = found.x.to_dense().split(widths, dim=1)
    assert torch.equal(torch.stack([part.argmax(1) for part in parts], dim=1), raw)
    assert all(bool((part.sum(1) == 1).all()) for part in parts)
    alone = read_molecules(READABLE[2:3])
    assert torch.equal(alone.x.to_dense(), found.x.to_dense()[found.batch == 2])  # whatever else there is


@pytest.mark.parametrize("text", ["", "C(", "no molecule", "[Xx]", "[C+20]", "é", "C\0C", None])
def test_what_is_no_molecule_is_told_and_left_out(text):
    found = read_molecules(["CO", text, "N", text])
    assert (found.graphs, found.unreadable, found.batch.tolist()) == (2, (1, 3), [0, 0, 1])
    assert found.edge_index.tolist() == [[0, 1], [1, 0]]


def test_no_molecules_are_empty_tensors_of_the_same_width():
    found = read_molecules([])
    assert (found.graphs, found.x.shape, found.edge_index.shape) == (0, (0, 177), (2, 0))
    assert read_molecules(["C("]).unreadable == (0,)


def test_rdkit_is_silent_inside_and_as_it_was_before_afterwards(capfd):
    from rdkit import Chem, RDLogger, rdBase

    RDLogger.EnableLog("rdApp.error")
    before = rdBase.LogStatus()
    read_molecules(["C(", "[C+20]"])
    scaffolds_of(["C(", "c1ccccc1"])
    assert rdBase.LogStatus() == before
    assert capfd.readouterr().err == ""
    Chem.MolFromSmiles("C(")
    assert "Parse Error" in capfd.readouterr().err


def test_what_was_read_is_kept_by_content(tmp_path, monkeypatch):
    first = read_molecules(READABLE, cache_folder=tmp_path)
    scaffolds = scaffolds_of(READABLE, cache_folder=tmp_path)
    monkeypatch.setattr(smiles, "_read", lambda texts: pytest.fail("read again"))
    monkeypatch.setattr(smiles, "_scaffolds", lambda texts: pytest.fail("taken apart again"))
    again = read_molecules(tuple(READABLE), cache_folder=tmp_path)
    assert torch.equal(again.x.to_dense(), first.x.to_dense())
    assert torch.equal(again.edge_index, first.edge_index)
    assert again.batch.dtype == first.edge_index.dtype == torch.long
    assert read_molecules(READABLE, "raw", cache_folder=tmp_path).x.size(1) == 9  # an encoding of the same molecules
    assert torch.equal(scaffolds_of(READABLE, cache_folder=tmp_path), scaffolds)
    with pytest.raises(pytest.fail.Exception, match="read again"):
        read_molecules(READABLE[:-1], cache_folder=tmp_path)
    with pytest.raises(pytest.fail.Exception, match="read again"):
        read_molecules(READABLE[::-1], cache_folder=tmp_path)


def test_scaffolds_are_rings_and_what_links_them():
    benzene = ["c1ccccc1", "Cc1ccccc1", "OC(=O)c1ccccc1N"]
    linked = ["c1ccccc1CCc1ccccc1", "c1ccccc1CC(C)c1ccccc1O"]
    chiral = ["C[C@H]1CCCO1", "C[C@@H]1CCCO1"]
    assert scaffolds_of(["CCO", *benzene, *linked, "C", *chiral]).tolist() == [-1, 0, 0, 0, 1, 1, -1, 2, 2]


def test_what_cannot_be_taken_apart_is_a_scaffold_of_its_own():
    assert scaffolds_of(["C(", "c1ccccc1", "C1CC", "C("]).tolist() == [0, 1, 2, 0]


def test_without_rdkit_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == "rdkit":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    for function in (read_molecules, scaffolds_of):
        with pytest.raises(IsthmusError, match=r"reading SMILES needs rdkit.*isthmus\[molecules\]"):
            function(["C"])


def test_what_follows_from_bonds_can_be_left_out():
    whole, unbound = (
        read_molecules(["CCO", "c1ccccc1"], features).x.to_dense() for features in ("one-hot", "no-bonds")
    )
    assert unbound.size(1) < whole.size(1)
    assert (unbound.sum(1) == 1).all()
    assert torch.equal(unbound[0], unbound[1])  # the first carbons differ in their hydrogens alone
    assert torch.equal(unbound[0], unbound[3])  # and one in a ring is a carbon too
    assert not torch.equal(unbound[0], unbound[2])
    assert not torch.equal(whole[0], whole[1])
