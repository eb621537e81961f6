"""The tables of options in the pages are those of the code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from scripts import DOCS, script
from tests.papers.a_paper import TABLE1, table

from helpers import slow_but
from isthmus.papers.results import TableResults

MODULE = script("make_tables")
PAGES = sorted({page for page, _ in MODULE.parts().values()})


@pytest.mark.parametrize("page", slow_but([page for page in PAGES if page != "papers.md"], PAGES))
def test_tables_are_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert MODULE.written(text, page) == text, "run python docs/make_tables.py"


@pytest.mark.parametrize("marker", sorted(MODULE.KINDS))
def test_every_option_is_in_a_table(marker: str) -> None:
    _, base = MODULE.KINDS[marker]
    table = MODULE.tables(base)
    for entry in MODULE.entries(base):
        for name in (entry["name"], *(option["name"] for option in entry["options"])):
            assert f"`{name}`" in table


def test_every_option_says_what_it_is_for() -> None:
    for _, base in MODULE.KINDS.values():
        for entry in MODULE.entries(base):
            assert entry["summary"], entry["name"]
            for option in entry["options"]:
                assert option["help"], f"{entry['name']}: {option['name']} has no docstring"


def test_splits_are_pooled_and_first_rounds_marked(tmp_path: Path) -> None:
    """The mean is that of the splits' means, whatever the number of their runs."""
    plan = table(tmp_path, table1=TABLE1.replace("seeds = 2", "seeds = 2\nearly = 5", 1))
    study, cells = SimpleNamespace(plan=plan, results=TableResults()), list(plan.cells())
    assert MODULE.pooled(study, []) == "Not run yet."
    for at, seed, test, chosen in ((0, 0, 0.6, 9), (0, 1, 0.8, 3), (2, 0, 0.9, 9)):
        study.results.add(cells[at], {"seed": seed, "figures": {"test": test}, "round": chosen})
    assert MODULE.pooled(study, []).splitlines() == ["| fedavg |", "| --- |", "| 80.0 ± 14.1 (3, 1 early) |"]
    study.results.add(cells[1], {"seed": 0, "figures": {"test": 0.5}})
    assert MODULE.pooled(study, ["size"]).splitlines()[2:] == [
        "| 120 | 70.0 ± 14.1 (2, 1 early) | 50.0 (1) |",
        "| 160 | 90.0 (1) |  |",
    ]


def test_missing_markers_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"methods\.md: the markers of 'methods' are there 0 times"):
        MODULE.written("# Methods", "methods.md")


def test_check_says_which_page_is_old_and_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    some = {marker: MODULE.parts()[marker] for marker in ("encoders", "partitions")}  # those of papers take long
    monkeypatch.setattr(MODULE, "parts", lambda: some)
    for page, _ in MODULE.parts().values():
        (tmp_path / page).write_text((DOCS / page).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(MODULE, "HERE", tmp_path)
    assert MODULE.main(["--check"]) == 0
    old = tmp_path / "models.md"
    old.write_text(
        old.read_text(encoding="utf-8").replace("| `hidden` | `64` |", "| `hidden` | `63` |"), encoding="utf-8"
    )
    before = old.read_text(encoding="utf-8")
    assert MODULE.main(["--check"]) == 1
    assert "models.md" in capsys.readouterr().err
    assert old.read_text(encoding="utf-8") == before
    assert MODULE.main([]) == 0
    assert MODULE.main(["--check"]) == 0
