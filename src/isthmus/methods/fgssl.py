"""Federated averaging with two local terms that hold a party's embeddings near those of the received model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.wire import Payload
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.contrast import pad_rows
from isthmus.nn.draws import Draws
from isthmus.nn.per_party import PerParty
from isthmus.tasks.base import Step, Task


class FGSSL(FedAvg):
    """FGSSL (Huang et al. 2023): parties learn what nodes mean, and how neighbours resemble, from the received model.

    A party sees few nodes of some classes, and its own part of the graph only. The received model w_t, fixed during
    local training, has learned from all parties. So a party's embeddings h should place a node among nodes of its class
    as those of w_t do (g), and should find the same neighbours alike; h' and g' are embeddings of views.

    Party:  minimise F_k + semantic L_C + structural L_D, from w_t
            L_C = - mean_i mean_p log(e_ip / (e_ip + sum_n e_in)),
            e_ij = exp(cos(h'_i, g'_j) / tau) of training nodes,
            p of the class of i, n of the others
            L_D = mean_i KL(s(g)_i || s(h)_i) over nodes with neighbours,
            s(h)_ij = softmax_j(cos(h_i, h_j) / tau) over the neighbours j of i
    Server: w_{t+1} = sum_k (n_k / n) w_k

    A view lacks some edges, and some features of all nodes; each step draws a strong one for h' and a weak one for g'.
    Embeddings are what the model's head reads. Nothing but weights leaves a party. The public code contrasts two views
    by the local model instead, and uses no structural term. The weights of both terms are ours: tune them.
    """

    name: ClassVar[str] = "fgssl"
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_classes: ClassVar[bool] = True
    tuned: ClassVar[tuple[str, ...]] = ("semantic", "structural")

    semantic: float = Field(0.1, ge=0)
    """Weight of the contrast of nodes by class."""
    structural: float = Field(0.1, ge=0)
    """Weight of the divergence of similarities between neighbours."""
    temperature: float = Field(0.1, gt=0)
    """By which cosines are divided (tau)."""
    strong_edges: float = Field(0.8, ge=0, le=1)
    """Share of the edges that the party's own view lacks."""
    strong_features: float = Field(0.5, ge=0, le=1)
    """Share of the features that the party's own view lacks."""
    weak_edges: float = Field(0.3, ge=0, le=1)
    """Share of the edges that the received model's view lacks."""
    weak_features: float = Field(0.3, ge=0, le=1)
    """Share of the features that the received model's view lacks."""

    class AtParty(FedAvg.AtParty):
        method: FGSSL

        def __init__(self, method: FGSSL, parties: Sequence[Party], task: Task, module: Any, **where: Any) -> None:
            super().__init__(method, parties, task, module, **where)
            self.received_model = PerParty(module, len(parties), self.hosted.device)

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])
            self.received_model.resize(len(self.cohort))
            self.received_model.load(request["weights"])
            self.near = self.seen_by_received(self.cohort.block)
            self.method.local.fit(self, self.loss, read=self.read, embed=True)
            return Answer({"weights": self.model.weights()}, weight=self.averaging_weights())

        def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, None]:
            """The whole graph, as the loss takes all nodes' embeddings; its views are drawn for each step."""
            self.step_draws = self.draws("views", epoch, at)
            return self.cohort.block, None

        def loss(self, step: Step) -> Tensor:
            """F_k + semantic L_C + structural L_D by party, `[parties]`."""
            assert step.embedding is not None
            method, block, draws = self.method, self.cohort.block, self.step_draws
            total = self.task.loss(replace(step, output=step.output[step.items]))
            if method.semantic:
                strong = view(block, method.strong_edges, method.strong_features, draws.of("strong"))
                weak = view(block, method.weak_edges, method.weak_features, draws.of("weak"))
                _, own = self.model(strong, draws.of("dropout"), embed=True)
                given = self.seen_by_received(weak)
                contrast = class_contrast(own[step.items], given[step.items], step.y, step.sizes, method.temperature)
                total = total + method.semantic * contrast
            if method.structural:
                total = total + method.structural * divergence(self.near, step.embedding, block, method.temperature)
            return total

        def free(self) -> None:
            super().free()
            self.received_model.resize(len(self.hosted))

        def seen_by_received(self, block: Block) -> Tensor:
            """Embeddings of all nodes by the received model, without dropout."""
            with torch.no_grad():
                embedding: Tensor = self.received_model(block, embed=True)[1]
            return embedding


def view(block: Block, edges: float, features: float, draws: Draws) -> Block:
    """The block without a share of each party's edges, and with zeros for a share of its features."""
    party = rows.party_of_rows(block.sizes, block.edge_index.device)
    counts = torch.bincount(party[block.edge_index[0]], minlength=len(block.sizes)).tolist()
    kept = draws.of("edges").uniform(counts).to(party.device) >= edges
    shown = draws.of("features").uniform((1,) * len(block.sizes), block.x.size(1)).to(party.device) >= features
    x = _masked(block.x, shown, party)
    return Block(x, block.edge_index[:, kept], block.sizes, node_type=block.node_type, **block.edges_at(kept))


def _masked(x: Tensor, shown: Tensor, party: Tensor) -> Tensor:
    """The features with zeros where `shown`, `[parties, features]`, is false."""
    if not rows.is_sparse(x):
        return x * shown[party]
    crow, column = x.crow_indices(), x.col_indices()
    values = x.values() * shown[party.repeat_interleave(crow.diff()), column]
    return rows.csr(crow, column, values, (x.size(0), x.size(1)))


def class_contrast(own: Tensor, given: Tensor, y: Tensor, sizes: Sequence[int], temperature: float) -> Tensor:
    """L_C by party, `[parties]`; 0 where a party has no two classes.

    Arguments:
        own, given: embeddings of the same nodes, `[nodes, width]`.
        y: their classes.
        sizes: nodes of each party.
    """
    (mine, mask), (theirs, _) = (pad_rows(F.normalize(each, dim=1), sizes) for each in (own, given))
    label, there = pad_rows(y, sizes)[0], mask.unsqueeze(1)
    score = mine @ theirs.mT / temperature  # [parties, most, most]
    same = (label.unsqueeze(2) == label.unsqueeze(1)) & there
    none = torch.finfo(score.dtype).min / 2  # finite, so that its gradient is 0 where there are no others
    others = score.masked_fill(same | ~there, none).logsumexp(2, keepdim=True)
    terms = (torch.logaddexp(score, others) - score) * same
    of_node = terms.sum(2) / same.sum(2).clamp(min=1)
    return rows.mean_per_party(of_node[mask], sizes)


def divergence(given: Tensor, own: Tensor, block: Block, temperature: float) -> Tensor:
    """L_D by party, `[parties]`: the mean over nodes with neighbours; 0 for a party without edges.

    Arguments:
        given, own: embeddings of all nodes of the block, `[nodes, width]`.
    """
    source, target = block.edge_index[:, block.edge_index[0] != block.edge_index[1]]
    due, found = (_log_shares(each, source, target, temperature) for each in (given, own))
    of_node = own.new_zeros(block.nodes).index_add(0, target, due.exp() * (due - found))
    having = torch.zeros(block.nodes, dtype=torch.bool, device=own.device).index_fill(0, target, True)
    return rows.mean_per_party(of_node[having], [int(each.sum()) for each in having.split(block.sizes)])


def _log_shares(h: Tensor, source: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Of each edge the logarithm of the share that its source has in how alike a node finds its neighbours."""
    unit = F.normalize(h, dim=1)
    score = (unit[source] * unit[target]).sum(1) / temperature
    largest = score.new_full((len(h),), -torch.inf).scatter_reduce(0, target, score.detach(), "amax")
    total = score.new_zeros(len(h)).index_add(0, target, (score - largest[target]).exp())
    return score - largest[target] - total[target].log()
