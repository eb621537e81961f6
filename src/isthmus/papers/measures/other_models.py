"""Other models trained on a condensed graph."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from isthmus.data.party import Party
from isthmus.federation.answers import PlainTotal
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.sums import positions_of
from isthmus.methods.shared.condensing import Condensing
from isthmus.nn.decoupled import Appnp, Bias
from isthmus.nn.encoders import Convolutions, Encoder, Gcn, Propagate
from isthmus.nn.products import normalised_edges
from isthmus.nn.weights import Weights
from isthmus.papers.measures import Measure, Measurement, prepare_run
from isthmus.study.config import Study
from isthmus.study.setup import module_for
from isthmus.tasks.classification import Classification

SMALL: dict[str, Any] = {"hidden": 256, "dropout": 0.0}


class OnOtherModels(Measure):
    """Train several models on one condensed graph; the parties fine-tune and test each. Also gives the average.

    A user would take models as they are. The public code of GCond and SFGC (`published`) does not: all of its models
    propagate by S = D^-1/2 (A + I) D^-1/2 with edge weights, twice and without dropout. MLP and SAGE are GCNs; MLP is
    trained without edges and tested with them. SGC is a perceptron whose outputs are propagated, APPNP the same with a
    restart of 0.1, and Cheb has one weight for both of its terms, X W + S X W. Adam takes 600 steps, with a tenth of
    the learning rate after half of them, and the model that is best on validation nodes is tested. In that code SAGE
    draws up to 30 and 20 neighbours a step; here it reads all.
    """

    name = "other-models"
    models: list[str] = Field(default=["mlp", "appnp", "cheb", "gcn", "sage", "sgc"])
    """Encoders; each has 256 hidden units."""
    published: bool = False
    """Train and test as the public code of GCond and SFGC does."""
    steps: int = Field(600, ge=2)
    """Steps of training with `published`."""
    check_every: int = Field(10, ge=1)
    """Steps between two looks at the validation nodes with `published`."""

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        run = prepare_run(study, seed, checkpoint)
        result = run.go()
        method, task = run.method, run.task
        assert isinstance(task, Classification)
        assert isinstance(method, Condensing)
        assert isinstance(run.transport, LocalTransport)

        def trained_on(site: Site) -> Sequence[Party]:
            site.predict_all(result.weights)  # makes what the parties train on
            return site.cohort.parties

        parties, metrics, graph = run.transport.by_party(trained_on), {}, Data(**result.graph)
        for name in self.models:
            encoder = PUBLISHED[name] if self.published else Encoder.named(name)(hidden=256)
            other = module_for(encoder, parties, task, seed)
            at_parties = method.site(parties, task, other, seed=seed)
            if self.published:
                weights = self._best(other, graph, at_parties, edges=name != "mlp")
            else:
                weights = method.trained(other, graph, task.classes, seed)
            names = at_parties.hosted.names
            counts = PlainTotal([at_parties.answer("evaluate", {"weights": weights}, names)], positions_of(names))
            metrics[name] = task.metrics(counts.sum("test"))["accuracy"]
        metrics["average"] = statistics.fmean(metrics.values())
        return Measurement(metrics, {}, {"round": result.chosen_round})

    def _best(self, module: nn.Module, graph: Data, at_parties: Site, *, edges: bool) -> Weights:
        """Train as the public code does; return the weights that are best on validation nodes."""
        assert graph.x is not None
        assert isinstance(graph.y, Tensor)
        kept = graph.edge_index if edges else torch.empty(2, 0, dtype=torch.long)
        weight = graph.edge_weight if edges else torch.empty(0)
        val, y = at_parties.hosted.masks["val"], at_parties.hosted.y
        best: Weights = {}
        most = -1
        for step in range(self.steps):
            if step in (0, self.steps // 2):
                rate = 0.01 if step == 0 else 0.001
                optimizer = torch.optim.Adam(module.parameters(), lr=rate, weight_decay=5e-4)
            optimizer.zero_grad()
            F.cross_entropy(module(graph.x, kept, weight), graph.y).backward()
            optimizer.step()
            if (step + 1) % self.check_every == 0 or step + 1 == self.steps:
                now = {name: value.detach().clone() for name, value in module.state_dict().items()}
                right = int((at_parties.predict_all(now).argmax(1) == y)[val].sum())
                if right > most:
                    best, most = now, right
        return best


class _SharedCheb(Encoder):
    """Chebyshev convolutions of order one with one weight for both terms: X W + S X W + b."""

    def body(self, features: int, out: int) -> nn.Module:
        return Convolutions([_BothTerms(i, o) for i, o in self.widths(features, out)], self.dropout, weighted=True)


class _BothTerms(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
        self.hop = Propagate(normalised_edges)
        self.bias = Bias(o)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        h = self.lin(x)
        return self.bias(h + self.hop(h, edge_index, edge_weight))


PUBLISHED: Mapping[str, Encoder] = {
    "mlp": Gcn(**SMALL),
    "appnp": Appnp(hops=2, alpha=0.1, **SMALL),
    "cheb": _SharedCheb(**SMALL),
    "gcn": Gcn(**SMALL),
    "sage": Gcn(**SMALL),
    "sgc": Appnp(hops=2, alpha=0.0, **SMALL),
}
"""What the public code trains by each name."""
