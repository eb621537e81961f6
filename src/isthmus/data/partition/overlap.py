"""A cut whose parties share items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from isthmus.data.partition.base import Partition
from isthmus.data.partition.structure import metis_parts
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
    per_community: int = Field(0, ge=0)
    """Parties for each community of the graph: METIS cuts the graph into communities, and each party samples its
    proportion of one, rounded down. Parties of different communities share nothing. 0: all sample the whole."""

    @field_validator("proportions")
    @classmethod
    def _are_shares(cls, proportions: list[float]) -> list[float]:
        if not all(0 < share <= 1 for share in proportions):
            raise ValueError("each must be above 0 and at most 1")
        return proportions

    @model_validator(mode="after")
    def _share_within_communities(self) -> Self:
        if self.per_community and self.shared is not None:
            raise ValueError("shared is for parties that all sample the whole: leave it out, or set per_community = 0")
        return self

    def natural_count(self, pool: Pool) -> int | None:
        return len(self.proportions) * (self.per_community or 1)

    def members(self, pool: Pool, parties: int, seed: int) -> list[Tensor]:
        items, generator = pool.party.items, numpy_generator(seed, "partition")
        if self.per_community:
            return self._by_community(pool.party, parties, generator)
        sizes = self._sizes(pool.party, parties)
        if self.shared is None:
            return [torch.from_numpy(generator.choice(items, size, replace=False)).sort().values for size in sizes]
        common = self._common(pool.party, sizes)
        order = generator.permutation(items)
        rest = [generator.choice(items - common, size - common, replace=False) for size in sizes]
        _drop_from_one(rest, items - common, generator)
        held = [np.concatenate([order[:common], order[common:][own]]) for own in rest]
        return [torch.from_numpy(np.sort(own)) for own in held]

    def _by_community(self, whole: Party, parties: int, generator: np.random.Generator) -> list[Tensor]:
        """Samples of communities: those of the first community first."""
        if whole.level != "node":
            raise self.error("per_community is for one graph that is cut into communities: leave it out")
        if parties % self.per_community:
            raise self.error(
                f"{parties} parties are no multiple of per_community = {self.per_community}: ask for "
                f"{self.per_community * (parties // self.per_community + 1)}"
            )
        count, drawn = parties // self.per_community, int(generator.integers(2**31))
        community = metis_parts(
            whole.graph.edge_index,
            whole.items,
            count,
            drawn,
            "partition 'overlap' with per_community",
            algorithm="kway",
        )
        members = []
        for at in range(parties):
            nodes = torch.nonzero(community == at // self.per_community).flatten().numpy()
            share = self.proportions[at % len(self.proportions)]
            if not (size := math.floor(share * nodes.size + 1e-9)):
                raise self.error(f"proportion {share} of a community of {nodes.size} nodes is none: raise it")
            members.append(torch.from_numpy(np.sort(generator.choice(nodes, size, replace=False))))
        return members

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
