"""Several yes-or-no labels per node, graph or edge, any of which may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.data.level import Level
from isthmus.tasks.base import CountForm, MultiTask, Step, names_of
from isthmus.tasks.ranking import BINS, areas, count_scores, ranking_metrics


class MultiLabel(MultiTask):
    """Binary cross-entropy; accuracy, and ROC AUC and average precision averaged over the tasks that have both classes.

    The latter two follow from counts of scores in bins, see `tasks/ranking.py`.

    >>> import torch
    >>> y = torch.tensor([[0.0], [0.0], [1.0], [float("nan")]])
    >>> step = Step(torch.tensor([[-2.0], [1.0], [0.5], [3.0]]), y, (4,), torch.arange(4))
    >>> task = GraphMultiLabel(tasks=1)
    >>> metrics = task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})
    >>> metrics["roc_auc"], round(metrics["accuracy"], 3)
    (0.5, 0.667)
    """

    known_metrics: ClassVar[tuple[str, ...]] = ("roc_auc", "average_precision", "accuracy", "loss")

    def entry_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y, reduction="none")

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """For every task whether the label is yes, and the probability of that as a score."""
        names, yes = names_of(labels, self.tasks), (output > 0).t().numpy()
        scores = output.double().sigmoid().t().numpy()
        answers = {f"prediction.{name}": column for name, column in zip(names, yes, strict=True)}
        return answers | {f"score.{name}": column for name, column in zip(names, scores, strict=True)}

    def label_value(self, label: float) -> Any:
        return None if math.isnan(label) else label > 0

    def counts(self, step: Step) -> dict[str, Tensor]:
        """How many `scores` of either class lie in each bin, `[parties, tasks, 2, bins]`, and the sum of the losses."""
        y, known = self.labels(step)
        counts = count_scores(step.output, y, known, step.sizes)
        losses = self.entry_loss(step.output, y).masked_fill(~known, 0.0).cpu()  # some devices have no doubles
        return {"scores": counts, "loss": step.sum(losses.double().sum(1))}

    def count_forms(self) -> dict[str, CountForm]:
        return {"scores": CountForm(True, (self.tasks, 2, BINS)), "loss": CountForm(False, ())}

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["scores"].sum())

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        negative, positive = counts["scores"].cpu().double().unbind(1)
        entries = negative.sum() + positive.sum()
        if entries == 0:
            return {}
        hits = negative[:, : BINS // 2].sum() + positive[:, BINS // 2 :].sum()
        own = {"accuracy": float(hits / entries), "loss": float(counts["loss"] / entries)}
        return own | ranking_metrics(counts["scores"])

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        labels = counts["scores"].cpu().sum(2).double()
        negative, positive = labels.unbind(1)
        same = torch.zeros(*labels.shape, BINS, dtype=torch.float64)
        same[torch.arange(self.tasks), :, BINS // 2 - (negative >= positive).long()] = labels
        return {"scores": same, "loss": -torch.special.xlogy(labels, labels / labels.sum(1, keepdim=True)).nansum()}

    def per_label(self, counts: Mapping[str, Any]) -> dict[str, list[float]]:
        return {"items": counts["scores"].sum((1, 2)).tolist(), "roc_auc": areas(counts["scores"]).tolist()}


class NodeMultiLabel(MultiLabel):
    """Several yes-or-no labels per node."""

    name: ClassVar[str] = "node-multilabel"
    level: ClassVar[Level] = "node"


class GraphMultiLabel(MultiLabel):
    """Several yes-or-no labels per graph."""

    name: ClassVar[str] = "graph-multilabel"
    level: ClassVar[Level] = "graph"


class EdgeMultiLabel(MultiLabel):
    """Several yes-or-no labels per edge."""

    name: ClassVar[str] = "edge-multilabel"
    level: ClassVar[Level] = "edge"
