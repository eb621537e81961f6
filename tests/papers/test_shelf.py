"""The folder of papers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.papers.a_paper import TABLE1, written

from isthmus.errors import IsthmusError
from isthmus.papers import shelf
from isthmus.papers.shelf import entries, entry, select_entries


def test_tables_are_in_order_of_papers_and_numbers(tmp_path: Path) -> None:
    folder = written(tmp_path, table10=TABLE1)
    (folder / "also").mkdir()
    (folder / "also" / "figure1.toml").write_text(TABLE1)
    names = ["also/figure1", "mine/table1", "mine/table2", "mine/table10"]
    assert [each.name for each in entries(folder)] == names
    assert [each.name for each in select_entries(folder, None)] == names
    assert [each.name for each in select_entries(folder, "mine")] == names[1:]
    assert [each.name for each in select_entries(folder, "also/figure1")] == names[:1]


def test_an_entry_knows_its_files(tmp_path: Path) -> None:
    folder = written(tmp_path)
    table = entry(folder, "mine/table1")
    assert table.results_path == folder / "mine" / "results" / "table1.json"
    assert table.pictures_path == folder / "mine" / "results" / "table1.html"
    assert table.page == folder / "mine" / "README.md"
    assert {table.lock.parent, table.state.parent.parent} == {table.results_path.parent}
    assert table.plan.title == "Who learns what"
    assert table.results.cells == {}


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="there is no table 'mine/table3'"):
        select_entries(written(tmp_path), "mine/table3")
    with pytest.raises(IsthmusError, match=r"no tables of papers in .*: run this in a checkout"):
        entries(tmp_path / "nowhere")


def test_without_a_folder_tables_are_those_of_the_checkout_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {each.folder for each in entries(None)} == {shelf.INSTALLED_FROM}
    monkeypatch.setattr(shelf, "PACKAGED", written(tmp_path / "package"))
    assert {each.folder for each in entries(None)} == {shelf.PACKAGED}
    written(tmp_path / "benchmarks")
    assert {each.folder for each in entries(None)} == {shelf.CHECKOUT}
