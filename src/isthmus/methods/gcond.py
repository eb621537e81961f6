"""GCond and DosCond: condense a graph that is in one place."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from isthmus.methods.base import Listing, Role
from isthmus.methods.shared.condensing import Matching


class DosCond(Matching):
    """DosCond (Jin et al. 2022b): a small graph with the gradients of the full graph, for random weights.

    A small graph G' = (A', X', Y') is learned so that a linear model over K propagations (SGC) has the same gradients
    on it as on the whole graph, class by class. The model's weights theta are drawn in every round and never trained.

    H    = (D^-1/2 (A + I) D^-1/2)^K X, on the whole graph
    H'   = (D'^-1/2 (A' + I) D'^-1/2)^K X'
    A'_ij = sigm((MLP([x'_i || x'_j]) + MLP([x'_j || x'_i])) / 2)
    g_c  = (1 / n_c) sum_{i: y_i = c} (softmax(theta h_i) - e_c) h_i^T
    g'_c likewise from H' and Y'
    loss = sum_c |g_c - g'_c|^2, or 1 - cos summed over outputs (distance)
    step: X' and the MLP by Adam on the loss;  sigm is the logistic function

    It is a reference for `fedgc`, whose paper gives it as (3): all data are in one place. X' does not start at copies
    of training nodes, as in the published code, but is drawn from the mean and deviation of each class.
    """

    name: ClassVar[str] = "doscond"
    listing: ClassVar[Listing] = Listing("condensed", leaves="all data, to one place")
    role: ClassVar[Role] = "pooled"

    finetune: bool = False
    """Train the model further on the whole graph before it is evaluated."""
    min_contributors: int = Field(1, ge=1)
    """Parties that a sum needs; all data are in one place."""


class GCond(DosCond):
    """GCond (Jin et al. 2022a): a small graph with the gradients of the full graph, throughout training.

    As `doscond`, but gradients agree along the path that training on G' takes, and not only at random weights theta.
    theta is drawn every `renew` rounds and trained on G' in between.

    path:  theta <- theta - lr_inner sum_c (n'_c / n') g'_c, inner times a round

    FedGC's paper gives it as (2). As published, X' and the MLP take turns, and distances are cosines; here both step
    together, and `distance = "columns"` selects cosines.
    """

    name: ClassVar[str] = "gcond"
    listing: ClassVar[Listing] = Listing("condensed", leaves="all data, to one place")

    renew: int = Field(20, ge=1)
    """Rounds with one draw of theta."""
    inner: int = Field(10, ge=0)
    """Training steps of theta on the synthetic graph in each round."""
