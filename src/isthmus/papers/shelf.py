"""The folder of papers: `<paper>/<table>.toml` is a table, `<paper>/results/<table>.json` what was run of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.papers.kept import Kept
from isthmus.papers.plan import Table


@dataclass(frozen=True)
class Entry:
    """One table of one paper."""

    folder: Path
    paper: str
    table: str

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}"

    @property
    def results(self) -> Path:
        return self.folder / self.paper / "results" / f"{self.table}.json"

    @property
    def lock(self) -> Path:
        """Held by who adds to its results."""
        return self.results.with_name(f".{self.table}.lock")

    @property
    def drawn(self) -> Path:
        """Its curves round by round, where it has any."""
        return self.results.with_suffix(".html")

    @property
    def page(self) -> Path:
        return self.folder / self.paper / "README.md"

    @property
    def state(self) -> Path:
        """What a killed run goes on from."""
        return self.folder / self.paper / "results" / ".state" / self.table

    @cached_property
    def plan(self) -> Table:
        return Table.of_file(self.folder / self.paper / f"{self.table}.toml")

    @cached_property
    def kept(self) -> Kept:
        return Kept.read(self.results)


def entries(folder: Path) -> list[Entry]:
    """All tables there, paper by paper."""
    found = [Entry(folder, path.parent.name, path.stem) for path in folder.glob("*/*.toml")]
    if not found:
        raise IsthmusError(
            f"no tables of papers in {folder}: run this in a checkout of Isthmus, or give --folder with "
            "<paper>/<table>.toml in it"
        )
    return sorted(found, key=lambda each: (each.paper, _natural(each.table)))


def entry(folder: Path, name: str) -> Entry:
    """The table with this name: `fedgl/table2`."""
    by_name = {each.name: each for each in entries(folder)}
    if name not in by_name:
        raise IsthmusError(f"there is no table '{name}': {did_you_mean(name, by_name)}")
    return by_name[name]


def chosen_entries(folder: Path, name: str | None) -> list[Entry]:
    """All tables; of one paper; or the one with this name."""
    everything = entries(folder)
    if name is None:
        return everything
    of_paper = [each for each in everything if each.paper == name]
    return of_paper or [entry(folder, name)]


def _natural(text: str) -> list[str | int]:
    """So that numbers are in order.

    >>> sorted(["figure10", "figure4b", "figure4"], key=_natural)
    ['figure4', 'figure4b', 'figure10']
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]
