"""Puts the plans and results of all tables, and the code that they import, into the wheel for `isthmus papers`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tables(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a checkout, which has them
            return
        papers = Path(self.root, "benchmarks", "papers")
        for plan in sorted(papers.glob("*/*.toml")):
            results = plan.parent / "results" / f"{plan.stem}.json"
            code = dict.fromkeys(_imports(tomllib.loads(plan.read_text(encoding="utf-8"))))
            for path in (plan, *(plan.parent / each for each in code), *([results] if results.exists() else [])):
                build_data["force_include"][str(path)] = f"isthmus/papers/tables/{path.relative_to(papers).as_posix()}"


def _imports(part: Any) -> Iterator[str]:
    """The files that a plan's study, or those of some of its cells, import."""
    if isinstance(part, dict):
        yield from part.get("import", [])
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else []:
        yield from _imports(each)
