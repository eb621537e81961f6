"""The command line of papers: list, run and show their tables, and check their claims."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import Json, Ray, connected, resumable
from isthmus.cli.console import console
from isthmus.errors import Errors, IsthmusError

if TYPE_CHECKING:
    from isthmus.papers.claims import Verdict
    from isthmus.papers.plan import Table
    from isthmus.papers.results import TableResults
    from isthmus.papers.shelf import ShelfEntry

app = typer.Typer(help="Tables and figures of papers, ours beside theirs.", rich_markup_mode=None)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="Where <paper>/<table>.toml are; by default benchmarks/papers, or what the package has."
    ),
]
Some = Annotated[str | None, typer.Argument(help="A paper, or one of its tables: PAPER, PAPER/TABLE; all without.")]


@app.callback(invoke_without_command=True)
def list_command(context: typer.Context, folder: Folder = None, as_json: Json = False) -> None:
    """List all tables, and how much of each was run."""
    if context.invoked_subcommand is not None:
        if folder is not None:
            raise IsthmusError(f"say --folder {folder} after '{context.invoked_subcommand}'")
        return
    from isthmus.papers.results import count_runs
    from isthmus.papers.shelf import entries

    found, errors = [], Errors()
    for each in entries(folder):
        with errors.collected():
            runs, of = count_runs(each.outline, each.results)
            found.append({"name": each.name, "title": each.outline.title, "runs": runs, "of": of})
    if as_json:
        errors.check()
        typer.echo(json.dumps(found))
        return
    screen = console()
    for line in found:
        screen.print(
            f"{line['name']:<22} {line['runs']:>5} of {line['of']:>5} runs  {line['title']}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    screen.print("\nrun one: isthmus papers run NAME", markup=False, highlight=False)
    errors.check()


@app.command("run")
def run_command(
    name: Annotated[str, typer.Argument(help="A table, see isthmus papers.")],
    folder: Folder = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed of few rounds, to check that it works; nothing is saved.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Run what the results lack.")] = False,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="As --resume, and repeat runs by older laws, or with options no longer best."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete the results of these cells and start again.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of a cell, at most.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Some values of an axis: data=cora,acm; may be repeated.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Number of processes; 0, the default, is one per core.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where models are trained: cpu, cuda or mps.")] = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Run a table, cell by cell, and show it; every run is saved at once."""
    from isthmus import store
    from isthmus.papers.elsewhere import Elsewhere
    from isthmus.papers.markdown import Bar, markdown
    from isthmus.papers.running import Runner
    from isthmus.papers.shelf import entry, select_entries
    from isthmus.study.processes import count_processes

    which = entry(folder, name)
    if not quick:
        which.check_writable()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not quick:  # two processes that write the same file would lose results
            stack.enter_context(store.lock(which.lock, which.name))
        table, results, save = _load(which, quick=quick, overwrite=resume or renew or force)
        bar = stack.enter_context(Bar(console(error=True)))
        state = scratch if quick else which.state
        cells = parse_only(only or [], table)
        others = [] if quick or force else [each for each in select_entries(folder, which.paper) if each != which]
        runner = Runner(
            table, results, state, max_seeds=seeds, only=cells, device=device, renew=renew, save=save,
            elsewhere=Elsewhere(others), on_progress=bar.update,
        )  # fmt: skip
        if force:
            runner.discard()
        cluster = stack.enter_context(connected(ray))
        number = count_processes(jobs) if cluster is None else cluster.jobs(jobs)
        with resumable(lambda: not quick):
            failed = runner.run(number, None if cluster is None else cluster.pool(jobs))
    kept = "" if quick else which.table
    typer.echo(json.dumps(_to_dict(table, results)) if as_json else markdown(table, results, kept))
    if failed:
        raise IsthmusError(f"{len(failed)} runs failed, the others are saved; the first: {failed[0]}")


def _load(
    which: ShelfEntry, *, quick: bool, overwrite: bool
) -> tuple[Table, TableResults, Callable[[TableResults], None]]:
    """Return the table, the results to start from, and a function that saves results."""
    from isthmus.papers.results import TableResults

    if quick:
        return which.plan.for_quick_run(), TableResults(), lambda results: None
    results = which.results
    if results.cells and not overwrite:
        raise IsthmusError(f"{which.results_path} has results: --resume adds what is missing, --force starts again")
    return which.plan, results, lambda found: found.write(which.results_path)


@app.command("show")
def show_command(name: Some = None, folder: Folder = None, as_json: Json = False) -> None:
    """Print tables as Markdown, with the paper's numbers below ours."""
    from isthmus.papers.markdown import markdown
    from isthmus.papers.shelf import select_entries

    found = select_entries(folder, name)
    if as_json:
        typer.echo(json.dumps({each.name: _to_dict(each.plan, each.results) for each in found}))
        return
    for each in found:
        typer.echo(f"# {each.name}: {each.plan.title}\n\n{markdown(each.plan, each.results, each.table)}\n")


@app.command("check")
def check_command(name: Some = None, folder: Folder = None, as_json: Json = False) -> None:
    """Check which claims of the papers our numbers support."""
    from isthmus.papers.markdown import verdict_text, verdicts
    from isthmus.papers.shelf import select_entries

    tables = select_entries(folder, name)
    found = {each.name: (verdicts(each.plan, each.results), each.results.stale(each.plan)) for each in tables}
    if as_json:
        checked = {key: {"claims": _claims(judged), "stale": stale} for key, (judged, stale) in found.items()}
        typer.echo(json.dumps(checked))
        return
    for key, (judged, stale) in found.items():
        for verdict in judged:
            typer.echo(f"{key}: {verdict_text(verdict).replace('**', '')}")
        if not judged:
            typer.echo(f"{key}: no claims")
        if stale:
            typer.echo(f"{key}: {len(stale)} cells were run in another setting: run it with --resume ({stale[0]})")


@app.command("page")
def page_command(name: Some = None, folder: Folder = None) -> None:
    """Write tables into the README.md of their papers, and curves and embeddings into pages of their own."""
    from isthmus import store
    from isthmus.papers.markdown import markdown, marks, write_page
    from isthmus.papers.pictures import pictures_page
    from isthmus.papers.shelf import select_entries

    by_page: dict[Path, list[tuple[str, str]]] = {}
    for each in select_entries(folder, name):
        each.check_writable()
        text = markdown(each.plan, each.results, each.table)
        if drawn := pictures_page(each.plan, each.results):
            store.write(each.pictures_path, drawn)
        by_page.setdefault(each.page, []).append((each.table, text))
    errors = Errors()
    for page, texts in by_page.items():
        missing = write_page(page, texts)
        typer.echo(f"{len(texts) - len(missing)} tables in {page}")
        for table in missing:
            begin, end = marks(table)
            why = "there is no line" if page.exists() else "there is no such page: make it, with the line"
            with errors.collected():
                raise IsthmusError(f"{page}: {table} was not written: {why} '{begin}', and below it '{end}'")
    errors.check()


def _to_dict(table: Table, results: TableResults) -> dict[str, Any]:
    """Return all runs and verdicts of a table."""
    from isthmus.papers.markdown import verdicts

    cells = [{"at": dict(cell.place), "runs": results.runs(cell)} for cell in table.cells()]
    return {"cells": [cell for cell in cells if cell["runs"]], "claims": _claims(verdicts(table, results))}


def _claims(checked: Sequence[Verdict]) -> list[dict[str, str]]:
    return [{"says": each.claim.says, "verdict": each.word, "basis": each.basis} for each in checked]


def parse_only(texts: Sequence[str], table: Table) -> dict[str, list[str]]:
    """Read values of axes such as `data=cora,acm`; a value may contain commas, as in `data=cora, 2.6 %`."""
    found: dict[str, list[str]] = {}
    known = {value for axis in table.axes for value in axis.changes()}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals or not values:
            raise IsthmusError(f"--only {text}: name an axis and its values, such as data=cora,acm")
        parts = [values] if values in known else [value.strip() for value in values.split(",")]
        found.setdefault(axis, []).extend(parts)
    return found
