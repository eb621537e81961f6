"""Linear layers whose weights are multiplied by a mask of real numbers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from isthmus.nn.products import by_input
from isthmus.nn.stacks import FirstLayer
from isthmus.nn.twins import Bank, linear, twin
from isthmus.nn.weights import Weights

MASK = ".mask"
"""End of the names of masks."""


class _Masked(nn.Module):
    """x (W * mask)^T + b, the product of W and the mask element by element; the bias has no mask.

    Attributes:
        mask: as large as the weight; 1 before training.
        threshold: in evaluation, entries of the mask nearer to 0 than this count as 0.
    """

    mask: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self
        return F.linear(x, layer.weight * used(layer, layer.mask), layer.bias)

    def reset_parameters(self) -> None:
        super().reset_parameters()  # type: ignore[misc]
        nn.init.ones_(self.mask)


class MaskedLinear(_Masked, nn.Linear):
    """torch's linear layer with a mask."""


class MaskedConvLinear(_Masked, gnn.Linear):  # type: ignore[misc]
    """The linear layer inside PyG's convolutions with a mask."""


_KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: MaskedLinear, gnn.Linear: MaskedConvLinear}


def masked(module: nn.Module, threshold: float = 0.0) -> nn.Module:
    """A copy of a module whose linear layers, also those inside convolutions, have masks.

    >>> sorted(name for name, _ in masked(nn.Linear(2, 3)).named_parameters())
    ['bias', 'mask', 'weight']
    """
    module = copy.deepcopy(module)
    layers: list[Any] = [layer for layer in module.modules() if type(layer) in _KINDS]
    for layer in layers:
        layer.__class__ = _KINDS[type(layer)]
        layer.mask = nn.Parameter(torch.ones_like(layer.weight))
        layer.threshold = threshold
    return module


def without_masks(weights: Weights) -> Weights:
    """The weights of a masked model that are no masks."""
    return {name: weight for name, weight in weights.items() if not name.endswith(MASK)}


def used(layer: Any, mask: Tensor) -> Tensor:
    """The mask as a pass uses it: in evaluation without its small entries."""
    return mask if layer.training else mask * (mask.abs() >= layer.threshold)


@twin(MaskedLinear, MaskedConvLinear)
def _masked(layer: Any, bank: Bank, prefix: str, x: Any) -> Tensor:
    weight: Any = bank.weights[f"{prefix}weight"]
    mask = used(layer, bank.weights[f"{prefix}mask"])
    if not isinstance(weight, FirstLayer):
        return linear(bank, prefix, x, weight * mask)
    if weight.columns.touched:  # its rows are fewer than the mask's
        return linear(bank, prefix, x, weight.stack() * mask)
    return linear(bank, prefix, x, replace(weight, party_rows=weight.party_rows * by_input(mask)))
