"""Updates that parties clip, round to a grid, and add their share of the noise to: the distributed discrete Gaussian
(Kairouz, Liu and Steinke 2021).

Party:  v <- u min(1, c / |u|) / g,  g = c / 2^20           u what it changed, over all weights together
        x <- v rounded at random, so that E x = v, until |x|^2 <= D^2
        y <- x + N_Z(0, s^2),  s = z D / sqrt(n - m)          n parties of the sum, m of them without noise
Reader: g sum y / n

D^2 = min((L + sqrt(d))^2, L^2 + d / 4 + L + sqrt(d) / 2), L = 2^20, d numbers, is the paper's bound of the norm after
rounding with beta = e^(-1/2): one try in three or more keeps it, and it is checked in whole numbers.

What it costs. A sum of n - m discrete Gaussians of s >= 4 differs from the one of variance S^2 = (n - m) s^2 in no
probability by more than a factor exp(t) per number, t = 10 sum_k exp(-2 pi^2 s^2 k / (k + 1)) < 1e-66 n (the paper's
theorem 11), which no figure here shows. That one, X, compares with a continuous Gaussian G of variance S^2 so: the
fractions of G are uniform but for exp(-2 pi^2 S^2), and given these, G - X is monotone-coupled within one step. So for
every whole vector a the losses (2 <X, a> + |a|^2) / 2 S^2 and that of G differ by a sum of independent numbers within
one step, of mean 0: by Hoeffding by more than r |a| / S^2 with probability exp(-r^2 / 2) at most. The account
therefore takes a Gaussian with the multiplier z, the slack r / (z S) for each release, and the tail; r = 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from isthmus.data.matrices import Floats, Ints
from isthmus.errors import IsthmusError
from isthmus.privacy.account import Account, GaussianNoise, gaussian_multiplier
from isthmus.privacy.options import PartyPrivacy
from isthmus.privacy.random_bits import Bits
from isthmus.privacy.sampling import discrete_gaussian

STEPS = 2**20
"""Steps of the grid in the largest norm (L)."""
FAR = 10.0
"""How far the loss of discrete noise may be from that of continuous noise (r)."""
TAIL = 4 * math.exp(-(FAR**2) / 2)
"""Probability of more, twice as large as it is: it also covers that the release ends there."""
LEAST = 4
"""The least standard deviation of a share, in steps (s)."""
TRIES = 40
"""Roundings at random, at most, before a vector is scaled down a little."""


@dataclass(frozen=True)
class PartyPlan:
    """What a party does with an update before it leaves, in a run that releases so many sums.

    Arguments:
        options: what the study asks for.
        times: sums that one party may be in.
        multiplier: the noise of a sum, as a multiple of D (z).
    """

    options: PartyPrivacy
    times: int
    multiplier: float

    @classmethod
    def of(cls, options: PartyPrivacy, times: int) -> PartyPlan:
        """The plan with the least noise.

        >>> round(PartyPlan.of(PartyPrivacy(epsilon=8.0), 50).multiplier, 2)
        4.24
        """
        multiplier = gaussian_multiplier(options.epsilon, options.delta, times, FAR / STEPS, TAIL)
        return cls(options, times, multiplier)

    @property
    def grid(self) -> float:
        """A step, as a change of a weight (g)."""
        return self.options.clip / STEPS

    @property
    def noise(self) -> GaussianNoise:
        """What a sum costs."""
        return noise_on_grid(self.multiplier, STEPS)

    def account(self, times: int) -> Account:
        """The account of a party whose updates are in so many sums."""
        account = Account()
        account.add("party", self.noise, times, "sums of updates")
        return account

    def least(self, parties: int) -> int:
        """How many of so many parties must be in a sum, so that it has all of the noise."""
        least = parties - self.options.dropouts
        if least < 1:
            raise IsthmusError(
                f"privacy: a sum over {parties} parties of which {self.options.dropouts} may add no noise has none: "
                "use more parties, or set privacy.dropouts lower"
            )
        return least

    def variance(self, size: int, parties: int) -> Fraction:
        """That of a party's share, in steps (s^2).

        Arguments:
            size: numbers of an update.
            parties: of the sum.
        """
        found = Fraction(self.multiplier) ** 2 * largest_square(size) / self.least(parties)
        if found < LEAST**2:
            raise IsthmusError(
                f"privacy: epsilon = {self.options.epsilon:g} leaves so little noise that the grid shows: lower it"
            )
        return found

    def clipped(self, update: Floats, bits: Bits) -> Ints:
        """An update on the grid, whose norm is at most D whatever it was (x)."""
        most = float(np.abs(update).max(initial=0.0))
        if not math.isfinite(most):
            raise IsthmusError("what it learned is not finite")
        norm = most * float(np.linalg.norm(update / most)) if most else 0.0
        scaled, bound = update / max(norm, self.options.clip) * STEPS, largest_square(len(update))
        while True:
            low = np.floor(scaled)
            for _ in range(TRIES):
                uniform = (bits.words(len(low)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
                found = (low + (uniform < scaled - low)).astype(np.int64)
                if int(np.dot(found, found)) <= bound:
                    return found
            scaled = scaled * (1 - 2.0**-10)

    def share(self, size: int, parties: int, bits: Bits) -> Ints:
        """A party's share of the noise."""
        return discrete_gaussian(self.variance(size, parties), size, bits)


def noise_on_grid(multiplier: float, steps: int, sampled: float = 1.0) -> GaussianNoise:
    """What a release with discrete noise costs whose largest change is so many steps of its grid (L)."""
    return GaussianNoise(multiplier, sampled, FAR / (steps * multiplier**2), TAIL)


def largest_square(size: int) -> int:
    """The square of the largest norm of so many numbers after rounding (D^2).

    >>> largest_square(100_000) / STEPS**2 - 1 < 1e-6
    True
    """
    root = math.isqrt(size)
    return min((STEPS + root) ** 2, STEPS**2 + size // 4 + STEPS + root // 2)
