"""Runs that a paper's other tables have already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.papers.a_paper import NEVER, TABLE1, written

from command_line import Isthmus
from isthmus.papers import running
from isthmus.papers.elsewhere import Elsewhere
from isthmus.papers.results import TableResults
from isthmus.papers.running import Runner
from isthmus.papers.shelf import ShelfEntry

TABLE3 = """
title = "By the weight of the pull"
like = "table1"
seeds = 2
where = []

[figures.right]
metric = "test_accuracy"

[figures.epsilon]
metric = "epsilon"

[[axes]]
name = "size"
option = "data.nodes"
values = [120, 160]

[[axes]]
name = "method"

[axes.values]
"no pull".method.name = "fedavg"
"pull 0.5".method = { name = "fedprox", mu = 0.5 }
"""


@pytest.fixture
def papers(at_once: None, tmp_path: Path) -> Path:
    """A folder with two tables, of which the first is run."""
    asked = TABLE1.replace("[figures.test]", '[figures.epsilon]\nmetric = "epsilon"\n\n[figures.test]')
    folder = written(tmp_path, table1=asked, table3=TABLE3)
    one = ShelfEntry(folder, "mine", "table1")
    Runner(one.plan, one.results, NEVER).run(1)
    one.results.write(one.results_path)
    return folder


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[TableResults, list[str]]:
    """What the second table has after a run, and the names of the jobs that had to be done."""
    two, done = ShelfEntry(folder, "mine", "table3"), list[str]()
    job_of = running.run_job
    monkeypatch.setattr(running, "run_job", lambda job, send: (done.append(job.name), job_of(job, send))[1])
    elsewhere = Elsewhere([ShelfEntry(folder, "mine", "table1")])
    assert Runner(two.plan, two.results, NEVER, elsewhere=elsewhere, **options).run(1) == []
    return two.results, done


def test_what_another_table_has_is_not_run_again(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, done = ran(papers, monkeypatch)
    assert done == [f"120, pull 0.5, seed {seed}" for seed in (0, 1)]
    one = ShelfEntry(papers, "mine", "table1").results
    for ours, theirs in {("120", "no pull"): ("120", "fedavg"), ("160", "pull 0.5"): ("160", "fedprox")}.items():
        for mine, run in zip(results.cells[ours]["runs"], one.cells[theirs]["runs"], strict=True):
            figures = {**run["figures"], "right": run["figures"]["test"]}
            assert mine == {**run, "figures": {name: figures[name] for name in mine["figures"]}, "from": "table1"}


def test_a_taken_run_equals_one_that_is_made(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, _ = ran(papers, monkeypatch)
    two = ShelfEntry(papers, "mine", "table3")
    made = TableResults()
    Runner(two.plan, made, NEVER).run(1)
    for place, cell in made.cells.items():
        assert [run["figures"] for run in cell["runs"]] == [run["figures"] for run in taken.cells[place]["runs"]]


@pytest.mark.parametrize(
    "differs",
    [
        'figures.sent.metric = "sent"',
        'measure = { name = "training", curves = ["val_accuracy"] }',
        "study.method.local.epochs = 2",
    ],
)
def test_what_differs_is_run(differs: str, papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = papers / "mine" / "table3.toml"
    plan.write_text(f"{differs}\n{plan.read_text()}")
    _, done = ran(papers, monkeypatch, max_seeds=1)
    assert len(done) == 4


def test_a_taken_run_has_the_options_that_its_new_table_chose(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = '"pull 0.5".method.name = "fedprox"\n\n[[where]]\nat.method = ["pull 0.5"]\n'
    chosen += 'tune = { options = { "method.mu" = [0.5] }, seeds = [1000] }\n'
    text = TABLE3.replace('"pull 0.5".method = { name = "fedprox", mu = 0.5 }\n', chosen).replace("where = []\n", "")
    (papers / "mine" / "table3.toml").write_text(text)
    results, _ = ran(papers, monkeypatch)
    [cell] = [each for each in ShelfEntry(papers, "mine", "table3").plan.cells() if each.name == "160, pull 0.5"]
    assert [(run["chosen"], run["from"]) for run in results.runs(cell)] == [({"method.mu": 0.5}, "table1")] * 2


def test_runs_of_another_device_are_not_taken(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ShelfEntry(papers, "mine", "table1").results_path
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 0, "device": "cuda"'))
    _, done = ran(papers, monkeypatch, max_seeds=1)
    assert len(done) == 4


def test_runs_of_older_code_are_not_taken(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ShelfEntry(papers, "mine", "table1").results_path
    content = json.loads(path.read_text())
    content["versions"][0]["laws"] = "0"
    path.write_text(json.dumps(content))
    _, done = ran(papers, monkeypatch, max_seeds=1)
    assert len(done) == 4


def test_on_the_command_line_force_runs_everything(papers: Path, isthmus: Isthmus) -> None:
    command = ("papers", "run", "mine/table3", "--folder", papers, "--jobs", "1", "--seeds", "1", "--only", "size=160")
    done = isthmus(*command)
    assert done.code == 0, done.err
    assert "160, no pull, seed 0: is in table1" in done.err
    assert done.err.count("is in table1") == 2
    done = isthmus(*command, "--force")
    assert done.code == 0, done.err
    assert "is in table1" not in done.err
