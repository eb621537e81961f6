"""A small TOML writer: the standard library only reads TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


def dumps(table: Mapping[str, Any]) -> str:
    """Return a nested mapping as TOML text, without the entries that are None.

    >>> print(dumps({"seeds": [0, 1], "data": {"name": "banks"}}))
    seeds = [0, 1]
    <BLANKLINE>
    [data]
    name = "banks"
    <BLANKLINE>
    """
    return "\n".join(_lines(table, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            tables.append((key, value, "[{}]"))
        elif isinstance(value, Sequence) and value and all(isinstance(each, Mapping) for each in value):
            tables += [(key, each, "[[{}]]") for each in value]
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value, brackets in tables:
        name = ".".join(map(_key, (*path, key)))
        lines += ["", brackets.format(name), *_lines(value, (*path, key))]
    return lines


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
