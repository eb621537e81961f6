"""Commands for federations: make kits, run the server or a party, administer."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import ON_SUBSET, Json
from isthmus.cli.console import console
from isthmus.cli.interrupts import on_interrupt
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.deploy.admin import Admin

LOOK_SECONDS = 1.0
"""How often `status --watch` asks the server."""

app = typer.Typer(name="federation", help="Run a study whose parties are on their own machines.", no_args_is_help=True)

StudyFile = Annotated[Path, typer.Argument(help="A study as TOML.")]
AdminKit = Annotated[Path, typer.Argument(help="The administrator's kit.")]


@app.command()
def new(
    study: StudyFile,
    parties: Annotated[str, typer.Option(help="Names of the parties, separated by commas.")],
    server: Annotated[str, typer.Option(help="Address of the server: HOST:PORT.")],
    out: Annotated[Path, typer.Option(help="Folder for the kits; it must be new or empty.")],
    days: Annotated[int, typer.Option(min=1, max=360, help="Days until the certificates expire.")] = 360,
) -> None:
    """Make a start-up kit for the server, each party and the administrator: send each folder to its owner."""
    from isthmus.deploy.coordinator import check_federation
    from isthmus.deploy.kits import AUTHORITY, make_kits

    check_federation(_study(study))
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise IsthmusError(f"--server is '{server}': give HOST:PORT, such as fed.example.org:8002")
    name = re.sub(r"[^A-Za-z0-9_]", "_", study.stem) or "federation"
    kits = make_kits(name, [each.strip() for each in parties.split(",")], host, int(port), out, days=days)
    for kit in kits:
        typer.echo(f"{kit.role} {'' if kit.role != 'party' else kit.name + ' '}in {kit.folder}")
    typer.echo(f"authority in {out / AUTHORITY}: its key can make kits, so keep this folder offline, or delete it")


@app.command()
def renew(
    authority: Annotated[Path, typer.Argument(help="The authority's folder, which isthmus federation new made.")],
    name: Annotated[str, typer.Argument(help="A party, or admin.")],
    out: Annotated[Path, typer.Option(help="Folder for the new kit; it must be new or empty.")],
) -> None:
    """Make a new kit in place of one that was lost, copied or has expired."""
    from isthmus.deploy.kits import ROSTER, renew_kit

    kit = renew_kit(authority, name, out)
    typer.echo(f"{name} in {kit.folder}")
    typer.echo(f"copy {kit.folder / ROSTER} into the administrator's kit: the next command there voids the old kit")


@app.command()
def revoke(kit: AdminKit, name: Annotated[str, typer.Argument(help="A party, or admin.")]) -> None:
    """Have the server refuse the present kit of a party, and end its connection; a renewed kit is let in."""
    _quiet()
    from isthmus.deploy.admin import Admin

    with Admin(kit) as admin:
        admin.revoke(name)
    typer.echo(f"the kit of {name} is revoked: make a new one with isthmus federation renew")


@app.command()
def serve(
    kit: Annotated[Path, typer.Argument(help="The server's kit.")],
    bind: Annotated[
        str | None, typer.Option(help="Address of this machine to listen on; by default, the kit's host.")
    ] = None,
) -> None:
    """Run the server of a federation until it is stopped."""
    from isthmus.deploy import flare
    from isthmus.deploy.kits import Kit

    contents = Kit.read(kit, "server")
    line = f"serving {', '.join(contents.parties)} at {bind or contents.host}:{contents.port}; log in {kit / 'log.txt'}"
    on_interrupt()  # at once; FLARE would wait for its threads
    flare.serve(kit, bind=bind, ready=lambda: typer.echo(line))


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="The party's kit.")],
    data: Annotated[Path, typer.Option(help="The party folder; it stays on this machine.")],
    key: Annotated[Path | None, typer.Option(help="File with the key that the parties share.")] = None,
) -> None:
    """Run a party until it is stopped: it answers from its folder, within the limits set there."""
    from isthmus.deploy import flare
    from isthmus.deploy.kits import Kit

    contents = Kit.read(kit, "party")
    line = f"{contents.name} joins {contents.host}:{contents.port}; log in {kit / 'log.txt'}"

    def refused(why: str) -> None:
        os.write(2, f"isthmus: the server does not let this party in: {why}\n".encode())
        os._exit(2)

    on_interrupt()  # at once; FLARE would wait for its threads
    flare.take_part(kit, data, key, ready=lambda: typer.echo(line), refused=refused)


@app.command("run")
def run_command(
    kit: AdminKit,
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="Result folder.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in --out.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over and delete the results in the folder.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for all parties to connect.")] = 120.0,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a live report to this file; a browser reloads it by itself."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a study in the federation and write a result folder."""
    _quiet()
    from isthmus.deploy.admin import Admin
    from isthmus.deploy.launch import run_federation
    from isthmus.progress.live_page import PageFile
    from isthmus.progress.terminal import TerminalProgress, difference_lines, show_results
    from isthmus.study.run import Watcher, Watchers

    whole = _study(study)

    def waiting(missing: list[str]) -> None:
        typer.echo(f"waiting for {', '.join(missing)}", err=True)

    try:
        with ExitStack() as stack:
            admin = stack.enter_context(Admin(kit))
            watchers: list[Watcher] = [stack.enter_context(TerminalProgress(console(error=True)))]
            watchers += [] if page is None else [stack.enter_context(PageFile(whole, page))]
            results = run_federation(
                admin, whole, out, resume=resume, force=force, watcher=Watchers(*watchers), wait=wait, waiting=waiting
            )
    except KeyboardInterrupt:
        typer.echo("isthmus: stopped watching; the job goes on: watch it again with --resume", err=True)
        raise SystemExit(130) from None
    if as_json:
        typer.echo(json.dumps(results.to_dict()))
    else:
        show_results(results, console())
        for line in difference_lines(results):
            typer.echo(line)
        typer.echo(f"results in {out}")
    if results.on_subset():
        raise typer.Exit(ON_SUBSET)


@app.command()
def status(
    kit: AdminKit,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the newest study and its parties until it has ended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which parties are connected, all studies, and how the parties stand in those that run."""
    _quiet()
    from rich.text import Text

    from isthmus.deploy.admin import Admin
    from isthmus.progress.standing import status_of

    if watch and as_json:
        raise IsthmusError("--watch follows a study on a screen, and --json prints once: leave one of them out")
    with Admin(kit) as admin:
        if watch:
            _follow(admin)
            return
        seen = admin.look()

    def lost(job: str) -> bool:
        return job not in seen["jobs"]

    if as_json:
        studies = [
            {**study, "state": "lost"} if study["state"] == "running" and lost(study["job"]) else study
            for study in seen["studies"]
        ]
        parties = [{"party": party, "connected": connected} for party, connected in seen["parties"].items()]
        typer.echo(json.dumps({"parties": parties, "refused": seen["refused"], "studies": studies}))
        return
    for each in status_of(seen, lost):
        console().print(each, soft_wrap=isinstance(each, Text))


def _follow(admin: Admin) -> None:
    """Draw the newest study again and again until it does not run any more; elsewhere than in a terminal, its end."""
    from rich.console import Group
    from rich.live import Live

    from isthmus.progress.standing import status_of

    screen = console()
    try:
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                seen = admin.look()
                lost = {job: admin.is_lost(job, seen["jobs"]) for job in (each["job"] for each in seen["studies"][:1])}
                most = max(3, screen.height - 10)
                live.update(Group(*status_of(seen, lost.__getitem__, follow=True, most=most)), refresh=True)
                if not any(each["state"] == "running" and not lost[each["job"]] for each in seen["studies"][:1]):
                    return
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command()
def stop(kit: AdminKit) -> None:
    """Stop running jobs; isthmus federation run --resume continues them."""
    _quiet()
    from isthmus.deploy.admin import Admin

    with Admin(kit) as admin:
        running = admin.look()["jobs"]
        for job in running:
            admin.stop(job)
    typer.echo(f"stopped: {len(running)}")


@app.command()
def approve(
    kit: Annotated[Path, typer.Argument(help="The party's kit.")],
    study: Annotated[
        str | None, typer.Argument(help="The study: its TOML file, or the hash of one that waits here.")
    ] = None,
) -> None:
    """Approve a study at a party: show what it does and answer it from then on; without a study, list what waits."""
    from isthmus.deploy.approval import Approvals, Proposal, describe_proposal
    from isthmus.deploy.kits import Kit
    from isthmus.deploy.member import APPROVALS

    contents = Kit.read(kit, "party")
    approvals = Approvals(contents.state / APPROVALS, str(kit))
    if study is None:
        for proposal in (waiting := approvals.waiting()):
            _show(describe_proposal(proposal))
            typer.echo(f"to approve it: isthmus federation approve {kit} {proposal.hash}\n")
        if not waiting:
            typer.echo("no study waits for an approval")
        return
    file = Path(study)
    known = file.suffix != ".toml" and not file.exists()
    proposal = approvals.find(study) if known else Proposal(_study(file), contents.parties)
    _show(describe_proposal(proposal))
    count = approvals.approve(proposal)
    typer.echo(f"approved by {contents.name}{'' if count == 1 else f', {count} times by now'}")


def _show(lines: Iterator[str]) -> None:
    """Print lines that a server may have written."""
    from isthmus.deploy.logs import printable

    for line in lines:
        typer.echo(" " * (len(line) - len(line.lstrip())) + printable(line))


@app.command()
def preview(
    study: StudyFile,
    parties: Annotated[str, typer.Option(help="Names of the parties, separated by commas, as in their kits.")] = "",
    as_json: Json = False,
) -> None:
    """Show what each party will disclose, to whom, how often and how many bytes, from a dry run on this machine."""
    from dataclasses import asdict

    from isthmus.deploy.approval import Proposal
    from isthmus.deploy.kits import check_parties
    from isthmus.deploy.preview import disclosure_tables, for_parties, stand_ins
    from isthmus.deploy.preview import preview as previewed

    whole = _study(study)
    named = tuple(each.strip() for each in parties.split(",")) if parties else ()
    if named:
        check_parties(named)
        whole = for_parties(whole, len(named))
    found = previewed(whole)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
        return
    screen = console()
    for shown in disclosure_tables(found):
        screen.print(shown, soft_wrap=True)
    if any(each.protection == "ckks" for each in found):
        screen.print("ckks hides parts from a server that follows the protocol, not from another one; masks do.")
    number = max(each.parties for each in found)
    screen.print(
        f"Sizes are those of '{whole.data_set().name}' with {number} parties in place of the federation's data; "
        "names with [n] are arrays whose length depends on a party's data.",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    proposal = Proposal(whole, named or stand_ins(whole))
    others = "" if named else " (for others, name them with --parties)"
    typer.echo(f"Study {proposal.hash} with the parties {', '.join(proposal.parties)}{others}")


def _quiet() -> None:
    """Silence gRPC, which prints past Python's streams; errors that matter are raised as well."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _study(path: Path) -> Any:
    from isthmus.study.config import Study, read_toml

    return Study.of_federation(read_toml(path), str(path))
