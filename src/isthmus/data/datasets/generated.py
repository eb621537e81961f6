"""What generated data sets have in common: owners of items, noisy features, pairs drawn by activity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from isthmus.data.matrices import Floats, Ints
from isthmus.data.pool import items_per_party

CHUNK = 1 << 14
"""Draws that are processed together: few enough to fit in a processor's cache."""


def draw_owners(items: int, parties: int, generator: np.random.Generator) -> Ints:
    """An owner for every item: no party is empty, and the largest has about three times the items of the smallest."""
    sizes = generator.uniform(0.5, 1.5, parties)
    drawn = generator.choice(parties, items - parties, p=sizes / sizes.sum())
    return generator.permutation(np.concatenate([np.arange(parties), drawn]))


def draw_second_holders(owner: Ints, parties: int, share: float, generator: np.random.Generator) -> Ints:
    """A second holder for a random share of the items, -1 for the others, `[items]`."""
    second = np.full(owner.size, -1)
    if parties > 1:
        shared = generator.permutation(owner.size)[: round(share * owner.size)]
        second[shared] = (owner[shared] + generator.integers(1, parties, size=shared.size)) % parties
    return second


def holders(owner: Ints, second: Ints, parties: int) -> tuple[Tensor, ...]:
    """The positions of the items of each party, ascending; an item has an owner and perhaps a second holder.

    >>> [items.tolist() for items in holders(np.array([0, 1, 1]), np.array([1, -1, 0]), 2)]
    [[0, 2], [0, 1, 2]]
    """
    shared = np.flatnonzero(second >= 0)
    item = np.concatenate([np.arange(owner.size), shared])
    order = np.argsort(item, kind="stable")
    holder = torch.from_numpy(np.concatenate([owner, second[shared]])[order])
    items = torch.from_numpy(item[order])
    return tuple(items[copies] for copies in items_per_party(holder, parties))


def draw_kinds(owner: Ints, parties: int, kinds: int, skew: float, generator: np.random.Generator) -> Ints:
    """A kind for every item: with probability `skew` the speciality of its owner, else a random one."""
    speciality = generator.permutation(np.arange(parties) % kinds)
    typical = generator.random(owner.size) < skew
    return np.where(typical, speciality[owner], generator.integers(kinds, size=owner.size))


def draw_features(y: Ints, kinds: int, width: int, noise: float, generator: np.random.Generator) -> Tensor:
    """Features `[items, width]`: the mean of the item's kind, a vector of length 1, plus normal noise."""
    means = draw_means(kinds, width, generator)
    x, start = torch.empty(y.size, width), 0
    for drawn in noisy(means, y, noise, generator):
        x[start : start + len(drawn)] = torch.from_numpy(drawn)
        start += len(drawn)
    return x


def draw_means(kinds: int, width: int, generator: np.random.Generator) -> Floats:
    """A random vector of length 1 for every kind, `[kinds, width]`."""
    means = generator.normal(size=(kinds, width))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return means


def noisy(means: Floats, y: Ints, noise: float, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield the means of the kinds `y` plus normal noise, a block of rows after the other."""
    for start in range(0, y.size, CHUNK):
        part = y[start : start + CHUNK]
        yield means[part] + noise * generator.normal(size=(part.size, means.shape[1]))


def draw_activities(items: int, tail: float, generator: np.random.Generator) -> Floats:
    """The activity of each item: from a power law with exponent `tail`, at most the square root of `items`."""
    with np.errstate(over="ignore"):  # exponents near 1 overflow to infinity, which is cut off as well
        return np.minimum((1 - generator.random(items)) ** (-1 / (tail - 1)), np.sqrt(items))


class WeightedSampler:
    """Draws positions in proportion to their weights, in constant time per draw.

    The positions are intervals on a line, each as long as its weight, and a draw is a point on that line. A guide table
    splits the line into as many equal steps as there are positions, and says for each step where to start the search.

    >>> WeightedSampler(np.array([1.0, 2.0])).lookup(np.array([0.5, 1.5, 2.5])).tolist()
    [0, 1, 1]
    """

    def __init__(self, weights: Floats) -> None:
        self.size = weights.size
        self.ends = np.concatenate([[0.0], weights.cumsum(), [np.inf]])
        self.total = float(self.ends[-2])
        steps = np.arange(self.size) * (self.total / self.size)
        self.guide = np.searchsorted(self.ends, steps, side="right") - 1

    def sample(self, count: int, generator: np.random.Generator) -> Ints:
        """`count` positions, drawn with replacement."""
        return self.lookup(generator.random(count) * self.total)

    def lookup(self, points: Floats) -> Ints:
        """The positions at these points of the line."""
        positions = np.empty(points.size, dtype=np.int64)
        for start in range(0, points.size, CHUNK):
            positions[start : start + CHUNK] = self._lookup(points[start : start + CHUNK])
        return positions

    def _lookup(self, points: Floats) -> Ints:
        step = (points * (self.size / self.total)).astype(np.int64) - 1  # one early: the division may have rounded up
        positions = self.guide[np.clip(step, 0, self.size - 1)]
        behind = np.flatnonzero(self.ends[positions + 1] <= points)
        while behind.size:
            positions[behind] += 1
            behind = behind[self.ends[positions[behind] + 1] <= points[behind]]
        return np.minimum(positions, self.size - 1)


class PairSampler:
    """Draws pairs of items in proportion to their activity.

    Items are sorted by group, then party, on the line of a `WeightedSampler`. The items of one group at one party are
    then one interval, and those of the group at other parties are the group's interval without it.

    Arguments:
        party: the party of each item.
        group: the group of each item, below `groups`.
        activity: the weight of each item.
    """

    def __init__(self, party: Ints, group: Ints, groups: int, activity: Floats) -> None:
        self.party, self.parties = party, int(party.max()) + 1
        cell = group * self.parties + party
        self.order = np.argsort(cell, kind="stable")
        self.line = WeightedSampler(activity[self.order])
        firsts = np.concatenate([[0], np.bincount(cell, minlength=groups * self.parties).cumsum()])
        self.ends = self.line.ends[firsts]

    def sample(self, count: int, generator: np.random.Generator) -> Ints:
        """`count` items, drawn by activity."""
        return self.order[self.line.sample(count, generator)]

    def partner_kinds(self, source: Ints, kind: Ints, share: float, generator: np.random.Generator) -> Ints:
        """The kind of each source's partner: with probability `share` its own, else that of a random item."""
        anyone = self.sample(source.size, generator)
        return np.where(generator.random(source.size) < share, kind[source], kind[anyone])

    def partners(self, source: Ints, group: Ints, across: bool, generator: np.random.Generator) -> tuple[Ints, Ints]:
        """Pairs `(source, target)`: for each source a partner of the given group, at its own or at another party.

        Pairs are left out where there is no such partner.
        """
        target = np.empty_like(source)
        for start in range(0, source.size, CHUNK):
            some = slice(start, start + CHUNK)
            target[some] = self._partner(group[some], self.party[source[some]], across, generator)
        right = ((self.party[source] != self.party[target]) == across) & (source != target)
        return source[right], target[right]

    def _partner(self, group: Ints, party: Ints, across: bool, generator: np.random.Generator) -> Ints:
        own, own_stop = self.ends[group * self.parties + party], self.ends[group * self.parties + party + 1]
        part = generator.random(group.size)
        if not across:
            return self.order[self.line.lookup(own + part * (own_stop - own))]
        start, stop = self.ends[group * self.parties], self.ends[(group + 1) * self.parties]
        point = start + part * (stop - start - (own_stop - own))
        return self.order[self.line.lookup(np.where(point >= own, point + (own_stop - own), point))]


def oversampled(wanted: int) -> int:
    """How many pairs to draw so that `wanted` different ones are most often among them."""
    return 2 * wanted + 64


def first_distinct(source: Ints, target: Ints, items: int, wanted: int) -> tuple[Ints, Ints]:
    """The first `wanted` different pairs, in either direction; fewer if there are not as many.

    >>> [each.tolist() for each in first_distinct(np.array([0, 1, 0]), np.array([1, 0, 2]), items=3, wanted=2)]
    [[0, 0], [1, 2]]
    """
    for some in (wanted + wanted // 8, source.size):  # few pairs are repeated, so the first part is mostly enough
        left, right = source[:some], target[:some]
        key = np.minimum(left, right) * items + np.maximum(left, right)
        first = np.sort(np.unique(key, return_index=True)[1])[:wanted]
        if first.size == wanted:
            break
    return source[first], target[first]


def undirected(*pairs: tuple[Ints, Ints]) -> Tensor:
    """Edges in both directions from pairs, `[2, edges]`."""
    once = np.concatenate([np.stack(each) for each in pairs], axis=1)
    return torch.from_numpy(np.concatenate([once, once[::-1]], axis=1))
