"""A small TOML writer: the standard library only reads TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


def dumps(table: Mapping[str, Any], comments: Mapping[tuple[str, ...], str] | None = None) -> str:
    """Return a nested mapping as TOML text, without the entries that are None.

    Arguments:
        comments: by the keys to an entry or a table what to write behind it; of an entry that is absent, a line.

    >>> print(dumps({"seeds": [0, 1], "data": {"name": "banks"}}))
    seeds = [0, 1]
    <BLANKLINE>
    [data]
    name = "banks"
    <BLANKLINE>
    """
    return "\n".join(_lines(table, (), comments or {})) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[tuple[str, ...], str]) -> list[str]:
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            tables.append((key, value, "[{}]"))
        elif isinstance(value, Sequence) and value and all(isinstance(each, Mapping) for each in value):
            tables += [(key, each, "[[{}]]") for each in value]
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value)}{_comment(comments.get((*path, key)))}")
    lines += [
        _comment(text).strip()
        for place, text in comments.items()
        if place[:-1] == path and table.get(place[-1]) is None
    ]
    for key, value, brackets in tables:
        name = ".".join(map(_key, (*path, key)))
        head = brackets.format(name) + _comment(comments.get((*path, key)))
        inner = _lines(value, (*path, key), comments)
        only_tables = inner and not inner[0] and head.endswith("]") and not head.startswith("[[")
        lines += inner if only_tables else ["", head, *inner]
    return lines


def _comment(text: str | None) -> str:
    printable = "".join(each if each.isprintable() else " " for each in text or "")
    return f"  # {printable}" if printable else ""


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, Mapping):
        entries = (f"{_key(key)} = {_value(inner)}" for key, inner in value.items() if inner is not None)
        return "{ " + ", ".join(entries) + " }"
    return repr(value)
