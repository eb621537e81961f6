"""Federated averaging of everything but the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import nn

from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.models import Models
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.weights import body_weights, head_weights


class FedPer(FedAvg):
    """FedPer (Arivazhagan et al. 2019): all parties share a body b, and each keeps a head h_k of its own.

    Parties whose classes differ in meaning or in frequency can agree on how to embed a node, but not on how to classify
    it. So only the body is averaged; the head, which turns embeddings into outputs, never leaves its party.

    Party:  (b, h_k) <- (b, h_k) - step(grad F_k(b, h_k)), from b_t and its own h_k
    Server: b_{t+1} = sum_k (n_k / n) b_k, n_k the training items (weighting)

    The server reads the sum of the bodies. The head is what the encoder names as such, its last layer; a party that has
    not trained yet has the initial head. `evaluate_with = "trained"` evaluates the body after local training.
    """

    name: ClassVar[str] = "fedper"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True

    def own(self, module: nn.Module) -> tuple[str, ...]:
        """Names of the weights that stay at a party."""
        return head_weights(module)

    def check(self, module: nn.Module) -> None:
        if not body_weights(module):
            raise IsthmusError(f"method '{self.name}': the whole model is its head, nothing is left to share")
        if not head_weights(module):
            raise IsthmusError(f"method '{self.name}': the model's head has no weights: name the last layer that has")

    def models(self, state: State) -> Models:
        return Models(shared=state.weights, personal=True)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        weights = model.weights()
        own = self.own(model.module)
        state.start(weights={name: weight for name, weight in weights.items() if name not in own})
        yield from super().server(federation, model, state)

    class AtParty(Learning):
        method: FedPer

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.load_model(request["weights"])
            self.learn()
            if own := self.method.own(self.model.module):
                self.keep_model(own)
            weights = self.model.weights()
            shared = {name: weights[name] for name in request["weights"]}
            return Answer({"weights": shared}, weight=self.averaging_weights())

        def learn(self) -> None:
            """Train body and head together."""
            self.fit()
