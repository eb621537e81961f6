"""Generated shops: a graph of any size, written party after party into mapped files."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.cache import digest
from isthmus.data.datasets import generated
from isthmus.data.datasets.generated import PairSampler
from isthmus.data.mapped import Arrays, cached
from isthmus.data.matrices import Floats, Ints
from isthmus.data.party import SPLITS, Border, Party
from isthmus.data.pool import DataSet, Pool, Share, numpy_generator, split_by_share

DRAWN = 1 << 20
"""Pairs that are drawn together."""
ATTEMPTS = 20
"""How often repeated pairs are drawn again, until at most one of a thousand is missing."""


class Shops(DataSet):
    """Products of several shops, joined where they are bought together; the class is a product's category.

    Like `banks`, but for graphs that memory need not hold: each shop's products and pairs are drawn in turn, then the
    pairs across shops, and all go to memory-mapped files in the cache. Few products are in most pairs.
    Features alone say little about the category; those of products bought together say more.
    """

    name: ClassVar[str] = "shops"

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

    def load(self, seed: int) -> Pool:
        """The shops as parties.

        >>> pool = Shops(parties=3, nodes=60, degree=4).load(seed=0)
        >>> [party.name for party in pool.parties], pool.party.nodes
        (['shop-0', 'shop-1', 'shop-2'], 60)
        """
        if self.nodes < self.parties:
            raise self.error(f"{self.nodes} nodes are too few for {self.parties} parties: ask for more nodes")
        found = cached(f"shops-{digest(self.model_dump(), seed)}", lambda arrays: self._write(arrays, seed))
        assert found is not None
        arrays, sizes = found
        first = np.cumsum([0, *sizes]).tolist()
        y, split = arrays["y"], arrays["split"]
        parties = [self._party(at, slice(*first[at : at + 2]), arrays, y, split) for at in range(self.parties)]
        return Pool(None, self.classes, parties=tuple(parties), note="Generated products and pairs; no real ones.")

    def _party(self, at: int, own: slice, arrays: dict[str, Tensor], y: Tensor, split: Tensor) -> Party:
        graph = Data(
            x=arrays[f"{at}-x"].view(-1, self.features), edge_index=arrays[f"{at}-edges"].view(2, -1), y=y[own]
        )
        owners = tuple(f"shop-{other}" for other in range(self.parties) if other != at)
        border = Border(arrays[f"{at}-inner"], arrays[f"{at}-outer"], arrays[f"{at}-owner"], owners)
        masks = {name: split[own] == value for value, name in enumerate(SPLITS)}
        ids = torch.arange(own.start, own.stop)
        return Party(f"shop-{at}", graph, "node", ids=ids, border=border, pairs=None, **masks)

    def _write(self, arrays: Arrays, seed: int) -> list[int]:
        """Write all parties and return their numbers of nodes. Nodes are numbered party after party."""
        generator = numpy_generator(seed, "shops")
        owner = np.sort(generated.draw_owners(self.nodes, self.parties, generator))
        sizes: list[int] = np.bincount(owner).tolist()
        y = generated.draw_kinds(owner, self.parties, self.classes, self.skew, generator)
        activity = generated.draw_activities(self.nodes, self.tail, generator)
        masks = split_by_share(torch.from_numpy(owner), self.train, self.val, numpy_generator(seed, "split"))
        arrays.series("y", np.int64).append(y)
        arrays.series("split", np.int8).append(sum(at * masks[name].numpy() for at, name in enumerate(SPLITS)))
        means = generated.draw_means(self.classes, self.features, generator)
        wanted = self.nodes * self.degree / 2
        across = round(wanted * self.cross) if self.parties > 1 else 0
        first = 0
        for at, size in enumerate(sizes):
            own = slice(first, first + size)
            x = arrays.series(f"{at}-x", np.float32)
            for rows in generated.noisy(means, y[own], self.noise, generator):
                x.append(rows)
            within = np.zeros(size, dtype=np.int64)
            pairs = self._pairs(within, y[own], activity[own], round((wanted - across) * size / self.nodes), generator)
            edges = arrays.series(f"{at}-edges", np.int64)
            for ends in (pairs[0], pairs[1], pairs[1], pairs[0]):
                edges.append(ends)
            first += size
        self._write_border(arrays, self._pairs(owner, y, activity, across, generator), owner, np.cumsum([0, *sizes]))
        return sizes

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

    def _write_border(self, arrays: Arrays, pairs: Ints, owner: Ints, first: Ints) -> None:
        """Write the pairs across parties, for each of the two."""
        inner, outer = np.concatenate([pairs, pairs[::-1]], axis=1)
        order = np.argsort(owner[inner], kind="stable")
        ends = np.cumsum(np.bincount(owner[inner], minlength=self.parties))
        for at, mine in enumerate(np.split(order, ends[:-1])):
            other = owner[outer[mine]]
            arrays.series(f"{at}-inner", np.int64).append(inner[mine] - first[at])
            arrays.series(f"{at}-outer", np.int64).append(outer[mine])
            arrays.series(f"{at}-owner", np.int64).append(other - (other > at))  # counted without the party itself
