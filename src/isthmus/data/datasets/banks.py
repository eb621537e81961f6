"""Generated banks: nothing to download, the same data for the same seed, time linear in nodes and edges."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.datasets import generated
from isthmus.data.datasets.generated import Pairs
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, Share, numpy_generator, split_by_share
from isthmus.errors import IsthmusError


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
    """Share of the transfers that cross between banks: that the other account is another bank's own."""
    homophily: Share = 0.7
    """Share of the transfers that stay within a class by intention; the others reach any class."""
    communities: int = Field(1, ge=1)
    """Towns, say: an account is in one, whatever its bank and class. With 1 the classes are all the structure."""
    closeness: Share = 0.8
    """Share of the transfers that stay within a community by intention; the others reach any."""
    overlap: Share = 0.0
    """Share of the accounts that a second bank holds too."""
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
        generator = numpy_generator(seed, "banks")
        owner = generated.owners(self.nodes, self.parties, generator)
        y = generated.specialised(owner, self.parties, self.classes, self.skew, generator)
        graph = Data(
            x=generated.around_means(y, self.classes, self.features, self.noise, generator),
            edge_index=self._transfers(owner, y, numpy_generator(seed, "communities"), generator),
            y=torch.from_numpy(y),
        )
        graph.update(split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split")))
        party = Party.of_graph("pooled", graph, ids=torch.arange(self.nodes))
        second = generated.second_holders(owner, self.parties, self.overlap, numpy_generator(seed, "overlap"))
        holders = generated.holders_of(owner, second, self.parties)
        return Pool(party, self.classes, holders, note="Generated accounts and transfers; no real ones.")

    def _transfers(self, owner: Ints, y: Ints, apart: np.random.Generator, generator: np.random.Generator) -> Tensor:
        """Edges both ways; what communities need is drawn `apart`, so that data without them stay as they are."""
        wanted = round(self.nodes * self.degree / 2)
        across = round(wanted * self.cross) if self.parties > 1 else 0
        activity = generated.activities(self.nodes, self.tail, generator)
        community = apart.integers(self.communities, size=self.nodes)
        groups = self.classes * self.communities
        accounts = Pairs(owner, y * self.communities + community, groups, activity)

        def drawn(count: int, between: bool) -> tuple[Ints, Ints]:
            source = accounts.any(generated.tries_for(count), generator)
            group = accounts.like(source, y, self.homophily, generator) * self.communities
            if self.communities > 1:
                group += accounts.like(source, community, self.closeness, apart)
            pairs = accounts.partners(source, group, between, generator)
            return generated.distinct(*pairs, self.nodes, count)

        return generated.both_ways(drawn(wanted - across, False), drawn(across, True))
