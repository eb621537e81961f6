"""Local training: what parties do between two requests of the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Annotated, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from isthmus.data import rows
from isthmus.data.cohort import Block, Cohort
from isthmus.errors import IsthmusError
from isthmus.federation.site import Site
from isthmus.methods.batches import ClusterBatches, Read, read_neighbours
from isthmus.methods.optimizer import Optimizer, PartyOptimizer
from isthmus.methods.per_item import ItemGradients
from isthmus.nn.per_party import FARTHEST, Leaf
from isthmus.options import OnlyWith
from isthmus.tasks.base import Step

MOST = 2**31 - 1
"""Largest number of items or neighbours that an option takes."""

PLAIN_LR = 0.01
"""The local learning rate where no encoder names another: of your own models, on whole graphs and pairs, with SGD."""

Loss: TypeAlias = Callable[[Step], Tensor]
Pull: TypeAlias = Callable[[Sequence[Leaf]], Sequence[Tensor]]
"""What is added to the gradients of the leaves before each step: a proximal term, a control variate."""


class Training(Optimizer):
    """How a model is trained on one graph, or set of graphs."""

    epochs: int = Field(5, ge=1)
    """Passes over the training items per round."""
    batch_size: int = Field(0, ge=0, le=MOST)
    """Training items per step; 0 takes all at once. A step on nodes, pairs or edges reads what their outputs depend on:
    all neighbours as many hops away as the model has layers, or the whole graph for a model that does not say how
    many."""
    fan_out: tuple[int, ...] = Field((), max_length=FARTHEST)
    """Most neighbours that a step draws for a node: a number for each hop that the model reads, from the training nodes
    outwards. Empty: all neighbours."""
    clusters: int = Field(0, ge=0, le=MOST)
    """Clusters into which METIS cuts a party's graph; a step then reads some of them in place of a batch of items.
    0: no clusters."""
    clusters_per_step: int = Field(1, ge=1)
    """Clusters that a step reads."""
    clip: float = Field(0.0, ge=0)
    """Largest norm of a party's gradient; 0 does not clip."""
    precision: Literal["single", "mixed"] = "single"
    """Of products of matrices. `mixed` lets a device round their factors, to TF32 or bfloat16, and adds up in single
    precision. A device without units for that trains as with `single`."""

    @model_validator(mode="after")
    def _one_kind_of_batches(self) -> Self:
        if not all(1 <= most <= MOST for most in self.fan_out):
            raise ValueError(f"fan_out has a number that is not between 1 and {MOST}")
        if self.clusters and (self.batch_size or self.fan_out):
            raise ValueError("clusters are for tasks on nodes and replace batches: set batch_size = 0 and no fan_out")
        if self.clusters_per_step > max(1, self.clusters):
            raise ValueError(f"clusters_per_step is {self.clusters_per_step}, but clusters is {self.clusters}")
        return self

    def in_round(self, site: Site) -> Self:
        """These options with the learning rate of the round that the site was asked in."""
        return self

    def keeps_optimizer_as(self, first_epoch: int) -> str:
        """The name under which parties keep the optimiser's state of this training; empty if they do not."""
        return ""

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
        beside: Sequence[Mapping[str, Tensor]] = (),
        first_epoch: int = 0,
        stays: bool = False,
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
            beside: weights of further models that embed the items without being trained; with `embed`, the loss gets
                these embeddings as `Step.beside`.
            first_epoch: number of the first epoch; a second training in one action needs other numbers, hence draws.
            stays: nothing that leaves a party follows from what is trained here, so a private study adds no noise.

        Returns:
            steps that each party took, `[parties]`.
        """
        cohort, model = site.cohort, site.model
        items = cohort.counts("train")
        trains = (items > 0).tolist()
        if not any(trains):
            return torch.zeros(len(cohort), dtype=torch.long)
        model.probe(cohort.block)  # it may find that the model reads whole blocks only
        plan = None if site.private is None or stays else site.private.items
        if plan is not None:
            if embed or read:
                raise IsthmusError(f"privacy: method '{site.method.name}' trains on more than single items")
            with self._products():
                return self._fit_items(site, ItemGradients(site, plan, loss, only), pull, trains, first_epoch)
        read, batches = self._reader(site, read, embed)
        kept_as = self.keeps_optimizer_as(first_epoch)
        touched = self.batch_size == 0 and self.clip == 0 and uniform_pull and read is None and not kept_as
        whole = None if self.batch_size or read else _whole(site, trains, embed)
        leaves = model.start_training(
            whole[0] if whole and touched else cohort.block, trains, touched_rows=touched, only=only
        )
        optimizer = self._started(site, leaves, kept_as)
        steps = torch.zeros(len(cohort), dtype=torch.long)
        checks = loss == site.task.loss and site.has_own_model  # a loss of a method's own may read several outputs
        with self._products():
            for epoch in range(first_epoch, first_epoch + self.epochs):
                for at, chosen in enumerate(batches(epoch)):
                    sizes = tuple(torch.bincount(cohort.party[chosen], minlength=len(cohort)).tolist())
                    active = [size > 0 for size in sizes]
                    block, at_rows = read(chosen, epoch, at) if read else whole or _read(cohort, chosen, active)
                    result = model(block, site.draws("dropout", epoch, at), embed=embed)
                    output, embedding = result if embed else (result, None)
                    others = [model.embed_with(each, block, site.draws("dropout", epoch, at)) for each in beside]
                    if checks:
                        site.check_output(output, torch.arange(len(chosen)) if at_rows is None else at_rows)
                    if at_rows is not None:
                        output, embedding = output[at_rows], None if embedding is None else embedding[at_rows]
                        others = [each[at_rows] for each in others]
                    losses = loss(Step(output, cohort.y[chosen], sizes, chosen, embedding, tuple(others)))
                    losses.sum().backward()
                    _add(leaves, pull(leaves) if pull else ())
                    if self.clip:
                        _clip(leaves, self.clip)
                    optimizer.step(active)
                    steps += torch.tensor(active, dtype=torch.long)
        self._stop(site, optimizer, kept_as)
        return steps

    def _fit_items(
        self, site: Site, gradients: ItemGradients, pull: Pull | None, trains: Sequence[bool], first_epoch: int
    ) -> Tensor:
        """Train as `fit` does, on noisy sums of the gradients of single items."""
        plan, last = gradients.plan, first_epoch + self.epochs
        if why := self.items_problem() or ("" if last <= plan.epochs else f"it trains {last} epochs in one call"):
            raise IsthmusError(f"privacy: the account does not cover local training: {why}")
        leaves = site.model.start_training(gradients.outline(), trains, touched_rows=False, only=gradients.only)
        kept_as = self.keeps_optimizer_as(first_epoch)
        optimizer = self._started(site, leaves, kept_as)
        for epoch in range(first_epoch, last):
            for at in range(plan.steps):
                for leaf, gradient in zip(leaves, gradients.of_step(leaves, epoch, at), strict=True):
                    leaf.tensor.grad = gradient
                _add(leaves, pull(leaves) if pull else ())
                optimizer.step(trains)
        self._stop(site, optimizer, kept_as)
        return torch.tensor(trains, dtype=torch.long) * self.epochs * plan.steps

    def items_problem(self) -> str:
        """What in these options a private study of items does not have; empty if nothing."""
        if self.batch_size:
            return f"batch_size = {self.batch_size}, and steps draw items by privacy.rate: leave it out"
        if self.clip:
            return f"clip = {self.clip:g}, and privacy.clip bounds the gradient of each item: leave it out"
        for name, value in (("fan_out", self.fan_out), ("clusters", self.clusters)):
            if value:
                return f"{name} is for nodes with edges, and items have none: leave it out"
        return ""

    @contextmanager
    def _products(self) -> Iterator[None]:
        """Multiply matrices in the precision that these options have."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium" if self.precision == "mixed" else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def _started(self, site: Site, leaves: Sequence[Leaf], kept_as: str) -> PartyOptimizer:
        """The optimiser, in the state that parties keep of it."""
        optimizer = PartyOptimizer(self.in_round(site), leaves)
        if kept_as:
            new = {name: stack[0] for name, stack in optimizer.state().items()}
            optimizer.restore(site.kept.get(kept_as, new))
        return optimizer

    def _stop(self, site: Site, optimizer: PartyOptimizer, kept_as: str) -> None:
        """End a training."""
        site.model.stop_training()
        if kept_as:
            site.kept[kept_as] = optimizer.state()
        site.after_training()

    def _reader(
        self, site: Site, read: Read | None, embed: bool
    ) -> tuple[Read | None, Callable[[int], Iterator[Tensor]]]:
        """How to read what a step needs (None: as for full batches), and the steps of an epoch."""
        batches = partial(self._batches, site)
        graphs = site.cohort.level == "graph"
        if (self.fan_out or self.clusters) and (graphs or read):
            what = "fan_out" if self.fan_out else "clusters"
            why = "is for one large graph per party" if graphs else "cannot be used here: the method reads whole graphs"
            raise IsthmusError(f"local.{what} {why}: leave it out")
        if self.clusters:
            if site.cohort.level != "node":
                raise IsthmusError("local.clusters is for tasks on nodes: use local.batch_size and local.fan_out")
            by_clusters = ClusterBatches(site, self.clusters, self.clusters_per_step)
            return by_clusters.read, by_clusters.steps
        if self.fan_out:
            hops = site.model.hops
            if hops not in (None, len(self.fan_out)):
                remedy = "give one per hop" if hops else "leave it out, local.batch_size is enough"
                raise IsthmusError(f"local.fan_out is {list(self.fan_out)} and the model reads {hops} hops: {remedy}")
            return read_neighbours(site, self.fan_out, embed=embed), batches
        if self.batch_size and not read and not graphs and (reach := site.model.reach) is not None:
            return read_neighbours(site, (None,) * reach, embed=embed), batches
        return read, batches

    def _batches(self, site: Site, epoch: int) -> Iterator[Tensor]:
        """Positions of the items of each step; a party has its own order and as many steps as its items give."""
        mask = site.cohort.masks["train"]
        items = mask.nonzero().squeeze(1)
        if self.batch_size == 0:
            yield items
            return
        counts = site.cohort.counts("train")
        order = site.draws("order", epoch).order(counts.tolist())
        step = (torch.arange(order.numel()) - (counts.cumsum(0) - counts).repeat_interleave(counts)) // self.batch_size
        step_of = torch.empty_like(step).scatter_(0, order, step)
        by_step = torch.argsort(step_of, stable=True).to(items.device)
        yield from items[by_step].split(torch.bincount(step_of).tolist())


class LocalTraining(Training):
    """How a party trains on its own data in each round."""

    lr: float | None = Field(None, gt=0)  # type: ignore[assignment]  # a number by the time it trains: see `in_round`
    """Learning rate; without one, that of the encoder (see Defaults). SGD takes 0.01 then."""
    keep_optimizer: bool = False
    """Keep the optimiser's moments and steps from round to round, while the server replaces the weights. A party that
    takes no part in a round keeps them until its next one."""
    schedule: Literal["constant", "linear", "cosine", "step"] = "constant"
    """How the learning rate changes over the run's `rounds`: not at all; down to `decay_to`, linearly or as half a
    cosine; or by the factor `decay_by` after every `decay_every` rounds."""
    warm_up: int = Field(0, ge=0, le=MOST)
    """Rounds at the start in which the learning rate rises linearly to `lr`; the schedule begins after them."""
    decay_to: Annotated[float, OnlyWith("schedule", "linear", "cosine")] = Field(0.0, ge=0, lt=1)
    """Share of the learning rate that the linear and the cosine schedule reach when the last round is over."""
    decay_every: Annotated[int, OnlyWith("schedule", "step")] = Field(30, ge=1, le=MOST)
    """Rounds between two steps of the schedule."""
    decay_by: Annotated[float, OnlyWith("schedule", "step")] = Field(0.1, gt=0, lt=1)
    """Factor by which a step of the schedule lowers the learning rate."""

    @model_validator(mode="after")
    def _has_something_to_keep(self) -> Self:
        if self.keep_optimizer and self.optimizer == "sgd" and not self.momentum:
            raise ValueError("keep_optimizer has no effect with SGD without momentum: leave it out")
        return self

    def keeps_optimizer_as(self, first_epoch: int) -> str:
        return f"optimizer {first_epoch}" if self.keep_optimizer else ""

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate depends on the round."""
        return self.schedule != "constant" or self.warm_up > 0

    def factor(self, at: int, rounds: int) -> float:
        """What the learning rate is multiplied by in round `at`, from 1, of so many planned rounds.

        >>> [LocalTraining(schedule="linear", warm_up=1).factor(at, 5) for at in (1, 2, 3, 4, 5)]
        [0.5, 1.0, 0.75, 0.5, 0.25]
        """
        if at <= self.warm_up:
            return at / (self.warm_up + 1)
        done, planned = at - 1 - self.warm_up, rounds - self.warm_up
        if self.schedule == "step":
            return float(self.decay_by ** (done // self.decay_every))
        left = {"linear": 1 - done / planned, "cosine": (1 + math.cos(math.pi * done / planned)) / 2}
        return self.decay_to + (1 - self.decay_to) * left.get(self.schedule, 1.0)

    @property
    def rate(self) -> float:
        """The learning rate, also where none was set and no encoder is known."""
        return PLAIN_LR if self.lr is None else self.lr

    def with_rate(self, lr: float) -> Self:
        """These options with a learning rate, if they have none."""
        if self.lr is not None:
            return self
        return self.model_copy(update={"lr": PLAIN_LR if self.optimizer == "sgd" else lr})

    def in_round(self, site: Site) -> Self:
        if not self.scheduled:
            return self.with_rate(PLAIN_LR)
        planned = site.method.rounds
        return self.model_copy(update={"lr": self.rate * self.factor(min(max(site.round, 1), planned), planned)})


def _whole(site: Site, trains: Sequence[bool], embed: bool) -> tuple[Block, Tensor | None]:
    """What the model reads in every step on all training items, and at which rows of its output they stand.

    Nodes on which no item's output depends are left out: most of a graph with few training nodes.
    """
    cohort, model = site.cohort, site.model
    if cohort.level == "graph" or model.reach is None:
        return _read(cohort, cohort.masks["train"].nonzero().squeeze(1), trains)
    return cohort.around_training(model.reach, trims=model.trims and not embed)


def _read(cohort: Cohort, chosen: Tensor, active: Sequence[bool]) -> tuple[Block, Tensor | None]:
    """What the model reads in a step on these items, and at which rows of its output they stand; None: in order."""
    if cohort.level == "graph":
        return cohort.graphs_of(chosen), torch.arange(chosen.numel(), device=chosen.device)
    block, at_rows = cohort.block_of(active), cohort.rows_of(chosen, active)
    return (cohort.with_edges(block, at_rows, chosen), None) if cohort.level == "edge" else (block, at_rows)


def _add(leaves: Sequence[Leaf], pulls: Sequence[Tensor]) -> None:
    for leaf, pull in zip(leaves, pulls, strict=bool(pulls)):
        if leaf.tensor.grad is None:
            leaf.tensor.grad = pull.detach().clone()
        else:
            leaf.tensor.grad += pull.detach()


def _clip(leaves: Sequence[Leaf], limit: float) -> None:
    """Scale every party's gradient to a norm of at most `limit`, as torch's `clip_grad_norm_` does for one model."""
    grads = [(leaf, leaf.tensor.grad) for leaf in leaves if leaf.tensor.grad is not None]
    squares = [rows.sum_per_party(grad.reshape(len(grad), -1).square().sum(1), leaf.sizes) for leaf, grad in grads]
    total = reduce(torch.add, squares)  # one by one: `torch.sum` rounds each party by its position
    scale = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for leaf, grad in grads:
        factor = scale.repeat_interleave(torch.tensor(leaf.sizes, device=scale.device))
        grad.mul_(factor.view(-1, *[1] * (grad.dim() - 1)))
