"""FCLG's tables II and III: clusters of embeddings that six parties learned without labels, in percent.

    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/tables.py --write

runs what is not in results/tables.json yet and writes it there, seed by seed; settings are those that search.py has
found, on validation labels alone. Six parties of equal size, labels skewed to the paper's distance or not at all; a
GIN of three layers, 32 wide, that weighs edges (MVGRL: that or a GCN, by search), nodes summed up to graphs; batches of
128, 5 epochs a round, AdamW. Node labels alone are features, as PyG has them by default. A fifth of the graphs, the
same in every seed, is for validation; K-means clusters all graphs, by the server's model after the last round, and
the others are counted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isthmus import Study
from isthmus.study.engine import Run, module_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import added, kept_cells

HERE = Path(__file__).parent / "results"
FOUND = HERE / "tables.json"
SEARCH = HERE / "search.json"
SETS = ("proteins", "enzymes", "dhfr", "nci1")
EMD = {"proteins": 0.5774, "enzymes": 1.2667, "dhfr": 0.5694, "nci1": 0.5995}
CUTS = ("non-iid", "iid")
SCALE = "unit"
"""What is done to embeddings of all methods before they are clustered; found by search.py."""
PROX = {"trainer": {"name": "fedprox", "mu": 0.01}}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "infograph-fedavg": ("infograph", {}),
    "infograph-fedprox": ("infograph", PROX),
    "mvgrl-fedavg": ("mvgrl", {}),
    "mvgrl-fedprox": ("mvgrl", PROX),
    "fclg": ("fclg", {}),
    "fclg-h": ("fclg", {"inter_on": "nodes"}),
    "intra-fedavg": ("fclg", {"inter": "none"}),
    "intra-kl": ("fclg", {"inter": "kl"}),
    "intra-mse": ("fclg", {"inter": "mse"}),
}
"""The table's rows: what was searched for, and what else the method is told."""
TOLD = {"accuracy": "accuracy", "f1": "macro_f1", "nmi": "nmi", "ari": "ari", "probe": "probe_accuracy"}
PAPER: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "non-iid": {
        "infograph-fedavg": ((62.40, 61.58), (26.00, 25.85), (56.59, 55.51), (57.82, 57.59)),
        "infograph-fedprox": ((60.97, 60.47), (27.93, 27.89), (57.54, 57.35), (59.15, 58.85)),
        "mvgrl-fedavg": ((59.35, 37.25), (17.33, 6.12), (61.11, 38.25), (50.07, 33.41)),
        "mvgrl-fedprox": ((59.30, 37.22), (17.50, 6.45), (61.11, 38.25), (50.07, 33.41)),
        "fclg": ((69.90, 69.12), (32.45, 30.61), (67.01, 66.59), (61.42, 60.03)),
        "fclg-h": ((69.95, 68.98), (32.03, 29.76), (65.38, 64.93), (61.45, 60.05)),
        "intra-fedavg": ((70.41, 69.29), (30.50, 29.96), (60.22, 59.43), (61.55, 60.23)),
        "intra-kl": ((66.58, 66.07), (31.00, 29.95), (61.44, 58.59), (61.31, 59.95)),
        "intra-mse": ((64.80, 64.72), (29.83, 29.24), (61.48, 59.70), (61.52, 60.25)),
    },
    "iid": {
        "infograph-fedavg": ((64.17, 62.28), (26.48, 26.23), (57.67, 57.49), (59.55, 59.48)),
        "infograph-fedprox": ((61.51, 60.36), (27.35, 27.48), (57.54, 57.35), (59.40, 59.37)),
        "mvgrl-fedavg": ((59.37, 37.25), (17.50, 6.45), (61.11, 38.25), (50.07, 33.41)),
        "mvgrl-fedprox": ((59.39, 37.26), (17.50, 6.45), (61.11, 38.25), (50.07, 33.41)),
        "fclg": ((70.30, 69.07), (30.43, 29.89), (61.57, 61.00), (61.24, 59.66)),
        "fclg-h": ((69.50, 68.65), (30.50, 29.98), (61.28, 60.59), (61.22, 59.71)),
        "intra-fedavg": ((70.69, 69.90), (30.33, 29.89), (59.72, float("nan")), (61.26, float("nan"))),
    },
}  # fmt: skip
"""Accuracy and macro-F1 in the paper, for each of SETS."""


def study(
    data: str, cut: str | float, setting: dict[str, Any], method: dict[str, Any], rounds: int, seed: int, **more: Any
) -> Study:
    """A run with what `setting` says: the learning rate, the encoder and its normalisation.

    Arguments:
        cut: one of CUTS, or a distance of labels.
        more: parties, or epochs of a round.
    """
    model = {"hidden": 32, "layers": 3, "dropout": 0.0, "pool": "sum", "encoder": setting["encoder"]}
    if setting["encoder"] == "gin":
        model |= {"weighted": True, "norm": setting["norm"]}
    local = {"epochs": more.get("epochs", 5), "batch_size": 128, "lr": setting["lr"], "weight_decay": 0.01}
    skew = {"name": "iid"}
    if cut != "iid":
        skew = {"name": "label-skew", "emd": EMD[data] if cut == "non-iid" else cut}
    return Study.of(
        {
            "data": {"name": data, "attributes": False, "split_seed": 0, "train": 0.7, "val": 0.2},
            "task": {"name": "graph-clustering", "scale": SCALE, "probe": 10},
            "partition": skew,
            "parties": more.get("parties", 6),
            "model": model,
            "methods": [{"rounds": rounds, "every": rounds, "local": local, **method}],
            "seeds": [seed],
        }
    )


def prepared(plan: Study, seed: int) -> Run:
    loaded = plan.load(seed)
    module = module_for(plan.encoder(), loaded.parties, loaded.task, seed)
    return Run(plan.method_list()[0], loaded.parties, loaded.task, module, seed=seed)


def score(runs: list[dict[str, Any]], rounds: str, scale: str) -> float:
    """Mean of accuracy and macro-F1 of the validation graphs, over the seeds."""
    return statistics.fmean(run["val"][rounds][scale][name] for run in runs for name in ("accuracy", "f1"))


def chosen(data: str, family: str) -> tuple[dict[str, Any], int]:
    """The setting, and the number of rounds, that is best on validation graphs of the seeds searched with."""
    best, found = -1.0, None
    for cell in kept_cells(SEARCH):
        if (cell["data"], cell["family"]) == (data, family) and cell["runs"]:
            for rounds in cell["runs"][0]["val"]:
                now = score(cell["runs"], rounds, SCALE)
                if now > best:
                    best, found = now, (cell["setting"], int(rounds))
    if found is None:
        raise SystemExit(f"{SEARCH.name} has nothing for {family} on {data}: run search.py first")
    return found


def measured(data: str, cut: str | float, row: str, most: int, seed: int, **other: Any) -> dict[str, Any]:
    """A row's run in the setting that was found for its method, with `other` parties or epochs."""
    family, more = METHODS[row]
    setting, rounds = chosen(data, family)
    plan = study(data, cut, setting, {"name": family, **more}, min(rounds, most), seed, **other)
    found = prepared(plan, seed).go()
    told = {name: round(100 * found.metrics[f"test_{metric}"], 2) for name, metric in TOLD.items()}
    return {
        "seed": seed, **told, "rounds": found.rounds, "setting": setting, "seconds": round(found.seconds, 1),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def text(cells: list[dict[str, Any]], cut: str) -> str:
    """Accuracy and macro-F1, mean and range over the seeds; below each row the paper's means."""
    names = [f"{data}, {what}" for data in SETS for what in ("accuracy", "f1")]
    lines = ["| method | seeds | " + " | ".join(names) + " |", "| --- " * (2 + len(names)) + "|"]
    for row in METHODS:
        mine = {c["data"]: c["runs"] for c in cells if c["cut"] == cut and c["method"] == row}
        if not any(mine.values()):
            continue
        seeds = "-".join(map(str, sorted({len(runs) for runs in mine.values()})))
        told = [spread([run[what] for run in mine.get(data, [])]) for data in SETS for what in ("accuracy", "f1")]
        lines.append(f"| {row} | {seeds} | " + " | ".join(told) + " |")
        paper = [value for pair in PAPER[cut].get(row, ()) for value in pair] or [float("nan")] * len(names)
        shown = ["" if value != value else f"{value:.1f}" for value in paper]
        lines.append("| *paper* | | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--cuts", nargs="*", default=CUTS, choices=CUTS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20, help="at most")
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for cut in args.cuts:
        for data in args.data:
            for row in args.methods:
                key = {"data": data, "cut": cut, "method": row}
                run_seed = partial(measured, data, cut, row, args.rounds)
                for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                    print(cut, data, row, json.dumps(run), flush=True)
        print(f"\n{cut}\n\n{text(kept, cut)}\n")


if __name__ == "__main__":
    main()
