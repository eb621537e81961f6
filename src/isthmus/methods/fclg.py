"""FCLG: two levels of contrast, between graphs and between models, and no labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.cohort import Block, Cohort
from isthmus.data.party import Party
from isthmus.methods.base import Listing
from isthmus.methods.shared.unsupervised import TwoViews
from isthmus.nn.contrast import contrast_views
from isthmus.tasks.base import Step


class FCLG(TwoViews):
    """FCLG (Li et al.), Algorithm 1: a party contrasts its graphs with each other, and its model with the server's.

    Graphs are told apart without labels, each from its diffusion and from other graphs; a second contrast holds a
    party's model near the server's and away from its own of the epoch before. U and V are embeddings of a batch of
    graphs and of their diffusions by the trained model, U_s those of the graphs by the server's model, U_c^(t-1) by the
    party's model at the end of the epoch before:

    L(u, v) = log(sum_{z in U + V, z != u} exp(u z / tau) / exp(u v / tau))     (5)
    l_intra = 1/2B sum_u (L(u, v) + L(v, u))     (6)
    l_inter = log(1 + exp((cos(U, U_c^(t-1)) - cos(U, U_s)) / tau'))     (7)
    l       = inter_weight l_inter + l_intra     (9)

    (7) is a mean over the graphs; a round's first epoch has no l_inter. `trainer` averages weights: the server reads
    their mean. Embeddings for evaluation are those of the graphs as they are.

    In (5), and in the paper's variants (2) and (3), embeddings get length 1, as products of sums over nodes are large;
    with `unit = false` they are as printed. With one batch per epoch U equals U_c^(t-1), which then gives no gradient.
    With batch normalisation U has the statistics of its batch, U_s and U_c the running ones.
    """

    name: ClassVar[str] = "fclg"
    tuned: ClassVar[tuple[str, ...]] = ("temperature", "inter_weight")
    listing: ClassVar[Listing] = Listing("unlabelled", 3)

    temperature: float = Field(0.5, gt=0)
    """Temperature of the contrast between graphs (tau)."""
    unit: bool = True
    """Scale embeddings to length 1 in (5), (2) and (3); without, these are as printed."""
    inter: Literal["contrast", "none", "kl", "mse"] = "contrast"
    """Loss between a party's model and the server's: (7); none, the paper's Intra-FedAvg; Intra-KL (2); Intra-MSE
    (3)."""
    inter_on: Literal["graphs", "nodes"] = "graphs"
    """Compare embeddings of graphs between models, or of nodes, the paper's FCLG-H (8)."""
    inter_temperature: float = Field(0.5, gt=0)
    """Temperature of the contrast between models (tau')."""
    inter_weight: float = Field(1.0, ge=0)
    """Weight of l_inter; the paper has none, which is 1."""

    class AtParty(TwoViews.AtParty):
        loss_method: FCLG

        def __init__(self, method: FCLG, parties: Sequence[Party], *args: Any, **where: Any) -> None:
            super().__init__(method, parties, *args, **where)
            self.given = Cohort(tuple(parties), self.hosted.device)
            self.remembered: list[Tensor] = []

        def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, None]:
            if at == 0:
                self._remember(epoch)
            return super().read(chosen, epoch, at)

        def _remember(self, epoch: int) -> None:
            """Store U_s (line 16) before the first epoch and U_c^(t-1) before every other, of all graphs."""
            contrast = self.loss_method.inter == "contrast"
            unused = contrast and self.method.local.epochs == 1
            if self.loss_method.inter == "none" or (epoch and not contrast) or unused:
                return
            with self.model.evaluating():
                output = self.model(self.given.take(self.positions).block)
            now = output[int(self.loss_method.inter_on == "graphs")].squeeze(1)
            self.remembered = [*self.remembered[:1], now] if epoch else [now]

        def loss(self, step: Step) -> Tensor:
            """The loss (9) (lines 17 and 18)."""
            h, u = step.output
            loss = contrast_views(u, step.sizes, self.loss_method.temperature, unit=self.loss_method.unit)
            if not self.remembered or (self.loss_method.inter == "contrast" and len(self.remembered) < 2):
                return loss
            if self.loss_method.inter_on == "graphs":
                now, at, sizes = u[:, 0], step.items, step.sizes
            else:
                now, at, sizes = h[:, 0], self._nodes_of(step.items), self.block.sizes
            apart = rows.mean_per_party(self.apart(now, [each[at] for each in self.remembered]), sizes)
            return loss + self.loss_method.inter_weight * apart

        def _nodes_of(self, graphs: Tensor) -> Tensor:
            batch = self.cohort.block.batch
            assert batch is not None
            return rows.chosen_ranges(torch.bincount(batch, minlength=sum(self.cohort.items)), graphs)

        def apart(self, now: Tensor, before: Sequence[Tensor]) -> Tensor:
            """Loss of embeddings against those of the server's model, `[rows]`: (7), (8), (2) or (3)."""
            tau = self.loss_method.inter_temperature
            unit = self.loss_method.unit or self.loss_method.inter == "contrast"  # (7) has cosines
            now, server, *own = (F.normalize(each, dim=1) if unit else each for each in (now, *before))
            if self.loss_method.inter == "kl":
                target = (server / tau).log_softmax(1)
                return F.kl_div((now / tau).log_softmax(1), target, log_target=True, reduction="none").sum(1)
            if self.loss_method.inter == "mse":
                return (now - server).square().sum(1)
            return F.softplus(((now * own[0]).sum(1) - (now * server).sum(1)) / tau)

        def predict(self, request: Any) -> Tensor:
            self.cohort = self.given.take(self.positions)
            return super().predict(request)
