import numpy as np
import pytest
import torch
from published import sparse_parts, write_npz, zipped

from isthmus.data import rows
from isthmus.data.datasets.attributed import Acm, BlogCatalog, Wiki
from isthmus.errors import IsthmusError

WORDS = np.array([[0, 3, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 2, 2], [0, 1, 0, 0], [1, 1, 1, 1]])
LINKS = [(0, 1), (1, 0), (4, 2), (3, 3), (5, 0), (2, 4), (5, 0)]
LABELS = [0, 1, 2, 0, 1, 2]
SMALL = {"train_per_class": 1, "val": 1, "test": 2}


def write_amgcn(folder, kind, labels=LABELS):
    """The archive of one network as it comes with AM-GCN."""
    texts = folder / kind.title
    texts.mkdir()
    np.savetxt(texts / f"{kind.title}.feature", WORDS, fmt="%.1f")
    np.savetxt(texts / f"{kind.title}.label", labels, fmt="%d")
    (texts / f"{kind.title}{kind.edges}").write_text("".join(f"{a}\t{b}\n" for a, b in LINKS))
    (texts / "train20.txt").write_text("0\n")
    return zipped(texts, folder / f"{kind.title}.zip")


def check(pool, words):
    graph = pool.party.graph
    assert torch.equal(rows.to_dense(graph.x), torch.from_numpy(words).float())
    assert graph.edge_index.tolist() == [[0, 0, 1, 2, 4, 5], [1, 5, 0, 4, 2, 0]]
    assert graph.y.tolist() == LABELS
    assert pool.classes == 3


@pytest.mark.parametrize("kind", [Acm, BlogCatalog], ids=lambda each: each.name)
def test_the_texts_of_am_gcn_become_an_npz_file_once(empty_root, tmp_path, monkeypatch, kind):
    archive = write_amgcn(tmp_path, kind)
    monkeypatch.setattr("isthmus.data.datasets.attributed.AMGCN", tmp_path.as_uri())
    check(kind(**SMALL).load(0), WORDS > 0)
    archive.unlink()
    check(kind(**SMALL).load(0), WORDS > 0)
    (file,) = (empty_root / "npz").iterdir()
    assert file.name == f"{kind.name}.npz"
    with np.load(file) as arrays:
        assert sorted(arrays) == ["data", "edge_index", "indices", "indptr", "shape", "y"]
        assert arrays["edge_index"].tolist() == [[0, 0, 2], [1, 5, 4]]


def test_an_archive_put_beside_serves_without_network(empty_root):
    (empty_root / "npz").mkdir(parents=True)
    write_amgcn(empty_root / "npz", Acm)
    check(Acm(**SMALL).load(0), WORDS > 0)


@pytest.mark.parametrize("labels", [[0, 1, 2], ["a"] * 6], ids=["too few", "no numbers"])
def test_a_broken_archive_leaves_no_npz_file(empty_root, labels):
    (empty_root / "npz").mkdir(parents=True)
    texts = empty_root / "npz" / "acm"
    archive = write_amgcn(empty_root / "npz", Acm, [0] * 6)
    np.savetxt(texts / "acm.label", labels, fmt="%s")
    zipped(texts, archive)
    with pytest.raises(
        IsthmusError, match=r"^data set 'acm': no acm\.npz in .*npz and the download failed \(ValueError"
    ):
        Acm(**SMALL).load(0)
    assert not (empty_root / "npz" / "acm.npz").exists()


def arrays(**changed):
    pairs = np.array([[0, 2, 0], [1, 4, 5]], dtype=np.uint16)
    return {"edge_index": pairs, "y": np.array(LABELS), **sparse_parts("", WORDS / 2), **changed}


def test_an_npz_file_of_the_layout_is_read(empty_root):
    write_npz(empty_root / "npz" / "wiki.npz", arrays())
    check(Wiki(**SMALL).load(0), WORDS / 2)  # its weights stay as they are
    write_npz(empty_root / "npz" / "acm.npz", arrays())
    check(Acm(**SMALL).load(0), WORDS > 0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"edge_index": np.zeros((3, 2), dtype=int)}, r"edge_index has shape \[3, 2\]"),
        ({"edge_index": np.array([[0], [6]])}, r"an edge names a node outside 0 \.\. 5"),
        ({"y": np.zeros(5, dtype=int)}, r"labels are int64 of shape \[5\]"),
        ({"indptr": np.arange(3)}, "ValueError"),
    ],
)
def test_a_wrong_npz_file_is_one_line(empty_root, changed, why):
    write_npz(empty_root / "npz" / "wiki.npz", arrays(**changed))
    with pytest.raises(IsthmusError, match=rf"^data set 'wiki': cannot read the files in .*npz \(.*{why}"):
        Wiki(**SMALL).load(0)


def test_wiki_says_what_it_is_made_from(empty_root):
    write_npz(empty_root / "npz" / "acm.npz", arrays())
    with pytest.raises(IsthmusError) as error:
        Wiki().load(0)
    text = str(error.value)
    assert text.startswith(
        f"data set 'wiki': no wiki.npz in {empty_root / 'npz'}: build it as docs/data.md describes, from the"
    )
    assert "\n" not in text
