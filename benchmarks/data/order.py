"""Compare methods on the generated federations: local < fedavg < centralized, and the gain from the border.

OMP_NUM_THREADS=1 python benchmarks/data/order.py            # the table
OMP_NUM_THREADS=1 python benchmarks/data/order.py --write    # and into results/order.json and docs/generated.md
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import datetime
import platform
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, print_table
from isthmus import __version__
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Gcn
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.run import run_study
from isthmus.study.setup import module_for, task_for

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "order.json"
PAGE = HERE.parent.parent / "docs" / "generated.md"
MARKS = ("<!-- figures: written by benchmarks/data/order.py --write -->", "<!-- end of figures -->")
ENCODERS = {"banks": "gcn", "hospitals": "gcn", "molecules": "gin"}
METHODS = ("local", "fedavg", "centralized")
BROKEN = "centralized without crossing edges"


def run(data: str, encoder: str, method: str, seeds: list[int], rounds: int, cut: dict[str, str]) -> list[float]:
    """The test metric in percent for every seed, of the round that is best on validation data."""
    study = Study.of(
        {
            "data": {"name": data},
            "partition": cut,
            "methods": [{"name": method}],
            "training": {"rounds": rounds},
            "model": {"encoder": encoder},
            "seeds": seeds,
        }
    )
    metrics = [each.metrics for each in run_study(study).runs]
    return [100 * each.get("test_roc_auc", each["test_accuracy"]) for each in metrics]


def row_of(data: str, encoder: str, seeds: list[int], rounds: int) -> dict[str, Any]:
    found = {method: run(data, encoder, method, seeds, rounds, {}) for method in METHODS}
    if data != "molecules":  # molecules stand alone: no edge crosses
        broken = {"name": "given", "edges": "broken"}
        found[BROKEN] = run(data, encoder, "centralized", seeds, rounds, broken)
    told = {
        name: {
            "mean": round(statistics.mean(values), 1),
            "std": round(statistics.stdev(values), 1),
            "all": [round(value, 2) for value in values],
        }
        for name, values in found.items()
    }
    metric = "ROC AUC" if data == "molecules" else "accuracy"
    return {"data": data, "encoder": encoder, "metric": metric, "found": told}


def shared_patients(seeds: list[int], rounds: int) -> dict[str, float]:
    """How often FedAvg's model is right about a shared patient: on one hospital's graph, and by the mean of both.

    Test patients of `hospitals` that two hospitals hold.
    """
    alone, together = [], []
    for seed in seeds:
        loaded = Study.of({"data": {"name": "hospitals"}, "seeds": [seed]}).load(seed)
        task = task_for(loaded.parties, loaded.classes)
        model = module_for(Gcn(), loaded.parties, task, seed)
        model.load_state_dict(Run(FedAvg(rounds=rounds), loaded.parties, task, model, seed=seed).go().weights)
        ids = torch.cat([party.ids for party in loaded.parties])
        y = torch.cat([party.graph.y for party in loaded.parties])
        with torch.no_grad():
            model.eval()
            guess = torch.cat([model(party.graph.x, party.graph.edge_index).softmax(1) for party in loaded.parties])
        asked = torch.cat([party.test for party in loaded.parties]) & (torch.bincount(ids)[ids] > 1)
        mean = torch.zeros(int(ids.max()) + 1, loaded.classes).index_add(0, ids, guess)[ids]
        for found, made in ((alone, guess), (together, mean)):
            found.append(100 * float((made.argmax(1) == y)[asked].float().mean()))
    return {"alone": round(statistics.mean(alone), 1), "together": round(statistics.mean(together), 1)}


def figures_of(seeds: list[int], rounds: int) -> dict[str, Any]:
    settings = [(data, encoder) for data in ENCODERS for encoder in dict.fromkeys(("gcn", ENCODERS[data]))]
    return {
        "versions": {"isthmus": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.date.today().isoformat(),
        "seeds": seeds,
        "rounds": rounds,
        "rows": [row_of(data, encoder, seeds, rounds) for data, encoder in settings],
        "shared_patients": shared_patients(seeds, rounds),
    }


def lines_of(figures: dict[str, Any]) -> list[list[str]]:
    lines = [["data set", "model", "metric", *METHODS, BROKEN]]
    for row in figures["rows"]:
        cells = (row["found"].get(name) for name in (*METHODS, BROKEN))
        told = [f"{cell['mean']:.1f} ± {cell['std']:.1f}" if cell else "-" for cell in cells]
        lines.append([row["data"], row["encoder"], row["metric"], *told])
    return lines


def title_of(figures: dict[str, Any]) -> str:
    many = len(figures["seeds"])
    return f"{figures['rounds']} rounds, {many} seeds, test metric in percent, mean ± standard deviation"


def write(figures: dict[str, Any]) -> None:
    head, *body = lines_of(figures)
    table = markdown(head, [[f"`{line[0]}`", *line[1:]] for line in body], left=3)
    told = f"Measured on {figures['date']} ({title_of(figures)}; {named(figures['versions'])}):"
    shared = (
        "Of the patients that two hospitals of `hospitals` share, FedAvg's model is right about "
        f"{figures['shared_patients']['alone']:.1f}% from one hospital's graph, and about "
        f"{figures['shared_patients']['together']:.1f}% by the mean of its predictions at both."
    )
    keep(figures, RESULTS, PAGE, MARKS, [told, table, shared])


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the documentation")
    options = parser.parse_args()
    figures = figures_of(list(range(options.seeds)), options.rounds)
    if options.write:
        write(figures)
    head, *body = lines_of(figures)
    print_table(title_of(figures), head, body, left=len(head))


if __name__ == "__main__":
    main()
