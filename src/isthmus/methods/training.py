"""Local training: what parties do between two words of the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from isthmus.data.party import Block, Cohort
from isthmus.nn.per_party import Leaf
from isthmus.options import Options
from isthmus.tasks.base import Step

if TYPE_CHECKING:
    from isthmus.federation.site import Site

Loss: TypeAlias = Callable[[Step], Tensor]
Pull: TypeAlias = Callable[[Sequence[Leaf]], Sequence[Tensor]]
"""What is added to the gradients of the leaves before each step: a proximal term, a control variate."""


Read: TypeAlias = Callable[[Tensor, int, int], tuple[Block, Tensor | None]]
"""Given a step's items, the epoch and the step's number in it: a block, and at which rows of the output items stand;
none where the loss takes all that the model gives."""


class LocalTraining(Options):
    """How a party trains on its own data, from a fresh optimiser each time."""

    epochs: int = Field(5, ge=1)
    """Passes over the training items per round."""
    batch_size: int = Field(0, ge=0)
    """Training items per step; 0 takes all at once. Batches of nodes, and of pairs, are read in their whole graph."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    """The optimiser. Fresh in every round, Adam with decay moves weights that get no gradient a whole lr a step."""
    lr: float = Field(0.01, gt=0)
    """Learning rate."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay: part of the gradient for Adam and SGD, apart from it for AdamW."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of SGD."""
    clip: float = Field(0.0, ge=0)
    """Largest norm of a party's gradient; 0 does not clip."""

    def fit(
        self,
        site: Site,
        loss: Loss,
        *,
        pull: Pull | None = None,
        alike: bool = True,
        read: Read | None = None,
        only: Collection[str] | None = None,
        embed: bool = False,
    ) -> Tensor:
        """Train the site's model for the parties asked now, each on its own items as if it were alone.

        The loss is a mean per party and then a sum over parties, so that one backward pass gives every party its own
        gradient; a step moves only the parties that have items in it.

        Arguments:
            loss: of a step, `[parties]`.
            pull: given the leaves, what to add to their gradients.
            alike: `pull` moves weights that a party's data never touch in the same way at all parties.
            read: what the model reads in a step, where that is not the step's items alone.
            only: names of the weights to train; None trains all.
            embed: give the loss the items' embeddings too, as `Step.embedding`.

        Returns:
            steps that each party took, `[parties]`.
        """
        cohort, model = site.cohort, site.model
        items = cohort.counts("train")
        trains = (items > 0).tolist()
        if not any(trains):
            return torch.zeros(len(cohort), dtype=torch.long)
        touched = self.batch_size == 0 and self.clip == 0 and alike and read is None
        # nodes that no path joins to a training node change nothing: most of a graph that was cut at random
        near = self.batch_size == 0 and model.keeps_to_components
        # without batches every step reads the same
        whole = None if self.batch_size or read else _read(cohort, next(self._batches(site, 0)), trains, near)
        leaves = model.start_training(
            whole[0] if whole and touched else cohort.block, trains, touched=touched, only=only
        )
        optimizer = PartyOptimizer(self, leaves)
        steps = torch.zeros(len(cohort), dtype=torch.long)
        for epoch in range(self.epochs):
            for at, chosen in enumerate(self._batches(site, epoch)):
                sizes = tuple(torch.bincount(cohort.party[chosen], minlength=len(cohort)).tolist())
                active = [size > 0 for size in sizes]
                block, at_rows = read(chosen, epoch, at) if read else whole or _read(cohort, chosen, active, near)
                result = model(block, site.generators("dropout", epoch, at), embed=embed)
                output, embedding = result if embed else (result, None)
                if at_rows is not None:
                    output, embedding = output[at_rows], None if embedding is None else embedding[at_rows]
                losses = loss(Step(output, cohort.y[chosen], sizes, chosen, embedding))
                losses.sum().backward()
                _add(leaves, pull(leaves) if pull else ())
                if self.clip:
                    _clip(leaves, self.clip)
                optimizer.step(active)
                steps += torch.tensor(active, dtype=torch.long)
        model.stop_training()
        return steps

    def _batches(self, site: Site, epoch: int) -> Iterator[Tensor]:
        """Positions of the items of each step; a party has its own order and as many steps as its items give."""
        mask = site.cohort.masks["train"]
        items = mask.nonzero().squeeze(1)
        if self.batch_size == 0:
            yield items
            return
        parts = items.split(site.cohort.counts("train").tolist())
        sources = site.generators("order", epoch)
        orders = [
            part[torch.randperm(part.numel(), generator=source).to(part.device)]
            for part, source in zip(parts, sources, strict=True)
        ]
        batches = [order.split(self.batch_size) if order.numel() else () for order in orders]
        for at in range(max(len(each) for each in batches)):
            yield torch.cat([each[at].sort().values for each in batches if at < len(each)])


def _read(cohort: Cohort, chosen: Tensor, active: Sequence[bool], near: bool) -> tuple[Block, Tensor]:
    """What the model reads in a step on these items, and at which rows of its output they stand."""
    if cohort.level == "graph":
        return cohort.graphs_of(chosen), torch.arange(chosen.numel(), device=chosen.device)
    return cohort.block_of(active, near_training=near), cohort.rows_of(chosen, active, near_training=near)


class PartyOptimizer:
    """torch's own optimisers on every party's slice: a mask and a step counter per party.

    A party that has no batch in a step does not move, nor do its moments: torch's functional optimisers take a list
    of tensors with a step counter each, so every slice is one.
    """

    def __init__(self, options: LocalTraining, leaves: Sequence[Leaf]) -> None:
        self.options = options
        self.leaves = leaves
        self.moments: list[tuple[Tensor, Tensor]] = []
        self.counters: list[list[Tensor]] = []
        for leaf in leaves:
            two = options.optimizer != "sgd"
            first = torch.zeros_like(leaf.tensor) if two or options.momentum else leaf.tensor.new_empty(0)
            self.moments.append((first, torch.zeros_like(leaf.tensor) if two else first))
            self.counters.append(list(torch.zeros(len(leaf.sizes), device=leaf.tensor.device).unbind()))
        self.alike = True

    @torch.no_grad()
    def step(self, active: Sequence[bool]) -> None:
        """One step of the active parties, from the gradients of the leaves, which are let go."""
        tensors: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        parting, self.alike = self.alike and not all(active), self.alike and all(active)
        for leaf, (first, second), counters in zip(self.leaves, self.moments, self.counters, strict=True):
            grad = leaf.tensor.grad if leaf.tensor.grad is not None else torch.zeros_like(leaf.tensor)
            moving = [False, True] if leaf.everyone else list(active)
            if self.alike and not leaf.everyone:  # all slices alike: one tensor, one counter
                tensors.append((leaf.tensor, grad, first, second, counters[0]))
                continue
            slices = zip(*(leaf.parts(each) for each in (leaf.tensor, grad)), strict=True)
            seconds = leaf.parts(second) if second.numel() else [second] * len(leaf.sizes)
            firsts = leaf.parts(first) if first.numel() else [first] * len(leaf.sizes)
            if parting and not leaf.everyone:  # they moved as one before
                for counter in counters[1:]:
                    counter.copy_(counters[0])
            for on, (value, slope), m, v, counter in zip(moving, slices, firsts, seconds, counters, strict=True):
                if on and value.numel():
                    tensors.append((value, slope, m, v, counter))
        _STEPS[self.options.optimizer](self.options, *map(list, zip(*tensors, strict=True)))
        for leaf in self.leaves:
            leaf.tensor.grad = None


def _adam(o: LocalTraining, values: Any, grads: Any, first: Any, second: Any, counters: Any) -> None:
    fused = values[0].device.type in ("cpu", "cuda")
    function: Any = adamw if o.optimizer == "adamw" else adam
    function(
        values, grads, first, second, [], counters, foreach=False, capturable=False, differentiable=False, fused=fused,
        grad_scale=None, found_inf=None, has_complex=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=o.lr,
        weight_decay=o.weight_decay, eps=1e-8, maximize=False,
    )  # fmt: skip


def _sgd(o: LocalTraining, values: Any, grads: Any, first: Any, second: Any, counters: Any) -> None:
    buffers: list[Tensor | None] = list(first) if o.momentum else [None] * len(values)
    sgd(
        values, grads, buffers, foreach=False, fused=False, weight_decay=o.weight_decay, momentum=o.momentum, lr=o.lr,
        dampening=0.0, nesterov=False, maximize=False,
    )  # fmt: skip


_STEPS = {"adam": _adam, "adamw": _adam, "sgd": _sgd}


@torch.no_grad()
def moved(
    options: LocalTraining,
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


def _add(leaves: Sequence[Leaf], pulls: Sequence[Tensor]) -> None:
    for leaf, pull in zip(leaves, pulls, strict=bool(pulls)):
        if leaf.tensor.grad is None:
            leaf.tensor.grad = pull.detach().clone()
        else:
            leaf.tensor.grad += pull.detach()


def _clip(leaves: Sequence[Leaf], limit: float) -> None:
    """Scale every party's gradient to a norm of at most `limit`, as torch's `clip_grad_norm_` does for one model."""
    grads = [(leaf, leaf.tensor.grad) for leaf in leaves if leaf.tensor.grad is not None]
    squares = torch.stack(
        [torch.stack([part.square().sum() for part in leaf.parts(grad)]) for leaf, grad in grads]
    ).sum(0)
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for leaf, grad in grads:
        for part, factor in zip(leaf.parts(grad), scale, strict=True):
            part.mul_(factor)
