"""CPU time and memory that a study with thousands of parties takes outside its rounds.

OMP_NUM_THREADS=1 python benchmarks/speed/start.py                 # the table, for 1,000 and 10,000 parties
OMP_NUM_THREADS=1 python benchmarks/speed/start.py --write         # the same, into results/start.json and README.md
OMP_NUM_THREADS=1 python benchmarks/speed/start.py --json          # the figures as JSON and nothing else
OMP_NUM_THREADS=1 python benchmarks/speed/start.py --before DIR    # also time the checkout DIR of an earlier version
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table
from isthmus.data.datasets.banks import Banks
from isthmus.data.partition.given import Given
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.run import Watcher, run_study

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
RESULTS = HERE / "results" / "start.json"
README = HERE / "README.md"
MARKS = "<!-- figures: written by start.py --write -->", "<!-- end of figures of start.py -->"
NODES, HIDDEN = 20, 64


def study_of(parties: int) -> Study:
    """One round of FedAvg on generated banks; a few of thousands of small banks have no label to train on."""
    return Study.of(
        {
            "data": {"name": "banks", "parties": parties, "nodes": NODES * parties},
            "unlabelled": "idle",
            "model": {"encoder": "gcn", "hidden": HIDDEN},
            "methods": [{"name": "fedavg", "rounds": 1, "local": {"epochs": 1}}],
        }
    )


# ---- a process that does one study


class Stages(Watcher):
    """The CPU seconds of the stages of a study, and the peak of memory when the first round begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start_mb = 0.0
        self.marks = [time.process_time()]

    @contextmanager
    def clock(self, owner: type, function: str, stage: str) -> Iterator[None]:
        """Add what a method takes to the seconds of a stage."""
        inner = getattr(owner, function)

        def clocked(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return inner(*args, **options)
            finally:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - began

        with patch.object(owner, function, clocked):
            yield

    @contextmanager
    def mark_start(self) -> Iterator[None]:
        """Note when the run, which is set up by then, starts its rounds."""
        inner = Run.go

        def go(run: Run) -> Any:
            self.start_mb = peak_mb()
            self.marks.append(time.process_time())
            return inner(run)

        with patch.object(Run, "go", go):
            yield

    def round_done(self, *_: Any) -> None:
        self.marks.append(time.process_time())

    def figures(self) -> dict[str, float]:
        """To be called when the study is done."""
        began, rounds, evaluated, done = *self.marks, time.process_time()
        start = rounds - began
        return {
            "generate_s": self.seconds["generate"],
            "cut_s": self.seconds["cut"],
            "set_up_s": start - self.seconds["generate"] - self.seconds["cut"],
            "start_s": start,
            "round_s": evaluated - rounds,
            "results_s": done - evaluated,
            "start_mb": self.start_mb,
            "peak_mb": max(self.start_mb, peak_mb()),  # Linux counts in steps of some pages
        }


def say_alone(parties: int) -> None:
    """Do a study and tell what it took."""
    with tempfile.TemporaryDirectory(prefix="isthmus-start-") as folder:
        run_study(study_of(4), Path(folder) / "small")  # loads every module
        stages = Stages()
        with stages.clock(Banks, "load", "generate"), stages.clock(Given, "cut", "cut"), stages.mark_start():
            run_study(study_of(parties), Path(folder) / "out", watcher=stages)
        print(json.dumps(stages.figures()))


# ---- both versions in turn


def measure(parties: int, repeats: int, before: Path | None) -> list[dict[str, Any]]:
    """A row of medians for each version, and one of the ratios of CPU times."""
    sources = {"now": SOURCE} if before is None else {"before": before / "src", "now": SOURCE}
    turns = [
        {version: of_process(__file__, ["--alone", str(parties)], source) for version, source in sources.items()}
        for _ in range(repeats)
    ]
    rows = [
        {"parties": parties, "version": version}
        | {name: round(statistics.median(turn[version][name] for turn in turns), 2) for name in FIGURES}
        for version in sources
    ]
    if before is not None:
        ratios = {
            name: round(statistics.median(turn["before"][name] / max(turn["now"][name], 0.01) for turn in turns), 1)
            for name in FIGURES
        }
        rows.append({"parties": parties, "version": "before / now", **ratios})
    return rows


def commit_of(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


# ---- what is said


FIGURES = {
    "generate_s": "generate",
    "cut_s": "cut",
    "set_up_s": "set up",
    "start_s": "**start**",
    "round_s": "round",
    "results_s": "results",
    "start_mb": "start, MB",
    "peak_mb": "peak, MB",
}
HEAD = ["parties", "version", *FIGURES.values()]


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Lines of the table; ratios have one digit in every column."""

    def shown(row: dict[str, Any], name: str) -> str:
        return f"{row[name]:,.{1 if '/' in row['version'] else 2 if name.endswith('_s') else 0}f}"

    return [[f"{row['parties']:,}", row["version"], *(shown(row, name) for name in FIGURES)] for row in rows]


def title_of(figures: dict[str, Any]) -> str:
    return (
        f"FedAvg with a GCN ({figures['hidden']} wide) on generated banks with {figures['nodes']} nodes each, "
        f"CPU seconds of one thread, median of {figures['repeats']}"
    )


def figures_of(parties: list[int], repeats: int, before: Path | None) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-start-") as cache,
        patch.dict(os.environ, {"ISTHMUS_CACHE": cache}),
    ):
        rows = [row for count in parties for row in measure(count, repeats, before)]
    return {
        **origin(torch, np),
        "load": round(os.getloadavg()[2], 1),
        "nodes": NODES,
        "hidden": HIDDEN,
        "repeats": repeats,
        "before": None if before is None else commit_of(before),
        "rows": rows,
    }


def write(figures: dict[str, Any]) -> None:
    told = f"Measured on {figures['date']}: {title_of(figures)}, in a process of its own; imports are left out; "
    told += f"{figures['machine']}, load {figures['load']}; {named(figures['versions'])}."
    if figures["before"] is not None:
        told += f" Before is commit {figures['before']}."
    keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, cells(figures["rows"]), left=2)])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--repeats", type=int, default=3, help="turns of each version")
    parser.add_argument("--before", type=Path, help="checkout of an earlier version to time in turn with this one")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    if options.alone:
        say_alone(options.alone)
        return
    figures = figures_of(options.parties, options.repeats, options.before)
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(title_of(figures), HEAD, cells(figures["rows"]), left=2)


if __name__ == "__main__":
    main()
