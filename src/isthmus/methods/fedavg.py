"""Federated averaging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Averaging, Learning, Listing, Model, State


class FedAvg(Averaging):
    """FedAvg (McMahan et al. 2017): local training from the shared weights, then a weighted mean.

    In every round the server sends its weights to a random share (`fraction`) of the parties. Each trains them on its
    own data for some epochs. The server reads the weighted mean of the results, never a single one.

    Party:  w_k <- w_t, then w_k <- w_k - step(grad F_k(w_k)) for local.epochs
    Server: w_{t+1} = sum_k (n_k / n) w_k, n_k the training items of party k
    """

    name: ClassVar[str] = "fedavg"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing(setting="any", place=1, default=True, demo=2)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        for state.round in state.rounds(self.rounds):
            chosen = federation.sample(self.fraction)
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            state.weights = total.mean("weights", default=state.weights)
            yield state

    class AtParty(Learning):
        method: FedAvg

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])
            self.fit()
            return Answer({"weights": self.model.weights()}, weight=self.averaging_weights())
