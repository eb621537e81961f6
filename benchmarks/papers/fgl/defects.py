"""Methods with a fault of their public code each, which `defects.toml` sets beside the methods without it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from isthmus.data.cohort import Block
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
from isthmus.nn.products import Propagation


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


class ByClassifier(FedProto):
    """FedProto that predicts by its model's outputs, as OpenFGL's, and not by the nearest prototype."""

    name: ClassVar[str] = "fedproto-by-classifier"

    class AtParty(FedProto.AtParty):
        def predict(self, request: Payload) -> Tensor:
            self.load_evaluated({})
            output: Tensor = infer(self.model, self.cohort.block)
            return output


class AbsentAsZero(ByClassifier):
    """The same whose parties send zeros for a class that they lack, and count by all their nodes in every class."""

    name: ClassVar[str] = "fedproto-absent-as-zero"

    class AtParty(ByClassifier.AtParty):
        @action("total", contributors="min_holders")
        def train(self, request: Payload) -> Answer:
            answer = super().train(request)
            nodes = torch.tensor(self.cohort.sizes).to(answer.weight).unsqueeze(1)
            return Answer(answer.fields, weight=nodes.expand_as(answer.weight))


class NodeNumbers(FedTAD):
    """FedTAD that puts numbers of nodes beside the features, for probabilities of walks.

    The released walks, of each length, step to any node of the graph with nearly the same probability, and what they
    code are the numbers of the nodes that they meet, the first of which is the node itself.
    """

    name: ClassVar[str] = "fedtad-node-numbers"

    class AtParty(FedTAD.AtParty):
        def surroundings(self) -> Tensor:
            sizes, block = self.cohort.sizes, self.cohort.block
            own = torch.cat([torch.arange(size) for size in sizes]).unsqueeze(1)
            nodes = torch.tensor(sizes).repeat_interleave(torch.tensor(sizes)).unsqueeze(1)
            met = []
            for length in range(1, self.method.walks + 1):
                steps = self.draws("walks", length).uniform(sizes, length)[:, 1:] * nodes
                met += [own, steps.floor()]
            return torch.cat(met, dim=1).to(block.x.dtype)


class OwnClasses(FedTAD):
    """FedTAD whose parties weigh their classes against each other and not against other parties, as in OpenFGL."""

    name: ClassVar[str] = "fedtad-own-classes"

    class AtParty(FedTAD.AtParty):
        def reliability(self) -> Tensor:
            found = super().reliability()
            return found / found.sum(1, keepdim=True).clamp(min=1e-12)

        def log_probabilities(self, x: Tensor, request: Payload) -> tuple[Tensor, Tensor, Tensor]:
            return super().log_probabilities(x, {**request, "reliable": torch.ones_like(request["reliable"])})


class UnlabelledAsZero(FedGTA):
    """FedGTA that propagates as OpenFGL does, by PyG, whose mask leaves nothing of what is predicted of other nodes.

    Y^0 = softmax(outputs) on training nodes, elsewhere 0;  Y <- r A Y + (1 - r) Y^0, within 0 and 1, A without loops
    """

    name: ClassVar[str] = "fedgta-unlabelled-as-zero"

    class AtParty(FedGTA.AtParty):
        def propagated(self) -> tuple[Tensor, Tensor]:
            method, cohort, block = self.method, self.cohort, self.cohort.block
            known = cohort.masks["train"].unsqueeze(1)
            start = infer(self.model, block).softmax(1) * known
            edges = gcn_norm(block.edge_index, num_nodes=block.nodes, add_self_loops=False, dtype=start.dtype)
            matrix, y = Propagation(*edges, block.nodes), start
            for _ in range(method.steps):
                y = (method.reach * (matrix @ y) + (1 - method.reach) * start).clamp(0, 1)
            sure = torch.zeros_like(start)
            sure[known[:, 0]] = F.one_hot(cohort.y[known[:, 0]], start.size(1)).to(start.dtype)
            soft, even = y.softmax(1), (y / method.temperature).softmax(1)
            return torch.where(known, sure, soft), torch.where(known, sure, even)


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
    """AdaFGL that takes one of its two predictors, by whether the score is 0.9 or more, as its released code does."""

    name: ClassVar[str] = "adafgl-switch"

    class AtParty(AdaFGL.AtParty):
        def homophily(self) -> Tensor:
            return (super().homophily() > 0.9 - 1e-6).double()  # of single numbers, of which 0.9 is a little less
