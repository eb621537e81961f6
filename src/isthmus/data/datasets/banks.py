"""Generated banks: nothing to download, the same data for the same seed, time linear in nodes and edges."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.datasets import generated
from isthmus.data.datasets.generated import PairSampler
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, Share, numpy_generator, split_by_share


class Banks(DataSet):
    """Accounts at several banks and the transfers between them; the class is an account's line of business.

    Three things hint at an account's class: its own noisy features, the accounts that it deals with at its bank, and
    those at other banks. Banks specialise, so classes are unevenly spread, and few accounts make most transfers.
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
    """Share of the transfers drawn within one class; the others end at any account."""
    communities: int = Field(1, ge=1)
    """Communities (towns, say), independent of bank and class. With 1, classes are the only structure."""
    closeness: Share = 0.8
    """Share of the transfers drawn within one community; the others end in any."""
    overlap: Share = 0.0
    """Share of the accounts that a second bank holds too."""
    skew: Share = 0.3
    """Share of a bank's accounts in the class that it specialises in; the others are in a random one."""
    noise: float = Field(0.8, ge=0)
    """Standard deviation of the features around their class's mean, which has length 1."""
    tail: float = Field(2.5, gt=1)
    """Exponent of the power law of an account's transfers: near 2, few accounts make nearly all transfers."""
    train: Share = 0.1
    """Share of each bank's accounts to train on."""
    val: Share = 0.2
    """Share of each bank's accounts to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """All banks in one graph; `Pool.holders` says which bank holds an account.

        >>> pool = Banks(parties=3, nodes=60).load(seed=0)
        >>> pool.party.nodes, pool.classes, len(pool.holders)
        (60, 4, 3)
        """
        if self.nodes < self.parties:
            raise self.error(f"{self.nodes} nodes are too few for {self.parties} parties: ask for more nodes")
        generator = numpy_generator(seed, "banks")
        owner = generated.draw_owners(self.nodes, self.parties, generator)
        y = generated.draw_kinds(owner, self.parties, self.classes, self.skew, generator)
        graph = Data(
            x=generated.draw_features(y, self.classes, self.features, self.noise, generator),
            edge_index=self._transfers(owner, y, numpy_generator(seed, "communities"), generator),
            y=torch.from_numpy(y),
        )
        splits = split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split"))
        graph.update({f"{split}_mask": mask for split, mask in splits.items()})
        party = Party.of_graph("pooled", graph, ids=torch.arange(self.nodes))
        second = generated.draw_second_holders(owner, self.parties, self.overlap, numpy_generator(seed, "overlap"))
        holders = generated.holders(owner, second, self.parties)
        return Pool(party, self.classes, holders, note="Generated accounts and transfers; no real ones.")

    def _transfers(
        self, owner: Ints, y: Ints, of_communities: np.random.Generator, generator: np.random.Generator
    ) -> Tensor:
        """Edges both ways. Communities have a generator of their own, so that data without them do not change."""
        wanted = round(self.nodes * self.degree / 2)
        across = round(wanted * self.cross) if self.parties > 1 else 0
        activity = generated.draw_activities(self.nodes, self.tail, generator)
        community = of_communities.integers(self.communities, size=self.nodes)
        groups = self.classes * self.communities
        accounts = PairSampler(owner, y * self.communities + community, groups, activity)

        def drawn(count: int, between: bool) -> tuple[Ints, Ints]:
            source = accounts.sample(generated.oversampled(count), generator)
            group = accounts.partner_kinds(source, y, self.homophily, generator) * self.communities
            if self.communities > 1:
                group += accounts.partner_kinds(source, community, self.closeness, of_communities)
            pairs = accounts.partners(source, group, between, generator)
            return generated.first_distinct(*pairs, self.nodes, count)

        return generated.undirected(drawn(wanted - across, False), drawn(across, True))
