"""Other models trained on a condensed graph."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from torch_geometric.data import Data

from isthmus.data.party import Party
from isthmus.federation.answers import PlainTotal
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.sums import positions_of
from isthmus.methods.shared.condensing import Condensing
from isthmus.nn.encoders import Encoder
from isthmus.papers.measures import Measure, Measurement, prepare_run
from isthmus.study.config import Study
from isthmus.study.setup import module_for
from isthmus.tasks.classification import Classification


class OnOtherModels(Measure):
    """Train several models on one condensed graph; the parties fine-tune and test each. Also gives the average."""

    name = "other-models"
    models: list[str] = Field(default=["mlp", "appnp", "cheb", "gcn", "sage", "sgc"])
    """Encoders; each has 256 hidden units."""

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

        parties, metrics = run.transport.by_party(trained_on), {}
        for name in self.models:
            other = module_for(Encoder.named(name)(hidden=256), parties, task, seed)
            weights = method.trained(other, Data(**result.graph), task.classes, seed)
            at_parties = method.site(parties, task, other, seed=seed)
            names = at_parties.hosted.names
            counts = PlainTotal([at_parties.answer("evaluate", {"weights": weights}, names)], positions_of(names))
            metrics[name] = task.metrics(counts.sum("test"))["accuracy"]
        metrics["average"] = statistics.fmean(metrics.values())
        return Measurement(metrics, {}, {"round": result.chosen_round})
