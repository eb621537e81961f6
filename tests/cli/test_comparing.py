"""`isthmus compare` and `isthmus runs` list result folders."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Isthmus

RUN = ("run", "--method", "fedavg", "--rounds", "2", "--set", "data.nodes=100")


def test_folders_stand_side_by_side_with_the_options_that_differ(isthmus: Isthmus) -> None:
    assert isthmus(*RUN, "--out", "runs/plain").code == 0
    assert isthmus(*RUN, "--grid", "local.lr=0.0001,0.05", "--out", "runs/grid").code == 0
    found = json.loads(isthmus("compare", "runs/plain", "runs/grid", "--json").out)
    assert found["differ"] == ["local.lr"]
    assert [(row["run"], row["options"]["local.lr"]) for row in found["runs"]] == [
        ("runs/plain", 0.1), ("runs/grid", 0.05),
    ]  # fmt: skip
    shown = isthmus("compare", "runs/plain", "runs/grid")
    assert shown.code == 0
    assert "0.05" in shown.out
    assert "0.0001" not in shown.out
    assert "0.05" in next(line for line in shown.out.splitlines() if "runs/grid" in line)
    listed = json.loads(isthmus("runs", "--json").out)
    assert {row["run"]: row["methods"] for row in listed} == {"runs/plain": ["fedavg"], "runs/grid": ["fedavg"]}
    assert "plain" in isthmus("runs").out


def test_what_is_no_terminal_gets_every_row_in_one_line(isthmus: Isthmus) -> None:
    out = "runs/a-folder-with-a-name-that-alone-is-longer-than-the-eighty-columns-of-a-usual-terminal"
    done = isthmus(*RUN, "--method", "majority", "--grid", "local.lr=0.01,0.02", "--out", out)
    assert done.code == 0
    for words in (("compare", out), ("runs",)):
        (row,) = (line for line in isthmus(*words).out.splitlines() if "fedavg" in line)
        assert out in row
        assert "% test accuracy" in row
    heads = next(line for line in done.out.splitlines() if "method" in line)
    assert heads.split() == ["method", "setting", "validation", "accuracy", "test", "accuracy"]


def test_a_folder_that_is_missing_is_one_line(isthmus: Isthmus) -> None:
    for words, line in ((("compare", "nowhere"), "nowhere"), (("runs", "nowhere"), "there is no folder nowhere")):
        done = isthmus(*words)
        assert done.code == 2
        assert line in done.err
        assert len(done.err.splitlines()) == 1


def test_folders_of_runs_and_folders_without_any_are_said_in_a_line(isthmus: Isthmus, tmp_path: Path) -> None:
    assert isthmus(*RUN, "--out", "runs/one").code == 0
    (tmp_path / "empty").mkdir()
    done = isthmus("compare", "runs")
    assert (done.code, done.err) == (2, "isthmus: runs holds result folders and is none itself: give them, runs/*\n")
    assert isthmus("runs", "empty").out == "no result folders below empty\n"
    for words in (("compare", "runs/one"), ("runs", "runs")):
        lines = isthmus(*words).out.splitlines()
        assert any("runs/one" in line for line in lines)
        assert lines == [line.rstrip() for line in lines]
