"""Copies code from the source into the pages, between `<!-- source FILE NAME -->` and `<!-- /source -->`.

FILE is a module and NAME a class or function in it; without a name it is the whole file. Run `python
docs/make_sources.py` after changing code that a page shows; with `--check` nothing is written, and pages that would
change are an error.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from make_tables import renewed

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- source (\S+)(?: (\w+))? -->\n).*?(<!-- /source -->)", re.DOTALL)


def written(text: str) -> str:
    """A page with the code that its markers name."""
    return MARKED.sub(lambda at: f"{at[1]}```py\n{excerpt(ROOT / at[2], at[3])}\n```\n{at[4]}", text)


def excerpt(file: Path, name: str | None) -> str:
    """The source of a class or function, or of a whole file."""
    code = file.read_text(encoding="utf-8")
    if name is None:
        return code.rstrip()
    found = [node for node in ast.parse(code).body if getattr(node, "name", None) == name]
    if not found:
        raise ValueError(f"{file.name} has no class or function '{name}': mend the marker")
    return ast.get_source_segment(code, found[0]) or ""


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def main(arguments: list[str]) -> int:
    texts = {path: path.read_text(encoding="utf-8") for path in pages()}
    return renewed(
        {path: written(text) for path, text in texts.items() if MARKED.search(text)}, arguments, "make_sources.py"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
