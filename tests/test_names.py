"""Generic code knows no method: a new method is one file, and nothing else has to be changed for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import isthmus
from isthmus.methods.base import Method

SOURCE = Path(isthmus.__file__).parent
KNOWN = {name: kind for name, kind in Method.known().items() if kind.__module__.startswith("isthmus.")}
ORDINARY = {"local", "majority", "scaffold", "Local", "Majority", "Scaffold"}
"""Words with a meaning of their own: an option, a share, a partition. Of these only imports are looked for."""
WORDS = ({*KNOWN} | {kind.__name__ for kind in KNOWN.values()}) - ORDINARY
MODULES = {kind.__module__ for kind in KNOWN.values()}


def words_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and words of identifiers and texts; docstrings, also those under fields, are none."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from ((line, f"'{word}'") for word in re.findall(r"[A-Za-z][\w-]*", node.value))
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield line, node.module
        for field in ("id", "attr", "name", "arg"):
            if isinstance(word := getattr(node, field, None), str):
                yield line, word


def test_no_method_is_named_outside_of_methods() -> None:
    """But in audits: an attack is on one method."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0]
        if room == "methods":
            continue
        for line, word in words_of(ast.parse(path.read_text(encoding="utf-8"))):
            text = word.startswith("'")
            if word.strip("'") in WORDS | MODULES and (text or room != "audit"):
                found.append(f"{path.relative_to(SOURCE)}:{line}: {word}")
    assert not found, "\n".join(found)


def test_no_method_is_named_in_texts_of_another_one() -> None:
    found = []
    for path in sorted((SOURCE / "methods").rglob("*.py")):
        own = {name for name, kind in KNOWN.items() if Path(kind.__module__.replace(".", "/")).name == path.stem}
        for line, word in words_of(ast.parse(path.read_text(encoding="utf-8"))):
            if word.startswith("'") and word.strip("'") in {*KNOWN} - own - ORDINARY:
                found.append(f"{path.relative_to(SOURCE)}:{line}: {word}")
    assert not found, "\n".join(found)
