"""Write a benchmark's figures as JSON, and as tables in a page."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus import __version__
from isthmus.study.results import versions


def of_process(script: str, options: Sequence[str], source: Path | None = None) -> dict[str, Any]:
    """What a fresh process of the script says of itself, as JSON on its standard output.

    Arguments:
        source: the folder from which it imports isthmus; without one, the same as this process.
    """
    paths = {} if source is None else {"PYTHONPATH": str(source.resolve())}
    asked = [sys.executable, script, *options]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **paths})
    return json.loads(done.stdout)


def peak_mb() -> float:
    """Peak resident memory of this process.

    Linux keeps it by address space; `getrusage` there would also count what the process that started this one held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Seconds of CPU, and the peak of memory that no file backs, sampled every 10 ms."""
    found, done = {"own_mb": 0.0}, threading.Event()

    def sample() -> None:
        over = False
        while not over:
            over = done.wait(0.01)
            held = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
            found["own_mb"] = max(found["own_mb"], int(held[1]) / 2**10)

    thread, began, passed = threading.Thread(target=sample), time.process_time(), time.perf_counter()
    thread.start()
    yield found
    found["cpu_s"], found["wall_s"] = time.process_time() - began, time.perf_counter() - passed
    done.set()
    thread.join()


def machine() -> str:
    return f"{os.cpu_count()} cores {platform.machine().replace('_', '-')}"


def origin(*packages: ModuleType) -> dict[str, Any]:
    """What figures are of: versions of Isthmus, these packages and Python, the date and the machine."""
    of_packages = {package.__name__: package.__version__ for package in packages}
    return {
        "versions": {"isthmus": __version__, **of_packages, "python": platform.python_version()},
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
    }


def named(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def kept_cells(found: Path) -> list[dict[str, Any]]:
    """What an earlier call of a script has kept there."""
    return json.loads(found.read_text())["cells"] if found.exists() else []


def added(
    cells: list[dict[str, Any]], key: dict[str, Any], seeds: int, run: Callable[[int], dict[str, Any]], to: Path | None
) -> Iterator[dict[str, Any]]:
    """Runs of the seeds that a cell does not have yet, one after another; each is kept at once.

    Arguments:
        cells: all cells; the one of this key is made where it is not there.
        run: what a seed gives.
        to: where the cells are kept, if at all.
    """
    cell = next((each for each in cells if key.items() <= each.items()), None)
    if cell is None:
        cells.append(cell := {**key, "runs": []})
    for seed in range(len(cell["runs"]), seeds):
        cell["runs"].append(run(seed))
        if to is not None:
            to.parent.mkdir(exist_ok=True)
            to.write_text(json.dumps({"versions": versions(), "threads": 1, "cells": cells}, indent=1) + "\n")
        yield cell["runs"][-1]


def print_table(title: str, head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> None:
    """A table for people; so many columns stand to the left."""
    table = Table(title=title)
    for at, name in enumerate(head):
        table.add_column(name.strip("*"), justify="left" if at < left else "right")
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def keep(figures: dict[str, Any], results: Path, page: Path, marks: tuple[str, str], told: Sequence[str]) -> None:
    """Keep the figures: as JSON, and as paragraphs and tables between the marks in a page."""
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    begin, end = marks
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text("\n\n".join([before + begin, *told, end + after]), encoding="utf-8")
