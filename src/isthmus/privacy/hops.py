"""Sums over neighbours with noise: aggregation perturbation (GAP, Sajadmanesh et al. 2023), for secret edges or nodes.

Sum:  x_j <- trunc(h_j L)                      |h_j| <= 1, so |x_j| <= L in whole numbers
      s_i <- sum_{j -> i} x_j + N_Z(0, (z D)^2),  D = sqrt(k) L

An edge between two nodes, in both directions, adds x_j to one row and x_i to another: k = 2. A node adds x_j to the
rows of its neighbours, k at most, whatever x_j is. Its own row may be any: nothing else reads it but the next hop, as
x_j, and training, which hides the whole item (`privacy.items`).

A hop reads of the graph only what the hop before released, and the edges. So a hop costs as much as Gaussian noise with
the multiplier z, and all that is computed from the hops costs nothing more. `privacy.updates` says how far the loss of
discrete noise is from that of continuous noise.

Parties whose edges cross between them make one sum together: each adds its part in whole numbers, with a share of the
noise. Each of n parties knows its own share, so a share has the variance (z D)^2 / (n - 1), and all must be in the sum.
Such shares are so wide that their sum is as one discrete Gaussian (`privacy.updates`).

Dropping edges of nodes with more than k neighbours would not do: without one of them a neighbour of it would keep
another edge in its place, and a node may have any number of such neighbours. So k is a promise, and data that break it
are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.privacy.account import Account, GaussianNoise, gaussian_multiplier
from isthmus.privacy.items import STEPS, WITHIN
from isthmus.privacy.options import EdgePrivacy, NodePrivacy
from isthmus.privacy.random_bits import NoiseKey
from isthmus.privacy.sampling import discrete_gaussian
from isthmus.privacy.updates import FAR, LEAST, TAIL, noise_on_grid


@dataclass(frozen=True)
class HopPlan:
    """The noise of the sums over neighbours of a run.

    Arguments:
        options: what the study asks for.
        hops: that each party releases.
        multiplier: the noise of a hop, as a multiple of the largest change (z).
    """

    options: EdgePrivacy | NodePrivacy
    hops: int
    multiplier: float

    @classmethod
    def of(cls, options: EdgePrivacy | NodePrivacy, hops: int) -> HopPlan:
        """The plan with the least noise that the sums' share of the budget allows.

        >>> round(HopPlan.of(EdgePrivacy(epsilon=8.0), 2).multiplier, 2)
        0.85
        """
        whole = gaussian_multiplier(options.epsilon, options.delta, hops, FAR / STEPS, TAIL)
        return cls(options, hops, whole / math.sqrt(options.share) if isinstance(options, NodePrivacy) else whole)

    @property
    def noise(self) -> GaussianNoise:
        """What a hop costs."""
        return noise_on_grid(self.multiplier, STEPS)

    def account(self) -> Account:
        """The account of a party that has released its hops."""
        account = Account()
        account.add(self.options.name, self.noise, self.hops, "sums over neighbours")
        return account

    def check_neighbours(self, edges: Tensor, party: str) -> None:
        """Refuse nodes of a party that have more neighbours than the noise is sized for."""
        most = getattr(self.options, "neighbours", edges.size(1))
        if bool((torch.bincount(edges[0]) > most).any()):
            raise IsthmusError(
                f"privacy: party '{party}' has a node with edges to more than {most} others: set "
                "privacy.neighbours to the most that a node can have"
            )

    def total(self, h: Tensor, edge_index: Tensor, noise: NoiseKey, *purpose: object) -> Tensor:
        """The noisy sum over each node's neighbours.

        Arguments:
            h: rows whose length is 1 at most, in double precision.
            edge_index: each edge once in each direction, no loops; where a node is the unit, k from each at most.
            noise: what the party draws from.
        """
        return self._noisy(h, edge_index, len(h), 1, noise, purpose).double() / STEPS

    def part(self, h: Tensor, edges: Tensor, rows: int, parties: int, noise: NoiseKey, *purpose: object) -> Tensor:
        """A party's part of the sums over neighbours at several parties, with its share of the noise, in steps.

        Whole numbers add up exactly. If each part were rounded, their sum would give away a little of every one.

        Arguments:
            h: of own nodes, as in `total`.
            edges: from own nodes to rows of the sum, as in `total`.
            rows: of the sum.
            parties: that the sum is over.
        """
        if parties < 2:
            raise IsthmusError("refused: in a sum over one party there is no noise that it does not know")
        if self._variance / (parties - 1) < LEAST**2:
            raise IsthmusError(
                f"privacy: epsilon = {self.options.epsilon:g} leaves so little noise that the grid shows: lower it"
            )
        return self._noisy(h, edges, rows, parties - 1, noise, (*purpose, parties))

    @property
    def _variance(self) -> Fraction:
        """That of all noise, in steps."""
        return self.options.changes * (Fraction(self.multiplier) * STEPS) ** 2

    def _noisy(
        self, h: Tensor, edges: Tensor, rows: int, shares: int, noise: NoiseKey, purpose: tuple[object, ...]
    ) -> Tensor:
        """Sums in steps, with a share of the noise of so many."""
        whole = (h * (STEPS * WITHIN)).trunc().long()
        sums = whole.new_zeros(rows, h.size(1)).index_add_(0, edges[1], whole[edges[0]]).numpy()
        if not noise.repeatable:  # whatever was summed before, no other sum gets this noise
            purpose = *purpose, repr(self), sums.tobytes().hex()
        drawn = discrete_gaussian(self._variance / shares, sums.size, noise.bits("hops", *purpose)).reshape(sums.shape)
        return torch.from_numpy(sums + drawn)
