"""Local training: what parties do between two requests of the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from isthmus.data.party import Block, Cohort
from isthmus.federation.site import Site
from isthmus.methods.optimizer import Optimizer, PartyOptimizer
from isthmus.nn.per_party import Leaf
from isthmus.tasks.base import Step

Loss: TypeAlias = Callable[[Step], Tensor]
Pull: TypeAlias = Callable[[Sequence[Leaf]], Sequence[Tensor]]
"""What is added to the gradients of the leaves before each step: a proximal term, a control variate."""


Read: TypeAlias = Callable[[Tensor, int, int], tuple[Block, Tensor | None]]
"""Given a step's items, the epoch and the number of the step in it: the block to read, and the rows of the output that
belong to the items; None where the loss takes all outputs."""


class LocalTraining(Optimizer):
    """How a party trains on its own data; the optimiser is re-created every time."""

    epochs: int = Field(5, ge=1)
    """Passes over the training items per round."""
    batch_size: int = Field(0, ge=0)
    """Training items per step; 0 takes all at once. Batches of nodes or pairs are computed on the full graph."""
    clip: float = Field(0.0, ge=0)
    """Largest norm of a party's gradient; 0 does not clip."""

    def fit(
        self,
        site: Site,
        loss: Loss,
        *,
        pull: Pull | None = None,
        uniform_pull: bool = True,
        read: Read | None = None,
        only: Collection[str] | None = None,
        embed: bool = False,
        first_epoch: int = 0,
    ) -> Tensor:
        """Train the site's model for the parties asked now, each on its own items as if it were alone.

        The loss is a mean per party and then a sum over parties, so that one backward pass gives every party its own
        gradient; a step moves only the parties that have items in it.

        Arguments:
            loss: of a step, `[parties]`.
            pull: given the leaves, what to add to their gradients.
            uniform_pull: `pull` moves the weights that a party's data never reach equally at all parties.
            read: what the model reads in a step, where that is more than the step's items.
            only: names of the weights to train; None trains all.
            embed: give the loss the items' embeddings too, as `Step.embedding`.
            first_epoch: number of the first epoch; a second training in one action needs other numbers, hence draws.

        Returns:
            steps that each party took, `[parties]`.
        """
        cohort, model = site.cohort, site.model
        items = cohort.counts("train")
        trains = (items > 0).tolist()
        if not any(trains):
            return torch.zeros(len(cohort), dtype=torch.long)
        touched = self.batch_size == 0 and self.clip == 0 and uniform_pull and read is None
        # nodes that no path joins to a training node change nothing: most of a graph that was cut at random
        near = self.batch_size == 0 and model.keeps_to_components
        # without batches every step reads the same
        whole = None if self.batch_size or read else _read(cohort, next(self._batches(site, 0)), trains, near)
        leaves = model.start_training(
            whole[0] if whole and touched else cohort.block, trains, touched_rows=touched, only=only
        )
        optimizer = PartyOptimizer(self, leaves)
        steps = torch.zeros(len(cohort), dtype=torch.long)
        for epoch in range(first_epoch, first_epoch + self.epochs):
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
        site.after_training()
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
