import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published import masks, pitfalls, real, write_npz, zipped
from torch_geometric.data import Data

from isthmus.data.datasets import public
from isthmus.data.datasets.attributed import Acm, Uai2010
from isthmus.data.datasets.bags import AmazonComputers, AmazonPhoto, CoauthorCs, CoauthorPhysics, Dblp
from isthmus.data.datasets.citations import CiteSeer, Cora, PubMed
from isthmus.data.datasets.large import Flickr, OgbnArxiv, Reddit
from isthmus.data.datasets.public import OneGraph, PublicDataSet, Sizes, data_root, download_folder, node_pool, unpack
from isthmus.data.datasets.tu import Enzymes, Tu
from isthmus.data.pool import DataSet, numpy_generator
from isthmus.errors import IsthmusError

PUBLIC = {
    name: kind
    for name, kind in DataSet.known().items()
    if issubclass(kind, PublicDataSet) and kind.__module__.startswith("isthmus.")
}
TYPED = ("elliptic-plus-plus", "ogbn-mag")
"""Sets with several types of nodes, whose documentation has no numbers of joined pairs."""
SIZED = [name for name, kind in PUBLIC.items() if kind.sizes and not kind.__module__.endswith("moleculenet")]


@pytest.mark.real
@pytest.mark.parametrize("name", SIZED)
@pytest.mark.thinned(3)
def test_sizes_are_what_is_read(name):
    pool = real(name)
    party = pool.party
    low, high = party.graph.edge_index.min(0).values, party.graph.edge_index.max(0).values
    found = Sizes(
        nodes=party.nodes,
        edges=torch.unique(low * party.nodes + high).numel(),
        features=party.features,
        classes=pool.classes,
        graphs=party.items if party.level == "graph" else None,
    )
    assert found == PUBLIC[name].sizes
    assert party.graph.y[party.graph.y >= 0].unique().numel() == pool.classes
    assert int(torch.stack(list(masks(pool).values())).sum(0).max()) == 1


def test_every_public_set_says_how_large_it_is_unless_an_option_decides():
    for name, kind in PUBLIC.items():
        assert (kind.sizes is None) == ("title" in kind.model_fields or name in TYPED), name
        assert kind.describe()["summary"]
    assert len(SIZED) == 21
    described = Cora.describe()
    assert described["summary"] == "Machine learning papers: 2,708 nodes, 5,278 edges, 1,433 features."
    assert described["sizes"]["classes"] == 7
    assert Enzymes.describe()["summary"] == "Protein structures of six enzyme classes: 600 graphs, 21 features."


def test_the_root_is_named_by_the_environment_or_the_cache(monkeypatch):
    monkeypatch.setenv("ISTHMUS_DATA", "~/sets")
    assert data_root() == data_root().home() / "sets"
    monkeypatch.delenv("ISTHMUS_DATA")
    assert data_root() == data_root().home() / ".cache" / "isthmus" / "data"


MISSING = [
    (Cora(), "planetoid/Cora/raw", "https://github.com/kimiyoung/planetoid/raw/master/data"),
    (CoauthorCs(), "coauthor/CS/raw", "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/ms_academic_cs.npz"),
    (Dblp(), "citationfull/dblp/raw", "https://github.com/abojchevski/graph2gauss/raw/master/data/dblp.npz"),
    (
        AmazonPhoto(),
        "amazon/Photo/raw",
        "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/amazon_electronics_photo.npz",
    ),
    (Acm(), "npz", "https://github.com/zhumeiqiBUPT/AM-GCN/raw/master/data/acm.zip"),
    (Uai2010(), "npz", "https://github.com/zhumeiqiBUPT/AM-GCN/raw/master/data/uai.zip"),
    (Flickr(), "flickr/raw", "https://drive.google.com/open?id=1zycmmDES39zVlbVCYs88JTJ1Wm5FbfLz"),
    (Reddit(), "reddit/raw", "https://data.dgl.ai/dataset/reddit.zip"),
    (OgbnArxiv(), "ogb/arxiv", "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"),
    (Enzymes(), "tu/ENZYMES/raw", "https://www.chrsmrrs.com/graphkerneldatasets/ENZYMES.zip"),
    (Tu(title="MUTAG"), "tu/MUTAG/raw", "https://www.chrsmrrs.com/graphkerneldatasets/MUTAG.zip"),
]


@pytest.mark.parametrize(("data", "folder", "url"), MISSING, ids=lambda each: getattr(each, "name", ""))
def test_missing_files_are_one_line_that_says_where_they_belong(empty_root, data, folder, url):
    with pytest.raises(IsthmusError) as error:
        data.load(0)
    text = str(error.value)
    assert text.startswith(f"data set '{data.name}': no ")
    assert f" in {empty_root / folder} and the download failed (" in text
    assert "no route to host" in text
    assert text.endswith(f"put the files from {url} there")
    assert "\n" not in text
    assert not [each for each in empty_root.rglob("*") if each.is_file()]


def test_a_download_is_read_kept_and_not_made_again(empty_root, tmp_path, monkeypatch):
    write_npz(tmp_path / "dblp.npz", pitfalls())
    monkeypatch.setattr(Dblp, "url", (tmp_path / "dblp.npz").as_uri())
    data = Dblp(train_per_class=2, val=5, test=10)
    first = data.load(0)
    (tmp_path / "dblp.npz").unlink()
    again = data.load(0)
    assert torch.equal(first.party.graph.edge_index, again.party.graph.edge_index)
    assert [each.relative_to(empty_root).as_posix() for each in empty_root.rglob("*") if each.is_file()] == [
        "citationfull/dblp/raw/dblp.npz"
    ]


def test_a_download_that_cannot_be_read_leaves_nothing(empty_root, tmp_path, monkeypatch):
    (tmp_path / "dblp.npz").write_text("<html>not found</html>")
    monkeypatch.setattr(Dblp, "url", (tmp_path / "dblp.npz").as_uri())
    with pytest.raises(IsthmusError, match=r"^data set 'dblp': no dblp\.npz in .* and the download failed"):
        Dblp().load(0)
    assert not [each for each in empty_root.rglob("*") if each.is_file()]


def test_a_download_other_than_the_published_file_is_not_read(empty_root, tmp_path, monkeypatch):
    """Planetoid's files are pickles: to read one is to run what is in it."""
    for name in Cora().required_files():
        (tmp_path / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    monkeypatch.setattr(Cora, "url", tmp_path.as_uri())
    with pytest.raises(IsthmusError, match=r"failed \(ValueError: ind\.cora\.x is another file .*: put the files"):
        Cora().load(0)
    assert not (tmp_path / "ran").exists()
    assert not [each for each in empty_root.rglob("*") if each.is_file()]


class Evil:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.real
def test_published_files_have_the_checksums_that_are_known():
    sums = Path(public.__file__).with_name("SHA256SUMS")
    subprocess.run(["sha256sum", "--check", "--quiet", sums], cwd=data_root(), check=True)
    known = {line.partition("  ")[2] for line in sums.read_text().splitlines()}
    pinned = [Cora(), CiteSeer(), PubMed(), CoauthorCs(), CoauthorPhysics(), AmazonComputers(), AmazonPhoto()]
    places = [each.raw_folder().relative_to(data_root()) / name for each in pinned for name in each.required_files()]
    assert known == {place.as_posix() for place in places}


def test_downloads_and_archives_are_bounded_and_stay_in_their_folder(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../up.txt", "up")
        file.writestr("/root.txt", "root")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "../../secret")
        file.writestr("zeros", bytes(100_000))
    unpack(tmp_path / "a.zip", folder)
    assert sorted(each.name for each in folder.iterdir()) == ["link", "root.txt", "up.txt", "zeros"]
    assert not (folder / "link").is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zip", "folder"]
    monkeypatch.setattr(public, "LARGEST", 50_000)
    with pytest.raises(ValueError, match=r"a\.zip unpacks to more than 50,000 bytes"):
        unpack(tmp_path / "a.zip", tmp_path / "folder")
    with pytest.raises(ValueError, match=r"zeros has more than 50,000 bytes"):
        public.download((folder / "zeros").as_uri(), tmp_path)


@pytest.mark.real
@pytest.mark.slow
def test_reading_is_silent_and_writes_nothing_beside_the_raw_files(tmp_path, monkeypatch):
    real("cora")
    place = tmp_path / "planetoid" / "Cora" / "raw"
    place.mkdir(parents=True)
    for each in Cora().raw_folder().iterdir():
        (place / each.name).write_bytes(each.read_bytes())
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path))
    code = "from isthmus.data.datasets.citations import Cora; Cora().load(0)"  # PyG itself is silent under pytest
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout + ran.stderr == ""
    assert [each.name for each in (tmp_path / "planetoid" / "Cora").iterdir()] == ["raw"]


def test_files_arrive_together_and_only_when_all_went_well(tmp_path):
    place = tmp_path / "set" / "raw"

    def half():
        with download_folder(place) as folder:
            (folder / "a").write_text("half")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        half()
    assert not place.exists()
    with download_folder(place) as folder:
        (folder / "in").mkdir()
        (folder / "in" / "a").write_text("whole")
    assert (place / "in" / "a").read_text() == "whole"
    with download_folder(place) as folder:
        (folder / "b").write_text("beside")
    assert sorted(each.name for each in place.iterdir()) == ["b", "in"]
    assert [each.name for each in place.parent.iterdir()] == ["raw"]


def test_an_archive_comes_without_the_folder_at_its_top(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.txt").write_text("a")
    archive = zipped(tmp_path / "toy", tmp_path / "toy.zip")
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("__MACOSX/a.txt", "")
    (tmp_path / "one").mkdir()
    unpack(archive, tmp_path / "one")
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["a.txt"]
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as file:
        file.writestr("a.txt", "")
        file.writestr("b.txt", "")
    (tmp_path / "two").mkdir()
    unpack(tmp_path / "flat.zip", tmp_path / "two")
    assert sorted(each.name for each in (tmp_path / "two").iterdir()) == ["a.txt", "b.txt"]


class Drawn(OneGraph):
    """A graph for its splits alone."""

    def graph(self):
        raise AssertionError("only its splits are asked for")


@given(
    labels=st.lists(st.integers(-1, 4), min_size=1, max_size=60),
    per_class=st.integers(1, 5),
    val=st.integers(0, 10),
    test=st.integers(0, 10),
    seed=st.integers(0, 5),
)
@settings(max_examples=50)
def test_drawn_splits_have_what_was_asked_for(labels, per_class, val, test, seed):
    y = torch.tensor(labels)
    data = Drawn(train_per_class=per_class, val=val, test=test)
    due = {label: min(per_class, labels.count(label)) for label in set(labels) - {-1}}
    left = len(labels) - labels.count(-1) - sum(due.values())
    if val + test > left:
        with pytest.raises(IsthmusError, match=rf"{left} of {len(labels)} nodes remain after the training nodes"):
            data.draw_split(y, numpy_generator(seed, "split"))
        return
    split = data.draw_split(y, numpy_generator(seed, "split"))
    train = y[split["train_mask"]].tolist()
    assert {label: train.count(label) for label in set(train)} == due
    assert [int(split[f"{each}_mask"].sum()) for each in ("val", "test")] == [val, test]
    assert int(torch.stack(list(split.values())).sum(0).max()) <= 1
    assert not (y[torch.stack(list(split.values())).any(0)] < 0).any()
    again = data.draw_split(y, numpy_generator(seed, "split"))
    assert all(torch.equal(again[each], mask) for each, mask in split.items())


def test_a_graph_becomes_a_pool_with_ids_and_masks():
    from torch_geometric.data import Data

    graph = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 4, -1]))
    graph.train_mask = torch.tensor([True, False, False])
    pool = node_pool(graph)
    assert (pool.classes, pool.party.ids.tolist(), pool.party.train.tolist()) == (5, [0, 1, 2], [True, False, False])


def test_the_largest_component_keeps_order_masks_and_weights():
    edges = torch.tensor([[5, 1, 3, 0, 6], [1, 3, 1, 2, 6]])
    graph = Data(x=torch.eye(20)[:7], edge_index=edges, y=torch.arange(7), edge_weight=torch.arange(5.0))
    graph.train_mask = torch.arange(7) > 2
    for x in (graph.x, graph.x.to_sparse_csr()):
        part = public.largest_component(Data(**{**graph.to_dict(), "x": x}))
        assert part.y.tolist() == [1, 3, 5]
        assert part.edge_index.tolist() == [[2, 0, 1], [0, 1, 0]]
        assert part.edge_weight.tolist() == [0, 1, 2]
        assert part.train_mask.tolist() == [False, True, True]
        assert part.x.to_dense().argmax(1).tolist() == [1, 3, 5]


@pytest.mark.real
def test_the_largest_component_of_cora_is_the_published_one():
    pool = real("cora", largest_component=True)
    assert (pool.party.nodes, pool.note) == (
        2485,
        "Of 2,708 nodes the 2,485 of the largest connected component are used.",
    )
    assert real("cora").note == ""
    drawn = real("cora", largest_component=True, split="random")
    assert [int(mask.sum()) for mask in masks(drawn).values()] == [140, 500, 1000]
