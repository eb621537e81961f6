import json

import numpy as np
import pytest
import torch
from published import ARXIV, masks, same_graph, write_arxiv, write_flickr, write_reddit, zipped

from isthmus.data.datasets.large import Flickr, OgbnArxiv, Reddit, sort_edges
from isthmus.errors import IsthmusError

WRITE = {Flickr: write_flickr, Reddit: write_reddit, OgbnArxiv: write_arxiv}
SMALL = {"train_per_class": 1, "val": 1, "test": 2}


@pytest.mark.parametrize(("kind", "reader"), [(Flickr, "Flickr"), (Reddit, "Reddit")], ids=["flickr", "reddit"])
def test_graph_and_split_are_those_that_pyg_reads(empty_root, kind, reader):
    from torch_geometric import datasets

    WRITE[kind](kind().raw_folder())
    pool = kind().load(0)
    due = getattr(datasets, reader)(str(empty_root / kind.folder.removesuffix("/raw")))[0]
    same_graph(pool.party.graph, due)
    for split, mask in masks(pool).items():
        assert torch.equal(mask, due[f"{split}_mask"])
        assert mask.any()


def test_arxiv_is_read_from_the_published_tables(empty_root):
    write_arxiv(OgbnArxiv().raw_folder())
    pool = OgbnArxiv().load(0)
    graph = pool.party.graph
    assert graph.x.tolist() == torch.tensor(ARXIV["raw/node-feat"]).tolist()
    assert graph.edge_index.tolist() == [[0, 0, 1, 1, 2, 3, 3, 4, 5, 5], [1, 5, 0, 2, 1, 4, 5, 3, 0, 3]]
    assert graph.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert {split: mask.nonzero().flatten().tolist() for split, mask in masks(pool).items()} == {
        "train": [0, 3],
        "val": [1],
        "test": [2, 5],
    }
    directed = OgbnArxiv(undirected=False).load(0).party.graph.edge_index
    assert directed.t().tolist() == [list(pair) for pair in ARXIV["raw/edge"]]


@pytest.mark.parametrize("kind", WRITE, ids=lambda each: each.name)
def test_a_random_split_is_drawn_by_seed_instead(empty_root, kind):
    WRITE[kind](kind().raw_folder())
    published, first = kind().load(0), kind(split="random", **SMALL).load(0)
    counts = [int(mask.sum()) for mask in masks(first).values()]
    assert counts == [first.classes, 1, 2]
    assert torch.equal(kind().load(1).party.test, published.party.test)
    assert any(
        not torch.equal(masks(kind(split="random", **SMALL).load(seed))["test"], first.party.test) for seed in (1, 2, 3)
    )


def test_arxiv_is_downloaded_as_an_archive(empty_root, tmp_path, monkeypatch):
    (tmp_path / "arxiv").mkdir()
    write_arxiv(tmp_path / "arxiv")
    monkeypatch.setattr(OgbnArxiv, "url", zipped(tmp_path / "arxiv", tmp_path / "arxiv.zip").as_uri())
    assert OgbnArxiv().load(0).party.nodes == 6
    kept = [each.relative_to(empty_root / "ogb" / "arxiv").as_posix() for each in empty_root.rglob("*.gz")]
    assert sorted(kept) == sorted(f"{name}.csv.gz" for name in ARXIV)
    assert not list(empty_root.rglob("*.zip"))


BROKEN = {
    "edges too few": ({"raw/num-edge-list": [(7,)]}, "6 edges, but num-edge-list.csv.gz says 7"),
    "nodes too many": ({"raw/num-node-list": [(5,)]}, "6 nodes, but num-node-list.csv.gz says 5"),
    "an edge to nowhere": ({"raw/edge": [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]}, "outside 0 .. 5"),
    "labels too few": ({"raw/node-label": [(0,)]}, r"labels are int64 of shape \[1\]"),
    "a split of nobody": ({"split/time/valid": [(6,)]}, r"the split 'val' names a node outside 0 \.\. 5"),
    "words": ({"raw/node-feat": [("a", "b")]}, "node-feat.csv.gz: "),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_broken_tables_are_one_line(empty_root, wrong):
    changed, why = BROKEN[wrong]
    write_arxiv(OgbnArxiv().raw_folder(), **changed)
    with pytest.raises(IsthmusError, match=rf"^data set 'ogbn-arxiv': cannot read the files in .*{why}") as error:
        OgbnArxiv().load(0)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_is_named(empty_root):
    write_arxiv(OgbnArxiv().raw_folder())
    (OgbnArxiv().raw_folder() / "split" / "time" / "test.csv.gz").unlink()
    with pytest.raises(
        IsthmusError, match=r"data set 'ogbn-arxiv': no split/time/test\.csv\.gz in .*ogb/arxiv and the"
    ):
        OgbnArxiv().load(0)


def test_broken_photos_and_posts_are_one_line(empty_root):
    write_flickr(Flickr().raw_folder())
    (Flickr().raw_folder() / "role.json").write_text(json.dumps({"tr": [99], "va": [], "te": []}))
    with pytest.raises(IsthmusError, match=r"^data set 'flickr': cannot read .*the split 'train' names a node outside"):
        Flickr().load(0)
    (Flickr().raw_folder() / "role.json").write_text("{")
    with pytest.raises(IsthmusError, match=r"^data set 'flickr': cannot read .*JSONDecodeError"):
        Flickr().load(0)
    write_reddit(Reddit().raw_folder())
    path = Reddit().raw_folder() / "reddit_graph.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(IsthmusError, match=r"^data set 'reddit': cannot read the files in .*https://data\.dgl\.ai"):
        Reddit().load(0)


def test_a_photo_without_a_subject_is_in_no_drawn_split(empty_root):
    write_flickr(Flickr().raw_folder())
    (Flickr().raw_folder() / "class_map.json").write_text(json.dumps({str(node): node % 3 for node in range(8)}))
    pool = Flickr(split="random", **SMALL).load(0)
    assert pool.party.graph.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, -1, -1, -1, -1]
    assert not torch.stack(list(masks(pool).values())).any(0)[8:].any()


def test_edges_that_are_sorted_already_are_not_touched():
    ready = torch.tensor([[0, 0, 1], [1, 2, 0]])
    assert sort_edges(ready, 3) is ready
    pairs = torch.from_numpy(np.random.default_rng(0).integers(5, size=(2, 60)))
    found = [tuple(pair) for pair in sort_edges(pairs, 5).t().tolist()]
    assert found == sorted({tuple(pair) for pair in pairs.t().tolist()})
