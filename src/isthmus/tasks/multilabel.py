"""Several yes-or-no labels per node, or per graph, any of which may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.party import Level
from isthmus.tasks.base import MultiTask, Step

BINS = 1024
"""Bins of scores, an even number: the two in the middle meet at a score of 0."""
WIDTH = 4.0
"""Scores between -WIDTH and WIDTH get half of the bins."""


class MultiLabel(MultiTask):
    r"""Binary cross-entropy; accuracy, and ROC-AUC per task averaged over the tasks that have both classes.

    An area under a curve is no sum over parties, but the numbers of scores of either class in fixed bins are. With
    :math:`p_b` and :math:`n_b` the shares of a task's positive and negative entries in bin b,

    .. math:: \mathrm{AUC} = \sum_b p_b \left(\tfrac{1}{2} n_b + \sum_{a<b} n_a\right),

    so a pair within one bin counts half, as a tie does. This is off by at most :math:`\frac{1}{2}\sum_b p_b n_b`,
    half the share of the pairs within one bin. A logit z lies in one of 1,024 even steps of z / (4 + \|z\|), which
    rises with z and, unlike the logistic function, tells scores apart far from 0 too: in steps of 1/128 at z = 0 and
    1/20 at z = 6. Areas of 400 items, a tenth of them positive, are off by 0.0002 on average where the logits of a
    class spread by 1, and where they spread by 0.05, as in a model that has just begun, by 0.002 around 0 and by
    0.005 around -3.

    >>> import torch
    >>> y = torch.tensor([[0.0], [0.0], [1.0], [float("nan")]])
    >>> step = Step(torch.tensor([[-2.0], [1.0], [0.5], [3.0]]), y, (4,), torch.arange(4))
    >>> task = GraphMultiLabel(tasks=1)
    >>> found = task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})
    >>> found["roc_auc"], round(found["accuracy"], 3)
    (0.5, 0.667)
    """

    select_by: ClassVar[str] = "roc_auc"

    def entry_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y, reduction="none")

    def counts(self, step: Step) -> dict[str, Tensor]:
        """`scores` `[parties, tasks, 2, bins]`, how many of either class lie in each bin, and the sum of the losses."""
        y, known = self.labels(step)
        item, task = known.nonzero(as_tuple=True)
        scores, positive = step.output[known], y[known].long()
        cell = (rows.party_of_rows(step.sizes, scores.device)[item] * self.tasks + task) * 2 + positive
        counts = torch.zeros(len(step.sizes), self.tasks, 2, BINS, dtype=torch.int32, device=scores.device)
        counts.view(-1).index_add_(0, cell * BINS + _bins(scores), torch.ones_like(cell, dtype=torch.int32))
        losses = self.entry_loss(step.output, y).masked_fill(~known, 0.0).cpu()  # some devices have no doubles
        return {"scores": counts, "loss": step.sum(losses.double().sum(1))}

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["scores"].sum())

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        negative, positive = counts["scores"].cpu().double().unbind(1)
        entries = negative.sum() + positive.sum()
        if entries == 0:
            return {}
        hits = negative[:, : BINS // 2].sum() + positive[:, BINS // 2 :].sum()
        found = {"accuracy": float(hits / entries), "loss": float(counts["loss"] / entries)}
        under = areas(counts["scores"])
        both = ~under.isnan()
        if bool(both.any()):
            found["roc_auc"] = float(under[both].mean())
        return found


class NodeMultiLabel(MultiLabel):
    """Several yes-or-no labels per node."""

    name: ClassVar[str] = "node-multilabel"
    level: ClassVar[Level] = "node"


class GraphMultiLabel(MultiLabel):
    """Several yes-or-no labels per graph."""

    name: ClassVar[str] = "graph-multilabel"
    level: ClassVar[Level] = "graph"


def areas(scores: Tensor) -> Tensor:
    """Areas under ROC curves, `[...]`; NaN where there are no scores of one class.

    Arguments:
        scores: how many scores of either class, the negative first, lie in each bin, `[..., 2, bins]`.
    """
    negative, positive = scores.cpu().double().unbind(-2)
    below = negative.cumsum(-1) - negative / 2
    return (positive * below).sum(-1) / (positive.sum(-1) * negative.sum(-1))


def _bins(scores: Tensor) -> Tensor:
    """The bin of every score; one that is no number (its party is named for it by the loss) in the middle."""
    finite = scores.detach().nan_to_num(nan=0.0)
    place = (BINS // 2) * (finite / (WIDTH + finite.abs()))
    return (place.floor().long() + BINS // 2).clamp(0, BINS - 1)
