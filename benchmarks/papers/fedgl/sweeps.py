"""FedGL's figures 11 to 14: accuracy under other thresholds, weights of both parts and numbers of neighbours.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedgl/sweeps.py --write --data cora --seeds 3

runs what is not in results/sweeps.json yet: FedGL as in tables.py with one parameter after another over the paper's
range, the others as they are there.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tables import METHODS, SETS, added, kept_cells, measured

HERE = Path(__file__).parent
FOUND = HERE / "results" / "sweeps.json"
TENTHS = tuple(round(0.1 * at, 1) for at in range(11))
RANGES: dict[str, tuple[float, ...]] = {
    "threshold": TENTHS[1:-1],
    "alpha": TENTHS,
    "beta": TENTHS,
    "neighbours": (5, 10, 30, 50, 100, 200, 500, 1000),
}
"""Figures 11, 12, 13 and 14."""


def text(cells: list[dict[str, Any]], parameter: str) -> str:
    values = RANGES[parameter]
    lines = [
        f"| set | seeds | {parameter} = " + " | ".join(map(str, values)) + " |",
        "| --- " * (2 + len(values)) + "|",
    ]
    for data in SETS:
        found = {
            cell["value"]: cell["runs"] for cell in cells if (cell["parameter"], cell["data"]) == (parameter, data)
        }
        if found:
            told = [f"{statistics.fmean(run['global'] for run in found[v]):.1f}" if v in found else "-" for v in values]
            seeds = "-".join(map(str, sorted({len(runs) for runs in found.values()})))
            lines.append(f"| {data} | {seeds} | " + " | ".join(told) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", nargs="*", default=list(RANGES), choices=RANGES)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for data in args.data:
        for parameter in args.parameters:
            for value in RANGES[parameter]:
                key = {"data": data, "parameter": parameter, "value": value}
                method = {**METHODS["fedgl"], parameter: value}
                run_seed = partial(measured, data, method, {}, args.rounds)
                for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                    print(data, parameter, value, run, flush=True)
    for parameter in args.parameters:
        print(f"\n{text(kept, parameter)}")


if __name__ == "__main__":
    main()
