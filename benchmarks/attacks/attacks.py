"""Compare aggregations under attack: liars among ten parties that flip labels, replace the model, or plant a backdoor.

OMP_NUM_THREADS=1 python benchmarks/attacks/attacks.py            # the table
OMP_NUM_THREADS=1 python benchmarks/attacks/attacks.py --write    # also results/attacks.json and README.md
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, origin, print_table
from isthmus.audit.poisoning import Attacker, GraphBackdoor, LabelFlip, LyingTransport
from isthmus.federation.answers import PlainTotal
from isthmus.federation.sums import positions_of
from isthmus.methods.fedavg import FedAvg
from isthmus.study.config import Loaded, Study
from isthmus.study.loop import Run, sites_of
from isthmus.study.setup import module_for

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "attacks.json", HERE / "README.md"
MARKS = ("<!-- figures: written by attacks.py --write -->", "<!-- end of figures of attacks.py -->")
PARTIES, NODES = 10, 1000
RULES: dict[str, Any] = {
    "mean": "mean",
    "clipped-mean": {"name": "clipped-mean", "bound": 0.1},
    "median": "median",
    "trimmed-mean": {"name": "trimmed-mean", "share": 0.3},
    "krum": {"name": "krum", "liars": 3},
}
BOOST = float(PARTIES)
"""A replaced model comes through a plain mean of ten parties as the liar trained it."""


def attackers(classes: int) -> dict[str, Attacker]:
    return {
        "label flipping": LabelFlip(classes=classes),
        "model replacement": LabelFlip(classes=classes, boost=BOOST),
        "backdoor": GraphBackdoor(boost=BOOST / 2),
    }


def run(loaded: Loaded, study: Study, attacker: Attacker, liars: int, rule: str, seed: int, rounds: int) -> Any:
    """Accuracy on the test nodes of the honest parties, and how often the attack gets its way; in percent."""
    task, parties = loaded.task, loaded.parties
    module = module_for(study.encoder(), parties, task, seed)
    method = FedAvg(rounds=rounds, every=rounds, select="last", aggregate=RULES[rule])
    liar_names = [party.name for party in parties[:liars]]
    poisoned = [attacker.poison(party) if party.name in liar_names else party for party in parties]
    transport = LyingTransport(
        sites_of(method, poisoned, task, module, seed=seed), liar_names, attacker, method.aggregation()
    )
    weights = Run(method, poisoned, task, module, seed=seed, transport=transport).go().models["shared"]
    honest = parties[liars:]

    def confusion(of: Any) -> torch.Tensor:
        (site,) = sites_of(method, of, task, module, seed=seed)
        names = [party.name for party in of]
        reply = site.answer("evaluate", {"weights": weights}, names)
        return PlainTotal([reply], positions_of(names)).sum("test")["confusion"].double()

    clean = confusion(honest)
    found = {"accuracy": 100 * float(clean.diag().sum() / clean.sum())}
    if isinstance(attacker, GraphBackdoor):
        tested = confusion([attacker.tested(party) for party in honest])
        return found | {"success": 100 * float(tested[:, attacker.target].sum() / tested.sum())}
    classes = clean.size(0)
    hits = sum(float(clean[at, (at + 1) % classes]) for at in range(classes))
    return found | {"success": 100 * hits / float(clean.sum())}


def figures_of(seeds: int, rounds: int) -> dict[str, Any]:
    data = {"name": "banks", "parties": PARTIES, "nodes": NODES}
    study, cells = Study.of({"data": data}), []
    loads = [study.load(seed) for seed in range(seeds)]
    for attack, attacker in attackers(loads[0].task.outputs).items():
        for liars in range(4):
            for rule in RULES:
                told = Attacker() if liars == 0 and not isinstance(attacker, GraphBackdoor) else attacker
                found = [run(loads[seed], study, told, liars, rule, seed, rounds) for seed in range(seeds)]
                cells.append({"attack": attack, "liars": liars, "rule": rule, "runs": found})
    about = {"seeds": list(range(seeds)), "rounds": rounds, "data": data, "rules": RULES, "boost": BOOST}
    return {**origin(torch), **about, "cells": cells}


def lines_of(figures: dict[str, Any]) -> list[list[str]]:
    lines = [["attack", "liars", *RULES]]
    for attack in dict.fromkeys(cell["attack"] for cell in figures["cells"]):
        for liars in range(4):
            own = [cell for cell in figures["cells"] if (cell["attack"], cell["liars"]) == (attack, liars)]
            lines.append([attack, str(liars), *(shown(cell["runs"]) for cell in own)])
    return lines


def shown(runs: list[dict[str, float]]) -> str:
    """Mean accuracy with its standard deviation, then the attack's success."""
    accuracy, success = ([run[name] for run in runs] for name in ("accuracy", "success"))
    spread = statistics.stdev(accuracy) if len(accuracy) > 1 else 0.0
    return f"{statistics.mean(accuracy):.1f} ± {spread:.1f} / {statistics.mean(success):.1f}"


def read_options(about: str | None) -> argparse.Namespace:
    """The command line of both scripts here."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="save the figures")
    return parser.parse_args()


def main() -> None:
    torch.set_num_threads(1)
    options = read_options(__doc__)
    figures = figures_of(options.seeds, options.rounds)
    head, *body = lines_of(figures)
    title = (
        f"Accuracy / attack success in percent, {figures['rounds']} rounds, {options.seeds} seeds "
        f"({figures['date']}; {named(figures['versions'])})"
    )
    if options.write:
        keep(figures, RESULTS, PAGE, MARKS, [f"{title}:", markdown(head, body, left=2)])
    print_table(title, head, body, left=2)


if __name__ == "__main__":
    main()
