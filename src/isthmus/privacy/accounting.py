"""What releases spend together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spent:
    """An (epsilon, delta)."""

    epsilon: float
    delta: float = 0.0


def basic(spent: Iterable[Spent]) -> Spent:
    """Releases about the same bit add up.

    >>> basic([Spent(1.0), Spent(0.5, 1e-6)])
    Spent(epsilon=1.5, delta=1e-06)
    """
    spent = list(spent)
    return Spent(math.fsum(each.epsilon for each in spent), math.fsum(each.delta for each in spent))


def advanced(spent: Iterable[Spent], delta: float) -> Spent:
    """As `basic`, but with a little delta many small releases add up to less.

    Heterogeneous advanced composition (Kairouz, Oh and Viswanath 2015, theorem 3.5, its last bound):
    epsilon = sum (e^eps_i - 1) eps_i / (e^eps_i + 1) + sqrt(2 ln(1/delta) sum eps_i^2).

    Arguments:
        delta: what may be spent on top of the releases' own.

    >>> round(advanced([Spent(0.01)] * 1000, 1e-6).epsilon, 2), round(basic([Spent(0.01)] * 1000).epsilon, 2)
    (1.71, 10.0)
    """
    spent = list(spent)
    mean = math.fsum(each.epsilon * math.tanh(each.epsilon / 2) for each in spent)
    spread = math.sqrt(2 * math.log(1 / delta) * math.fsum(each.epsilon**2 for each in spent))
    found = Spent(mean + spread, 1 - (1 - delta) * math.prod(1 - each.delta for each in spent))
    plain = basic(spent)
    return plain if plain.epsilon <= found.epsilon else found


@dataclass
class Account:
    """What has been released, by whom and about what, and what that spends.

    Releases about different edges do not add up: whoever learns something of one edge learns nothing of another. So the
    account is of one edge, the unit that is protected, and each entry counts a release of every edge.

    >>> account = Account("one edge of one graph")
    >>> account.add(Spent(0.5), 2)
    >>> account.spent()
    Spent(epsilon=1.0, delta=0.0)
    """

    unit: str
    releases: list[tuple[Spent, int]] = field(default_factory=list)

    def add(self, spent: Spent, times: int = 1) -> None:
        if times:
            self.releases.append((spent, times))

    def spent(self, delta: float = 0.0) -> Spent:
        """All together: by basic composition, or by advanced composition with this delta on top where that is less."""
        each = [spent for spent, times in self.releases for _ in range(times)]
        return advanced(each, delta) if delta and each else basic(each)

    def to_dict(self, delta: float = 1e-5) -> dict[str, Any]:
        """As a report tells it."""
        plain, less = self.spent(), self.spent(delta)
        return {
            "unit": self.unit,
            "releases": [{"epsilon": s.epsilon, "delta": s.delta, "times": times} for s, times in self.releases],
            "basic": {"epsilon": plain.epsilon, "delta": plain.delta},
            "advanced": {"epsilon": less.epsilon, "delta": less.delta},
        }
