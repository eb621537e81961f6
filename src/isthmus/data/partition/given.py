"""The cut that comes with the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from isthmus.data.partition.base import Partition
from isthmus.data.party import Party
from isthmus.data.pool import Pool


class Given(Partition):
    """The owners that came with the data are the parties."""

    name: ClassVar[str] = "given"

    def natural_count(self, pool: Pool) -> int | None:
        owners = pool.holders if pool.parties is None else pool.parties
        return None if owners is None else len(owners)

    def cut(self, pool: Pool, parties: int, seed: int, *, cache_folder: Path | None = None) -> list[Party]:
        natural = self.natural_count(pool)
        if natural is None:
            raise self.error("these data have no owners: use another partition, such as 'louvain' or 'random'")
        if natural != parties:
            raise self.error(f"the data have {natural} owners and {parties} parties were asked for: ask for {natural}")
        if pool.parties is None:
            return super().cut(pool, parties, seed)
        cut = [party if self.edges == "coupled" else replace(party, border=None) for party in pool.parties]
        return self.with_splits(cut, seed)

    def members(self, pool: Pool, parties: int, seed: int) -> list[Tensor]:
        return list(pool.holders or ())

    def names(self, pool: Pool, parties: int) -> Sequence[str]:
        return pool.names or super().names(pool, parties)
