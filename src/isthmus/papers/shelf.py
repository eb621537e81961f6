"""The folder of papers: `<paper>/<table>.toml` is a table, `<paper>/results/<table>.json` its results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults

CHECKOUT = Path("benchmarks/papers")
INSTALLED_FROM = Path(__file__).parents[3] / CHECKOUT
"""The tables of the checkout that an editable installation is of."""
PACKAGED = Path(__file__).with_name("tables")
"""The tables of the checkout that the wheel was built from; a checkout itself has no such folder."""


@dataclass(frozen=True)
class ShelfEntry:
    """One table of one paper."""

    folder: Path
    paper: str
    table: str

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}"

    def check_writable(self) -> None:
        """Raise an error if this table came with the package."""
        if self.folder == PACKAGED:
            raise IsthmusError(
                f"{self.name} came with the package, whose files stay as they are: copy the folder {PACKAGED} "
                "and name the copy with --folder"
            )

    @property
    def results_path(self) -> Path:
        return self.folder / self.paper / "results" / f"{self.table}.json"

    @property
    def lock(self) -> Path:
        """A file that is locked while a process adds results."""
        return self.results_path.with_name(f".{self.table}.lock")

    @property
    def pictures_path(self) -> Path:
        """The page with its curves and embeddings, if it has any."""
        return self.results_path.with_suffix(".html")

    @property
    def page(self) -> Path:
        return self.folder / self.paper / "README.md"

    @property
    def state(self) -> Path:
        """Checkpoints of runs that were stopped."""
        return self.folder / self.paper / "results" / ".state" / self.table

    @property
    def path(self) -> Path:
        return self.folder / self.paper / f"{self.table}.toml"

    @cached_property
    def plan(self) -> Table:
        return Table.of_file(self.path)

    @cached_property
    def outline(self) -> Table:
        """The plan as it is written, without checks of its studies, which take time."""
        return Table.of_file(self.path, check=False)

    @cached_property
    def results(self) -> TableResults:
        return TableResults.read(self.results_path)


def entries(folder: Path | None) -> list[ShelfEntry]:
    """List all tables in a folder, paper by paper; without one, those of a checkout or else of the package."""
    folder = folder or next((each for each in (CHECKOUT, PACKAGED, INSTALLED_FROM) if each.is_dir()), CHECKOUT)
    found = [ShelfEntry(folder, path.parent.name, path.stem) for path in folder.glob("*/*.toml")]
    if not found:
        raise IsthmusError(
            f"no tables of papers in {folder}: run this in a checkout of Isthmus, or name a folder of "
            "<paper>/<table>.toml with --folder"
        )
    return sorted(found, key=lambda each: (each.paper, _natural(each.table)))


def entry(folder: Path | None, name: str) -> ShelfEntry:
    """Return the table with this name, such as `fedgl/table2`."""
    by_name = {each.name: each for each in entries(folder)}
    if name not in by_name:
        raise IsthmusError(f"there is no table '{name}': {did_you_mean(name, by_name)}")
    return by_name[name]


def select_entries(folder: Path | None, name: str | None) -> list[ShelfEntry]:
    """Return all tables, those of one paper, or the one with this name."""
    selected = [each for each in entries(folder) if name in (None, each.paper)]
    return selected or [entry(folder, str(name))]


def _natural(text: str) -> list[str | int]:
    """A key that sorts numbers inside names by value.

    >>> sorted(["figure10", "figure4b", "figure4"], key=_natural)
    ['figure4', 'figure4b', 'figure10']
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]
