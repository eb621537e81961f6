"""Federated averaging, and then a network of each party's own, which suits how its neighbours resemble each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.models import Models
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.adaptive import BODY, SCORE, Adaptive
from isthmus.nn.products import Propagation, normalised_edges
from isthmus.nn.weights import initial_weights
from isthmus.tasks.base import Step, Task


class AdaFGL(FedAvg):
    """AdaFGL (Li et al. 2024): federated averaging, then each party trains networks of its own beside the result.

    At some parties neighbours mostly have one class (homophily), at others not. Step 1 is federated averaging, without
    its last `personal_rounds` rounds. In these, step 2, each party relates its nodes by the predictions P of the shared
    model and trains two predictors: one smooths over related nodes, one lets unlike nodes repel each other.

    Step 1: as FedAvg
    Step 2: R_uv = cos(P_u, P_v), 0 for u = v
            A' = alpha A + (1 - alpha) 1[R > threshold]
            X' = [X, MX, .., M^hops X], M = D^-1/2 (A' + I) D^-1/2
            homophilous:   H = MLP(X'), loss CE(H) + MSE(softmax H, P),
                           predicts (softmax H + P) / 2
            heterophilous: MLP(X), MLP(X') and, with E = MLP(X'),
                           (softmax(S+ E) - softmax(S- E) + E) / 2,
                           loss the sum of their CE, predicts the mean softmax
            S = beta R + (1 - beta) R(E) - its mean, of unit scale for each sign
            prediction: score homophilous + (1 - score) heterophilous

    The score is how often ten steps of label propagation, Y <- (D^-1/2 (A + I) D^-1/2 Y + Y^0) / 2, are right on a
    random half of the training labels, which Y^0 hides; 0.5 for a party with one training node. The mean of S is over
    all pairs. The public code switches at a score of 0.9 instead of blending, compares H itself with P, uses R > 0.999
    for R in S, and has PReLU where this has ReLU.

    The server reads what FedAvg's does. In step 2 it sends the shared model and parties answer nothing. All pairs of a
    party's nodes are compared, in memory that grows with the square of the nodes: `largest` bounds them. A party
    without training nodes keeps the shared model.
    """

    name: ClassVar[str] = "adafgl"
    without: ClassVar[tuple[str, ...]] = ("evaluate_with",)  # parties evaluate models of their own
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_classes: ClassVar[bool] = True
    tuned: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    personal_rounds: int = Field(20, ge=1)
    """Rounds of step 2, the last ones; at least one round is left for step 1."""
    personal: LocalTraining = LocalTraining(epochs=10, optimizer="adam", keep_optimizer=True)
    """Training of a party's own networks in each round of step 2."""
    width: int = Field(64, ge=1, le=1 << 20)
    """Width of the hidden layers of these networks."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout between their layers."""
    hops: int = Field(3, ge=1, le=100)
    """Steps of propagation in X'."""
    alpha: float = Field(0.05, ge=0, le=1)
    """Share of the party's own edges in A'."""
    beta: float = Field(0.2, ge=0, le=1)
    """Share of the shared model's relations in S."""
    threshold: float = Field(0.999, ge=0, le=1)
    """Relation above which A' joins two nodes."""
    largest: int = Field(5_000, ge=1)
    """Most nodes that a party may have; with 5,000, each matrix of pairs takes 100 MB."""

    def extended(self, module: nn.Module) -> nn.Module:
        return Adaptive(
            module,
            hidden=self.width,
            dropout=self.dropout,
            alpha=self.alpha,
            beta=self.beta,
            threshold=self.threshold,
            hops=self.hops,
        )

    def check(self, module: nn.Module) -> None:
        try:
            self.extended(module)
        except IsthmusError as error:
            raise IsthmusError(f"method '{self.name}': {error}") from None

    @property
    def shared_rounds(self) -> int:
        """Rounds of step 1."""
        return max(1, self.rounds - self.personal_rounds)

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {
            **super().calls(module),
            "train": self.shared_rounds,
            "personalise": self.rounds - self.shared_rounds,
        }

    def models(self, state: State) -> Models:
        return Models(shared=state.weights, personal=True)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights={name: weight for name, weight in model.weights().items() if name.startswith(BODY)})
        for state.round in state.rounds(self.rounds):
            if state.round <= self.shared_rounds:
                total = federation.total("train", {"weights": state.weights}, of=federation.sample(self.fraction))
                state.weights = total.mean("weights", default=state.weights)
            else:
                federation.ask("personalise", {"weights": state.weights})
            yield state

    class AtParty(Learning):
        method: AdaFGL

        def __init__(
            self, method: AdaFGL, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            for party in parties:
                if party.nodes > method.largest:
                    raise IsthmusError(
                        f"party '{party.name}' has more than {method.largest} nodes, and method '{method.name}' "
                        "compares all pairs: cut into more parties, or raise largest"
                    )
            super().__init__(method, parties, task, module, **where)
            names = initial_weights(module)
            self.own = [name for name in names if not name.startswith(BODY)]
            self.shared = [name for name in names if name.startswith(BODY)]

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.load_model(request["weights"])
            self.fit(only=self.shared)
            weights = self.model.weights()
            return Answer({"weights": {name: weights[name] for name in self.shared}}, weight=self.averaging_weights())

        @action("ask", silent=True)
        def personalise(self, request: Payload) -> Answer:
            self.load_model(request["weights"])
            stacks = self.model.stacks()
            unknown = (stacks[SCORE] < 0) & (self.cohort.counts("train") > 0).to(self.hosted.device)
            if bool(unknown.any()):
                score = torch.where(unknown, self.homophily().to(stacks[SCORE]), stacks[SCORE])
                self.model.load({**stacks, SCORE: score})
            block, first = self.cohort.block, self.method.local.epochs
            self.method.personal.fit(self, self.loss, read=lambda *_: (block, None), only=self.own, first_epoch=first)
            self.keep_model(self.own)
            return Answer({})

        def loss(self, step: Step) -> Tensor:
            """The losses of both predictors by party, `[parties]`."""
            *outputs, given = step.output.chunk(5, dim=1)
            total = sum(self.task.loss(replace(step, output=each[step.items])) for each in outputs)
            gaps = (outputs[0].softmax(1) - given).square().mean(1)
            return total + rows.mean_per_party(gaps, self.cohort.sizes)

        def homophily(self) -> Tensor:
            """The score of each party, `[parties]`."""
            cohort, block, classes = self.cohort, self.cohort.block, self.task.outputs
            counts = cohort.counts("train").cpu()
            items = cohort.masks["train"].nonzero().squeeze(1)
            order = self.draws("hidden").order(counts.tolist()).to(items.device)
            rank = torch.arange(len(items)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            shown = (rank < (counts // 2).repeat_interleave(counts)).to(items.device)
            known, hidden = items[order[shown]], items[order[~shown]]
            start = block.x.new_full((block.nodes, classes), 1 / classes, layout=torch.strided)
            start[known] = F.one_hot(cohort.y[known], classes).to(start.dtype)
            edges = normalised_edges(block.edge_index, None, block.nodes, dtype=start.dtype)
            matrix, y = Propagation(*edges, block.nodes), start
            for _ in range(10):
                y = (matrix @ y + start) / 2
            right = (y[hidden].argmax(1) == cohort.y[hidden]).to(start.dtype)
            score = rows.mean_per_party(right, (counts - counts // 2).tolist())
            return torch.where((counts > 1).to(score.device), score, 0.5)
