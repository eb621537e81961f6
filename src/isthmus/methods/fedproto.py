"""Parties share what their classes look like, and no weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from isthmus.data.level import Level
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, IdUnion
from isthmus.federation.models import Models
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Listing, Method, Model, State
from isthmus.methods.training import LocalTraining
from isthmus.tasks.base import Step


class FedProto(Method):
    """FedProto (Tan et al. 2022), Algorithm 1: parties agree on a prototype of each class, and share no weights.

    Each party keeps its model and learns from the others where embeddings of a class lie. An item is predicted to be of
    the class whose prototype is nearest.

    Party:  c_kj = mean embedding of its n_kj training items of class j
            minimise F_k + strength sum_j ||c_kj - C_j||^2, then send c_kj
    Server: C_j = sum_k n_kj c_kj / sum_k n_kj

    The paper also divides C_j by its holders, towards zero. A sum of one party is that party's mean: see `min_holders`.
    """

    name: ClassVar[str] = "fedproto"
    listing: ClassVar[Listing] = Listing(leaves="mean embeddings of each class, in sums, and no weights")
    typed: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ("evaluate_with",)  # parties evaluate models of their own
    tuned: ClassVar[tuple[str, ...]] = ("strength",)
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    for_classes: ClassVar[bool] = True

    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the parties drawn in each round."""
    local: LocalTraining = LocalTraining()
    """Training at the parties."""
    strength: float = Field(1.0, ge=0)
    """Weight of the distance to the prototypes (lambda)."""
    min_holders: int = Field(2, ge=1)
    """Parties that must hold a class for its prototype to be opened; 1 is the paper's."""

    @classmethod
    def rate_for(cls, lr: float) -> float:
        return min(lr, 0.005)

    def models(self, state: State) -> Models:
        return Models(personal=True, context=state.known)

    def predictor(self, *args: Any, **where: Any) -> Site:
        return self.site(*args, **where)  # by distances to prototypes

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(known={})
        classes = IdUnion(torch.arange(model.outputs), torch.empty(0))
        for state.round in state.rounds(self.rounds):
            chosen = federation.sample(self.fraction)
            total = federation.total("train", state.known, of=chosen, rows=classes, min_contributors=self.min_holders)
            state.known = {"prototypes": total.mean("prototypes"), "opened": total.opened}
            yield state

    class AtParty(Site):
        @action("total", contributors="min_holders")
        def train(self, request: Any) -> Answer:
            self.load_model({})
            self.method.local.fit(self, lambda step: self.loss(step, request), embed=True)
            self.keep_model()
            step = self.step(*self.embed(), mask=self.cohort.masks["train"])
            means, counts = step.class_means(self.task.outputs)
            ids = torch.arange(self.task.outputs).expand(counts.shape)
            return Answer({"ids": ids, "prototypes": means}, weight=counts.double())

        def loss(self, step: Step, known: Any) -> Tensor:
            (means, counts), gaps = step.class_means(self.task.outputs), torch.zeros(())
            if "prototypes" in known:  # from the second round on
                gaps = (means - known["prototypes"]).square().sum(2) * (known["opened"] & (counts > 0))
            return self.task.loss(step) + self.method.strength * gaps.sum(-1)

        def predict(self, request: Any) -> Tensor:
            self.load_evaluated({})
            # by matrix products, which torch would take for many rows, a row's distances depend on how many there are
            apart = torch.cdist(self.embed()[1], request["prototypes"], compute_mode="donot_use_mm_for_euclid_dist")
            near = -apart.square()
            return near.where(request["opened"], near.min(1, keepdim=True).values - 1)  # never a class without one
