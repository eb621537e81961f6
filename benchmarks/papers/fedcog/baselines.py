"""FedCog's baselines on Cora, and link prediction: 10 and 100 parties, k-means or METIS.

`python benchmarks/papers/fedcog/baselines.py --write` runs what is not in the tables yet and keeps it beside this file.
Split, cut, rounds, training and choice of the learning rate are those of `accuracy.py`; each method trains the encoder
that it is for. FedCog-GCN takes one step in a round, with Adam. Links are predicted from the embeddings of a 2-layer
SGC, 100 wide, trained by Adam for one epoch in a round: a dot product of small embeddings has a small gradient.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accuracy import CUTS, TUNING_SEEDS

from isthmus import Study, run_study
from isthmus.study.results import versions

HERE = Path(__file__).parent
FOUND = HERE / "results" / "baselines.json"
PARTIES = (100, 10)
TASKS = ("nodes", "links")
NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedsage": ("sage", {"name": "fedsage"}),
    "fedsage-plus": ("sage", {"name": "fedsage-plus"}),
    "fedgcn, hops 0": ("gcn", {"name": "fedgcn", "hops": 0}),
    "fedgcn, hops 1": ("gcn", {"name": "fedgcn", "hops": 1}),
    "fedgcn, hops 2": ("gcn", {"name": "fedgcn", "hops": 2}),
    "fedcog-gcn": ("gcn", {"name": "fedcog-gcn"}),
}
LINKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("sgc", {"name": "fedavg"}),
    "fedcog": ("sgc", {"name": "fedcog"}),
    "fedcog without lnnc": ("sgc", {"name": "fedcog", "lnnc": False}),
    "centralized": ("sgc", {"name": "centralized"}),
}
METHODS = {"nodes": NODES, "links": LINKS}
METRICS = {"nodes": ("accuracy",), "links": ("auc", "party_auc")}
"""What is told, the first one first."""
RATES = {"nodes": (0.01, 0.1), "links": (0.01, 0.03)}
KEY = ("data", "task", "cut", "parties", "method", "rounds")


def study(cell: dict[str, Any], lr: float, seeds: list[int]) -> Study:
    encoder, method = METHODS[cell["task"]][cell["method"]]
    optimizer = {"optimizer": "sgd", "lr": lr, "weight_decay": 5e-4} if cell["task"] == "nodes" else {"lr": lr}
    training = {"epochs": 5 if cell["task"] == "nodes" else 1, **optimizer}
    if cell["method"] == "fedcog-gcn":  # one step of the server's optimiser in each round
        method = method | {"optimizer": {"lr": lr}}
    else:
        method = method | {"local": training}
    return Study.of(
        {
            "data": data_of(cell),
            "partition": {"name": cell["cut"]},
            "parties": cell["parties"],
            "task": {"name": "link-prediction"} if cell["task"] == "links" else {},
            "model": {"encoder": encoder},
            "methods": [{**method, "rounds": cell["rounds"], "every": cell["rounds"], "select": "last"}],
            "seeds": seeds,
            "unlabelled": "idle",
        }
    )


def data_of(cell: dict[str, Any]) -> dict[str, Any]:
    """As in `accuracy.py`; links need no split of the nodes."""
    if cell["data"] != "cora":
        return {"name": cell["data"]}
    split = {"split": "random", "train_per_class": 30, "val": 500, "test": 1000}
    return {"name": "cora", **({} if cell["task"] == "links" else {**split, "normalize": False})}


def measured(cell: dict[str, Any], seeds: int, before: dict[str, Any] | None) -> dict[str, Any]:
    """The learning rate by validation on a seed of its own, then what the test items of the others say.

    Arguments:
        before: the same cell with fewer seeds, gone on from.
    """
    began, metrics = time.perf_counter(), METRICS[cell["task"]]
    found = before or {**cell, "lr": chosen_rate(cell), **{name: [] for name in metrics}, "seconds": 0.0}
    runs = run_study(study(cell, found["lr"], list(range(len(found[metrics[0]]), seeds)))).runs
    added = {name: found[name] + [100 * run.metrics[f"test_{name}"] for run in runs] for name in metrics}
    took = round(found["seconds"] + time.perf_counter() - began, 1)
    return {**found, **added, "seconds": took, "date": datetime.date.today().isoformat()}


def chosen_rate(cell: dict[str, Any]) -> float:
    rates = {}
    for lr in RATES[cell["task"]]:
        (run,) = run_study(study(cell, lr, [TUNING_SEEDS[0]])).runs
        rates[lr] = run.metrics[f"val_{METRICS[cell['task']][0]}"]
    return max(rates, key=lambda rate: rates[rate])


def cells(args: Any) -> Iterator[dict[str, Any]]:
    for parties in args.parties:
        for cut in args.cut:
            for task in args.task:
                for method in METHODS[task]:
                    if not args.method or method in args.method:
                        yield dict(zip(KEY, (args.data, task, cut, parties, method, args.rounds), strict=True))


def table(found: list[dict[str, Any]], task: str) -> str:
    names = list(METHODS[task])
    lines = ["| parties | cut | rounds | " + " | ".join(names) + " |", "| --- " * (3 + len(names)) + "|"]
    mine = [each for each in found if each["task"] == task]
    for parties, cut, rounds in dict.fromkeys((each["parties"], each["cut"], each["rounds"]) for each in mine):
        row = {e["method"]: e for e in mine if (e["parties"], e["cut"], e["rounds"]) == (parties, cut, rounds)}
        shown = [_cell(row[name]) if name in row else "-" for name in names]
        lines.append(f"| {parties} | {cut} | {rounds} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _cell(cell: dict[str, Any]) -> str:
    values = cell[METRICS[cell["task"]][0]]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cora", choices=("cora", "banks"))
    parser.add_argument("--task", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--cut", nargs="*", default=CUTS, choices=CUTS)
    parser.add_argument("--parties", nargs="*", type=int, default=PARTIES)
    parser.add_argument("--method", nargs="*", choices=[*NODES, *LINKS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    torch.set_num_threads(1)
    kept = json.loads(FOUND.read_text())["cells"] if args.write and FOUND.exists() else []
    for cell in cells(args):
        same = [each for each in kept if all(each[name] == cell[name] for name in KEY)]
        if same and len(same[0][METRICS[cell["task"]][0]]) >= args.seeds:
            continue
        found = measured(cell, args.seeds, same[0] if same else None)
        print(
            *cell.values(),
            f"seeds {args.seeds}",
            f"lr {found['lr']}",
            _cell(found),
            f"{found['seconds']} s",
            flush=True,
        )
        kept = [each for each in kept if each not in same] + [found]
        if args.write:
            FOUND.parent.mkdir(exist_ok=True)
            FOUND.write_text(json.dumps({"versions": versions(), "cells": kept}, indent=1) + "\n")
    for task in args.task:
        print(f"\n{task}, {METRICS[task][0]} in percent\n\n{table(kept, task)}")


if __name__ == "__main__":
    main()
