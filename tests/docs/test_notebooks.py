"""Notebooks in examples/ run from top to bottom, and are committed with their outputs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from scripts import script

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

MODULE = script("make_notebooks")
AGAIN = "run python docs/make_notebooks.py"


SHORT = Path(__file__).with_name("short.py").read_text(encoding="utf-8")
"""The first cell here: what is printed and drawn after two rounds is of the same kinds as after all."""


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def kinds(book: Any) -> list[list[str]]:
    """For each cell whether it prints or draws. What exactly depends on versions of libraries."""
    return [["picture" if "image/png" in each.get("data", {}) else "text" for each in cell.outputs]
            for cell in code_cells(book)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", MODULE.BOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_stored(path: Path, tmp_path: Path) -> None:
    if "cora" in path.stem and "ISTHMUS_DATA" not in os.environ:
        pytest.skip("ISTHMUS_DATA names no folder of data sets")
    stored = nbformat.read(path, as_version=4)
    due = kinds(stored)
    stored.cells.insert(0, nbformat.v4.new_code_cell(SHORT))
    nbformat.write(stored, short := tmp_path / path.name)
    assert kinds(MODULE.executed(short, tmp_path)) == [[], *due], AGAIN


@pytest.mark.parametrize("path", MODULE.BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    book, text = nbformat.read(path, as_version=4), path.read_text(encoding="utf-8")
    assert all(cell.outputs for cell in code_cells(book)), AGAIN
    assert any("picture" in cell for cell in kinds(book)), "curves are drawn"
    assert len(text) < 300_000
    assert not re.search(r"/home/|/tmp/|/root/|site-packages|Users\\", text), "no path of a machine"
    assert not any("execution" in cell.metadata for cell in code_cells(book)), "no time of a run"


def test_there_is_one_for_each_setting() -> None:
    assert [path.stem for path in MODULE.BOOKS] == ["coupled", "fedavg-on-cora", "many-graphs", "overlap"]
