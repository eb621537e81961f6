"""The epsilon audit: what a reader of the releases shows of the epsilon that a run claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from isthmus.audit.base import Audit, AuditTable
from isthmus.audit.canary_edges import CanaryEdges, CanaryNodes
from isthmus.audit.canary_items import CanaryItems
from isthmus.audit.canary_parties import CanaryParties
from isthmus.audit.canary_views import CanaryViews
from isthmus.audit.lower_bound import Game, LowerBound, Played, lower_bound
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.private import Private, PrivateEdges, PrivateItems, PrivateNodes
from isthmus.methods.fgcl import FGCL
from isthmus.privacy.account import UNITS
from isthmus.privacy.options import Privacy
from isthmus.study.private import adapted, private_answers
from isthmus.tasks.base import Task

ROUNDING = 1e-9
"""Epsilons that differ by less are equal."""


@dataclass(frozen=True)
class Shown:
    """An epsilon that a run claims, and one that an audit shows.

    Attributes:
        unit: a key of `isthmus.privacy.account.UNITS`.
        claimed, delta: what the account says of a whole run.
        bound: what the guesses contradict.
        runs: how often the mechanism released, each time with other canaries.
    """

    unit: str
    claimed: float
    delta: float
    bound: LowerBound
    runs: int

    @property
    def kept(self) -> bool:
        """Whether the claim is not contradicted."""
        return self.bound.epsilon <= self.claimed + ROUNDING

    @property
    def shown(self) -> float:
        """The epsilon that is shown, rounded down to two digits."""
        return math.floor(self.bound.epsilon * 100) / 100

    @property
    def said(self) -> str:
        """Both in a sentence."""
        text = (
            f"claimed epsilon {self.claimed:.4g}; this audit shows at least {self.shown:g} "
            f"({self.bound.confidence:.0%} confidence, {self.bound.canaries:,} canaries)".replace("%", " %")
        )
        return text if self.kept else f"{text}: the noise is not what the account says, so do not rely on the claim"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept, "said": self.said}


class EmpiricalEpsilon(Audit):
    """A reader of what noise protects guesses which canaries were in the data, and so shows a least epsilon.

    A canary is an item, an edge or a party that is in the data by a coin, and that the noise hides least. The reader
    knows everything else. Theorem 5.2 of Steinke, Nasr and Jagielski (2023) bounds how often guesses can be right.
    """

    name: ClassVar[str] = "epsilon"
    of_noise: ClassVar[bool] = True

    canaries: int = Field(1000, ge=20, le=10**6)
    """Items, edges or parties to guess about, in as many runs of the mechanism as it takes. The bound is at most about
    the logarithm of a fifth of their number, however bad the noise is."""

    def run(
        self,
        parties: Sequence[Party],
        task: Task,
        module: nn.Module,
        method: Any,
        *,
        seed: int = 0,
        privacy: Privacy | None = None,
    ) -> list[Shown]:
        """Play the game of the unit that the study hides.

        Arguments:
            privacy: what the study hides; without it, what the method hides by itself.
        """
        if privacy is None and isinstance(method, FGCL) and method.most_spent() is not None:
            return [self.shown(CanaryViews(parties, task, module, method), seed)]
        private = private_answers(privacy, adapted(method, privacy), module, task, len(parties))
        if private is None:
            raise IsthmusError(f"audit 'epsilon': method '{method.label}' adds no noise: set privacy.epsilon")
        return [self.shown(game_of(private, parties, task, module, method), seed)]

    def shown(self, game: Game, seed: int = 0) -> Shown:
        """Play a game until there are enough canaries."""
        runs: list[Played] = []
        while (missing := self.canaries - sum(len(run.scores) for run in runs)) > 0:
            runs.append(game.play(missing, seed * 2**20 + len(runs)))
            if not len(runs[-1].scores):
                raise IsthmusError(f"audit 'epsilon': the data have no {game.unit} to guess about")
        bound = lower_bound(Played.together(runs), game.claimed.delta)
        return Shown(game.unit, game.claimed.epsilon, game.claimed.delta, bound, len(runs))

    def table(self, found: Sequence[Shown], parties: int) -> AuditTable:
        bounds = [each.bound for each in found]
        claims = [
            ("epsilon that is claimed", [f"{each.claimed:.4g}" for each in found]),
            ("epsilon that is shown", [f"{each.shown:.2f}" for each in found]),
            ("... if all guesses were right", [f"{each.most:.2f}" for each in bounds]),
        ]
        guesses = [
            ("canaries", [f"{each.canaries:,}" for each in bounds]),
            ("guesses", [f"{each.guesses:,}" for each in bounds]),
            ("right guesses", [f"{each.right:,}" for each in bounds]),
            ("runs of the mechanism", [f"{each.runs:,}" for each in found]),
        ]
        notes = [each.said for each in found]
        shown = [{"of": each.unit, "claimed": each.claimed, "shown": each.shown, "said": each.said}
                 for each in found]  # fmt: skip
        return AuditTable("", [UNITS[each.unit] for each in found], [claims, guesses], notes, lower_bounds=shown)


def game_of(private: Private, parties: Sequence[Party], task: Task, module: nn.Module, method: Any) -> Game:
    """The game of the unit that parties hide in what they answer."""
    if isinstance(private, PrivateItems):
        if private.plan is None:
            raise IsthmusError(f"audit 'epsilon': nothing that method '{method.label}' trains leaves the parties")
        if isinstance(private, PrivateNodes):
            claimed = private.spent(private.plan.calls).cost(private.plan.options.delta)
            return CanaryNodes(private.hops, claimed, parties, module)
        return CanaryItems(private, parties, task, module, method)
    if isinstance(private, PrivateEdges):
        claimed = private.plan.account().cost(private.plan.options.delta)
        return CanaryEdges(private.plan, claimed, parties, module)
    assert private.sums is not None
    if not private.sums.actions:
        raise IsthmusError(f"audit 'epsilon': nothing that method '{method.label}' trains leaves the parties")
    return CanaryParties(private.sums, [party.name for party in parties])
