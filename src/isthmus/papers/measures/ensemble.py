"""Several models that predict together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.federation.answers import PlainTotal
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.sums import positions_of
from isthmus.papers.measures import Measure, Measurement
from isthmus.papers.measures.training import privacy_metrics
from isthmus.study.config import Study
from isthmus.study.run import build_run


class Ensemble(Measure):
    """Train several models on the same data and cut, each with its own first weights and noise, and predict with the
    mean of their outputs.

    It shows what more models or views are worth without a contrast between them. Each model is that of the round that
    validation chose for it. `epsilon` is what all of them spend together.
    """

    name = "ensemble"
    models: int = Field(2, ge=2)
    """Number of models; the first one is that of a single run with the same seed."""

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        loaded = study.load(seed)
        (method,) = study.method_list()
        outputs: list[list[Tensor]] = []
        sites: Sequence[Site] = ()
        results = []
        for member in range(self.models):
            run = build_run(study, method, seed + 1_000_000 * member, loaded)
            result = run.go()
            if not result.weights:
                raise IsthmusError(f"measure 'ensemble' needs a model that all share, which '{method.name}' has not")
            assert isinstance(run.transport, LocalTransport)
            outputs.append([_outputs(site, result.weights) for site in run.transport.sites])
            sites = sites or run.transport.sites
            results.append(result)
        replies, names = [], [name for site in sites for name in site.hosted.names]
        for site, *members in zip(sites, *outputs, strict=True):
            mean = torch.stack(members).mean(0)
            site.predict = lambda request, mean=mean: mean
            replies.append(site.answer("evaluate", {"weights": results[0].weights}, site.hosted.names))
        counts, task = PlainTotal(replies, positions_of(names)), loaded.task
        metrics = {
            f"{split}_{name}": value
            for split in ("val", "test")
            for name, value in task.metrics(counts.sum(split)).items()
        }
        spent = [privacy_metrics(result) for result in results]
        metrics |= {name: sum(each[name] for each in spent) for name in spent[0]}
        return Measurement(metrics, about={"round": min(each.chosen_round for each in results)})


def _outputs(site: Site, weights: object) -> Tensor:
    with site.asked(), torch.no_grad():
        return site.predict({"weights": weights})
