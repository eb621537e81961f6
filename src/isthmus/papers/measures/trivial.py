"""What clusters are worth without an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.papers.measures import Measure, Measurement
from isthmus.study.config import Study
from isthmus.tasks.base import Step
from isthmus.tasks.clustering import GraphClustering


class Trivial(Measure):
    """Clusters of graphs by something that needs no training, to show what an encoder adds; the method is not run.

    Graphs are scaled, clustered and scored as embeddings of a method are.
    """

    name = "trivial"
    runs_method = False
    reads: Literal["nothing", "size", "features"] = "features"
    """What a graph is known by: nothing, so that all graphs are one cluster and accuracy is the share of the largest
    class; its number of nodes; or the sum of its nodes' features, which `data` chooses."""

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        loaded = study.load(seed)
        task, party = loaded.task, pool_parties(loaded.parties)
        if not isinstance(task, GraphClustering):
            raise IsthmusError("measure 'trivial' needs graphs to cluster: set task.name to 'graph-clustering'")
        output = task.postprocess(self.embedded(party), (party.items,))
        metrics: dict[str, float] = {}
        for split, mask in (("val", party.val), ("test", party.test)):
            at = mask.nonzero().squeeze(1)
            counts = task.counts(Step(output[at], party.graph.y[at], (at.numel(),), at))
            own = task.metrics({name: count.sum(0) for name, count in counts.items()})
            metrics |= {f"{split}_{name}": value for name, value in own.items()}
        return Measurement(metrics)

    def embedded(self, party: Party) -> Tensor:
        """What each graph is known by, `[graphs, columns]`."""
        if self.reads == "nothing":
            return torch.zeros(party.items, 1)
        x = torch.ones(party.nodes, 1) if self.reads == "size" else rows.to_dense(party.graph.x)
        return x.new_zeros(party.items, x.size(1)).index_add(0, party.graph.batch, x)
