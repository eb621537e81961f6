"""The command line of audits: what a method gives away."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from rich.table import Table

    from isthmus.audit.reconstruction import Exposure
    from isthmus.methods.fedcog import FedCog
    from isthmus.study.config import Study


def audit_command(
    study: Annotated[Path | None, typer.Argument(help="A study as TOML with the method fedcog.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, see isthmus datasets; or a folder of them.")] = None,
    partition: Annotated[str | None, typer.Option(help="Cut, see isthmus partitions.")] = None,
    parties: Annotated[int | None, typer.Option(help="Number of parties.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder; sgc without a study.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds, with --accuracy.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds; the audit is of the first one's cut.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any option: data.normalize=false, model.hops=3, ...")
    ] = None,
    unlabelled: Annotated[str | None, typer.Option(help="Parties without training labels: error or idle.")] = None,
    colluders: Annotated[
        int, typer.Option(min=0, help="Parties that collude against each victim; 0 is all others.")
    ] = 0,
    least: Annotated[
        int, typer.Option(min=1, help="Nodes that a message is over at least, where that is the protection.")
    ] = 3,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Also train under each protection, with every seed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output and nothing else there.")
    ] = False,
) -> None:
    """Attack FedCog's propagation: colluding parties solve for the features of each party in turn."""
    import torch

    from isthmus.audit.reconstruction import Reconstruction
    from isthmus.cli import _console, _study
    from isthmus.study.engine import module_for

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    fresh = {"method": ["fedcog"], "encoder": encoder or "sgc"} if study is None else {"encoder": encoder}
    whole = _study(
        study, set_ or [], data=data, partition=partition, parties=parties, rounds=rounds, seeds=seeds,
        unlabelled=unlabelled, **fresh,
    )  # fmt: skip
    method, seed = _fedcog(whole), whole.seeds[0]
    audit = Reconstruction(colluders=colluders, least=least)
    with _console(error=True).status("parties propagate and are attacked"):
        loaded = whole.cut_data(seed)
        module = module_for(whole.encoder(), loaded.parties, loaded.task, seed)
        found = audit.of(loaded.parties, loaded.task, module, method, seed=seed)
    if accuracy:
        with _console(error=True).status("models are trained under each protection"):
            trained = [_trained(whole, each) for each in audit.protected(method)]
        found = [replace(each, metric=name, value=value) for each, (name, value) in zip(found, trained, strict=True)]
    if as_json:
        cut = whole.resolved(loaded)
        kept = {key: cut[key] for key in ("data", "partition", "parties", "model")}
        audited = {"name": audit.name, **audit.model_dump()}
        typer.echo(json.dumps({"audit": audited, **kept, "seed": seed, "protections": [e.to_dict() for e in found]}))
        return
    console = _console()
    console.print(_table(found))
    all_ = not 0 < colluders < len(loaded.parties) - 1
    against = "all others collude" if all_ else "one other is" if colluders == 1 else f"{colluders} others collude"
    console.print(f"{len(loaded.parties)} parties; {against} against each in turn", highlight=False)
    if any(levels["direction"] > levels["features"] for each in found for levels in each.attacks.values()):
        console.print("in brackets: nodes of which an attack reads the direction", highlight=False)


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


def _fedcog(study: Study) -> FedCog:
    from isthmus.methods.fedcog import FedCog

    for method in study.method_list():
        if isinstance(method, FedCog):
            return method
    raise IsthmusError("the audit is of the method 'fedcog', which is not in this study: add it")


def _trained(study: Study, method: FedCog) -> tuple[str, float]:
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
