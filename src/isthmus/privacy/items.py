"""Sums of gradients of single items, clipped and with noise: what a step of DP-SGD reads (Abadi et al. 2016).

Step:  each item of a party is in B with probability q, independently (Poisson sampling)
       x_i <- trunc(u_i min(1, c / |u_i|) / g),  g = c / L       u_i the gradient of item i, over all weights together
       u   <- g (sum_{i in B} x_i + N_Z(0, (z L)^2)) / (q n)     n training items of the party

Truncation makes no norm larger, so |x_i| <= L holds in whole numbers, and whole numbers add up exactly. An item and one
from which nothing can be learned (its gradient is 0) differ in the sum by L at most, if it is in B at all. So a step
costs as much as Gaussian noise with the multiplier z, amplified by sampling with rate q. `privacy.updates` says how far
the loss of discrete noise is from that of continuous noise, r / (z^2 L) here. Sampling makes that distance no larger:
log(1 - q + q exp(l)) rises no faster than l.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from isthmus.data.matrices import Bools, Ints
from isthmus.privacy.account import Account, GaussianNoise, Release, gaussian_multiplier
from isthmus.privacy.options import ItemPrivacy
from isthmus.privacy.random_bits import Bits
from isthmus.privacy.sampling import discrete_gaussian
from isthmus.privacy.updates import FAR, TAIL, noise_on_grid

STEPS = 2**30
"""Steps of the grid in the largest norm (L)."""
WITHIN = 1 - 2.0**-20
"""Norms are scaled to this share of the largest one, so that rounding in double precision leads to no larger ones."""


@dataclass(frozen=True)
class ItemPlan:
    """What a party does with the gradients of its items, in a run that is planned so.

    Arguments:
        options: what the study asks for.
        calls: how often a party trains.
        epochs: of all trainings of a call.
        multiplier: the noise of a step, as a multiple of the largest norm (z).
    """

    options: ItemPrivacy
    calls: int
    epochs: int
    multiplier: float

    @classmethod
    def of(cls, options: ItemPrivacy, calls: int, epochs: int, beside: Account | None = None) -> ItemPlan:
        """The plan with the least noise.

        Arguments:
            beside: what else the epsilon pays.

        >>> round(ItemPlan.of(ItemPrivacy(epsilon=8.0), 10, 5).multiplier, 2)
        4.24
        """
        times = calls * epochs * _steps(options.rate)
        more = () if beside is None else tuple(beside.releases)
        return cls(options, calls, epochs, _multiplier(options.epsilon, options.delta, times, options.rate, more))

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return _steps(self.options.rate)

    @property
    def grid(self) -> float:
        """A step of the grid, as a change of a gradient (g)."""
        return self.options.clip / STEPS

    @property
    def noise(self) -> GaussianNoise:
        """What a step costs."""
        return noise_on_grid(self.multiplier, STEPS, self.options.rate)

    def account(self, calls: int) -> Account:
        """The account of a party that has trained so often."""
        account = Account()
        account.add(self.options.name, self.noise, calls * self.epochs * self.steps, "sums of gradients")
        return account

    def sample(self, count: int, bits: Bits) -> Bools:
        """Which of so many items a step reads."""
        if self.options.rate >= 1:
            return np.ones(count, bool)
        return bits.words(count) < np.uint64(math.floor(Fraction(self.options.rate) * 2**64))

    def clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """Gradients of items on the grid, whole numbers in double precision; one that is not finite counts as 0.

        Arguments:
            gradients: of each weight, `[items, ...]`.
        """
        exact = [gradient.double() for gradient in gradients]
        norms = torch.stack([each.flatten(1).square().sum(1) for each in exact]).sum(0).sqrt()
        factor = STEPS * WITHIN / norms.clamp(min=self.options.clip)
        lost = ~norms.isfinite()
        for each in exact:
            each.mul_(factor.view(-1, *[1] * (each.dim() - 1))).trunc_()
            if bool(lost.any()):
                each[lost] = 0
        return exact

    def noisy(self, sums: Ints, items: int, bits: Bits) -> Tensor:
        """The mean gradient of a party, from the sum of those of a step's items."""
        variance = (Fraction(self.multiplier) * STEPS) ** 2
        return torch.from_numpy((sums + discrete_gaussian(variance, len(sums), bits)) * (self.grid / self._mean(items)))

    def _mean(self, items: int) -> float:
        """How many of so many items a step reads on average."""
        return self.options.rate * items


def _steps(rate: float) -> int:
    return math.ceil(1 / rate)


@lru_cache(maxsize=64)
def _multiplier(epsilon: float, delta: float, times: int, rate: float, beside: tuple[Release, ...]) -> float:
    return gaussian_multiplier(epsilon, delta, times, FAR / STEPS, TAIL, rate, beside)
