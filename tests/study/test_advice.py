"""Methods are named for what parties have, from counts alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.command_line import Isthmus

from isthmus.data.describe import describe
from isthmus.data.folder.loading import read_folders
from isthmus.data.folder.writing import write_parties
from isthmus.methods.base import Method
from isthmus.study.advice import ADVICE, Situation, advised
from isthmus.study.config import Study

NODES = Situation(parties=4, level="node", items=100, labelled=50, crossing=0, shared=0, emd=0.1)
GRAPHS = replace(NODES, level="graph")


def first(situation: Situation) -> list[str]:
    return [advice.methods[0] for advice, _ in advised(situation)]


def test_what_fits_comes_in_order_and_fedavg_last() -> None:
    assert first(NODES) == ["fedgc", "fedavg"]
    assert first(replace(NODES, crossing=9)) == ["fedcog", "fedgc", "fedavg"]
    assert first(replace(NODES, crossing=9, shared=3, emd=0.8)) == ["fedcog", "fedgl", "fedgc", "scaffold", "fedavg"]
    assert first(GRAPHS) == ["fgcl", "fedavg"]
    assert first(replace(GRAPHS, labelled=10)) == ["fgcl", "infograph", "fedavg"]
    assert first(replace(GRAPHS, labelled=0, emd=None)) == ["infograph"]
    assert first(replace(NODES, labelled=0, emd=None)) == []


def test_every_method_named_is_one_for_that_level() -> None:
    for advice in ADVICE:
        for name in advice.methods:
            levels = Method.named(name).levels
            assert "graph" in levels if advice.has.startswith("Many small") else "node" in levels


@pytest.mark.parametrize("data", ["banks", "hospitals", "motifs"])
def test_counts_are_those_of_the_cut(data: str, tmp_path: Path) -> None:
    cut = Study.of({"data": {"name": data}}).cut_data(0)
    write_parties(tmp_path, cut.parties, cut.classes)
    found = Situation.of(read_folders(tmp_path)[0])
    due = describe(cut.parties, cut.classes)
    assert (found.parties, found.level) == (len(cut.parties), due.level)
    assert found.items == sum(party.items for party in due.parties)
    assert found.labelled == sum(party.items - party.unlabelled for party in due.parties)
    assert found.crossing == sum(party.cross for party in due.parties)
    assert found.emd == pytest.approx(due.emd)
    assert (found.shared > 0) == (data == "hospitals")


def test_folders_are_advised_at_the_command_line(isthmus: Isthmus, tmp_path: Path) -> None:
    assert isthmus("party", "export", "p", "--data", "hospitals", "--set", "data.nodes=200").code == 0
    done = isthmus("advise", "p")
    assert done.code == 0
    assert "nodes at several of them" in done.out
    assert "fedgl\n  why: " in done.out
    one = sorted((tmp_path / "p").iterdir())[0]
    assert "1 party with" in isthmus("advise", one).out
    assert "nodes in common unknown" in isthmus("advise", one).out
    told = json.loads(isthmus("advise", "p", one, "--json").out)  # who is named twice counts once
    assert told["situation"]["parties"] == len(list((tmp_path / "p").iterdir()))
    assert told["situation"]["level"] == "node"
    assert told["advice"][-1]["methods"] == ["fedavg"]


def test_nodes_and_graphs_are_not_advised_together(isthmus: Isthmus) -> None:
    isthmus("party", "export", "a", "--data", "banks", "--set", "data.nodes=100")
    isthmus("party", "export", "b", "--data", "motifs", "--set", "data.graphs=40")
    done = isthmus("advise", "a", "b")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "some parties hold nodes and others graphs" in done.err
