"""Control variates against the drift of parties from each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Averaging, Learning, Listing, Model, State, Weighting
from isthmus.methods.training import LocalTraining
from isthmus.nn.per_party import Leaf


class Scaffold(Averaging):
    """SCAFFOLD (Karimireddy et al. 2020), Algorithm 1 with option II for the control variates.

    Each party keeps an estimate c_i of its gradient, a control variate, and the server the mean c of these. Every local
    step is corrected by c - c_i, so that a party with unusual data steps where all parties together would.

    Party:  y <- y - lr (g(y) - c_i + c), K local steps;
            c_i+ = c_i - c + (x - y) / (K lr).
    Server: x <- x + server_lr mean(y_i - x);  c <- c + (|S| / N) mean(c_i+ - c_i).

    Option II holds for plain SGD steps, hence the default optimiser; running statistics are averaged. The server reads
    two sums over parties, of weights and of changes of control variates.
    """

    name: ClassVar[str] = "scaffold"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True
    nouns: ClassVar[Mapping[str, str]] = {"change": "changes of control variates"}
    listing: ClassVar[Listing] = Listing("labels", 1, "a second set of weights, in sums", demo=4)

    server_lr: float = Field(1.0, gt=0)
    """Learning rate of the server."""
    weighting: Weighting = "even"
    """What a party's weights are weighted by; evenly, as in the paper."""
    local: LocalTraining = LocalTraining(optimizer="sgd", lr=0.5, epochs=5)
    """Training at the parties."""

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        weights = model.weights()
        state.start(weights=weights, control={name: torch.zeros_like(weights[name]) for name in model.trained()})
        for state.round in state.rounds(self.rounds):
            chosen = federation.sample(self.fraction)
            total = federation.total("train", {"weights": state.weights, "control": state.control}, of=chosen)
            mean, change = total.mean("weights", default=state.weights), total.sum("change")
            state.control = {name: c + change[name] / len(federation.parties) for name, c in state.control.items()}
            state.weights = mean | {
                name: state.weights[name] + self.server_lr * (mean[name] - state.weights[name])
                for name in state.control
            }
            yield state

    class AtParty(Learning):
        method: Scaffold

        @action("total")
        def train(self, request: Payload) -> Answer:
            start, c = request["weights"], request["control"]
            mine = {name: self.kept.get(f"control:{name}", torch.zeros_like(c[name])) for name in c}
            self.model.load(start)
            towards = {name: c[name] - mine[name] for name in c}

            def pull(leaves: Sequence[Leaf]) -> list[Tensor]:
                return self.model.like_leaves(leaves, towards)

            steps = self.fit(pull=pull, uniform_pull=False).to(self.cohort.device)
            weights = self.model.stacks()
            change, lr = {}, self.method.local.in_round(self).rate
            for name in c:
                scale = 1.0 / (steps.clamp(min=1) * lr)
                moved = (start[name] - weights[name]) * scale.view(-1, *[1] * c[name].dim())
                trained = (steps > 0).view(-1, *[1] * c[name].dim())
                change[name] = torch.where(trained, moved - c[name], torch.zeros_like(moved))
                self.kept[f"control:{name}"] = mine[name] + change[name]
            return Answer({"weights": weights, "change": change}, weight={"weights": self.averaging_weights()})
