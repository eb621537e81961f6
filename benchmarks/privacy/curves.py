"""Accuracy of private federations over epsilon, next to training alone without noise.

OMP_NUM_THREADS=1 python benchmarks/privacy/curves.py                           # one seed of the quickest setting
OMP_NUM_THREADS=1 python benchmarks/privacy/curves.py --full                    # all that results/curves.json lacks
OMP_NUM_THREADS=1 python benchmarks/privacy/curves.py --full --only edge-cora   # of one setting; repeat for more
OMP_NUM_THREADS=1 python benchmarks/privacy/curves.py --write                   # tables of this folder's and docs' page

Each run is kept as soon as it is there; a call that was stopped goes on with the next one.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import added, keep, kept_cells, markdown, named, origin, print_table
from isthmus.paired import difference
from isthmus.study.config import Study
from isthmus.study.run import run_study

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "curves.json", HERE / "README.md"
GUIDE = HERE.parents[1] / "docs" / "privacy.md"
MARKS = ("<!-- figures: written by curves.py --write -->", "<!-- end of figures of curves.py -->")
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
WAYS = ("local", "none", *map(str, EPSILONS))
"""Training alone and together without noise, and together with noise."""
SEEDS = 5


@dataclass(frozen=True)
class Setting:
    """What is trained on, and how.

    Arguments:
        unit: that noise hides.
        data: with the parties that bring their own cut, or `partition`.
        local: training at a party.
        privacy: more options of the unit.
        method: that trains together.
    """

    unit: str
    what: str
    data: dict[str, Any]
    model: dict[str, Any]
    parties: int = 4
    rounds: int = 20
    partition: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=lambda: {"epochs": 2})
    privacy: dict[str, Any] = field(default_factory=dict)
    method: str = "fedavg"

    def study(self, way: str, seed: int) -> Study:
        method = {"name": "local" if way == "local" else self.method, "rounds": self.rounds, "every": self.rounds}
        table = {
            "data": self.data,
            "parties": self.parties,
            "model": {"dropout": 0.0, **self.model},
            "seeds": [seed],
            "methods": [{**method, "select": "last", "local": self.local}],
        }
        if self.partition:
            table["partition"] = self.partition
        if way not in ("local", "none"):
            table["privacy"] = {"unit": self.unit, "epsilon": float(way), **self.privacy}
        return Study.of(table)


GIN, MLP = {"encoder": "gin", "hidden": 16}, {"encoder": "mlp", "hidden": 16}
RANDOM = {"name": "random"}
SETTINGS = {
    "edge-cora": Setting(
        "edge", "`cora`, `gap`", {"name": "cora"}, {"encoder": "gap"}, rounds=60, partition={"name": "louvain"}
    ),
    "edge-banks": Setting("edge", "`banks`, 6,000 nodes, `gap`", {"name": "banks", "nodes": 6000}, {"encoder": "gap"}),
    "crossing-cora": Setting(
        "edge",
        "`cora` cut at random, `fedgcn`, `gap`",
        {"name": "cora"},
        {"encoder": "gap"},
        rounds=60,
        partition=RANDOM,
        method="fedgcn",
    ),
    "crossing-banks": Setting(
        "edge",
        "`banks`, 6,000 nodes, `fedgcn`, `gap`",
        {"name": "banks", "nodes": 6000},
        {"encoder": "gap"},
        method="fedgcn",
    ),
    "item-cora": Setting(
        "item",
        "`cora`, 150 papers a class, `mlp`",
        {"name": "cora", "split": "random", "train_per_class": 150, "val": 300},
        MLP,
        partition=RANDOM,
    ),
    "item-banks": Setting("item", "`banks`, 6,000 nodes, `mlp`", {"name": "banks", "nodes": 6000}, MLP),
    "item-motifs": Setting("item", "`motifs`, 600 graphs, `gin`", {"name": "motifs", "graphs": 600}, GIN),
    "item-proteins": Setting(
        "item", "`proteins`, `gin`", {"name": "proteins"}, GIN, partition=RANDOM, local={"epochs": 5, "lr": 0.003}
    ),
    "node-banks": Setting(
        "node",
        "`banks`, 6,000 nodes, `gap`, `neighbours` 250",
        {"name": "banks", "nodes": 6000},
        {"encoder": "gap", "hidden": 16},
        privacy={"neighbours": 250},
    ),
    "party-banks": Setting(
        "party",
        "`banks`, 20,000 nodes, `gcn` of 16",
        {"name": "banks", "parties": 100, "nodes": 20_000},
        {"encoder": "gcn", "hidden": 16},
        parties=100,
        rounds=10,
        local={"epochs": 5},
    ),
    "party-motifs": Setting(
        "party",
        "`motifs`, 4,000 graphs, `gin`",
        {"name": "motifs", "graphs": 4000},
        GIN,
        parties=100,
        rounds=10,
        local={"epochs": 5},
    ),
}


def run_seed(setting: Setting, way: str, seed: int) -> dict[str, Any]:
    began = time.process_time()
    (run,) = run_study(setting.study(way, seed)).runs
    return {
        "accuracy": run.metrics["test_accuracy"],
        "epsilon": run.privacy.get("epsilon"),
        "cpu_s": round(time.process_time() - began, 2),
    }


def figures_of(cells: Sequence[dict[str, Any]], name: str) -> dict[str, dict[int, float]]:
    """By way the accuracy of each seed."""
    own = [cell for cell in cells if cell["setting"] == name]
    return {cell["way"]: {seed: run["accuracy"] for seed, run in enumerate(cell["runs"])} for cell in own}


def lines_of(cells: Sequence[dict[str, Any]], seeds: int) -> list[list[str]]:
    """A row for each setting that is done."""
    noisy = [f"ε = {each:g}" for each in EPSILONS]
    lines = [["unit", "data and model", "parties", "`local`", "no noise", *noisy, "worth it"]]
    for name, setting in SETTINGS.items():
        found = figures_of(cells, name)
        if any(len(found.get(way, ())) < seeds for way in WAYS):
            continue
        shown = [shown_accuracy(list(found[way].values())) for way in WAYS]
        lines.append([f"`{setting.unit}`", setting.what, str(setting.parties), *shown, worth_it(found)])
    return lines


def shown_accuracy(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def worth_it(found: dict[str, dict[int, float]]) -> str:
    """The least epsilon with which a federation beats training alone by more than luck would explain."""
    if min(map(len, found.values())) < 3:
        return "too few seeds"
    for way in reversed(WAYS[1:]):
        gain = difference(found[way], found["local"])
        if gain is not None and not gain.may_be_luck:
            return "without noise" if way == "none" else f"from ε = {float(way):g}"
    return "never"


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run what is missing, and keep it")
    parser.add_argument("--only", action="append", choices=SETTINGS, help="of these settings")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true", help="write the settings that are done into the pages")
    options = parser.parse_args()
    cells, seeds = kept_cells(RESULTS), options.seeds
    if not options.full and not options.write:
        cells, seeds, options.only = [], 1, options.only or ["edge-banks"]
    if options.full or not options.write:
        for seed in range(seeds):  # all settings have one seed before any has two
            for name in options.only or SETTINGS:
                for way in WAYS:
                    key, make = {"setting": name, "way": way}, partial(run_seed, SETTINGS[name], way)
                    for found in added(cells, key, seed + 1, make, RESULTS if options.full else None):
                        told = f"{100 * found['accuracy']:.1f} %, {found['cpu_s']} s"
                        print(f"{name}, {way}, seed {seed}: {told}", flush=True)
    head, *body = lines_of(cells, seeds)
    if options.write:
        about = origin(torch)
        told = f"Test accuracy in percent after the last round, mean and standard deviation over {seeds} seeds"
        told += f" ({about['date']}; {named(about['versions'])})."
        content = {**about, "threads": 1, "cells": cells}
        for page in (PAGE, GUIDE):
            keep(content, RESULTS, page, MARKS, [told, markdown(head, body, left=3)])
    print_table(f"Accuracy over epsilon, {seeds} seeds", head, body, left=3)


if __name__ == "__main__":
    main()
