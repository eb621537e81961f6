"""FCLG's figures 2, 4 and 5: accuracy round by round, and by skew, number of parties and epochs of a round.

    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/sweeps.py --write --seeds 3

runs what is not in results/sweeps.json yet, methods as in tables.py but for one parameter, and draws
results/sweeps.html: a dot for each seed and a stroke for their mean.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tables import METHODS, SETS, added, chosen, kept_cells, measured, prepared, study

from figures import markdown, sweep_page

FOUND = Path(__file__).parent / "results" / "sweeps.json"
RANGES: dict[str, dict[str, tuple[float | str, dict[str, Any]]]] = {
    "emd": {f"{emd:g}": (emd, {}) for emd in (0.1, 0.2, 0.4, 0.58, 0.8)},
    "parties": {str(parties): (0.58, {"parties": parties}) for parties in (2, 4, 6, 8, 10, 15, 20)},
    "epochs": {str(epochs): ("non-iid", {"epochs": epochs}) for epochs in (1, 2, 5, 10, 20)},
}
"""Figures 4(a), 4(b) and 5: of each parameter its values by name, with the cut and what else they are."""
ROUNDS = 20
"""Of figure 2, which has a point for each, and of figure 5."""
SHOWN = ("infograph-fedavg", "mvgrl-fedavg", "fclg")


def by_round(data: str, row: str, rounds: int, seed: int) -> dict[str, Any]:
    """Accuracy after every round."""
    family, more = METHODS[row]
    setting, _ = chosen(data, family)
    run = prepared(study(data, "non-iid", setting, {"name": family, **more, "every": 1}, rounds, seed), seed)
    found: list[float] = []

    def look(now: int, metrics: Mapping[str, float]) -> None:
        found.append(round(100 * metrics["test_accuracy"], 2))

    run.on_round = look
    run.go()
    return {"seed": seed, "accuracy": found[-1], "by round": found, "date": datetime.date.today().isoformat()}


def rows_of(cells: list[dict[str, Any]], data: str, parameter: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By value and method the runs."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in cells:
        if (cell["data"], cell["parameter"]) == (data, parameter):
            found.setdefault(cell["value"], {})[cell["method"]] = cell["runs"]
    return found


def by_value(cells: list[dict[str, Any]], data: str, parameter: str) -> dict[str, dict[str, list[float]]]:
    """By method and value accuracies of the seeds; of rounds every fifth."""
    found: dict[str, dict[str, list[float]]] = {}
    for value, runs in rows_of(cells, data, parameter).items():
        for row, own in runs.items():
            values = {value: [run["accuracy"] for run in own]}
            if parameter == "rounds" and own:
                last = len(own[0]["by round"])
                values = {str(at): [run["by round"][at - 1] for run in own] for at in (1, *range(5, last + 1, 5))}
            found.setdefault(row, {}).update(values)
    return found


def text(cells: list[dict[str, Any]], data: str, parameter: str) -> str:
    found = by_value(cells, data, parameter)
    values = list(dict.fromkeys(value for own in found.values() for value in own))
    lines = [
        (row, *(f"{statistics.fmean(own[value]):.1f}" if own.get(value) else "-" for value in values))
        for row, own in found.items()
    ]
    return markdown((f"{data}, {parameter}", *values), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", nargs="*", default=["rounds", *RANGES], choices=["rounds", *RANGES])
    parser.add_argument("--data", nargs="*", default=["proteins"], choices=SETS)
    parser.add_argument("--methods", nargs="*", default=SHOWN, choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most")
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for data in args.data:
        for parameter in args.parameters:
            for value, (cut, other) in RANGES.get(parameter, {"": ("non-iid", {})}).items():
                for row in args.methods:
                    key = {"data": data, "parameter": parameter, "value": value, "method": row}
                    if parameter == "rounds":
                        run_seed = partial(by_round, data, row, args.rounds)
                    else:
                        run_seed = partial(measured, data, cut, row, args.rounds, **other)
                    for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                        print(data, parameter, value, row, json.dumps(run), flush=True)
            print(f"\n{text(kept, data, parameter)}\n")
    if args.write:
        charts = {
            f"{data}, {row}: {parameter}": values
            for data, parameter in dict.fromkeys((cell["data"], cell["parameter"]) for cell in kept)
            for row, values in by_value(kept, data, parameter).items()
        }
        sweep_page(FOUND.with_suffix(".html"), "FCLG, one parameter after another", "accuracy in percent", charts)


if __name__ == "__main__":
    main()
