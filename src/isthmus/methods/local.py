"""Every party on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field
from torch import nn

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.models import Models
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning, Listing, Method, Model, Role, State
from isthmus.methods.training import LocalTraining


class Local(Method):
    """Each party trains alone on its own data; no weight leaves it. What federated learning must beat."""

    name: ClassVar[str] = "local"
    typed: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ("evaluate_with",)  # the server sends no model
    role: ClassVar[Role] = "alone"
    listing: ClassVar[Listing] = Listing(demo=1, leaves="nothing, not even weights")

    local: LocalTraining = LocalTraining()
    """Training at the parties."""
    quorum: float = Field(0.0, ge=0, le=1)
    """The least share of the asked parties that must answer; nobody waits for another here."""

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(initial=model.weights())
        if state.once("start"):
            federation.ask("start", {"weights": state.initial})
        for state.round in state.rounds(self.rounds):
            federation.ask("train")
            yield state

    def models(self, state: State) -> Models:
        return Models(personal=True)

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {**super().calls(module), "start": 1}

    class AtParty(Learning):
        method: Local

        @action("ask", silent=True)
        def start(self, request: Payload) -> Answer:
            self.load_model(request["weights"])
            self.keep_model()
            return Answer({})

        @action("ask", silent=True)
        def train(self, request: Payload) -> Answer:
            self.load_model({})
            self.fit()
            self.keep_model()
            return Answer({})
