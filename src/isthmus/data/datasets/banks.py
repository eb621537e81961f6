"""Generated banks: nothing to download, the same data for the same seed, time linear in nodes and edges."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch_geometric.data import Data

from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, Share, draws, held_by, split_by_share
from isthmus.errors import IsthmusError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Banks(DataSet):
    """Accounts at several banks and the transfers between them: which kind of business does an account belong to?

    Three things tell an account's class: its own features (noisy), the accounts it deals with in its bank, and those at
    other banks. Banks specialise, so none sees all classes alike; few accounts make most transfers, as in life.
    """

    name: ClassVar[str] = "banks"

    parties: int = Field(4, ge=1)
    """Banks."""
    nodes: int = Field(1200, ge=1)
    """Accounts of all banks together."""
    classes: int = Field(4, ge=1)
    """Kinds of account."""
    features: int = Field(16, ge=1)
    """Features of an account."""
    degree: float = Field(6.0, ge=0)
    """Mean number of accounts that an account deals with."""
    cross: Share = 0.3
    """Share of the transfers that cross between banks."""
    homophily: Share = 0.7
    """Share of the transfers that stay within a class by intention; the others reach any class."""
    skew: Share = 0.3
    """Share of a bank's accounts that are of its speciality; the others are of any class."""
    noise: float = Field(0.8, ge=0)
    """Standard deviation of the features around their class's mean, which has length 1."""
    tail: float = Field(2.5, gt=1)
    """Exponent of the power law of the accounts' activity: near 2 a few accounts make nearly all transfers."""
    train: Share = 0.1
    """Share of every bank's accounts to train on."""
    val: Share = 0.2
    """Share of every bank's accounts to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """The banks put together; `Pool.holders` says whose account it is.

        >>> pool = Banks(parties=3, nodes=60).load(seed=0)
        >>> pool.party.nodes, pool.classes, len(pool.holders)
        (60, 4, 3)
        """
        if self.nodes < self.parties:
            raise IsthmusError(
                f"data set 'banks': {self.nodes} nodes are too few for {self.parties} parties: ask for more nodes"
            )
        generator = draws(seed, "banks")
        owner = self._owners(generator)
        y = self._labels(owner, generator)
        graph = Data(
            x=torch.from_numpy(self._features(y, generator)).float(),
            edge_index=torch.from_numpy(self._transfers(owner, y, generator)),
            y=torch.from_numpy(y),
        )
        owners = torch.from_numpy(owner)
        graph.update(split_by_share(owners, self.train, self.val, draws(seed, "split")))
        party = Party.of_graph("pooled", graph, ids=torch.arange(self.nodes))
        held = held_by(owners, self.parties)
        return Pool(party, self.classes, held, note="Generated accounts and transfers; no real ones.")

    def _owners(self, generator: np.random.Generator) -> Ints:
        sizes = generator.uniform(0.5, 1.5, self.parties)
        drawn = generator.choice(self.parties, self.nodes - self.parties, p=sizes / sizes.sum())
        return generator.permutation(np.concatenate([np.arange(self.parties), drawn]))  # no bank stays empty

    def _labels(self, owner: Ints, generator: np.random.Generator) -> Ints:
        speciality = generator.permutation(np.arange(self.parties) % self.classes)
        typical = generator.random(self.nodes) < self.skew
        return np.where(typical, speciality[owner], generator.integers(self.classes, size=self.nodes))

    def _features(self, y: Ints, generator: np.random.Generator) -> Floats:
        means = generator.normal(size=(self.classes, self.features))
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return means[y] + self.noise * generator.normal(size=(self.nodes, self.features))

    def _transfers(self, owner: Ints, y: Ints, generator: np.random.Generator) -> Ints:
        wanted = round(self.nodes * self.degree / 2)
        across = round(wanted * self.cross) if self.parties > 1 else 0
        activity = (1 - generator.random(self.nodes)) ** (-1 / (self.tail - 1))
        accounts = _Accounts(owner, y, np.minimum(activity, np.sqrt(self.nodes)))
        inside = accounts.pairs(wanted - across, self.homophily, False, generator)
        outside = accounts.pairs(across, self.homophily, True, generator)
        once = np.concatenate([inside, outside], axis=1)
        return np.concatenate([once, once[::-1]], axis=1)


class _Accounts:
    """Draws pairs of accounts by their activity.

    Accounts stand sorted by class, within it by bank, with their activities summed up along the way. So "of this class,
    at this bank" is one interval of that sum, "of this class, at another bank" is the class's interval without it, and
    drawing an account is one binary search.
    """

    def __init__(self, owner: Ints, y: Ints, activity: Floats) -> None:
        self.owner, self.y = owner, y
        self.banks, self.classes = int(owner.max()) + 1, int(y.max()) + 1
        cell = y * self.banks + owner
        self.order = np.argsort(cell, kind="stable")
        self.sums = np.concatenate([[0.0], activity[self.order].cumsum()])
        firsts = np.concatenate([[0], np.bincount(cell, minlength=self.classes * self.banks).cumsum()])
        self.ends = self.sums[firsts]

    def pairs(self, wanted: int, homophily: float, across: bool, generator: np.random.Generator) -> Ints:
        """Up to `wanted` different pairs of accounts (fewer where there are not as many), `[2, pairs]`."""
        tries = 2 * wanted + 64
        source = self._at(generator.random(tries) * self.sums[-1])
        anyone = self._at(generator.random(tries) * self.sums[-1])
        alike = generator.random(tries) < homophily
        label = np.where(alike, self.y[source], self.y[anyone])
        target = self._partner(label, self.owner[source], across, generator)
        right = ((self.owner[source] != self.owner[target]) == across) & (source != target)
        source, target = source[right], target[right]
        key = np.minimum(source, target) * self.y.size + np.maximum(source, target)
        first = np.sort(np.unique(key, return_index=True)[1])[:wanted]
        return np.stack([source[first], target[first]])

    def _partner(self, label: Ints, bank: Ints, across: bool, generator: np.random.Generator) -> Ints:
        start, stop = self.ends[label * self.banks], self.ends[(label + 1) * self.banks]
        own, own_stop = self.ends[label * self.banks + bank], self.ends[label * self.banks + bank + 1]
        part = generator.random(label.size)
        if not across:
            return self._at(own + part * (own_stop - own))
        point = start + part * (stop - start - (own_stop - own))
        return self._at(np.where(point >= own, point + (own_stop - own), point))

    def _at(self, point: Floats) -> Ints:
        found = np.searchsorted(self.sums, point, side="right") - 1
        return self.order[np.minimum(found, self.order.size - 1)]
