"""Flags that are wrong are one line that names what was meant, see also the mistakes in `test_main.py`."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from command_line import Isthmus
from isthmus.cli.main import app
from isthmus.errors import FLAGS


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("run --metrc accuracy", "unknown option '--metrc': did you mean --metric?"),
        ("run --task link-prediction", "unknown option '--task': did you mean --set task.name=link-prediction?"),
        ("run --model gat", "unknown option '--model': did you mean --encoder gat?"),
        ("run --epochs 3", "unknown option '--epochs': did you mean --set local.epochs=3?"),
        ("tune --epochs", "unknown option '--epochs': did you mean --set local.epochs=VALUE?"),
        ("predict run --imprt mine.py", "unknown option '--imprt': did you mean --import?"),
        ("bench mine.py --encoder gat", "unknown option '--encoder': isthmus bench has no such option"),
        ("describe --seeds 3", "isthmus describe has no such option: did you mean --seed?"),
        ("tune --seed 3", "isthmus tune has no such option: did you mean --seeds?"),
        ("run --qqq", "unknown option '--qqq' (see isthmus run --help)"),
        ("run --seed 1.5", "--seed is '1.5': give a whole number"),
        ("run --port 99999", "--port is '99999': give at most 65535"),
        (
            "party new all --nodes a-nodes.csv b-nodes.csv",
            "argument(s) (b-nodes.csv): if it comes from a *, put the pattern",
        ),
        ("predict", "Missing argument"),
    ],
)
def test_a_wrong_flag_is_one_line(words: str, text: str, isthmus: Isthmus) -> None:
    done = isthmus(*words.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert text in done.err


def test_a_flag_has_one_form_in_all_commands() -> None:
    """A switch is a switch everywhere, and only what may be repeated somewhere differs."""
    forms: dict[str, set[tuple[bool, bool]]] = {}

    def collect(command: Any) -> None:
        for each in command.params:
            for flag in (name for name in each.opts if name.startswith("-")):
                forms.setdefault(flag, set()).add((each.is_flag, each.multiple))
        for inner in getattr(command, "commands", {}).values():
            collect(inner)

    collect(get_command(app))
    assert len(forms) > 80
    assert {flag for flag, found in forms.items() if len(found) > 1 and flag.startswith("--")} == {
        "--method",
        "--party",
    }


def test_flags_that_messages_name_exist() -> None:
    commands = [each.callback.__code__ for each in app.registered_commands if each.callback is not None]
    names = {name for code in commands for name in code.co_varnames[: code.co_argcount]}
    assert {flag[2:].replace("-", "_") for flag in FLAGS.values()} <= {name.rstrip("_") for name in names}
