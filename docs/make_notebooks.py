"""Runs the notebooks of `examples/` and stores what they print and draw in them.

Run `python docs/make_notebooks.py` after changing a notebook, or what it shows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

BOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def executed(book: Path, folder: Path | str) -> Any:
    """The notebook with its outputs, without what depends on the machine: times, versions, warnings of libraries."""
    import nbclient
    import nbformat

    read = nbformat.read(book, as_version=4)
    about = read.metadata.copy()
    options: dict[str, Any] = {"timeout": 240, "record_timing": False, "coalesce_streams": True}
    nbclient.NotebookClient(read, resources={"metadata": {"path": str(folder)}}, **options).execute()
    read.metadata = about
    for cell in (cell for cell in read.cells if cell.cell_type == "code"):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return read


def main() -> None:
    import nbformat

    for book in BOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(book, folder), book)


if __name__ == "__main__":
    main()
