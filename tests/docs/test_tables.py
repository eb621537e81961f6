"""The tables of options in the pages are those of the code."""

from __future__ import annotations

import pytest
from scripts import DOCS, script

MODULE = script("make_tables")


@pytest.mark.parametrize("page", sorted({page for page, _ in MODULE.parts().values()}))
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


def test_missing_markers_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"methods\.md: the markers of 'methods' are there 0 times"):
        MODULE.written("# Methods", "methods.md")


@pytest.mark.slow
def test_check_says_which_page_is_old_and_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
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
