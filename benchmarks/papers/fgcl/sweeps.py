"""FGCL's figures 4 to 6, and what else may decide whether contrast wins: one parameter after another.

    OMP_NUM_THREADS=1 python benchmarks/papers/fgcl/sweeps.py --write --data bace --parameters gamma --seeds 2

runs what is not in results/sweeps.json yet, FGCL as in tables.py with epsilon 1 for each view but for one parameter,
and draws results/sweeps.html: a dot for each seed and a stroke for their mean. Negatives, gamma and pairs of budgets
are the paper's sweeps; temperature, batch size, mechanism and post-processing are ours. Settings are to be chosen by
the validation figures, so those are told too.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tables import ENCODERS, SETS, added, kept_cells, measured, method_of, spread

from figures import markdown, sweep_page

HERE = Path(__file__).parent
FOUND = HERE / "results" / "sweeps.json"
BUDGETS = (0.1, 1.0, 10.0, 100.0)
RANGES: dict[str, dict[str, dict[str, Any]]] = {
    "negatives": {str(k): {"negatives": k} for k in (1, 5, 10, 20, 30, 40, 50)},
    "gamma": {f"{gamma:g}": {"gamma": gamma} for gamma in (0.0, 0.001, 0.01, 0.1, 1.0)},
    "epsilons": {
        f"{one:g} + {two:g}": {"epsilons": [one, two]} for one in BUDGETS for two in BUDGETS if one <= two
    },
    "temperature": {f"{tau:g}": {"temperature": tau} for tau in (0.05, 0.1, 0.2, 0.5, 1.0)},
    "batch_size": {str(size): {"local": {"batch_size": size}} for size in (1, 8, 32, 128)},
    "mechanism": {name: {"mechanism": name} for name in ("laplace", "gaussian", "randomized-response")},
    "post": {
        "clamped": {},
        "raw": {"post": {"clamp": False}},
        "threshold 0.5": {"post": {"threshold": 0.5}},
        "degree 2": {"post": {"degree": 2.0}},
        "degree 8": {"post": {"degree": 8.0}},
    },
}  # fmt: skip
"""Of each parameter its values by name, and what options they are."""
HEAD = ("value", "seeds", "one view: validation", "test", "FGCL: validation", "test")
BOTH = ("epsilons", "batch_size", "mechanism", "post")
"""Parameters that one view has as well; it is run beside FGCL, with the first of the budgets."""


def methods(parameter: str, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """FGCL, and one view where the parameter is of both."""
    found = {"fgcl": {**method_of("fgcl", 1.0), **options}}
    if parameter in BOTH:
        found["noise"] = {**found["fgcl"], "epsilons": found["fgcl"]["epsilons"][:1]}
    return found


def rows_of(cells: list[dict[str, Any]], data: str, encoder: str, parameter: str) -> dict[str, dict[str, Any]]:
    """By value and method the runs."""
    key = {"data": data, "encoder": encoder, "parameter": parameter}
    found: dict[str, dict[str, Any]] = {value: {} for value in RANGES[parameter]}
    for cell in cells:
        if key.items() <= cell.items() and cell["value"] in found:
            found[cell["value"]][cell["method"]] = cell["runs"]
    return {value: runs for value, runs in found.items() if runs}


def line(value: str, runs: dict[str, Any]) -> tuple[str, ...]:
    count = "-".join(map(str, sorted({len(each) for each in runs.values()})))
    told = [
        spread([run[name] for run in runs.get(method, [])]) for method in ("noise", "fgcl") for name in ("val", "test")
    ]
    return value, count, *told


def text(cells: list[dict[str, Any]], data: str, encoder: str, parameter: str) -> str:
    rows = rows_of(cells, data, encoder, parameter)
    return markdown(HEAD, [line(value, runs) for value, runs in rows.items()])


def drawn(cells: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """A chart for each set, encoder and parameter: test figures of FGCL by value."""
    charts = {}
    for data, encoder, parameter in dict.fromkeys((c["data"], c["encoder"], c["parameter"]) for c in cells):
        rows = rows_of(cells, data, encoder, parameter)
        charts[f"{data}, {encoder}: {parameter}"] = {
            value: [run["test"] for run in runs["fgcl"]] for value, runs in rows.items() if runs.get("fgcl")
        }
    return charts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", nargs="*", default=list(RANGES), choices=RANGES)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--encoders", nargs="*", default=["gcn"], choices=ENCODERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for data in args.data:
        for encoder in args.encoders:
            for parameter in args.parameters:
                for value, options in RANGES[parameter].items():
                    for name, method in methods(parameter, options).items():
                        key = {"data": data, "encoder": encoder, "parameter": parameter, "value": value, "method": name}
                        run_seed = partial(measured, data, encoder, "random", method, args.rounds)
                        for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                            print(data, encoder, parameter, value, name, run, flush=True)
                print(f"\n{data}, {encoder}: {parameter}\n\n{text(kept, data, encoder, parameter)}\n")
    if args.write:
        sweep_page(
            FOUND.with_suffix(".html"), "FGCL, one parameter after another", "test ROC-AUC in percent", drawn(kept)
        )


if __name__ == "__main__":
    main()
