"""The command line: run, demo, report, and what there is."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus import __version__
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="isthmus",
    help="Federated graph learning: parties that may not pool their graphs train graph models together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output and nothing else there.")]


@app.callback(invoke_without_command=True)
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"isthmus {__version__}")
        raise typer.Exit


@app.command("run")
def run_command(
    study: Annotated[Path | None, typer.Argument(help="A study as TOML; flags go on top of it.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, see isthmus datasets.")] = None,
    partition: Annotated[str | None, typer.Option(help="Cut, see isthmus partitions.")] = None,
    parties: Annotated[int | None, typer.Option(help="Number of parties.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Method, see isthmus methods; may be repeated.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder, see isthmus encoders.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of the encoder.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 0,1,2")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any option: local.lr=0.1, fedprox.mu=0.1, model.dropout=0, data.cross=0.2, ..."),
    ] = None,
    unlabelled: Annotated[str | None, typer.Option(help="Parties without training labels: error or idle.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps.")] = None,
    wire: Annotated[bool, typer.Option("--wire", help="Send every payload through bytes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start anew although the folder holds results.")] = False,
    as_json: Json = False,
) -> None:
    """Run a study and print a table."""
    from isthmus.study.config import Study, merged, read_toml

    flags = _flags(
        data=data, partition=partition, parties=parties, method=method, encoder=encoder, hidden=hidden, rounds=rounds,
        seeds=seeds, unlabelled=unlabelled, device=device, wire=wire or None,
    )  # fmt: skip
    base = {} if study is None else read_toml(study)
    where = "study" if study is None else str(study)
    whole = _with_settings(merged(base, flags), set_ or [])
    _run(Study.of(whole, where), out, resume=resume, force=force, as_json=as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/demo"),
    force: Annotated[bool, typer.Option("--force", help="Start anew although the folder holds results.")] = False,
    as_json: Json = False,
) -> None:
    """Train on a generated federation of banks with several methods and write a report."""
    from isthmus.study.config import Study

    names = ("local", "fedavg", "fedprox", "scaffold", "centralized")
    study = Study.of(
        {
            "data": {"name": "banks"},
            "methods": [{"name": name} for name in names],
            "training": {"rounds": 60},
            "seeds": [0, 1, 2],
        }
    )
    if not as_json:
        _console().print("Four banks, one transfer network: who learns what, and what leaves each bank?\n")
    _run(study, out, resume=False, force=force, as_json=as_json)
    _report([out], None, quiet=as_json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Result folders.")],
    out: Annotated[Path | None, typer.Option(help="HTML file; report.html in the first folder.")] = None,
) -> None:
    """Write a self-contained HTML page on one or more result folders."""
    _report(folders, out)


@app.command("methods")
def methods_command(as_json: Json = False) -> None:
    """List methods with their options."""
    from isthmus.methods.base import Method

    _list(Method, as_json)


@app.command("datasets")
def datasets_command(as_json: Json = False) -> None:
    """List data sets with their options."""
    from isthmus.data.pool import DataSet

    _list(DataSet, as_json)


@app.command("partitions")
def partitions_command(as_json: Json = False) -> None:
    """List ways to cut data into parties, with their options."""
    from isthmus.data.partition import Partition

    _list(Partition, as_json)


@app.command("encoders")
def encoders_command(as_json: Json = False) -> None:
    """List encoders with their options."""
    from isthmus.nn.encoders import Encoder

    _list(Encoder, as_json)


def _flags(**given: Any) -> dict[str, Any]:
    """Flags as a study's tables; what was not given stays as it is."""
    places = {
        "data": ("data", "name"), "partition": ("partition", "name"), "encoder": ("model", "encoder"),
        "hidden": ("model", "hidden"), "rounds": ("training", "rounds"),
    }  # fmt: skip
    table: dict[str, Any] = {}
    for flag, value in given.items():
        if value is None or value == []:
            continue
        if flag == "method":
            names = [name for each in value for name in each.split(",") if name]
            table["methods"] = [{"name": name} for name in names]
        elif flag == "seeds":
            table["seeds"] = _seeds(value)
        elif flag in places:
            group, key = places[flag]
            table.setdefault(group, {})[key] = value
        else:
            table[flag] = value
    return table


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()]
    except ValueError:
        raise IsthmusError(f"--seeds is '{text}': give whole numbers with commas between, such as 0,1,2") from None


def _with_settings(study: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """`--set` on top: groups of the study by their names, a method's options by its name, the rest for all methods."""
    from isthmus.methods.base import Method
    from isthmus.study.config import Study, merged, settings

    for key, value in settings(assignments).items():
        if key in Study.model_fields:
            study = merged(study, {key: value})
        elif key in Method.known() and isinstance(value, dict):
            methods = study.get("methods", Study().methods)
            if key not in [each.get("name") for each in methods]:
                raise IsthmusError(f"--set {key}: method '{key}' is not in this study")
            study["methods"] = [merged(each, value) if each.get("name") == key else each for each in methods]
        else:
            study = merged(study, {"training": {key: value}})
    return study


def _run(study: Any, out: Path | None, *, resume: bool, force: bool, as_json: bool) -> None:
    import torch

    from isthmus.study.run import run_study
    from isthmus.study.show import Live, table

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # small kernels: a second thread costs more than it gives
    if resume and out is None:
        raise IsthmusError("--resume needs --out: the folder of the run to go on with")
    with Live(_console(error=True)) as live:
        results = run_study(study, out, resume=resume, force=force, watcher=live)
    if as_json:
        typer.echo(json.dumps(results.to_dict()))
        return
    console = _console()
    console.print(table(results))
    if out is not None:
        console.print(f"results in {out}", highlight=False)


def _report(folders: list[Path], out: Path | None, quiet: bool = False) -> None:
    from isthmus.study.report import write_report

    page = write_report(folders, out)
    if not quiet:
        _console().print(f"report in {page}", highlight=False)


def _list(kind: Any, as_json: bool) -> None:
    entries = [each.describe() for each in kind.known().values()]
    if as_json:
        typer.echo(json.dumps(entries, default=str))
        return
    from rich.table import Table

    console = _console()
    for entry in entries:
        console.print(f"[bold]{entry['name']}[/bold]  {entry['summary']}", highlight=False)
        grid = Table.grid(padding=(0, 2))
        for option in entry["options"]:
            default = "required" if option["default"] is None else str(option["default"])
            grid.add_row("   ", option["name"], default, option["help"])
        console.print(grid)


def _console(error: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=error)


def main() -> None:
    """Entry point: an error is one line on standard error and exit code 2; `--debug` shows the traceback."""
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    warnings.filterwarnings("ignore", message=".*torch_geometric.distributed.*")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    debug = "--debug" in sys.argv
    if debug:  # wherever it stands on the line
        sys.argv = [sys.argv[0], "--debug", *[word for word in sys.argv[1:] if word != "--debug"]]
    try:
        app()
    except IsthmusError as error:
        if debug:
            raise
        typer.echo(f"isthmus: {' '.join(str(error).split())}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.echo("isthmus: stopped; go on with --resume", err=True)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
