"""Commands for dossiers: make one of a run or of a party, and verify one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

MAKE = "make"


class MakeByDefault(TyperGroup):
    """Takes `isthmus dossier RUN` for `isthmus dossier make RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, "-h", "--help"}
        return super().parse_args(ctx, [MAKE, *args] if args and args[0] not in known else args)


app = typer.Typer(
    name="dossier", cls=MakeByDefault, help="Write or verify a signed document on a run.", no_args_is_help=True
)


@app.command(MAKE)
def make(
    run: Annotated[Path, typer.Argument(help="Result folder, or the kit of a party of a federation.")],
    kit: Annotated[
        Path | None, typer.Option(help="Kit that signs; a party's makes its own dossier of the run, with its ledger.")
    ] = None,
    party: Annotated[str, typer.Option(help="Only what concerns this party.")] = "",
    study: Annotated[str, typer.Option(help="Of a kit: how the study's hash begins, if its ledger has several.")] = "",
    data: Annotated[Path | None, typer.Option(help="Of a kit: the party folder, to count what it holds.")] = None,
    purpose: Annotated[str, typer.Option(help="What the run was for, in a sentence; by default, the study's.")] = "",
    date: Annotated[str, typer.Option(metavar="DAY", help="The day it is made; by default, today.")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file; page and signature lie beside it.")] = None,
) -> None:
    """Write a dossier as JSON and HTML; with a kit, sign it (`isthmus dossier RUN` is enough)."""
    from isthmus.dossier.writing import write_dossier

    made = write_dossier(run, kit=kit, party=party, study=study, data=data, purpose=purpose, made=date, out=out)
    typer.echo(f"dossier in {made} and {made.with_suffix('.html')}")


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A dossier, or the folder with it.")],
    run: Annotated[
        Path | None, typer.Option(help="Folder with the files that it names; by default, beside it.")
    ] = None,
    kit: Annotated[Path | None, typer.Option(help="Kit of the same federation: it shows who signed.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Certificate of who signed, or of the authority (rootCA.pem).")
    ] = None,
) -> None:
    """Check the signature, the page and the files of a dossier; a line for each fault, and exit code 2."""
    from isthmus.dossier.verifying import verify_dossier

    for line in verify_dossier(file, run=run, kit=kit, certificate=certificate):
        typer.echo(line)
