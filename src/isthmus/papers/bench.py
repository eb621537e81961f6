"""Runs a method of the user's own at a place of a table, to set it beside the methods there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.methods.base import Method
from isthmus.options import option_paths
from isthmus.own_code import import_files
from isthmus.papers.leaderboard import Row, leaderboard
from isthmus.papers.plan import Axis, Cell, Table
from isthmus.papers.results import TableResults
from isthmus.papers.shelf import ShelfEntry
from isthmus.study.config import Study, merge, read_toml
from isthmus.study.protocol import protocol_text

METHOD = "method"
"""The axis that has the methods; the last of a table."""

NAMED = 4
"""How many places an error names."""


@dataclass(frozen=True)
class Board:
    """A place of a table whose methods differ in nothing but the method.

    Attributes:
        place: a value of every axis but the last.
    """

    entry: ShelfEntry
    place: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.entry.name}: {', '.join(self.place.values())}"

    def rows(self) -> list[Row]:
        """The methods of the table, as committed."""
        return leaderboard(self.entry.plan, self.entry.results, self.place)

    def with_method(self, label: str, file: Path, method: Mapping[str, Any], *, tuned: bool) -> Table:
        """The table with one more method, which is tuned as the table says, if it has the options that are tuned.

        Arguments:
            label: its value on the axis of methods.
            method: its name and options, as in a study.
        """
        table = self.entry.plan
        *others, last = table.axes
        added = {label: {"imports": [str(file)], "method": dict(method)}}
        axis = Axis(name=last.name, values={**last.changes(), **added})
        has = {f"method.{path}" for path in option_paths([Method.named(str(method["name"]))])}
        tune = table.tune if tuned and table.tune and table.tune.options.keys() <= has else None
        return table.model_copy(update={"axes": [*others, axis], "claims": [], "published": {}, "tune": tune})

    def cell(self, table: Table, label: str) -> Cell:
        """The cell of one method."""
        return next(cell for cell in table.cells() if cell.place == {**self.place, METHOD: label})


def find_board(entries: Sequence[ShelfEntry], protocol: str, study: Mapping[str, Any]) -> Board:
    """Find the place whose methods were run in a protocol, on this data set and cut.

    Arguments:
        study: what differs from the protocol: tables `data` and `partition`, and `parties`.
    """
    protocol_text(protocol)  # an unknown one is an error
    wanted = _setting(Study.of({**study, "protocol": protocol, "methods": [{"name": Method.default_name()}]}))
    found = []
    for entry in entries:
        plan = read_toml(entry.folder / entry.paper / f"{entry.table}.toml")
        if plan.get("study", {}).get("protocol") == protocol.lower() and plan["axes"][-1]["name"] == METHOD:
            found += [Board(entry, place) for place in _places(entry.plan)]
    for board in found:
        first = next(cell for cell in board.entry.plan.cells() if board.place.items() <= cell.place.items())
        if _setting(first.study_for(0)) == wanted:
            return board
    places = "; ".join(board.name for board in found[:NAMED]) or "none"
    more = f"; and {len(found) - NAMED} others" if len(found) > NAMED else ""
    raise IsthmusError(
        f"no table compares methods in protocol '{protocol}' with these data, parties and partition: choose "
        f"--protocol, --data, --parties and --partition so that they are those of one of: {places}{more}"
    )


def _places(table: Table) -> list[dict[str, str]]:
    """Values of all axes but the last, without those that change how methods train."""
    places = []
    for cell in table.cells():
        place = {axis: value for axis, value in cell.place.items() if axis != METHOD}
        changes: dict[str, Any] = {}
        for axis in table.axes[:-1]:
            changes = merge(changes, axis.changes()[place[axis.name]])
        if place not in places and not changes.keys() & {"method", "training"}:
            places.append(place)
    return places


def _setting(study: Study) -> list[object]:
    """What all methods of a study have in common: the data, the cut and the model."""
    data, partition = study.data_set(), study.named_partition()
    named = [(each.name, each.model_dump()) for each in (data, partition) if each is not None]
    return [named, study.parties, study.model]


def own_method(file: Path, name: str | None) -> str:
    """Import a file and return the name of the method that it defines.

    Arguments:
        name: which one, if it defines several.
    """
    import_files([file])
    own = sorted(each for each, kind in Method.known().items() if kind.__module__ == file.stem)
    if name is not None and name not in own:
        raise IsthmusError(f"{file} defines no method '{name}': {did_you_mean(name, own)}")
    if not own:
        raise IsthmusError(f"{file} defines no method: write a class in it that has `Method` as its base, and a `name`")
    if name is None and len(own) > 1:
        raise IsthmusError(f"{file} defines {', '.join(own)}: choose one with --method")
    return name or own[0]


def own_row(table: Table, cell: Cell, results: TableResults) -> Row:
    """The row of the method that was run."""
    place = {axis: value for axis, value in cell.place.items() if axis != METHOD}
    return next(row for row in leaderboard(table, results, place) if row.method == cell.place[METHOD])
