"""Games about a party's graph: canaries' edges are there by a coin, and a reader sees every noisy hop.

A canary edge joins two nodes in both directions, each node in one at most. A canary node has edges to as many others as
the study promises, its leaves, each of one canary; without them it is empty. The reader knows features, all other edges
and what a hop was computed from, which the hop before released. For each edge of a canary from j to i, row i of a hop
has h_j more. The score is the logarithm of the odds that Gaussian noise gives, up to a factor. Sums and noise are those
of a run (`federation.private`, `privacy.hops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.audit.lower_bound import GameOfParties, Played
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.federation.private import with_sums
from isthmus.nn.aggregation import simple_edges, sum_over_neighbours
from isthmus.privacy.accounting import PrivacyCost
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.options import NodePrivacy
from isthmus.privacy.random_bits import NoiseKey


class CanaryEdges(GameOfParties):
    """Pairs of nodes of the parties, as many as one run needs.

    Arguments:
        plan: the noise of the hops.
        claimed: what the account says of a whole run.
    """

    unit = "edge"

    def __init__(self, plan: HopPlan, claimed: PrivacyCost, parties: Sequence[Party], module: nn.Module) -> None:
        self.plan, self.claimed, self.parties, self.module = plan, claimed, parties, module

    def drawn(self, party: Party, canaries: int, source: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The edges of up to so many canaries, `[2, edges]`, and the canary of each."""
        pairs = torch.from_numpy(pairs_of(party, source)[:, :canaries])
        return torch.cat([pairs, pairs.flip(0)], dim=1), torch.arange(pairs.size(1)).repeat(2)

    def known(self, edges: Tensor, own: Tensor, nodes: int) -> Tensor:
        """The party's edges, without those that a canary has."""
        partner = torch.full((nodes,), -1)
        partner[own[0]] = own[1]
        return edges[:, partner[edges[0]] != edges[1]]

    def play_at(self, party: Party, canaries: int, seed: int, source: np.random.Generator) -> Played:
        own, canary = self.drawn(party, canaries, source)
        inside = torch.from_numpy(source.random(int(canary.max()) + 1 if canary.numel() else 0) < 0.5)
        edges = simple_edges(party.graph.edge_index, party.nodes)
        known = self.known(edges, own, party.nodes)
        held = party.with_edges(torch.cat([known, own[:, inside[canary]]], dim=1))
        plan = Watched(**vars(self.plan))
        with_sums(plan, [held], self.module, NoiseKey(seed))
        scores = torch.zeros(inside.numel(), dtype=torch.float64)
        for h, released in plan.releases:
            rest, more = released - sum_over_neighbours(h, known), h[own[0]]
            scores.index_add_(0, canary, (rest[own[1]] * more).sum(1) - more.square().sum(1) / 2)
        return Played(scores.numpy(), inside.numpy())


class CanaryNodes(CanaryEdges):
    """Nodes of the parties with edges to as many others as the study promises, as many as one run needs.

    Of what training makes of these nodes the reader uses nothing.
    """

    unit = "node"

    def drawn(self, party: Party, canaries: int, source: np.random.Generator) -> tuple[Tensor, Tensor]:
        assert isinstance(self.plan.options, NodePrivacy)
        leaves = min(self.plan.options.neighbours, party.nodes - 1)
        count = min(canaries, party.nodes // (leaves + 1))
        order = torch.from_numpy(source.permutation(party.nodes))
        canary = torch.arange(count).repeat_interleave(leaves)
        return torch.stack([order[:count][canary], order[count : count * (leaves + 1)]]), canary

    def known(self, edges: Tensor, own: Tensor, nodes: int) -> Tensor:
        return edges[:, ~torch.isin(edges[0], own[0])]


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
