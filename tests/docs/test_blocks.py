"""What the pages show works: Python blocks run, and so do command lines.

Blocks marked `python` run in order and share their names within a page; `title="name"` on any block writes it to a
file of that name first. In blocks marked `console` every line that starts with `isthmus` runs, cut down to one seed.
All runs are cut down to two rounds. Blocks marked `text` are only read; those marked `py` are copied from the source
(`make_sources.py`).
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
FIRST = ["README.md"]
"""What everybody reads first: it runs in every test run, the other pages in `make test-slow`."""
REST = [page for page in PAGES if page not in FIRST]
OTHERS = ["CHANGELOG.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("[bde]*/**/README.md")))]
COMMAND = re.compile(r"^(?: {4})?(isthmus .*)$|`(isthmus [^`]+)`", re.MULTILINE)
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
IN_PROCESSES = ("serve", "join", "run", "approve", "status", "stop", "revoke", "renew", "preview")
SLOW = (
    "isthmus demo", "isthmus report runs/fraud", "isthmus run many.toml",
    *(f"isthmus federation {name}" for name in IN_PROCESSES),
)  # fmt: skip
"""Commands that cannot be cut down, or wait for each other; tests of their own run them."""
PUBLIC = ("cora", "citeseer", "pubmed", "enzymes", "proteins", "dhfr", "nci1")


@dataclass
class Block:
    language: str
    title: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        title = TITLE.search(fence[2])
        line = text[: fence.start(3)].count("\n") + 1
        found.append(Block(fence[1], title[1] if title else "", fence[3], line))
    return found


def commands(block: Block, *, all: bool = False) -> Iterator[str]:
    """Lines that start with `isthmus`, each with the lines that a backslash joins to it; `all` with the slow ones."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("isthmus ") and (all or not line.startswith(SLOW)):
            yield line


def test_pages_have_only_known_kinds_of_blocks() -> None:
    for page in PAGES:
        for block in blocks(page):
            known = ("python", "py", "console", "toml", "text")
            assert block.language in known, f"{page}:{block.line}: {block.language}"


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_commands_that_are_only_read_are_accepted(page: str) -> None:
    """In prose, in blocks marked `text`, in pages without blocks that run: a name alone may lack its arguments."""
    from command_line import called  # this file is run as a script too, which knows no `tests`

    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in COMMAND.findall(text):
        words = shlex.split(next(filter(None, line)).replace("\n", " "), comments=True)
        try:
            called(words[1:])
        except Exception as error:  # typer has a click of its own, and its errors are not in its interface
            if type(error).__name__ not in ("MissingParameter", "BadOptionUsage", "NoArgsIsHelpError"):
                raise


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(FIRST, id="first"),
        pytest.param(REST[::2], id="rest, even", marks=pytest.mark.slow),
        pytest.param(REST[1::2], id="rest, odd", marks=pytest.mark.slow),
    ],
)
def test_blocks_run(pages: list[str], tmp_path: Path) -> None:
    # a process of its own, for what a page defines must not stay registered; one for many pages, for imports are slow
    command = [sys.executable, __file__, *pages]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def run_pages(pages: list[str], root: Path) -> int:
    """Each in a folder of its own; a failure is shown and the next page runs."""
    runpy.run_path(str(Path(__file__).with_name("short.py")))
    failed = 0
    for page in pages:
        folder = root / page.replace("/", "-")
        folder.mkdir()
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        try:
            run_page(page)
        except Exception:
            failed += 1
            traceback.print_exc()
        sys.path.remove(str(folder))
    return failed


def run_page(page: str) -> None:
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(page):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        where = f"{page}:{block.line}"
        if block.language == "python" and block.title:
            exec(compile(f"from {Path(block.title).stem} import *", where, "exec"), names)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
        elif block.language == "console":
            for command in commands(block):
                run_command(command, where)


def run_command(line: str, where: str) -> None:
    from isthmus.cli.main import main

    words = shlex.split(line, comments=True)
    if any(word in PUBLIC for word in words) and "ISTHMUS_DATA" not in os.environ:
        return
    if words[1] == "run":
        words += [] if "--seed" in words else ["--seeds", "0,"]
    sys.argv = words
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise AssertionError(f"{where}: '{line}' ends with code {ended.code}") from None


if __name__ == "__main__":
    sys.exit(run_pages(sys.argv[1:], Path.cwd()))
