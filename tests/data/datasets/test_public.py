import shutil
import subprocess
import sys

import pytest
import torch

from isthmus.data import rows
from isthmus.data.datasets import Citations, Cora, Enzymes, PublicDataSet, SmallGraphs, data_root
from isthmus.data.partition import Random
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, draws, rank_within, split_by_share
from isthmus.errors import IsthmusError

PUBLIC = {name: each for name, each in DataSet.known().items() if issubclass(each, PublicDataSet)}
SIZES = {  # items, nodes, directed edges, features, classes
    "cora": (2708, 2708, 10556, 1433, 7),
    "citeseer": (3327, 3327, 9104, 3703, 6),
    "pubmed": (19717, 19717, 88648, 500, 3),
    "enzymes": (600, 19580, 74564, 21, 6),
    "proteins": (1113, 43471, 162088, 4, 2),
    "dhfr": (756, 32075, 67352, 56, 2),
    "nci1": (4110, 122747, 265506, 37, 2),
}


def load(name, seed=0, **options):
    """A public data set, or a skipped test where its files are not here: tests download nothing."""
    data = PUBLIC[name](**options)
    if not any(data.raw().glob("*")):
        pytest.skip(f"no raw files of {name}: point ISTHMUS_DATA at a folder that holds them")
    return data.load(seed)


def same(left, right):
    return all(
        torch.equal(getattr(left.party, split), getattr(right.party, split)) for split in ("train", "val", "test")
    )


@pytest.mark.real
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_published_ones(name):
    pool = load(name)
    party = pool.party
    assert (party.items, party.nodes, party.edges, party.features, pool.classes) == SIZES[name]
    assert not (party.train & party.val).any()
    assert not ((party.train | party.val) & party.test).any()


@pytest.mark.real
def test_the_public_split_is_planetoid_s():
    party = load("cora").party
    assert [int(getattr(party, split).sum()) for split in ("train", "val", "test")] == [140, 500, 1000]
    assert torch.nonzero(party.train).flatten().tolist() == list(range(140))
    assert same(load("cora", seed=1), load("cora", seed=0))


@pytest.mark.real
def test_a_random_split_is_drawn_by_seed():
    first = load("cora", split="random", train_per_class=5, val=100, test=200)
    party = first.party
    assert torch.bincount(party.graph.y[party.train]).tolist() == [5] * 7
    assert (int(party.val.sum()), int(party.test.sum())) == (100, 200)
    torch.manual_seed(7)
    assert same(load("cora", split="random", train_per_class=5, val=100, test=200), first)
    assert not same(load("cora", seed=1, split="random", train_per_class=5, val=100, test=200), first)
    with pytest.raises(IsthmusError, match="data set 'cora': 2568 of 2708 nodes are left"):
        load("cora", split="random", val=2500)


@pytest.mark.real
def test_bags_of_words_are_sparse_and_normalised_on_demand():
    normal, plain = load("cora").party.graph.x, load("cora", normalize=False).party.graph.x
    assert rows.is_sparse(normal)
    torch.testing.assert_close(rows.dense(normal).sum(1), torch.ones(2708))
    assert set(plain.values().tolist()) == {1.0}


@pytest.mark.real
def test_graphs_are_split_alike_in_every_class():
    party = load("enzymes").party
    for label in range(6):
        own = party.graph.y == label
        assert [int(getattr(party, split)[own].sum()) for split in ("train", "val", "test")] == [80, 10, 10]


@pytest.mark.real
def test_reading_is_silent_and_writes_nothing_beside_the_raw_files(tmp_path, monkeypatch):
    load("cora")
    shutil.copytree(Cora.raw(), tmp_path / "planetoid" / "Cora" / "raw")
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path))
    code = "from isthmus.data.datasets import Cora; Cora().load(0)"  # PyG itself is silent under pytest
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout + ran.stderr == ""
    assert [each.name for each in (tmp_path / "planetoid" / "Cora").iterdir()] == ["raw"]


@pytest.mark.real
def test_cora_is_cut_and_keeps_its_features_sparse():
    parties = Random().cut(load("cora"), 10, seed=0)
    assert all(rows.is_sparse(party.graph.x) for party in parties)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An empty data root, and no way to download."""
    import torch_geometric.datasets as published

    def offline(self):
        raise ConnectionError("no route\nto host")

    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path))
    monkeypatch.setattr(published.Planetoid, "download", offline)
    monkeypatch.setattr(published.TUDataset, "download", offline)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "folder", "url"),
    [(Cora(), "planetoid/Cora/raw", "github.com/kimiyoung"), (Enzymes(), "tu/ENZYMES/raw", "www.chrsmrrs.com")],
    ids=["cora", "enzymes"],
)
def test_missing_files_are_an_error_that_says_where_they_belong(nowhere, data, folder, url):
    with pytest.raises(IsthmusError) as error:
        data.load(0)
    text = str(error.value)
    assert str(nowhere / folder) in text
    assert url in text
    assert "ConnectionError: no route to host" in text
    assert "\n" not in text


def test_broken_files_are_an_error_that_names_them(nowhere):
    raw = nowhere / "tu" / "ENZYMES" / "raw"
    raw.mkdir(parents=True)
    for part in ("A", "graph_indicator", "graph_labels"):
        (raw / f"ENZYMES_{part}.txt").write_text("not a number\n")
    with pytest.raises(IsthmusError, match=f"cannot read the files in {raw}"):
        Enzymes().load(0)


def test_the_root_is_named_by_the_environment_or_the_cache(monkeypatch):
    monkeypatch.setenv("ISTHMUS_DATA", "~/sets")
    assert data_root() == data_root().home() / "sets"
    monkeypatch.delenv("ISTHMUS_DATA")
    assert data_root() == data_root().home() / ".cache" / "isthmus" / "data"


def test_public_sets_are_known_by_name_and_documented():
    assert set(SIZES) <= set(PUBLIC)
    for each in PUBLIC.values():
        described = each.describe()
        assert described["summary"]
        assert all(option["help"] for option in described["options"])
    for family in (Citations, SmallGraphs):
        assert not family.name


def test_purposes_draw_apart_and_seeds_repeat():
    assert draws(0, "a").random() == draws(0, "a").random()
    assert draws(0, "a").random() != draws(0, "b").random()
    assert draws(0, "a").random() != draws(1, "a").random()


def test_a_split_and_a_random_cut_of_one_seed_are_independent():
    """Drawn from one stream, the first party of a random cut would get all training items."""
    group = torch.zeros(1000, dtype=torch.long)
    masks = split_by_share(group, 0.1, 0.2, draws(0, "split"))
    owner = rank_within(group, draws(0, "partition")) % 4
    training = torch.bincount(owner[masks["train_mask"]], minlength=4)
    assert (training > 10).all()


def test_a_split_has_its_share_of_every_group():
    group = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    masks = split_by_share(group, 0.5, 0.3, draws(0, "split"))
    assert torch.bincount(group[masks["train_mask"]]).tolist() == [25, 15, 10]
    assert torch.bincount(group[masks["val_mask"]]).tolist() == [15, 9, 6]
    assert (torch.stack(list(masks.values())).sum(0) == 1).all()
    with pytest.raises(IsthmusError, match="more than the whole"):
        split_by_share(group, 0.8, 0.3, draws(0, "split"))


def test_a_pool_is_a_party_of_everything():
    assert isinstance(DataSet.named("motifs")().load(0).party, Party)
