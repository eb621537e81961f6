"""The game about parties: each party's update is a canary's in every round, and a reader sees every sum.

Party i changes weight i alone, ten times as far as the largest norm; if it is out, it changes nothing. As many parties
as may drop out do: their noise is missing, so a sum has the noise of the account and no more. Clipping, rounding,
noise and the server's part are those of a run (`federation.private`). The score is the sum of what weight i got.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from isthmus.audit.lower_bound import Game, Played
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Total
from isthmus.federation.private import Asked, PrivateSums
from isthmus.privacy.random_bits import NoiseKey

LENGTH = 10.0
"""Of a canary's update, in largest norms: it has to be clipped."""
FEWEST = 16
"""Weights of the model that the parties update, at least; one for each party. The mechanism is the same for more."""


class CanaryParties(Game):
    """The parties of the study."""

    unit = "party"

    def __init__(self, private: PrivateSums, names: Sequence[str]) -> None:
        self.private, self.plan, self.names = private, private.plan, list(names)
        self.claimed = self.plan.account(self.plan.times).cost(self.plan.options.delta, self.unit)

    def play(self, canaries: int, seed: int) -> Played:
        source, count = np.random.default_rng(seed), self.plan.least(len(self.names))
        numbers = max(FEWEST, len(self.names))
        weight = torch.from_numpy(source.permutation(numbers)[: len(self.names)])
        inside = source.random(len(self.names)) < 0.5
        update = torch.zeros(len(self.names), numbers)
        update[torch.arange(len(self.names)), weight] = torch.from_numpy(inside) * LENGTH * self.plan.options.clip
        before = torch.zeros(numbers)
        action = self.private.actions[0]
        request = self.private.request(action, {"weights": {"w": before}}, self.names)
        received = torch.zeros(numbers, dtype=torch.float64)
        for time in range(self.plan.times):
            asked = Asked(self.names, [time] * len(self.names), NoiseKey(seed))
            answer = self.private.answer(action, Answer({"weights": {"w": before + update}}), request, asked)
            sums = {path: column[:count].sum(0) for path, column in wire.flatten(answer.fields)}
            total = Total(sums, dict.fromkeys(sums, float(count)), count, {})
            received += self.private.opened(action, total, request, self.names).mean("weights")["w"].double()
        some = slice(0, min(count, canaries))
        return Played(received[weight][some].numpy(), inside[some])
