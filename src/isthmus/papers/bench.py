"""Runs a method of the user's own at a place of a table, to set it beside the methods there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.partition.base import Partition
from isthmus.data.pool import DataSet, with_path
from isthmus.errors import Errors, IsthmusError, did_you_mean
from isthmus.methods.base import Method
from isthmus.options import merge, option_paths
from isthmus.own_code import import_files
from isthmus.papers.leaderboard import Row, leaderboard
from isthmus.papers.plan import Axis, Cell, Table
from isthmus.papers.results import TableResults
from isthmus.papers.shelf import ShelfEntry
from isthmus.study.config import Study, parse_assignments
from isthmus.study.option_hints import TABLES
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

    @property
    def first(self) -> Cell:
        """The cell of the first method."""
        return next(cell for cell in self.entry.plan.cells() if self.place.items() <= cell.place.items())

    @property
    def tuned(self) -> list[str]:
        """The options that the trials choose."""
        tune = self.entry.plan.tune
        return [path.removeprefix("method.") for path in tune.options] if tune else []

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
        added = {label: {"import": [str(file.resolve())], "method": dict(method)}}
        axis = Axis(name=last.name, values={**last.changes(), **added})
        has = {f"method.{path}" for path in option_paths([Method.named(str(method["name"]))])}
        tune = table.tune if tuned and table.tune and table.tune.options.keys() <= has else None
        return table.model_copy(update={"axes": [*others, axis], "claims": [], "published": {}, "tune": tune})

    def cell(self, table: Table, label: str) -> Cell:
        """The cell of one method."""
        return next(cell for cell in table.cells() if cell.place == {**self.place, METHOD: label})


@dataclass(frozen=True)
class _Setting:
    """What all methods of a study have in common.

    Attributes:
        named: name and options of the data set and of the cut.
        rest: all else.
    """

    named: tuple[tuple[str, dict[str, Any]], ...]
    rest: tuple[int | None, int | None, dict[str, Any]]

    @classmethod
    def of(cls, study: Study) -> _Setting:
        named = [each for each in (study.data_set(), study.named_partition()) if each is not None]
        rest = (study.parties, study.data_seed, study.model)
        return cls(tuple((each.name, each.model_dump()) for each in named), rest)

    def has_names_of(self, other: _Setting) -> bool:
        """Whether they differ in options of the data and of the cut alone, which no flag sets."""
        names = [[name for name, _ in each.named] for each in (self, other)]
        return names[0] == names[1] and self.rest == other.rest


def find_board(entries: Sequence[ShelfEntry], protocol: str, study: Mapping[str, Any]) -> Board:
    """Find the place whose methods were run in a protocol, on this data set and cut.

    Arguments:
        study: what differs from the protocol: tables `data` and `partition`, and `parties`.
    """
    named = with_path(study.get("data", {}))
    if named.get("name") == PartyFolders.name and "path" in named:
        raise IsthmusError(
            f"--data {named['path']}: the leaderboard has no rows of party folders: compare methods on yours with "
            f"isthmus run --data {named['path']} --import METHOD.py --method NAME,OTHERS --seeds 3"
        )
    errors = Errors()
    with errors.collected():
        protocol_text(protocol)  # an unknown one is an error
    for table, kind in (("data", DataSet), ("partition", Partition)):
        with errors.collected():
            if name := with_path(study.get(table, {})).get("name"):
                kind.named(name)
    errors.check()
    wanted = _Setting.of(Study.of({**study, "protocol": protocol, "methods": [{"name": Method.default_name()}]}))
    boards: list[tuple[Board, _Setting]] = []
    unread, protocols = Errors(), set[str]()
    for entry in entries:
        with unread.collected():
            plan = entry.outline
            if plan.axes[-1].name == METHOD and (own := plan.study.get("protocol")):
                protocols.add(own)
                if own == protocol.lower():
                    there = [Board(entry, place) for place in _places(plan)]
                    boards += [(board, _Setting.of(board.first.study_for(0))) for board in there]
    boards.sort(key=lambda each: -len(each[0].entry.outline.axes[-1].values))
    for alike in (_Setting.__eq__, _Setting.has_names_of):
        for board, setting in boards:
            if alike(setting, wanted):
                return board
    if not boards:
        why = f"; a table that may do so cannot be read: {unread.found[0]}" if unread.found else ""
        others = f" ({', '.join(sorted(protocols))})" if protocols else ""
        raise IsthmusError(
            f"no table compares methods in protocol '{protocol}': choose another --protocol{others}{why}"
        )
    of_data = [board for board, setting in boards if setting.named[:1] == wanted.named[:1]]
    of_data = of_data or [board for board, _ in boards]
    found = [board for board in of_data if any(row.values for row in board.rows())] or of_data
    places = "; ".join(board.name for board in found[:NAMED])
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


def check_options(method: str, assignments: Sequence[str], tuned: Collection[str]) -> None:
    """Name every assignment that sets no option of a method, or one that the trials choose.

    Arguments:
        method: its name; empty if it is not known.
    """
    errors = Errors()
    for each in assignments:
        with errors.collected():
            table = parse_assignments([each])
            path = each.partition("=")[0].strip()
            first = path.partition(".")[0]
            if path in tuned:
                raise IsthmusError(f"--set {path}: the trials choose it: add --untuned")
            if method and first in {*TABLES, "training"}.difference(Method.named(method).option_names()):
                raise IsthmusError(
                    f"--set {path}: the table has one {first} for all methods: set options of '{method}'"
                )
            if method:
                Method.named(method).read(table, f"method '{method}'")
    errors.check()


def own_row(table: Table, cell: Cell, results: TableResults) -> Row:
    """The row of the method that was run."""
    place = {axis: value for axis, value in cell.place.items() if axis != METHOD}
    return next(row for row in leaderboard(table, results, place) if row.method == cell.place[METHOD])
