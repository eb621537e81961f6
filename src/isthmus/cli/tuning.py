"""The command that searches good options for the methods of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.common import (
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
    Rounds,
    Seeds,
    SelectBy,
    Settings,
    StudyFile,
    Unlabelled,
    read_study,
    resumable,
    use_one_thread,
)
from isthmus.cli.console import console


def tune_command(
    study: StudyFile = None,
    protocol: Protocol = None,
    data: Data = None,
    partition: PartitionName = None,
    parties: Parties = None,
    method: MethodNames = None,
    encoder: Encoder = None,
    hidden: Hidden = None,
    rounds: Rounds = None,
    metric: Metric = None,
    select_by: SelectBy = None,
    seeds: Seeds = None,
    set_: Settings = None,
    unlabelled: Unlabelled = None,
    import_: Import = None,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", help="What to search: local.lr=0.001..0.1, local.optimizer=adam,sgd; repeat for more."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials for each method.")] = 40,
    jobs: Annotated[int, typer.Option(min=0, help="Number of trials side by side; 0: one per core.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the trials and the results.")] = Path("runs/tuned"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the trials in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Search good options for every method on validation data, and run each with its best ones."""
    from isthmus.progress.terminal import TuningProgress, show_results
    from isthmus.study.tuning import BEST, JOURNAL, tune

    whole = read_study(
        study, set_ or [], protocol=protocol, data=data, partition=partition, parties=parties, method=method,
        encoder=encoder, hidden=hidden, rounds=rounds, seeds=seeds, metric=metric, select_by=select_by,
        unlabelled=unlabelled, imports=import_, range_=range_,
    )  # fmt: skip
    use_one_thread()
    with resumable((out / JOURNAL).is_file), TuningProgress(console(error=True), trials) as progress:
        results = tune(whole, out, trials=trials, resume=resume, jobs=jobs, on_trial=progress.trial_done)
    if as_json:
        typer.echo(json.dumps(results.to_dict()))
        return
    show_results(results, console())
    typer.echo(f"best settings in {out / BEST}, results in {out}")
