"""Every table of a paper can be run, its results are of its setting, and its page shows them."""

import pytest
from tests.benchmarks.conftest import PAPERS

from isthmus.cli.papers import parse_only
from isthmus.papers.markdown import fill_page, markdown, marks
from isthmus.papers.pictures import pictures_page
from isthmus.papers.shelf import entries

EVERY = entries(PAPERS)


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry.name)
def test_every_cell_is_a_study(entry):
    cells = list(entry.plan.cells())
    assert cells
    for cell in cells:
        cell.study_for(0)
        for trial in cell.trials():
            assert trial


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry.name)
def test_results_are_of_the_present_setting_and_on_the_page(entry):
    assert entry.results.stale(entry.plan) == []
    page = entry.page.read_text(encoding="utf-8")
    assert marks(entry.table)[0] in page
    assert fill_page(page, entry.table, markdown(entry.plan, entry.results, entry.table)) == page
    assert entry.pictures_path.exists() == bool(pictures_page(entry.plan, entry.results))


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize("entry", [each for each in EVERY if each.pictures_path.exists()], ids=lambda entry: entry.name)
def test_pictures_are_those_of_the_results(entry):
    assert entry.pictures_path.read_text(encoding="utf-8") == pictures_page(entry.plan, entry.results)


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry.name)
def test_figures_are_numbers_of_every_cell(entry):
    for cell in entry.plan.cells():
        for run in entry.results.runs(cell):
            assert set(run["figures"]) <= set(entry.plan.figures)
            assert run["figures"]
            assert all(isinstance(value, float) for value in run["figures"].values())
            assert run["date"] >= "2026-11"


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry.name)
def test_every_value_of_an_axis_can_be_asked_for(entry):
    for axis in entry.plan.axes:
        for value in axis.changes():
            assert parse_only([f"{axis.name}={value}"], entry.plan) == {axis.name: [value]}
