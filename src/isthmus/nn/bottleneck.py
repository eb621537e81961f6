"""The information bottleneck: features that tell of the label what they must, and of the node no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.nn.encoders import Hop


class Bottleneck(nn.Module):
    """p(z | x, N) of (18): h = W2 relu(W1 x), summed over neighbours; its halves are mean and, by softplus, deviation.

    Returns:
        mean and deviation of every node, each `[nodes, features]`.
    """

    first_layer = "first.weight"

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width, bias=False)
        self.second = nn.Linear(width, 2 * features, bias=False)
        self.hop = Hop()

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, spread = self.hop(self.second(self.first(x).relu()), edge_index, edge_weight).chunk(2, dim=1)
        return mean, F.softplus(spread)


def divergence(mean: Tensor, spread: Tensor, sizes: Sequence[int]) -> Tensor:
    """KL(N(mean, spread^2) || N(0, 1)), (16), summed over features, averaged over the nodes of each party, `[parties]`.

    >>> divergence(torch.zeros(2, 3), torch.ones(2, 3), (2,)).tolist()
    [0.0]
    """
    tiny = torch.finfo(spread.dtype).tiny  # softplus of a very small number is 0
    each = 0.5 * (mean.square() + spread.square() - 1 - 2 * spread.clamp(min=tiny).log()).sum(1)
    return rows.mean_per_party(each, sizes)
