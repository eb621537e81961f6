"""Random draws of parties, from a counter-based hash: the same alone, in a cohort, on any device and any machine.

A draw is a hash of (the party's key, its position), so one kernel draws for all parties and nothing has to be drawn
in order. The key is a hash of the party's seed and the draw's purpose. The two mixing functions are public and well
tested: splitmix64's for keys, lowbias32 (Wellons 2018) for draws. Neither is for secrets: noise that protects edges has
streams of its own, see `privacy/random_bits.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from isthmus.nn.products import Features

CHUNK = 1 << 16
"""Draws that are hashed at a time: they stay in the processor's cache."""
_ODD = -1640531527  # 2^32 / golden ratio: neighbouring positions differ in many bits
_FIRST, _SECOND = 0x7FEB352D, -2073254261  # the multipliers of lowbias32


def seed_of(*parts: object) -> int:
    """A seed from the texts of some objects, such as run seed, party and purpose.

    >>> seed_of(0, "bank-a", "train", 1) == seed_of(0, "bank-a", "train", 1)
    True
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Within the `with`, torch's global draws start at this seed; afterwards they go on as before."""
    with torch.random.fork_rng(devices=[]):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # `manual_seed` formats the stack for each kind of accelerator, in case there will be one
            torch.default_generator.manual_seed(seed)
        yield


class Draws:
    """Random numbers of some parties for one purpose.

    A method draws for all parties at once. `sizes` says how many rows each party has; a party's numbers depend on its
    key and on the position within its own rows, so they are the same in every cohort. Drawing twice gives the same
    numbers; use `of` for others.

    Arguments:
        keys: of each party, 64 bits.

    >>> both, alone = Draws.seeded([1, 2]).of("noise"), Draws.seeded([2]).of("noise")
    >>> torch.equal(both.uniform((3, 2))[3:], alone.uniform((2,)))
    True
    """

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self.keys = keys

    @classmethod
    def seeded(cls, seeds: Sequence[int]) -> Draws:
        """The draws of parties with these seeds."""
        return cls(_mixed(np.asarray(seeds, dtype=np.uint64)))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Draws]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, at: int) -> Draws:
        """The draws of the party at this position."""
        return Draws(self.keys[at : at + 1])

    def of(self, *purpose: object) -> Draws:
        """The parties' draws for another purpose: a name, an epoch, a step."""
        return Draws(_mixed(self.keys ^ np.uint64(seed_of(*purpose))))

    def of_counts(self, counts: Sequence[int]) -> Draws:
        """As `of`, with a number of its own for each party."""
        return Draws(_mixed(self.keys + _mixed(np.asarray(counts, dtype=np.uint64))))

    def bits(self, sizes: Sequence[int], width: int = 1, device: torch.device | None = None) -> Tensor:
        """32 random bits per element, `[rows, width]`, int32."""
        party, row = _places(tuple(sizes), device or torch.device("cpu"))
        halves = torch.from_numpy(self.keys.view(np.int32).reshape(-1, 2).copy()).to(party.device)
        found = torch.empty(row.numel(), width, dtype=torch.int32, device=party.device)
        column = torch.arange(width, dtype=torch.int32, device=party.device) * _ODD
        start = row * (_ODD * width) + halves[:, 0][party]
        rows_at_once = max(1, CHUNK // max(1, width))
        scratch = torch.empty(min(rows_at_once, row.numel()), width, dtype=torch.int32, device=party.device)
        for at in range(0, row.numel(), rows_at_once):
            part = slice(at, at + rows_at_once)
            x = torch.add(start[part].unsqueeze(1), column, out=found[part])
            _hash(x, halves[:, 1][party[part]].unsqueeze(1), scratch[: x.size(0)])
        return found

    def uniform(self, sizes: Sequence[int], *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform draws from [0, 1), `[rows, *shape]`, exact on every machine."""
        width = math.prod(shape)
        if dtype != torch.float64:
            return ((self.bits(sizes, width) >> 8) & 0xFFFFFF).to(dtype).mul_(2.0**-24).view(sum(sizes), *shape)
        high, low = self.bits(sizes, 2 * width).long().split(width, dim=1)
        return ((high & 0xFFFFFFFF) << 21 | (low & 0x1FFFFF)).double().mul_(2.0**-53).view(sum(sizes), *shape)

    def normal(self, sizes: Sequence[int], *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal draws, `[rows, *shape]`, by the Box-Muller method in double precision."""
        width = math.prod(shape)
        pairs = -(-width // 2)
        one, other = self.uniform(sizes, 2 * pairs, dtype=torch.float64).split(pairs, dim=1)
        radius, angle = one.neg_().log1p_().mul_(-2.0).sqrt_(), other.mul_(2.0 * math.pi)
        both = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
        return both[:, :width].to(dtype).reshape(sum(sizes), *shape)

    def integers(self, sizes: Sequence[int], high: int) -> Tensor:
        """Whole numbers from 0 to `high`, exclusive, `[rows]`."""
        return (self.bits(sizes).squeeze(1).long() & 0xFFFFFFFF) * high >> 32

    def order(self, sizes: Sequence[int]) -> Tensor:
        """Each party's rows in a random order, party after party: positions, `[rows]`.

        >>> Draws.seeded([1, 2]).order((3, 2)).sort().values.tolist()
        [0, 1, 2, 3, 4]
        """
        party, _ = _places(tuple(sizes), torch.device("cpu"))
        return torch.argsort((party << 32) | (self.bits(sizes).squeeze(1).long() & 0xFFFFFFFF), stable=True)

    def some(self, count: int, most: int) -> Tensor:
        """At most `most` of `count` positions, ascending; for the draws of one party."""
        if count <= most:
            return torch.arange(count)
        return self.order((count,))[:most].sort().values


def draws_of(*parts: object) -> Draws:
    """Draws of one party, or of a server, seeded by `parts`."""
    return Draws.seeded([seed_of(*parts)])


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash(x: Tensor, key: Tensor, scratch: Tensor) -> None:
    """Lowbias32 with a key between its two rounds, in place."""
    # int32 has no logical shift: a mask clears the copies of the sign
    torch.bitwise_right_shift(x, 16, out=scratch).bitwise_and_(0xFFFF)
    x.bitwise_xor_(scratch).mul_(_FIRST)
    torch.bitwise_right_shift(x, 15, out=scratch).bitwise_and_(0x1FFFF)
    x.bitwise_xor_(scratch).bitwise_xor_(key).mul_(_SECOND)
    torch.bitwise_right_shift(x, 16, out=scratch).bitwise_and_(0xFFFF)
    x.bitwise_xor_(scratch)


@lru_cache(maxsize=4)
def _places(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The party of every row, and the row's position within its party."""
    counts = torch.tensor(sizes)
    party = torch.arange(len(sizes)).repeat_interleave(counts)
    row = torch.arange(party.numel()) - (counts.cumsum(0) - counts)[party]
    return party.to(device), row.to(device, torch.int32)


class NotSideBySide(Exception):  # noqa: N818
    """A layer has rows whose parties are unknown, so the model must run one party after another."""


class PartyDropout(TorchFunctionMode):
    """While active, `torch.nn.functional.dropout` draws for every party from that party's draws.

    Arguments:
        draws: of the parties; each call of dropout has a number, which is part of the purpose.
        layouts: how rows may divide among the parties: nodes of each, graphs of each.
    """

    def __init__(self, draws: Draws, layouts: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.draws = draws
        self.layouts = layouts
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return x
        sizes = rows_per_party(x.size(0), self.layouts)
        self.calls += 1
        if isinstance(x, Features):
            return x.with_values(x.values * self.factors(x.entries(sizes), x.values.shape, p, x.values))
        return x * self.factors(sizes, x.shape, p, x)

    def factors(self, sizes: Sequence[int], shape: Sequence[int], p: float, like: Tensor) -> Tensor:
        """The dropout factor of each element: 0, or the inverse of the probability to survive.

        An element takes 16 bits: half the hashes, and the probability is right to 1/65536.
        """
        width = math.prod(shape[1:])
        survive = round((1.0 - p) * 2**16)
        bits = self.draws.of(self.calls).bits(sizes, -(-width // 2), like.device).view(torch.int16)
        factors = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        # written as real numbers at once: by way of a mask of booleans it takes five times as long
        torch.le(bits[:, :width].view(*shape), survive - 2**15 - 1, out=factors)
        return factors.mul_(2**16 / survive if survive else 0.0)


def rows_per_party(count: int, layouts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """How many of `count` rows each party has: those of the layout with that sum; with one party, all."""
    if len(layouts[0]) == 1:
        return (count,)
    for sizes in layouts:
        if sum(sizes) == count:
            return sizes
    raise NotSideBySide(f"{count} rows: neither one per node nor one per graph of the parties")
