"""The command that sets a method of the user's own beside the methods of a leaderboard."""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import Json, Parties, PartitionName, Protocol
from isthmus.cli.console import console
from isthmus.cli.listing import DATA_SETS, complete
from isthmus.errors import Errors, IsthmusError

if TYPE_CHECKING:
    from isthmus.papers.leaderboard import Row


def bench_command(
    file: Annotated[Path, typer.Argument(metavar="METHOD.py", help="Python file that defines the method.")],
    method: Annotated[str | None, typer.Option(help="Which method, if the file defines several.")] = None,
    protocol: Protocol = "openfgl",
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set that the leaderboard has; for party folders use isthmus run --import METHOD.py.",
            autocompletion=complete(DATA_SETS),
        ),
    ] = None,
    parties: Parties = None,
    partition: PartitionName = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any option of the method: local.lr=0.1, alpha=0.5, ...")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds: 0, 1, 2, ...; by default, those of the leaderboard.")
    ] = None,
    untuned: Annotated[
        bool, typer.Option("--untuned", help="Leave out the trials that the leaderboard gives every method.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Number of runs side by side, in processes; 0: one per core.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where <paper>/<table>.toml are, as for isthmus papers."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a method of your own as a leaderboard does, and print its row among the others."""
    from isthmus.options import merge
    from isthmus.papers.bench import check_options, find_board, own_method, own_row
    from isthmus.papers.markdown import Bar
    from isthmus.papers.results import TableResults
    from isthmus.papers.running import Runner
    from isthmus.papers.shelf import entries
    from isthmus.study.config import parse_assignments
    from isthmus.study.processes import count_processes

    differing: dict[str, Any] = {"data": {"name": data}} if data else {}
    differing |= ({"partition": {"name": partition}} if partition else {}) | ({"parties": parties} if parties else {})
    errors, name, board = Errors(), "", None
    with errors.collected():
        name = own_method(file, method)
    with errors.collected():
        board = find_board(entries(folder), protocol or "openfgl", differing)
    tuned = board.tuned if board and not untuned else ()
    with errors.collected():
        check_options(name, set_ or [], tuned)
    if errors.found:
        if board:  # data that are not at hand
            with errors.collected():
                board.first.study_for(0).cut_data(0)
        errors.check()
    assert board is not None
    if not any(row.values for row in board.rows()):
        raise IsthmusError(
            f"{board.name}: no method was run there: run some first, isthmus papers run {board.entry.name}"
            + (f" --folder {shlex.quote(str(folder))}" if folder else "")
        )
    label = f"{name} ({file.name})"
    options = merge({"name": name}, parse_assignments(set_ or []))
    table = board.with_method(label, file.resolve(), options, tuned=not untuned)
    if seeds is not None and seeds > table.seeds:
        raise IsthmusError(f"--seeds {seeds}: the leaderboard has {table.seeds} seeds: give at most {table.seeds}")
    cell, results = board.cell(table, label), TableResults()
    cell.study_for(0).load(0)  # data that are not at hand, or a model that the method does not train
    with tempfile.TemporaryDirectory() as state, Bar(console(error=True)) as bar:
        only = {axis: [value] for axis, value in cell.place.items()}
        runner = Runner(table, results, Path(state), max_seeds=seeds, only=only, on_progress=bar.update)
        failed = runner.run(count_processes(jobs))
    if failed:
        raise IsthmusError(failed[0])
    own = own_row(table, cell, results)
    if as_json:
        typer.echo(json.dumps({"board": board.name, "own": _to_dict(own), "others": [*map(_to_dict, board.rows())]}))
        return
    typer.echo(_text(board.name, table, own, board.rows(), results.runs(cell)[0].get("chosen")))


def _text(name: str, table: Any, own: Row, others: list[Row], chosen: dict[str, Any] | None) -> str:
    """The leaderboard with the method's row, and how far it is ahead of each other method."""
    from isthmus.papers.leaderboard import aligned, board_lines, lead_text, ranked

    first, figure = next(iter(table.figures.items()))
    rows = ranked([own, *others], first)
    parts = [f"{name}: {figure.title or first} decides the order; ± is half of a 95 % interval"]
    parts.append(aligned(board_lines(table, rows, [], {})))
    if chosen:
        parts.append(f"chosen on validation data: {', '.join(f'{key}={value}' for key, value in chosen.items())}")
    leads = [(row.method, lead_text(own.lead(row, first), figure.digits)) for row in rows if row is not own]
    lines = [f"  over {method}: {text}" for method, text in leads if text]
    if lines:
        parts.append("\n".join([f"lead of {own.method}, paired over seeds:", *lines]))
    if missing := [row.method for row in others if not row.values]:
        parts.append(f"not run there: {', '.join(missing)}")
    return "\n\n".join(parts)


def _to_dict(row: Row) -> dict[str, Any]:
    return {"method": row.method, "figures": {name: dict(values) for name, values in row.values.items()}}
