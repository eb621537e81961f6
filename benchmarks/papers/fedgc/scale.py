"""Time and memory of FedGC on a generated graph of ogbn-arxiv's size.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedgc/scale.py --write

169,343 nodes, 1.17 million edges, 128 features, 40 classes, the shares of training, validation and test nodes of
ogbn-arxiv; 5 parties by label Dirichlet with beta = 1, r = 0.25 %, a GCN of 256 hidden units. All of FedGC is run and
timed, from sums over neighbours to the last evaluation. Self-training has one pass, as in the paper, because more than
half of the nodes are labelled from the start (`--passes 2` is the default of `fedgc`). The aim is 15 minutes and 8 GB.
Classes are planted, so accuracies say nothing about real graphs. With ogbn-arxiv's files, run the real one:

    isthmus papers run fedgc/table2 --only 'data=ogbn-arxiv, 0.25 %' --only method=FedGC
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from isthmus.data.partition.labels import LabelDirichlet
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.federation.transport import Command
from isthmus.methods.fedgc import FedGC
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.results import versions
from isthmus.study.setup import module_for, task_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import machine, named, peak_mb

FOUND = Path(__file__).parent / "results" / "scale.json"
SPLIT = (90_941, 29_799)
"""Training and validation nodes of ogbn-arxiv; the others are tested on."""


def planted(nodes: int, edges: int, features: int, classes: int, seed: int = 0) -> Data:
    """A graph whose nodes have a class, features near that class's, and seven of ten neighbours of their class."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (nodes,), generator=source).sort().values
    first = torch.searchsorted(y, torch.arange(classes + 1))
    start = torch.randint(nodes, (edges,), generator=source)
    own = (first[y[start]] + torch.rand(edges, generator=source) * (first[y[start] + 1] - first[y[start]])).long()
    end = torch.where(torch.rand(edges, generator=source) < 0.7, own, torch.randint(nodes, (edges,), generator=source))
    pairs = torch.stack([start, end])[:, start != end]
    centres = torch.randn(classes, features, generator=source)
    x = 0.5 * centres[y] + torch.randn(nodes, features, generator=source)
    graph = Data(x=x, y=y, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1).unique(dim=1), num_nodes=nodes)
    order, masks = torch.randperm(nodes, generator=source), {}
    train, val = (round(share * nodes / 169_343) for share in SPLIT)
    for name, part in zip(("train", "val", "test"), order.tensor_split((train, train + val)), strict=True):
        masks[name] = torch.zeros(nodes, dtype=torch.bool)
        masks[name][part] = True
    graph.train_mask, graph.val_mask, graph.test_mask = masks["train"], masks["val"], masks["test"]
    return graph


def measured(
    nodes: int, edges: int, features: int, classes: int, parties: int, options: dict[str, Any]
) -> dict[str, Any]:
    whole = Party.of_graph("whole", planted(nodes, edges, features, classes), ids=torch.arange(nodes))
    pool = Pool(whole, classes)
    held = LabelDirichlet(beta=1.0).cut(pool, parties, 0)
    del pool, whole
    task = task_for(held, classes)
    module = module_for(Encoder.named("gcn")(hidden=256), held, task, 0)
    loaded, steps, started = peak_mb(), {}, time.perf_counter()
    method = FedGC(ratio=0.0025, every=100, **options)
    run = Run(method, held, task, module, seed=0)
    send = run.transport.send

    def timed(command: Command) -> Any:
        began = time.perf_counter()
        reply = send(command)
        steps[command.action] = steps.get(command.action, 0.0) + time.perf_counter() - began
        return reply

    run.transport.send = timed
    found = run.go()
    seconds = time.perf_counter() - started
    return {
        "nodes": nodes, "edges": edges, "features": features, "classes": classes, "parties": parties,
        "synthetic": int(found.graph["x"].size(0)), "rounds": found.rounds, "seconds": round(seconds, 1),
        "of these": {action: round(each, 1) for action, each in steps.items() if each > 0.5},
        "input MB": round(loaded), "peak MB": round(peak_mb()), "test": round(100 * found.metrics["test_accuracy"], 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=169_343)
    parser.add_argument("--edges", type=int, default=1_166_243)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--parties", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="save the figures in results/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (args.nodes, args.edges, args.features, args.classes, args.parties)
    found = measured(*sizes, {"rounds": args.rounds, "passes": args.passes})
    print(json.dumps(found, indent=1))
    if args.write:
        head = {"versions": named(versions()), "machine": machine(), "threads": 1, "date": str(datetime.date.today())}
        FOUND.parent.mkdir(exist_ok=True)
        FOUND.write_text(json.dumps({**head, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
