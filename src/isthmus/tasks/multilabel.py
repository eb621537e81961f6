"""Several yes-or-no labels per node, or per graph, any of which may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.party import Level
from isthmus.tasks.base import MultiTask, Step, names_of

BINS = 1024
"""Number of bins, even: the two in the middle meet at a score of 0."""
WIDTH = 4.0
"""Half of the bins are for scores between -WIDTH and WIDTH."""


class MultiLabel(MultiTask):
    r"""Binary cross-entropy; accuracy, and ROC-AUC per task averaged over the tasks that have both classes.

    Parties cannot add up areas under curves, but they can add up how many scores of either class lie in fixed bins.
    With :math:`p_b` and :math:`n_b` the shares of a task's positive and negative entries in bin b,

    .. math:: \mathrm{AUC} = \sum_b p_b \left(\tfrac{1}{2} n_b + \sum_{a<b} n_a\right),

    so a pair within one bin counts half, like a tie. The error is at most :math:`\frac{1}{2}\sum_b p_b n_b`, half the
    share of the pairs within one bin. Bins are 1,024 even steps of z / (4 + \|z\|) for a logit z: unlike the logistic
    function this separates scores far from 0 too, in steps of 1/128 at z = 0 and 1/20 at z = 6. For 400 items, a
    tenth of them positive, the mean error is 0.0002 if the logits of a class have a standard deviation of 1. If it is
    0.05, as in an untrained model, the error is 0.002 around a logit of 0 and 0.005 around -3.

    >>> import torch
    >>> y = torch.tensor([[0.0], [0.0], [1.0], [float("nan")]])
    >>> step = Step(torch.tensor([[-2.0], [1.0], [0.5], [3.0]]), y, (4,), torch.arange(4))
    >>> task = GraphMultiLabel(tasks=1)
    >>> metrics = task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})
    >>> metrics["roc_auc"], round(metrics["accuracy"], 3)
    (0.5, 0.667)
    """

    select_by: ClassVar[str] = "roc_auc"

    def entry_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y, reduction="none")

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """For every task whether the label is yes, and the probability of that as a score."""
        names, yes, scores = names_of(labels, self.tasks), (output > 0).t().numpy(), output.sigmoid().t().numpy()
        answers = {f"prediction.{name}": column for name, column in zip(names, yes, strict=True)}
        return answers | {f"score.{name}": column for name, column in zip(names, scores, strict=True)}

    def counts(self, step: Step) -> dict[str, Tensor]:
        """How many `scores` of either class lie in each bin, `[parties, tasks, 2, bins]`, and the sum of the losses."""
        y, known = self.labels(step)
        item, task = known.nonzero(as_tuple=True)
        scores, positive = step.output[known], y[known].long()
        cell = (rows.party_of_rows(step.sizes, scores.device)[item] * self.tasks + task) * 2 + positive
        counts = torch.zeros(len(step.sizes), self.tasks, 2, BINS, dtype=torch.int32, device=scores.device)
        counts.view(-1).index_add_(0, cell * BINS + _bins(scores), torch.ones_like(cell, dtype=torch.int32))
        losses = self.entry_loss(step.output, y).masked_fill(~known, 0.0).cpu()  # some devices have no doubles
        return {"scores": counts, "loss": step.sum(losses.double().sum(1))}

    def count_forms(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        return {"scores": (True, (self.tasks, 2, BINS)), "loss": (False, ())}

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["scores"].sum())

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        negative, positive = counts["scores"].cpu().double().unbind(1)
        entries = negative.sum() + positive.sum()
        if entries == 0:
            return {}
        hits = negative[:, : BINS // 2].sum() + positive[:, BINS // 2 :].sum()
        metrics = {"accuracy": float(hits / entries), "loss": float(counts["loss"] / entries)}
        auc = areas(counts["scores"])
        both = ~auc.isnan()
        if bool(both.any()):
            metrics["roc_auc"] = float(auc[both].mean())
        return metrics


class NodeMultiLabel(MultiLabel):
    """Several yes-or-no labels per node."""

    name: ClassVar[str] = "node-multilabel"
    level: ClassVar[Level] = "node"


class GraphMultiLabel(MultiLabel):
    """Several yes-or-no labels per graph."""

    name: ClassVar[str] = "graph-multilabel"
    level: ClassVar[Level] = "graph"


def areas(scores: Tensor) -> Tensor:
    """Areas under ROC curves, `[...]`; NaN where a class has no scores.

    Arguments:
        scores: how many scores of either class, negatives first, lie in each bin, `[..., 2, bins]`.
    """
    negative, positive = scores.cpu().double().unbind(-2)
    below = negative.cumsum(-1) - negative / 2
    return (positive * below).sum(-1) / (positive.sum(-1) * negative.sum(-1))


def _bins(scores: Tensor) -> Tensor:
    """The bin of every score. NaN goes to the middle bin; the loss names its party."""
    finite = scores.detach().nan_to_num(nan=0.0)
    place = (BINS // 2) * (finite / (WIDTH + finite.abs()))
    return (place.floor().long() + BINS // 2).clamp(0, BINS - 1)
