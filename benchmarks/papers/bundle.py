"""Puts the plans and results of all tables into the wheel, where `isthmus papers` finds them without a checkout."""

from __future__ import annotations

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
            for path in (plan, results) if results.exists() else (plan,):
                build_data["force_include"][str(path)] = f"isthmus/papers/tables/{path.relative_to(papers).as_posix()}"
