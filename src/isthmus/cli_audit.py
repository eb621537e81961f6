"""The command line of audits: what a method gives away."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from rich.table import Table

    from isthmus.audit.base import Audit
    from isthmus.audit.edges import Leak
    from isthmus.audit.reconstruction import Exposure
    from isthmus.methods.base import Method
    from isthmus.study.config import Loaded, Study


def audit_command(
    study: Annotated[
        Path | None, typer.Argument(help="A study as TOML with a method that there is an audit of.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Method to attack, fedcog without a study; or fgcl.")] = None,
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
    graphs: Annotated[int | None, typer.Option(min=1, help="fgcl: graphs that the model is asked about; 100.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output and nothing else there.")
    ] = False,
) -> None:
    """Attack what a method's parties send and train: FedCog's features, FGCL's edges."""
    import torch

    from isthmus.cli import _console, _study
    from isthmus.methods.base import Method

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    fresh = method or ("fedcog" if study is None else None)
    default = Method.named(fresh).encoder if study is None and fresh else None
    whole = _study(
        study, set_ or [], data=data, partition=partition, parties=parties, rounds=rounds, seeds=seeds,
        unlabelled=unlabelled, method=[fresh] if fresh else [], encoder=encoder or default,
    )  # fmt: skip
    kind, attacked = _attacked(whole)
    if accuracy and kind.attacked != "fedcog":
        raise IsthmusError(f"--accuracy is for fedcog: the audit of {kind.attacked} trains and tells it anyway")
    budgets = None if epsilons is None else _numbers(epsilons)
    given = {"colluders": colluders, "least": least, "epsilons": budgets, "graphs": graphs}
    audit = kind.read({name: value for name, value in given.items() if value is not None}, f"audit '{kind.name}'")
    with _console(error=True).status("parties are attacked"):
        loaded = whole.cut_data(whole.seeds[0])
        found = _found(audit, attacked, whole, loaded, accuracy)
    if as_json:
        cut = whole.resolved(loaded)
        kept = {key: cut[key] for key in ("data", "partition", "parties", "model")}
        about = {"audit": {"name": audit.name, **audit.model_dump()}, **kept, "seed": whole.seeds[0]}
        typer.echo(json.dumps({**about, "protections": [each.to_dict() for each in found]}))
        return
    console = _console()
    table, notes = _shown(audit, found, len(loaded.parties))
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)


def audits_command(
    name: Annotated[str | None, typer.Argument(help="One of them, with its options.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output and nothing else there.")
    ] = False,
) -> None:
    """List audits with their options."""
    from isthmus.audit.base import Audit
    from isthmus.cli import _list

    _list(Audit, name, as_json)


def _attacked(study: Study) -> tuple[type[Audit], Method]:
    """The study's first method that there is an audit of, and that audit."""
    from isthmus.audit.base import Audit

    kinds = {kind.attacked: kind for kind in Audit.known().values()}
    for method in study.method_list():
        if method.name in kinds:
            return kinds[method.name], method
    raise IsthmusError(f"there is no audit of a method in this study: add {' or '.join(sorted(kinds))}")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise IsthmusError(f"--epsilons {text}: give numbers with commas between them, such as 0.1,1") from error


def _found(audit: Audit, method: Method, study: Study, loaded: Loaded, accuracy: bool) -> list[Any]:
    """What is learned under each protection; what is trained has its metric beside it."""
    from isthmus.audit.reconstruction import Reconstruction
    from isthmus.methods.fedcog import FedCog
    from isthmus.study.engine import module_for

    seed = study.seeds[0]
    module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
    found = audit.of(loaded.parties, loaded.task, module, method, seed=seed)
    if not accuracy or not isinstance(audit, Reconstruction):
        return found
    assert isinstance(method, FedCog)
    trained = [_trained(study, each) for each in audit.protected(method)]
    return [replace(each, metric=name, value=value) for each, (name, value) in zip(found, trained, strict=True)]


def _shown(audit: Audit, found: list[Any], parties: int) -> tuple[Table, list[str]]:
    """A table for people, and what stands below it."""
    from isthmus.audit.reconstruction import Reconstruction

    if not isinstance(audit, Reconstruction):
        return _edges_table(found), [
            "AUC 0.5 and advantage 0 are chance; what the model tells of other graphs it tells of all"
        ]
    all_ = not 0 < audit.colluders < parties - 1
    against = (
        "all others collude"
        if all_
        else "one other is"
        if audit.colluders == 1
        else f"{audit.colluders} others collude"
    )
    notes = [f"{parties} parties; {against} against each in turn"]
    if any(levels["direction"] > levels["features"] for each in found for levels in each.attacks.values()):
        notes.append("in brackets: nodes of which an attack reads the direction")
    return _table(found), notes


def _trained(study: Study, method: Method) -> tuple[str, float]:
    """The metric of the task on test data, mean over the seeds."""
    from isthmus.study.engine import Run, module_for

    values = []
    for seed in study.seeds:
        loaded = study.load(seed)
        module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
        run = Run(method, loaded.parties, loaded.task, module, seed=seed, device=study.torch_device()).go()
        if (name := f"test_{loaded.task.select_by}") not in run.metrics:
            raise IsthmusError(f"seed {seed}: no party has test items to measure accuracy on: leave out --accuracy")
        values.append(run.metrics[name])
    return loaded.task.select_by, fmean(values)


def _table(found: list[Exposure]) -> Table:
    """What colluders learn, and by which attack, under each protection."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(f"of {found[0].nodes:,} nodes", no_wrap=True)
    for each in found:
        table.add_column(each.protection, justify="right", no_wrap=True)
    lines = {
        "are in a message": "summed", "meet Theorem 2's condition": "exposed", "support read": "support",
        "direction read": "direction", "features read": "features", "... and whose they are": "named",
    }  # fmt: skip
    for title, name in lines.items():
        table.add_row(title, *(f"{getattr(each, name):,}" for each in found))
    table.add_section()
    for attack in found[0].attacks:
        table.add_row(f"read by: {attack}", *(_cell(each.attacks[attack]) for each in found))
    table.add_section()
    table.add_row("claims that are wrong", *(f"{each.wrong:,}" for each in found))
    table.add_row("edges that lnnc adds", *(f"{each.added:,}" for each in found))
    if found[0].value is not None:
        table.add_row(f"test {found[0].metric}", *(f"{each.value:.3f}" for each in found))
    return table


def _cell(levels: dict[str, int]) -> str:
    """Nodes whose features an attack reads; in brackets, where they are more, nodes whose direction it reads."""
    more = levels["direction"] > levels["features"]
    return f"{levels['features']:,}" + (f" ({levels['direction']:,})" if more else "")


def _edges_table(found: list[Leak]) -> Table:
    """How well edges are guessed under each protection, and how well they could be at most."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(f"{found[0].trained.joined:,} edges", no_wrap=True)
    for each in found:
        table.add_column(each.protection, justify="right", no_wrap=True)
    table.add_row("epsilon spent on an edge", *(f"{each.epsilon:g}" for each in found))
    titles = {"released": "released weights", "trained": "model, its graphs", "others": "model, other graphs"}
    for name, title in titles.items():
        table.add_section()
        guesses = [getattr(each, name) for each in found]
        for figure in ("auc", "advantage"):
            cells = ["-" if guess is None else f"{getattr(guess, figure):.3f}" for guess in guesses]
            table.add_row(f"{title}: {'AUC' if figure == 'auc' else figure}", *cells)
        if name == "released":
            table.add_row(
                "the same, at most", *("-" if each.released is None else f"{each.most:.3f}" for each in found)
            )
    if found[0].value is not None:
        table.add_section()
        table.add_row(f"test {found[0].metric}", *(f"{each.value:.3f}" for each in found))
    return table
