"""How parties of one graph were cut: what stays inside them, and how far their labels are from the whole."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import torch

from isthmus.data.coupling import decouple
from isthmus.data.skew import earth_movers
from isthmus.errors import IsthmusError
from isthmus.papers.measures import Measure, Measurement
from isthmus.study.config import Study
from isthmus.tasks.classification import NodeClassification


class Cut(Measure):
    """Statistics of a coupled graph's cut; the method is not run.

    `inside` is the share of edges within parties, `added` the edges that local nearest neighbour connection would add,
    as a share of all edges, and `alone` the share of parties with a single node. The label distance of a party is
    sum_c |q_c - p_c|, q its shares of the classes and p those of all parties, over all its nodes: `label_distance` is
    its mean over parties, and `label_distance_by_nodes` the mean weighted by their nodes.
    """

    name = "cut"
    runs_method = False

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        loaded = study.load(seed)
        parties = loaded.parties
        if not isinstance(loaded.task, NodeClassification):
            raise IsthmusError("measure 'cut' needs classes of nodes: set task.name to 'node-classification'")
        labels = [party.graph.y[party.graph.y >= 0] for party in parties]
        counts = torch.stack([torch.bincount(each, minlength=loaded.task.outputs) for each in labels])
        shares = counts.sum(0) / counts.sum()
        apart = (counts / counts.sum(1, keepdim=True).clamp(min=1) - shares).abs().sum(1)
        within = sum(party.edges for party in parties)
        both = within + sum(len(party.border) for party in parties if party.border is not None)
        return Measurement(
            {
                "inside": within / max(both, 1),
                "added": 2 * decouple(parties, join_isolated=True).added / max(both, 1),
                "alone": fmean(party.nodes == 1 for party in parties),
                "label_distance": float(apart.mean()),
                "label_distance_by_nodes": earth_movers(counts),
            }
        )
