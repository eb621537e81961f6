"""The game about FGCL's edges: all pairs of nodes of graphs are joined by a coin, and a reader sees the views.

The score is the sum of the log-odds over a graph's views, as they are after post-processing. Of views that are drawn
again in every epoch the reader uses the first ones only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from isthmus.audit.edges import released_evidence
from isthmus.audit.lower_bound import GameOfParties, Played
from isthmus.data.party import Party
from isthmus.methods.fgcl import FGCL
from isthmus.privacy.edges import NodePairs
from isthmus.tasks.base import Task


class CanaryViews(GameOfParties):
    """Pairs of nodes of the parties' graphs, as many as one run needs."""

    unit = "edge"

    def __init__(self, parties: Sequence[Party], task: Task, module: nn.Module, method: FGCL) -> None:
        self.parties, self.task, self.module, self.method = parties, task, module, method
        self.claimed = method.spent_by(method.planned_draws()).cost()

    def play_at(self, party: Party, canaries: int, seed: int, source: np.random.Generator) -> Played:
        pairs = NodePairs.of_graphs(torch.bincount(party.graph.batch, minlength=party.items).tolist())
        inside = source.random(len(pairs)) < 0.5
        edges, _ = pairs.graph(torch.from_numpy(inside).float())
        site = self.method.site([party.with_edges(edges)], self.task, self.module, seed=seed)
        site.answer("protect", {}, (party.name,))
        ((_, _, evidence),) = released_evidence(self.method, site)
        some = source.permutation(len(pairs))[:canaries]
        return Played(evidence.numpy()[some], inside[some])
