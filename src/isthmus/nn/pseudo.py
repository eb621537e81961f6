"""Graphs that a network makes from noise."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NOISE = 32
"""Width of the noise."""


class PseudoNodes(nn.Module):
    """Features of nodes with given classes, from noise: MLP([z, embedding of c]), tanh between its layers.

    >>> PseudoNodes(features=7, classes=3)(torch.zeros(4, NOISE), torch.tensor([0, 1, 2, 2])).shape
    torch.Size([4, 7])
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, classes)
        widths = itertools.pairwise([classes + NOISE, 64, 128, 256])
        self.layers = nn.Sequential(*(layer for i, o in widths for layer in (nn.Linear(i, o), nn.Tanh())))
        self.features = nn.Linear(256, features)

    def forward(self, z: Tensor, c: Tensor) -> Tensor:
        x: Tensor = self.features(self.layers(torch.cat([self.embed(c), z], dim=1)))
        return x


def join_similar(x: Tensor, count: int) -> Tensor:
    """Edges in both directions between each node and the `count` nodes of largest cosine, itself among them.

    >>> join_similar(torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]), 2).t().tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 1], [2, 2]]
    """
    unit = F.normalize(x.detach(), dim=1)
    near = (unit @ unit.T).topk(min(count, len(x)), dim=1).indices
    joined = torch.eye(len(x), dtype=torch.bool).scatter(1, near, True)
    return (joined | joined.T).nonzero().t().contiguous()


def sameness(z: Tensor, x: Tensor) -> Tensor:
    """exp(-mean_ij ||z_i - z_j||^2 ||x_i - x_j||_1), both divided by their widths: small if different noise gives
    different nodes."""
    apart = (z.unsqueeze(0) - z.unsqueeze(1)).square().mean(2)
    return (-(apart * torch.cdist(x, x, p=1) / x.size(1)).mean()).exp()
