"""Mechanisms that hide single bits: whether two nodes are joined."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from pydantic import Field
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Tensor

from isthmus.options import Registered
from isthmus.privacy.accounting import Spent


class Mechanism(Registered):
    """A way to release bits with noise. What it releases tells of each bit little more than if the bit were the other.

    (epsilon, delta)-differential privacy: P[M(0) in S] <= exp(epsilon) P[M(1) in S] + delta for every set S, and the
    other way round.
    """

    kind: ClassVar[str] = "mechanism"
    home: ClassVar[str] = "isthmus.privacy.mechanisms"

    epsilon: float = Field(1.0, gt=0)
    """Privacy budget of one release."""

    @abstractmethod
    def release(self, bits: Tensor, generator: torch.Generator) -> Tensor:
        """Each bit with noise of its own.

        Arguments:
            bits: zeros and ones, floating, `[bits]`.
        """

    @property
    def cost(self) -> Spent:
        """What one release of a bit spends."""
        return Spent(self.epsilon)


class Laplace(Mechanism):
    """Noise of the Laplace distribution with scale 1 / epsilon (Dwork et al. 2006): a bit changes the value by 1."""

    name: ClassVar[str] = "laplace"

    def release(self, bits: Tensor, generator: torch.Generator) -> Tensor:
        """
        >>> Laplace(epsilon=1e6).release(torch.tensor([0.0, 1.0]), torch.Generator()).round().abs().tolist()
        [0.0, 1.0]
        """
        sign = torch.randint(2, bits.shape, generator=generator, device=bits.device) * 2 - 1
        noise = torch.empty_like(bits).exponential_(self.epsilon, generator=generator)
        return bits + sign * noise


class Gaussian(Mechanism):
    """Normal noise, as little as (epsilon, delta) allows (the analytic Gaussian mechanism, Balle and Wang 2018)."""

    name: ClassVar[str] = "gaussian"

    delta: float = Field(1e-5, gt=0, lt=1)
    """Probability with which epsilon may be exceeded."""

    def release(self, bits: Tensor, generator: torch.Generator) -> Tensor:
        return bits + self.sigma * torch.randn(bits.shape, dtype=bits.dtype, generator=generator, device=bits.device)

    @property
    def cost(self) -> Spent:
        return Spent(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """The least standard deviation s with Phi(1/2s - eps s) - exp(eps) Phi(-1/2s - eps s) <= delta."""
        low, high = 1e-6, 1.0
        while delta_of(high, self.epsilon) > self.delta:
            high *= 2
        return float(brentq(lambda sigma: delta_of(sigma, self.epsilon) - self.delta, low, high, xtol=1e-12))


def delta_of(sigma: float, epsilon: float) -> float:
    """What normal noise on a value that changes by at most 1 spends besides epsilon (Balle and Wang, theorem 8).

    >>> round(delta_of(1.0, 1.0), 4)
    0.1269
    """
    half, shift = 0.5 / sigma, epsilon * sigma
    return math.exp(log_ndtr(half - shift)) - math.exp(min(epsilon + log_ndtr(-half - shift), 0.0))


class RandomizedResponse(Mechanism):
    """A bit is told as it is with probability exp(epsilon) / (1 + exp(epsilon)), else turned round (Warner 1965)."""

    name: ClassVar[str] = "randomized-response"

    def release(self, bits: Tensor, generator: torch.Generator) -> Tensor:
        turned = torch.rand(bits.shape, generator=generator, device=bits.device) < 1 / (1 + math.exp(self.epsilon))
        return torch.where(turned, 1 - bits, bits)
