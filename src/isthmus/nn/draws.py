"""Random draws of a party, which are the same alone, in a cohort, and on any device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from isthmus.nn.products import Features


def seed_of(*parts: object) -> int:
    """A seed from the texts of some objects, such as run seed, party, purpose and count.

    >>> seed_of(0, "bank-a", "train", 1) == seed_of(0, "bank-a", "train", 1)
    True
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: object) -> torch.Generator:
    """A generator seeded by `parts`, always on the CPU: draws are moved to the device, so that all devices agree."""
    return torch.Generator().manual_seed(seed_of(*parts))


class NotSideBySide(Exception):  # noqa: N818
    """A layer has rows whose parties are unknown, so the model must run one party after another."""


class Draws(TorchFunctionMode):
    """While active, `torch.nn.functional.dropout` draws for every party from that party's generator.

    Arguments:
        generators: one per party.
        layouts: how rows may divide among the parties: nodes of each, graphs of each.
    """

    def __init__(self, generators: Sequence[torch.Generator], layouts: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.generators = generators
        self.layouts = layouts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return x
        sizes = rows_per_party(x.size(0), self.layouts)
        if isinstance(x, Features):
            return x.with_values(x.values * self.factors(x.entries(sizes), x.values.shape, p, x.values))
        return x * self.factors(sizes, x.shape, p, x)

    def factors(self, sizes: Sequence[int], shape: Sequence[int], p: float, like: Tensor) -> Tensor:
        """The dropout factor of each element: 0, or 1/(1-p)."""
        # comparing integers of 31 bits with a threshold takes a quarter of the time of `bernoulli_`
        draws = torch.empty(tuple(shape), dtype=torch.int32)
        for part, source in zip(draws.split(list(sizes)), self.generators, strict=True):
            if part.numel():
                part.random_(generator=source)
        survives = draws < int((1.0 - p) * 2**31)
        return survives.to(like.device, like.dtype).mul_(1.0 / (1.0 - p) if p < 1.0 else 0.0)


def rows_per_party(count: int, layouts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """How many of `count` rows each party has: those of the layout with that sum; with one party, all."""
    if len(layouts[0]) == 1:
        return (count,)
    for sizes in layouts:
        if sum(sizes) == count:
            return sizes
    raise NotSideBySide(f"{count} rows: neither one per node nor one per graph of the parties")
