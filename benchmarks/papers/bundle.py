"""Puts the plans and results of all tables, and the code that they import, into the wheel for `isthmus papers`."""

from __future__ import annotations

import tomllib
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
            code = tomllib.loads(plan.read_text(encoding="utf-8")).get("study", {}).get("import", [])
            for path in (plan, *(plan.parent / each for each in code), *([results] if results.exists() else [])):
                build_data["force_include"][str(path)] = f"isthmus/papers/tables/{path.relative_to(papers).as_posix()}"
