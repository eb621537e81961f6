"""A cut whose parties share items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from isthmus.data.partition.base import Partition
from isthmus.data.party import Party
from isthmus.data.pool import Pool, numpy_generator


class Overlap(Partition):
    """Every party holds a random sample of its own size; samples overlap, and some items have no party.

    An item is in the same split at all its parties, so no party trains on what another tests on.
    """

    name: ClassVar[str] = "overlap"

    edges: Literal["coupled", "broken"] = "broken"
    """Edges to nodes that only other parties hold: known to both sides as their border, or dropped."""
    proportions: list[float] = Field([0.3, 0.4, 0.5, 0.5, 0.6, 0.7], min_length=1)
    """Each party's share of the items; with more parties than entries the list repeats."""
    shared: float | None = Field(None, ge=0, le=1)
    """Exact share of the items that all parties hold; by default the random samples decide it."""

    @field_validator("proportions")
    @classmethod
    def _are_shares(cls, proportions: list[float]) -> list[float]:
        if not all(0 < share <= 1 for share in proportions):
            raise ValueError("each must be above 0 and at most 1")
        return proportions

    def natural_count(self, pool: Pool) -> int | None:
        return len(self.proportions)

    def members(self, pool: Pool, parties: int, seed: int) -> list[Tensor]:
        items, generator = pool.party.items, numpy_generator(seed, "partition")
        sizes = self._sizes(pool.party, parties)
        if self.shared is None:
            return [torch.from_numpy(generator.choice(items, size, replace=False)).sort().values for size in sizes]
        common = self._common(pool.party, sizes)
        order = generator.permutation(items)
        rest = [generator.choice(items - common, size - common, replace=False) for size in sizes]
        _drop_from_one(rest, items - common, generator)
        held = [np.concatenate([order[:common], order[common:][own]]) for own in rest]
        return [torch.from_numpy(np.sort(own)) for own in held]

    def _sizes(self, whole: Party, parties: int) -> list[int]:
        sizes = []
        for at in range(parties):
            share = self.proportions[at % len(self.proportions)]
            sizes.append(round(share * whole.items))
            if not sizes[-1]:
                raise self.error(f"proportion {share} of {whole.items} {whole.level}s rounds to 0: raise it")
        return sizes

    def _common(self, whole: Party, sizes: Sequence[int]) -> int:
        """The number of items that all parties hold, if parties of these sizes can share exactly that many."""
        assert self.shared is not None
        items = whole.items
        common = round(self.shared * items)
        if common > min(sizes):
            raise self.error(
                f"shared = {self.shared} is more than the smallest proportion, {min(sizes) / items:.3g}: lower it"
            )
        least = items - sum(items - size for size in sizes)  # each other item is missing at one party or more
        if common < least:
            raise self.error(
                f"shared = {self.shared} is too low, parties this large share at least {least} of {items} "
                f"{whole.level}s: raise it to {math.ceil(1000 * least / items) / 1000} or lower the proportions"
            )
        return common


def _drop_from_one(held: list[NDArray[np.int64]], items: int, generator: np.random.Generator) -> None:
    """Change `held` in place until no item is with all parties; every party keeps its number of items.

    For an item that all hold, one of them swaps it for an item that it lacks and that another party lacks as well.
    There always is one, because all parties together lack at least as many items as there are.
    """
    holders = np.bincount(np.concatenate(held), minlength=items)
    everywhere = np.flatnonzero(holders == len(held))
    if not everywhere.size:
        return
    has = np.zeros((len(held), items), dtype=bool)
    for at, own in enumerate(held):
        has[at, own] = True
    party, item = np.nonzero(~has)
    mixed = generator.permutation(party.size)
    party, item = party[mixed], item[mixed]
    spare = np.ones(party.size, dtype=bool)
    spare[np.unique(item, return_index=True)[1]] = False  # each item stays missing at one party
    party, item = party[spare][: everywhere.size], item[spare][: everywhere.size]
    has[party, everywhere], has[party, item] = False, True
    held[:] = [np.flatnonzero(row) for row in has]
