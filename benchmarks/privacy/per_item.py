"""How long a step of DP-SGD takes: a stack of models, a loop over items, `torch.func`, and a step without privacy.

All sides compute the sum of the clipped gradients of the same items, without noise, in turns in one process; the last
one the gradient of their mean loss. Milliseconds are CPU time, medians over turns; a ratio is taken within a turn.
`torch.func.vmap` needs items of one shape, so it is there for nodes only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, origin, print_table
from isthmus.data.datasets.banks import Banks
from isthmus.data.datasets.motifs import Motifs
from isthmus.data.party import Party
from isthmus.federation.private import PrivateItems
from isthmus.federation.site import Site
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.per_item import ItemGradients
from isthmus.nn.encoders import Encoder
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.options import ItemPrivacy
from isthmus.study.setup import module_for, task_for

CASES = [("motifs", "gin", 300), ("motifs", "gcn", 300), ("banks", "mlp", 300), ("banks", "mlp", 3000)]
SIDES = ("stack", "loop", "vmap", "plain")
HERE = Path(__file__).parent
MARKS = ("<!-- figures: written by per_item.py --write -->", "<!-- end -->")


class Sides:
    """The step of one model on one party's items, in every way."""

    def __init__(self, data: str, model: str, count: int) -> None:
        pool = Motifs(graphs=count, train=1, val=0) if data == "motifs" else Banks(parties=1, nodes=count)
        party: Party = pool.load(0).party
        task = task_for([party])
        self.module: nn.Module = module_for(Encoder.named(model)(hidden=64, dropout=0.0), [party], task, 0)
        plan = ItemPlan.of(ItemPrivacy(epsilon=8.0), 1, 1)
        site = FedAvg().site([party], task, self.module, private=PrivateItems(plan, ("train",)))
        self.site: Site = site
        self.plan, self.party = plan, party
        self.items = party.train.nonzero().squeeze(1)
        with site.asked():
            site.model.load(site.model.initial)
            self.gradients = ItemGradients(site, plan, task.loss, None)
            self.leaves = site.model.start_training(self.gradients.outline(), [True], touched_rows=False)
        self.weights = {leaf.name: leaf.tensor.detach()[0].clone() for leaf in self.leaves}
        self.inputs = [self._input(item) for item in self.items.tolist()]

    def _input(self, item: int) -> dict[str, Any]:
        graph = self.party.graph
        if self.party.level == "node":
            return {"x": graph.x[item : item + 1], "edge_index": torch.empty(2, 0, dtype=torch.long)}
        inside = graph.batch == item
        nodes, edges = inside.nonzero().squeeze(1), graph.edge_index[:, inside[graph.edge_index[0]]]
        batch = {"edge_weight": None, "batch": torch.zeros(nodes.numel(), dtype=torch.long), "batch_size": 1}
        return {"x": graph.x[nodes], "edge_index": edges - nodes[0], **batch}

    def stack(self) -> list[Tensor]:
        sums = [torch.zeros_like(leaf.tensor, dtype=torch.float64) for leaf in self.leaves]
        with self.site.kept.of((0,)):
            for some in self.items[self.gradients.order].split(self.gradients.at_once):
                self.gradients.add(sums, some, 0, 0)
        return [each[0] * self.plan.grid for each in sums]

    def loop(self) -> list[Tensor]:
        sums = [torch.zeros_like(weight) for weight in self.weights.values()]
        for item, inputs in zip(self.items.tolist(), self.inputs, strict=True):
            weights = {name: weight.requires_grad_() for name, weight in self.weights.items()}
            output = functional_call(self.module, weights, kwargs=inputs)
            loss = F.cross_entropy(output, self.party.graph.y[item : item + 1])
            slopes = torch.autograd.grad(loss, list(weights.values()))
            norm = torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
            factor = self.plan.options.clip / norm.clamp(min=self.plan.options.clip)
            for total, slope in zip(sums, slopes, strict=True):
                total += factor * slope
        return sums

    def vmap(self) -> list[Tensor] | None:
        if self.party.level != "node":
            return None
        edges = torch.empty(2, 0, dtype=torch.long)

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            output = functional_call(self.module, weights, kwargs={"x": x.unsqueeze(0), "edge_index": edges})
            return F.cross_entropy(output, y.unsqueeze(0))

        weights = {name: weight.detach() for name, weight in self.weights.items()}
        x, y = self.party.graph.x[self.items], self.party.graph.y[self.items]
        slopes = list(vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y).values())
        norm = torch.stack([slope.flatten(1).square().sum(1) for slope in slopes]).sum(0).sqrt()
        factor = self.plan.options.clip / norm.clamp(min=self.plan.options.clip)
        return [torch.tensordot(factor, slope, 1) for slope in slopes]

    def plain(self) -> None:
        with self.site.asked():
            self.site.model.load(self.site.model.initial)
            site = self.site
            private, site.private = site.private, None
            site.method.local.model_copy(update={"epochs": 1}).fit(site, site.task.loss)
            site.private = private


def row_of(data: str, model: str, count: int, turns: int) -> dict[str, Any]:
    sides = Sides(data, model, count)
    ways: dict[str, Callable[[], Any]] = {name: getattr(sides, name) for name in SIDES}
    found = {name: way() for name, way in ways.items()}
    for name in ("loop", "vmap"):
        if found[name] is not None:
            assert all(
                torch.allclose(a.float(), b, atol=1e-3) for a, b in zip(found["stack"], found[name], strict=True)
            )
    if found["vmap"] is None:
        del ways["vmap"]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(1000 * (time.process_time() - began))
    ratios = {
        name: statistics.median(a / b for a, b in zip(own, times["stack"], strict=True)) for name, own in times.items()
    }
    numbers = sum(weight.numel() for weight in sides.weights.values())
    medians = {name: statistics.median(own) for name, own in times.items()}
    return {
        "data": data,
        "model": model,
        "items": len(sides.items),
        "numbers": numbers,
        "ms": medians,
        "ratios": ratios,
    }


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["items", "model", "weights", "stack, ms", "**loop / stack**", "vmap / stack", "without privacy / stack"]]
    for row in rows:
        ratios = [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "-" for name in ("loop", "vmap", "plain")]
        what = f"{row['items']:,} {'graphs' if row['data'] == 'motifs' else 'nodes'} of `{row['data']}`"
        lines.append([what, f"`{row['model']}`", f"{row['numbers']:,}", f"{row['ms']['stack']:.1f}", *ratios])
    return lines


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and in README.md")
    options = parser.parse_args()
    figures = {**origin(torch), "turns": options.turns}
    figures["rows"] = [row_of(*case, options.turns) for case in CASES]
    head, *body = lines_of(figures["rows"])
    if options.write:
        told = f"Measured on {figures['date']}: one thread, medians of {options.turns} turns; {figures['machine']}; "
        told += named(figures["versions"]) + "."
        page, results = HERE / "README.md", HERE / "results" / "per_item.json"
        keep(figures, results, page, MARKS, [told, markdown(head, body, left=2)])
    print_table("Sums of clipped gradients of single items", head, body, left=2)


if __name__ == "__main__":
    main()
