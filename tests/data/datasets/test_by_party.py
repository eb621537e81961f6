"""Loaders that each have some of the parties find what one that has all finds."""

from pathlib import Path

import pytest
import torch

from isthmus.data.datasets.by_party import PartyData, negotiate, next_messages
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.datasets.several import Several
from isthmus.data.datasets.shops import Shops
from isthmus.testing import small_parties
from party_folders import assert_same_parties, two_drafts

SETS = [{"name": "motifs", "graphs": 12}, {"name": "motifs", "graphs": 10, "features": 4}, "motifs"]


@pytest.fixture(params=["folders", "shops", "several"])
def data(request, tmp_path, monkeypatch) -> PartyData:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    if request.param == "shops":
        return Shops(parties=4, nodes=200, classes=3, features=4, degree=5)
    if request.param == "several":
        return Several(sets=SETS)
    for draft in two_drafts():
        draft.write(Path(tmp_path / "in" / draft.settings["name"]))
    return PartyFolders(path=str(tmp_path / "in"))


@pytest.mark.parametrize("split", [1, 2, -1])
def test_any_split_of_the_parties_gives_the_same(data: PartyData, split: int, monkeypatch, tmp_path):
    due = data.load(seed=3)
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "another"))
    positions = list(range(len(data.party_sizes())))
    loaders = [data.loader(chosen, 3) for chosen in (positions[:split], positions[split:]) if chosen]
    broadcasts = []

    def send(broadcast):
        broadcasts.append(broadcast)
        return [each for loader in loaders for each in next_messages(loader, broadcast)]

    found = negotiate(data.moderator(), send)
    assert_same_parties(found.parties, due.parties)
    assert (found.classes, found.note, found.labels, found.smiles) == (due.classes, due.note, due.labels, due.smiles)
    assert broadcasts[0] is None


def test_an_outline_says_whether_edges_have_weights():
    party = small_parties("node", 1)[0]
    for weight in (1.0, 0.5):
        graph = party.graph.clone()
        graph.edge_weight = torch.full((party.edges,), weight)
        weighted = party.with_graph(graph, party.border)
        assert weighted.weighted == weighted.outline().weighted == (weight != 1)


def test_an_outline_has_the_sizes_and_labels_of_its_party(data: PartyData):
    for party in data.load(seed=0).parties:
        outline = party.outline()
        for name in ("name", "level", "nodes", "edges", "items", "features"):
            assert getattr(outline, name) == getattr(party, name)
        assert outline.graph.y is party.graph.y
        assert outline.ids is party.ids
        assert (outline.border is None) == (party.border is None)
        assert outline.border is None or len(outline.border) == len(party.border)
        assert not bool(outline.graph.x.any())
        assert outline.graph.x.untyped_storage().nbytes() == 4
