"""The privacy cost of several releases together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PrivacyCost:
    """Epsilon and delta of differential privacy."""

    epsilon: float
    delta: float = 0.0


def compose_basic(costs: Iterable[PrivacyCost]) -> PrivacyCost:
    """Add up the costs of releases about the same bit.

    >>> compose_basic([PrivacyCost(1.0), PrivacyCost(0.5, 1e-6)])
    PrivacyCost(epsilon=1.5, delta=1e-06)
    """
    costs = list(costs)
    return PrivacyCost(math.fsum(cost.epsilon for cost in costs), math.fsum(cost.delta for cost in costs))


def compose_advanced(costs: Iterable[PrivacyCost], delta: float) -> PrivacyCost:
    """Compose many small releases, which cost less together than their sum, for a small additional delta.

    Heterogeneous advanced composition (Kairouz, Oh and Viswanath 2015, theorem 3.5, its last bound), or basic
    composition where that is less:
    epsilon = sum (e^eps_i - 1) eps_i / (e^eps_i + 1) + sqrt(2 ln(1/delta) sum eps_i^2).

    Arguments:
        delta: probability of failure on top of the releases' own.

    >>> many = [PrivacyCost(0.01)] * 1000
    >>> round(compose_advanced(many, 1e-6).epsilon, 2), round(compose_basic(many).epsilon, 2)
    (1.71, 10.0)
    """
    costs = list(costs)
    mean = math.fsum(cost.epsilon * math.tanh(cost.epsilon / 2) for cost in costs)
    deviation = math.sqrt(2 * math.log(1 / delta) * math.fsum(cost.epsilon**2 for cost in costs))
    advanced = PrivacyCost(mean + deviation, 1 - (1 - delta) * math.prod(1 - cost.delta for cost in costs))
    basic = compose_basic(costs)
    return basic if basic.epsilon <= advanced.epsilon else advanced
