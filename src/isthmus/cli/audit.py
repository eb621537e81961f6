"""The command line of audits: measure what a method leaks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import Data, Import, Json, Parties, PartitionName, read_study, use_one_thread
from isthmus.cli.console import console
from isthmus.cli.listing import AUDITS, ENCODERS, METHODS, complete, print_kind
from isthmus.errors import IsthmusError
from isthmus.own_code import import_files

if TYPE_CHECKING:
    from rich.table import Table

    from isthmus.audit.base import Audit, AuditTable
    from isthmus.methods.base import Method
    from isthmus.result_files import Search
    from isthmus.study.config import Study


def audit_command(
    study: Annotated[Path | None, typer.Argument(help="A study as TOML; flags override it.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Method to attack; the first that the audit can attack.", autocompletion=complete(METHODS)),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Audit, see isthmus audits; epsilon under [privacy], the one made for the method, or membership.",
            autocompletion=complete(AUDITS),
        ),
    ] = None,
    data: Data = None,
    partition: PartitionName = None,
    parties: Parties = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Encoder; without a study, one that fits the method.", autocompletion=complete(ENCODERS)),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds, if models are trained.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds; the attack is on the cut of the first one.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any option, of the audit or the study: audit.colluders=1, model.hops=3, ..."),
    ] = None,
    unlabelled: Annotated[str | None, typer.Option(help="Parties without training labels: error or idle.")] = None,
    import_: Import = None,
    into: Annotated[
        Path | None, typer.Option(help="A result folder: attack its study and save the findings there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack what a method sends or releases, and print what the attackers learn."""
    from isthmus.audit.base import Audit
    from isthmus.methods.base import Method
    from isthmus.study.config import parse_assignments
    from isthmus.study.setup import suited

    use_one_thread()
    import_files(import_ or ())
    own = [each for each in set_ or [] if each.startswith("audit.")]
    others = [each for each in set_ or [] if each not in own]
    if into is not None:
        given = {
            "STUDY": study, "--data": data, "--partition": partition, "--parties": parties, "--encoder": encoder,
            "--rounds": rounds, "--seeds": seeds, "--set": others, "--unlabelled": unlabelled,
            "--import": import_,
        }  # fmt: skip
        whole, search = _study_of_results(into, given)
    else:
        search = None
        if study is None and not (method or by):
            raise IsthmusError("name what to attack: a study file, --method METHOD, or --by AUDIT (see isthmus audits)")
        attacked = method or (Audit.named(by).attacked if by and study is None else "")
        default = Method.named(attacked).encoder if attacked and study is None else None
        whole = read_study(
            study, others, data=data, partition=partition, parties=parties, rounds=rounds, seeds=seeds,
            unlabelled=unlabelled, imports=import_, method=[attacked] if attacked else [], encoder=encoder or default,
        )  # fmt: skip
    kind, target = _audit_and_method(whole, by, method, search)
    audit = kind.read(parse_assignments(own).get("audit", {}), f"audit '{kind.name}'")
    with console(error=True).status(f"audit '{audit.name}' attacks {target.name}"):
        loaded = whole.cut_data(whole.seeds[0])
        target = suited(target, whole.encoder(target), loaded.task.level)
        found = audit.run_study(whole, loaded, target)
    table = audit.table(found, len(loaded.parties))
    if into is not None:
        _save(into, audit, target, whole.seeds[0], table, found)
    if as_json:
        cut = whole.resolved(loaded)
        setting = {key: cut[key] for key in ("data", "partition", "parties", "model")}
        about = {"audit": audit.to_dict(), **setting, "seed": whole.seeds[0]}
        typer.echo(json.dumps({**about, "protections": [each.to_dict() for each in found]}))
        return
    screen = console()
    screen.print(_grid(table))
    for note in table.notes:
        screen.print(note, highlight=False)
    if into is not None:
        screen.print(f"saved in {into}: isthmus report {into} shows it", highlight=False)


def audits_command(
    name: Annotated[
        str | None, typer.Argument(help="One of them, with its options.", autocompletion=complete(AUDITS))
    ] = None,
    as_json: Json = False,
) -> None:
    """List audits with their options."""
    print_kind(AUDITS, name, as_json)


def _study_of_results(folder: Path, given: Mapping[str, Any]) -> tuple[Study, Search | None]:
    """Read the study of a result folder, and the settings that it tried; flags that would change it are refused."""
    from isthmus.report.loading import read_folder
    from isthmus.study.config import Study, read_toml

    if flag := next((flag for flag, value in given.items() if value), None):
        raise IsthmusError(f"--into {folder} attacks the study in that folder: leave out {flag}")
    search, table = read_folder(folder).results.search, read_toml(folder / "study.toml")
    if table.get("data") and table["data"].get("name") == "folder" and "path" not in table["data"]:
        raise IsthmusError(
            f"{folder} has the results of a federation, whose data are with its parties: attack the study where it "
            "runs on one machine, isthmus audit STUDY.toml"
        )
    return Study.of(table, str(folder / "study.toml")), search


def _save(folder: Path, audit: Audit, method: Method, seed: int, table: AuditTable, found: Sequence[Any]) -> None:
    """Save the findings in a result folder, for the report."""
    from isthmus.result_files import AuditRecord, ShownEpsilon, write_audit

    write_audit(
        folder,
        AuditRecord(
            study=(folder / "study.toml").read_text(encoding="utf-8"),
            audit={"name": audit.name, **audit.model_dump(mode="json")},
            method=method.label,
            seed=seed,
            corner=table.corner,
            columns=list(table.columns),
            sections=[[(title, list(cells)) for title, cells in section] for section in table.sections],
            notes=list(table.notes),
            curves={title: list(points) for title, points in table.curves.items()},
            protections=[each.to_dict() for each in found],
            lower_bounds=[ShownEpsilon.model_validate(each) for each in table.lower_bounds],
        ),
    )


def _audit_and_method(
    study: Study, by: str | None, name: str | None, search: Search | None
) -> tuple[type[Audit], Method]:
    """Choose an audit, and the method of the study that it attacks.

    Arguments:
        by: name of the audit; without it that of noise under [privacy], else audits made for one method come first.
        name: name of the method; without it, the first that the audit can attack.
        search: what a grid tried; of its settings only the chosen ones are attacked, unless one is named.
    """
    from isthmus.audit.base import Audit
    from isthmus.study.model_files import chosen_setting

    hidden = set() if search is None or name is not None else search.unchosen
    label, _ = chosen_setting(name, search)
    methods = [each for each in study.method_list() if each.label not in hidden and label in (None, each.label)]
    if not methods:
        known = ", ".join(method.label for method in study.method_list())
        raise IsthmusError(f"--method {name}: it is not in this study, which has {known}")
    private = study.named_privacy() is not None
    fitting = [kind for kind in Audit.known().values() if kind.of_noise == private and not kind.by_name_only]
    kinds = [Audit.named(by)] if by else sorted(fitting, key=lambda kind: kind.attacked == "")
    for kind in kinds:
        for method in sorted(methods, key=lambda method: method.role != "federated"):  # references release no model
            if kind.attacked in ("", method.name):
                return kind, method
    raise IsthmusError(f"audit '{by}' attacks method '{kinds[0].attacked}', which is not in this study: add it")


def _grid(found: AuditTable) -> Table:
    """Draw a table of findings, a column per protection."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(found.corner, no_wrap=True)
    for column in found.columns:
        table.add_column(column, justify="right", no_wrap=True)
    for section in found.sections:
        for title, cells in section:
            table.add_row(title, *cells)
        table.add_section()
    return table
