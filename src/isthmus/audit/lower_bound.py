"""A lower bound of epsilon from guesses about canaries, each of which was in the data or not by a fair coin.

Theorem 5.2 of Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run": m canaries, each in the
data with probability 1/2, independently; a reader of the release guesses about r of them, and v guesses are right. If
the release is (epsilon, delta)-differentially private for each canary, then for every v

P[V >= v] <= P[W >= v] + delta m max_i (2 / i) P[v > W >= v - i],  W ~ Binomial(r, e^eps / (e^eps + 1)), i in 1..m

So an epsilon for which the right side is below 5 % contradicts what was seen, with 95 % confidence. Canaries may be in
one run or in several, which are one release together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtrc, gammaln, xlog1py, xlogy

from isthmus.data.matrices import Bools, Floats, Ints
from isthmus.data.party import Party
from isthmus.privacy.accounting import PrivacyCost

CONFIDENCE = 0.95
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Shares of the canaries that are guessed about, the most certain ones. The best of them counts, so each is tested at
its part of the 5 % (Bonferroni)."""
LARGEST = 100.0
"""The largest epsilon that is looked for."""


@dataclass(frozen=True)
class Played:
    """What a reader of a release makes of its canaries.

    Arguments:
        scores: larger for those that look as if they were in the data, `[canaries]`.
        inside: those that were, `[canaries]`.
    """

    scores: Floats
    inside: Bools

    @classmethod
    def together(cls, runs: Sequence[Played]) -> Played:
        return cls(np.concatenate([run.scores for run in runs]), np.concatenate([run.inside for run in runs]))


class Game(ABC):
    """A game about the units that a study's noise hides.

    Attributes:
        unit: a key of `isthmus.privacy.account.UNITS`.
        claimed: what the account says of a whole run.
    """

    unit: str
    claimed: PrivacyCost

    @abstractmethod
    def play(self, canaries: int, seed: int) -> Played:
        """Release once with up to so many canaries, by the mechanism of the study; another seed gives another run."""


class GameOfParties(Game):
    """A game with canaries at parties, one party after another until there are enough.

    Attributes:
        parties: whose data have the canaries.
    """

    parties: Sequence[Party]

    def play(self, canaries: int, seed: int) -> Played:
        source, runs, missing = np.random.default_rng(seed), list[Played](), canaries
        for party in self.parties:
            if missing:
                runs.append(self.play_at(party, missing, seed, source))
                missing -= len(runs[-1].scores)
        return Played.together(runs)

    @abstractmethod
    def play_at(self, party: Party, canaries: int, seed: int, source: np.random.Generator) -> Played:
        """Release a party's data with up to so many canaries."""


@dataclass(frozen=True)
class LowerBound:
    """The epsilon that guesses contradict.

    Attributes:
        epsilon: the release is not differentially private with less.
        most: what it would be, if all of these guesses were right.
        canaries, guesses, right: how many there were.
        confidence: probability with which such a bound holds, at least.
    """

    epsilon: float
    most: float
    canaries: int
    guesses: int
    right: int
    confidence: float


def lower_bound(played: Played, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
    """The largest epsilon that the guesses about the most certain canaries contradict, at a delta.

    Half of the guesses say that the canaries with the largest scores were in the data, half that those with the
    smallest were not.

    >>> scores = np.arange(1000.0)
    >>> round(lower_bound(Played(scores, scores >= 500), 1e-5).epsilon, 1)
    5.3
    """
    order, total = np.argsort(played.scores, kind="stable"), len(played.scores)
    level, found = (1 - confidence) / len(SHARES), list[LowerBound]()
    for share in SHARES:
        half = round(total * share / 2)
        low, high = order[:half], order[total - half :]
        right, guesses = int((~played.inside[low]).sum() + played.inside[high].sum()), 2 * half
        epsilon, most = (refuted(total, guesses, each, delta, level) for each in (right, guesses))
        found.append(LowerBound(epsilon, most, total, guesses, right, confidence))
    return max(found, key=lambda each: (each.epsilon, each.guesses))


def refuted(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon with which so many right guesses have a probability below the level; 0 if there is none."""

    def above(epsilon: float) -> float:
        return chance(canaries, guesses, right, epsilon, delta) - level

    if above(0.0) >= 0:
        return 0.0
    return LARGEST if above(LARGEST) < 0 else float(brentq(above, 0.0, LARGEST, xtol=1e-6))


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The theorem's bound of the probability of so many right guesses (m, r, v).

    >>> chance(10, 1, 1, 0.0, 0.0)
    0.5
    """
    rate = 1 / (1 + math.exp(-epsilon))
    fewer = _probabilities(np.arange(right - 1, -1, -1), guesses, rate)  # of v - 1, v - 2, ..., 0 right guesses
    worst = float((2 * fewer.cumsum() / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, float(bdtrc(right - 1, guesses, rate)) + delta * canaries * worst)


def _probabilities(right: Ints, guesses: int, rate: float) -> Floats:
    """Of numbers of right guesses, by the binomial distribution."""
    ways = gammaln(guesses + 1) - gammaln(right + 1) - gammaln(guesses - right + 1)
    return np.asarray(np.exp(ways + xlogy(right, rate) + xlog1py(guesses - right, -rate)))
