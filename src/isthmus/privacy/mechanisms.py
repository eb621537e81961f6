"""Mechanisms that hide single bits, such as whether two nodes are joined."""

from __future__ import annotations

import math
from abc import abstractmethod
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Tensor

from isthmus.data.matrices import Ints
from isthmus.options import Registered
from isthmus.privacy.accounting import PrivacyCost
from isthmus.privacy.random_bits import Bits
from isthmus.privacy.sampling import bernoulli, discrete_gaussian, discrete_laplace, rate_below

GRID = 2**20
"""Noise is a whole number of steps of 1 / GRID: the last digits of floating-point noise reveal the bit (Mironov
2012)."""
WIDER = 1 + 2.0**-20
"""By how much a discrete Gaussian is wider than the continuous one whose delta it must not exceed."""


class Mechanism(Registered):
    """A way to release bits with noise under (epsilon, delta)-differential privacy.

    P[M(0) in S] <= exp(epsilon) P[M(1) in S] + delta for every set S, and with 0 and 1 exchanged.
    """

    kind: ClassVar[str] = "mechanism"
    built_in_module: ClassVar[str] = "isthmus.privacy.mechanisms"

    epsilon: float = Field(1.0, gt=0, le=1e6)
    """Privacy budget of one release."""

    @abstractmethod
    def release(self, bits: Tensor, source: Bits) -> Tensor:
        """Add independent noise to each bit.

        Arguments:
            bits: zeros and ones as floating-point numbers, `[bits]`.
            source: of the noise.
        """

    @abstractmethod
    def log_odds(self, values: Tensor) -> Tensor:
        """Log of the likelihood ratio of released values, bit 1 against bit 0, `[bits]`."""

    def unbiased(self, values: Tensor) -> Tensor:
        """Estimates of the bits from released values, whose expectations are the bits."""
        return values

    @property
    def cost(self) -> PrivacyCost:
        """The privacy cost of one release of a bit."""
        return PrivacyCost(self.epsilon)


class Additive(Mechanism):
    """Noise that is added to the bits."""

    def release(self, bits: Tensor, source: Bits) -> Tensor:
        steps = np.round(bits.numpy()).astype(np.int64) * GRID + self.noise(bits.numel(), source)
        return torch.from_numpy(steps / GRID).to(bits.dtype)

    @abstractmethod
    def noise(self, count: int, source: Bits) -> Ints:
        """Noise for so many bits, in steps of 1 / GRID."""


class Laplace(Additive):
    """Noise of the discrete Laplace distribution with scale 1 / epsilon.

    A bit changes the value by 1, that is, by GRID steps, and each step makes a value exp(epsilon / GRID) times less
    likely (Dwork et al. 2006; on a grid Ghosh et al. 2009).
    """

    name: ClassVar[str] = "laplace"

    def noise(self, count: int, source: Bits) -> Ints:
        """
        >>> from isthmus.privacy.random_bits import SeededBits
        >>> Laplace(epsilon=1e5).release(torch.tensor([0.0, 1.0]), SeededBits(0)).round().abs().tolist()
        [0.0, 1.0]
        """
        return discrete_laplace(rate_below(self.epsilon / GRID), count, source)

    def log_odds(self, values: Tensor) -> Tensor:
        return self.epsilon * (2 * values.clamp(0, 1) - 1)


class Gaussian(Additive):
    """The least normal noise that (epsilon, delta) allows (the analytic Gaussian mechanism, Balle and Wang 2018), by
    the discrete Gaussian distribution."""

    name: ClassVar[str] = "gaussian"

    delta: float = Field(1e-5, gt=0, lt=1)
    """Probability with which epsilon may be exceeded."""

    def noise(self, count: int, source: Bits) -> Ints:
        return discrete_gaussian(Fraction(self.sigma * WIDER * GRID) ** 2, count, source)

    @property
    def cost(self) -> PrivacyCost:
        return PrivacyCost(self.epsilon, self.delta)

    def log_odds(self, values: Tensor) -> Tensor:
        return (2 * values - 1) / (2 * self.sigma**2)

    @property
    def sigma(self) -> float:
        """The least standard deviation s with Phi(1/2s - eps s) - exp(eps) Phi(-1/2s - eps s) <= delta."""
        low, high = 1e-6, 1.0
        while gaussian_delta(high, self.epsilon) > self.delta:
            high *= 2
        return float(brentq(lambda sigma: gaussian_delta(sigma, self.epsilon) - self.delta, low, high, xtol=1e-12))


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """The delta of normal noise on a value that changes by at most 1 (Balle and Wang 2018, theorem 8).

    >>> round(gaussian_delta(1.0, 1.0), 4)
    0.1269
    """
    half, shift = 0.5 / sigma, epsilon * sigma
    return math.exp(log_ndtr(half - shift)) - math.exp(min(epsilon + log_ndtr(-half - shift), 0.0))


class RandomizedResponse(Mechanism):
    """Release the true bit with probability exp(epsilon) / (1 + exp(epsilon)), else the other one (Warner 1965)."""

    name: ClassVar[str] = "randomized-response"

    def release(self, bits: Tensor, source: Bits) -> Tensor:
        odds = math.exp(-self.epsilon)
        flipped = bernoulli(odds / (1 + odds), self._flip, bits.numel(), source)
        return torch.where(torch.from_numpy(flipped), 1 - bits, bits)

    def _flip(self, digits: int) -> Decimal:
        """The probability of a flip."""
        with localcontext() as context:
            context.prec, context.Emax = digits, 10**9
            return 1 / (1 + Decimal(self.epsilon).exp())

    def unbiased(self, values: Tensor) -> Tensor:
        odds = math.exp(-self.epsilon)
        flip = odds / (1 + odds)
        return (values - flip) / (1 - 2 * flip)

    def log_odds(self, values: Tensor) -> Tensor:
        return self.epsilon * (2 * values - 1)
