"""Lists what is registered under a kind, such as all methods, without importing PyTorch for it."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from isthmus.cli.console import console
from isthmus.data.datasets.sizes import Sizes
from isthmus.study.protocol import known_protocols, protocol_text, read_protocol
from isthmus.tasks.metrics import METRICS


class Kind(NamedTuple):
    """A kind of registered classes.

    Arguments:
        command: the command that lists it.
        module: the module that defines its base class.
        base: the name of that class.
    """

    command: str
    module: str
    base: str

    def load(self) -> Any:
        """Import the base class."""
        return getattr(importlib.import_module(self.module), self.base)


SOURCE = Path(__file__).parents[1]

METHODS = Kind("methods", "isthmus.methods.base", "Method")
DATA_SETS = Kind("datasets", "isthmus.data.pool", "DataSet")
PARTITIONS = Kind("partitions", "isthmus.data.partition.base", "Partition")
TASKS = Kind("tasks", "isthmus.tasks.base", "Task")
ENCODERS = Kind("encoders", "isthmus.nn.encoders", "Encoder")
AUDITS = Kind("audits", "isthmus.audit.base", "Audit")


def print_kind(kind: Kind, name: str | None, as_json: bool) -> None:
    """Print everything registered under a kind, one line each; or one of them with its options."""
    if as_json:
        chosen = [kind.load().named(name)] if name else list(kind.load().known().values())
        typer.echo(json.dumps([each.describe() for each in chosen], default=str))
        return
    entry = kind.load().named(name).describe() if name else None
    from rich.markup import escape
    from rich.table import Table

    screen = console()
    grid = Table.grid(padding=(0, 2))
    for each, summary in summaries(kind).items() if entry is None else [(entry["name"], entry["summary"])]:
        grid.add_row(f"[bold]{each}[/bold]", escape(summary))
    screen.print(grid)
    if entry is None:
        screen.print(f"\noptions of one: isthmus {kind.command} NAME", highlight=False)
        return
    options = Table.grid(padding=(0, 2))
    options.add_column()
    options.add_column(no_wrap=True)
    options.add_column(max_width=16, overflow="fold")
    for option in entry["options"]:
        default = "required" if option["required"] else "none" if option["default"] is None else str(option["default"])
        options.add_row("   ", option["name"], escape(default), escape(option["help"]))
    screen.print(options)


def print_protocols(name: str | None, as_json: bool) -> None:
    """Print all protocols, one line each; or one of them as a study file."""
    known = known_protocols()
    if as_json:
        chosen = [name.lower()] if name and protocol_text(name) else [*known]
        content = [{"name": each, "summary": known[each], "study": read_protocol(each)} for each in chosen]
        typer.echo(json.dumps(content))
        return
    if name:
        typer.echo(protocol_text(name), nl=False)
        return
    from rich.markup import escape
    from rich.table import Table

    screen, grid = console(), Table.grid(padding=(0, 2))
    for each, summary in known.items():
        grid.add_row(f"[bold]{each}[/bold]", escape(summary))
    screen.print(grid)
    screen.print("\noptions of one: isthmus protocols NAME; to use it: isthmus run --protocol NAME", highlight=False)


def complete(kind: Kind) -> Callable[[str], list[str]]:
    """Return what a shell asks for the names of a kind that begin with a text."""

    def names(incomplete: str) -> list[str]:
        return _beginning(incomplete, read_summaries(kind))

    return names


def complete_protocol(incomplete: str) -> list[str]:
    """Return the protocols that begin with a text."""
    return _beginning(incomplete, known_protocols())


def complete_metric(incomplete: str) -> list[str]:
    """Return the metrics that begin with a text."""
    return _beginning(incomplete, METRICS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete.lower())]


def summaries(kind: Kind) -> dict[str, str]:
    """Return the summary of everything registered under a kind, by name.

    If the kind has been imported already, classes of the user's own modules are among them.
    """
    if kind.module in sys.modules:
        return {name: each.describe()["summary"] for name, each in kind.load().known().items()}
    return read_summaries(kind)


def read_summaries(kind: Kind) -> dict[str, str]:
    """Read the summaries of what is built in from the source: to import PyTorch would take seconds."""
    classes = _classes_in(kind.module)
    classes |= _classes_in(_text(classes[kind.base], "built_in_module"))
    named = {_text(each, "name"): each for each in classes.values() if kind.base in _ancestors(each, classes)}
    return {name: _summary(each) for name, each in sorted(named.items()) if name}


def _classes_in(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module, or of all modules of a package, by name."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    trees = [ast.parse(file.read_bytes()) for file in (sorted(path.rglob("*.py")) or [path.with_suffix(".py")])]
    return {each.name: each for tree in trees for each in tree.body if isinstance(each, ast.ClassDef)}


def _ancestors(of: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Return the names of a class's bases, and of theirs."""
    names = {base.id for base in of.bases if isinstance(base, ast.Name)}
    return names.union(*(_ancestors(classes[name], classes) for name in names & classes.keys()))


def _summary(of: ast.ClassDef) -> str:
    """Return what `describe` of the class returns as its summary."""
    text = (ast.get_docstring(of) or "").split("\n")[0]
    sizes = _assigned(of, "sizes")
    if not isinstance(sizes, ast.Call):
        return text
    return Sizes(**{str(each.arg): ast.literal_eval(each.value) for each in sizes.keywords}).added_to(text)


def _text(of: ast.ClassDef, name: str) -> str:
    """Return the text that a class assigns to a name, or an empty one."""
    value = _assigned(of, name)
    return str(value.value) if isinstance(value, ast.Constant) else ""


def _assigned(of: ast.ClassDef, name: str) -> ast.expr | None:
    """Return what a class assigns to a name."""
    for each in of.body:
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return each.value
    return None
