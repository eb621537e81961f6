"""Mixes of the models of parties whose labels spread alike over their graphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.federation.verbs import Coefficients
from isthmus.methods.base import Listing
from isthmus.methods.shared.mixing import Mixing, MixingSite, Told
from isthmus.nn.layerwise import infer
from isthmus.nn.products import Propagation, normalised_edges


class FedGTA(Mixing):
    """FedGTA (Li et al. 2023): each party gets the mean of models from parties with similar soft labels.

    A party propagates its labels and predictions over its graph, and tells the server their moments m_k and how sure
    they are, H_k. The server averages for party i over the parties with similar moments.

    Party:  w_k <- w_k - step(grad F_k(w_k)), for E epochs
            Y^0 = one-hot labels of training nodes, elsewhere softmax(outputs)
            Y <- r A Y + (1 - r) Y^0, plus Y^0 on training nodes, steps times
            P = softmax(Y), Q = softmax(Y / temperature), Y^0 on training nodes
            m_k = mean_v P_v^p and mean_v (P_v - mean P)^p, p = 1 .. orders
            H_k = sum_v d_v (C / e + sum_c Q_vc log Q_vc)
    Server: S_i = {j : cos(m_i, m_j) > similar}
            w_i = sum_{j in S_i} H_j w_j / sum_{j in S_i} H_j

    The matrix A has self-loops and is normalised as for a GCN; d_v edges lead into node v, and there are C classes.

    The first moments are nearly a party's label distribution, and the server reads them, H_k and, as it makes one sum
    for each set, could read single models: such sums cannot be masked. A party that is similar to no other keeps its
    own model. If every H_k of a set is 0, because its parties have no edges, they count evenly. The paper's encoder is
    `gamlp`; others work, too.
    """

    name: ClassVar[str] = "fedgta"
    listing: ClassVar[Listing] = Listing(leaves="moments of soft labels and its model, which the server could read")
    tuned: ClassVar[tuple[str, ...]] = ("similar",)
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_classes: ClassVar[bool] = True
    encoder: ClassVar[str] = "gamlp"
    nouns: ClassVar[Mapping[str, str]] = {
        **Mixing.nouns,
        "moments": "moments of its soft labels",
        "confidence": "how sure these are (H_k)",
    }

    similar: float = Field(0.5, ge=-1, lt=1)
    """Cosine of moments above which two parties are similar (alpha)."""
    moments: Literal["both", "raw", "central"] = "both"
    """Moments about zero, about the mean, or both (hybrid)."""
    orders: int = Field(10, ge=1, le=100)
    """Moments of the orders 1 to this one; the paper uses 6 to 20."""
    steps: int = Field(5, ge=1, le=1000)
    """Steps of label propagation."""
    reach: float = Field(0.5, ge=0, le=1)
    """Share of a node's soft label that comes from its neighbours in a step (r)."""
    temperature: float = Field(20.0, gt=0)
    """Temperature of the soft labels in H_k."""

    def mix(self, told: Told, among: Collection[str]) -> Coefficients:
        moments = {party: F.normalize(answer["moments"].double(), dim=0) for party, answer in told.items()}
        sure = {party: max(0.0, float(told[party]["confidence"])) for party in among}
        mixes: dict[str, dict[str, float]] = {}
        for party, own in moments.items():
            near = [each for each in among if each == party or float(own @ moments[each]) > self.similar]
            total = sum(sure[each] for each in near)
            mixes[party] = {each: sure[each] / total if total else 1 / len(near) for each in near}
        return mixes

    class AtParty(MixingSite):
        method: FedGTA

        def describe(self) -> dict[str, Any]:
            soft, even = self.propagated()
            sizes = self.cohort.sizes
            edges = torch.bincount(self.cohort.block.edge_index[1], minlength=sum(sizes)).to(even.dtype)
            entropy = torch.xlogy(even, even).sum(1)
            confidence = rows.sum_per_party(edges * (even.size(1) / math.e + entropy), sizes)
            return {"moments": self.moments(soft), "confidence": confidence.clamp(min=0)}

        def propagated(self) -> tuple[Tensor, Tensor]:
            """P and Q, `[nodes, classes]`."""
            method, cohort, block = self.method, self.cohort, self.cohort.block
            start = infer(self.model, block).softmax(1)
            known = cohort.masks["train"]
            start[known] = F.one_hot(cohort.y[known], start.size(1)).to(start.dtype)
            edges = normalised_edges(block.edge_index, None, block.nodes, dtype=start.dtype)
            matrix, y = Propagation(*edges, block.nodes), start
            for _ in range(method.steps):
                y = method.reach * (matrix @ y) + (1 - method.reach) * start + start * known.unsqueeze(1)
            soft, even = y.softmax(1), (y / method.temperature).softmax(1)
            return torch.where(known.unsqueeze(1), start, soft), torch.where(known.unsqueeze(1), start, even)

        def moments(self, soft: Tensor) -> Tensor:
            """m_k, `[parties, numbers]`."""
            sizes, kind = self.cohort.sizes, self.method.moments
            mean = rows.mean_per_party(soft, sizes).repeat_interleave(torch.tensor(sizes, device=soft.device), dim=0)
            about = {"raw": [soft], "central": [soft - mean], "both": [soft, soft - mean]}[kind]
            orders = range(1, self.method.orders + 1)
            return torch.cat([rows.mean_per_party(each**p, sizes) for each in about for p in orders], dim=1)
