"""Optimisers: their options, and their steps for many parties side by side or at a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from isthmus.nn.per_party import Leaf
from isthmus.options import Options


class Optimizer(Options):
    """An optimiser and its options."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    """The optimiser. It is re-created in every round; with Adam and weight decay, weights without a gradient then move
    by a full learning rate per step. AdamW avoids this."""
    lr: float = Field(0.01, gt=0)
    """Learning rate."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay: part of the gradient for Adam and SGD, separate from it for AdamW."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of SGD."""


class PartyOptimizer:
    """torch's own optimisers on every party's slice: a mask and a step counter per party.

    A party that has no batch in a step does not move, nor do its moments: torch's functional optimisers take a list
    of tensors with a step counter each, so every slice is one.
    """

    def __init__(self, options: Optimizer, leaves: Sequence[Leaf]) -> None:
        self.options = options
        self.leaves = leaves
        self.moments: list[tuple[Tensor, Tensor]] = []
        self.counters: list[list[Tensor]] = []
        for leaf in leaves:
            two = options.optimizer != "sgd"
            first = torch.zeros_like(leaf.tensor) if two or options.momentum else leaf.tensor.new_empty(0)
            self.moments.append((first, torch.zeros_like(leaf.tensor) if two else first))
            self.counters.append(list(torch.zeros(len(leaf.sizes), device=leaf.tensor.device).unbind()))
        self.uniform = True

    @torch.no_grad()
    def step(self, active: Sequence[bool]) -> None:
        """One step of the active parties, from the gradients of the leaves, which are let go."""
        tensors: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        parting, self.uniform = self.uniform and not all(active), self.uniform and all(active)
        for leaf, (first, second), counters in zip(self.leaves, self.moments, self.counters, strict=True):
            grad = leaf.tensor.grad if leaf.tensor.grad is not None else torch.zeros_like(leaf.tensor)
            moving = [False, True] if leaf.shared else list(active)
            if self.uniform and not leaf.shared:  # all slices move together: one tensor, one counter
                tensors.append((leaf.tensor, grad, first, second, counters[0]))
                continue
            slices = zip(*(leaf.parts(each) for each in (leaf.tensor, grad)), strict=True)
            seconds = leaf.parts(second) if second.numel() else [second] * len(leaf.sizes)
            firsts = leaf.parts(first) if first.numel() else [first] * len(leaf.sizes)
            if parting and not leaf.shared:  # they moved as one before
                for counter in counters[1:]:
                    counter.copy_(counters[0])
            for on, (value, slope), m, v, counter in zip(moving, slices, firsts, seconds, counters, strict=True):
                if on and value.numel():
                    tensors.append((value, slope, m, v, counter))
        _STEPS[self.options.optimizer](self.options, *map(list, zip(*tensors, strict=True)))
        for leaf in self.leaves:
            leaf.tensor.grad = None


def _adam(o: Optimizer, values: Any, grads: Any, first: Any, second: Any, counters: Any) -> None:
    fused = values[0].device.type in ("cpu", "cuda")
    function: Any = adamw if o.optimizer == "adamw" else adam
    function(
        values, grads, first, second, [], counters, foreach=False, capturable=False, differentiable=False, fused=fused,
        grad_scale=None, found_inf=None, has_complex=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=o.lr,
        weight_decay=o.weight_decay, eps=1e-8, maximize=False,
    )  # fmt: skip


def _sgd(o: Optimizer, values: Any, grads: Any, first: Any, second: Any, counters: Any) -> None:
    buffers: list[Tensor | None] = list(first) if o.momentum else [None] * len(values)
    sgd(
        values, grads, buffers, foreach=False, fused=False, weight_decay=o.weight_decay, momentum=o.momentum, lr=o.lr,
        dampening=0.0, nesterov=False, maximize=False,
    )  # fmt: skip


_STEPS = {"adam": _adam, "adamw": _adam, "sgd": _sgd}


@torch.no_grad()
def server_step(
    options: Optimizer,
    step: int,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """One step of the optimiser on a server: weights and moments after it; what went in stays as it was.

    Arguments:
        step: how many steps this is, from 1.
        first, second: moments, zeros before the first step.
    """
    names = list(gradients)
    values, m, v = ([each[name].clone() for name in names] for each in (weights, first, second))
    counters = [torch.tensor(float(step - 1)) for _ in names]
    _STEPS[options.optimizer](options, values, [gradients[name] for name in names], m, v, counters)
    stepped = dict(zip(names, values, strict=True))
    return {**weights, **stepped}, dict(zip(names, m, strict=True)), dict(zip(names, v, strict=True))
