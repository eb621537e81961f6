"""FedGL's tables 2 to 5: accuracy on overlapping samples of a graph, global goal and local goal.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedgl/tables.py --table 2 --write

runs what is not in the table yet and writes it into results/tables.json, seed by seed. Settings of section 5.3: six
parties that hold 30, 40, 50, 50, 60 and 70 percent of the nodes, a GCN of two layers with 16 hidden units and dropout
0.5, Adam with 0.01 and decay 5e-4, 10 epochs a round, at most 300 rounds, at most 30 without a better validation
accuracy at the parties; the test accuracy is that of the best validation round. lambda = 0.5 and alpha = 0.2 (Wiki 0.1
and 0.1), beta = 1, s = 100; everything else is FedGL's default. ACM and Wiki have no public split: 20 training nodes a
class, 500 to validate, 1,000 to test, drawn by the seed.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isthmus import Study
from isthmus.study.engine import Run, module_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import added, kept_cells

HERE = Path(__file__).parent
FOUND = HERE / "results" / "tables.json"
SETS = ("cora", "citeseer", "acm", "wiki")
LITERAL = {
    "similarity": "dot", "mutual": False, "confident": 0, "settled": 1, "joined": False, "fusion": "all", "least": 1,
    "sums": True, "both": True,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "centralized": {"name": "centralized"},
    "federated": {"name": "fedavg", "weighting": "size"},
    "without graph": {"name": "fedgl", "pseudo_graph": False},
    "without labels": {"name": "fedgl", "pseudo_labels": False},
    "fedgl": {"name": "fedgl"},
    "literal": {"name": "fedgl", **LITERAL},
}
"""`without graph` is the paper's "FedGL w/o GPG", `without labels` its "w/o GPL"; `literal` its words to the letter."""
PROPORTIONS = ([0.3, 0.4, 0.5], [0.2, 0.4, 0.6], [0.5, 0.6, 0.7, 0.8], [0.2, 0.4, 0.5, 0.7, 0.7, 0.9])
TABLES: dict[int, tuple[dict[str, Any], tuple[str, ...]]] = {
    2: ({}, tuple(METHODS)),
    3: ({"labels": (5, 10, 15)}, ("centralized", "federated", "without graph", "without labels", "fedgl")),
    4: ({"fraction": (0.3, 0.5, 0.7, 0.9)}, ("federated", "fedgl")),
    5: ({"proportions": PROPORTIONS}, ("federated", "fedgl")),
}
"""What varies from row to row of a table, and its columns."""
PAPER: dict[tuple[int, str, str], tuple[float, ...]] = {
    (2, "cora", ""): (81.1, 81.0, 82.8, 81.2, 83.0),
    (2, "citeseer", ""): (70.5, 67.6, 73.2, 67.6, 73.4),
    (2, "acm", ""): (84.8, 85.5, 89.2, 85.8, 89.1),
    (2, "wiki", ""): (61.9, 67.8, 68.9, 67.3, 69.1),
    (3, "cora", "5"): (54.9, 58.7, 62.9, 58.0, 64.0),
    (3, "cora", "10"): (69.8, 68.9, 73.3, 69.2, 73.7),
    (3, "cora", "15"): (74.0, 73.8, 79.9, 73.9, 80.6),
    (3, "citeseer", "5"): (55.5, 57.7, 61.0, 57.9, 60.5),
    (3, "citeseer", "10"): (63.6, 64.4, 63.5, 64.6, 62.0),
    (3, "citeseer", "15"): (64.8, 66.2, 70.8, 66.2, 71.0),
    (3, "acm", "15"): (72.3, 75.4, 81.1, 76.0, 85.2),
    (3, "acm", "25"): (84.5, 85.5, 89.2, 85.5, 89.2),
    (3, "acm", "35"): (90.2, 90.2, 90.8, 90.1, 90.3),
    (3, "wiki", "5"): (34.5, 46.4, 48.4, 46.3, 48.2),
    (3, "wiki", "10"): (43.5, 51.6, 55.1, 51.0, 55.0),
    (3, "wiki", "15"): (52.4, 64.6, 62.4, 63.8, 65.1),
}
"""The paper's figures: centralized, federated, without graph, without labels, fedgl."""


def study(data: str, method: dict[str, Any], seed: int, row: dict[str, Any], rounds: int = 300) -> Study:
    """One run in the paper's setting; `row` is what a row of a table changes."""
    options: dict[str, Any] = {"name": data}
    if data in ("acm", "wiki") or "labels" in row:
        options |= {"train_per_class": row.get("labels", 20), "val": 500, "test": 1000}
    if data in ("cora", "citeseer") and "labels" in row:
        options["split"] = "random"
    local = {"epochs": 10, "optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4}
    method = {"rounds": rounds, "patience": 30, "local": local, **method}
    if method["name"] == "fedgl" and data == "wiki":
        method = {"threshold": 0.1, "alpha": 0.1, **method}
    if "fraction" in row:
        method["fraction"] = row["fraction"]
    if "features" in row:
        options["normalize"] = False
    cut: dict[str, Any] = {"name": "overlap"}
    if "proportions" in row:
        cut["proportions"] = list(row["proportions"])
    return Study.of(
        {
            "data": options,
            "partition": cut,
            "model": {"encoder": "gcn", "hidden": 16, "dropout": 0.5},
            "methods": [method],
            "seeds": [seed],
            "unlabelled": "idle",
        }
    )


def measured(data: str, method: dict[str, Any], row: dict[str, Any], rounds: int, seed: int) -> dict[str, Any]:
    plan = study(data, method, seed, row, rounds)
    loaded = plan.load(seed)
    module = module_for(plan.encoder(), loaded.parties, loaded.task, seed)
    run = Run(plan.method_list()[0], loaded.parties, loaded.task, module, seed=seed)
    found = run.go()
    goals = {"global": found.metrics.get("pooled_test_accuracy"), "local": found.metrics["test_accuracy"]}
    return {
        "seed": seed, **{goal: None if value is None else round(100 * value, 2) for goal, value in goals.items()},
        "val": round(100 * found.metrics["val_accuracy"], 2), "round": found.chosen_round, "rounds": found.rounds,
        "graph from": getattr(run.state, "began", 0), "seconds": round(found.seconds, 1),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def rows_of(table: int, data: str) -> Iterator[dict[str, Any]]:
    varies, _ = TABLES[table]
    if not varies:
        yield {}
    for what, values in varies.items():
        for value in (15, 25, 35) if (what, data) == ("labels", "acm") else values:
            yield {what: value}


def named(row: dict[str, Any]) -> str:
    return " ".join(str(value) for value in row.values())


def text(cells: list[dict[str, Any]], table: int, goal: str) -> str:
    """Mean and standard deviation over the seeds, a row for each data set and setting, below it the paper's."""
    names = [name for name in TABLES[table][1] if goal == "local" or name != "local"]
    lines = [
        f"| set | {' '.join(TABLES[table][0])} | seeds | " + " | ".join(names) + " |",
        "| --- " * (3 + len(names)) + "|",
    ]
    for data in SETS:
        for base, raw in itertools.product(rows_of(table, data), ({}, {"features": "raw"})):
            row = base | raw
            mine = {c["method"]: c for c in cells if (c["table"], c["data"], c["row"]) == (table, data, named(row))}
            if not mine:
                continue
            seeds = {len(each["runs"]) for each in mine.values()}
            told = [_cell(mine.get(name), goal) for name in names]
            lines.append(f"| {data} | {named(row)} | {'-'.join(map(str, sorted(seeds)))} | " + " | ".join(told) + " |")
            if goal == "global" and (paper := PAPER.get((table, data, named(base)))):
                by_name = dict(
                    zip(("centralized", "federated", "without graph", "without labels", "fedgl"), paper, strict=True)
                )
                lines.append("| *paper* | | | " + " | ".join(str(by_name.get(name, "")) for name in names) + " |")
    return "\n".join(lines)


def _cell(cell: dict[str, Any] | None, goal: str) -> str:
    values = [] if cell is None else [run[goal] for run in cell["runs"] if run[goal] is not None]
    if not values:
        return "-"
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, choices=TABLES, default=2)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--methods", nargs="*", choices=METHODS)
    parser.add_argument("--raw", action="store_true", help="features as they are: rows do not add up to 1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for data in args.data:
        for row in rows_of(args.table, data):
            row |= {"features": "raw"} if args.raw else {}
            for name in args.methods or TABLES[args.table][1]:
                key = {"table": args.table, "data": data, "row": named(row), "method": name}
                run_seed = partial(measured, data, METHODS[name], row, args.rounds)
                for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                    print(data, named(row), name, run, flush=True)
    for goal in ("global", "local"):
        print(f"\n{goal} goal\n\n{text(kept, args.table, goal)}")


if __name__ == "__main__":
    main()
