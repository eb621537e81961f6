import numpy as np
import pytest
import torch
from published import masks, pitfalls, real, same_graph, sparse_parts, write_npz

from isthmus.data import rows
from isthmus.data.datasets.bags import (
    AmazonPhoto,
    CoauthorCs,
    Dblp,
    directed_edges,
    node_labels,
    read_matrix,
    undirected_edges,
    word_features,
)
from isthmus.errors import IsthmusError

SMALL = {"train_per_class": 3, "val": 5, "test": 10}


def write(kind, **changed):
    arrays = {**pitfalls(), **changed}
    write_npz(
        kind().raw_folder() / kind().required_files()[0],
        {name: array for name, array in arrays.items() if array is not None},
    )


@pytest.mark.parametrize(
    ("kind", "reader"),
    [(CoauthorCs, "Coauthor"), (AmazonPhoto, "Amazon"), (Dblp, "CitationFull")],
    ids=lambda x: str(x),
)
def test_the_graph_is_the_one_that_pyg_reads(empty_root, kind, reader):
    from torch_geometric import datasets

    write(kind)
    found = kind(**SMALL).load(0).party.graph
    due = getattr(datasets, reader)(str(empty_root / kind.folder), kind.title)[0]
    same_graph(found, due)
    assert rows.is_sparse(found.x)
    assert due.edge_index.size(1) > 100


@pytest.mark.real
@pytest.mark.parametrize(("kind", "reader"), [(Dblp, "CitationFull"), (AmazonPhoto, "Amazon")], ids=lambda x: str(x))
def test_real_graphs_are_those_that_pyg_reads(tmp_path, kind, reader):
    from torch_geometric import datasets

    found = real(kind.name).party.graph
    raw = tmp_path / kind.title / "raw"
    raw.parent.mkdir()
    raw.symlink_to(kind().raw_folder(), target_is_directory=True)
    same_graph(found, getattr(datasets, reader)(str(tmp_path), kind.title)[0])


def test_splits_are_drawn_by_seed(empty_root):
    write(CoauthorCs)
    party = CoauthorCs(**SMALL).load(0).party
    assert torch.bincount(party.graph.y[party.train]).tolist() == [3, 3, 3]
    assert [int(mask.sum()) for mask in (party.val, party.test)] == [5, 10]
    assert torch.equal(CoauthorCs(**SMALL).load(0).party.test, party.test)
    assert not torch.equal(CoauthorCs(**SMALL).load(1).party.test, party.test)
    with pytest.raises(IsthmusError, match="data set 'coauthor-cs': 0 of 60 nodes remain after the training nodes"):
        CoauthorCs().load(0)


def test_features_are_divided_by_their_sum_on_demand(empty_root):
    write(CoauthorCs)
    plain, normal = (rows.to_dense(CoauthorCs(normalize=on, **SMALL).load(0).party.graph.x) for on in (False, True))
    assert set(plain.unique().tolist()) == {0.0, 1.0}
    empty = plain.sum(1) == 0
    assert empty.any()
    torch.testing.assert_close(normal.sum(1), (~empty).float())
    assert torch.equal(normal > 0, plain > 0)


def test_many_words_are_dense_few_are_sparse_and_the_same():
    words = read_matrix(sparse_parts("", np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])), "")
    assert not rows.is_sparse(word_features(words))
    wide = read_matrix(sparse_parts("", np.eye(30)[:4]), "")
    assert rows.is_sparse(word_features(wide))
    assert torch.equal(rows.to_dense(word_features(wide)), torch.eye(30)[:4])


def test_edges_are_checked_and_made_to_go_both_ways():
    found = undirected_edges(np.array([0, 2, 2, 1], dtype=np.uint16), np.array([1, 2, 0, 0], dtype=np.uint16), nodes=3)
    assert found.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert directed_edges(np.array([2]), np.array([2]), nodes=3).tolist() == [[2], [2]]
    for source in (3, -1):
        with pytest.raises(ValueError, match=r"an edge names a node outside 0 \.\. 2"):
            directed_edges(np.array([source]), np.array([0]), nodes=3)


def test_labels_are_a_whole_number_for_each_node():
    assert node_labels(np.array([1, 0], dtype=np.int16), 2).tolist() == [1, 0]
    for wrong in (np.array([0.5, 1.0]), np.array([1]), np.array([[1], [2]])):
        with pytest.raises(ValueError, match="not a whole number for each of 2 nodes"):
            node_labels(wrong, 2)


BROKEN = {
    "missing key": ({"adj_indptr": None}, "adj_indptr is not a file in the archive"),
    "index too large": ({"attr_indices": np.array([99])}, "ValueError"),
    "rows too few": ({"attr_indptr": np.array([0, 1])}, "ValueError"),
    "no number": ({"attr_data": np.array(["a"])}, "ValueError"),
    "infinite": ({"attr_data": np.full(pitfalls()["attr_data"].shape, np.inf)}, "attr_data has NaN or infinite values"),
    "shape of one": ({"attr_shape": np.array([60])}, "Error"),
    "other nodes": (sparse_parts("adj_", np.ones((90, 90))), r"an edge names a node outside 0 \.\. 59"),
    "labels too few": ({"labels": np.zeros(5, dtype=np.int64)}, r"labels are int64 of shape \[5\]"),
    "objects": ({"labels": np.array([None] * 60)}, "allow_pickle"),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_broken_arrays_are_one_line_that_names_the_folder(empty_root, wrong):
    changed, why = BROKEN[wrong]
    write(CoauthorCs, **changed)
    place = empty_root / "coauthor" / "CS" / "raw"
    with pytest.raises(
        IsthmusError, match=rf"^data set 'coauthor-cs': cannot read the files in {place} \(.*{why}"
    ) as error:
        CoauthorCs(**SMALL).load(0)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("replace them with those from " + CoauthorCs.url)


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_truncated_files_are_one_line(empty_root, kept):
    write(CoauthorCs)
    path = CoauthorCs().raw_folder() / "ms_academic_cs.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(IsthmusError, match="cannot read the files in"):
        CoauthorCs(**SMALL).load(0)


def test_masks_hold_no_node_twice(empty_root):
    write(Dblp)
    assert int(torch.stack(list(masks(Dblp(**SMALL).load(0)).values())).sum(0).max()) == 1
