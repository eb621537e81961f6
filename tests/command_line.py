"""The command line as tests call it: in this process, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import typer

from isthmus.cli import main as cli

build = typer.main.get_command
built = cache(build)
"""What tests call instead: a process that runs one command builds all of them once, and so do tests."""
RUN = re.compile(r"(\w+), seed (\d+): (\d+) rounds in \d+\.\d s")
"""The line on standard error that a run ends with."""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def runs(self) -> list[tuple[str, str, str]]:
        """Method, seed and rounds of each run that standard error tells of; it must tell of nothing else."""
        lines = [RUN.fullmatch(line) for line in self.err.splitlines()]
        return [(line[1], line[2], line[3]) if line else ("", "", self.err) for line in lines]


Isthmus = Callable[..., Done]


@cache
def parser() -> Any:
    """The command line, whose commands only return what was set."""

    def blank(command: Any) -> None:
        for each in getattr(command, "commands", {}).values():
            blank(each)
            each.callback = lambda **options: options

    group = build(cli.app)  # not the one that runs
    blank(group)
    return group


def called(words: Sequence[str]) -> dict[str, Any]:
    """What a command line after `isthmus` sets; it is parsed, and nothing runs."""
    options: dict[str, Any] = parser().main(args=list(words), prog_name="isthmus", standalone_mode=False)
    return options
