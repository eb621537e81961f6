"""The command line: runs, tunes, compares, describes and reports studies, uses models, lists all that is registered."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli import listing
from isthmus.cli.audit import audit_command, audits_command
from isthmus.cli.bench import bench_command
from isthmus.cli.common import (
    ON_SUBSET,
    Data,
    Encoder,
    Hidden,
    Import,
    Json,
    MethodNames,
    Metric,
    Parties,
    PartitionName,
    Protocol,
    Ray,
    Rounds,
    Seed,
    Seeds,
    SelectBy,
    Settings,
    Split,
    StudyFile,
    Unlabelled,
    connected,
    give_ray_a_value,
    read_study,
    resumable,
    use_one_thread,
)
from isthmus.cli.comparing import compare_command, runs_command
from isthmus.cli.console import console
from isthmus.cli.doctor import doctor_command
from isthmus.cli.dossier import app as dossier_commands
from isthmus.cli.federation import app as federation_commands
from isthmus.cli.interrupts import on_interrupt, stop
from isthmus.cli.listing import print_kind, print_protocols
from isthmus.cli.models import embed_command, export_command, predict_command
from isthmus.cli.papers import app as papers_commands
from isthmus.cli.party import app as party_commands
from isthmus.cli.tuning import tune_command
from isthmus.cli.usage import usage_text
from isthmus.errors import IsthmusError, SeveralErrors, flags_in_messages, ignore_library_warnings, out_of_memory
from isthmus.own_code import import_files, where_raised
from isthmus.version import VERSION

if TYPE_CHECKING:
    from isthmus.study.config import Study
    from isthmus.study.run import Watcher

app = typer.Typer(
    name="isthmus",
    help="Federated graph learning: parties that may not pool their graphs train graph models together.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(party_commands, name="party")
app.add_typer(federation_commands, name="federation")
app.add_typer(papers_commands, name="papers")
app.add_typer(dossier_commands, name="dossier")


def _shown(kind: listing.Kind) -> Any:
    return typer.Argument(help="Show this one with its options.", autocompletion=listing.complete(kind))


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"isthmus {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("run")
def run_command(
    study: StudyFile = None,
    protocol: Protocol = None,
    data: Data = None,
    partition: PartitionName = None,
    parties: Parties = None,
    split: Split = None,
    method: MethodNames = None,
    encoder: Encoder = None,
    hidden: Hidden = None,
    rounds: Rounds = None,
    metric: Metric = None,
    select_by: SelectBy = None,
    seeds: Seeds = None,
    seed: Seed = None,
    set_: Settings = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Values to compare, local.lr=0.01,0.1 or model.hidden=32,64; repeat for all combinations."),
    ] = None,
    import_: Import = None,
    unlabelled: Unlabelled = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps.")] = None,
    wire: Annotated[bool, typer.Option("--wire", help="Send every payload as bytes; results are equal.")] = False,
    out: Annotated[Path | None, typer.Option(help="Result folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in --out.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over and delete the results in the folder.")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Number of runs side by side, in processes; 0: one per core.")] = 1,
    ray: Ray = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a live report on this machine while the study runs.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --watch; by default, a free one.")] = 0,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder to write curves to for TensorBoard.")] = None,
    mlflow: Annotated[str | None, typer.Option(help="Address of an MLflow server to send curves to.")] = None,
    wandb: Annotated[Path | None, typer.Option(help="Folder to write Weights & Biases runs to, offline.")] = None,
    as_json: Json = False,
) -> None:
    """Run a study and print a table."""
    if seeds is not None and seed is not None:
        raise IsthmusError("--seeds and --seed exclude each other: leave one out")
    whole = read_study(
        study, set_ or [], protocol=protocol, data=data, partition=partition, parties=parties, split=split,
        method=method, encoder=encoder, hidden=hidden, rounds=rounds, seeds=seeds, seed=seed, metric=metric,
        select_by=select_by, imports=import_, unlabelled=unlabelled, device=device, wire=wire or None, grid=grid,
    )  # fmt: skip
    if port and not watch:
        raise IsthmusError("--port is the port of --watch: add --watch")
    with _watchers(whole, port if watch else None, tensorboard, mlflow, wandb) as watchers:
        _run(whole, out, resume=resume, force=force, as_json=as_json, jobs=jobs, ray=ray, watchers=watchers)


@app.command("describe")
def describe_command(
    study: StudyFile = None,
    protocol: Protocol = None,
    data: Data = None,
    partition: PartitionName = None,
    parties: Parties = None,
    split: Split = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any option: data.cross=0.2, partition.beta=0.1, ...")
    ] = None,
    import_: Import = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the split and the cut; by default, the study's first seed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what each party holds, without training."""
    from isthmus.data.describe import describe
    from isthmus.progress.terminal import show_cut

    whole = read_study(
        study, set_ or [], protocol=protocol, data=data, partition=partition, parties=parties, split=split,
        imports=import_,
    )  # fmt: skip
    loaded = whole.cut_data(whole.seeds[0] if seed is None else seed)
    description = describe(loaded.parties, loaded.classes, loaded.note, loaded.labels)
    if as_json:
        typer.echo(json.dumps(description.to_dict()))
        return
    show_cut(description, console())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("runs/demo"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue a demo that was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over and delete the results in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Train on a generated federation of banks with several methods, and write a report."""
    from isthmus.methods.base import Method
    from isthmus.study.config import Study

    known = sorted(Method.known().values(), key=lambda kind: kind.listing.demo)
    study = Study.of(
        {
            "data": {"name": "banks"},
            "methods": [{"name": kind.name} for kind in known if kind.listing.demo],
            "training": {"rounds": 60},
            "seeds": [0, 1, 2],
        }
    )
    if not as_json:
        console().print("Four banks, one transfer network: who learns what, and what leaves each bank?\n")
    _run(study, out, resume=resume, force=force, as_json=as_json)
    _report([out], None, quiet=as_json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Result folders.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML file; by default, report.html in the folder; needed for several folders. With --party: a folder."
        ),
    ] = None,
    party: Annotated[
        list[str] | None,
        typer.Option(
            help="Write a page for this party alone, parties/NAME.html in the folder; repeat, or use * for any "
            "letters: 50 pages at most."
        ),
    ] = None,
) -> None:
    """Write a self-contained HTML report on one or more result folders."""
    if not party:
        if out is not None and out.is_dir():
            raise IsthmusError(f"{out} is a folder: name the file, --out {out / 'report.html'}")
        _report(folders, out)
        return
    from isthmus.report.party_pages import write_party_pages

    for each in write_party_pages(folders, party, out):
        typer.echo(f"page in {each}")


@app.command()
def advise(
    folders: Annotated[
        list[Path], typer.Argument(help="Party folders, folders of them, or files from isthmus party counts.")
    ],
    key: Annotated[Path | None, typer.Option(help="File with the key that the parties share.")] = None,
    as_json: Json = False,
) -> None:
    """Recommend methods for these parties, from counts of their data alone."""
    from dataclasses import asdict

    from isthmus.advice.counts import Counts
    from isthmus.advice.methods import Situation, advised, commands, flags, shared_nodes
    from isthmus.data.folder.loading import find_folders, read_folders
    from isthmus.data.folder.shared_nodes import ROW_NUMBERS, have_row_numbers
    from isthmus.data.ids import read_hashing

    hashing = read_hashing(key)
    files = [each for each in folders if each.is_file()]
    party_folders = dict.fromkeys(
        each.resolve() for folder in folders if folder not in files for each in find_folders(folder)
    )
    contents = [each for folder in party_folders for each in read_folders(folder, hashing)[0]]
    given = [*map(Counts.of, contents), *(each for file in files for each in Counts.read_file(file))]
    counts = [each for at, each in enumerate(given) if each not in given[:at]]  # a party given twice counts once
    situation = Situation.of(counts, None if files else shared_nodes(contents))
    labels = {tuple(each.settings.labels or ()) for each in contents}
    rare = situation.rare_class(labels.pop() if len(labels) == 1 and not files else ())
    if have_row_numbers(contents):
        typer.echo(f"note: {ROW_NUMBERS}", err=True)
    large, one_way, few_shared = situation.large_party(), situation.one_way(), situation.few_shared()
    found = list(advised(situation))
    parents = {folder.parent for folder in party_folders} if not files and len(folders) > 1 else set()
    together = len(parents) == 1 and {*map(Path.resolve, find_folders(*parents))} == {*party_folders}
    one = folders[0] if len(folders) == 1 and not files else next(iter(parents)) if together else None
    data = "FOLDER" if one is None else shlex.quote(f"{one}/")  # with a slash, it is no name of a data set
    if as_json:
        answers = [
            {
                "methods": advice.methods,
                "flags": {name: flags(name) for name in advice.methods},
                "commands": commands(situation, advice.methods, data),
                "why": advice.why,
                "leaves": advice.leaves,
                "costs": advice.costs,
            }
            for advice in found
        ]
        typer.echo(
            json.dumps(
                {
                    "situation": asdict(situation),
                    "rare_class": rare,
                    "large_party": large,
                    "one_way": one_way,
                    "few_shared": few_shared,
                    "advice": answers,
                }
            )
        )
        return
    typer.echo(situation.summary())
    for line in filter(None, (large, one_way, few_shared, rare)):
        typer.echo(line)
    for advice in found:
        names = ", ".join(advice.methods)
        typer.echo(f"\n{names}\n  why: {advice.why}\n  what else leaves a party, apart from models: {advice.leaves}")
        if advice.costs:
            typer.echo(f"  time: {advice.costs}")
        for command in commands(situation, advice.methods, data):
            typer.echo(f"  {command}")
    if one is None and found:
        typer.echo("\nFOLDER is a folder that holds all these party folders")
    if not found:
        typer.echo("\nno method: no item has a label, and methods that learn without labels need whole graphs")


app.command("audit")(audit_command)
app.command("bench")(bench_command)


@app.command("methods")
def methods_command(
    name: Annotated[str | None, _shown(listing.METHODS)] = None, import_: Import = None, as_json: Json = False
) -> None:
    """List methods with their options."""
    import_files(import_ or ())
    print_kind(listing.METHODS, name, as_json)


@app.command("datasets")
def datasets_command(
    name: Annotated[str | None, _shown(listing.DATA_SETS)] = None, import_: Import = None, as_json: Json = False
) -> None:
    """List data sets with their options."""
    import_files(import_ or ())
    print_kind(listing.DATA_SETS, name, as_json)


@app.command("partitions")
def partitions_command(
    name: Annotated[str | None, _shown(listing.PARTITIONS)] = None, import_: Import = None, as_json: Json = False
) -> None:
    """List ways to cut data into parties, with their options."""
    import_files(import_ or ())
    print_kind(listing.PARTITIONS, name, as_json)


@app.command("tasks")
def tasks_command(
    name: Annotated[str | None, _shown(listing.TASKS)] = None, import_: Import = None, as_json: Json = False
) -> None:
    """List tasks with their options."""
    import_files(import_ or ())
    print_kind(listing.TASKS, name, as_json)


@app.command("encoders")
def encoders_command(
    name: Annotated[str | None, _shown(listing.ENCODERS)] = None, import_: Import = None, as_json: Json = False
) -> None:
    """List encoders with their options."""
    import_files(import_ or ())
    print_kind(listing.ENCODERS, name, as_json)


@app.command("protocols")
def protocols_command(
    name: Annotated[
        str | None, typer.Argument(help="Print the options of this one.", autocompletion=listing.complete_protocol)
    ] = None,
    as_json: Json = False,
) -> None:
    """List published protocols that a study can start from."""
    print_protocols(name, as_json)


app.command("audits")(audits_command)
app.command("doctor")(doctor_command)
app.command("tune")(tune_command)
app.command("compare")(compare_command)
app.command("runs")(runs_command)
app.command("predict")(predict_command)
app.command("embed")(embed_command)
app.command("export")(export_command)


def _run(
    study: Any,
    out: Path | None,
    *,
    resume: bool,
    force: bool,
    as_json: bool,
    jobs: int = 1,
    ray: str | None = None,
    watchers: Sequence[Watcher] = (),
) -> None:
    from isthmus.progress.terminal import TerminalProgress, show_results
    from isthmus.result_files import STATE
    from isthmus.study.run import Watchers, run_study

    use_one_thread()
    if resume and out is None:
        raise IsthmusError("--resume needs --out: give the folder of the study to continue")
    with (
        resumable(lambda: out is not None and (out / STATE).is_dir()),
        connected(ray) as cluster,
        TerminalProgress(console(error=True)) as terminal,
    ):
        watcher = Watchers(terminal, *watchers)
        results = run_study(study, out, resume=resume, force=force, watcher=watcher, cluster=cluster, jobs=jobs)
    if as_json:
        typer.echo(json.dumps(results.to_dict()))
    else:
        show_results(results, console())
        if out is not None:
            typer.echo(f"results in {out}")
    if results.on_subset():
        raise typer.Exit(ON_SUBSET)


@contextmanager
def _watchers(
    study: Study, port: int | None, tensorboard: Path | None, mlflow: str | None, wandb: Path | None
) -> Iterator[list[Watcher]]:
    """Open the watchers that the flags ask for."""
    watchers: list[Watcher] = []
    with ExitStack() as stack:
        if tensorboard is not None:
            from isthmus.progress.tracking import TensorBoard

            watchers.append(stack.enter_context(TensorBoard(tensorboard)))
        if mlflow is not None:
            from isthmus.progress.tracking import MlFlow

            watchers.append(stack.enter_context(MlFlow(study, mlflow)))
        if wandb is not None:
            from isthmus.progress.tracking import WeightsAndBiases

            watchers.append(stack.enter_context(WeightsAndBiases(study, wandb)))
        if port is not None:
            from isthmus.progress.live_page import LivePage

            page = stack.enter_context(LivePage(study, port))
            typer.echo(f"watch it at {page.address}", err=True)
            watchers.append(page)
        yield watchers


def _report(folders: list[Path], out: Path | None, quiet: bool = False) -> None:
    from isthmus.report.report import write_report

    page = write_report(folders, out)
    if not quiet:
        typer.echo(f"report in {page}")


def main() -> None:
    """Run the command line: an error is one line on standard error and exit code 2; `--debug` shows its traceback."""
    ignore_library_warnings()
    on_interrupt(_interrupt)
    debug = "--debug" in sys.argv
    if debug:  # at any position
        sys.argv = [sys.argv[0], "--debug", *[word for word in sys.argv[1:] if word != "--debug"]]
    sys.argv[1:] = give_ray_a_value(sys.argv[1:])
    with flags_in_messages():
        try:
            code = _run_app()
        except Exception as error:
            known = isinstance(error, IsthmusError)
            wrong_usage = hasattr(error, "format_message")  # an error of the click that typer bundles
            foreign = not known and not wrong_usage
            place = f"{at}: " if foreign and (at := where_raised(error)) else ""
            full = out_of_memory(error) if foreign else ""
            if (place or full) and not debug:
                said = full or f"{type(error).__name__}: {' '.join(str(error).split())}"
                typer.echo(f"isthmus: {place}{said} (isthmus --debug shows the traceback)", err=True)
                raise SystemExit(2 if full else 1) from None
            if debug or foreign:
                raise
            text = usage_text(error, sys.argv) if wrong_usage else str(error)
            for each in error.errors if isinstance(error, SeveralErrors) else [text]:
                typer.echo(f"isthmus: {' '.join(str(each).split())}", err=True)
            raise SystemExit(2) from None
    if code == 130:  # of a command that does not expect an interrupt
        typer.echo("isthmus: stopped", err=True)
    raise SystemExit(code if isinstance(code, int) else 0)


def _interrupt(*_: object) -> None:
    """Stop in good order; a second interrupt ends the process at once, and so does one in the import of torch.

    C code that is imported there may drop an exception and go on without what it needs.
    """
    if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        stop()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    raise KeyboardInterrupt


def _run_app() -> Any:
    """Run the command; if standard output cannot be written, raise a one-line error."""
    try:
        code = app(prog_name="isthmus", standalone_mode=False)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - flushing the old one at exit would fail again
        raise IsthmusError(f"cannot write to standard output: {error.strerror or error}") from error
    return code


if __name__ == "__main__":
    main()
