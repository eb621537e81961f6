"""Data that come as parties: every machine of a cluster loads those that it holds, and none loads all.

What depends on all parties (an encoding; numbers of classes) is settled in a talk. Loaders, each with some of the
parties, say something for each of theirs; a moderator hears what was said for all and tells all what follows from it;
and so on, until what a loader says are its parties.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from isthmus.data.pool import DataSet, Pool

Loader: TypeAlias = Generator[list[Any], Any, list[Any]]
"""Yields what it says for each of its parties, is sent what all are told, and returns its parties."""
Moderator: TypeAlias = Generator[Any, list[Any], Pool]
"""Is sent what was said for all parties, yields what all are told (first: None), and returns the pool."""


class PartyData(DataSet):
    """A source of data that come as parties. A subclass implements the three parts of the talk."""

    @abstractmethod
    def party_sizes(self) -> Sequence[int]:
        """About how large each party is; only their ratios matter, and how many there are."""

    @abstractmethod
    def loader(self, chosen: Sequence[int], seed: int) -> Loader:
        """Load the parties at these positions."""

    @abstractmethod
    def moderator(self) -> Moderator:
        """Settle what depends on all parties; the last that it is sent are the parties."""

    def load(self, seed: int) -> Pool:
        loader = self.loader(range(len(self.party_sizes())), seed)
        return moderate(self.moderator(), lambda told: say(loader, told))


def moderate(moderator: Moderator, tell: Callable[[Any], list[Any]]) -> Pool:
    """Hold the talk.

    Arguments:
        tell: tells all loaders something, and returns what they then say, for every party in order.
    """
    told = next(moderator)
    while True:
        said = tell(told)
        try:
            told = moderator.send(said)
        except StopIteration as end:
            pool: Pool = end.value
            return pool


def say(loader: Loader, told: Any) -> list[Any]:
    """What a loader says next: at the end, its parties."""
    try:
        return loader.send(told)
    except StopIteration as end:
        parties: list[Any] = end.value
        return parties
