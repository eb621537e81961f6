"""Notebooks in examples/ run from top to bottom, and are committed without outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

BOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_runs(book: Path, tmp_path: Path) -> None:
    read = nbformat.read(book, as_version=4)
    assert all(not cell.outputs and cell.execution_count is None for cell in read.cells if cell.cell_type == "code")
    nbclient.NotebookClient(read, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    told = [cell for cell in read.cells if cell.cell_type == "code"]
    assert all(any(output.output_type == "stream" for output in cell.outputs) for cell in told)


def test_there_is_one_for_each_setting() -> None:
    assert [book.stem for book in BOOKS] == ["coupled", "many-graphs", "overlap"]
