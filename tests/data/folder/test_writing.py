"""Written parties are loaded bit for bit, and an error leaves no files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from helpers import make_graph_parties, make_node_parties
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.writing import atomic_folder, write_parties, write_party
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.party import Border, Pairs, Party
from isthmus.errors import IsthmusError
from party_folders import assert_same_parties, collection_draft, graph_draft

# ---- what is exported and loaded is the same bit for bit


def reloaded(folder, parties, classes=3, seed=0):
    write_parties(folder, parties, classes)
    _, problems = check_folders(folder)
    severe = [str(each) for found in problems.values() for each in found if each.severe]
    assert not severe
    return PartyFolders(path=str(folder)).load(seed)


def values(shape, draw) -> np.ndarray:
    """Numbers of all sizes, with those that are easily lost: -0, the smallest and the largest."""
    found = draw.normal(size=shape).astype(np.float32)
    odd = np.array([-0.0, 0.0, 1e-45, 3.4028235e38, -3.4028235e38, 1.0], np.float32)
    return np.where(draw.random(shape) < 0.3, draw.choice(odd, shape), found)


def features(nodes, width, sparse, draw):
    x = torch.from_numpy(values((nodes, width), draw) * (draw.random((nodes, width)) < (0.3 if sparse else 1.0)))
    return x.to_sparse_csr() if sparse else x


def labels(items, tasks, draw):
    """Classes or labels of several tasks, some of them missing."""
    if not tasks:
        return torch.from_numpy(draw.integers(-1, 3, items))
    y = torch.from_numpy(draw.choice(np.array([0.0, 1.0, -2.5, np.nan], np.float32), (items, tasks)))
    y[0] = torch.arange(tasks)
    return y


def masks(y, draw):
    known = y >= 0 if y.dim() == 1 else ~y.isnan().all(1)
    turn = torch.from_numpy(draw.integers(0, 4, y.size(0)))
    return {split: known & (turn == at) for at, split in enumerate(("train", "val", "test"))}


@st.composite
def pools(draw, level):
    """Draw one graph, or a collection of graphs, to be cut."""
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = (
        draw(st.lists(st.integers(1, 4), min_size=1, max_size=12)) if level == "graph" else [draw(st.integers(1, 25))]
    )
    nodes, width = sum(sizes), draw(st.integers(0, 5))
    first = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    edges = draw(st.integers(0, 60))
    ends = source.integers(0, nodes, edges)  # self-loops, one way alone, and the same edge twice are among them
    other = first[ends] + source.integers(0, 10**6, edges) % np.repeat(sizes, sizes)[ends]
    graph = Data(
        x=features(nodes, width, draw(st.booleans()) and width > 0, source),
        edge_index=torch.from_numpy(np.stack([ends, other])),
        y=labels(
            nodes if level == "node" else len(sizes), draw(st.integers(0, 2)) and draw(st.integers(1, 12)), source
        ),
    )
    graph.num_nodes = nodes
    if draw(st.booleans()):
        graph.edge_weight = torch.from_numpy(values(edges, source))
    if level == "graph":
        graph.batch, graph.num_graphs = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), len(sizes)
        return Party("whole", graph, "graph", **masks(graph.y, source))
    pool = draw(st.sampled_from([nodes, 2**62]))
    ids = torch.from_numpy(source.choice(pool, nodes, replace=False) - draw(st.sampled_from([0, 5])))
    return Party("whole", graph, "node", ids=ids if draw(st.booleans()) else None, **masks(graph.y, source))


@st.composite
def parties_with(draw, level):
    """Draw parties that together hold all items of a pool, some items perhaps more than once."""
    whole = draw(pools(level))
    items = st.integers(0, whole.items - 1)
    members = draw(st.lists(st.lists(items, min_size=1, max_size=whole.items, unique=True), min_size=1, max_size=4))
    names = draw(st.permutations(["party-0", "party-1", "Bank Süd", "10", "9"]))[: len(members)]
    return cut_into_parties(whole, [torch.tensor(each) for each in members], names, coupled=draw(st.booleans()))


@settings(max_examples=25)
@given(parties_with("node"), st.integers(0, 3))
def test_parties_with_one_graph_come_back_bit_for_bit(tmp_path_factory, parties, seed):
    again = reloaded(tmp_path_factory.mktemp("export") / "out", parties, seed=seed)
    assert_same_parties(again.parties, parties)
    assert again.classes == (3 if parties[0].graph.y.dim() == 1 else parties[0].graph.y.size(1))


@settings(max_examples=25)
@given(parties_with("graph"), st.integers(0, 3))
def test_parties_with_many_graphs_come_back_bit_for_bit(tmp_path_factory, parties, seed):
    again = reloaded(tmp_path_factory.mktemp("export") / "out", parties, seed=seed)
    assert_same_parties(again.parties, parties)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_parties_built_by_hand_come_back_bit_for_bit(tmp_path, sparse, weighted):
    """Without ids or a border, and collections that are PyG batches; graphs without ids are numbered."""
    nodes = make_node_parties(sparse=sparse, weighted=weighted, untrained=(1,))
    piles = make_graph_parties(sparse=sparse, weighted=weighted, untrained=(1,))
    assert_same_parties(reloaded(tmp_path / "nodes", nodes).parties, nodes)
    for name, ids in (("piles", torch.arange), ("named", lambda count: 70 - torch.arange(count))):
        due = [replace(each, ids=ids(each.items)) for each in piles]
        given = piles if name == "piles" else due
        assert_same_parties(reloaded(tmp_path / name, given).parties, due)


def test_double_precision_comes_back_bit_for_bit(tmp_path, double_precision):
    parties = make_node_parties(weighted=True)
    assert parties[0].graph.x.dtype == torch.float64
    assert_same_parties(reloaded(tmp_path / "nodes", parties).parties, parties)


def test_owners_keep_their_order_even_without_an_edge(tmp_path):
    graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))
    border = Border(torch.tensor([1, 0]), torch.tensor([7, 9]), torch.tensor([2, 0]), ("z", "y", "a"))
    weighted = Border(border.inner, border.outer, border.owner, border.owners, torch.tensor([0.5, 2.0]))
    for at, each in enumerate((border, weighted)):
        party = Party.of_graph("p", graph, ids=torch.tensor([3, 5]), border=each)
        assert_same_parties(reloaded(tmp_path / f"out-{at}", [party]).parties, [party])


def test_single_real_label_is_a_task(tmp_path):
    graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0.5, float("nan")]))
    (again,) = reloaded(tmp_path / "out", [Party.of_graph("p", graph)]).parties
    torch.testing.assert_close(again.graph.y, torch.tensor([[0.5], [float("nan")]]), equal_nan=True)


def test_parties_keep_their_order(tmp_path):
    parties = make_node_parties((3,) * 12)
    write_parties(tmp_path / "unsorted", parties, 3)
    assert [each.name for each in sorted((tmp_path / "unsorted").iterdir())][:3] == [
        "00-party-0",
        "01-party-1",
        "02-party-2",
    ]
    write_parties(tmp_path / "sorted", parties[:10], 3)
    assert sorted(each.name for each in (tmp_path / "sorted").iterdir()) == [f"party-{at}" for at in range(10)]
    assert_same_parties(PartyFolders(path=str(tmp_path / "unsorted")).load(0).parties, parties)


def test_the_same_parties_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_parties(tmp_path / name, make_node_parties(), 3)
    files = [each.relative_to(tmp_path / "a") for each in (tmp_path / "a").rglob("*") if each.is_file()]
    assert len(files) == 12
    assert all((tmp_path / "a" / each).read_bytes() == (tmp_path / "b" / each).read_bytes() for each in files)


# ---- all of it or nothing


def tree(root):
    return sorted(str(each.relative_to(root)) for each in root.rglob("*"))


def half_written(folder, error, **options):
    with atomic_folder(folder, **options) as aside:
        (aside / "half").write_text("half")
        raise error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("bug"), IsthmusError("no"), OSError(28, "No space left on device")]
)
@pytest.mark.parametrize("place", ["out", "deep/er/out"])
def test_error_leaves_no_files(tmp_path, error, place):
    raised = IsthmusError if isinstance(error, OSError) else type(error)
    with pytest.raises(raised):
        half_written(tmp_path / place, error)
    assert tree(tmp_path) == []


def test_error_leaves_the_old_folder(tmp_path):
    folder = graph_draft().write(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        half_written(folder, KeyboardInterrupt(), force=True)
    assert tree(tmp_path) == before


def test_failed_rename_restores_the_old_folder(tmp_path, monkeypatch):
    from pathlib import Path

    folder = graph_draft().write(tmp_path / "out")
    before, rename = tree(tmp_path), Path.rename

    def fail(path, target):
        if path.name == "new":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with (
        pytest.raises(IsthmusError, match=r"cannot write .*out: Input/output error"),
        atomic_folder(folder, force=True),
    ):
        pass
    assert tree(tmp_path) == before


def test_existing_folder_is_replaced_only_with_force(tmp_path):
    parties = make_node_parties((3, 4))
    write_parties(tmp_path / "out", parties, 3)
    before = tree(tmp_path)
    with pytest.raises(IsthmusError, match=r"out exists: choose another folder, or .* force=True"):
        write_parties(tmp_path / "out", parties[:1], 3)
    assert tree(tmp_path) == before
    with pytest.raises(IsthmusError, match="out also holds the party folders party-1, which this would delete"):
        write_parties(tmp_path / "out", parties[:1], 3, force=True)
    assert tree(tmp_path) == before
    write_parties(tmp_path / "out", make_node_parties((3, 4, 5)), 3, force=True)
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_empty_folder_is_used(tmp_path):
    (tmp_path / "out").mkdir()
    write_parties(tmp_path / "out", make_node_parties((3,)), 3)
    assert tree(tmp_path) == [
        "out",
        "out/party-0",
        *(f"out/party-0/{name}" for name in ("edges.parquet", "nodes.parquet", FILE)),
    ]


@pytest.mark.parametrize("other", ["notes.txt", "party-0/accounts.csv", "papers/thesis.pdf"])
def test_other_folder_is_never_replaced(tmp_path, other):
    write_parties(tmp_path / "out", make_node_parties((3,)), 3)
    (tmp_path / "out" / other).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / other).write_text("precious")
    with pytest.raises(IsthmusError, match="holds other files than party folders"):
        write_parties(tmp_path / "out", make_node_parties((3,)), 3, force=True)
    assert (tmp_path / "out" / other).read_text() == "precious"


def test_a_single_party_folder_may_be_replaced(tmp_path):
    for draft in (graph_draft(), collection_draft()):
        folder = draft.write(tmp_path / draft.settings["name"])
        write_parties(folder, make_node_parties((3,)), 3, force=True)
        assert [each.name for each in folder.iterdir()] == ["party-0"]


@pytest.mark.parametrize("place", ["file", "file/below", "a\0b", "x" * 300])
def test_unwritable_path_is_a_one_line_error(tmp_path, place):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(IsthmusError, match=r"choose another") as caught:
        write_parties(tmp_path / place, make_node_parties((3,)), 3)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == ["file"]


def test_a_party_is_written_into_a_folder_of_its_own(tmp_path):
    (party,) = make_node_parties((3,))
    write_party(tmp_path / "x" / "y", party, 3)
    assert_same_parties(PartyFolders(path=str(tmp_path / "x" / "y")).load(0).parties, [party])


def test_pairs_are_refused(tmp_path):
    graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([1]))
    nobody = torch.tensor([], dtype=torch.long)
    pairs = Pairs(torch.tensor([0]), torch.tensor([1]), torch.tensor([-1]), (), nobody, nobody)
    masks = dict.fromkeys(("train", "val", "test"), torch.tensor([False]))
    party = Party("p", graph, "pair", ids=torch.tensor([0, 1]), pairs=pairs, **masks)
    with pytest.raises(IsthmusError, match="party 'p' holds pairs"):
        write_parties(tmp_path / "out", [party], 2)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("columns", [[], [0, 2], [0, 1, 2, 3, 4]])
def test_structural_columns_come_back(tmp_path, sparse, columns):
    parties = make_graph_parties(sparse=sparse)
    known = torch.tensor(columns[: parties[0].features], dtype=torch.long)
    written = [replace(party, structural=known) for party in parties]
    assert all(torch.equal(party.structural, known) for party in reloaded(tmp_path / "out", written).parties)
