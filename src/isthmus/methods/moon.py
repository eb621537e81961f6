"""Federated averaging with embeddings that stay near those of the shared model."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.wire import Payload
from isthmus.methods.fedavg import FedAvg
from isthmus.tasks.base import Step

PREVIOUS = "previous model"


class Moon(FedAvg):
    """MOON (Li et al. 2021), Algorithm 1: local training contrasts embeddings of the shared and of the previous model.

    A party's embeddings drift towards its own data. A term of the loss draws them to those of the model that the
    server sent, and away from those of the model that the party trained in the last round in which it took part.

    Party:  z, z_t, z_p <- embeddings by w_k, by w_t as sent, by its previous w_k
            s_t = cos(z, z_t) / tau,  s_p = cos(z, z_p) / tau
            minimise F_k + mu mean -log(exp(s_t) / (exp(s_t) + exp(s_p)))
    Server: w_{t+1} = sum_k (n_k / n) w_k

    All three models read the same input in the same mode, with the same dropout, and only w_k gets a gradient. In its
    first round a party has no previous model and trains on F_k alone. The embedding is what the model's head receives;
    the paper adds a projection to it. The previous model stays at its party, and the server reads what FedAvg's does.
    """

    name: ClassVar[str] = "moon"
    typed: ClassVar[bool] = True
    tuned: ClassVar[tuple[str, ...]] = ("mu",)

    mu: float = Field(1.0, ge=0)
    """Weight of the contrast."""
    temperature: float = Field(0.5, gt=0)
    """Temperature of the contrast (tau)."""

    class AtParty(FedAvg.AtParty):
        method: Moon

        @action("total")
        def train(self, request: Payload) -> Answer:
            sent = request["weights"]
            has = torch.tensor(self.kept.having(PREVIOUS), device=self.hosted.device)
            others = (sent, self.with_kept(PREVIOUS, sent)) if bool(has.any()) else ()

            def loss(step: Step) -> Tensor:
                own = self.task.loss(step)
                return own + self.method.mu * has * self.contrast(step) if others else own

            self.model.load(sent)
            self.method.local.fit(self, loss, embed=True, beside=others)
            self.kept[PREVIOUS] = self.model.stacks()
            return Answer({"weights": self.model.weights()}, weight=self.averaging_weights())

        def contrast(self, step: Step) -> Tensor:
            """-log of the share of the sent model among both, `[parties]`."""
            assert step.embedding is not None
            sent, previous = (F.cosine_similarity(step.embedding, each, dim=-1) for each in step.beside)
            both = torch.stack([sent, previous], dim=-1) / self.method.temperature
            each = -both.log_softmax(-1)[..., 0]
            return step.mean(each if each.dim() == 1 else each.mean(1))  # a pair has two embeddings
