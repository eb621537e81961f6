"""A personal model for each party, held near the shared one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.models import Models
from isthmus.federation.wire import Payload
from isthmus.methods.base import State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.per_party import Leaf


class Ditto(FedAvg):
    """Ditto (Li et al. 2021), Algorithm 1: all parties share a model w, and party k also trains its own v_k.

    The shared model is trained by federated averaging as if nothing else happened. Each party also trains a model that
    it keeps, and a pull towards w decides how personal that becomes: 0 is training alone, a large one is FedAvg.

    Party:  w_k <- w_t, then w_k <- w_k - step(grad F_k(w_k))
            v_k <- v_k - step(grad F_k(v_k) + lambda (v_k - w_t))
    Server: w_{t+1} = sum_k (n_k / n) w_k

    What is evaluated is v_k, and w for a party that has not trained yet. The pull is part of the gradient that the
    optimiser sees. The server reads the sum of the w_k; no v_k leaves its party.
    """

    name: ClassVar[str] = "ditto"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ("evaluate_with",)  # parties evaluate models of their own
    tuned: ClassVar[tuple[str, ...]] = ("pull",)

    pull: float = Field(1.0, ge=0)
    """Weight of the pull towards the shared model (lambda)."""
    personal: LocalTraining = LocalTraining()
    """Training of each party's own model."""

    def models(self, state: State) -> Models:
        return Models(shared=state.weights, personal=True)

    class AtParty(FedAvg.AtParty):
        method: Ditto

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])
            self.fit()
            weights = self.model.weights()
            self.load_model({})

            def pull(leaves: Sequence[Leaf]) -> list[Tensor]:
                shared = self.model.like_leaves(leaves, request["weights"])
                pairs = zip(leaves, shared, strict=True)
                return [self.method.pull * (leaf.tensor.detach() - near) for leaf, near in pairs]

            personal = self.method.personal
            personal.fit(self, self.task.loss, pull=pull, first_epoch=self.method.local.epochs, stays=True)
            self.keep_model()
            return Answer({"weights": weights}, weight=self.averaging_weights())
