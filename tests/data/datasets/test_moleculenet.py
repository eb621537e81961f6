"""Molecules by name: what the files hold, and what becomes of texts that are no molecules."""

import gzip

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import isthmus
from isthmus.data import rows
from isthmus.data.datasets import moleculenet
from isthmus.data.datasets.moleculenet import AnyMolecules, MolecularGraphs, read_table, scaffold_split, unreadable_note
from isthmus.data.datasets.public import data_root
from isthmus.data.pool import DataSet
from isthmus.data.smiles import scaffolds_of
from isthmus.errors import IsthmusError
from isthmus.study.setup import task_for

pytest.importorskip("rdkit", reason="rdkit is not installed: pip install 'isthmus[molecules]'")

SETS = {name: each for name, each in DataSet.known().items() if issubclass(each, MolecularGraphs)}
COUNTS = {  # rows that are no molecules, labels missing, labels that are yes
    "sider": (0, 0, 21868),
    "bace": (0, 0, 691),
    "clintox": (4, 0, 1498),
    "bbbp": (11, 0, 1560),
    "tox21": (8, 16012, 5858),
}


def of(name, **options):
    """A data set, or a skipped test where its file is not here: tests download nothing."""
    data = SETS[name](**options)
    if not any(data.raw_folder().glob("*")):
        pytest.skip(f"no raw files of {name}: point ISTHMUS_DATA at a folder that holds them")
    return data


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", COUNTS)
def test_real_files_hold_what_is_known_of_them(name):
    pool, sizes = of(name).load(0), SETS[name].sizes
    party, y = pool.party, pool.party.graph.y
    assert (party.items, party.nodes, party.edges, party.features, pool.classes) == (
        sizes.graphs, sizes.nodes, 2 * sizes.edges, sizes.features, sizes.classes,
    )  # fmt: skip
    unreadable, missing, positive = COUNTS[name]
    assert (int(y.isnan().sum()), int((y == 1).sum()), int((y == 0).sum())) == (
        missing, positive, y.numel() - missing - positive,
    )  # fmt: skip
    assert pool.note.startswith(f"{unreadable} of {sizes.graphs + unreadable:,} SMILES" if unreadable else "")
    assert len(pool.smiles) == party.items
    assert rows.is_sparse(party.graph.x)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.filterwarnings("ignore:Skipping molecule")
def test_real_molecules_are_those_that_pyg_reads(tmp_path):
    from torch_geometric.datasets import MoleculeNet

    data = of("clintox", features="raw")
    pool = data.load(0)
    (tmp_path / "clintox").mkdir()
    (tmp_path / "clintox" / "raw").symlink_to(data.raw_folder())
    due = list(MoleculeNet(str(tmp_path), "ClinTox"))
    assert [each.smiles for each in due] == list(pool.smiles)
    assert torch.equal(torch.cat([each.y for each in due]), pool.party.graph.y)
    assert torch.equal(torch.cat([each.x for each in due]).float(), pool.party.graph.x)


@pytest.mark.slow
@pytest.mark.real
def test_a_scaffold_split_of_real_molecules_has_its_shares():
    pool = of("bbbp", split="scaffold").load(0)
    sizes = [int(getattr(pool.party, split).sum()) for split in ("train", "val", "test")]
    assert sum(sizes) == pool.party.items
    assert torch.tensor(sizes) / pool.party.items == pytest.approx([0.8, 0.1, 0.1], abs=0.001)
    scaffold, train = scaffolds_of(pool.smiles), pool.party.train
    assert not set(scaffold[train].tolist()) & set(scaffold[~train].tolist())
    assert torch.equal(of("bbbp", split="scaffold").load(1).party.train, train)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["bace", "bbbp"])
def test_every_part_of_a_scaffold_split_has_both_classes(name):
    """Their files are sorted by class, nearly; a part with one class has no ROC AUC."""
    party = of(name, split="scaffold").load(0).party
    for mask in (party.train, party.val, party.test):
        assert party.graph.y[mask].unique().numel() == 2


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An empty data root, and no way to download."""

    def offline(url, folder, name=""):
        raise ConnectionError("no route\nto host")

    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(moleculenet, "download", offline)
    return tmp_path / "data"


TEXTS = ["CCO", "C(", "c1ccccc1", "Cc1ccccc1", "CN", "C1CC1", "CC1CC1", "OC1CC1", "N", "CCC", "[C+20]"]


def esol(root, texts=TEXTS, labels=None):
    """A file in the layout of ESOL: a name in quotes that has commas, ..., the label, the SMILES."""
    labels = [0.5 * at for at in range(len(texts))] if labels is None else labels
    lines = [f'"a, ""{at}"", b",{label},{text}' for at, (text, label) in enumerate(zip(texts, labels, strict=True))]
    folder = root / "molnet" / "esol" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    head = "Compound ID,measured log solubility in mols per litre,smiles"
    (folder / "delaney-processed.csv").write_text("\n".join([head, *lines]))  # without an end of the last line
    return AnyMolecules(title="ESOL")


def test_any_set_is_read_by_its_title_and_unreadable_texts_are_told(nowhere):
    pool = esol(nowhere).load(0)
    assert pool.smiles == tuple(text for text in TEXTS if text not in ("C(", "[C+20]"))
    assert pool.note == "2 of 11 SMILES cannot be read by rdkit and are left out: rows 2, 11."
    assert pool.party.graph.y.flatten().tolist() == [0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    assert (pool.party.items, pool.party.features, pool.classes) == (9, 177, 1)
    assert task_for([pool.party], pool.classes).name == "graph-regression"
    assert AnyMolecules(title="esol", features="raw").load(0).party.features == 9


def test_sets_in_one_encoding_say_so(nowhere):
    one_hot = {AnyMolecules(title=title).shared_encoding() for title in ("ESOL", "HIV")}
    assert one_hot == {SETS["sider"]().shared_encoding()} != {SETS["sider"](features="raw").shared_encoding()}


def test_random_splits_are_drawn_by_seed_in_their_shares(nowhere):
    esol(nowhere, ["C" * (at + 1) for at in range(20)])
    data = AnyMolecules(title="esol", train=0.5, val=0.25)
    parties = [data.load(seed).party for seed in (0, 0, 1)]
    assert [int(getattr(parties[0], split).sum()) for split in ("train", "val", "test")] == [10, 5, 5]
    assert torch.equal(parties[0].train, parties[1].train)
    assert not torch.equal(parties[0].train, parties[2].train)


def test_one_split_serves_all_seeds_where_that_is_asked_for(nowhere):
    esol(nowhere, ["C" * (at + 1) for at in range(20)])
    data = AnyMolecules(title="esol", split_seed=1)
    assert torch.equal(data.load(0).party.train, data.load(7).party.train)
    assert torch.equal(data.load(0).party.train, AnyMolecules(title="esol").load(1).party.train)


@pytest.mark.parametrize(("features", "left"), [("one-hot", 119), ("raw", 1), ("no-bonds", 119)])
def test_bonds_change_no_feature_but_structural_ones(nowhere, features, left):
    """Hydrocarbons of six atoms of carbon, with one bond or another between them."""
    esol(nowhere, ["CCCCCC", "CC(C)(C)CC", "C1CCCCC1", "c1ccccc1", "C=CC=CC#C"])
    party = AnyMolecules(title="esol", features=features).load(0).party
    assert party.features - party.structural.numel() == left
    x = rows.to_dense(rows.zero_columns(party.graph.x, party.structural))
    assert x.any()
    assert (x == x[0]).all()
    assert (features == "no-bonds") == torch.equal(x, rows.to_dense(party.graph.x))


def test_a_molecule_without_a_label_is_in_no_split(nowhere):
    party = esol(nowhere, labels=["", "", *[0.5] * 9]).load(0).party
    assert party.graph.y[0].isnan().all()
    assert (party.train | party.val | party.test).tolist() == [False] + [True] * 8


def test_columns_of_several_tasks_become_labels_with_missing_ones(tmp_path):
    file = tmp_path / "file.csv"
    file.write_text('\ufeffsmiles,"a, b",c,d\r\nCC,1,,0\r\n"C,\nN",0.0,1,\r\n\r\nO,,,\r\n', encoding="utf-8")
    smiles, y = read_table(file, 0, slice(1, 4))
    assert smiles == ["CC", "C,\nN", "O"]
    assert y.nan_to_num(nan=-1).tolist() == [[1, -1, 0], [0, 1, -1], [-1, -1, -1]]
    assert read_table(file, 0, -2)[1].nan_to_num(nan=-1).tolist() == [[-1], [1], [-1]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "StopIteration"),
        ("id,y,smiles\n", "Empty CSV"),
        ("id,y,smiles\n1,0.5,C\n2,0.5\n", "Expected 3 columns, got 2"),
        ("id,y,smiles\n1,soluble,C\n", "soluble"),
        ("smiles\nC\n", "IndexError"),
        ("id,y,smiles\n1,0.5,C(\n", "rdkit can read none of its SMILES"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
    ],
)
def test_broken_files_are_an_error_of_one_line_that_names_them(nowhere, text, why):
    data = esol(nowhere)
    (data.raw_folder() / "delaney-processed.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(IsthmusError, match=f"cannot read the files in {data.raw_folder()}") as error:
        data.load(0)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_with_too_few_tasks_is_broken(tmp_path):
    (tmp_path / "file.csv").write_text("smiles,a\nC,1\n")
    with pytest.raises(ValueError, match=r"file.csv has 2 columns, too few for the labels"):
        read_table(tmp_path / "file.csv", 0, slice(1, 3))


def test_a_missing_file_is_an_error_that_says_where_it_belongs(nowhere):
    with pytest.raises(IsthmusError) as error:
        SETS["tox21"]().load(0)
    text = str(error.value)
    assert all(part in text for part in ("tox21.csv", str(nowhere / "molnet" / "tox21" / "raw"), "deepchemdata"))
    assert "no route to host" in text


def test_a_download_is_unpacked_where_it_is_looked_for(nowhere, monkeypatch):
    def packed(url, folder, name=""):
        path = folder / url.rpartition("/")[2]
        path.write_bytes(gzip.compress(b"smiles,FDA_APPROVED,CT_TOX\nCCO,1,0\nCN,0,\n"))
        return path

    monkeypatch.setattr(moleculenet, "download", packed)
    pool = SETS["clintox"]().load(0)
    assert pool.smiles == ("CCO", "CN")
    assert [each.name for each in (data_root() / "molnet" / "clintox" / "raw").iterdir()] == ["clintox.csv"]


@pytest.mark.parametrize(("title", "hint"), [("esoll", "did you mean 'esol'"), ("x", "known: bace, bbbp")])
def test_an_unknown_title_is_an_error_with_a_hint(nowhere, title, hint):
    with pytest.raises(IsthmusError, match=hint):
        AnyMolecules(title=title).load(0)


def test_the_title_is_required_and_shares_stay_within_the_whole(nowhere):
    with pytest.raises(IsthmusError, match="option 'title' is required"):
        AnyMolecules.read({}, "data 'moleculenet'")
    esol(nowhere)
    for split in ("random", "scaffold"):
        with pytest.raises(IsthmusError, match="add up to more than 1"):
            AnyMolecules(title="esol", split=split, train=0.9, val=0.2).load(0)


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=60), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=50)
def test_a_scaffold_split_keeps_scaffolds_whole_and_shares_in_their_limits(scaffold, train, val):
    scaffold, val = torch.tensor(scaffold), (1 - train) * val
    masks = scaffold_split(scaffold, train, val)
    assert (torch.stack(list(masks.values())).sum(0) == 1).all()
    for number in scaffold.unique():
        assert sum(bool(mask[scaffold == number].any()) for mask in masks.values()) == 1
    assert int(masks["train"].sum()) <= round(train * scaffold.numel())
    assert int(masks["train"].sum() + masks["val"].sum()) <= round((train + val) * scaffold.numel())


def test_a_scaffold_split_trains_on_the_largest():
    scaffold = torch.tensor([5, 5, 0, 2, 2, 2, 1, 2, 3, 5])
    masks = scaffold_split(scaffold, 0.7, 0.1)
    assert {split: sorted(set(scaffold[mask].tolist())) for split, mask in masks.items()} == {
        "train": [2, 5], "val": [3], "test": [0, 1],
    }  # fmt: skip


def test_a_note_counts_what_it_does_not_name():
    assert unreadable_note([], 5) == ""
    named = ", ".join(str(row) for row in range(2, 22))
    assert unreadable_note(range(1, 31), 1000).endswith(f"rows {named} and 10 more.")


def test_molecules_with_measured_values_are_trained_on(nowhere):
    esol(nowhere, ["C" * (at % 7 + 1) + ("c1ccccc1", "C1CC1", "O")[at % 3] for at in range(60)])
    study = {"data": {"name": "moleculenet", "title": "esol"}, "partition": {"name": "scaffold"}, "parties": 3}
    results = isthmus.run_study(
        isthmus.Study.of({**study, "methods": [{"name": "fedavg", "rounds": 2}], "model": {"hidden": 8}})
    )
    assert {"test_rmse", "val_rmse", "test_mae"} <= set(results.metrics)
