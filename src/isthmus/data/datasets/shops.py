"""Generated shops: a graph of any size, each party in mapped files of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.cache import digest
from isthmus.data.datasets import generated
from isthmus.data.datasets.by_party import Loader, Moderator, PartyData
from isthmus.data.datasets.generated import PairSampler
from isthmus.data.mapped import Arrays, cached
from isthmus.data.matrices import Floats, Ints
from isthmus.data.party import SPLITS, Border, Party
from isthmus.data.pool import Pool, Share, numpy_generator, split_by_share

DRAWN = 1 << 20
"""Pairs that are drawn together."""
ATTEMPTS = 20
"""How often repeated pairs are drawn again, until at most one of a thousand is missing."""


class Shops(PartyData):
    """Products of several shops, joined where they are bought together; the class is a product's category.

    Like `banks`, but for graphs that memory need not hold, in memory-mapped files in the cache: first what products
    there are and the pairs across shops, then for each shop the features of its products and its own pairs. Few
    products are in most pairs. Features alone say little about the category; those of products bought together say
    more.

    >>> pool = Shops(parties=3, nodes=60, degree=4).load(seed=0)
    >>> [party.name for party in pool.parties], pool.party.nodes
    (['shop-0', 'shop-1', 'shop-2'], 60)
    """

    name: ClassVar[str] = "shops"
    natural: ClassVar[bool] = True

    parties: int = Field(10, ge=1)
    """Shops."""
    nodes: int = Field(20_000, ge=1)
    """Products of all shops together."""
    classes: int = Field(47, ge=1)
    """Categories."""
    features: int = Field(100, ge=1)
    """Features of a product."""
    degree: float = Field(20.0, ge=0)
    """Mean number of products that a product is bought with."""
    cross: Share = 0.05
    """Share of the pairs that cross between shops."""
    homophily: Share = 0.5
    """Share of the pairs drawn within one category; the others end at any product."""
    skew: Share = 0.3
    """Share of a shop's products in the category that it specialises in; the others are in a random one."""
    noise: float = Field(0.6, ge=0)
    """Standard deviation of the features around their category's mean, which has length 1."""
    tail: float = Field(2.5, gt=1)
    """Exponent of the power law of a product's pairs: near 2, few products are in nearly all pairs."""
    train: Share = 0.1
    """Share of each shop's products to train on."""
    val: Share = 0.05
    """Share of each shop's products to validate on; the rest is for testing."""

    def party_sizes(self) -> Sequence[int]:
        if self.nodes < self.parties:
            raise self.error(f"{self.nodes} nodes are too few for {self.parties} parties: ask for more nodes")
        return [1] * self.parties

    def loader(self, chosen: Sequence[int], seed: int) -> Loader:
        yield from ()  # there is nothing to settle
        key = digest(self.model_dump(), seed)

        def starts(arrays: dict[str, Tensor], notes: Any) -> tuple[dict[str, Tensor], list[int], list[int]]:
            sizes, crossing = notes
            return arrays, np.cumsum([0, *sizes]).tolist(), np.cumsum([0, *crossing]).tolist()

        found = cached(f"shops-{key}", lambda arrays: self._write(arrays, seed), starts)
        assert found is not None
        shared, first, begin = found
        parties = []
        for at in chosen:
            own, across = slice(*first[at : at + 2]), slice(*begin[at : at + 2])
            y, activity = shared["y"][own], shared["activity"][own]
            write = partial(self._write_shop, at=at, y=y, activity=activity, seed=seed)
            use = partial(self._party, at, own, across, shared)
            shop = cached(f"shop-{key}-{at}", write, use)
            assert shop is not None
            parties.append(shop)
        return parties

    def moderator(self) -> Moderator:
        parties = yield None
        return Pool(None, self.classes, parties=tuple(parties), note="Generated products and pairs; no real ones.")

    def _party(
        self, at: int, own: slice, across: slice, shared: dict[str, Tensor], shop: dict[str, Tensor], _: Any
    ) -> Party:
        graph = Data(x=shop["x"].view(-1, self.features), edge_index=shop["edges"].view(2, -1), y=shared["y"][own])
        owners = tuple(f"shop-{other}" for other in range(self.parties) if other != at)
        inner, outer, owner = (shared[name][across] for name in ("inner", "outer", "owner"))
        border = Border(inner, outer, owner, owners)
        masks = {name: shared["split"][own] == value for value, name in enumerate(SPLITS)}
        ids = torch.arange(own.start, own.stop)
        return Party(f"shop-{at}", graph, "node", ids=ids, border=border, pairs=None, schema=None, **masks)

    def _write(self, arrays: Arrays, seed: int) -> tuple[list[int], list[int]]:
        """Write what depends on all shops, and return the numbers of nodes and of edges across, by shop.

        Nodes are numbered party after party.
        """
        generator = numpy_generator(seed, "shops")
        owner = np.sort(generated.draw_owners(self.nodes, self.parties, generator))
        sizes = np.bincount(owner)
        y = generated.draw_kinds(owner, self.parties, self.classes, self.skew, generator)
        activity = generated.draw_activities(self.nodes, self.tail, generator)
        masks = split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split"))
        arrays.series("y", np.int64).append(y)
        arrays.series("activity", np.float64).append(activity)
        arrays.series("split", np.int8).append(sum(at * masks[name].numpy() for at, name in enumerate(SPLITS)))
        pairs = self._pairs(owner, y, activity, self._wanted()[1], generator)
        return sizes.tolist(), self._write_border(arrays, pairs, owner, np.cumsum([0, *sizes]))

    def _write_shop(self, arrays: Arrays, at: int, y: Tensor, activity: Tensor, seed: int) -> int:
        """Write the features and the pairs of one shop."""
        means = generated.draw_means(self.classes, self.features, numpy_generator(seed, "shops, means"))
        generator = numpy_generator(seed, f"shop {at}")
        x = arrays.series("x", np.float32)
        for block in generated.noisy(means, y.numpy(), self.noise, generator):
            x.append(block)
        within = np.zeros(y.numel(), dtype=np.int64)
        wanted = round(self._wanted()[0] * y.numel() / self.nodes)
        pairs = self._pairs(within, y.numpy(), activity.numpy(), wanted, generator)
        edges = arrays.series("edges", np.int64)
        for ends in (pairs[0], pairs[1], pairs[1], pairs[0]):
            edges.append(ends)
        return y.numel()

    def _wanted(self) -> tuple[float, int]:
        """How many pairs there are within shops, and across."""
        pairs = self.nodes * self.degree / 2
        across = round(pairs * self.cross) if self.parties > 1 else 0
        return pairs - across, across

    def _pairs(self, owner: Ints, y: Ints, activity: Floats, wanted: int, generator: np.random.Generator) -> Ints:
        """Different pairs across parties, or within one if it has all nodes: `[2, pairs]`, the lower end first."""
        products = PairSampler(owner, y, self.classes, activity)
        keys = np.empty(0, dtype=np.int64)
        for _ in range(ATTEMPTS):
            missing, new = wanted - keys.size, [keys]
            if missing <= wanted // 1000:  # the last few repeat again and again
                break
            for start in range(0, missing, DRAWN):
                source = products.sample(min(DRAWN, missing - start), generator)
                kind = products.partner_kinds(source, y, self.homophily, generator)
                one, two = products.partners(source, kind, products.parties > 1, generator)
                new.append(np.minimum(one, two) * y.size + np.maximum(one, two))
            keys = np.unique(np.concatenate(new))
        return np.stack(np.divmod(keys, y.size))

    def _write_border(self, arrays: Arrays, pairs: Ints, owner: Ints, first: Ints) -> list[int]:
        """Write the pairs across parties, for each of the two, and return how many each party has."""
        inner, outer = np.concatenate([pairs, pairs[::-1]], axis=1)
        order = np.argsort(owner[inner], kind="stable")
        counts: list[int] = np.bincount(owner[inner], minlength=self.parties).tolist()
        written = {name: arrays.series(name, np.int64) for name in ("inner", "outer", "owner")}
        for at, mine in enumerate(np.split(order, np.cumsum(counts)[:-1])):
            other = owner[outer[mine]]
            written["inner"].append(inner[mine] - first[at])
            written["outer"].append(outer[mine])
            written["owner"].append(other - (other > at))  # counted without the party itself
        return counts
