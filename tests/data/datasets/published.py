"""Small files in the formats in which data sets are published, and the real ones where they are here."""

import gzip
import json
import zipfile

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from isthmus.data import rows
from isthmus.data.pool import DataSet


def real(name, seed=0, **options):
    """A public data set, or a skipped test where its files are not here: tests download nothing."""
    data = DataSet.named(name)(**options)
    needed = [data.raw_folder() / each for each in data.required_files()] or [data.raw_folder()]
    if not all(each.exists() for each in needed):
        pytest.skip(f"no raw files of {name}: point ISTHMUS_DATA at a folder that holds them")
    return data.load(seed)


def masks(pool):
    return {split: getattr(pool.party, split) for split in ("train", "val", "test")}


def same_graph(graph, other):
    """Features (sparse or not), edges in their order and labels are the same bit for bit."""
    assert torch.equal(rows.to_dense(graph.x), rows.to_dense(other.x))
    assert torch.equal(graph.edge_index, other.edge_index)
    assert torch.equal(graph.y, other.y)


def sparse_parts(prefix, matrix):
    matrix = csr_matrix(matrix)
    parts = {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}
    return {f"{prefix}{part}": value for part, value in {**parts, "shape": np.array(matrix.shape)}.items()}


def pitfalls(nodes=60, words=40, seed=0):
    """The arrays of a network as Shchur et al. published them: counts of words, edges mostly in one direction."""
    source = np.random.default_rng(seed)
    counts = source.integers(1, 4, size=(nodes, words)) * (source.random((nodes, words)) < 0.05)
    links = source.random((nodes, nodes)) < 0.05
    links[0, 0] = True
    return {
        **sparse_parts("attr_", counts.astype(np.float32)),
        **sparse_parts("adj_", links.astype(np.float32)),
        "labels": np.arange(nodes) % 3,
        "class_names": np.array(["a", "b", "c"], dtype=object),
    }


def write_npz(path, arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def write_text(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, line)) + "\n" for line in table)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write(text)


def zipped(folder, archive):
    """A zip archive of a folder, which is the one thing at its top."""
    with zipfile.ZipFile(archive, "w") as file:
        for each in sorted(folder.rglob("*")):
            file.write(each, f"{folder.name}/{each.relative_to(folder)}")
    return archive


def write_flickr(raw, nodes=12):
    source = np.random.default_rng(0)
    links = np.triu(source.random((nodes, nodes)) < 0.3, 1)
    write_npz(raw / "adj_full.npz", sparse_parts("", links | links.T))
    np.save(raw / "feats.npy", source.normal(size=(nodes, 5)))
    (raw / "class_map.json").write_text(json.dumps({str(node): node % 3 for node in reversed(range(nodes))}))
    (raw / "role.json").write_text(json.dumps({"tr": [4, 0, 1], "va": [2, 3], "te": [5, 6, 7, 8, 9, 10, 11]}))


def write_reddit(raw, nodes=12):
    source = np.random.default_rng(0)
    row, col = source.integers(nodes, size=(2, 40))
    feature = source.normal(size=(nodes, 5)).astype(np.float32)
    types = np.array([1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3])
    write_npz(raw / "reddit_data.npz", {"feature": feature, "label": np.arange(nodes) % 4, "node_types": types})
    entries = {"row": row.astype(np.int32), "col": col.astype(np.int32), "data": np.ones(40, dtype=np.float32)}
    write_npz(raw / "reddit_graph.npz", {**entries, "shape": np.array([nodes, nodes]), "format": np.array(b"coo")})


ARXIV = {
    "raw/edge": [(0, 1), (2, 1), (1, 0), (3, 4), (5, 0), (5, 3)],
    "raw/node-feat": [(0.5, -1.25), (0.1, 2.0), (3.0, 4.0), (0.0, 0.0), (-7.5, 1e-05), (1.0, 1.0)],
    "raw/node-label": [(0,), (1,), (2,), (0,), (1,), (2,)],
    "raw/num-node-list": [(6,)],
    "raw/num-edge-list": [(6,)],
    "split/time/train": [(3,), (0,)],
    "split/time/valid": [(1,)],
    "split/time/test": [(5,), (2,)],
}


def write_arxiv(root, **changed):
    for name, table in {**ARXIV, **changed}.items():
        write_text(root / f"{name}.csv.gz", table)


def write_tu(raw, title="TOY", *, labels=True, attributes=True):
    """Three graphs: a triangle, an edge with a lonely node, and a star; one edge is repeated, one is a loop."""
    pairs = [(1, 2), (2, 3), (1, 3), (4, 5), (7, 8), (7, 9), (7, 10)]
    pairs = [*pairs, *[(b, a) for a, b in reversed(pairs)], (1, 2), (6, 6)]
    write_text(raw / f"{title}_A.txt", pairs)
    write_text(raw / f"{title}_graph_indicator.txt", [(1,)] * 3 + [(2,)] * 3 + [(3,)] * 4)
    write_text(raw / f"{title}_graph_labels.txt", [(5,), (-1,), (5,)])
    if attributes:
        write_text(raw / f"{title}_node_attributes.txt", [(f" {at / 3}", f"  {-at}") for at in range(10)])
    if labels:
        write_text(raw / f"{title}_node_labels.txt", [(2 + at % 3, at % 2) for at in range(10)])
