"""Cuts by labels, or at random."""

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
    """Equally many items for every party, drawn at random."""

    name: ClassVar[str] = "random"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        return rank_within(one_group(pool), numpy_generator(seed, "partition")) % parties


class QuantityDirichlet(Partition):
    """Randomly drawn items in different numbers: the parties' shares come from a Dirichlet distribution."""

    name: ClassVar[str] = "quantity-dirichlet"

    beta: float = Field(0.5, gt=0)
    """Concentration: with a small one few parties get nearly all items, with a large one all get equally many."""

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
    """Concentration: with a small one parties get few classes, with a large one all get the same mix."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y, classes = classes_of(self, pool)
        generator = numpy_generator(seed, "partition")
        drawn = torch.from_numpy(generator.dirichlet(np.full(parties, self.beta), size=classes))
        unlabelled = torch.full((1, parties), 1 / parties, dtype=drawn.dtype)
        return fill_empty_parties(deal_by_share(y, torch.cat([drawn, unlabelled]), generator), parties)


class LabelSkew(Partition):
    """Parties of equal size whose labels have a chosen earth mover's distance from those of the whole.

    Some items are dealt in runs, sorted by class, so that a party gets few classes; the others, the same share of every
    class, are dealt evenly. Bisection finds how many items to deal in runs; the distance (see
    `isthmus.data.skew.earth_movers`) comes within 8 / labelled items of the chosen one. Items without a label are dealt
    evenly.
    """

    name: ClassVar[str] = "label-skew"

    emd: float = Field(0.5, ge=0, lt=2)
    """The earth mover's distance: 0 if all parties have the same mix of classes, near 2 if no two share a class."""

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
        """Owners of labelled items sorted by class; `at` is the relative rank of each item within its class."""
        first = torch.argsort(torch.argsort(at, stable=True))
        if not y.numel():
            raise self.error("no item has a label: use 'random'")
        classes = int(y.max()) + 1

        def distance(in_runs: int) -> float:
            owner = _deal(first < in_runs, parties)
            return earth_movers(torch.bincount(owner * classes + y, minlength=parties * classes).view(parties, classes))

        least, most, within = distance(0), distance(y.numel()), 8 / y.numel()
        if not least - within <= self.emd <= most + within:
            raise self.error(
                f"emd = {self.emd} is not possible with these labels and {parties} parties of equal size: choose "
                f"{math.ceil(1000 * least) / 1000} to {math.floor(1000 * most) / 1000}"
            )
        above = bisect_left(range(y.numel()), self.emd, key=distance)
        nearest = min((max(0, above - 1), above), key=lambda in_runs: abs(distance(in_runs) - self.emd))
        return _deal(first < nearest, parties)


def _deal(in_runs: Tensor, parties: int) -> Tensor:
    """Owners of items in this order: some in runs, party after party, the others in turn; sizes differ by 1 at most."""
    runs = int(in_runs.sum())
    sizes = [(runs + parties - 1 - at) // parties for at in range(parties)]
    owner = torch.empty_like(in_runs, dtype=torch.long)
    owner[in_runs] = rows.party_of_rows(sizes, in_runs.device)
    owner[~in_runs] = torch.arange(runs, in_runs.numel()) % parties
    return owner


def deal_by_share(group: Tensor, shares: Tensor, generator: np.random.Generator) -> Tensor:
    """Random owners that give each party its share of every group, `[groups, parties]`."""
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
    """The class of every item and the number of classes; items without a label (-1) get one more class, the last."""
    y: Tensor = pool.party.graph.y
    if y.dim() != 1 or y.is_floating_point():
        raise partition.error("it needs one class per item, but these labels have several tasks: use 'random'")
    classes = int(y.max()) + 1
    return torch.where(y < 0, max(0, classes), y), max(0, classes)
