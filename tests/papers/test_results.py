"""Results of a table: a file that is read, added to, and found stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from a_paper import TABLE1
from tests.papers.a_paper import NEVER, table

from isthmus.errors import IsthmusError
from isthmus.papers.results import TableResults, count_older
from isthmus.papers.running import Runner


def test_runs_of_another_setting_do_not_count(at_once: None, tmp_path: Path) -> None:
    results = TableResults()
    Runner(table(tmp_path / "a"), results, NEVER, max_seeds=1).run(1)
    other = table(tmp_path / "b", table1=TABLE1.replace("mu = 0.5", "mu = 0.6"))
    assert results.stale(other) == ["160, fedprox"]
    assert [len(results.runs(cell)) for cell in other.cells()] == [1, 1, 1, 0]
    Runner(other, results, NEVER, max_seeds=1).run(1)
    assert results.stale(other) == []


def test_what_is_no_result_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table1.json"
    path.write_text('{"cells": 3}')
    with pytest.raises(IsthmusError, match=r"table1\.json is not a file of results"):
        TableResults.read(path)


def test_runs_of_other_versions_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, path = table(tmp_path), tmp_path / "results.json"
    cell, results = next(plan.cells()), TableResults()
    results.add(cell, {"seed": 0, "figures": {}})
    monkeypatch.setattr("isthmus.papers.results.versions", lambda: {"torch": "9"})
    results.add(cell, {"seed": 1, "figures": {}})
    results.write(path)
    again = TableResults.read(path)
    assert [run.get("with", 0) for run in again.runs(cell)] == [0, 1]
    assert again.versions[1] == {"torch": "9"}
    assert [again.is_older(run) for run in again.runs(cell)] == [False, True], "these versions record no laws"


def test_runs_of_older_code_are_repeated_if_asked_for(
    at_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, results = table(tmp_path), TableResults()
    with monkeypatch.context() as older:
        older.setattr("isthmus.papers.results.versions", lambda: {"laws": "1"})
        Runner(plan, results, NEVER).run(1)
    count = count_older(plan, results)
    assert count == 8
    Runner(plan, results, NEVER).run(1)
    assert count_older(plan, results) == count
    Runner(plan, results, NEVER, renew=True, only={"method": ["fedavg"]}).run(1)
    assert count_older(plan, results) == 4
    assert all([run["seed"] for run in results.runs(cell)] == [0, 1] for cell in plan.cells())
