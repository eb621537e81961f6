import pytest
import torch

from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.ids import KeyedHash, write_key
from isthmus.data.partition import Partition
from isthmus.data.partition.given import Given
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from party_folders import assert_same_parties, graph_draft, two_drafts


@pytest.fixture
def folder(tmp_path):
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    return tmp_path / "parties"


def test_it_is_a_data_set_by_name():
    assert DataSet.named("folder") is PartyFolders
    with pytest.raises(IsthmusError, match="option 'path' is required"):
        PartyFolders.read({}, "data 'folder'")


def test_parties_come_as_they_are(folder):
    pool = PartyFolders(path=str(folder)).load(seed=0)
    assert pool.classes == 2
    assert [party.name for party in pool.parties] == ["north", "south"]
    assert_same_parties(Given().cut(pool, 2, 0), pool.parties)


def test_what_is_put_together_has_every_node_and_crossing_edge_once(folder):
    whole = PartyFolders(path=str(folder)).load(seed=0).party
    assert whole.ids.tolist() == [*range(8), *range(100, 108)]
    pairs = {tuple(sorted((int(whole.ids[a]), int(whole.ids[b])))) for a, b in whole.graph.edge_index.t().tolist()}
    ring = {tuple(sorted((first + at, first + (at + 1) % 8))) for first in (0, 100) for at in range(8)}
    assert pairs == ring | {(1, 100), (3, 102)}


def test_what_was_brought_may_be_cut_anew(folder):
    pool = PartyFolders(path=str(folder)).load(seed=0)
    parties = Partition.named("random")().cut(pool, 3, 0)
    assert sum(party.nodes for party in parties) == 16


def test_with_a_key_all_ids_are_keyed_hashes(folder, tmp_path):
    write_key(tmp_path / "key")
    keyed = PartyFolders(path=str(folder), key=str(tmp_path / "key")).load(seed=0)
    key = (tmp_path / "key").read_bytes().strip()
    north, south = keyed.parties
    assert north.ids.equal(KeyedHash(key).numbers(range(8)))
    assert north.border.outer.equal(KeyedHash(key).numbers([100, 102]))
    assert torch.isin(north.border.outer, south.ids).all()
    plain = PartyFolders(path=str(folder)).load(seed=0).party
    assert sorted(keyed.party.graph.y.tolist()) == sorted(plain.graph.y.tolist())
    assert keyed.party.edges == plain.edges


def test_shares_and_seed_draw_the_split_where_the_files_have_none(tmp_path):
    graph_draft(partner=None).without("split").write(tmp_path)
    whole = PartyFolders(path=str(tmp_path), train=1.0, val=0.0).load(seed=0).parties[0]
    assert whole.train.all()
    one, two = (PartyFolders(path=str(tmp_path), train=0.5, val=0.25).load(seed).parties[0] for seed in (0, 3))
    assert not torch.equal(one.train, two.train)


@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "nowhere", "a\0b", ""])
def test_a_path_that_leads_nowhere_is_an_error_of_one_line(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsthmusError) as caught:
        PartyFolders(path=path).load(seed=0)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_not_there_is_an_error_of_one_line(folder):
    with pytest.raises(IsthmusError, match="cannot read the key"):
        PartyFolders(path=str(folder), key="nowhere").load(seed=0)


def test_what_may_not_be_meant_is_noted(folder, tmp_path):
    assert PartyFolders(path=str(folder)).load(seed=0).note == ""
    draft = graph_draft("west", None, 200).put("split", ["train"] * 7 + ["val"])
    draft.write(folder / "west")
    found = PartyFolders(path=str(folder)).load(seed=0)
    lacking = "Note: a split lacks a class that the party has: 'val' at 1 of 3 parties (their files say so)."
    assert found.notes == f"Note: west: nodes.parquet: no row is in the split 'test'. {lacking}"
    links = Study.of({"data": {"name": "folder", "path": str(folder)}, "task": {"name": "link-prediction"}})
    assert links.cut_data(0).note == found.note
    for partition, lines in (
        ({"split": [0.5, 0.5, 0.0]}, ["the study draws its own split"]),
        ({"name": "random"}, ["of 4 parties (the study cuts the parties)"]),
        ({"name": "given"}, [lacking]),
    ):
        note = links.model_copy(update={"task": {}, "partition": partition, "parties": None}).cut_data(0).note
        assert all(line in note for line in lines)
        assert ("their files say so" in note) == (partition == {"name": "given"})
    draft.put("split", ["train"] * 8).write(folder / "west")
    found = PartyFolders(path=str(folder)).load(seed=0)
    assert found.notes == " ".join(
        f"Note: west: nodes.parquet: no row is in the split '{split}'." for split in ("val", "test")
    )


def test_shares_that_draw_nothing_are_refused(folder):
    given = {"name": "folder", "path": str(folder)}
    with pytest.raises(IsthmusError, match=r"data\.train has no effect: the parties' files say what each row is for"):
        Study.of({"data": {**given, "train": 0.3}}).cut_data(0)
    drawn = Study.of({"data": {**given, "val": 0.3}, "partition": {"split": [0.6, 0.2, 0.2]}})
    for draft in two_drafts():
        draft.without("split").write(folder / draft.settings["name"])
    with pytest.raises(IsthmusError, match=r"data\.val has no effect: partition\.split says what items are for"):
        drawn.cut_data(0)
    Study.of({"data": {**given, "train": 0.3}}).cut_data(0)
