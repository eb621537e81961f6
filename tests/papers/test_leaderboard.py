"""Rows of a leaderboard: their order, intervals and paired differences."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.papers.a_paper import table

from isthmus.paired import interval
from isthmus.papers.leaderboard import aligned, board_lines, leaderboard
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults

PLACE = {"size": "120"}


@pytest.fixture
def plan(tmp_path: Path) -> Table:
    return table(tmp_path)


def run_with(plan: Table, **values: list[float]) -> TableResults:
    """Results of one place: by method the test accuracy of seeds 0, 1, ..."""
    results = TableResults()
    for cell in plan.cells():
        for seed, value in enumerate(values.get(cell.place["method"], []) if cell.place["size"] == "120" else []):
            results.add(cell, {"seed": seed, "figures": {"test": value, "val": value}})
    return results


def test_the_best_mean_is_first_and_what_was_not_run_is_last(plan: Table) -> None:
    rows = leaderboard(plan, run_with(plan, fedavg=[0.7, 0.8], fedprox=[0.9, 0.7]), PLACE)
    assert [row.method for row in rows] == ["fedprox", "fedavg"]
    assert rows[0].values["test"] == {0: 90.0, 1: 70.0}
    rows = leaderboard(plan, run_with(plan, fedprox=[0.1]), PLACE)
    assert [(row.method, bool(row.values)) for row in rows] == [("fedprox", True), ("fedavg", False)]


def test_leads_are_paired_over_seeds_and_need_three(plan: Table) -> None:
    better, worse = leaderboard(plan, run_with(plan, fedavg=[0.7, 0.8, 0.6], fedprox=[0.72, 0.83, 0.61]), PLACE)
    lead = better.lead(worse, "test")
    assert lead is not None
    assert lead.mean == pytest.approx(2.0)
    assert lead.p == pytest.approx(0.0742, abs=1e-4)
    better, worse = leaderboard(plan, run_with(plan, fedavg=[0.7, 0.8], fedprox=[0.72, 0.83]), PLACE)
    assert better.lead(worse, "test") is None


def test_a_line_has_intervals_of_scores_leads_and_what_leaves(plan: Table) -> None:
    rows = leaderboard(plan, run_with(plan, fedavg=[0.79, 0.80, 0.81], fedprox=[0.7]), PLACE)
    head, first, second = board_lines(plan, rows, ["fedavg", "unknown"], {"fedavg": "nothing more"})
    assert head == ["method", "seeds", "Accuracy", "val", "lead over fedavg", "leaves a party"]
    assert first == ["fedavg", "3", "80.0 ± 2.5", "0.800", "", "nothing more"]
    assert second == ["fedprox", "1", "70.0", "0.700", "", ""]


def test_a_reference_without_the_first_figure_comes_last_of_those_run(plan: Table) -> None:
    results = run_with(plan, fedavg=[0.2])
    for cell in plan.cells():
        if cell.place == {"size": "120", "method": "fedprox"}:
            results.add(cell, {"seed": 0, "figures": {"val": 0.9}})
    _, *lines = board_lines(plan, leaderboard(plan, results, PLACE), ["fedavg"], {})
    assert lines == [["fedavg", "1", "20.0", "0.200", ""], ["fedprox", "1", "", "0.900", ""]]


def test_one_value_has_no_interval() -> None:
    assert interval([80.0]) is None


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned([["a", "b"], ["long", "c"]]).splitlines() == ["a     b", "long  c"]
