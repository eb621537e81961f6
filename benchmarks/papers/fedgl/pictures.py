"""FedGL's figures 5 to 7: embeddings of the test nodes of the whole graph, in two dimensions by t-SNE.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedgl/pictures.py --write

writes results/pictures-<set>.svg, one panel a method, and prints each one's silhouette by class: how much nearer a node
is to nodes of its own class than to those of the next one, from -1 to 1, before t-SNE. Models are those of tables.py at
their best validation round; nodes are embedded on the plain graph of all parties.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import torch
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from tables import METHODS, study

from isthmus.data.party import pool
from isthmus.study.engine import Run, module_for

HERE = Path(__file__).parent / "results"
SETS = ("cora", "citeseer", "acm")
SHOWN = ("centralized", "federated", "without graph", "without labels", "fedgl")
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888")
SIDE, EDGE = 260, 12


def embedded(data: str, name: str, rounds: int) -> tuple[Any, Any]:
    """What the method's model says of the test nodes, and their classes."""
    plan = study(data, METHODS[name], 0, {}, rounds)
    loaded = plan.load(0)
    module = module_for(plan.encoder(), loaded.parties, loaded.task, 0)
    run = Run(plan.method_list()[0], loaded.parties, loaded.task, module, seed=0).go()
    whole = pool(loaded.parties)
    module.load_state_dict(run.weights)
    module.eval()
    with torch.no_grad():
        output = module(whole.graph.x, whole.graph.edge_index)
    return output[whole.test].numpy(), whole.graph.y[whole.test].numpy()


def panel(at: int, title: str, places: Any, y: Any) -> str:
    low, high = places.min(0), places.max(0)
    scaled = EDGE + (places - low) / (high - low) * (SIDE - 2 * EDGE)
    dots = "".join(
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="1.6" fill="{COLOURS[label % len(COLOURS)]}"/>'
        for (px, py), label in zip(scaled, y, strict=True)
    )
    frame = f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#cccccc"/>'
    name = f'<text x="{SIDE / 2}" y="{SIDE + 18}" text-anchor="middle" font-size="13">{escape(title)}</text>'
    return f'<g transform="translate({at * (SIDE + 10)} 0)">{frame}{dots}{name}</g>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep the pictures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for data in args.data:
        panels = []
        for at, name in enumerate(SHOWN):
            output, y = embedded(data, name, args.rounds)
            print(f"{data} {name}: silhouette {silhouette_score(output, y):.2f}", flush=True)
            places = TSNE(random_state=0, init="pca", perplexity=min(30, len(output) / 4)).fit_transform(output)
            panels.append(panel(at, name, np.asarray(places), y))
        if args.write:
            HERE.mkdir(exist_ok=True)
            size = f'viewBox="0 0 {len(panels) * (SIDE + 10)} {SIDE + 26}" font-family="sans-serif"'
            picture = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(panels)}</svg>\n'
            (HERE / f"pictures-{data}.svg").write_text(picture)


if __name__ == "__main__":
    main()
