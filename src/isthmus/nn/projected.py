"""Models whose head also reads embeddings that are smoothed along a learned direction."""

from __future__ import annotations

import copy
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
    s = (h / scale) @ direction
    kernel = (-((s.unsqueeze(1) - s.unsqueeze(0)) ** 2) / bandwidth**2).exp()
    return kernel @ h / kernel.sum(dim=1, keepdim=True)


def widths_of(head: nn.Module) -> tuple[int, int]:
    """How wide a layer's inputs and outputs are."""
    parts = list(head.modules())
    inputs = [getattr(part, "in_channels", getattr(part, "in_features", None)) for part in parts]
    outputs = [getattr(part, "out_channels", getattr(part, "out_features", None)) for part in reversed(parts)]
    found = [next((each for each in widths if isinstance(each, int) and each > 0), 0) for widths in (inputs, outputs)]
    if not all(found):
        raise IsthmusError(f"the model's head {type(head).__name__} does not say how wide it is: use a linear layer")
    return found[0], found[1]
