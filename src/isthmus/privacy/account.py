"""One account per study: what was released of each protected unit, by which noise, and what that costs together.

A unit is what two data sets differ in that must look alike: a `party` (all that it holds), an `item` (a training item),
an `edge` or a `node` (of a party's graph). Every release is entered with its unit; releases about different units do
not add up.

Releases under (epsilon, delta) compose by the bounds in `accounting`. Gaussian noise composes exactly: releases with
the multipliers z_i cost as much as one with 1 / sqrt(sum 1 / z_i^2) (Balle and Wang 2018, theorem 8, gives its
epsilon). Where noise is amplified by sampling, or both kinds meet, privacy loss distributions are convolved
(Koskela, Jaelkoe and Honkela 2020; Doroshenko et al. 2022), by `dp-accounting`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from scipy.optimize import brentq

from isthmus.errors import missing_extra
from isthmus.privacy.accounting import PrivacyCost, compose_advanced, compose_basic
from isthmus.privacy.mechanisms import gaussian_delta

UNITS = {
    "party": "all data of one party",
    "item": "one training item of a party",
    "edge": "one edge of a party's graph",
    "node": "one node of a party's graph with its edges",
}
"""Units, and what two data sets differ in that must look alike."""
DELTA = 1e-5
"""The delta of figures for which none is given."""
SMALLEST = 0.25
"""The smallest multiplier of sampled noise: of less, a privacy loss distribution takes gigabytes."""
FINE, COARSE = 1e-4, 1e-3
"""Intervals of privacy losses: of an account, and of the search for the noise that it allows."""


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise on a value that one unit changes by a bounded distance.

    Arguments:
        multiplier: the noise's standard deviation as a multiple of that distance.
        sampled: probability with which a unit is in a release, drawn for each by a party that all trust, and in secret.
        slack: by how much the loss of a release may exceed that of continuous noise, see `privacy.updates`.
        tail: probability with which it exceeds even that.
    """

    name: ClassVar[str] = "gaussian"

    multiplier: float
    sampled: float = 1.0
    slack: float = 0.0
    tail: float = 0.0


@dataclass(frozen=True)
class Release:
    """Something that was released, so many times, of every unit.

    Arguments:
        what: in plain words.
        unit: a key of `UNITS`.
        noise: Gaussian noise, or what a release costs by itself.
    """

    what: str
    unit: str
    noise: GaussianNoise | PrivacyCost
    times: int

    def to_dict(self) -> dict[str, Any]:
        kind = {"mechanism": self.noise.name} if isinstance(self.noise, GaussianNoise) else {}
        named = {"what": self.what} if self.what else {}
        return {**named, **kind, **asdict(self.noise), "times": self.times}


@dataclass
class Account:
    """What has been released, and its privacy cost.

    Each entry counts a release of every unit: a release of one edge reveals nothing about another.

    >>> account = Account()
    >>> account.add("edge", PrivacyCost(0.5), 2)
    >>> account.cost()
    PrivacyCost(epsilon=1.0, delta=0.0)
    >>> account.add("party", GaussianNoise(4.0), 10, "updates")
    >>> round(account.cost(1e-5, "party").epsilon, 2)
    3.34
    """

    releases: list[Release] = field(default_factory=list)

    def add(self, unit: str, noise: GaussianNoise | PrivacyCost, times: int = 1, what: str = "") -> None:
        if unit not in UNITS:
            raise ValueError(f"'{unit}' is no unit of privacy: there are {', '.join(UNITS)}")
        if times:
            self.releases.append(Release(what, unit, noise, times))

    def units(self) -> tuple[str, ...]:
        """The units of which something was released."""
        return tuple(dict.fromkeys(release.unit for release in self.releases))

    def of(self, unit: str) -> list[Release]:
        return [release for release in self.releases if release.unit == unit]

    def cost(self, delta: float = 0.0, unit: str = "") -> PrivacyCost:
        """The cost of all releases of a unit, by default of the first.

        Arguments:
            delta: for Gaussian noise that of the result; for other releases that of advanced composition, on top of
                their own, and without it basic composition.
        """
        releases = self.of(unit or next(iter(self.units()), ""))
        if any(isinstance(release.noise, GaussianNoise) for release in releases):
            return PrivacyCost(_epsilon(releases, delta), delta)
        costs = [release.noise for release in releases for _ in range(release.times)]
        plain = [cost for cost in costs if isinstance(cost, PrivacyCost)]
        return compose_advanced(plain, delta) if delta and plain else compose_basic(plain)

    def to_dict(self, delta: float = DELTA) -> dict[str, Any]:
        """As results store it: the figures of the first unit, and those of others in a list."""
        units = [self._figures(unit, delta) for unit in self.units()]
        return {**units[0], **({"others": units[1:]} if units[1:] else {})} if units else {}

    def _figures(self, unit: str, delta: float) -> dict[str, Any]:
        composed = self.cost(delta, unit)
        gaussian = any(isinstance(release.noise, GaussianNoise) for release in self.of(unit))
        basic = composed if gaussian else self.cost(unit=unit)
        spent = composed if composed.epsilon < basic.epsilon else basic
        return {
            "unit": UNITS[unit],
            "of": unit,
            **asdict(spent),
            "chance": best_chance(spent.epsilon),
            "releases": [release.to_dict() for release in self.of(unit)],
            "basic": asdict(basic),
            "advanced": asdict(composed),
        }


def best_chance(epsilon: float) -> float:
    """The largest chance with which an attacker knows whether a unit is in the data, who guessed at it with a half.

    With probability delta the attacker may know more.

    >>> round(best_chance(1.0), 3)
    0.731
    """
    return 1 / (1 + math.exp(-epsilon))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The epsilon of Gaussian noise at a delta, exactly.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    if gaussian_delta(multiplier, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(multiplier, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: gaussian_delta(multiplier, epsilon) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))


def gaussian_multiplier(
    epsilon: float,
    delta: float,
    times: int,
    slack_of: float = 0.0,
    tail: float = 0.0,
    sampled: float = 1.0,
    beside: Sequence[Release] = (),
) -> float:
    """The least multiplier with which so many releases keep within an epsilon at a delta.

    Arguments:
        slack_of: the slack of a release is this over the multiplier's square.
        tail: of a release.
        sampled: of a release. Less than 1, the multiplier is the least but for a thousandth, and at least `SMALLEST`.
        beside: other releases that the epsilon pays, too; it must exceed what they cost.
    """

    exact, interval = sampled >= 1, COARSE

    def spent(multiplier: float) -> float:
        noise = GaussianNoise(multiplier, sampled, slack_of / multiplier**2, tail)
        return _epsilon([*beside, Release("", "party", noise, times)], delta, interval)

    # without sampling it is more
    high = 1.0 if exact else max(SMALLEST, gaussian_multiplier(epsilon, delta, times, slack_of, tail, beside=beside))
    while spent(high) > epsilon:
        high *= 2
    low = high
    while spent(low) <= epsilon:
        if not exact and low <= SMALLEST:
            return low
        low = low / 2 if exact else max(low / 2, SMALLEST)
    precision = 1e-12 if exact else 1e-3
    found = float(brentq(lambda multiplier: spent(multiplier) - epsilon, low, high, xtol=1e-12, rtol=precision))
    interval = FINE
    while spent(found) > epsilon:
        found *= 1 + precision
    return found


def _epsilon(releases: Iterable[Release], delta: float, interval: float = FINE) -> float:
    """The epsilon at a delta of releases some of which have Gaussian noise.

    Arguments:
        interval: of losses that are told apart, where distributions are convolved; the epsilon is never too small.
    """
    precision, slack, more = 0.0, 0.0, list[Release]()
    for release in releases:
        noise = release.noise
        if isinstance(noise, GaussianNoise):
            slack += release.times * noise.slack
            delta -= release.times * noise.tail
        if isinstance(noise, GaussianNoise) and noise.sampled >= 1:
            precision += release.times / noise.multiplier**2
        else:
            more.append(release)
    if delta <= 0:
        raise ValueError("Gaussian noise has no epsilon at a delta of 0")
    if not more:
        return slack + gaussian_epsilon(1 / math.sqrt(precision), delta)
    return slack + _convolved(precision, tuple(more), delta, interval)


@lru_cache(maxsize=64)
def _convolved(precision: float, releases: tuple[Release, ...], delta: float, interval: float) -> float:
    """The epsilon by privacy loss distributions."""
    try:
        from dp_accounting.pld import common
        from dp_accounting.pld import privacy_loss_distribution as losses
    except ImportError as error:
        raise missing_extra("dp-accounting", "privacy", "an account of sampled noise") from error
    fine = {"value_discretization_interval": interval}
    whole = losses.identity(**fine)
    if precision:
        whole = whole.compose(losses.from_gaussian_mechanism(1 / math.sqrt(precision), **fine))
    for release in releases:
        noise = release.noise
        if isinstance(noise, GaussianNoise):
            each = losses.from_gaussian_mechanism(noise.multiplier, sampling_prob=noise.sampled, **fine)
        else:
            each = losses.from_privacy_parameters(
                common.DifferentialPrivacyParameters(noise.epsilon, noise.delta), **fine
            )
        whole = whole.compose(each.self_compose(release.times))
    return float(whole.get_epsilon_for_delta(delta))
