"""FedGC's table 2 and figures 4 and 6 to 11: what condensed graphs are good for, and what they give away.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedgc/tables.py --study table --data cora --write

runs what is not there yet and writes it into results/tables.json, seed by seed. Settings of section 4.1: 10 parties by
label Dirichlet with beta = 1 in the table and 100 elsewhere, 256 hidden units, a GCN of two layers, r = 2.6 % on Cora
and 1.8 % on CiteSeer; everything else is the method's default, chosen by validation nodes of cuts that are not
reported (seeds 1000 and 1001, Cora). Test accuracy is that of the best validation round, of all parties' test nodes
together, each by its own party's model where that is fine-tuned. The attacks are those of `isthmus audit --by
membership`, on the same run; of two ways to ask a model the one that is worse for privacy counts.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from isthmus import Encoder, Study
from isthmus.audit.membership import Membership
from isthmus.federation.answers import PlainTotal
from isthmus.study.engine import Run, module_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import added, kept_cells, markdown, sweep_page

FOUND = Path(__file__).parent / "results" / "tables.json"
RATIOS = {
    "cora": (0.026, 0.013, 0.052), "citeseer": (0.018, 0.009, 0.036), "flickr": (0.005, 0.001, 0.01),
    "ogbn-arxiv": (0.0025, 0.0005, 0.005), "reddit": (0.001, 0.0005, 0.002),
}  # fmt: skip
"""Condensation ratios of table 2; the first is the one of the ablation and of table 3."""
LARGE = ("flickr", "ogbn-arxiv", "reddit")
TRAINED = {"rounds": 50, "weighting": "size"}
CONDENSED = {"every": 25}
METHODS: dict[str, dict[str, Any]] = {
    "GCN": {"name": "centralized", **TRAINED},
    "GCond": {"name": "gcond", **CONDENSED},
    "DosCond": {"name": "doscond", **CONDENSED},
    "SFGC": {"name": "sfgc", **CONDENSED},
    "FedAvg": {"name": "fedavg", **TRAINED},
    "FedGCN": {"name": "fedgcn", **TRAINED},
    "FedSage+": {"name": "fedsage-plus", "rounds": 50},
    "BDS-GCN": {"name": "bds-gcn", "rounds": 200},
    "FedGC": {"name": "fedgc", **CONDENSED},
}
PARTS: dict[str, dict[str, Any]] = {
    "FedGC": {}, "- com": {"hops": 0}, "- ft": {"finetune": False}, "- ib": {"bottleneck": False},
    "- st": {"self_training": False},
}  # fmt: skip
MODELS = ("mlp", "appnp", "cheb", "gcn", "sage", "sgc")
"""Of table 3."""
GAMMAS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
COUNTS = (1, 2, 4, 8, 16, 32)
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "table": METHODS,
    "ablation": {name: {"name": "fedgc", **CONDENSED, **parts} for name, parts in PARTS.items()},
    "gamma": {f"{gamma:g}": {"name": "fedgc", **CONDENSED, "gamma": gamma} for gamma in GAMMAS},
    # a federation of one opens what that one party says
    "models": {"FedGC": {"name": "fedgc", **CONDENSED}},
    "parties": {str(n): {"name": "fedgc", **CONDENSED, **({"least": 1} if n == 1 else {})} for n in COUNTS},
}
"""By study and row the method."""
PAPER = {
    ("cora", 0.026): (81.2, 80.1, 80.0, 81.7, None, 80.6, 80.3, 76.0, 80.8),
    ("cora", 0.013): (81.2, 79.8, 80.1, 80.1, None, 80.6, 80.3, 76.0, 81.0),
    ("cora", 0.052): (81.2, 79.3, 80.4, 81.6, None, 80.6, 80.3, 76.0, 82.0),
    ("citeseer", 0.018): (71.7, 70.6, 70.5, 72.4, None, 69.3, 69.8, 67.1, 70.5),
    ("citeseer", 0.009): (71.7, 70.5, 70.8, 71.4, None, 69.3, 69.8, 67.1, 71.6),
    ("citeseer", 0.036): (71.7, 70.6, 69.0, 69.1, None, 69.3, 69.8, 67.1, 70.7),
}
"""Table 2 of the paper, in the order of METHODS; it has no FedAvg."""
PAPER_MODELS = {"cora": (76.7, 79.1, 76.1, 79.6, 79.1, 79.6), "citeseer": (70.7, 70.5, 69.0, 70.5, 70.0, 70.7)}
"""FedGC's rows of table 3, in the order of MODELS."""
FIGURES = {"test": "accuracy", "auc": "MIA AUC", "f1": "MIA F1", "likelihood": "LiRA AUC", "tpr": "LiRA at 1 %"}


def study_of(study: str, data: str, method: dict[str, Any], ratio: float, seed: int) -> Study:
    """One run in the paper's setting."""
    if method["name"] in ("fedgc", "gcond", "doscond", "sfgc"):
        method = {"ratio": ratio, **method}
    parties = 5 if data in LARGE else 10
    return Study.of(
        {
            "data": {"name": data},
            "partition": {"name": "label-dirichlet", "beta": 1.0 if study in ("table", "models") else 100.0},
            "parties": parties,
            "model": {"encoder": "sage" if method["name"] == "fedsage-plus" else "gcn", "hidden": 256, "dropout": 0.5},
            "methods": [method],
            "seeds": [seed],
            "unlabelled": "idle",
        }
    )


def measured(study: str, data: str, row: str, ratio: float, seed: int) -> dict[str, Any]:
    plan = study_of(study, data, ROWS[study][row], ratio, seed)
    if study == "parties":
        plan = plan.model_copy(update={"parties": int(row)})
    loaded = plan.load(seed)
    module = module_for(plan.encoder(), loaded.parties, loaded.task, seed)
    (method,), began = plan.method_list(), time.perf_counter()
    if study == "models":
        told = on_other_models(plan, loaded, method, seed)
    elif study == "table":
        run = Run(method, loaded.parties, loaded.task, module, seed=seed).go()
        told = {"test": 100 * run.metrics["test_accuracy"], "val": 100 * run.metrics["val_accuracy"]}
        told |= {"round": run.chosen_round}
    else:
        (found,) = Membership().against({row: method}, loaded.parties, loaded.task, module, seed=seed)
        told = {"test": 100 * found.last.value, "round": found.chosen}
        told |= {figure: found.last.worst(figure) for figure in ("auc", "f1", "likelihood", "tpr")}
        told["by round"] = [
            [each.round, each.value, each.worst("auc"), each.worst("likelihood")] for each in found.rounds
        ]
        told["asked"] = {how: risk.auc for how, risk in found.last.asked.items()}
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}
    seconds = round(time.perf_counter() - began, 1)
    return {"seed": seed, **rounded, "seconds": seconds, "date": datetime.date.today().isoformat()}


def on_other_models(plan: Study, loaded: Any, method: Any, seed: int) -> dict[str, Any]:
    """One condensed graph trains one model after another; the parties fine-tune and test each of them."""
    module = module_for(plan.encoder(), loaded.parties, loaded.task, seed)
    run = Run(method, loaded.parties, loaded.task, module, seed=seed)
    found = run.go()
    (site,) = run.transport.sites
    site.outputs(found.weights)  # from here on it is at what the parties train on, z
    told = {"round": found.chosen_round}
    for name in MODELS:
        other = module_for(Encoder.named(name)(hidden=256), site.cohort.parties, loaded.task, seed)
        weights = method.trained(other, Data(**found.graph), loaded.task.classes, seed)
        at_parties = method.site(site.cohort.parties, loaded.task, other, seed=seed)
        names = at_parties.hosted.names
        counts = PlainTotal([at_parties.answer("evaluate", {"weights": weights}, names)], names)
        told[name] = 100 * loaded.task.metrics(counts.sum("test"))["accuracy"]
    return told


def cells_of(cells: list[dict[str, Any]], study: str, data: str, ratio: float) -> dict[str, list[dict[str, Any]]]:
    """Runs by row."""
    key = {"study": study, "data": data, "ratio": ratio}
    return {cell["row"]: cell["runs"] for cell in cells if key.items() <= cell.items()}


def text(cells: list[dict[str, Any]], study: str, data: str, ratio: float) -> str:
    """Mean and standard deviation over the seeds; the paper's figures beside those of tables 2 and 3."""
    found = cells_of(cells, study, data, ratio)
    head, lines = f"{data}, r = {100 * ratio:g} %", []
    if study in ("table", "models"):
        paper: dict[str, Any] = dict(zip(METHODS, PAPER.get((data, ratio), ()), strict=False))
        rows = {row: [run["test"] for run in runs] for row, runs in found.items()} if study == "table" else {}
        if study == "models":
            paper = dict(zip(MODELS, PAPER_MODELS.get(data, ()) if ratio == RATIOS[data][0] else (), strict=False))
            rows = {name: [run[name] for run in runs] for runs in found.values() for name in MODELS}
        lines = [(row, str(len(all_)), _spread(all_, 1), str(paper.get(row) or "")) for row, all_ in rows.items()]
        return markdown((head, "seeds", "accuracy", "paper"), lines)
    for row, runs in found.items():
        told = [_spread([run[name] for run in runs], 1 if name == "test" else 3) for name in FIGURES]
        lines.append((row, str(len(runs)), *told))
    return markdown((head, "seeds", *FIGURES.values()), lines)


def _spread(values: list[float], digits: int) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {spread:.{digits}f}"


def charts(cells: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Figures 4 and 8 to 11: accuracy and the shadow attack's AUC over rounds, gamma and numbers of parties."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        if cell["study"] in ("table", "models") or not cell["runs"]:
            continue
        name = f"{cell['data']}, {cell['study']}"
        if cell["study"] == "ablation" and cell["row"] in ("FedGC", "- ib"):
            by_round = [{line[0]: line for line in run["by round"]} for run in cell["runs"]]
            for what, place in (("accuracy", 1), ("MIA AUC", 2)):
                title = f"{cell['data']}, {cell['row']}, by round: {what}"
                found[title] = {str(at): [100 * run[at][place] for run in by_round] for at in by_round[0]}
        if cell["study"] in ("gamma", "parties"):
            found.setdefault(f"{name}: accuracy", {})[cell["row"]] = [run["test"] for run in cell["runs"]]
            found.setdefault(f"{name}: MIA AUC", {})[cell["row"]] = [100 * run["auc"] for run in cell["runs"]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=ROWS, default="table")
    parser.add_argument("--data", nargs="*", default=["cora", "citeseer"], choices=RATIOS)
    parser.add_argument("--rows", nargs="*", help="some of the rows of the study")
    parser.add_argument("--ratios", nargs="*", type=float, help="the first of the paper's, where nothing is said")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(FOUND) if args.write else []
    for data in args.data:
        for ratio in args.ratios or RATIOS[data][:1]:
            for row in args.rows or ROWS[args.study]:
                key = {"study": args.study, "data": data, "ratio": ratio, "row": row}
                run_seed = partial(measured, args.study, data, row, ratio)
                for run in added(kept, key, args.seeds, run_seed, FOUND if args.write else None):
                    print(data, ratio, row, {name: run[name] for name in run if name != "by round"}, flush=True)
            print(f"\n{text(kept, args.study, data, ratio)}\n")
    if args.write:
        title = "FedGC, one parameter after another"
        sweep_page(FOUND.parent / "sweeps.html", title, "accuracy, and AUC of the attack, in percent", charts(kept))


if __name__ == "__main__":
    main()
