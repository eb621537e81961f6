"""Messages about flags that are wrong: they name the flag, or the option of a study, that was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from isthmus.errors import FLAGS, closest_path, format_option
from isthmus.options import remedy


def usage_text(error: Any, words: Sequence[str]) -> str:
    """One line about an error of the click that typer bundles, with the command that shows help on it.

    Arguments:
        words: the command line.
    """
    names, context = list[str](), getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return f"{_what_is_wrong(error, words)} (see {' '.join(['isthmus', *names, '--help'])})"


def _what_is_wrong(error: Any, words: Sequence[str]) -> str:
    if isinstance(error.__cause__, ValidationError):
        problem = error.__cause__.errors()[0]
        flag = error.param.get_error_hint().replace("'", "")
        return f"{flag} is '{problem['input']}': {remedy(problem)}"
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        return _unknown_flag(error.option_name, error.ctx, words)
    text = str(error.format_message())
    if "unexpected extra argument" in text and error.ctx is not None and "--nodes" in _flags_of(error.ctx):
        return f"{text}: if it comes from a *, put the pattern in quotes, '*-nodes.csv', or the shell replaces it"
    return text


def _unknown_flag(flag: str, context: Any, words: Sequence[str]) -> str:
    flags = _flags_of(context)
    near, found = closest_path(flag.strip("-"), [name.strip("-") for name in flags])
    elsewhere = flag in FLAGS.values()  # a flag of isthmus run, so not mistyped
    hint = f"did you mean --{found}?" if found else ""
    if elsewhere:
        hint = ": ".join(
            filter(None, (f"isthmus {context.command.name} has no such option", hint if near > 0.8 else ""))
        )
    if "--set" in flags and near < 1:
        from isthmus.methods.base import Method
        from isthmus.options import option_paths
        from isthmus.study.option_hints import TABLES, paths_of_tables

        of_study = [] if context.command.name == "bench" else paths_of_tables()  # a table sets them for all methods
        paths = [*option_paths([Method.named(Method.default_name())]), *of_study]
        nearer, path = closest_path(flag.strip("-").replace("-", "_"), paths, cutoff=0.75)
        if (table := flag.strip("-")) in TABLES:
            nearer, path = 1.0, f"{table}.{TABLES[table][0]}"
        if nearer > near:
            value = _value_behind(flag, words)
            here = path not in FLAGS or FLAGS[path] in flags  # not every command has the flags of `run`
            hint = f"did you mean {format_option(path, value) if here else f'--set {path}={value}'}?"
    return f"unknown option '{flag}': {hint}" if hint else f"unknown option '{flag}'"


def _flags_of(context: Any) -> list[str]:
    parameters = context.command.params if context is not None else []
    return [name for each in parameters for name in each.opts if name.startswith("--")]


def _value_behind(flag: str, words: Sequence[str]) -> str:
    """The value that the command line gives to a flag, or a word for one.

    >>> _value_behind("--lr", ["run", "--lr", "0.1"]), _value_behind("--lr", ["run", "--lr=0.1", "--lr"])
    ('0.1', '0.1')
    """
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and not after.startswith("-"):
            return after
    return "VALUE"
