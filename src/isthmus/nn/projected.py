"""Models whose head also reads embeddings that are smoothed along a learned direction."""

from __future__ import annotations

import copy
import math
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.errors import IsthmusError
from isthmus.nn.draws import rows_per_party
from isthmus.nn.encoders import uses_edge_weights
from isthmus.nn.twins import Bank, twin
from isthmus.nn.weights import body_weights, head_of, no_embedding

DIRECTION = ".direction"
"""End of the name of the learned direction."""

MARGIN = 5.0
"""How many bandwidths away a node counts for nothing: with exp(-25), less than a rounding."""
FEW = 10
"""Nodes per term of the series below which the kernel itself is as quick."""


class Projected(nn.Module):
    """A model of nodes with another head: a linear layer on [h, z], z the embeddings h smoothed by `smoothed`.

    Arguments:
        module: the model; its own head is left out.
        bandwidth: of the smoothing.
    """

    def __init__(self, module: nn.Module, bandwidth: float) -> None:
        super().__init__()
        if not body_weights(module):
            raise no_embedding(module)
        self.body = copy.deepcopy(module)
        at = head_of(module)
        parent, _, name = at.rpartition(".")
        width, outputs = widths_of(module.get_submodule(at))
        setattr(self.body.get_submodule(parent), name, SmoothedHead(width, outputs, bandwidth))
        self.head = f"body.{at}"
        self.supports_edge_weight = uses_edge_weights(module)
        self._takes_weights = "edge_weight" in signature(module.forward).parameters

    @property
    def first_layer(self) -> str | None:
        inner = getattr(self.body, "first_layer", None)
        return None if inner is None else f"body.{inner}"

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        out: Tensor = self.body(x, edge_index, edge_weight) if self._takes_weights else self.body(x, edge_index)
        return out


class SmoothedHead(nn.Module):
    """W [h, z] + b, z = smoothed(h, direction)."""

    def __init__(self, width: int, outputs: int, bandwidth: float) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(width))
        self.linear = nn.Linear(2 * width, outputs)
        self.bandwidth = bandwidth
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.direction)

    def forward(self, h: Tensor, *edges: Any) -> Tensor:
        out: Tensor = self.linear(torch.cat([h, smoothed(h, self.direction, self.bandwidth)], dim=1))
        return out


@twin(SmoothedHead)
def _smoothed_head(layer: Any, bank: Bank, prefix: str, h: Tensor, *edges: Any) -> Tensor:
    sizes = rows_per_party(h.size(0), bank.layouts)
    direction: Tensor = bank.weights[f"{prefix}direction"]
    each = direction.unbind(0) if bank.stacked else [direction] * len(sizes)
    # copies, for the library rounds in another way where a party's numbers begin elsewhere
    parts = [
        smoothed(part.clone(), own, layer.bandwidth)
        for part, own in zip(h.split(sizes), each, strict=True)
        if len(part)
    ]
    return layer.linear(torch.cat([h, torch.cat(parts)], dim=1))


def smoothed(h: Tensor, direction: Tensor, bandwidth: float) -> Tensor:
    """The mean of the embeddings of all nodes, for each node weighted by how near they lie on a line.

    s_i = <h_i, a> / max_j ||h_j||;  z_i = sum_j K_ij h_j / sum_j K_ij,  K_ij = exp(-(s_i - s_j)^2 / bandwidth^2)

    Arguments:
        h: embeddings of one party's nodes, `[nodes, width]`.
        direction: a, `[width]`.

    >>> smoothed(torch.tensor([[2.0], [2.0], [-2.0]]), torch.tensor([9.0]), 1.0).round().tolist()
    [[2.0], [2.0], [-2.0]]
    """
    scale = h.norm(dim=1).max().clamp(min=torch.finfo(h.dtype).tiny)
    s = (h / scale) @ direction / bandwidth
    if not torch.compiler.is_exporting() and h.device.type != "mps":  # a program has one way; mps has no doubles
        period, waves = _period_and_waves(s)
        if len(h) >= FEW * waves:
            return smoothed_by_waves(h, s.double(), period, math.ceil(waves))
    kernel = (-((s.unsqueeze(1) - s.unsqueeze(0)) ** 2)).exp()
    return kernel @ h / kernel.sum(dim=1, keepdim=True)


def smoothed_by_waves(h: Tensor, s: Tensor, period: float, waves: int) -> Tensor:
    """The same means by a Fourier series of the kernel, in time that grows with the nodes and not with their square.

    With r = 2 pi / period,

    K_ij = sum_k c_k cos(k r (s_i - s_j)),  c_k = 2 sqrt(pi) / period exp(-(k r)^2 / 4), half of it for k = 0,

    and cos(a - b) = cos a cos b + sin a sin b, so that no sum runs over pairs. All in double precision: for a node that
    is alone on its part of the line, what all others add must cancel.
    """
    rates = torch.arange(waves, dtype=s.dtype, device=s.device) * (2 * math.pi / period)
    shares = (-(rates**2) / 4).exp() * (2 * math.sqrt(math.pi) / period)
    shares[0] /= 2
    phase = (s - s.detach().mean()).unsqueeze(1) * rates
    basis = torch.cat([phase.cos(), phase.sin()], dim=1)
    shares = torch.cat([shares, shares])
    sums = basis @ (shares.unsqueeze(1) * (basis.T @ h.double()))
    return (sums / (basis @ (shares * basis.sum(dim=0))).unsqueeze(1)).to(h.dtype)


def _period_and_waves(s: Tensor) -> tuple[float, float]:
    """The period of the series and how many terms it has.

    What they leave out is below exp(-MARGIN^2): the kernel between a node and another's repetition one period away, and
    the terms of higher rates.
    """
    ends = s.detach().aminmax()
    period = float(ends.max - ends.min) + MARGIN
    return period, 1 + MARGIN / math.pi * period


def widths_of(head: nn.Module) -> tuple[int, int]:
    """How wide a layer's inputs and outputs are."""
    parts = list(head.modules())
    inputs = [getattr(part, "in_channels", getattr(part, "in_features", None)) for part in parts]
    outputs = [getattr(part, "out_channels", getattr(part, "out_features", None)) for part in reversed(parts)]
    found = [next((each for each in widths if isinstance(each, int) and each > 0), 0) for widths in (inputs, outputs)]
    if not all(found):
        raise IsthmusError(f"the model's head {type(head).__name__} does not say how wide it is: use a linear layer")
    return found[0], found[1]
