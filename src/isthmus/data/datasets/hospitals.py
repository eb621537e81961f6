"""Generated hospitals: nothing to download, the same data for the same seed, time linear in nodes and edges."""

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


class Hospitals(DataSet):
    """Patients of several hospitals, some of several at once, and who was treated like whom: which illness is it?

    Few patients are diagnosed. A patient's findings are noisy; patients that were treated alike mostly have the same
    illness. A shared patient is treated with others at each of its hospitals, and each sees only its own part of that.
    """

    name: ClassVar[str] = "hospitals"

    parties: int = Field(4, ge=1)
    """Hospitals."""
    nodes: int = Field(1200, ge=1)
    """Patients of all hospitals together."""
    classes: int = Field(4, ge=1)
    """Illnesses."""
    features: int = Field(16, ge=1)
    """Findings of a patient."""
    degree: float = Field(5.0, ge=0)
    """Mean number of patients that a patient was treated like, at each of its hospitals."""
    overlap: Share = 0.4
    """Share of the patients that a second hospital holds too."""
    cross: Share = 0.2
    """Share of the links between patients that no hospital holds both of."""
    homophily: Share = 0.7
    """Share of the links that stay within an illness by intention; the others reach any."""
    skew: Share = 0.3
    """Share of a hospital's patients that have the illness it is known for; the others have any."""
    noise: float = Field(0.8, ge=0)
    """Standard deviation of the findings around their illness's mean, which has length 1."""
    tail: float = Field(3.5, gt=1)
    """Exponent of the power law of how much patients are treated: near 2 a few have nearly all links."""
    train: Share = 0.03
    """Share of every hospital's patients to train on: those with a diagnosis."""
    val: Share = 0.2
    """Share of every hospital's patients to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """The hospitals put together; `Pool.holders` says who holds which patients.

        >>> pool = Hospitals(parties=3, nodes=60, overlap=0.5).load(seed=0)
        >>> pool.party.nodes, sum(held.numel() for held in pool.holders)
        (60, 90)
        """
        if self.nodes < self.parties:
            raise IsthmusError(
                f"data set 'hospitals': {self.nodes} nodes are too few for {self.parties} parties: ask for more nodes"
            )
        generator = numpy_generator(seed, "hospitals")
        owner = generated.owners(self.nodes, self.parties, generator)
        second = generated.second_holders(owner, self.parties, self.overlap, generator)
        y = generated.specialised(owner, self.parties, self.classes, self.skew, generator)
        graph = Data(
            x=generated.around_means(y, self.classes, self.features, self.noise, generator),
            edge_index=self._links(owner, second, y, generator),
            y=torch.from_numpy(y),
        )
        graph.update(split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split")))
        party = Party.of_graph("pooled", graph, ids=torch.arange(self.nodes))
        holders = generated.holders_of(owner, second, self.parties)
        return Pool(party, self.classes, holders, note="Generated patients and their treatment; no real ones.")

    def _links(self, owner: Ints, second: Ints, y: Ints, generator: np.random.Generator) -> Tensor:
        shared = np.flatnonzero(second >= 0)
        patient = np.concatenate([np.arange(self.nodes), shared])  # once at each of its hospitals
        wanted = round(patient.size * self.degree / 2)
        across = round(wanted * self.cross) if self.parties > 1 else 0
        activity = generated.activities(self.nodes, self.tail, generator)
        stays = Pairs(np.concatenate([owner, second[shared]]), y[patient], self.classes, activity[patient])
        source, target = self._drawn(stays, y[patient], wanted - across, False, generator)
        inside = generated.distinct(patient[source], patient[target], self.nodes, wanted - across)
        outside = self._between(Pairs(owner, y, self.classes, activity), second, y, across, generator)
        return generated.both_ways(inside, outside)

    def _between(
        self, patients: Pairs, second: Ints, y: Ints, wanted: int, generator: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Pairs of patients that have no hospital in common; the more are shared, the more pairs are drawn in vain."""
        owner, found = patients.party, np.empty((2, 0), dtype=np.int64)
        for _ in range(8):
            source, target = self._drawn(patients, y, wanted, True, generator)
            apart = (second[source] != owner[target]) & (owner[source] != second[target])
            apart &= (second[source] != second[target]) | (second[source] < 0)
            found = np.concatenate([found, np.stack([source[apart], target[apart]])], axis=1)
            if found.shape[1] >= wanted + wanted // 8:
                break
        return generated.distinct(found[0], found[1], self.nodes, wanted)

    def _drawn(
        self, pairs: Pairs, y: Ints, wanted: int, across: bool, generator: np.random.Generator
    ) -> tuple[Ints, Ints]:
        source = pairs.any(generated.tries_for(wanted), generator)
        return pairs.partners(source, pairs.like(source, y, self.homophily, generator), across, generator)
