"""Cuts that look at labels, or at nothing: blind, alike, or skewed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from isthmus.data.partition.base import Partition, nobody_empty
from isthmus.data.pool import Pool, draws, rank_within


class Random(Partition):
    """Equally many items for every party, drawn blindly."""

    name: ClassVar[str] = "random"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        one_group = torch.zeros(pool.party.items, dtype=torch.long)
        return rank_within(one_group, draws(seed, "partition")) % parties


class Iid(Partition):
    """Equally many items and the same share of every class for every party."""

    name: ClassVar[str] = "iid"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y = classes_of(self, pool)
        generator = draws(seed, "partition")
        dealt = torch.argsort(y * y.numel() + rank_within(y, generator))
        owner = torch.empty_like(y)
        owner[dealt] = torch.arange(y.numel()) % parties
        return owner


class LabelDirichlet(Partition):
    """Every class is spread over the parties by proportions drawn from a Dirichlet distribution."""

    name: ClassVar[str] = "label-dirichlet"

    beta: float = Field(0.5, gt=0)
    """Concentration: small gives every party few classes, large gives all the same mix."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y = classes_of(self, pool)
        generator = draws(seed, "partition")
        counts = torch.bincount(y)
        ends = torch.from_numpy(generator.dirichlet(np.full(parties, self.beta), size=counts.numel())).cumsum(1)
        at = (rank_within(y, generator) + 0.5) / counts[y]
        owner = torch.empty_like(y)
        for label in range(counts.numel()):
            items = y == label
            owner[items] = torch.searchsorted(ends[label, :-1].contiguous(), at[items], right=True)
        return nobody_empty(owner, parties)


def classes_of(partition: Partition, pool: Pool) -> Tensor:
    y: Tensor = pool.party.graph.y
    if y.dim() != 1 or y.is_floating_point():
        raise partition.refuse("it needs one class for each item, these labels are of several tasks: use 'random'")
    return y
