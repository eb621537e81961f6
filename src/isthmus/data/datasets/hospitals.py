"""Generated hospitals: nothing to download, the same data for the same seed, time linear in nodes and edges."""

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


class Hospitals(DataSet):
    """Patients of several hospitals, linked where they had similar treatments; the class is a patient's illness.

    Some patients are with two hospitals. Few patients have a diagnosis (a label for training). Findings (features) are
    noisy, and linked patients mostly have the same illness. A shared patient has links at both of its hospitals, and
    each hospital sees only its own.
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
    """Mean number of links of a patient, at each of its hospitals."""
    overlap: Share = 0.4
    """Share of the patients that a second hospital holds too."""
    cross: Share = 0.2
    """Share of the links that join patients without a common hospital."""
    homophily: Share = 0.7
    """Share of the links drawn within one illness; the others end at any patient."""
    skew: Share = 0.3
    """Share of a hospital's patients with the illness that it specialises in; the others have a random one."""
    noise: float = Field(0.8, ge=0)
    """Standard deviation of the findings around their illness's mean, which has length 1."""
    tail: float = Field(3.5, gt=1)
    """Exponent of the power law of a patient's links: near 2, few patients have nearly all links."""
    train: Share = 0.03
    """Share of each hospital's patients to train on: those with a diagnosis."""
    val: Share = 0.2
    """Share of each hospital's patients to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """All hospitals in one graph; `Pool.holders` says which hospitals hold a patient.

        >>> pool = Hospitals(parties=3, nodes=60, overlap=0.5).load(seed=0)
        >>> pool.party.nodes, sum(held.numel() for held in pool.holders)
        (60, 90)
        """
        if self.nodes < self.parties:
            raise self.error(f"{self.nodes} nodes are too few for {self.parties} parties: ask for more nodes")
        generator = numpy_generator(seed, "hospitals")
        owner = generated.draw_owners(self.nodes, self.parties, generator)
        second = generated.draw_second_holders(owner, self.parties, self.overlap, generator)
        y = generated.draw_kinds(owner, self.parties, self.classes, self.skew, generator)
        graph = Data(
            x=generated.draw_features(y, self.classes, self.features, self.noise, generator),
            edge_index=self._links(owner, second, y, generator),
            y=torch.from_numpy(y),
        )
        splits = split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split"))
        graph.update({f"{split}_mask": mask for split, mask in splits.items()})
        party = Party.of_graph("pooled", graph, ids=torch.arange(self.nodes))
        holders = generated.holders(owner, second, self.parties)
        return Pool(party, self.classes, holders, note="Generated patients and their treatment; no real ones.")

    def _links(self, owner: Ints, second: Ints, y: Ints, generator: np.random.Generator) -> Tensor:
        shared = np.flatnonzero(second >= 0)
        patient = np.concatenate([np.arange(self.nodes), shared])  # once per hospital
        wanted = round(patient.size * self.degree / 2)
        across = round(wanted * self.cross) if self.parties > 1 else 0
        activity = generated.draw_activities(self.nodes, self.tail, generator)
        stays = PairSampler(np.concatenate([owner, second[shared]]), y[patient], self.classes, activity[patient])
        source, target = self._drawn(stays, y[patient], wanted - across, False, generator)
        inside = generated.first_distinct(patient[source], patient[target], self.nodes, wanted - across)
        outside = self._between(PairSampler(owner, y, self.classes, activity), second, y, across, generator)
        return generated.undirected(inside, outside)

    def _between(
        self, patients: PairSampler, second: Ints, y: Ints, wanted: int, generator: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Pairs of patients without a common hospital. Several attempts, as pairs with one are drawn and dropped."""
        owner, pairs = patients.party, np.empty((2, 0), dtype=np.int64)
        for _ in range(8):
            source, target = self._drawn(patients, y, wanted, True, generator)
            valid = (second[source] != owner[target]) & (owner[source] != second[target])
            valid &= (second[source] != second[target]) | (second[source] < 0)
            pairs = np.concatenate([pairs, np.stack([source[valid], target[valid]])], axis=1)
            if pairs.shape[1] >= wanted + wanted // 8:
                break
        return generated.first_distinct(pairs[0], pairs[1], self.nodes, wanted)

    def _drawn(
        self, pairs: PairSampler, y: Ints, wanted: int, across: bool, generator: np.random.Generator
    ) -> tuple[Ints, Ints]:
        source = pairs.sample(generated.oversampled(wanted), generator)
        return pairs.partners(source, pairs.partner_kinds(source, y, self.homophily, generator), across, generator)
