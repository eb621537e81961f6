"""What generated data sets have in common: who holds what, noisy features, pairs drawn by activity."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.data.matrices import Floats, Ints
from isthmus.data.pool import items_per_party

CHUNK = 1 << 14
"""Draws that are looked up together: few enough to stay in a processor's cache."""


def owners(items: int, parties: int, generator: np.random.Generator) -> Ints:
    """An owner for every item: parties differ in size by a factor of three at most, give or take, and none is empty."""
    sizes = generator.uniform(0.5, 1.5, parties)
    drawn = generator.choice(parties, items - parties, p=sizes / sizes.sum())
    return generator.permutation(np.concatenate([np.arange(parties), drawn]))


def second_holders(owner: Ints, parties: int, share: float, generator: np.random.Generator) -> Ints:
    """For every item the party that holds it too, -1 for none: the given share of the items has one, drawn blindly."""
    second = np.full(owner.size, -1)
    if parties > 1:
        shared = generator.permutation(owner.size)[: round(share * owner.size)]
        second[shared] = (owner[shared] + generator.integers(1, parties, size=shared.size)) % parties
    return second


def holders_of(owner: Ints, second: Ints, parties: int) -> tuple[Tensor, ...]:
    """What each party holds, ascending, where an item has an owner and perhaps a second holder.

    >>> [held.tolist() for held in holders_of(np.array([0, 1, 1]), np.array([1, -1, 0]), 2)]
    [[0, 2], [0, 1, 2]]
    """
    shared = np.flatnonzero(second >= 0)
    item = np.concatenate([np.arange(owner.size), shared])
    order = np.argsort(item, kind="stable")
    holder = torch.from_numpy(np.concatenate([owner, second[shared]])[order])
    return tuple(torch.from_numpy(item[order])[copies] for copies in items_per_party(holder, parties))


def specialised(owner: Ints, parties: int, kinds: int, skew: float, generator: np.random.Generator) -> Ints:
    """A kind for every item: for the share `skew` of them the speciality of the item's owner, for the others any."""
    speciality = generator.permutation(np.arange(parties) % kinds)
    typical = generator.random(owner.size) < skew
    return np.where(typical, speciality[owner], generator.integers(kinds, size=owner.size))


def around_means(y: Ints, kinds: int, width: int, noise: float, generator: np.random.Generator) -> Tensor:
    """Features of noisy items: a mean of length 1 for each kind, and around it normal noise, `[items, width]`."""
    means = generator.normal(size=(kinds, width))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    x = torch.empty(y.size, width)
    for start in range(0, y.size, CHUNK):
        part = y[start : start + CHUNK]
        drawn = means[part] + noise * generator.normal(size=(part.size, width))
        x[start : start + part.size] = torch.from_numpy(drawn)
    return x


def activities(items: int, tail: float, generator: np.random.Generator) -> Floats:
    """How much each item deals with others: a power law with exponent `tail`, cut off at the square root of `items`."""
    with np.errstate(over="ignore"):  # near an exponent of 1; what is infinite is cut off as well
        return np.minimum((1 - generator.random(items)) ** (-1 / (tail - 1)), np.sqrt(items))


class ByWeight:
    """Draws positions in proportion to their weights.

    The positions stand on a line, each as long as its weight, and a draw is a point on that line. The line is cut into
    as many equal steps as there are positions, and a guide table says for each step where the search for a point in it
    begins; so a look-up takes as many steps for a hundred positions as for millions.

    >>> ByWeight(np.array([1.0, 2.0])).at(np.array([0.5, 1.5, 2.5])).tolist()
    [0, 1, 1]
    """

    def __init__(self, weights: Floats) -> None:
        self.size = weights.size
        self.ends = np.concatenate([[0.0], weights.cumsum(), [np.inf]])
        self.total = float(self.ends[-2])
        steps = np.arange(self.size) * (self.total / self.size)
        self.guide = np.searchsorted(self.ends, steps, side="right") - 1

    def any(self, count: int, generator: np.random.Generator) -> Ints:
        """So many positions, each drawn anew."""
        return self.at(generator.random(count) * self.total)

    def at(self, points: Floats) -> Ints:
        """The positions at these points of the line."""
        found = np.empty(points.size, dtype=np.int64)
        for start in range(0, points.size, CHUNK):
            found[start : start + CHUNK] = self._at(points[start : start + CHUNK])
        return found

    def _at(self, points: Floats) -> Ints:
        step = (points * (self.size / self.total)).astype(np.int64) - 1  # one before: the division may have rounded up
        found = self.guide[np.clip(step, 0, self.size - 1)]
        behind = np.flatnonzero(self.ends[found + 1] <= points)
        while behind.size:
            found[behind] += 1
            behind = behind[self.ends[found[behind] + 1] <= points[behind]]
        return np.minimum(found, self.size - 1)


class Pairs:
    """Draws pairs of items by their activity.

    Items stand sorted by group, within it by party, with their activities summed up along the way. So "of this group,
    at this party" is one interval of that sum, and "of this group, at another party" is the group's interval without
    it.

    Arguments:
        party: whose each item is.
        group: what alike items have in common, below `groups`.
        activity: how much each item deals with others.
    """

    def __init__(self, party: Ints, group: Ints, groups: int, activity: Floats) -> None:
        self.party, self.parties = party, int(party.max()) + 1
        cell = group * self.parties + party
        self.order = np.argsort(cell, kind="stable")
        self.line = ByWeight(activity[self.order])
        firsts = np.concatenate([[0], np.bincount(cell, minlength=groups * self.parties).cumsum()])
        self.ends = self.line.ends[firsts]

    def any(self, count: int, generator: np.random.Generator) -> Ints:
        """So many items, drawn by activity alone."""
        return self.order[self.line.any(count, generator)]

    def like(self, source: Ints, kind: Ints, share: float, generator: np.random.Generator) -> Ints:
        """For each source the kind that its partner is to be: with the chance `share` its own, else anyone's."""
        anyone = self.any(source.size, generator)
        return np.where(generator.random(source.size) < share, kind[source], kind[anyone])

    def partners(self, source: Ints, group: Ints, across: bool, generator: np.random.Generator) -> tuple[Ints, Ints]:
        """For each source a partner of this group, at its own party or at another; where there is none the pair goes.

        Returns:
            the pairs, `(source, target)`.
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
            return self.order[self.line.at(own + part * (own_stop - own))]
        start, stop = self.ends[group * self.parties], self.ends[(group + 1) * self.parties]
        point = start + part * (stop - start - (own_stop - own))
        return self.order[self.line.at(np.where(point >= own, point + (own_stop - own), point))]


def tries_for(wanted: int) -> int:
    """How many pairs to draw so that, most often, enough different ones are among them."""
    return 2 * wanted + 64


def distinct(source: Ints, target: Ints, items: int, wanted: int) -> tuple[Ints, Ints]:
    """The first `wanted` different pairs, whichever way round; fewer where there are not as many.

    >>> [each.tolist() for each in distinct(np.array([0, 1, 0]), np.array([1, 0, 2]), items=3, wanted=2)]
    [[0, 0], [1, 2]]
    """
    for some in (wanted + wanted // 8, source.size):  # most often few pairs come twice, and the rest need no look
        left, right = source[:some], target[:some]
        key = np.minimum(left, right) * items + np.maximum(left, right)
        first = np.sort(np.unique(key, return_index=True)[1])[:wanted]
        if first.size == wanted:
            break
    return source[first], target[first]


def both_ways(*pairs: tuple[Ints, Ints]) -> Tensor:
    """Pairs as edges, each in both directions, `[2, edges]`."""
    once = np.concatenate([np.stack(each) for each in pairs], axis=1)
    return torch.from_numpy(np.concatenate([once, once[::-1]], axis=1))
