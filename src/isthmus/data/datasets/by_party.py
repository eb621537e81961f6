"""Data that come as parties: every machine of a cluster loads those that it holds, and none loads all.

Loaders and a moderator settle what depends on all parties, such as an encoding or the number of classes. Each loader
has some of the parties and sends a message for each of them. The moderator reads the messages for all parties and
broadcasts what follows from them. This repeats until the loaders send their parties.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from isthmus.data.pool import DataSet, Pool

Loader: TypeAlias = Generator[list[Any], Any, list[Any]]
"""Yields a message for each of its parties, receives broadcasts, and returns its parties."""
Moderator: TypeAlias = Generator[Any, list[Any], Pool]
"""Receives the messages for all parties, yields broadcasts (the first is None), and returns the pool."""


class PartyData(DataSet):
    """A source of data that come as parties. A subclass implements size, loader and moderator."""

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
        return negotiate(self.moderator(), lambda broadcast: next_messages(loader, broadcast))


def negotiate(moderator: Moderator, send: Callable[[Any], list[Any]]) -> Pool:
    """Run the moderator to its end and return the pool.

    Arguments:
        send: sends a broadcast to all loaders and returns their messages, for every party in order.
    """
    broadcast = next(moderator)
    while True:
        messages = send(broadcast)
        try:
            broadcast = moderator.send(messages)
        except StopIteration as end:
            pool: Pool = end.value
            return pool


def next_messages(loader: Loader, broadcast: Any) -> list[Any]:
    """Send a broadcast to a loader and return its messages: at the end, its parties."""
    try:
        return loader.send(broadcast)
    except StopIteration as end:
        parties: list[Any] = end.value
        return parties
