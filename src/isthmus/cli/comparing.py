"""Commands that put finished studies side by side: compare, runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.common import Json
from isthmus.cli.console import console

if TYPE_CHECKING:
    from rich.table import Table

_IN_COLUMNS = ("data.name", "task.metric")
"""Options that other columns show."""


def compare_command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Result folders.")], as_json: Json = False
) -> None:
    """Print one table over result folders: data, methods, seeds, test metric, and the options that differ."""
    from isthmus.report import wording
    from isthmus.report.compare import compare

    found = compare(*folders)
    if as_json:
        typer.echo(json.dumps({"runs": found.rows, "differ": found.differ}))
        return
    table = _table("run", "data", "method", "seeds", "result", "options that differ")
    for row in found.rows:
        shown = {name: value for name, value in row["options"].items() if name not in _IN_COLUMNS}
        options = wording.setting(shown) if shown else ""
        _add(table, row["run"], row["data"], row["method"], str(row["seeds"]), row["text"], options)
    _print(table)


def runs_command(
    folder: Annotated[Path, typer.Argument(help="Folder with result folders.")] = Path("runs"), as_json: Json = False
) -> None:
    """List the result folders below a folder, newest first."""
    from isthmus.report.compare import list_runs

    rows = list_runs(folder)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo(f"no result folders below {folder}")
        return
    table = _table("run", "date", "data", "methods", "best on validation data")
    for row in rows:
        _add(table, row["run"], row["created"][:10], row["data"], ", ".join(row["methods"]), row["headline"])
    _print(table)


def _print(table: Table) -> None:
    """Print a table; in a pipe, without blanks at the ends of lines."""
    screen = console()
    if screen.is_terminal:
        screen.print(table)
        return
    with screen.capture() as found:
        screen.print(table)
    for line in found.get().splitlines():
        typer.echo(line.rstrip())


def _table(*heads: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _add(table: Table, *texts: str) -> None:
    from rich.markup import escape

    table.add_row(*map(escape, texts))
