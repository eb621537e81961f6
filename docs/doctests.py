"""Shows doctests of docstrings as code in the reference: an extension for griffe, which reads them."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around each block that begins with `>>>` and ends with an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The docstring with its doctests in fences."""
    return _DOCTEST.sub(lambda block: f"{block[1]}```pycon\n{block[0]}\n{block[1]}```", text)
