"""Cuts that look at labels, or at nothing: blind, alike, or skewed."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from isthmus.data import rows
from isthmus.data.partition.base import Partition, fill_empty_parties
from isthmus.data.pool import Pool, numpy_generator, rank_within
from isthmus.data.skew import earth_movers


class Random(Partition):
    """Equally many items for every party, drawn blindly."""

    name: ClassVar[str] = "random"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        return rank_within(one_group(pool), numpy_generator(seed, "partition")) % parties


class QuantityDirichlet(Partition):
    """Blindly drawn items in numbers that differ: the parties' shares come from a Dirichlet distribution."""

    name: ClassVar[str] = "quantity-dirichlet"

    beta: float = Field(0.5, gt=0)
    """Concentration: small gives few parties nearly all, large gives all equally many."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        generator = numpy_generator(seed, "partition")
        shares = generator.dirichlet(np.full(parties, self.beta), size=1)
        return fill_empty_parties(deal_by_share(one_group(pool), torch.from_numpy(shares), generator), parties)


class Iid(Partition):
    """Equally many items and the same share of every class for every party."""

    name: ClassVar[str] = "iid"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y, _ = classes_of(self, pool)
        generator = numpy_generator(seed, "partition")
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
        y, classes = classes_of(self, pool)
        generator = numpy_generator(seed, "partition")
        drawn = torch.from_numpy(generator.dirichlet(np.full(parties, self.beta), size=classes))
        unlabelled = torch.full((1, parties), 1 / parties, dtype=drawn.dtype)
        return fill_empty_parties(deal_by_share(y, torch.cat([drawn, unlabelled]), generator), parties)


class LabelSkew(Partition):
    """Parties of equal size whose labels are a chosen earth mover's distance away from those of the whole.

    Some items go out in runs, one class after another, so that a party gets few classes; the others, of every class the
    same share, go out evenly. How many go out in runs is found by bisection on the distance itself (see
    `isthmus.data.skew.earth_movers`), which comes within 8 / labelled items of the chosen one. Items without a label go
    out evenly.
    """

    name: ClassVar[str] = "label-skew"

    emd: float = Field(0.5, ge=0, lt=2)
    """The earth mover's distance: 0 where all have the same mix of classes, near 2 where none shares its class."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y, classes = classes_of(self, pool)
        generator = numpy_generator(seed, "partition")
        counts = torch.bincount(y, minlength=classes)
        rank = rank_within(y, generator)
        large_first = torch.argsort(counts[:classes], descending=True, stable=True)
        turn = torch.argsort(torch.cat([large_first, torch.tensor([classes])]))  # the unlabelled come last
        order = torch.argsort(turn[y] * y.numel() + rank)
        labelled = order[: int(counts[:classes].sum())]
        owner = torch.empty_like(y)
        owner[order] = torch.arange(y.numel()) % parties
        owner[labelled] = self._skewed(y[labelled], ((rank + 0.5) / counts[y])[labelled], parties)
        return torch.from_numpy(generator.permutation(parties))[owner]

    def _skewed(self, y: Tensor, at: Tensor, parties: int) -> Tensor:
        """Owners of labelled items that stand class by class; `at` says for each how far back in its class it is."""
        first = torch.argsort(torch.argsort(at, stable=True))
        if not y.numel():
            raise self.error("no item has a label: use 'random'")
        classes = int(y.max()) + 1

        def distance(in_runs: int) -> float:
            owner = _dealt(first < in_runs, parties)
            return earth_movers(torch.bincount(owner * classes + y, minlength=parties * classes).view(parties, classes))

        least, most, within = distance(0), distance(y.numel()), 8 / y.numel()
        if not least - within <= self.emd <= most + within:
            raise self.error(
                f"an emd of {self.emd} is out of reach, these labels reach {math.ceil(1000 * least) / 1000} to "
                f"{math.floor(1000 * most) / 1000} at {parties} parties of equal size: choose one of those"
            )
        above = bisect_left(range(y.numel()), self.emd, key=distance)
        nearest = min((max(0, above - 1), above), key=lambda in_runs: abs(distance(in_runs) - self.emd))
        return _dealt(first < nearest, parties)


def _dealt(in_runs: Tensor, parties: int) -> Tensor:
    """Owners of items in this order, some in runs, party after party, the others in turn: sizes differ by at most 1."""
    runs = int(in_runs.sum())
    sizes = [(runs + parties - 1 - at) // parties for at in range(parties)]
    owner = torch.empty_like(in_runs, dtype=torch.long)
    owner[in_runs] = rows.party_of_rows(sizes, in_runs.device)
    owner[~in_runs] = torch.arange(runs, in_runs.numel()) % parties
    return owner


def deal_by_share(group: Tensor, shares: Tensor, generator: np.random.Generator) -> Tensor:
    """Owners, when every group's items go to the parties by that group's shares, `[groups, parties]`, drawn blindly."""
    at = (rank_within(group, generator).double() + 0.5) / torch.bincount(group)[group]
    ends = shares.cumsum(1)[:, :-1].contiguous()
    owner = torch.empty_like(group)
    for each in group.unique().tolist():
        items = group == each
        owner[items] = torch.searchsorted(ends[each], at[items], right=True)
    return owner


def one_group(pool: Pool) -> Tensor:
    return torch.zeros(pool.party.items, dtype=torch.long)


def classes_of(partition: Partition, pool: Pool) -> tuple[Tensor, int]:
    """The class of every item, and how many there are; items without a label (-1) are one class more, the last."""
    y: Tensor = pool.party.graph.y
    if y.dim() != 1 or y.is_floating_point():
        raise partition.error("it needs one class for each item, these labels are of several tasks: use 'random'")
    classes = int(y.max()) + 1
    return torch.where(y < 0, max(0, classes), y), max(0, classes)
