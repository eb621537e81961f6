"""The benchmark of laundering: its figures, columns that read the past alone, and rows that are kept one by one."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ledgers" / "ledgers.py"


@pytest.fixture
def bench(monkeypatch):
    spec = importlib.util.spec_from_file_location("bench_ledgers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def world(bench):
    return bench.world_of(2, 40, 0.05, 0)


def test_perfect_scores_have_perfect_figures_and_constant_ones_those_of_chance(bench, world):
    late = np.flatnonzero(world.transfers.time > 45 * bench.DAY)
    y = torch.from_numpy((world.transfers.pattern[late] >= 0).astype(float))
    best = bench.figures_of(world, (torch.from_numpy(late), y))
    assert best["average_precision"] == best["recall_at_fpr"] == best["listed"] == 1
    assert best["laundering"] == y.sum() > 10
    worst = bench.figures_of(world, (torch.from_numpy(late), torch.zeros_like(y)))
    assert worst["average_precision"] == pytest.approx(y.mean())
    assert worst["recall_at_fpr"] == 0


def test_a_list_has_the_highest_scores_of_each_day(bench, world, monkeypatch):
    monkeypatch.setattr(bench, "ALERTS", 2)
    late = np.flatnonzero(world.transfers.time > 45 * bench.DAY)
    score = torch.rand(late.size, generator=torch.Generator().manual_seed(0))
    found = bench.figures_of(world, (torch.from_numpy(late), score))
    day, y = world.transfers.time[late] // bench.DAY, world.transfers.pattern[late] >= 0
    listed = [
        at for each in np.unique(day) for at in sorted(np.flatnonzero(day == each), key=lambda at: -score[at])[:2]
    ]
    assert found["listed"] == pytest.approx(y[listed].sum() / y.sum())
    assert found["precision_of_lists"] == pytest.approx(y[listed].mean())


def test_joined_columns_do_not_change_when_later_transfers_are_left_out(bench, world):
    rows = world.transfers
    early = rows.time < 30 * bench.DAY
    whole = bench.joined_columns(world.town, rows, None)[early]
    assert np.array_equal(whole, bench.joined_columns(world.town, rows.take(early), None), equal_nan=True)
    own = bench.joined_columns(world.town, rows, 0)
    assert np.isnan(own).sum() > np.isnan(bench.joined_columns(world.town, rows, None)).sum()


@pytest.mark.slow
def test_scores_on_sums_are_those_of_the_banks(bench, world):
    ids, scores = bench.summed(world, seed=0, rounds=2)
    assert len(ids.unique()) == len(ids) == sum(int(party.test.sum()) for party in world.bordered)
    right = (scores > 0).numpy() == (world.transfers.pattern[ids] >= 0)
    results = bench.results_of(world.bordered, "fedgcn", "graph", 0, 2)
    assert results.metrics["test_accuracy"] == pytest.approx(right.mean(), abs=1e-6)


def test_rows_are_kept_and_a_second_call_computes_none_again(bench, tmp_path, monkeypatch, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("before\n" + "\n".join(bench.MARKS) + "\nafter\n")
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results" / "ledgers.json")
    monkeypatch.setattr(bench, "PAGE", readme)
    monkeypatch.setattr(bench, "CUSTOMERS", {2: 30})
    monkeypatch.setattr(bench, "RATES", (0.05,))
    arguments = ["ledgers.py", "--full", "--seeds", "1", "--rounds", "1", "--write"]
    monkeypatch.setattr(bench, "best_trees", lambda *given: np.zeros(int(given[4].sum())))  # takes long
    rows = ["--only", "trees, pooled", "--only", "graph, FedAvg"]
    monkeypatch.setattr(sys, "argv", arguments + rows)
    bench.main()
    cells = json.loads(bench.RESULTS.read_text())["cells"]
    assert [(cell["compared"], len(cell["runs"])) for cell in cells] == [("trees, pooled", 1), ("graph, FedAvg", 1)]
    assert "| graph, FedAvg |" in readme.read_text()
    monkeypatch.setattr(bench, "one_run", lambda *_: pytest.fail("is computed again"))
    bench.main()
    assert readme.read_text().endswith("after\n")
