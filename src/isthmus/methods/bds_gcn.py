"""BDS-GCN: a GCN over all parties that sees a part of the border in each iteration."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from isthmus.methods.base import Listing
from isthmus.methods.fedcog_gcn import FedCogGcn


class BdsGcn(FedCogGcn):
    """BDS-GCN (Wan et al. 2022, there BNS-GCN): each iteration draws border nodes; the others send nothing.

    A border node is kept with probability p in an iteration, in all of its layers, and its row in sums for others is
    divided by p, so that the sums are right on average. Evaluation uses the whole border.

    Draw:  s_v = 1 / p with probability p, else 0, for every node, once an iteration
    Forth: own sum = sum_{v in N_u^I} beta_v h_v^(l) W^(l)  for each own node u,
           sent    = sum_{v in N_u^I} s_v beta_v h_v^(l) W^(l)  for others' u,
           h_u^(l+1) <- ReLU(gamma_u (own sum + received sums for u) + b^(l))
    Back:  the gradient of a received sum goes back, and is times s_v at each v

    beta_v = gamma_v = (1 + d_v)^-1/2 with degrees in the whole graph; the last layer has no ReLU. All else is as in
    `fedcog-gcn`: one step of the server's optimiser on the sum of the parties' gradients.

    The authors' parties send each drawn node's own row to every party with a neighbour of it, and each receiver draws
    for itself. Here an owner draws once for all, and sends sums over the drawn neighbours of a node. Where few nodes
    are drawn most sums are over one node, and hide next to nothing: first-layer rows are features times known weights.
    """

    name: ClassVar[str] = "bds-gcn"
    tuned: ClassVar[tuple[str, ...]] = ("boundary",)
    for_crossing: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing(
        "coupled", leaves="sums over drawn neighbours and their gradients, from party to party"
    )

    boundary: float = Field(0.1, gt=0, le=1)
    """Share of the border nodes that is drawn (p)."""
    lnnc: bool = False
    """Local nearest neighbour connection, a part of FedCog and not of the paper's BDS-GCN."""

    class AtParty(FedCogGcn.AtParty):
        method: BdsGcn
        _factor: Tensor

        def shown(self, t: Tensor, layer: int, training: bool) -> Tensor:
            """The rows of nodes that were drawn, divided by p; zero for the others."""
            if not training:
                return t
            if layer == 0:
                drawn = self.draws("boundary").uniform(self.cohort.sizes, 1)
                self._factor = (drawn < self.method.boundary).to(t) / self.method.boundary
            return self._factor * t
