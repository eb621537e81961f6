"""The console that commands print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 10_000
"""Columns of what is no terminal: a pipe or a file gets every table in full."""


def console(*, error: bool = False) -> Console:
    """Return a console on standard output, or on standard error."""
    from rich.console import Console

    screen = Console(stderr=error)
    if not screen.is_terminal:
        screen.width = WIDE
    return screen
