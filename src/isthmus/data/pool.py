"""A data set before it is cut: what every source of data hands to a partition."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from isthmus.data.party import SPLITS, Party, pool_parties
from isthmus.errors import IsthmusError
from isthmus.options import Registered

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A part of a whole."""


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set before it is cut, and whose its items are by nature.

    Arguments:
        whole: everything put together, as no single party has it; at node level with ids 0, 1, 2, ...
        classes: how many classes the labels tell apart; of labels for several tasks, how many tasks.
        holders: the positions of the items that each natural party holds, ascending; an item may have several holders.
        names: names of the natural parties.
        smiles: molecules as they were written, for cuts that look at their build.
        parties: where the data come as parties, these; `whole` then is none, and put together when it is asked for.
        note: a sentence about the data for the reader of a report.
        labels: names of the classes, or of the tasks, where the data have names for them.
    """

    whole: Party | None
    classes: int
    holders: tuple[Tensor, ...] | None = None
    names: tuple[str, ...] | None = None
    smiles: tuple[str, ...] | None = None
    parties: tuple[Party, ...] | None = None
    note: str = ""
    labels: tuple[str, ...] = ()

    @cached_property
    def party(self) -> Party:
        """Everything put together, as one party."""
        if self.whole is not None:
            return self.whole
        if not self.parties:
            raise IsthmusError("a pool needs either its whole or its parties: give one of them")
        return pool_parties(self.parties)


def items_per_party(owner: Tensor, parties: int) -> tuple[Tensor, ...]:
    """What each party holds, from an owner for every item.

    >>> [held.tolist() for held in items_per_party(torch.tensor([0, 1, 0]), 3)]
    [[0, 2], [1], []]
    """
    counts = torch.bincount(owner, minlength=parties)
    return torch.argsort(owner, stable=True).split(counts.tolist())


class DataSet(Registered):
    """A source of data. A subclass names itself, documents its options and says how it is loaded."""

    kind: ClassVar[str] = "data set"
    built_in_module: ClassVar[str] = "isthmus.data.datasets"

    @abstractmethod
    def load(self, seed: int) -> Pool:
        """The whole data set; the same seed gives the same splits (and, where data are generated, the same data)."""


def numpy_generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every purpose: two uses of one seed must not draw the same permutation.

    >>> bool(numpy_generator(0, "split").random() == numpy_generator(0, "partition").random())
    False
    """
    return np.random.default_rng((seed, zlib.crc32(purpose.encode())))


def rank_within(group: Tensor, generator: np.random.Generator) -> Tensor:
    """For every item its place, from 0, in a random order of its group's items, `[items]`.

    >>> group = torch.tensor([0, 1, 0, 0])
    >>> rank_within(group, numpy_generator(0, "example"))[group == 0].sort().values.tolist()
    [0, 1, 2]
    """
    order = torch.from_numpy(generator.permutation(group.numel()))
    order = order[torch.argsort(group[order], stable=True)]
    counts = torch.bincount(group)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel()) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return rank


def split_by_share(group: Tensor, train: float, val: float, generator: np.random.Generator) -> dict[str, Tensor]:
    """Masks `train_mask`, `val_mask` and (the rest) `test_mask`, each with its share of every group.

    >>> masks = split_by_share(torch.zeros(10, dtype=torch.long), 0.5, 0.2, numpy_generator(0, "example"))
    >>> [int(mask.sum()) for mask in masks.values()]
    [5, 2, 3]
    """
    if train + val > 1:
        raise IsthmusError(f"train = {train} and val = {val} are more than the whole: lower one of them")
    counts = torch.bincount(group)
    at = (rank_within(group, generator) + 0.5) / counts[group]
    held = {"train": at < train, "val": (at >= train) & (at < train + val), "test": at >= train + val}
    return {f"{split}_mask": held[split] for split in SPLITS}
