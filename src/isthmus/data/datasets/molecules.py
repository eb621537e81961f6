"""Generated molecules: nothing to download, the same data for the same seed, time linear in the molecules."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data

from isthmus.data.datasets import generated
from isthmus.data.datasets.planting import MOTIFS, PlantedGraphs
from isthmus.data.matrices import Bools, Floats, Ints
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, Share, numpy_generator, split_by_share

BENDS = (0.2, 0.5, 1.0, 2.0)
"""The shape of each family's scaffolds, from chains to stars; see `PlantedGraphs.edges`."""


class Molecules(DataSet):
    """Small molecules of several laboratories, measured for several effects; the labels are the effects of a molecule.

    Each effect comes from its own group of atoms; a molecule may hold several groups, on a scaffold that is independent
    of them. Laboratories differ in their scaffolds and in the effects that they measured. No edge crosses between
    laboratories.
    """

    name: ClassVar[str] = "molecules"

    parties: int = Field(4, ge=1)
    """Laboratories."""
    graphs: int = Field(600, ge=1)
    """Molecules of all laboratories together."""
    tasks: int = Field(4, ge=1, le=64)
    """Effects."""
    prevalence: Share = 0.3
    """Share of the molecules that hold the group of atoms of an effect."""
    missing: Share = 0.5
    """Share of the labels that were not measured."""
    noise: Share = 0.05
    """Share of the measurements that are wrong."""
    kinds: int = Field(12, ge=1)
    """Kinds of atom, one-hot."""
    changed: Share = 0.1
    """Share of the atoms in those groups whose kind is replaced by a random one."""
    size: int = Field(6, ge=4)
    """Atoms of a group."""
    smallest: int = Field(6, ge=1)
    """Atoms of the smallest scaffold; the largest has twice as many."""
    skew: Share = 0.5
    """Share of a laboratory's molecules on its own family of scaffolds; also how unevenly it measured the effects."""
    overlap: Share = 0.0
    """Share of the molecules that a second laboratory holds too."""
    train: Share = 0.3
    """Share of each laboratory's molecules to train on."""
    val: Share = 0.2
    """Share of each laboratory's molecules to validate on; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """All molecules in one party; `Pool.holders` says which laboratories hold a molecule.

        >>> pool = Molecules(graphs=40, tasks=3).load(seed=0)
        >>> pool.party.graph.y.shape, pool.classes, len(pool.holders)
        (torch.Size([40, 3]), 3, 4)
        """
        if self.graphs < self.parties:
            raise self.error(f"{self.graphs} graphs are too few for {self.parties} parties: ask for more")
        generator = numpy_generator(seed, "molecules")
        owner = generated.draw_owners(self.graphs, self.parties, generator)
        second = generated.draw_second_holders(owner, self.parties, self.overlap, generator)
        planted = generator.random((self.graphs, self.tasks)) < self.prevalence
        graph = self._built(planted, owner, generator)
        graph.y = self._measured(planted, owner, generator)
        splits = split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split"))
        holders = generated.holders(owner, second, self.parties)
        party = Party.of_batch("pooled", graph, **splits)
        return Pool(party, self.tasks, holders, note="Generated molecules and their effects; no real ones.")

    def _built(self, planted: Bools, owner: Ints, generator: np.random.Generator) -> Data:
        """Scaffolds with the groups of atoms planted in them. Scaffolds of one family share shape and mix of atoms."""
        family = generated.draw_kinds(owner, self.parties, len(BENDS), self.skew, generator)
        trees = generator.integers(self.smallest, 2 * self.smallest + 1, size=self.graphs)
        planted_graphs = PlantedGraphs(trees, planted, self.size)
        shapes = [MOTIFS[task % len(MOTIFS)](self.size) for task in range(self.tasks)]
        edge_index = planted_graphs.edges(shapes, np.array(BENDS)[family], generator)
        batch = planted_graphs.batch
        kinds = self._scaffold_atoms(family[batch.numpy()], generator)
        for graphs, first in planted_graphs.motif_starts():
            kinds[first[:, None] + np.arange(self.size)] = self._group_atoms(graphs.size, generator)
        return Data(x=one_hot(torch.from_numpy(kinds), self.kinds).float(), edge_index=edge_index, batch=batch)

    def _scaffold_atoms(self, family: Ints, generator: np.random.Generator) -> Ints:
        """A kind for each atom, drawn from its family's mix of kinds."""
        edges = generator.dirichlet(np.ones(self.kinds), size=len(BENDS)).cumsum(1)
        drawn = generator.random(family.size)
        kinds = np.zeros(family.size, dtype=np.int64)
        for edge in edges[:, :-1].T:
            kinds += drawn > edge[family]
        return kinds

    def _group_atoms(self, groups: int, generator: np.random.Generator) -> Ints:
        """Kinds of the atoms in the groups of one effect, `[groups, size]`: equal except for the changed ones."""
        own = generator.integers(self.kinds, size=self.size)
        anything = generator.integers(self.kinds, size=(groups, self.size))
        return np.where(generator.random(anything.shape) < self.changed, anything, own)

    def _measured(self, planted: Bools, owner: Ints, generator: np.random.Generator) -> Tensor:
        """Labels `[graphs, tasks]`, NaN where missing."""
        wrong = generator.random(planted.shape) < self.noise
        absent = generator.random(planted.shape) < self._missing(generator)[owner]
        return torch.from_numpy(np.where(absent, np.nan, planted ^ wrong)).float()

    def _missing(self, generator: np.random.Generator) -> Floats:
        """The share of missing labels per laboratory and effect, `[parties, tasks]`; its mean is `missing`.

        With skew 0 it is the same everywhere. With skew 1 a laboratory measured some effects of all its molecules and
        the others of none; the measured effects rotate over the laboratories.
        """
        turn = generator.integers(self.tasks) + np.arange(self.parties) * self.tasks // self.parties
        turned = (np.arange(self.tasks) - turn[:, None]) % self.tasks
        by_effect = np.clip(turned + 1 - (1 - self.missing) * self.tasks, 0, 1)
        return (1 - self.skew) * self.missing + self.skew * by_effect
