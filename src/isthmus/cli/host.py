"""Commands for hosts: machines of one owner that a study is spread over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.common import use_one_thread

app = typer.Typer(name="host", help="Spread a large study over several machines of your own.", no_args_is_help=True)


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    days: Annotated[int, typer.Option(min=1, help="Days until it expires.")] = 360,
) -> None:
    """Make the key file that all machines of a study share; only its holders can connect."""
    from isthmus.deploy.tls import new_key

    new_key(file, days)
    typer.echo(f"key in {file}: copy it to every host, and to the machine that runs the study")


@app.command()
def serve(
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT to listen on; port 0 picks a free port.")],
    key: Annotated[Path, typer.Option(help="The key file that all machines share.")],
) -> None:
    """Host parties of one study after another until it is stopped."""
    from isthmus.deploy import tls
    from isthmus.deploy.hosts import Host

    use_one_thread()
    try:
        tls.listen(listen, key, Host, lambda place: typer.echo(f"host at {place}"))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
