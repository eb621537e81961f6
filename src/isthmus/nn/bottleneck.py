"""The information bottleneck: features that keep what predicts the label and little else about the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.nn.encoders import Propagate
from isthmus.nn.products import normalised_edges


class Bottleneck(nn.Module):
    """p(z | x, N) of (18): h = W2 relu(W1 x), propagated; its halves give the mean and, by softplus, the deviation.

    `forward` returns mean and standard deviation of every node, each `[nodes, features]`.
    """

    first_layer = "first.weight"

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width, bias=False)
        self.second = nn.Linear(width, 2 * features, bias=False)
        self.hop = Propagate(normalised_edges)

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, deviation = self.hop(self.second(self.first(x).relu()), edge_index, edge_weight).chunk(2, dim=1)
        return mean, F.softplus(deviation)


def divergence(mean: Tensor, deviation: Tensor, sizes: Sequence[int]) -> Tensor:
    """KL(N(mean, deviation^2) || N(0, 1)) of (16), summed over features, mean over each party's nodes, `[parties]`.

    >>> divergence(torch.zeros(2, 3), torch.ones(2, 3), (2,)).tolist()
    [0.0]
    """
    tiny = torch.finfo(deviation.dtype).tiny  # softplus may underflow to 0
    of_node = 0.5 * (mean.square() + deviation.square() - 1 - 2 * deviation.clamp(min=tiny).log()).sum(1)
    return rows.mean_per_party(of_node, sizes)
