"""What a party allows in a federation: the table `[limits]` of `party.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from pydantic import Field

from isthmus.errors import IsthmusError
from isthmus.options import Options

Verb = Literal["ask", "total", "exchange"]


class PrivateMethod(Protocol):
    """What limits ask of a method."""

    name: ClassVar[str]

    def most_spent(self) -> float | None: ...


class Limits(Options):
    """The party's own machine checks these limits before it answers, and refuses what they do not allow.

    A name that nobody knows allows nothing; `isthmus.deploy.limits` reports such names.
    """

    methods: list[str] | None = None
    """Methods that may run; default: all."""
    actions: list[str] | None = None
    """Actions that the party answers, including those of the set-up; default: all. Its verb goes with an action."""
    verbs: list[Verb] = Field(["ask", "total", "exchange"])
    """What may leave: answers that the server reads (ask), parts of sums (total), messages to parties (exchange)."""
    min_contributors: int = Field(1, ge=1)
    """The party answers a total only if at least this many parties contribute to it."""
    totals: list[str] | None = None
    """Accepted protections of totals, such as masks; default: any or none."""
    epsilon: float | None = Field(None, gt=0)
    """The largest epsilon that a method may spend; with this limit, methods without noise are refused."""

    def permit_method(self, method: PrivateMethod, noise: str) -> None:
        """Refuse a method that is not allowed or that spends too much.

        Arguments:
            noise: where the study's noise is drawn from: `own`, a secret of the party, or `study`, the study's seed.
        """
        if self.methods is not None and method.name not in self.methods:
            raise _refusal(f"method '{method.name}' is not among limits.methods ({_joined(self.methods)})")
        if self.epsilon is None:
            return
        spent = method.most_spent()
        if spent is None:
            raise _refusal(f"method '{method.name}' adds no noise, but limits.epsilon demands it")
        if noise != "own":
            raise _refusal("limits.epsilon demands noise of the party's own: set protect.noise = 'own'")
        if spent > self.epsilon:
            raise _refusal(f"method '{method.name}' spends epsilon {spent:g}, limits.epsilon is {self.epsilon:g}")

    def permit_protection(self, name: str) -> None:
        """Refuse a study whose totals do not have one of the accepted protections."""
        if self.totals is not None and name not in self.totals:
            raise _refusal(f"protect.total is '{name}', limits.totals accepts {_joined(self.totals)}")

    def permit_call(self, verb: str, action: str, contributors: int) -> None:
        """Refuse an action that is not allowed, or a total over too few parties."""
        if self.actions is not None and action not in self.actions:
            raise _refusal(f"action '{action}' is not among limits.actions ({_joined(self.actions)})")
        if verb not in self.verbs:
            raise _refusal(f"'{verb}' is not among limits.verbs ({_joined(self.verbs)}), action '{action}'")
        if verb == "total" and contributors < self.min_contributors:
            raise _refusal(
                f"a total of {contributors}, limits.min_contributors is {self.min_contributors}, action '{action}'"
            )


def _refusal(reason: str) -> IsthmusError:
    return IsthmusError(f"refused: {reason}")


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
