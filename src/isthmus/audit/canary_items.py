"""The game about training items: some of a party's gradients are a canary's, and a reader sees every noisy sum.

Canary i of a party has a gradient along weight i alone, ten times as long as the largest norm; if it is out, its
gradient is 0: an item from which nothing can be learned. From all other items nothing can be learned either, because
the reader knows them anyway. Sampling, clipping, sums and noise are those of training (`methods.per_item`). The score
is the sum of what weight i got over all steps of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.audit.lower_bound import Game, Played
from isthmus.data.matrices import Bools, Ints
from isthmus.data.party import Party
from isthmus.federation.private import PrivateItems
from isthmus.methods.per_item import ItemGradients
from isthmus.tasks.base import Task

LENGTH = 10.0
"""Of a canary's gradient, in largest norms: it has to be clipped."""


class CanaryItems(Game):
    """Training items of the parties, as many as one run needs."""

    unit = "item"

    def __init__(
        self, private: PrivateItems, parties: Sequence[Party], task: Task, module: nn.Module, method: Any
    ) -> None:
        assert private.plan is not None
        self.private, self.plan, self.parties = private, private.plan, parties
        self.task, self.module, self.method = task, module, method
        self.claimed = self.plan.account(self.plan.calls).cost(self.plan.options.delta, self.unit)

    def play(self, canaries: int, seed: int) -> Played:
        some = [party for party in self.parties if bool(party.train.any())]
        counts = np.cumsum([int(party.train.sum()) for party in some])
        some = some[: int(np.searchsorted(counts, canaries)) + 1]
        site = self.method.site(some, self.task, self.module, seed=seed, private=self.private)
        with site.asked():
            site.model.load(site.model.initial)
            gradients = CanaryGradients(site, self.plan, self.task.loss, None)
            leaves = site.model.start_training(gradients.outline(), [True] * len(some), touched_rows=False)
            gradients.choose([leaf.tensor[0].shape for leaf in leaves], canaries, np.random.default_rng(seed))
            received = torch.zeros(len(some), gradients.numbers, dtype=torch.float64)
            for call in range(self.plan.calls):
                site.answered = [call] * len(some)
                for epoch in range(self.plan.epochs):
                    for at in range(self.plan.steps):
                        step = gradients.of_step(leaves, epoch, at)
                        received += torch.cat([each.double().flatten(1).cpu() for each in step], dim=1)
            site.model.stop_training()
        return Played(received[gradients.owner, gradients.weight].numpy(), gradients.inside)


class CanaryGradients(ItemGradients):
    """Gradients of canaries in place of those of training items.

    Attributes:
        owner, weight: by canary the position of its party, and its weight among all numbers of the model.
        inside: whether it is in the data.
        numbers: of the model.
    """

    def choose(self, shapes: Sequence[torch.Size], canaries: int, source: np.random.Generator) -> None:
        """Choose the items that are canaries, a weight for each, and those that are in the data.

        Arguments:
            shapes: of the weights.
        """
        self.shapes = list(shapes)
        self.numbers = sum(shape.numel() for shape in shapes)
        party = self.site.cohort.party[self.items].cpu().numpy()
        rank = np.arange(len(party)) - np.searchsorted(party, party)  # of an item among those of its party
        weights = np.stack([source.permutation(self.numbers) for _ in self.counts])
        chosen = source.permutation(np.flatnonzero(rank < self.numbers))[:canaries]
        self.owner: Ints = party[chosen]
        self.weight: Ints = weights[self.owner, rank[chosen]]
        self.inside: Bools = source.random(len(chosen)) < 0.5
        self._weight_of = torch.full((self.site.cohort.party.numel(),), -1)
        there = self.items.cpu()[torch.from_numpy(chosen[self.inside])]
        self._weight_of[there] = torch.from_numpy(self.weight[self.inside])

    def of_items(self, some: Tensor, epoch: int, at: int) -> list[Tensor]:
        weight = self._weight_of[some.cpu()]
        row = (weight >= 0).nonzero().squeeze(1)
        flat = torch.zeros(len(some), self.numbers)
        flat[row, weight[row]] = LENGTH * self.plan.options.clip
        parts = flat.to(some.device).split([shape.numel() for shape in self.shapes], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
