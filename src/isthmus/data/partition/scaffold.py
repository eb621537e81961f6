"""A cut of molecules by their scaffold."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.data.cache import cache_root
from isthmus.data.level import Level
from isthmus.data.partition.base import Partition, pack_groups
from isthmus.data.pool import Pool, numpy_generator
from isthmus.data.smiles import scaffolds_of


class Scaffold(Partition):
    """Molecules by their scaffold (the rings and what links them): each scaffold is with one party only.

    Scaffolds are those of Bemis and Murcko (1996). They are dealt from the most to the least frequent, each to the
    party with the fewest molecules so far; the seed only orders equally frequent ones. Molecules without rings, a
    quarter of Tox21, have nothing in common that a party could specialise in. Each counts as its own scaffold; they are
    dealt last and even out the sizes of the parties. Needs the extra `molecules`.
    """

    name: ClassVar[str] = "scaffold"
    levels: ClassVar[tuple[Level, ...]] = ("graph",)

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        if pool.smiles is None:
            raise self.error("these data have no SMILES to find scaffolds in: use another partition, such as 'random'")
        scaffold = scaffolds_of(pool.smiles, cache_folder=cache_root() / "molecules")
        no_rings = scaffold < 0
        group = torch.where(no_rings, int(scaffold.max()) + no_rings.cumsum(0), scaffold)
        sizes = torch.bincount(group)
        if sizes.numel() < parties:
            raise self.error(f"{sizes.numel()} scaffolds are too few for {parties} parties: ask for fewer")
        ties = numpy_generator(seed, "partition").permutation(sizes.numel())
        order = np.lexsort((ties, -sizes.numpy()))
        members = torch.argsort(group, stable=True).split(sizes.tolist())
        return pack_groups([members[at].tolist() for at in order], parties, group.numel())
