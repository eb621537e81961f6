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
    """Every party holds a blindly drawn sample of its own size; samples overlap, and some items are with nobody.

    The setting of FedGL (section 5.3). An item that several parties hold is in the same split at all of them, so nobody
    trains on what another tests on.
    """

    name: ClassVar[str] = "overlap"

    edges: Literal["coupled", "broken"] = "broken"
    """Edges to nodes that a party does not hold, but another does: known to both as their border, or dropped."""
    proportions: list[float] = Field([0.3, 0.4, 0.5, 0.5, 0.6, 0.7], min_length=1)
    """Every party's share of the items; with more parties than entries they come round again."""
    shared: float | None = Field(None, ge=0, le=1)
    """Share of the items that all parties hold, no other being with all; without it that is as the samples fall."""

    @field_validator("proportions")
    @classmethod
    def _are_parts(cls, proportions: list[float]) -> list[float]:
        if not all(0 < share <= 1 for share in proportions):
            raise ValueError("each is a part of the whole, above 0 and at most 1")
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
        _with_somebody_missing(rest, items - common, generator)
        held = [np.concatenate([order[:common], order[common:][own]]) for own in rest]
        return [torch.from_numpy(np.sort(own)) for own in held]

    def _sizes(self, whole: Party, parties: int) -> list[int]:
        sizes = []
        for at in range(parties):
            share = self.proportions[at % len(self.proportions)]
            sizes.append(round(share * whole.items))
            if not sizes[-1]:
                raise self.error(f"proportion {share} of {whole.items} {whole.level}s is none: raise it")
        return sizes

    def _common(self, whole: Party, sizes: Sequence[int]) -> int:
        """How many items all hold, where parties of these sizes can share just as many."""
        assert self.shared is not None
        items = whole.items
        common = round(self.shared * items)
        if common > min(sizes):
            raise self.error(
                f"shared = {self.shared} is more than the smallest proportion, {min(sizes) / items:.3g}: lower it"
            )
        least = items - sum(items - size for size in sizes)  # everybody's gaps together cannot cover more
        if common < least:
            raise self.error(
                f"shared = {self.shared} is too little, parties this large share {least} of {items} {whole.level}s "
                f"at least: raise it to {math.ceil(1000 * least / items) / 1000} or lower the proportions"
            )
        return common


def _with_somebody_missing(held: list[NDArray[np.int64]], items: int, generator: np.random.Generator) -> None:
    """Change in place who holds what of `items` items until none is with all; every party keeps its number.

    Where all hold an item, one of them gives it away for one that it lacks and that another party lacks as well. There
    is always one, as everybody's gaps together are at least as many as the items.
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
    spare[np.unique(item, return_index=True)[1]] = False  # one gap of every item stays
    party, item = party[spare][: everywhere.size], item[spare][: everywhere.size]
    has[party, everywhere], has[party, item] = False, True
    held[:] = [np.flatnonzero(row) for row in has]
