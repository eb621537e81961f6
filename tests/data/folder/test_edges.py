"""A folder that is too large for memory gives the same party, problems and results as one that is in memory."""

import copy
import os

import pytest
import torch

from isthmus.data.cache import cache_root
from isthmus.data.cohort import Cohort
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder import edges, encoding, reading, table
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.table import EDGES, NODES
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.run import run_study
from party_folders import assert_same_parties, graph_draft, lines, load_folders, report, same, two_drafts

KEY = b"k" * 32
DENSE = ("age", "kind", "near")


@pytest.fixture(autouse=True)
def small_blocks(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "ROWS", 3)
    monkeypatch.setattr(edges, "ROWS", 2)


@pytest.fixture
def map_all(monkeypatch):
    """Call it to make every folder too large for memory."""
    return lambda: monkeypatch.setattr(table, "LARGE", 1)


def only(draft, columns):
    """The draft with these feature columns only."""
    kept = copy.deepcopy(draft)
    for name in [name for name in kept.settings["columns"] if name not in columns]:
        del kept.settings["columns"][name]
        for column in [each for each in kept.tables[NODES] if each.partition(".")[0] == name]:
            del kept.tables[NODES][column]
    return kept


@pytest.mark.parametrize("columns", [("age",), ("near",), ("kind", "age"), ("words",), DENSE, (*DENSE, "words")])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.thinned(3)
def test_mapped_parties_are_those_in_memory(tmp_path, map_all, columns, directed, key):
    for draft in two_drafts():
        only(draft, columns).with_settings(directed=directed).write(tmp_path / "all" / draft.settings["name"])

    def load():
        pool = load_folders(tmp_path / "all", key)
        return pool.parties, pool.note

    due, note = load()
    assert not (tmp_path / "cache").exists()
    map_all()
    for _ in range(2):  # the second time from the cache
        found, same_note = load()
        assert same_note == note
        assert_same_parties(found, due)
    assert len(list((cache_root() / "mapped").iterdir())) == 6


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("weights", [None, [None] * 10, [None] * 8 + [2.0, 3.0], [float(at) for at in range(10)]])
def test_ids_and_weights_are_those_in_memory(tmp_path, map_all, texts, weights):
    draft = graph_draft(ids=(lambda at: f"n{at}") if texts else int)
    draft = draft.without("weight", EDGES) if weights is None else draft.put("weight", weights, EDGES)
    draft.write(tmp_path / "north")
    due = PartyFolders(path=str(tmp_path)).load(0).parties
    map_all()
    assert_same_parties(PartyFolders(path=str(tmp_path)).load(0).parties, due)


WRONG = {
    "ends that no node has": ("source", [0, 99, 2, 3, 4, 98, 6, 7, 100, 3], EDGES),
    "missing ends": ("target", [1, None, 3, 4, 5, 6, None, 0, 1, 102], EDGES),
    "unknown owners": ("owner", [None, "nobody"] * 4 + ["south", "nobody"], EDGES),
    "infinite weights": ("weight", [1.0, float("inf")] * 5, EDGES),
    "texts for weights": ("weight", ["a"] * 10, EDGES),
    "texts for ids": ("source", ["a"] * 10, EDGES),
    "repeated edges": ("target", [1, 2, 3, 4, 5, 6, 7, 6, 1, 102], EDGES),
    "vectors of another width": ("near", [[1.0, 2.0]] * 6 + [[1.0]] * 2, NODES),
    "missing numbers": ("age", [1.0, None] * 4, NODES),
    "positions outside": ("words.at", [[0, 1], [9], [0, 1], [0], [0, 1], [0], [0, 1], [9]], NODES),
    "repeated ids": ("id", [0, 1, 2, 3, 4, 5, 6, 6], NODES),
    "undeclared labels": ("label", ["low", "high"] * 3 + ["odd", None], NODES),
}


@pytest.mark.parametrize("what", WRONG)
def test_problems_are_those_in_memory(tmp_path, map_all, what):
    column, values, file = WRONG[what]
    draft = graph_draft().put(column, values, file)
    due = report(draft, tmp_path / "north")
    assert due
    map_all()
    for _ in range(2):
        assert report(draft, tmp_path / "north") == due
    severe = any(not line.startswith("note") for line in due)
    if severe:
        assert not list((cache_root() / "mapped").glob("edges*"))


def test_missing_columns_are_reported_together(tmp_path, map_all):
    draft = graph_draft().without("target", EDGES).without("near").put("odd", [1.0] * 10, EDGES)
    due = report(draft, tmp_path / "north")
    map_all()
    assert report(draft, tmp_path / "north") == due


@pytest.mark.parametrize("file", [NODES, EDGES])
def test_a_damaged_file_is_a_problem(tmp_path, map_all, monkeypatch, file):
    folder = graph_draft().write(tmp_path / "north")
    map_all()

    def damaged(path, columns, rows):
        if path.name == file:
            raise table.unreadable(path, OSError(5, "Input/output error"))
        return whole(path, columns, rows)

    whole = table._read_blocks
    monkeypatch.setattr(table, "_read_blocks", damaged)
    (found,) = check_folders(folder)[1].values()
    assert lines(found) == [f"{file}: cannot read the file: Input/output error"]


def test_a_changed_folder_is_read_again(tmp_path, map_all):
    draft = graph_draft()
    folder = draft.write(tmp_path / "north")
    map_all()
    before = PartyFolders(path=str(folder)).load(0).parties[0]
    other = draft.put("target", [2, 3, 4, 5, 6, 7, 0, 1, 1, 102], EDGES).put("age", [9.0, 1.0] * 4)
    other.write(folder)
    for file in (NODES, EDGES):
        os.utime(folder / file, ns=(1, 1))  # a clock that is too coarse to tell the files apart
    after = PartyFolders(path=str(folder)).load(0).parties[0]
    assert before.graph.edge_index[1, 0] == 1
    assert after.graph.edge_index[1, 0] == 2
    assert not torch.equal(to_dense(before.graph.x), to_dense(after.graph.x))


@pytest.mark.parametrize("module", [reading, encoding])
def test_a_folder_that_changes_while_it_is_read_is_an_error(tmp_path, map_all, monkeypatch, module):
    folder = graph_draft().write(tmp_path / "north")
    map_all()
    whole, calls = reading.hash_files, []

    def changing(*where):
        calls.append(where)
        return f"{whole(*where)}{len(calls)}"

    monkeypatch.setattr(module, "hash_files", changing)
    with pytest.raises(IsthmusError, match=r"changed .*: start again"):
        PartyFolders(path=str(folder)).load(0)


def test_a_renamed_folder_is_not_read_again(tmp_path, map_all):
    folder = graph_draft().write(tmp_path / "north")
    map_all()
    PartyFolders(path=str(folder)).load(0)
    entries = sorted((cache_root() / "mapped").iterdir())
    folder.rename(tmp_path / "elsewhere")
    PartyFolders(path=str(tmp_path / "elsewhere")).load(0)
    assert sorted((cache_root() / "mapped").iterdir()) == entries


def test_a_cohort_of_one_uses_the_mapped_tensors_as_they_are(tmp_path, map_all):
    only(graph_draft(), DENSE).write(tmp_path / "north")
    map_all()
    (party,) = PartyFolders(path=str(tmp_path)).load(0).parties
    block = Cohort((party,)).block
    assert block.x.data_ptr() == party.graph.x.data_ptr()
    assert block.edge_index.data_ptr() == party.graph.edge_index.data_ptr()


def test_mapped_parties_train_to_the_same_bits(tmp_path, map_all):
    for draft in two_drafts():
        draft.write(tmp_path / "all" / draft.settings["name"])
    study = {
        "data": {"name": "folder", "path": str(tmp_path / "all")},
        "methods": [{"name": "fedavg", "rounds": 2}],
        "model": {"encoder": "gcn", "hidden": 4},
    }
    due = run_study(Study.of(study)).runs[0]
    map_all()
    found = run_study(Study.of(study)).runs[0]
    assert found.history == due.history
    same(found.models, due.models)
