"""Compare a FedAvg round of many small parties with a centralised round over the same nodes, in one run.

OMP_NUM_THREADS=1 python benchmarks/speed/parties.py            # the table
OMP_NUM_THREADS=1 python benchmarks/speed/parties.py --write    # the same, into results/parties.json and the README
OMP_NUM_THREADS=1 python benchmarks/speed/parties.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import itertools
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table
from isthmus.study.config import Study
from isthmus.study.run import build_run

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "parties.json", HERE / "README.md"
MARKS = ("<!-- figures: written by parties.py --write -->", "<!-- end of figures of parties.py -->")
NODES = 20
"""Nodes of a party, on average."""
SIDES = ("fedavg", "centralized")
WARM_UP = 1


def say_alone(parties: int, method: str, rounds: int) -> None:
    """Run one side in this process, and print what it took as JSON."""
    study = Study.of(
        {
            "parties": parties,
            "data": {"name": "banks", "nodes": NODES * parties},
            "model": {"encoder": "gcn", "hidden": 64},
            "training": {"rounds": rounds + WARM_UP},
            "methods": [{"name": method, "select": "last", "local": {"epochs": 5}}],
            "unlabelled": "idle",
        }
    )
    stamps: list[float] = []
    loaded = study.load(0)
    before = peak_mb()
    run = build_run(
        study, study.method_list()[0], 0, loaded, on_round=lambda at, metrics: stamps.append(time.process_time())
    )
    found = run.go()
    ms = [1000 * (after - begin) for begin, after in itertools.pairwise(stamps)][WARM_UP - 1 :]
    print(
        json.dumps(
            {
                "ms": statistics.median(ms),
                "before_mb": before,
                "peak_mb": peak_mb(),
                "accuracy": found.metrics["test_accuracy"],
            }
        )
    )


def measure(parties: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Both sides in turns, each turn a fresh process; a ratio is taken within a turn."""
    turns = [
        {side: of_process(__file__, ["--alone", str(parties), side, "--rounds", str(rounds)]) for side in SIDES}
        for _ in range(repeats)
    ]

    def middle(side: str, figure: str) -> float:
        return statistics.median(turn[side][figure] for turn in turns)

    return {
        "parties": parties,
        "fedavg_ms": round(middle("fedavg", "ms"), 1),
        "centralized_ms": round(middle("centralized", "ms"), 1),
        "ratio": round(statistics.median(turn["fedavg"]["ms"] / turn["centralized"]["ms"] for turn in turns), 2),
        "before_mb": round(middle("fedavg", "before_mb")),
        "peak_mb": round(middle("fedavg", "peak_mb")),
        "centralized_peak_mb": round(middle("centralized", "peak_mb")),
        "fedavg_accuracy": round(middle("fedavg", "accuracy"), 3),
        "centralized_accuracy": round(middle("centralized", "accuracy"), 3),
    }


# ---- what is said


COLUMNS = {
    "parties": "parties",
    "fedavg_ms": "FedAvg, ms a round",
    "centralized_ms": "centralised, ms a round",
    "ratio": "**FedAvg / centralised**",
    "before_mb": "memory with the data, MB",
    "peak_mb": "**peak memory, FedAvg, MB**",
    "centralized_peak_mb": "peak memory, centralised, MB",
    "fedavg_accuracy": "test accuracy, FedAvg",
    "centralized_accuracy": "test accuracy, centralised",
}
HEAD = list(COLUMNS.values())


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[f"{row[name]:,}" for name in COLUMNS] for row in rows]


def title_of(figures: dict[str, Any]) -> str:
    return f"generated banks with {NODES} nodes per party, GCN 64, {figures['rounds'] + WARM_UP} rounds, one thread"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[100, 1_000, 3_000, 10_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", nargs=2, metavar=("PARTIES", "METHOD"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    if options.alone:
        say_alone(int(options.alone[0]), options.alone[1], options.rounds)
        return
    rows = [measure(parties, options.rounds, options.repeats) for parties in options.parties]
    figures = {**origin(torch), "rounds": options.rounds, "rows": rows}
    if options.write:
        told = f"Measured on {figures['date']}: {title_of(figures)}, seed 0; {figures['machine']}; "
        told += f"{named(figures['versions'])}."
        keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, cells(rows))])
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(title_of(figures), HEAD, cells(rows))


if __name__ == "__main__":
    main()
