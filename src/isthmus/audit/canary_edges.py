"""The game about edges: some pairs of a party's nodes are joined by a coin, and a reader sees every noisy hop.

Each node is in one pair at most. The reader knows features, all other edges and what a hop was computed from, which
the hop before released. If nodes i and j of a pair are joined, row i of a hop has h_j more, and row j has h_i more. The
score is the logarithm of the odds that Gaussian noise gives, up to a factor. Sums and noise are those of a run
(`federation.private`, `privacy.hops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.utils import coalesce, remove_self_loops

from isthmus.audit.lower_bound import Game, Played
from isthmus.data.matrices import Ints
from isthmus.data.party import PER_EDGE, Party
from isthmus.federation.private import PrivateEdges
from isthmus.nn.aggregation import sum_over_neighbours
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.random_bits import NoiseKey


class CanaryEdges(Game):
    """Pairs of nodes of the parties, as many as one run needs."""

    unit = "edge"

    def __init__(self, private: PrivateEdges, parties: Sequence[Party], module: nn.Module) -> None:
        self.private, self.parties, self.module = private, parties, module
        self.claimed = private.plan.account().cost(private.plan.options.delta, self.unit)

    def play(self, canaries: int, seed: int) -> Played:
        source, runs, missing = np.random.default_rng(seed), list[Played](), canaries
        for party in self.parties:
            if missing:
                runs.append(self._of(party, missing, seed, source))
                missing -= len(runs[-1].scores)
        return Played.together(runs)

    def _of(self, party: Party, canaries: int, seed: int, source: np.random.Generator) -> Played:
        pairs = torch.from_numpy(pairs_of(party, source)[:, :canaries])
        inside = torch.from_numpy(source.random(pairs.size(1)) < 0.5)
        partner = torch.full((party.nodes,), -1)
        partner[pairs], partner[pairs.flip(0)] = pairs.flip(0), pairs
        edges = coalesce(remove_self_loops(party.graph.edge_index)[0], num_nodes=party.nodes)
        known = edges[:, partner[edges[0]] != edges[1]]
        graph = copy(party.graph)
        for name in PER_EDGE:
            if graph.get(name) is not None:
                del graph[name]
        graph.edge_index = torch.cat([known, pairs[:, inside], pairs[:, inside].flip(0)], dim=1)
        plan = Watched(**vars(self.private.plan))
        PrivateEdges(plan).prepared([party.with_graph(graph)], self.module, NoiseKey(seed))
        scores = torch.zeros(pairs.size(1), dtype=torch.float64)
        first, second = pairs
        for h, released in plan.releases:
            rest = released - sum_over_neighbours(h, known)
            for row, other in ((first, second), (second, first)):
                scores += (rest[row] * h[other]).sum(1) - h[other].square().sum(1) / 2
        return Played(scores.numpy(), inside.numpy())


@dataclass(frozen=True)
class Watched(HopPlan):
    """Noisy hops that a reader sees, each with what it was computed from."""

    releases: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    def total(self, h: Tensor, edge_index: Tensor, noise: NoiseKey, *purpose: object) -> Tensor:
        released = super().total(h, edge_index, noise, *purpose)
        self.releases.append((h, released))
        return released


def pairs_of(party: Party, source: np.random.Generator) -> Ints:
    """Pairs of nodes of one graph, each node in one at most, in random order, `[2, pairs]`."""
    batch = party.graph.batch
    graph = np.zeros(party.nodes, np.int64) if batch is None else batch.cpu().numpy()
    order = source.permutation(party.nodes)
    order = order[np.argsort(graph[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(graph[order], graph[order])
    second = np.flatnonzero(rank % 2)
    return source.permutation(np.stack([order[second - 1], order[second]]), axis=1)
