"""A data set before it is cut into parties, and how its items are split for training, validation and testing."""

from __future__ import annotations

import os
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.options import Registered

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A fraction."""
Rounding = Literal["round", "floor"]
"""How a share of items becomes a whole number of them."""


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set before it is cut.

    Arguments:
        whole: all data as one party; at node level with ids 0, 1, 2, ... None if the data come as `parties`.
        classes: number of classes, or of tasks where labels have several.
        holders: where the data have owners of their own: the positions of the items that each owner holds, ascending.
            An item may have several owners.
        names: names of these owners.
        smiles: SMILES of the molecules, for partitions that look at their structure.
        parties: the parties, if the data come as parties.
        note: a sentence about the data for the reader of a report.
        label_note: the same about its labels, for tasks that learn from them.
        labels: names of the classes, or of the tasks, if the data have any.
        encoding: how columns of files became features, as plain values; None if the data come as numbers.
        own_splits: the data say of every item what it is for.
        dated: rows have moments, so links cannot be held out by chance: those of later rows would be learned from.
    """

    whole: Party | None
    classes: int
    holders: tuple[Tensor, ...] | None = None
    names: tuple[str, ...] | None = None
    smiles: tuple[str, ...] | None = None
    parties: tuple[Party, ...] | None = None
    note: str = ""
    label_note: str = ""
    labels: tuple[str, ...] = ()
    encoding: Mapping[str, Any] | None = None
    own_splits: bool = False
    dated: bool = False

    @property
    def notes(self) -> str:
        """What there is to say about data and labels."""
        return " ".join(filter(None, (self.note, self.label_note)))

    @cached_property
    def party(self) -> Party:
        """All data as one party."""
        if self.whole is not None:
            return self.whole
        if not self.parties:
            raise IsthmusError("a pool has neither 'whole' nor 'parties': give one of them")
        return pool_parties(self.parties)


def items_per_party(owner: Tensor, parties: int) -> tuple[Tensor, ...]:
    """The positions of each party's items, from the owner of every item.

    >>> [items.tolist() for items in items_per_party(torch.tensor([0, 1, 0]), 3)]
    [[0, 2], [1], []]
    """
    counts = torch.bincount(owner, minlength=parties)
    return torch.argsort(owner, stable=True).split(counts.tolist())


class DataSet(Registered):
    """A source of data. A subclass sets `name`, documents its options and implements `load`."""

    kind: ClassVar[str] = "data set"
    built_in_module: ClassVar[str] = "isthmus.data.datasets"
    entry_points: ClassVar[str] = "isthmus.datasets"
    natural: ClassVar[bool] = False
    """Whether its parties are organisations, which a protocol leaves as they are."""

    @abstractmethod
    def load(self, seed: int) -> Pool:
        """Load the data; the same seed gives the same splits, and the same data if they are generated."""

    def error(self, reason: str) -> IsthmusError:
        """The error for data that cannot be loaded, for the caller to raise."""
        return IsthmusError(f"data set '{self.name}': {reason}")


def check_no_folder(name: str) -> None:
    """Refuse the name of a data set if a folder here has it too, because a user may mean either."""
    if name.lower() in DataSet.known() and Path(name).is_dir():
        raise IsthmusError(
            f"'{name}' is a data set and a folder here: give ./{name} for the folder, or rename it to use the data set"
        )


def with_path(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of a data set; a path in place of the name stands for the party folders there."""
    name = data.get("name")
    if not isinstance(name, str) or not (os.sep in name or name in (".", "..") or Path(name).is_dir()):
        return data
    if name.lower() in DataSet.known():
        return data
    return {"path": name, **data, "name": "folder"}


def numpy_generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator for one purpose: two uses of one seed must not draw the same numbers.

    >>> bool(numpy_generator(0, "split").random() == numpy_generator(0, "partition").random())
    False
    """
    return np.random.default_rng((seed, zlib.crc32(purpose.encode())))


def rank_within(group: Tensor, generator: np.random.Generator) -> Tensor:
    """The rank of every item, from 0, in a random order of its group's items, `[items]`.

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


def check_shares(train: float, val: float) -> None:
    """Refuse shares of the training and validation items that add up to more than 1."""
    if train + val > 1:
        raise IsthmusError(f"train = {train} and val = {val} add up to more than 1: lower one of them")


def check_shares_read(data: DataSet, why: str) -> None:
    """Refuse shares of a data set that were set, where it draws no split by them.

    Arguments:
        why: what decides instead.
    """
    fields = type(data).model_fields
    for name in ("train", "val"):
        if name in fields and getattr(data, name) != fields[name].get_default(call_default_factory=True):
            raise IsthmusError(f"data.{name} has no effect: {why}")


def split_by_share(
    group: Tensor, train: float, val: float, generator: np.random.Generator, *, rounding: Rounding = "round"
) -> dict[str, Tensor]:
    """Masks `train`, `val` and (the rest) `test`, each with its share of every group.

    Arguments:
        rounding: where training and validation end among the items is rounded, or rounded down.

    >>> group, shares = torch.zeros(8, dtype=torch.long), (0.2, 0.4)
    >>> for rounding in ("round", "floor"):
    ...     masks = split_by_share(group, *shares, numpy_generator(0, "example"), rounding=rounding)
    ...     {split: int(mask.sum()) for split, mask in masks.items()}
    {'train': 2, 'val': 3, 'test': 3}
    {'train': 1, 'val': 3, 'test': 4}
    """
    check_shares(train, val)
    counts, rank = torch.bincount(group), rank_within(group, generator)
    if rounding == "floor":
        trained = (counts * train + 1e-9).long()[group]  # a product such as 100 * 0.29 is a little below 29
        validated = (counts * (train + val) + 1e-9).long()[group]
        return {"train": rank < trained, "val": (rank >= trained) & (rank < validated), "test": rank >= validated}
    at = (rank + 0.5) / counts[group]
    return {"train": at < train, "val": (at >= train) & (at < train + val), "test": at >= train + val}
