"""Time and memory of the generated data sets, from 200 to 5 million nodes, each in a process of its own.

OMP_NUM_THREADS=1 python benchmarks/data/generate.py            # the table
OMP_NUM_THREADS=1 python benchmarks/data/generate.py --write    # and into results/generate.json and README.md
OMP_NUM_THREADS=1 python benchmarks/data/generate.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table
from isthmus.data.pool import DataSet

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "generate.json"
README = HERE / "README.md"
MARKS = ("<!-- figures: written by generate.py --write -->", "<!-- end of figures of generate.py -->")
DATA = ("banks", "hospitals", "molecules", "motifs")
NODES = (200, 2_000, 20_000, 200_000, 2_000_000, 5_000_000)
SEED = 0
ROWS = {
    "nodes": "nodes",
    "seconds": "seconds",
    "ns": "ns a node",
    "before_mb": "memory before, MB",
    "peak_mb": "peak memory, MB",
}
HEAD = ["data set", *ROWS.values()]


# ---- a process that makes one data set


def say_alone(name: str, nodes: int) -> None:
    """Make one data set of about so many nodes and say what it took."""
    kind = DataSet.named(name)
    size = {"nodes": nodes} if "nodes" in kind.model_fields else {"graphs": max(4, round(nodes / per_graph(kind)))}
    before = peak_mb()
    start = time.process_time()
    party = kind.read(size, name).load(SEED).party
    seconds = time.process_time() - start
    found = {
        "data": name,
        "nodes": party.nodes,
        "edges": party.edges,
        "items": party.items,
        "seconds": seconds,
        "before_mb": round(before),
        "peak_mb": round(peak_mb()),
    }
    print(json.dumps(found))


def per_graph(kind: type[DataSet]) -> float:
    """Mean number of nodes of a graph."""
    party = kind.read({"graphs": 1000}, kind.name).load(SEED).party
    return party.nodes / party.items


# ---- what is measured


def measure(name: str, nodes: int, repeats: int) -> dict[str, Any]:
    """Medians over processes that run one after another."""
    runs = [of_process(__file__, ["--alone", name, str(nodes)]) for _ in range(repeats)]
    found = runs[0] | {key: statistics.median(run[key] for run in runs) for key in ("seconds", "before_mb", "peak_mb")}
    return found | {"seconds": round(found["seconds"], 4), "ns": round(1e9 * found["seconds"] / found["nodes"])}


def figures_of(options: argparse.Namespace) -> dict[str, Any]:
    return {
        **origin(torch, np),
        "threads": torch.get_num_threads(),
        "seed": SEED,
        "repeats": options.repeats,
        "rows": [measure(name, nodes, options.repeats) for name in options.data for nodes in options.nodes],
    }


# ---- what is said


def shown(name: str, value: Any) -> str:
    if name == "seconds":
        return f"{value:.3f}" if value < 1 else f"{value:.1f}"
    return f"{value:,.0f}"


def lines_of(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[row["data"], *(shown(name, row[name]) for name in ROWS)] for row in rows]


def title_of(figures: dict[str, Any]) -> str:
    return f"Generated data sets, default options, seed {figures['seed']}, one thread, medians of {figures['repeats']}"


def write(figures: dict[str, Any]) -> None:
    told = f"Measured on {figures['date']}: {title_of(figures)}; {figures['machine']}; {named(figures['versions'])}."
    lines = [[f"`{line[0]}`", *line[1:]] for line in lines_of(figures["rows"])]
    keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, lines)])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each line")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    torch.set_num_threads(1)
    options = parsed()
    if options.alone:
        say_alone(options.alone[0], int(options.alone[1]))
        return
    figures = figures_of(options)
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_table(title_of(figures), HEAD, lines_of(figures["rows"]))


if __name__ == "__main__":
    main()
