"""FGCL's table III: ROC-AUC on molecules whose bonds are secret, under four encoders and four privacy budgets.

    OMP_NUM_THREADS=1 python benchmarks/papers/fgcl/tables.py --write --data bace --encoders gcn

runs what is not in results/tables.json yet and writes it there, seed by seed. The paper gives neither parties nor cut:
4 parties (Tox21: 8), items by a Dirichlet distribution with 0.5, 100 rounds of one epoch, hidden width 64, as the
framework it builds on. A fixed split of 80/10/10 percent, drawn or by scaffolds; the test figure is that of the best
validation round. All methods see the atomic number alone: the other features of an atom follow from its bonds.

`fgcl` has two views of epsilon each, as the paper counts, and spends twice that; `fgcl, in all` has two views of half
of it, and spends what `noise` does.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Iterator, Sequence
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
SETS = ("sider", "bace", "clintox", "bbbp", "tox21")
ENCODERS = ("gcn", "graphconv", "tag", "lightgcn")
EPSILONS = (100.0, 10.0, 1.0, 0.1)
SPLITS = ("random", "scaffold")
EVERY = 2
"""Rounds between two looks at the validation molecules."""
LOCAL = {"epochs": 1, "batch_size": 32, "optimizer": "adam", "lr": 0.01, "weight_decay": 0.0}
MODEL = {"hidden": 64, "dropout": 0.0}
CONTRAST: dict[str, Any] = {"negatives": 10, "gamma": 0.1, "temperature": 1.0, "stack": 100}
PLAIN: dict[str, dict[str, Any]] = {"centralized": {"name": "centralized"}, "federated": {"name": "fedavg"}}
NOISY = ("noise", "fgcl", "fgcl, in all")
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "gcn": {
        "centralized": (66.4, 81.5, 92.3, 82.1, 79.9),
        "federated": (60.6, 63.7, 83.1, 65.8, 53.4),
        "noise 100": (60.5, 61.6, 80.0, 66.3, 53.2),
        "noise 10": (58.8, 62.5, 76.0, 65.8, 53.0),
        "noise 1": (56.4, 62.5, 70.6, 61.9, 53.3),
        "noise 0.1": (53.7, 66.7, 70.9, 60.4, 53.2),
        "fgcl 100": (62.8, 67.0, 67.4, 70.3, 66.8),
        "fgcl 10": (63.3, 66.3, 70.0, 69.2, 67.0),
        "fgcl 1": (60.6, 66.6, 79.2, 69.8, 64.7),
        "fgcl 0.1": (55.5, 68.6, 83.8, 70.4, 59.6),
    },
    "graphconv": {
        "centralized": (67.8, 89.1, 92.8, 85.4, 76.9),
        "federated": (60.3, 61.3, 87.9, 63.7, 53.1),
        "noise 100": (60.4, 63.0, 81.1, 65.3, 55.0),
        "noise 10": (58.2, 64.7, 75.0, 61.0, 53.5),
        "noise 1": (56.6, 62.1, 81.6, 59.1, 53.8),
        "noise 0.1": (53.4, 62.9, 74.2, 59.2, 53.3),
        "fgcl 100": (61.4, 68.3, 70.4, 73.1, 67.2),
        "fgcl 10": (62.2, 68.0, 70.3, 72.6, 66.1),
        "fgcl 1": (60.2, 67.9, 70.9, 68.2, 65.3),
        "fgcl 0.1": (52.9, 64.3, 84.3, 63.6, 63.5),
    },
    "tag": {
        "centralized": (62.8, 74.0, 93.9, 76.4, 60.5),
        "federated": (55.5, 62.9, 88.6, 65.3, 53.6),
        "noise 100": (55.1, 65.4, 88.1, 62.1, 53.3),
        "noise 10": (54.8, 63.2, 75.3, 58.1, 54.2),
        "noise 1": (55.4, 63.0, 79.1, 63.7, 54.0),
        "noise 0.1": (55.5, 58.4, 77.0, 61.7, 52.5),
        "fgcl 100": (61.7, 70.9, 90.3, 70.0, 55.9),
        "fgcl 10": (63.7, 67.4, 79.2, 70.4, 54.6),
        "fgcl 1": (56.2, 69.8, 73.9, 67.5, 53.4),
        "fgcl 0.1": (57.2, 67.2, 59.8, 67.3, 53.6),
    },
    "lightgcn": {
        "centralized": (68.7, 83.9, 92.7, 78.3, 77.3),
        "federated": (59.3, 67.4, 81.0, 69.3, 53.8),
        "noise 100": (59.2, 68.6, 77.8, 66.3, 53.5),
        "noise 10": (59.4, 66.2, 68.8, 68.3, 53.2),
        "noise 1": (57.5, 61.6, 79.4, 58.3, 53.6),
        "noise 0.1": (56.1, 59.5, 67.2, 60.2, 53.8),
        "fgcl 100": (63.3, 69.0, 87.2, 72.3, 63.2),
        "fgcl 10": (63.3, 70.9, 72.9, 71.4, 64.0),
        "fgcl 1": (60.2, 68.7, 80.3, 74.5, 64.7),
    },
}
"""The paper's figures, a number for each of SETS."""


def method_of(name: str, epsilon: float) -> dict[str, Any]:
    """With one view, with two views, or with two that spend as much as one."""
    views = {"noise": [epsilon], "fgcl": [epsilon] * 2, "fgcl, in all": [epsilon / 2] * 2}[name]
    return {"name": "fgcl", "epsilons": views, **CONTRAST}


def study(data: str, encoder: str, split: str, method: dict[str, Any], rounds: int, seed: int) -> Study:
    local = {**LOCAL, **method.get("local", {})}
    options = {"name": data, "features": "no-bonds", "split": split, "split_seed": 0}
    return Study.of(
        {
            "data": options,
            "partition": {"name": "quantity-dirichlet", "beta": 0.5},
            "parties": 8 if data == "tox21" else 4,
            "model": {"encoder": encoder, **MODEL},
            "methods": [{"rounds": rounds, "every": EVERY, **method, "local": local}],
            "seeds": [seed],
            "unlabelled": "idle",
        }
    )


def measured(data: str, encoder: str, split: str, method: dict[str, Any], rounds: int, seed: int) -> dict[str, Any]:
    plan = study(data, encoder, split, method, rounds, seed)
    loaded = plan.load(seed)
    module = module_for(plan.encoder(), loaded.parties, loaded.task, seed)
    run = Run(plan.method_list()[0], loaded.parties, loaded.task, module, seed=seed)
    found = run.go()
    return {
        "seed": seed, "test": round(100 * found.metrics["test_roc_auc"], 2),
        "val": round(100 * found.metrics["val_roc_auc"], 2), "round": found.chosen_round,
        "seconds": round(found.seconds, 1), "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def columns(args: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of the table's columns, each with its method."""
    for name in PLAIN:
        yield name, PLAIN[name]
    for epsilon in args.epsilons:
        for name in NOISY:
            yield f"{name} {epsilon:g}", method_of(name, epsilon)


def text(cells: list[dict[str, Any]], split: str, names: Sequence[str]) -> str:
    """Mean and standard deviation over the seeds, a row for each set and encoder, below it the paper's."""
    lines = ["| encoder | set | seeds | " + " | ".join(names) + " |", "| --- " * (3 + len(names)) + "|"]
    for encoder in ENCODERS:
        for data in SETS:
            key = {"encoder": encoder, "data": data, "split": split}
            mine = {cell["method"]: cell["runs"] for cell in cells if key.items() <= cell.items()}
            if not any(mine.values()):
                continue
            seeds = "-".join(map(str, sorted({len(runs) for runs in mine.values()})))
            told = [spread([run["test"] for run in mine.get(name, [])]) for name in names]
            lines.append(f"| {encoder} | {data} | {seeds} | " + " | ".join(told) + " |")
            paper = {name: values[SETS.index(data)] for name, values in PAPER[encoder].items()}
            lines.append("| *paper* | | | " + " | ".join(str(paper.get(name, "")) for name in names) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--encoders", nargs="*", default=ENCODERS, choices=ENCODERS)
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--split", default="random", choices=SPLITS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for encoder in args.encoders:
        for data in args.data:
            for name, method in columns(args):
                key = {"encoder": encoder, "data": data, "split": args.split, "method": name}
                run_seed = partial(measured, data, encoder, args.split, method, args.rounds)
                for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                    print(encoder, data, args.split, name, run, flush=True)
    print(text(kept, args.split, [name for name, _ in columns(args)]))


if __name__ == "__main__":
    main()
