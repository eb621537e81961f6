"""GCond and DosCond: condensation of a graph that is in one place."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from isthmus.methods.base import Listing, Role
from isthmus.methods.shared.condensing import Matching


class DosCond(Matching):
    """DosCond (Jin et al. 2022b): gradients are matched where theta is drawn, (3), one step for each draw.

    A small graph G' = (A', X', Y') is learned so that a linear model over K propagations (SGC) has the same gradients
    on it as on the whole graph, class by class. theta is drawn in every round and never trained.

    H    = (D^-1/2 (A + I) D^-1/2)^K X, on the whole graph
    H'   = (D'^-1/2 (A' + I) D'^-1/2)^K X'
    A'_ij = sigm((MLP([x'_i || x'_j]) + MLP([x'_j || x'_i])) / 2)
    g_c  = (1 / n_c) sum_{i: y_i = c} (softmax(theta h_i) - e_c) h_i^T
    g'_c likewise from H' and Y'
    loss = sum_c |g_c - g'_c|^2, or 1 - cos summed over outputs (distance)
    step: X' and the MLP by Adam on the loss;  sigm is the logistic function

    (3) is FedGC's number for it. There the distance is the cosine of (7) or, for small graphs, the squared
    differences, which are the default here. Without `edges` A' is the identity.

    All data are in one place. X' does not start at copies of training nodes, as in the published code, but is drawn
    from the classes' mean and spread.
    """

    name: ClassVar[str] = "doscond"
    listing: ClassVar[Listing] = Listing("condensed")
    role: ClassVar[Role] = "pooled"

    finetune: bool = False
    """Whether the model is trained further on the whole graph before it is evaluated."""
    min_contributors: int = Field(1, ge=1)
    """Parties that a class's gradient is at least of; all data are in one place."""


class GCond(DosCond):
    """GCond (Jin et al. 2022a): gradients are matched along the way of theta trained on the synthetic graph, (2).

    A small graph G' = (A', X', Y') is learned so that a linear model over K propagations (SGC) has the same gradients
    on it as on the whole graph, class by class: not where theta is drawn alone, but along the way that training on G'
    takes it. theta is drawn anew every `renew` rounds.

    H    = (D^-1/2 (A + I) D^-1/2)^K X, on the whole graph
    H'   = (D'^-1/2 (A' + I) D'^-1/2)^K X'
    A'_ij = sigm((MLP([x'_i || x'_j]) + MLP([x'_j || x'_i])) / 2)
    g_c  = (1 / n_c) sum_{i: y_i = c} (softmax(theta h_i) - e_c) h_i^T
    g'_c likewise from H' and Y'
    loss = sum_c |g_c - g'_c|^2, or 1 - cos summed over outputs (distance)
    step: X' and the MLP by Adam on the loss;  sigm is the logistic function
    way:  theta <- theta - lr_inner sum_c (n'_c / n') g'_c, inner times a round

    (2) is FedGC's number for it. As published, X' and the MLP take turns and distances are cosines; here both step
    together, and `distance = "columns"` is the cosines. All data are in one place. X' starts as DosCond's does.
    """

    name: ClassVar[str] = "gcond"
    listing: ClassVar[Listing] = Listing("condensed")

    renew: int = Field(20, ge=1)
    """Rounds with one draw of theta."""
    inner: int = Field(10, ge=0)
    """Steps that theta is trained on the synthetic graph from one of these rounds to the next."""
