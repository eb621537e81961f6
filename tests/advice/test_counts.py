"""Counts of a party: those of the cut, written to a file and read from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Isthmus
from isthmus.advice.counts import Counts
from isthmus.advice.methods import Situation, shared_nodes
from isthmus.data.describe import describe
from isthmus.data.folder.loading import read_folders
from isthmus.data.folder.writing import write_parties
from isthmus.study.config import Study


@pytest.mark.parametrize("data", ["banks", "hospitals", "motifs"])
def test_counts_are_those_of_the_cut(data: str, tmp_path: Path) -> None:
    cut = Study.of({"data": {"name": data}}).cut_data(0)
    write_parties(tmp_path, cut.parties, cut.classes)
    contents = read_folders(tmp_path)[0]
    found = Situation.of([Counts.of(each) for each in contents], shared_nodes(contents))
    due = describe(cut.parties, cut.classes)
    assert (found.parties, found.level) == (len(cut.parties), due.level)
    assert found.items == sum(party.items for party in due.parties)
    assert found.labelled == sum(party.items - party.unlabelled for party in due.parties)
    assert found.crossing == sum(party.cross for party in due.parties)
    assert found.emd == pytest.approx(due.emd)
    assert bool(found.shared) == (data == "hospitals")


COUNTED = '{"party": "a", "level": "node", "items": %s, "labelled": 0}'


def test_counts_say_what_folders_do_but_for_nodes_in_common(isthmus: Isthmus, tmp_path: Path) -> None:
    """Each party hands on its own file; what is in it are counts."""
    isthmus("party", "export", "p", "--data", "banks", "--set", "data.nodes=120")
    files = []
    for folder in sorted((tmp_path / "p").iterdir()):
        files.append(f"{folder.name}.json")
        assert isthmus("party", "counts", folder, "--out", files[-1]).out == f"counts in {files[-1]}\n"
    (told,) = json.loads((tmp_path / files[0]).read_text())
    flags = {"classes", "typed", "directed", "own_ids"}
    assert set(told) == {"party", "level", "items", "labelled", "crossing", *flags, "labels"}
    assert sum(told["labels"]) == told["labelled"] <= told["items"]
    whole = json.loads(isthmus("advise", "p", "--json").out)
    found = json.loads(isthmus("advise", *files, "--json").out)
    assert found["situation"] == {**whole["situation"], "shared": None}
    for there, here in zip(found["advice"], whole["advice"], strict=True):
        assert here["commands"] == [each.replace("FOLDER", "p/") for each in there["commands"]]
        why = there["why"].replace("; only if no other party holds the same nodes, which is unknown here", "")
        assert {**here, "commands": 0} == {**there, "commands": 0, "why": why}
    assert "nodes in common unknown" in isthmus("advise", "p", files[0]).out
    assert (
        isthmus("party", "counts", "p").out
        == "[\n" + ",\n".join((tmp_path / file).read_text().splitlines()[1] for file in files) + "\n]\n"
    )
    for file in files:
        (tmp_path / file).write_text((tmp_path / file).read_text().replace('"own_ids": false', '"own_ids": true'))
    assert "0 nodes at several of them" in isthmus("advise", *files).out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "a.json is not JSON: write it with isthmus party counts"),
        ("3", "a.json holds no counts: write it"),
        ("[]", "there are no parties"),
        ('[{"party": "a"}]', "level"),
        (f"[{COUNTED % 1}, {COUNTED % 2}]", "two parties with different counts are called 'a'"),
        ('[{"party": "a", "level": "node", "items": -1, "labelled": 0}]', "items"),
    ],
)
def test_what_is_no_file_of_counts_is_named(text: str, says: str, isthmus: Isthmus, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    done = isthmus("advise", "a.json")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert says in done.err
