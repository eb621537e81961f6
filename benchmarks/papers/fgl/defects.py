"""Methods with a fault of their public code each, which `defects.toml` sets beside the methods without it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.data.party import Block
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.wire import Payload
from isthmus.methods.adafgl import AdaFGL
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedgta import FedGTA
from isthmus.methods.fedproto import FedProto
from isthmus.methods.fedtad import FedTAD
from isthmus.methods.fgssl import FGSSL
from isthmus.nn.layerwise import infer
from isthmus.nn.products import Propagation, normalised_edges


class DropoutInScoring(FedAvg):
    """FedAvg whose models are scored with dropout: FedTAD's GCN does not look at whether it trains."""

    name: ClassVar[str] = "fedavg-dropout-in-scoring"

    class AtParty(FedAvg.AtParty):
        def predict(self, request: Payload) -> Tensor:
            self.load_evaluated(request)
            self.model.training = True
            with torch.no_grad():
                output: Tensor = self.model(self.cohort.block, self.draws("dropout"))
            self.model.training = False
            return output


class AbsentAsZero(FedProto):
    """FedProto whose parties send zeros for a class that they lack, counted by all their items, as in OpenFGL."""

    name: ClassVar[str] = "fedproto-absent-as-zero"

    class AtParty(FedProto.AtParty):
        @action("total", contributors="min_holders")
        def train(self, request: Payload) -> Answer:
            answer = super().train(request)
            return Answer(answer.fields, weight=answer.weight.sum(1, keepdim=True).expand_as(answer.weight))


class NodeNumbers(FedTAD):
    """FedTAD that puts numbers of nodes beside the features, for probabilities of walks.

    The released walk steps to each node of the graph with nearly the same probability, and what it codes are the
    numbers of the nodes that it meets.
    """

    name: ClassVar[str] = "fedtad-node-numbers"

    class AtParty(FedTAD.AtParty):
        def surroundings(self) -> Tensor:
            sizes, block = self.cohort.sizes, self.cohort.block
            nodes = torch.tensor(sizes).repeat_interleave(torch.tensor(sizes)).unsqueeze(1)
            met = self.draws("walks").uniform(sizes, self.method.walks) * nodes
            return met.floor().to(block.x)


class OwnClasses(FedTAD):
    """FedTAD whose parties weigh their classes against each other and not against other parties, as in OpenFGL."""

    name: ClassVar[str] = "fedtad-own-classes"

    class AtParty(FedTAD.AtParty):
        def reliability(self) -> Tensor:
            found = super().reliability()
            return found / found.sum(1, keepdim=True).clamp(min=1e-12)

        def log_probabilities(self, x: Tensor, request: Payload) -> tuple[Tensor, Tensor, Tensor]:
            return super().log_probabilities(x, {**request, "reliable": torch.ones_like(request["reliable"])})


class ClampedLabels(FedGTA):
    """FedGTA that propagates labels as OpenFGL does, by PyG: known labels are not added again, and shares end at 1."""

    name: ClassVar[str] = "fedgta-clamped"

    class AtParty(FedGTA.AtParty):
        def propagated(self) -> tuple[Tensor, Tensor]:
            method, cohort, block = self.method, self.cohort, self.cohort.block
            start = infer(self.model, block).softmax(1)
            known = cohort.masks["train"]
            start[known] = F.one_hot(cohort.y[known], start.size(1)).to(start.dtype)
            matrix = Propagation(*normalised_edges(block.edge_index, None, block.nodes, dtype=start.dtype), block.nodes)
            y = start
            for _ in range(method.steps):
                y = (method.reach * (matrix @ y) + (1 - method.reach) * start).clamp(0, 1)
            return y.softmax(1), (y / method.temperature).softmax(1)


class TwoOwnViews(FGSSL):
    """FGSSL that contrasts two views by the local model, as its released code does, and not one by the received."""

    name: ClassVar[str] = "fgssl-own-views"

    class AtParty(FGSSL.AtParty):
        def seen_by_received(self, block: Block) -> Tensor:
            if not self.model.training:  # before the first step, for the structural term
                return super().seen_by_received(block)
            embedding: Tensor = self.model(block, self.step_draws.of("other view"), embed=True)[1]
            return embedding


class Switch(AdaFGL):
    """AdaFGL that takes one of its two predictors, by whether the score is over 0.9, as its released code does."""

    name: ClassVar[str] = "adafgl-switch"

    class AtParty(AdaFGL.AtParty):
        def homophily(self) -> Tensor:
            return (super().homophily() > 0.9).double()
