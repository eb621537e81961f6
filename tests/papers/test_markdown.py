"""A table as Markdown: lines, comparisons, what is missing, verdicts, and the page around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from tests.papers.a_paper import PAGE, TABLE1, table

from isthmus.errors import IsthmusError
from isthmus.papers.markdown import Bar, fill_page, markdown, missing_runs, verdict_text, verdicts, write_page
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults
from isthmus.papers.running import Progress


def results_of(plan: Table, *, cells: int = 4) -> TableResults:
    results = TableResults()
    for at, cell in enumerate(list(plan.cells())[:cells]):
        for seed, test in enumerate((0.70 + at / 100, 0.72 + at / 100)):
            results.add(cell, {"seed": seed, "figures": {"test": test, "val": 0.5}})
    return results


def test_lines_have_means_deviations_and_the_papers_numbers(tmp_path: Path) -> None:
    plan = table(tmp_path)
    text = markdown(plan, results_of(plan), "table1")
    assert "| size | seeds | fedavg | fedprox |" in text
    assert "| 120 | 2 | 71.0 ± 1.4 | 72.0 ± 1.4 |" in text
    assert "| *paper* |  | 70.0 | 80.0 |" in text
    assert "| *difference* |  | +1.0 | -8.0 |" in text
    assert "Run so far" not in text


def test_figures_may_be_columns_and_seeds_may_be_told_by_their_range(tmp_path: Path) -> None:
    plan = table(tmp_path, table1=TABLE1.replace("seeds = 2", 'seeds = 2\ncolumns = "figures"\nspread = "range"', 1))
    text = markdown(plan, results_of(plan), "table1")
    assert "| size | method | seeds | Accuracy | val |" in text
    assert "| 120 | fedavg | 2 | 71.0 ± 1.4 (70.0 to 72.0) | 0.500 ± 0.000 (0.500 to 0.500) |" in text


def test_what_was_not_run_is_named(tmp_path: Path) -> None:
    plan = table(tmp_path)
    assert markdown(plan, TableResults(), "table1").startswith("Not run yet.")
    assert missing_runs(plan, results_of(plan, cells=1)) == (
        "Run so far: 2 of 8; nothing yet of size `160`; method `fedprox`."
    )
    assert missing_runs(plan, results_of(plan, cells=3)) == "Run so far: 6 of 8; nothing yet of `160, fedprox`."
    assert missing_runs(plan, results_of(plan)) == ""


def test_what_validation_chose_is_said_with_where_its_trials_are(tmp_path: Path) -> None:
    tune = '\n[tune.options]\n"method.local.lr" = [0.1, 0.2, 0.4]\n'
    plan, results = table(tmp_path, table1=TABLE1 + tune), TableResults()
    assert "Validation chose" not in markdown(plan, results, "table1")
    for cell, chosen in zip(plan.cells(), (0.1, 0.2, 0.4), strict=False):
        results.add(cell, {"seed": 0, "figures": {"test": 0.7, "val": 0.5}, "chosen": {"method.local.lr": chosen}})
    results.add_trial(cell, '{"method.local.lr": 0.4}', 1000, 0.5)
    assert (
        "Validation chose `method.local.lr` for 3 cells, in 2 at an end of what was tried. "
        "Trials of 1 cell are in [table1.json](results/table1.json)."
    ) in markdown(plan, results, "table1")


def test_a_verdict_has_the_means_that_decide(tmp_path: Path) -> None:
    plan = table(tmp_path)
    order, near = (verdict_text(each) for each in verdicts(plan, results_of(plan)))
    assert order == "FedProx is not much worse than FedAvg: **points to** (2 comparisons, 2 seeds)"
    assert near == "Both are as in the paper: **points against** (2 comparisons, 2 seeds)"
    results, cell = results_of(plan), next(plan.cells())
    results.add(cell, {"seed": 2, "figures": {"test": 0.71, "val": 0.5}})
    [verdict] = verdicts(
        plan.model_copy(update={"claims": [plan.claims[0].model_copy(update={"at": {"size": ["120"]}})]}), results
    )
    assert verdict_text(verdict).endswith("**points to**: 72 / 71 (1 comparison, 2 seeds)")


def test_early_rounds_and_older_code_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = table(tmp_path, table1=TABLE1.replace("seeds = 2", "seeds = 3\nearly = 5", 1))
    results = results_of(plan)
    assert "older code" not in markdown(plan, results, "table1")
    first = next(plan.cells())
    for seed, chosen in ((0, 2), (1, 5), (2, 6)):
        results.add(first, {"seed": seed, "figures": {"test": 0.7, "val": 0.5}, "round": chosen})
    text = markdown(plan, results, "table1")
    assert "| 120 | 2-3 | 70.0 ± 0.0 (2 of 3 early) | 72.0 ± 1.4 |" in text
    assert "**points to at 1 of 2**: 74 / 73 (1 comparison, 2 seeds); left out" in text
    assert "as validation chose a first round: 120" in text
    for seed in range(3):  # with one round in all there is nothing to choose
        results.add(first, {"seed": seed, "figures": {"test": 0.7, "val": 0.5}, "round": 1, "rounds": 1})
    assert "early)" not in markdown(plan, results, "table1")
    monkeypatch.setattr("isthmus.papers.results.LAWS", 99)
    assert "Older code made 9 of these runs" in markdown(plan, results, "table1")


def test_a_page_keeps_what_is_around_its_tables(tmp_path: Path) -> None:
    page = fill_page(PAGE, "table1", "new")
    assert page == PAGE.replace("old", "\nnew\n")
    assert fill_page(page, "table1", "new") == page
    assert fill_page(PAGE, "table2", "new") == PAGE
    with pytest.raises(IsthmusError, match="has no '<!-- end of table1 -->' after it"):
        fill_page(PAGE.replace("<!-- end of table1 -->", ""), "table1", "new")
    path = tmp_path / "README.md"
    path.write_text(PAGE)
    assert write_page(path, [("table1", "new"), ("table2", "new")]) == ["table2"]
    assert path.read_text() == page


def test_without_a_terminal_every_run_is_a_line_with_the_time_left(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file, Bar(Console(file=file, width=200)) as bar:
        bar.update(Progress(0, 2))
        bar.update(Progress(1, 2, 60.0, "120, fedavg, seed 0: test 0.7"))
    assert (tmp_path / "log").read_text().startswith("120, fedavg, seed 0: test 0.7 (1 of 2, about 60 s left)")


CHOICE = '\n[[choices]]\nsays = "What is trained"\nalong = "method"\nfigure = "val"\n'


def test_one_choice_for_all_cells_rests_on_the_runs_that_all_candidates_have(tmp_path: Path) -> None:
    """Seed 1 of size 120 would turn the choice, but fedprox lacks it."""
    plan, results = table(tmp_path, table1=TABLE1 + CHOICE), TableResults()
    assert "validation chooses" not in markdown(plan, results, "table1")
    fedavg, fedprox, fedavg_160, fedprox_160 = plan.cells()
    for cell, *values in ((fedavg, 0.5, 0.9), (fedprox, 0.6), (fedavg_160, 0.7), (fedprox_160, 0.8)):
        for seed, value in enumerate(values):
            results.add(cell, {"seed": seed, "figures": {"test": 0.7, "val": value}})
    assert (
        "What is trained: validation chooses **fedprox** for all cells (mean of 2 runs each: fedavg 0.6, fedprox 0.7; "
        "all are in [table1.json](results/table1.json))."
    ) in markdown(plan, results, "table1")


def test_figures_of_each_cell_may_be_chosen_from(tmp_path: Path) -> None:
    choice = CHOICE.replace("method", "figures").replace('figure = "val"', 'figures = { one = "test", other = "val" }')
    plan = table(tmp_path, table1=f'{TABLE1}{choice}at.method = ["fedavg"]\n')
    text = markdown(plan, results_of(plan, cells=2), "table1")
    assert "chooses **one** for all cells (mean of 2 runs each: one 71.0, other 0.5;" in text
    with pytest.raises(IsthmusError, match="choices: there is no figure 'vall'"):
        table(tmp_path / "wrong", table1=TABLE1 + CHOICE.replace('"val"', '"vall"'))
