"""A cut of molecules by what they are built around."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.data.cache import cache_root
from isthmus.data.partition.base import Partition, pack_groups
from isthmus.data.party import Level
from isthmus.data.pool import Pool, numpy_generator
from isthmus.data.smiles import scaffolds_of


class Scaffold(Partition):
    """Molecules by their scaffold, the rings and what links them: each scaffold is with one party alone.

    Scaffolds are those of Bemis and Murcko (1996). The one of most molecules comes first, and each goes to the party
    that has fewest molecules so far; the seed decides only between scaffolds of equally many molecules. Molecules
    without rings all have the same, empty scaffold, of a quarter of the molecules in Tox21. They have nothing in
    common that a party could be specialised in, so each of them counts as a scaffold of its own: they come last, and
    even out the sizes of the parties. Needs the extra `molecules`.
    """

    name: ClassVar[str] = "scaffold"
    levels: ClassVar[tuple[Level, ...]] = ("graph",)

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        if pool.smiles is None:
            raise self.error("these data have no SMILES to find scaffolds in: use another partition, such as 'random'")
        of = scaffolds_of(pool.smiles, cache_folder=cache_root() / "molecules")
        alone = of < 0
        group = torch.where(alone, int(of.max()) + alone.cumsum(0), of)
        sizes = torch.bincount(group)
        if sizes.numel() < parties:
            raise self.error(f"{sizes.numel()} scaffolds are too few for {parties} parties: ask for fewer")
        ties = numpy_generator(seed, "partition").permutation(sizes.numel())
        order = np.lexsort((ties, -sizes.numpy()))
        members = torch.argsort(group, stable=True).split(sizes.tolist())
        return pack_groups([members[at].tolist() for at in order], parties, group.numel())
