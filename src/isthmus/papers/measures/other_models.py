"""Models that learn from a condensed graph."""

from __future__ import annotations

import statistics
from pathlib import Path

from pydantic import Field
from torch_geometric.data import Data

from isthmus.federation.answers import PlainTotal
from isthmus.federation.local import LocalTransport
from isthmus.methods.shared.condensing import Condensing
from isthmus.nn.encoders import Encoder
from isthmus.papers.measures import Measure, Measured, prepared
from isthmus.study.config import Study
from isthmus.study.setup import module_for
from isthmus.tasks.classification import Classification


class OnOtherModels(Measure):
    """One condensed graph trains one model after another; the parties fine-tune and test each, also on average."""

    name = "other-models"
    models: list[str] = Field(default=["mlp", "appnp", "cheb", "gcn", "sage", "sgc"])
    """Encoders, which are 256 wide."""

    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        run = prepared(study, seed, checkpoint)
        found = run.go()
        method, task = run.method, run.task
        assert isinstance(task, Classification)
        assert isinstance(method, Condensing)
        assert isinstance(run.transport, LocalTransport)
        (site,) = run.transport.sites
        site.outputs(found.weights)  # from here on it is at what the parties train on, z
        told = {}
        for name in self.models:
            other = module_for(Encoder.named(name)(hidden=256), site.cohort.parties, task, seed)
            weights = method.trained(other, Data(**found.graph), task.classes, seed)
            at_parties = method.site(site.cohort.parties, task, other, seed=seed)
            names = at_parties.hosted.names
            counts = PlainTotal([at_parties.answer("evaluate", {"weights": weights}, names)], names)
            told[name] = task.metrics(counts.sum("test"))["accuracy"]
        told["average"] = statistics.fmean(told.values())
        return Measured(told, {}, {"round": found.chosen_round})
