"""FedGL's figures 5 to 7: embeddings of the test nodes of the whole graph, in two dimensions by t-SNE.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedgl/pictures.py --write

writes results/pictures-<set>.svg, one panel a method, and prints each one's silhouette by class: how much nearer a node
is to nodes of its own class than to those of the next one, from -1 to 1, before t-SNE. Models are those of table 2 at
their best validation round; nodes are embedded on the plain graph of all parties.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import silhouette_score

from isthmus.data.party import pool
from isthmus.papers.measures import prepared
from isthmus.papers.plan import Table
from isthmus.study.engine import module_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import scattered

TABLE = Path(__file__).parent / "table2.toml"
HERE = Path(__file__).parent / "results"
SETS = ("cora", "citeseer", "acm")
SHOWN = ("centralized", "federated", "without graph", "without labels", "fedgl")


def embedded(data: str, name: str, rounds: int) -> tuple[Any, Any]:
    """What the method's model says of the test nodes, and their classes."""
    (cell,) = (each for each in Table.of_file(TABLE).cells() if each.place == {"data": data, "method": name})
    plan = cell.planned(0, {"method": {"rounds": rounds}})
    loaded = plan.load(0)
    run = prepared(plan, 0, None).go()
    module = module_for(plan.encoder(), loaded.parties, loaded.task, 0)
    whole = pool(loaded.parties)
    module.load_state_dict(run.weights)
    module.eval()
    with torch.no_grad():
        output = module(whole.graph.x, whole.graph.edge_index)
    return output[whole.test].numpy(), whole.graph.y[whole.test].numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep the pictures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for data in args.data:
        shown = {}
        for name in SHOWN:
            output, y = embedded(data, name, args.rounds)
            print(f"{data} {name}: silhouette {silhouette_score(output, y):.2f}", flush=True)
            shown[name] = output, y
        if args.write:
            scattered(shown, HERE / f"pictures-{data}.svg")


if __name__ == "__main__":
    main()
