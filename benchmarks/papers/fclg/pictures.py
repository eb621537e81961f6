"""FCLG's figure 3: embeddings of the graphs after rounds 1, 10 and 20, in two dimensions by t-SNE.

    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/pictures.py --write

writes results/pictures-<set>.svg and prints each round's silhouette by class: how much nearer a graph is to graphs of
its own class than to those of the next one, from -1 to 1, before t-SNE and scaled as they are clustered. Seed 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import silhouette_score

from isthmus.nn.per_party import per_party
from isthmus.papers.measures import prepared
from isthmus.papers.plan import Table

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import scattered

TABLE = Path(__file__).parent / "figure2.toml"
HERE = Path(__file__).parent / "results"
SETS = ("proteins", "enzymes", "dhfr", "nci1")


def embedded(data: str, rounds: Sequence[int]) -> dict[str, tuple[Any, Any]]:
    """By round embeddings of all graphs by the server's model, scaled as they are clustered, and classes."""
    (cell,) = (each for each in Table.of_file(TABLE).cells() if each.place == {"data": data, "method": "fclg"})
    run = prepared(cell.planned(0, {"method": {"rounds": max(rounds)}}), 0, None)
    assert run.whole is not None
    (whole,), found = run.whole.given.parties, {}
    model = per_party(run.module, 1)

    def look(now: int, metrics: Mapping[str, float]) -> None:
        if now in rounds:
            model.load(run.state.weights)
            with torch.no_grad():
                _, u = model(run.whole.given.block)
            found[f"round {now}"] = run.task.scaled(u.squeeze(1).double().numpy()), whole.graph.y.numpy()

    run.on_round = look
    run.go()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=["proteins"], choices=SETS)
    parser.add_argument("--rounds", nargs="*", type=int, default=[1, 10, 20])
    parser.add_argument("--write", action="store_true", help="keep the pictures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for data in args.data:
        shown = embedded(data, args.rounds)
        for name, (z, y) in shown.items():
            print(f"{data}, {name}: silhouette {silhouette_score(z, y):.3f}")
        if args.write:
            scattered(shown, HERE / f"pictures-{data}.svg")


if __name__ == "__main__":
    main()
