"""Papers, authors, institutions and fields in the format of OGB's tables."""

import gzip

import pytest
from published import masks

from isthmus.data.datasets.mag import OgbnMag
from isthmus.errors import IsthmusError

TABLES = {
    "raw/num-node-dict": "author,field_of_study,institution,paper\n2,2,1,3",
    "raw/triplet-type-list": "\n".join(
        [
            "author,affiliated_with,institution",
            "author,writes,paper",
            "paper,cites,paper",
            "paper,has_topic,field_of_study",
        ]
    ),
    "raw/node-feat/paper/node-feat": "0.5,1\n1.5,2\n2.5,3",
    "raw/node-label/paper/node-label": "2\n0\n1",
    "raw/relations/author___affiliated_with___institution/edge": "0,0",
    "raw/relations/author___writes___paper/edge": "0,0\n1,0\n1,2",
    "raw/relations/paper___cites___paper/edge": "0,1\n1,0\n1,2",
    "raw/relations/paper___has_topic___field_of_study/edge": "0,1\n2,0",
    "split/time/paper/train": "0",
    "split/time/paper/valid": "1",
    "split/time/paper/test": "2",
}


def write(folder, **other):
    for name, text in {**TABLES, **other}.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text + "\n")


def test_papers_are_read_with_their_relations_both_ways(empty_root):
    write(OgbnMag().raw_folder())
    pool = OgbnMag().load(0)
    typed = pool.party.typed()
    counts = [typed[name].num_nodes for name in ("author", "field_of_study", "institution", "paper")]
    assert counts == [2, 2, 1, 3]
    assert {(*kind,): typed[kind].edge_index.tolist() for kind in typed.edge_types} == {
        ("author", "affiliated_with", "institution"): [[0], [0]],
        ("author", "writes", "paper"): [[0, 1, 1], [0, 0, 2]],
        ("field_of_study", "reverse has_topic", "paper"): [[1, 0], [0, 2]],
        ("institution", "reverse affiliated_with", "author"): [[0], [0]],
        ("paper", "cites", "paper"): [[0, 1, 1, 2], [1, 0, 2, 1]],
        ("paper", "has_topic", "field_of_study"): [[0, 2], [1, 0]],
        ("paper", "reverse writes", "author"): [[0, 0, 2], [0, 1, 1]],
    }
    assert typed["paper"].x.tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert typed["paper"].y.tolist() == [2, 0, 1]
    assert {split: int(mask.nonzero()) for split, mask in masks(pool).items()} == {"train": 5, "val": 6, "test": 7}
    assert pool.classes == 3


def test_relations_may_keep_their_direction(empty_root):
    write(OgbnMag().raw_folder())
    typed = OgbnMag(reverse=False).load(0).party.typed()
    assert len(typed.edge_types) == 4
    assert typed["paper", "cites", "paper"].edge_index.tolist() == [[0, 1, 1], [1, 0, 2]]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("raw/node-feat/paper/node-feat", "0.5,1", "node-feat.csv.gz has 1 papers, num-node-dict.csv.gz 3"),
        ("raw/relations/author___writes___paper/edge", "0,7", "an edge names a paper outside 0 .. 2"),
        ("split/time/paper/test", "9", "outside 0 .. 2"),
    ],
)
def test_broken_tables_are_one_line(empty_root, name, text, why):
    write(OgbnMag().raw_folder(), **{name: text})
    with pytest.raises(IsthmusError, match=why) as error:
        OgbnMag().load(0)
    assert "\n" not in str(error.value)
