"""`isthmus bench`: a method of one's own beside those of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.papers.a_paper import run_in_this_process

from command_line import Isthmus
from isthmus.data.datasets.citations import Cora
from isthmus.papers.results import TableResults
from isthmus.papers.shelf import entry

TABLE = """
title = "Who is ahead"
seeds = 3

[study]
protocol = "openfgl"
data.name = "banks"
method.rounds = 2

[tune]
options = { "method.local.lr" = [0.01, 0.05] }

[figures.accuracy]
metric = "test_accuracy"

[[axes]]
name = "cut"

[axes.values]
three.parties = 3
longer = { parties = 3, method.rounds = 3 }

[[axes]]
name = "method"

[axes.values]
fedavg.method.name = "fedavg"
local.method.name = "local"
"""
OWN = """
from typing import ClassVar
from isthmus.methods.fedavg import FedAvg


class {name}(FedAvg):
    \"\"\"Federated averaging again.\"\"\"

    name: ClassVar[str] = "{label}"
    strength: float = 1.0
"""
DATA = ("--data", "banks", "--parties", "3")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_in_this_process(monkeypatch)
    where = tmp_path / "papers" / "mine"
    where.mkdir(parents=True)
    (where / "nodes.toml").write_text(TABLE)
    board = entry(tmp_path / "papers", "mine/nodes")
    results = TableResults()
    for cell in board.plan.cells():
        if cell.place == {"cut": "three", "method": "fedavg"}:
            for seed in range(3):
                run = {"seed": seed, "figures": {"accuracy": 0.01 * seed}, "chosen": {"method.local.lr": 0.01}}
                results.add(cell, run)
    results.write(board.results_path)
    return tmp_path / "papers"


def own(folder: Path, name: str, label: str) -> str:
    """A file of one's own with a method."""
    path = folder.parent / f"{name.lower()}_file.py"
    path.write_text(OWN.format(name=name, label=label))
    return str(path)


def test_a_row_stands_among_the_committed_ones(folder: Path, isthmus: Isthmus) -> None:
    file = own(folder, "Mine", "mine")
    done = isthmus("bench", file, *DATA, "--set", "strength=0.5", "--folder", str(folder))
    assert done.code == 0, done.err
    title, _, head, first, second, *rest = done.out.splitlines()
    assert title.startswith("mine/nodes: three")
    assert head.split()[:2] == ["method", "seeds"]
    assert first.startswith("mine (mine_file.py)  3")
    assert second.startswith("fedavg")
    assert any(line.startswith("chosen on validation data: method.local.lr=") for line in rest)
    assert any(line.startswith("  over fedavg: +") for line in rest)
    assert rest[-1] == "not run there: local"


def test_json_has_both_and_untuned_runs_no_trials(folder: Path, isthmus: Isthmus) -> None:
    file = own(folder, "Other", "other")
    arguments = ("bench", file, *DATA, "--untuned", "--set", "local.lr=0.1", "--seeds", "1", "--json")
    found = json.loads(isthmus(*arguments, "--folder", str(folder)).out)
    assert found["board"] == "mine/nodes: three"
    assert found["own"]["figures"]["accuracy"].keys() == {"0"}
    assert [each["method"] for each in found["others"]] == ["fedavg", "local"]
    more = isthmus("bench", file, *DATA, "--seeds", "4", "--folder", str(folder))
    assert (more.code, more.err) == (2, "isthmus: --seeds 4: the leaderboard has 3 seeds: give at most 3\n")


def test_an_error_of_a_method_says_where_it_is(folder: Path, isthmus: Isthmus) -> None:
    file = Path(own(folder, "Failing", "failing"))
    file.write_text(file.read_text() + "\n    def models(self, state):\n        return undefined\n")
    done = isthmus("bench", file, *DATA, "--untuned", "--folder", str(folder))
    assert done.code == 2
    assert "failing_file.py:13: NameError: name 'undefined' is not defined" in done.err


def test_nothing_is_trained_where_there_is_no_row_to_compare(folder: Path, isthmus: Isthmus) -> None:
    file = own(folder, "Alone", "alone")
    (folder / "mine" / "results" / "nodes.json").unlink()
    done = isthmus("bench", file, *DATA, "--folder", str(folder))
    line = "isthmus: mine/nodes: three: no method was run there: run some first, isthmus papers run mine/nodes"
    assert (done.code, done.err) == (2, f"{line} --folder {folder}\n")


def test_a_wrong_call_is_one_line(folder: Path, isthmus: Isthmus) -> None:
    file = own(folder, "Wrong", "wrong")
    for arguments, why in (
        (DATA[:2], "no table compares methods in protocol 'openfgl' with these data, parties and partition"),
        (("--data", f"{folder}/"), "the leaderboard has no rows of party folders"),
        ((*DATA, "--protocol", "fed-pubb"), "did you mean 'fed-pub'?"),
        ((*DATA, "--set", "local.lr=0.1"), "--set local.lr: the trials choose it: add --untuned"),
        ((*DATA, "--set", "strenth=0.1"), "did you mean 'strength'?"),
        ((*DATA, "--method", "min"), "defines no method 'min'"),
    ):
        done = isthmus("bench", file, *arguments, "--folder", str(folder))
        assert done.code == 2
        assert why in done.err
        assert len(done.err.strip().splitlines()) == 1


def test_everything_that_is_wrong_is_named_at_once(
    folder: Path, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, empty = own(folder, "Several", "several"), folder.parent / "empty_file.py"
    settings = ("--set", "strenth=1", "--set", "rounds=a", "--set", "model.hidden=3")
    done = isthmus("bench", file, "--data", "bnks", "--protocol", "ofgl", *settings, "--folder", str(folder))
    assert (done.code, done.err.splitlines()) == (
        2,
        [
            "isthmus: unknown protocol 'ofgl': did you mean 'openfgl'?",
            "isthmus: unknown data set 'bnks': did you mean 'banks'?",
            "isthmus: method 'several': unknown option 'strenth': did you mean 'strength'?",
            "isthmus: method 'several': option 'rounds' is 'a': give a whole number",
            "isthmus: --set model.hidden: the table has one model for all methods: set options of 'several'",
        ],
    )
    empty.write_text("")
    plan = folder / "mine" / "nodes.toml"
    plan.write_text(plan.read_text().replace('data.name = "banks"', 'data.name = "cora"'))
    monkeypatch.setenv("ISTHMUS_DATA", str(folder / "nowhere"))
    monkeypatch.setattr(Cora, "download", lambda *_: Path("offline").read_bytes())  # no such file
    module, data = isthmus("bench", empty, "--parties", "3", "--folder", str(folder)).err.splitlines()
    assert "defines no method: write a class in it" in module
    assert data.startswith("isthmus: data set 'cora': no ind.cora.x in ")
