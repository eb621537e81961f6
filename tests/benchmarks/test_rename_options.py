"""Options are renamed in tables and results: digests follow, and nothing is written where more would change."""

import importlib.util
import json
import subprocess

import pytest
from tests.benchmarks.conftest import PAPERS
from tests.papers.a_paper import TABLE1, written

from isthmus.errors import IsthmusError
from isthmus.papers import plan
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults

RENAMED = """
title = "Renamed"
setting = "mu stays in text # and mu = here"
seeds = 2

[study]
data = { name = "banks", nodes = 120 } # mu

[study.method]
rounds = 3
local = { epochs = 2, lr = 0.1 }

[study.method.trainer]
mu = 0.1

[figures.mu]
metric = "test_accuracy"

[[axes]]
name = "mu"
option = "method.trainer.mu"
values = [0.1, 0.2]

[[axes]]
name = "method"

[axes.values]
fedcog.method = { name = "fedcog", trainer.name = "fedprox" }
"of mu".method = { name = "fedcog", trainer = { name = "fedprox", mu = 0.3 } }

[[where]]
at = { mu = ["0.2"] }
study.method.trainer.mu = 0.4
tune.options = { "method.trainer.mu" = [0.1, 0.2], "model.hops" = [2] }
"""


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("rename_options", PAPERS / "rename_options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(plan.Table, "_check", lambda table: None)  # no method has the new names
    return module


@pytest.fixture
def folder(tmp_path):
    """A paper with results of every cell."""
    folder = written(tmp_path, table2=RENAMED)
    for name in ("table1", "table2"):
        table, results = Table.of_file(folder / "mine" / f"{name}.toml", check=False), TableResults()
        for cell in table.cells():
            results.add(cell, {"seed": 0, "figures": {}, **({"chosen": cell.trials()[0]} if cell.tune else {})})
            for trial in cell.trials():
                results.add_trial(cell, json.dumps(trial), 1000, 0.5)
        results.write(folder / "mine" / "results" / f"{name}.json")
    return folder


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_options_are_renamed_where_they_are_options(script, folder):
    script.main(["--folder", str(folder), "mine/table2:method.trainer.mu=method.trainer.pull"])
    text = (folder / "mine" / "table2.toml").read_text()
    due = RENAMED.replace("[study.method.trainer]\nmu", "[study.method.trainer]\npull")
    due = due.replace('"method.trainer.mu"', '"method.trainer.pull"').replace('"fedprox", mu', '"fedprox", pull')
    assert text == due.replace("study.method.trainer.mu", "study.method.trainer.pull")
    assert (folder / "mine" / "table1.toml").read_text() == TABLE1
    table = Table.of_file(folder / "mine" / "table2.toml")
    results = TableResults.read(folder / "mine" / "results" / "table2.json")
    assert results.stale(table) == []
    last = list(table.cells())[-1]
    assert results.options(last) == {"method.trainer.pull": 0.1, "model.hops": 2}
    assert results.tuned(last).keys() == {json.dumps(trial) for trial in last.trials()}


def test_options_may_move_into_a_group_and_groups_get_another_name(script, folder):
    pairs = ["method.local.lr=method.local.optimizer.lr", "method.trainer=method.learner"]
    script.main(["--folder", str(folder), *pairs])
    table = Table.of_file(folder / "mine" / "table2.toml")
    methods = [cell.study["method"] for cell in table.cells()]
    assert methods[0]["local"] == {"epochs": 2, "optimizer": {"lr": 0.1}}
    assert [method["learner"]["mu"] for method in methods] == [0.1, 0.3, 0.4, 0.4]
    assert not any("trainer" in method for method in methods)
    assert TableResults.read(folder / "mine" / "results" / "table2.json").stale(table) == []


def test_tables_that_were_edited_already_are_compared_with_a_revision(script, folder):
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], check=True)
    path = folder / "mine" / "table1.toml"
    path.write_text(path.read_text().replace("mu = ", "pull = "))
    script.main(["--folder", str(folder), "--before", "HEAD", "mine/table1:method.mu=method.pull"])
    assert TableResults.read(folder / "mine" / "results" / "table1.json").stale(Table.of_file(path)) == []


def test_nothing_is_written_where_more_would_change_or_results_are_stale(script, folder):
    before = snapshot(folder)
    with pytest.raises(IsthmusError, match=r"cannot move 'study\.data\.nodes' to another table"):
        script.main(["--folder", str(folder), "data.nodes=model.nodes"])
    assert snapshot(folder) == before
    (folder / "mine" / "table1.toml").write_text(TABLE1.replace("mu = 0.5", "mu = 0.6"))
    before = snapshot(folder)
    with pytest.raises(IsthmusError, match=r"mine/table1: results of '160, fedprox' are stale"):
        script.main(["--folder", str(folder), "method.mu=method.pull"])
    assert snapshot(folder) == before
