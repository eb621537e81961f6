"""One model per cluster of parties, where clusters split by how the lengths of the parties' updates develop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Answers
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, State
from isthmus.methods.gcfl import GCFL, lengths_of


class GCFLPlus(GCFL):
    """GCFL+ (Xie et al. 2021): as GCFL, but clusters split by sequences of the lengths of updates.

    One update says little, for it is noisy and points into a space of many dimensions. How the lengths of a party's
    updates rise and fall over rounds says more, and it tells the server less.

    Party:  as GCFL; it keeps the lengths q_k = ||d_k|| of its last rounds
    Server: as GCFL, but cuts by max(D) - D_ij, D_ij the distance of q_i and q_j
            under dynamic time warping, the root of a sum of squares

    Only where the server may split a cluster does it ask the parties of it for their last `length` lengths, all of them
    from rounds since the cluster began: a split restarts the sequences of its own parties and of no others. A length is
    that of the whole update of a round, not of the gradient of its last batch.
    """

    name: ClassVar[str] = "gcfl-plus"
    listing: ClassVar[Listing] = Listing(leaves="lengths of its last updates, which the server reads")
    typed: ClassVar[bool] = True
    soon: ClassVar[Mapping[str, Any]] = {**GCFL.soon, "length": 2}
    without: ClassVar[tuple[str, ...]] = (*GCFL.without, "width")
    nouns: ClassVar[Mapping[str, str]] = {"lengths": "last updates' lengths"}

    length: int = Field(5, ge=2)
    """Lengths of updates in a sequence."""
    standardize: bool = False
    """Divide each sequence by its standard deviation, so that only its trend counts."""

    def may_split(self, state: State, name: str) -> bool:
        return super().may_split(state, name) and state.round - state.since[name] >= self.length

    def form(self, weights: Mapping[str, Tensor], trained: set[str]) -> dict[str, Tensor]:
        return {"lengths": torch.zeros(self.length, dtype=torch.float64)}

    def longest(self, answers: Answers) -> float:
        return max(float(answer["lengths"][-1]) for answer in answers.values())

    def similarity(self, answers: Answers) -> Tensor:
        """The largest distance minus each distance, `[parties, parties]`."""
        lengths = np.stack([answer["lengths"].numpy() for answer in answers.values()])
        if self.standardize:
            lengths = lengths / lengths.std(axis=1, keepdims=True).clip(min=1e-300)
        distances = np.array([[warped_distance(one, other) for other in lengths] for one in lengths])
        return torch.from_numpy(distances.max() - distances)

    class AtParty(GCFL.AtParty):
        method: GCFLPlus

        def remember(self, update: Mapping[str, Tensor]) -> None:
            length = lengths_of(update)
            before = self.kept.get("lengths", length.new_empty(0))
            longer = [torch.cat([old, new.view(1)]) for old, new in zip(before, length, strict=True)]
            self.kept["lengths"] = [each[-self.method.length :] for each in longer]

        @action("ask", bounds={"lengths": None})
        def compare(self, request: Payload) -> Answer:
            return Answer({"lengths": self.kept["lengths"]})


def warped_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The distance of two sequences under dynamic time warping, with squares of differences.

    >>> warped_distance([0, 1, 1, 5], [0, 0, 1, 3])
    2.0
    """
    best = np.full((len(one) + 1, len(other) + 1), np.inf)
    best[0, 0] = 0.0
    for i, a in enumerate(one, start=1):
        for j, b in enumerate(other, start=1):
            best[i, j] = (a - b) ** 2 + min(best[i - 1, j - 1], best[i - 1, j], best[i, j - 1])
    return float(np.sqrt(best[-1, -1]))
