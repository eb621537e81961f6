"""The command line of hosts: machines of one's own that a study is spread over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.common import use_one_thread

app = typer.Typer(name="host", help="Machines of one's own that a large study is spread over.", no_args_is_help=True)


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    days: Annotated[int, typer.Option(min=1, help="Days until it expires.")] = 360,
) -> None:
    """Make the key that all machines of a study share: who has the file gets in, nobody else does."""
    from isthmus.deploy.tls import new_key

    new_key(file, days)
    typer.echo(f"key in {file}: every host needs it, and who runs studies on them")


@app.command()
def serve(
    listen: Annotated[str, typer.Option(help="Where to listen, and nowhere else: ADDRESS:PORT; port 0: a free one.")],
    key: Annotated[Path, typer.Option(help="The key that all machines share.")],
) -> None:
    """Hold parties of one study after another until it is stopped."""
    from isthmus.deploy import tls
    from isthmus.deploy.hosts import Host

    use_one_thread()
    try:
        tls.listen(listen, key, Host, lambda place: typer.echo(f"host at {place}"))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
