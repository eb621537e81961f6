"""BDS-GCN: a GCN over all parties that sees a part of the border in each iteration."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from isthmus.methods.base import Listing
from isthmus.methods.fedcog_gcn import FedCogGcn


class BdsGcn(FedCogGcn):
    """BDS-GCN (Wan et al. 2022, there BNS-GCN): border nodes are drawn for each iteration, the others send nothing.

    A node at the border is kept with probability p in an iteration, in all of its layers, and what it sends is divided
    by p, so that what arrives is right on average. Evaluation takes the whole border.

    Draw:  s_v = 1 / p with probability p, else 0, for every node, once an iteration
    Forth: own sum = sum_{v in N_u^I} beta_v h_v^(l) W^(l)  for each own node u,
           sent    = sum_{v in N_u^I} s_v beta_v h_v^(l) W^(l)  for others' u,
           h_u^(l+1) <- ReLU(gamma_u (own sum + what came for u) + b^(l))
    Back:  the gradient of what came goes back, and is times s_v at each v

    beta_v = gamma_v = (1 + d_v)^-1/2 with degrees in the whole graph; the last layer has no ReLU. The rest is
    `fedcog-gcn`: one step of the server's optimiser on the sum of the parties' gradients.

    The authors' parties send each drawn node's own row to every party that has a neighbour of it, and each receiver
    draws for itself. Here an owner draws once for all, and rows go as sums over the drawn neighbours of a node, as
    FedCog's do. Where few are drawn most sums are over one node, so that this hides next to nothing: rows of the first
    layer are the node's features times known weights.
    """

    name: ClassVar[str] = "bds-gcn"
    listing: ClassVar[Listing] = Listing("coupled")

    boundary: float = Field(0.1, gt=0, le=1)
    """p: the share of border nodes that is drawn."""
    lnnc: bool = False
    """Local nearest neighbour connection: it is FedCog's, and not of this method."""

    class AtParty(FedCogGcn.AtParty):
        method: BdsGcn
        _factor: Tensor

        def shown(self, t: Tensor, layer: int, training: bool) -> Tensor:
            """The rows of nodes that were drawn, divided by p; zero for the others."""
            if not training:
                return t
            if layer == 0:
                sources = zip(self.cohort.sizes, self.generators("boundary"), strict=True)
                drawn = torch.cat([torch.rand(nodes, 1, generator=source) for nodes, source in sources])
                self._factor = (drawn < self.method.boundary).to(t) / self.method.boundary
            return self._factor * t
