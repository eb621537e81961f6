"""The base of all partitions: turns the items of each party into parties, and caches cuts."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator
from torch import Tensor

from isthmus.data import cache
from isthmus.data.level import Level
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool, Rounding, Share, items_per_party, numpy_generator, split_by_share
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.options import Registered

LIBRARIES = ("networkx", "numpy", "pymetis", "rdkit", "scikit-learn", "scipy", "torch")
"""Libraries that compute cuts. Another version may give another cut, so their versions are part of a cut's key."""
OF_SPLIT = ("split_by", "split_per_class", "split_rounding")
"""Options that say how `split` is drawn."""


class Partition(Registered):
    """A way to cut a pool. A subclass says who holds each item; this class builds the parties from it.

    Parties are called `party-0`, `party-1`, ... (with leading zeros if there are more than ten), inherit the pool's
    splits unless `split` draws new ones, and own their tensors: none is a view into the pool.
    """

    kind: ClassVar[str] = "partition"
    built_in_module: ClassVar[str] = "isthmus.data.partition"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    """What it can cut: one graph by its nodes, many small graphs, or both."""

    edges: Literal["coupled", "broken"] = "coupled"
    """Edges between nodes of two parties: known to both as their border, or dropped. Only if one graph is cut."""

    split: tuple[Share, Share, Share] | None = None
    """Shares of each party's items for training, validation and testing, drawn in every class. By default items keep
    the split of the data."""
    split_by: Literal["party", "global"] = "party"
    """Draw `split` in each party, or once over the whole data before they are cut."""
    split_per_class: bool = True
    """Draw `split` in every class; otherwise from all labelled items, so that shares of a class vary."""
    split_rounding: Rounding = "round"
    """Round the places among the items where training and validation end, or round them down: more is for testing."""

    @field_validator("split", mode="before")
    @classmethod
    def _has_three(cls, split: Any) -> Any:
        if isinstance(split, list | tuple) and len(split) != 3:
            raise ValueError("give three shares: training, validation, test, such as [0.6, 0.2, 0.2]")
        return split

    @field_validator("split")
    @classmethod
    def _is_whole(cls, split: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if split is not None and abs(sum(split) - 1) > 1e-6:
            raise ValueError("the three shares must add up to 1")
        return split

    @model_validator(mode="after")
    def _says_how_to_split(self) -> Self:
        for name in OF_SPLIT if self.split is None else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect without split: give shares, split = [0.2, 0.4, 0.4]")
        return self

    @model_serializer(mode="wrap")
    def _as_set(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a split there is nothing to say of how it is drawn."""
        values: dict[str, Any] = dump(self)
        return {key: value for key, value in values.items() if self.split is not None or key not in OF_SPLIT}

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        """The position of the party that gets each item, int64 `[items]`; `1 <= parties <= items` holds."""
        raise NotImplementedError(f"{type(self).__name__} has neither assign nor members: define one of them")

    def members(self, pool: Pool, parties: int, seed: int) -> list[Tensor]:
        """The positions of each party's items; by default those that `assign` gives it.

        Override it for a cut whose parties share items, or that gives some items to no party.
        """
        return list(items_per_party(self.assign(pool, parties, seed), parties))

    def natural_count(self, pool: Pool) -> int | None:
        """The number of parties, if the cut or the data fix it."""
        return None

    def cut(self, pool: Pool, parties: int, seed: int, *, cache_folder: Path | None = None) -> list[Party]:
        """The pool as `parties` parties; the same seed gives the same ones.

        Arguments:
            cache_folder: a folder of earlier cuts. A cut of the same content, options, seed and code is read from
                there; a new one is added.

        >>> from isthmus.data.datasets.banks import Banks
        >>> from isthmus.data.partition.labels import Random
        >>> [(party.name, party.items) for party in Random().cut(Banks(nodes=100).load(seed=0), 3, seed=0)]
        [('party-0', 34), ('party-1', 33), ('party-2', 33)]
        """
        whole = pool.party
        if whole.level not in self.levels:
            has, others = ("one graph", "k-means, louvain") if whole.level == "node" else ("many graphs", "iid")
            raise self.error(f"it does not cut {has}: use another partition, such as {others} or random")
        if parties < 1:
            raise self.error(f"cannot cut into {parties} parties: ask for at least 1")
        if parties > whole.items:
            raise self.error(f"{whole.items} {whole.level}s are too few for {parties} parties: ask for fewer")
        members = self._cached_members(pool, parties, seed, cache_folder)
        if self._is_global:
            whole = self._split(whole, seed)
        cut = cut_into_parties(whole, members, self.names(pool, parties), coupled=self.edges == "coupled")
        return cut if self._is_global else self.with_splits(cut, seed)

    @property
    def _is_global(self) -> bool:
        return self.split is not None and self.split_by == "global"

    def with_splits(self, parties: list[Party], seed: int) -> list[Party]:
        """The parties, with splits drawn by the shares in `split`, if there are any."""
        if self.split is None:
            return parties
        if self._is_global:
            return _with_masks_of(self._split(pool_parties(parties), seed), parties)
        ids = torch.cat([party.ids for party in parties if party.ids is not None] or [torch.empty(0)])
        if ids.unique().numel() < ids.numel():
            raise self.error(
                f"parties share {parties[0].level}s, which a split of each party's own would put into training at one "
                "and into testing at another: leave out 'split', or set split_by = 'global'"
            )
        return [self._split(party, seed) for party in parties]

    def _split(self, party: Party, seed: int) -> Party:
        """The party with a split of its labelled items; labels of tasks have no classes to draw in."""
        assert self.split is not None
        y = party.graph.y
        of_tasks = y.is_floating_point()
        labelled = ~y.isnan().reshape(y.size(0), -1).all(1) if of_tasks else y >= 0
        in_classes = self.split_per_class and not of_tasks
        group = y[labelled] if in_classes else torch.zeros(int(labelled.sum()), dtype=torch.long)
        generator = numpy_generator(seed, "split" if self._is_global else f"split of {party.name}")
        drawn = split_by_share(group, *self.split[:2], generator, rounding=self.split_rounding)
        _fill_empty_splits(drawn, self.split, generator)
        masks: dict[str, Any] = {
            split: torch.zeros_like(labelled).masked_scatter(labelled, mask) for split, mask in drawn.items()
        }
        return replace(party, **masks)

    def names(self, pool: Pool, parties: int) -> Sequence[str]:
        return [f"party-{at:0{len(str(parties - 1))}d}" for at in range(parties)]

    def error(self, reason: str) -> IsthmusError:
        """The error for a cut that is not possible, for the caller to raise."""
        return IsthmusError(f"partition '{self.name}': {reason}")

    def _checked_members(self, pool: Pool, parties: int, seed: int) -> list[Tensor]:
        members = self.members(pool, parties, seed)
        if len(members) != parties:
            raise self.error(f"its members() returned {len(members)} parties instead of {parties}")
        for at, items in enumerate(members):
            if items.numel() == 0:
                raise self.error(f"party {at} would get no {pool.party.level}: ask for fewer parties")
        return members

    def _cached_members(self, pool: Pool, parties: int, seed: int, cache_folder: Path | None) -> list[Tensor]:
        key = None if cache_folder is None else self._key(pool, parties, seed)
        if cache_folder is None or key is None:
            return self._checked_members(pool, parties, seed)

        def compute() -> dict[str, Tensor]:
            members = self._checked_members(pool, parties, seed)
            return {"held": torch.cat(members), "sizes": torch.tensor([items.numel() for items in members])}

        stored = cache.cached(cache_folder, key, compute)
        return list(stored["held"].split(stored["sizes"].tolist()))

    def _key(self, pool: Pool, parties: int, seed: int) -> str | None:
        """A hash of everything that determines the cut; none if the code is not in a file, as in a notebook."""
        try:
            code = [
                Path(inspect.getfile(each)).read_bytes() for each in type(self).__mro__ if issubclass(each, Partition)
            ]
            options = self.model_dump(mode="json", exclude={"edges", "split", *OF_SPLIT})
        except (OSError, TypeError, ValueError):
            return None
        return cache.digest(cache.hash_pool(pool), self.name, options, parties, seed, code, _versions())


def _fill_empty_splits(drawn: dict[str, Tensor], shares: Sequence[float], generator: np.random.Generator) -> None:
    """Change masks in place: each split with a share gets an item, training first, while there are as many items.

    An item moves from the split that can spare most.
    """
    items = sum(int(mask.sum()) for mask in drawn.values())
    due = [split for split, share in zip(SPLITS, shares, strict=True) if share > 0][:items]
    for split in (split for split in due if not bool(drawn[split].any())):
        spare = max(drawn, key=lambda each: int(drawn[each].sum()) - (each in due))
        item = int(generator.choice(drawn[spare].nonzero().flatten().numpy()))
        drawn[spare][item], drawn[split][item] = False, True


def _with_masks_of(whole: Party, parties: Sequence[Party]) -> list[Party]:
    """The parties with the split that their items have in the whole, which was put together from them."""
    if whole.level == "node" and whole.ids is not None:  # they are sorted, and parties may share some
        at = [torch.searchsorted(whole.ids, party.ids) for party in parties if party.ids is not None]
    else:
        at = list(torch.arange(whole.items).split([party.items for party in parties]))
    masks = [{split: getattr(whole, split)[own] for split in SPLITS} for own in at]
    return [replace(party, **each) for party, each in zip(parties, masks, strict=True)]


def _versions() -> list[str]:
    versions = []
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{library} {metadata.version(library)}")
    return versions


def fill_empty_parties(owner: Tensor, parties: int) -> Tensor:
    """Give each party without items one item of the largest parties."""
    counts = torch.bincount(owner, minlength=parties)
    empty = torch.nonzero(counts == 0).flatten()
    order = torch.argsort(owner, stable=True)
    rank = torch.empty_like(order)  # of each item within its party
    rank[order] = torch.arange(order.numel()) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    # The highest ranks are in the largest parties; rank 0 is never among them while items >= parties.
    spare = torch.argsort(rank, descending=True, stable=True)[: empty.numel()]
    return owner.index_copy(0, spare, empty)


def pack_groups(groups: Sequence[list[int]], parties: int, items: int) -> Tensor:
    """Owners of the items if each group in turn (sorted by size, the largest first) goes to the smallest party."""
    owner = torch.empty(items, dtype=torch.long)
    smallest = [(0, at) for at in range(parties)]
    for group in groups:
        size, at = heapq.heappop(smallest)
        owner[group] = at
        heapq.heappush(smallest, (size + len(group), at))
    return owner
