"""Dynamic regularisation."""

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
from isthmus.methods.training import PLAIN_LR
from isthmus.nn.per_party import Leaf


class FedDyn(Averaging):
    """FedDyn (Acar et al. 2021), Algorithm 1.

    Each party's loss gets a linear term, learned from round to round, and a proximal one, so that all parties converge
    to the same weights although the minima of their own losses differ. The server keeps the mean of the linear terms,
    and reads two sums over parties, of weights and of their changes.

    Party:  theta_k = argmin L_k(theta) - <g_k, theta>
                      + (alpha / 2) ||theta - theta_t||^2, by local training;
            g_k <- g_k - alpha (theta_k - theta_t).
    Server: h <- h - alpha (1 / N) sum_{k in P} (theta_k - theta_t);
            theta_{t+1} = mean_{k in P} theta_k - h / alpha.
    """

    name: ClassVar[str] = "feddyn"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True
    tuned: ClassVar[tuple[str, ...]] = ("alpha",)
    nouns: ClassVar[Mapping[str, str]] = {"moved": "changes of model weights"}
    listing: ClassVar[Listing] = Listing("labels", 2, "changes of weights, in sums")

    alpha: float = Field(0.01, gt=0)
    """Weight of the regularisation."""
    weighting: Weighting = "even"
    """What a party's weights are weighted by; evenly, as in the paper."""

    @classmethod
    def rate_for(cls, lr: float) -> float:
        return min(lr, max(lr / 20, PLAIN_LR))

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        weights = model.weights()
        state.start(weights=weights, h={name: torch.zeros_like(weights[name]) for name in model.trained()})
        for state.round in state.rounds(self.rounds):
            chosen = federation.sample(self.fraction)
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            # the mean if no party has weight: it leaves the weights unchanged
            standing = {name: state.weights[name] + h / self.alpha for name, h in state.h.items()}
            mean, moved = total.mean("weights", default=state.weights | standing), total.sum("moved")
            state.h = {name: h - self.alpha * moved[name] / len(federation.parties) for name, h in state.h.items()}
            state.weights = mean | {name: mean[name] - h / self.alpha for name, h in state.h.items()}
            yield state

    class AtParty(Learning):
        method: FedDyn

        @action("total")
        def train(self, request: Payload) -> Answer:
            start, alpha = request["weights"], self.method.alpha
            self.model.load(start)
            trained = {name for name, _ in self.model.module.named_parameters()}
            g = {name: self.kept.get(f"gradient:{name}", torch.zeros_like(start[name])) for name in sorted(trained)}

            def pull(leaves: Sequence[Leaf]) -> list[Tensor]:
                before = self.model.like_leaves(leaves, start)
                linear = self.model.like_leaves(leaves, g)
                return [
                    alpha * (leaf.tensor.detach() - at) - slope
                    for leaf, at, slope in zip(leaves, before, linear, strict=True)
                ]

            self.fit(pull=pull, uniform_pull=False)
            weights = self.model.stacks()
            moved = {name: weights[name] - start[name] for name in g}
            for name, slope in g.items():
                self.kept[f"gradient:{name}"] = slope - alpha * moved[name]
            return Answer({"weights": weights, "moved": moved}, weight={"weights": self.averaging_weights()})
