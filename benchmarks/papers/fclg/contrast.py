"""Try kinds of contrast that FCLG does not have, and compare them with an untrained encoder on validation labels.

    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/contrast.py --write

GraphCL (You et al. 2020), SimGRACE (Xia et al. 2022) and BGRL (Thakoor et al. 2022), trained by FedAvg, are here and
not in the package, which has what helps. The parties are those of table2.toml, and the encoder is a GIN with
batch normalisation; each method gets the same two learning rates. Test labels are never read.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.methods.base import Method
from isthmus.methods.fclg import FCLG
from isthmus.methods.infograph import InfoGraph
from isthmus.methods.shared.unsupervised import Unsupervised
from isthmus.nn.contrast import contrast_views
from isthmus.nn.draws import Draws
from isthmus.nn.encoders import Embedder
from isthmus.nn.per_party import PerParty
from isthmus.nn.weights import Weights
from isthmus.options import merge
from isthmus.papers.plan import Cell, Table
from isthmus.study.run import build_run
from isthmus.tasks.base import Step
from isthmus.tasks.clustering import GraphClustering, scaled

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import added, kept_cells

HERE = Path(__file__).parent
TRIALS = HERE / "results" / "contrast.json"
TABLE = Table.of_file(HERE / "table2.toml")
SETS = ("dhfr", "proteins", "enzymes", "nci1")
SEED = 1000
"""The first one; none of them is reported elsewhere."""
RATES = (1e-2, 1e-3)
FOLDS = 5


class Heads(nn.Module):
    """An embedder, and behind its embeddings of graphs the projection z, and what predicts z of another view from z."""

    def __init__(self, embedder: nn.Module) -> None:
        super().__init__()
        assert isinstance(embedder, Embedder)
        self.embedder = embedder
        width = embedder.width
        self.project = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.predict = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(
        self, x: Any, edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h, u = self.embedder(x, edge_index, edge_weight, batch, batch_size)
        z = self.project(u.squeeze(1))
        return h, u, z, self.predict(z)


class Contrast(InfoGraph):
    """A method of this file; it has no name of its own, so that no study finds it."""

    temperature: float = 0.2

    def extended(self, module: nn.Module) -> nn.Module:
        return Heads(module)

    class AtParty(Unsupervised.AtParty):
        other: PerParty | None = None

        def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, None]:
            self.at = epoch, at
            return super().read(chosen, epoch, at)

        def projected(self, weights: Weights) -> Tensor:
            """The projections of the step's graphs by a model with other weights, which gets no gradient."""
            if self.other is None or self.other.parties != self.model.parties:
                self.other = PerParty(self.model.module, self.model.parties, self.model.device)
            self.other.load({name: weight.clone() for name, weight in weights.items()})
            self.other.training = True
            with torch.no_grad():
                z: Tensor = self.other(self.block, self.draws("other", *self.at))[2]
            return z


class SimGRACE(Contrast):
    """SimGRACE: the second view of a graph is its embedding by a model with noise on the encoder's weights.

    z = g(f(G; theta)),  z' = g(f(G; theta + eta N(0, sd(theta))))
    l = NT-Xent(z, z'), over a batch of one party's graphs; z' gets no gradient, as in the public code
    """

    eta: float = 1.0

    class AtParty(Contrast.AtParty):
        loss_method: SimGRACE

        def loss(self, step: Step) -> Tensor:
            z = torch.stack([step.output[2], self.projected(self.perturbed())], dim=1)
            return contrast_views(z, step.sizes, self.loss_method.temperature)

        def perturbed(self) -> Weights:
            """The parties' weights with noise on the encoder's, scaled by the deviation of each tensor's entries."""
            draws, weights = self.draws("noise", *self.at), self.model.stacks()
            for name, parameter in self.model.module.named_parameters():
                if name.startswith("embedder.") and parameter.numel() > 1:
                    flat = weights[name].flatten(1)
                    noise = draws.of(name).normal((1,) * len(flat), flat.size(1), dtype=flat.dtype)
                    flat = flat + self.loss_method.eta * flat.std(1, keepdim=True) * noise
                    weights[name] = flat.view_as(weights[name])
            return weights


class Augmented(Contrast):
    """A method that reads two changed copies of each graph, one after the other."""

    class AtParty(Contrast.AtParty):
        def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, None]:
            block, _ = super().read(chosen.repeat_interleave(2), epoch, at)
            self.block = changed(block, self.draws("views", epoch, at))
            return self.block, None


class GraphCL(Augmented):
    """GraphCL: two random changes of a graph should be near each other, and far from other graphs.

    l = NT-Xent(g(f(G_1)), g(f(G_2))), over a batch of one party's graphs
    """

    class AtParty(Augmented.AtParty):
        loss_method: GraphCL

        def loss(self, step: Step) -> Tensor:
            z = step.output[2]
            return contrast_views(z.view(-1, 2, z.size(1)), step.sizes, self.loss_method.temperature)


class BGRL(Augmented):
    """BGRL: a graph's embedding predicts that of its other view by a slower model; there are no negatives.

    l = mean over both orders of  2 - 2 cos(q(g(f(G_1; theta))), g(f(G_2; phi)))
    phi <- m phi + (1 - m) theta after each step; a round starts with phi = theta, the server's weights
    """

    momentum: float = 0.99

    class AtParty(Augmented.AtParty):
        loss_method: BGRL

        def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, None]:
            now = {name: weight.clone() for name, weight in self.model.stacks().items()}
            past = now if epoch == at == 0 else self.slow
            self.slow = {name: past[name].lerp(now[name], 1 - self.loss_method.momentum) for name in now}
            return super().read(chosen, epoch, at)

        def loss(self, step: Step) -> Tensor:
            q, z = (F.normalize(each, dim=1).view(-1, 2, each.size(1)) for each in self.pair(step))
            return rows.mean_per_party(2 - 2 * (q * z.flip(1)).sum(2).mean(1), step.sizes)

        def pair(self, step: Step) -> tuple[Tensor, Tensor]:
            return step.output[3], self.projected(self.slow)


def changed(block: Block, draws: Draws, share: float = 0.2) -> Block:
    """The block with one random change in each graph, of a share of its nodes or edges.

    Nodes are left out; edges are left out; features of nodes are set to zero; or the nodes farthest from a random one,
    along edges of random lengths, are left out, so that the rest is a subgraph.
    """
    assert block.batch is not None
    kind = (draws.of("kind").uniform(block.graphs) * 4).long()
    graph_of_edge = block.batch[block.edge_index[0]]
    party_of_edge = rows.party_of_rows(block.sizes, kind.device)[block.edge_index[0]]
    edges = tuple(torch.bincount(party_of_edge, minlength=len(block.sizes)).tolist())
    nodes_of, edges_of = (torch.bincount(each, minlength=len(kind)) for each in (block.batch, graph_of_edge))

    def lowest(which: int, key: Tensor, graph: Tensor, sizes: Tensor) -> Tensor:
        return lowest_of_each(key, graph, torch.where(kind == which, (sizes * share).long(), 0))

    left_out = lowest(0, draws.of("nodes").uniform(block.sizes), block.batch, nodes_of)
    cut = lowest(1, draws.of("edges").uniform(edges), graph_of_edge, edges_of)
    masked = lowest(2, draws.of("features").uniform(block.sizes), block.batch, nodes_of)
    start = lowest_of_each(draws.of("start").uniform(block.sizes), block.batch, torch.ones_like(nodes_of))
    far = distances(start, block.edge_index, draws.of("walk").uniform(edges) + 0.05)
    left_out |= lowest(3, -far, block.batch, nodes_of)

    keep, at = ~left_out, (~left_out).cumsum(0) - 1
    edge = ~cut & keep[block.edge_index].all(0)
    party = rows.party_of_rows(block.sizes, kind.device)[keep]
    return replace(
        block,
        x=(rows.to_dense(block.x) * ~masked.unsqueeze(1))[keep],
        edge_index=at[block.edge_index[:, edge]],
        edge_weight=None if block.edge_weight is None else block.edge_weight[edge],
        sizes=tuple(torch.bincount(party, minlength=len(block.sizes)).tolist()),
        batch=block.batch[keep],
    )


def lowest_of_each(key: Tensor, group: Tensor, counts: Tensor) -> Tensor:
    """A mask of the rows with the lowest keys of each group, so many of each.

    >>> lowest_of_each(torch.tensor([3.0, 1.0, 2.0, 9.0]), torch.tensor([0, 0, 0, 1]), torch.tensor([2, 0])).tolist()
    [False, True, True, False]
    """
    order = torch.argsort(key, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    sizes = torch.bincount(group, minlength=len(counts))
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device) - (sizes.cumsum(0) - sizes)[group[order]]
    return place < counts[group]


def distances(start: Tensor, edge_index: Tensor, lengths: Tensor) -> Tensor:
    """The length of the shortest way to each node from a node of `start`; a large number where there is none."""
    far, before = torch.where(start, 0.0, 1e6), None
    while before is None or not torch.equal(far, before):
        before, way = far, far[edge_index[0]] + lengths
        far = far.scatter_reduce(0, edge_index[1], way, "amin")
    return far


METHODS: dict[str, type[Unsupervised]] = {
    "graphcl": GraphCL,
    "simgrace": SimGRACE,
    "bgrl": BGRL,
    "infograph": InfoGraph,
    "intra-fedavg": FCLG,
}


def settings(method: str) -> list[dict[str, Any]]:
    """What is tried of a method: the same number of settings of each. An untrained encoder is drawn; or one round at a
    rate at which nothing moves has given it running statistics."""
    return [{"norm": False}, {"norm": True, "lr": 1e-12}] if method == "untrained" else [
        {"norm": True, "lr": lr} for lr in RATES
    ]  # fmt: skip


def measured(z: Tensor, y: Tensor, val: Tensor, classes: int) -> dict[str, float]:
    """Accuracy of a linear probe in folds of the validation graphs, twice, and macro-F1 of theirs after K-means on
    all graphs, in percent."""
    task, found, at = GraphClustering(classes=classes), {}, val.numpy()
    for scale in ("raw", "log"):
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
        folds = RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=2, random_state=0)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            hits = cross_val_score(model, scaled(z.double().numpy(), scale)[at], y[val].numpy(), cv=folds)
        found[f"probe_{scale}"] = float(hits.mean())
    for scale in ("unit", "log", "raw"):
        table = task.confusion(task.cluster(scaled(z.double().numpy(), scale))[at], y[val].numpy())
        found[f"f1_{scale}"] = task.confusion_metrics(torch.from_numpy(table))["macro_f1"]
    return {name: round(100 * value, 2) for name, value in found.items()}


def tried(data: str, method: str, setting: dict[str, Any], rounds: int, at: int) -> dict[str, Any]:
    """What validation labels say of embeddings by the server's model after so many rounds."""
    begun = time.process_time()
    (of_data,) = (axis.changes()[data] for axis in TABLE.axes if axis.name == "data")
    two_views = method == "intra-fedavg"
    model = {"encoder": "gin", "weighted": two_views, "norm": setting["norm"]}
    name = FCLG.name if two_views else InfoGraph.name
    changes = {"model": model, "task": {"more_scales": [], "probe": 0}, "method": {"name": name}}
    study = Cell({"data": data}, merge(merge(TABLE.study, of_data), changes), None, {}).study_for(SEED + at)
    (template,) = study.method_list()
    trains = "lr" in setting
    options: dict[str, Any] = {"rounds": 1 if method == "untrained" else rounds, "every": rounds}
    local = {"batch_size": 32, "lr": setting.get("lr", 1e-12)}
    options["local"] = {**template.local.model_dump(exclude_unset=True), **local}
    if two_views:
        options["inter"] = "none"
    run = build_run(study, method_of(method, options), SEED + at, study.load(SEED + at))
    whole, run.whole = run.whole, None
    assert whole is not None
    z = whole.predict_all(run.go().weights if trains else {})
    val = measured(z, whole.hosted.y, whole.hosted.masks["val"], run.task.outputs)
    seconds = round(time.process_time() - begun, 1)
    return {"seed": SEED + at, "val": val, "seconds": seconds, "date": datetime.date.today().isoformat()}


def method_of(name: str, options: dict[str, Any]) -> Method:
    """The method with these options; an untrained encoder is one that InfoGraph trains at a rate of nearly 0."""
    return METHODS.get(name, InfoGraph).read(options, name)


def text(cells: Sequence[dict[str, Any]]) -> str:
    """For each set, method and setting the means over the seeds."""
    names = ("probe_raw", "probe_log", "f1_unit", "f1_log", "f1_raw")
    lines = ["| set | method | lr | seeds | " + " | ".join(names) + " |"]
    lines.append("| --- | --- | --- |" + " ---: |" * (len(names) + 1))
    for cell in cells:
        if runs := cell["runs"]:
            means = [f"{statistics.fmean(run['val'][name] for run in runs):.1f}" for name in names]
            lr = f"{cell['setting']['lr']:g}" if "lr" in cell["setting"] else ""
            lines.append(f"| {cell['data']} | {cell['method']} | {lr} | {len(runs)} | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--methods", nargs="*", default=["untrained", *METHODS], choices=["untrained", *METHODS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="save the results, and continue from saved ones")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(TRIALS) if args.write else []
    for data in args.data:
        for method in args.methods:
            for setting in settings(method):
                key = {"data": data, "method": method, "setting": setting, "rounds": args.rounds}
                run_seed = partial(tried, data, method, setting, args.rounds)
                for run in added(kept, key, args.seeds, run_seed, TRIALS if args.write else None):
                    print(data, method, setting, run, flush=True)
    print(text(kept))


if __name__ == "__main__":
    main()
