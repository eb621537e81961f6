"""FedAvg with a proximal term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.per_party import Leaf


class FedProx(FedAvg):
    """FedProx (Li et al. 2020): each party minimises F_k(w) + (mu / 2) ||w - w_t||^2.

    If parties' data differ, local training drives their weights apart, and their mean suits nobody. A term that grows
    with the distance from the server's weights holds them together; with mu = 0 it is FedAvg.

    Party:  w <- w - step(grad F_k(w) + mu (w - w_t)), step by the local optimiser
    Server: w_{t+1} = sum_k (n_k / n) w_k, over the parties drawn

    The term is part of the gradient that the optimiser sees. The paper draws parties by size and takes the even mean;
    here, as in FedAvg, parties are drawn evenly and weighted by their training items (`weighting`). All parties train
    for `local.epochs`; the paper's variable amounts of local work are not here.
    """

    name: ClassVar[str] = "fedprox"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing("labels", 4, demo=3)
    tuned: ClassVar[tuple[str, ...]] = ("mu",)

    mu: float = Field(0.01, ge=0)
    """Weight of the proximal term."""

    @classmethod
    def rate_for(cls, lr: float) -> float:
        return min(lr, 0.02)

    class AtParty(FedAvg.AtParty):
        method: FedProx

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])

            def pull(leaves: Sequence[Leaf]) -> list[Tensor]:
                start = self.model.like_leaves(leaves, request["weights"])
                return [
                    self.method.mu * (leaf.tensor.detach() - before) for leaf, before in zip(leaves, start, strict=True)
                ]

            self.fit(pull=pull)
            return Answer({"weights": self.model.weights()}, weight=self.averaging_weights())
