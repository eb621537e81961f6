"""Optimisers: their options, and their steps for many parties side by side or at a server."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from isthmus.nn.per_party import Leaf
from isthmus.options import OnlyWith, Options

LANES = 64
"""A multiple of the numbers that a processor's instruction takes at once. torch rounds those that are left over in
another way, so a party's weights would depend on which others it is computed with."""


class Optimizer(Options):
    """An optimiser and its options."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    """The optimiser. It is re-created in every round unless parties keep it; with Adam and weight decay, weights
    without a gradient then move by a full learning rate per step. AdamW avoids this."""
    lr: float = Field(0.01, gt=0)
    """Learning rate."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay: part of the gradient for Adam and SGD, separate from it for AdamW."""
    momentum: Annotated[float, OnlyWith("optimizer", "sgd")] = Field(0.0, ge=0, lt=1)
    """Momentum of SGD."""

    @property
    def rate(self) -> float:
        """The learning rate that it trains with."""
        return self.lr


class PartyOptimizer:
    """torch's own optimisers on every party's slice: a party that has no batch in a step does not move.

    Neighbouring parties that move and have taken equally many steps are one tensor; sites sort parties by size, so
    these are few, whatever the number of parties.
    """

    def __init__(self, options: Optimizer, leaves: Sequence[Leaf]) -> None:
        self.options = options
        self.leaves = leaves
        self.moments: list[tuple[Tensor, Tensor]] = []
        self.ends = [[0, *itertools.accumulate(leaf.sizes)] for leaf in leaves]
        for leaf in leaves:
            two = options.optimizer != "sgd"
            none = leaf.tensor.new_empty(0)
            first = torch.zeros_like(leaf.tensor) if two or options.momentum else none
            self.moments.append((first, torch.zeros_like(leaf.tensor) if two else none))
        self.taken: dict[int, int] = {}
        self.steps = 0

    @torch.no_grad()
    def step(self, active: Sequence[bool]) -> None:
        """One step of the active parties, from the gradients of the leaves, which are let go."""
        tensors: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        copied: list[tuple[Tensor, Tensor]] = []
        runs = self._runs(active)
        for leaf, moments, ends in zip(self.leaves, self.moments, self.ends, strict=True):
            grad = leaf.tensor.grad if leaf.tensor.grad is not None else torch.zeros_like(leaf.tensor)
            # the second part of a shared leaf moves in every step
            for first, last, steps in [(1, 2, self.steps)] if leaf.shared else runs:
                rows = slice(ends[first], ends[last])
                value, slope, m, v = (each[rows] for each in (leaf.tensor, grad, *moments))
                counter = torch.tensor(float(steps), device=value.device)
                if value.numel() % LANES:
                    filled = [_filled(each) for each in (value, slope, m, v)]
                    copied += zip((value, m, v), (filled[0], *filled[2:]), strict=True)
                    value, slope, m, v = filled
                if value.numel():
                    tensors.append((value, slope, m, v, counter))
        if tensors:
            _STEPS[self.options.optimizer](self.options, *map(list, zip(*tensors, strict=True)))
        for own, new in copied:
            own.copy_(new[: own.numel()].view_as(own))
        self.steps += 1
        for leaf in self.leaves:
            leaf.tensor.grad = None

    def state(self) -> dict[str, Any]:
        """What `restore` goes on from, `[parties, ...]`: the steps taken, and the moments of every weight.

        It needs leaves in which each party has its whole slice of a weight.
        """
        found: dict[str, Any] = {"steps": torch.tensor([self.taken.get(at, 0) for at in range(self.parties)])}
        for leaf, moments in zip(self.leaves, self.moments, strict=True):
            used = (each for each in moments if each.numel())
            found |= {f"{leaf.name}@{at}": _by_party(leaf, each) for at, each in enumerate(used)}
        return found

    @property
    def parties(self) -> int:
        """How many parties there are."""
        return len(self.leaves[0].sizes)

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that stacks those of the parties."""
        self.taken = dict(enumerate(state["steps"].tolist()))
        for leaf, moments in zip(self.leaves, self.moments, strict=True):
            for at, each in enumerate(own for own in moments if own.numel()):
                _by_party(leaf, each).copy_(state[f"{leaf.name}@{at}"])

    def _runs(self, active: Sequence[bool]) -> list[tuple[int, int, int]]:
        """Neighbouring parties that move now: first, first behind, and the steps that they have taken before."""
        moving = [self.taken.get(at, 0) if on else -1 for at, on in enumerate(active)]
        self.taken |= {at: steps + 1 for at, steps in enumerate(moving) if steps >= 0}
        runs, first = [], 0
        for steps, run in itertools.groupby(moving):
            last = first + len(list(run))
            if steps >= 0:
                runs.append((first, last, steps))
            first = last
        return runs


def _by_party(leaf: Leaf, values: Tensor) -> Tensor:
    """Values in a leaf's shape as a view with a slice per party in the shape of the weight."""
    if leaf.sizes[0] == 1:
        return values
    return values.view(len(leaf.sizes), leaf.sizes[0], -1).transpose(1, 2)  # a first layer for sparse features


def _filled(values: Tensor) -> Tensor:
    """The values one after another, and zeros up to a multiple of `LANES`."""
    return torch.cat([values.flatten(), values.new_zeros(-values.numel() % LANES)])


def _adam(o: Optimizer, values: Any, grads: Any, first: Any, second: Any, counters: Any) -> None:
    fused = values[0].device.type in ("cpu", "cuda")
    function: Any = adamw if o.optimizer == "adamw" else adam
    function(
        values, grads, first, second, [], counters, foreach=False, capturable=False, differentiable=False, fused=fused,
        grad_scale=None, found_inf=None, has_complex=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=o.rate,
        weight_decay=o.weight_decay, eps=1e-8, maximize=False,
    )  # fmt: skip


def _sgd(o: Optimizer, values: Any, grads: Any, first: Any, second: Any, counters: Any) -> None:
    buffers: list[Tensor | None] = list(first) if o.momentum else [None] * len(values)
    sgd(
        values, grads, buffers, foreach=False, fused=False, weight_decay=o.weight_decay, momentum=o.momentum, lr=o.rate,
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
    counters = [torch.tensor(float(step - 1), device=value.device) for value in values]
    _STEPS[options.optimizer](options, values, [gradients[name] for name in names], m, v, counters)
    stepped = dict(zip(names, values, strict=True))
    return {**weights, **stepped}, dict(zip(names, m, strict=True)), dict(zip(names, v, strict=True))
