"""Time and memory of a round on a graph of ogbn-products' size; accuracy of sampling at ogbn-arxiv's size.

OMP_NUM_THREADS=1 python benchmarks/speed/large.py            # both tables
OMP_NUM_THREADS=1 python benchmarks/speed/large.py --write    # the same, into results/large.json and README.md
OMP_NUM_THREADS=1 python benchmarks/speed/large.py --json     # the figures as JSON and nothing else
OMP_NUM_THREADS=1 python benchmarks/speed/large.py --only evaluate fedcog --write    # these lines anew, others as kept
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch_geometric

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table, watched
from isthmus.data.datasets.shops import Shops
from isthmus.methods.base import Method, Model
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "large.json"
README = HERE / "README.md"
MARKS = "<!-- figures: written by large.py --write -->", "<!-- end of figures of large.py -->"
SEED = 0

PRODUCTS = {"parties": 10, "nodes": 2_449_029, "degree": 50.52, "features": 100, "classes": 47}
"""ogbn-products has as many nodes, pairs of nodes with an edge (61,859,140), features and classes."""
ARXIV = {
    "parties": 1, "nodes": 169_343, "degree": 13.77, "features": 128, "classes": 40, "train": 0.54, "val": 0.18,
    "homophily": 0.4, "noise": 0.6,
}  # fmt: skip
"""The same of ogbn-arxiv, where an edge is counted once (1,166,243)."""

FAN_OUT = [10, 10, 10]
BATCH = 1024
SAGE: dict[str, Any] = {"layers": 3, "hidden": 256}
STEPS: dict[str, tuple[str, str, dict[str, Any], str, dict[str, Any]]] = {
    "train": (
        "FedAvg, a round", "fedavg", {"local": {"epochs": 1, "batch_size": BATCH, "fan_out": FAN_OUT}}, "sage", SAGE
    ),
    "evaluate": ("FedAvg, an evaluation", "fedavg", {}, "sage", SAGE),
    "fedgcn": (
        "FedGCN, sums and a round", "fedgcn", {"local": {"epochs": 1, "batch_size": BATCH, "fan_out": FAN_OUT[:1]}},
        "gcn", {"layers": 2, "hidden": 256},
    ),
    "fedcog": (
        "FedCog, propagation and a round", "fedcog", {"local": {"epochs": 1, "batch_size": BATCH}}, "sgc", {"hops": 2}
    ),
}  # fmt: skip
"""By step its title, the method and its options, the encoder and its options."""
ACCURACY = "accuracy"
SMALL: dict[str, Any] = {"layers": 2, "hidden": 64, "dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "full batch": {"rounds": 24, "local": {"epochs": 10, "lr": 0.02}},
    "fan-out": {"rounds": 16, "local": {"epochs": 1, "lr": 0.01, "batch_size": BATCH, "fan_out": FAN_OUT[:2]}},
}
"""Options of FedAvg, by the kind of local training."""


# ---- a process that does one step and nothing else


def run_of(
    data: dict[str, Any], method: str, options: dict[str, Any], encoder: str, sizes: dict[str, Any], seed: int
) -> Run:
    """A run on shops; a party of this size is a cohort of one, so its graph stays in mapped files."""
    pool = Shops(**data).load(SEED)
    parties = pool.parties or ()
    task = task_for(parties, pool.classes)
    module = module_for(Encoder.named(encoder)(**sizes), parties, task, seed)
    return Run(Method.named(method).read(options, method), parties, task, module, seed=seed)


def say_generated(data: dict[str, Any]) -> None:
    """Generate the graph, unless the cache has it, and tell what it took."""
    before = peak_mb()
    with watched() as found:
        Shops(**data).load(SEED)
    print(json.dumps(found | {"before_mb": before, "peak_mb": peak_mb()}))


def say_step(step: str, data: dict[str, Any]) -> None:
    """Do one step and tell what it took."""
    _, *what = STEPS[step]
    before = peak_mb()
    with watched() as start:
        run = run_of(data, *what, SEED)
        model = Model(run.module, run.task.outputs)
        rounds = run.method.server(run.federation, model, run.state)
        if run.method.everyone == "set-up":
            next(rounds)
    with watched() as done:
        if step == "evaluate":
            run.state.start(weights=model.weights())
            run.method.evaluate(run.federation, run.state)
        else:
            next(rounds)
    found = {f"start_{name}": start[name] for name in ("cpu_s", "wall_s")} | done
    own = max(start["own_mb"], done["own_mb"])
    print(json.dumps(found | {"own_mb": own, "before_mb": before, "peak_mb": peak_mb()}))


def say_learned(kind: str, seed: int, data: dict[str, Any]) -> None:
    """Train, and tell the accuracy in the round that validation data choose."""
    with watched() as done:
        result = run_of(data, "fedavg", KINDS[kind], "sage", SMALL, seed).go()
    accuracy = {name: 100 * result.metrics[f"{name}_accuracy"] for name in ("val", "test")}
    print(json.dumps(done | {"seed": seed, "round": result.chosen_round, **accuracy}))


# ---- what is measured


def steps_of(only: Sequence[str], cache: Path | None, data: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per step, each of a fresh process; another one generates the graph first."""
    with tempfile.TemporaryDirectory(prefix="isthmus-large-") as folder:
        os.environ["ISTHMUS_CACHE"] = str(cache or folder)
        options = ["--data", json.dumps(data)]
        generated = {"step": "generate"} | of_process(__file__, ["--alone", "generate", *options])
        rows = [{"step": step} | of_process(__file__, ["--alone", step, *options]) for step in only]
    return rows if cache else [generated, *rows]


def accuracy_of(seeds: int, data: dict[str, Any]) -> dict[str, Any]:
    """Test accuracies of both kinds by seed, and what the difference is, seed by seed."""
    with tempfile.TemporaryDirectory(prefix="isthmus-large-") as folder:
        os.environ["ISTHMUS_CACHE"] = folder
        options = ["--data", json.dumps(data)]
        runs = {
            kind: [of_process(__file__, ["--alone", kind, "--seed", str(seed), *options]) for seed in range(seeds)]
            for kind in KINDS
        }
    return {"data": data, "options": KINDS, "runs": runs} | compared(runs)


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """By how much fan-out is better than a full batch, seed by seed."""
    full, sampled = ([run["test"] for run in runs[kind]] for kind in KINDS)
    apart = [one - other for one, other in zip(sampled, full, strict=True)]
    return {"difference": statistics.mean(apart), "sd": statistics.stdev(apart)}


def about(options: argparse.Namespace) -> dict[str, Any]:
    found = origin(torch, torch_geometric)
    return found | {"machine": found["machine"] + (f", {options.note}" if options.note else "")}


def figures_of(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, measured; the other rows as they were kept, if only some were asked for."""
    kept = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    chosen = options.only or [*STEPS, ACCURACY]
    figures = about(options) | {"data": PRODUCTS, "rows": kept.get("rows", []), "accuracy": kept.get("accuracy")}
    if steps := [step for step in STEPS if step in chosen]:
        new = steps_of(steps, options.cache, PRODUCTS)
        rows = {row["step"]: row for row in [*figures["rows"], *new]}
        figures["rows"] = [rows[step] for step in ("generate", *STEPS) if step in rows]
    if ACCURACY in chosen:
        figures["accuracy"] = accuracy_of(options.seeds, ARXIV)
    return figures


# ---- what is said


COLUMNS = {
    "step": "step",
    "start_cpu_s": "start and set-up, s of CPU",
    "cpu_s": "**round or evaluation, s of CPU**",
    "wall_s": "the same, s of wall time",
    "before_mb": "memory before, MB",
    "own_mb": "**peak memory without mapped pages, MB**",
    "peak_mb": "peak memory with them, MB",
}


def cells(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    def title(step: str) -> str:
        return STEPS[step][0] if step in STEPS else "generate the graph"

    return [
        [title(row["step"]), *(f"{row[name]:,.0f}" if name in row else "" for name in list(COLUMNS)[1:])]
        for row in rows
    ]


ACCURACY_HEAD = [
    "training", "epochs in all", "test accuracy by seed, %", "mean, %", "epochs chosen by validation", "s of CPU a run"
]  # fmt: skip


def accuracy_cells(found: dict[str, Any]) -> list[list[str]]:
    cells = []
    for kind, runs in found["runs"].items():
        rounds, epochs = found["options"][kind]["rounds"], found["options"][kind]["local"]["epochs"]
        tests = [run["test"] for run in runs]
        cells.append(
            [
                kind,
                str(rounds * epochs),
                ", ".join(f"{test:.2f}" for test in tests),
                f"{statistics.mean(tests):.2f}",
                ", ".join(str(run["round"] * epochs) for run in runs),
                f"{statistics.mean(run['cpu_s'] for run in runs):.0f}",
            ]
        )
    return cells


def size_of(data: dict[str, Any]) -> str:
    return (
        f"{data['nodes']:,} nodes, {data['nodes'] * data['degree'] / 2e6:,.1f} million edges, "
        f"{data['features']} features, {data['classes']} classes, "
        f"{data['parties']} {'party' if data['parties'] == 1 else 'parties'}"
    )


def difference(found: dict[str, Any]) -> str:
    return (
        f"Fan-out minus full batch, seed by seed: {found['difference']:+.2f} points, standard deviation "
        f"{found['sd']:.2f}; {len(found['runs']['fan-out'])} seeds."
    )


def write(figures: dict[str, Any]) -> None:
    told = (
        f"Measured on {figures['date']}, one thread, seed {SEED}; {figures['machine']}; {named(figures['versions'])}."
    )
    parts = [told, f"{size_of(figures['data'])}:", markdown(list(COLUMNS.values()), cells(figures["rows"]))]
    if found := figures["accuracy"]:
        parts += [f"{size_of(found['data'])}:", markdown(ACCURACY_HEAD, accuracy_cells(found)), difference(found)]
    keep(figures, RESULTS, README, MARKS, parts)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*STEPS, ACCURACY], help="measure these and leave others as kept")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the graph, and no line on making it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=SEED, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    if options.alone == "generate":
        say_generated(options.data)
    elif options.alone in STEPS:
        say_step(options.alone, options.data)
    elif options.alone:
        say_learned(options.alone, options.seed, options.data)
    else:
        figures = figures_of(options)
        if options.write:
            write(figures)
        if options.json:
            print(json.dumps(figures, indent=2))
            return
        print_table(size_of(PRODUCTS), list(COLUMNS.values()), cells(figures["rows"]))
        if figures["accuracy"]:
            print_table(size_of(ARXIV), ACCURACY_HEAD, accuracy_cells(figures["accuracy"]))
            print(difference(figures["accuracy"]))


if __name__ == "__main__":
    main()
