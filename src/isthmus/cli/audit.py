"""The command line of audits: what a method gives away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import Json, console, print_kind, read_study, use_one_thread
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from rich.table import Table

    from isthmus.audit.base import Audit, Shown
    from isthmus.methods.base import Method
    from isthmus.study.config import Loaded, Study


def audit_command(
    study: Annotated[
        Path | None, typer.Argument(help="A study as TOML with a method that there is an audit of.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Method to attack, fedcog without a study.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Audit, see isthmus audits; without, one that is of the method, or membership.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set, see isthmus datasets; or a folder of them.")] = None,
    partition: Annotated[str | None, typer.Option(help="Cut, see isthmus partitions.")] = None,
    parties: Annotated[int | None, typer.Option(help="Number of parties.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder; one that the method is for without a study.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds, where models are trained.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds; the audit is of the first one's cut.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any option: data.normalize=false, model.hops=3, ...")
    ] = None,
    unlabelled: Annotated[str | None, typer.Option(help="Parties without training labels: error or idle.")] = None,
    colluders: Annotated[
        int | None, typer.Option(min=0, help="fedcog: parties that collude against each victim; 0 is all others.")
    ] = None,
    least: Annotated[
        int | None, typer.Option(min=1, help="fedcog: nodes that a message is over at least, as a protection; 3.")
    ] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="fedcog: also train under each protection, with every seed.")
    ] = False,
    epsilons: Annotated[
        str | None, typer.Option(help="fgcl: budgets of a view, 0.1,1,10,100 where nothing else is said.")
    ] = None,
    shadows: Annotated[
        int | None, typer.Option(min=2, help="membership: models trained with and without items; 16.")
    ] = None,
    others: Annotated[
        int | None, typer.Option(min=1, help="membership: test items to tell members from; 1000.")
    ] = None,
    graphs: Annotated[int | None, typer.Option(min=1, help="fgcl: graphs that the model is asked about; 100.")] = None,
    into: Annotated[
        Path | None, typer.Option(help="A study's result folder: attack that study, and keep what is found there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack what a method's parties send and train: FedCog's features, FGCL's edges, anyone's members."""
    from isthmus.methods.base import Method

    use_one_thread()
    if into is not None:
        given = {
            "STUDY": study, "--data": data, "--partition": partition, "--parties": parties, "--encoder": encoder,
            "--rounds": rounds, "--seeds": seeds, "--set": set_, "--unlabelled": unlabelled,
        }  # fmt: skip
        whole = _of_results(into, given)
    else:
        fresh = method or ("fedcog" if study is None else None)
        default = Method.named(fresh).encoder if study is None and fresh else None
        whole = read_study(
            study, set_ or [], data=data, partition=partition, parties=parties, rounds=rounds, seeds=seeds,
            unlabelled=unlabelled, method=[fresh] if fresh else [], encoder=encoder or default,
        )  # fmt: skip
    kind, attacked = _attacked(whole, by, method)
    if accuracy and kind.attacked != "fedcog":
        raise IsthmusError(f"--accuracy is for fedcog: audit '{kind.name}' trains and tells it anyway")
    budgets = None if epsilons is None else _numbers(epsilons)
    options = {"colluders": colluders, "least": least, "epsilons": budgets, "graphs": graphs}
    options |= {"shadows": shadows, "others": others}
    audit = kind.read({name: value for name, value in options.items() if value is not None}, f"audit '{kind.name}'")
    with console(error=True).status("parties are attacked"):
        loaded = whole.cut_data(whole.seeds[0])
        found = _found(audit, attacked, whole, loaded, accuracy)
    shown = audit.shown(found, len(loaded.parties))
    if into is not None:
        _keep(into, audit, attacked, whole.seeds[0], shown, found)
    if as_json:
        cut = whole.resolved(loaded)
        kept = {key: cut[key] for key in ("data", "partition", "parties", "model")}
        about = {"audit": {"name": audit.name, **audit.model_dump()}, **kept, "seed": whole.seeds[0]}
        typer.echo(json.dumps({**about, "protections": [each.to_dict() for each in found]}))
        return
    screen = console()
    screen.print(_table(shown))
    for note in shown.notes:
        screen.print(note, highlight=False)
    if into is not None:
        screen.print(f"kept in {into}: isthmus report {into} shows it", highlight=False)


def audits_command(
    name: Annotated[str | None, typer.Argument(help="One of them, with its options.")] = None,
    as_json: Json = False,
) -> None:
    """List audits with their options."""
    from isthmus.audit.base import Audit

    print_kind(Audit, name, as_json)


def _of_results(folder: Path, given: Mapping[str, Any]) -> Study:
    """The study that a result folder is of; flags that would make it another one are refused."""
    from isthmus.report.loading import read_folder
    from isthmus.study.config import Study, read_toml

    if flag := next((flag for flag, value in given.items() if value), None):
        raise IsthmusError(f"--into {folder} attacks the study that is in there: leave out {flag}")
    read_folder(folder)
    return Study.of(read_toml(folder / "study.toml"), str(folder / "study.toml"))


def _keep(folder: Path, audit: Audit, method: Method, seed: int, shown: Shown, found: Sequence[Any]) -> None:
    """Puts what was found into a result folder, where the report finds it."""
    from isthmus.result_files import AuditRecord, write_audit

    write_audit(
        folder,
        AuditRecord(
            study=(folder / "study.toml").read_text(encoding="utf-8"),
            audit={"name": audit.name, **audit.model_dump(mode="json")},
            method=method.name,
            seed=seed,
            corner=shown.corner,
            columns=list(shown.columns),
            sections=[[(title, list(cells)) for title, cells in section] for section in shown.sections],
            notes=list(shown.notes),
            protections=[each.to_dict() for each in found],
        ),
    )


def _attacked(study: Study, by: str | None, name: str | None) -> tuple[type[Audit], Method]:
    """An audit, and the study's first method that it is of, or the one of this name.

    Arguments:
        by: the audit's name; without, one that is made for a method, or else the one that is of any.
    """
    from isthmus.audit.base import Audit

    methods = [method for method in study.method_list() if name in (None, method.name)]
    if not methods:
        had = ", ".join(method.name for method in study.method_list())
        raise IsthmusError(f"--method {name}: it is not in this study, which has {had}")
    kinds = [Audit.named(by)] if by else sorted(Audit.known().values(), key=lambda kind: kind.attacked == "")
    for kind in kinds:
        for method in methods:
            if kind.attacked in ("", method.name):
                return kind, method
    raise IsthmusError(f"audit '{by}' is of method '{kinds[0].attacked}', which is not in this study: add it")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise IsthmusError(f"--epsilons {text}: give numbers with commas between them, such as 0.1,1") from error


def _found(audit: Audit, method: Method, study: Study, loaded: Loaded, accuracy: bool) -> list[Any]:
    """What is learned under each protection; what is trained has its metric beside it."""
    from isthmus.audit.reconstruction import Reconstruction
    from isthmus.methods.fedcog import FedCog
    from isthmus.study.setup import module_for

    seed = study.seeds[0]
    module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
    found = audit.of(loaded.parties, loaded.task, module, method, seed=seed)
    if not accuracy or not isinstance(audit, Reconstruction):
        return found
    assert isinstance(method, FedCog)
    trained = [_trained(study, each) for each in audit.protected(method)]
    return [replace(each, metric=name, value=value) for each, (name, value) in zip(found, trained, strict=True)]


def _trained(study: Study, method: Method) -> tuple[str, float]:
    """The metric of the task on test data, mean over the seeds."""
    from isthmus.study.loop import Run
    from isthmus.study.setup import module_for

    values = []
    for seed in study.seeds:
        loaded = study.load(seed)
        module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
        run = Run(method, loaded.parties, loaded.task, module, seed=seed, device=study.torch_device()).go()
        if (name := f"test_{loaded.task.select_by}") not in run.metrics:
            raise IsthmusError(f"seed {seed}: no party has test items to measure accuracy on: leave out --accuracy")
        values.append(run.metrics[name])
    return loaded.task.select_by, fmean(values)


def _table(shown: Shown) -> Table:
    """What is learned under each protection, a column each."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(shown.corner, no_wrap=True)
    for column in shown.columns:
        table.add_column(column, justify="right", no_wrap=True)
    for section in shown.sections:
        for title, cells in section:
            table.add_row(title, *cells)
        table.add_section()
    return table
