"""Several yes-or-no labels per node, graph or edge, any of which may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.errors import IsthmusError
from isthmus.tasks.base import CountForm, MultiTask, Step, Task, focal, names_of
from isthmus.tasks.decisions import Decisions, Probability
from isthmus.tasks.ranking import (
    BINS,
    PRECISION_ERROR,
    Rule,
    above,
    areas,
    average_precision_errors,
    average_precisions,
    best_cut,
    bins,
    count_scores,
    cut_at,
    probability,
    ranking_metrics,
    recall_at_fpr,
)


class MultiLabel(Decisions, MultiTask):
    """Binary cross-entropy; accuracy, and other metrics averaged over the tasks that have both classes.

    These are ROC AUC, average precision, the recall at a false-positive rate of `max_fpr`, and the F1 of yes. They
    follow from counts of scores in bins, see `tasks/ranking.py`. `focal_gamma` and `threshold` are those of
    `Classification`; each task has a threshold of its own.

    >>> import torch
    >>> y = torch.tensor([[0.0], [0.0], [1.0], [float("nan")]])
    >>> step = Step(torch.tensor([[-2.0], [1.0], [0.5], [3.0]]), y, (4,), torch.arange(4))
    >>> task = GraphMultiLabel(tasks=1)
    >>> metrics = task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})
    >>> metrics["roc_auc"], round(metrics["accuracy"], 3)
    (0.5, 0.667)
    """

    known_metrics: ClassVar[tuple[str, ...]] = (
        "roc_auc",
        "average_precision",
        "recall_at_fpr",
        "macro_f1",
        "accuracy",
        "loss",
    )

    class_weights: Literal["none", "balanced"] = "none"
    """Weights of yes and no in the loss: none; or balanced, so that of each task the yes and the no that a party has in
    a step count equally, and tasks do."""
    threshold: Probability | list[Probability] | Rule = 0.5
    """Probability from which an answer is yes, the same for all tasks or a list of one for each, moved to the nearest
    border between bins. A word chooses one for each task in every evaluation, on the validation items of all parties
    together: f1, the best F1 score of yes; max_fpr, the lowest one with a false-positive rate of at most `max_fpr`. The
    model keeps the chosen numbers."""

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        whole = super().complete_from(inferred, labels)
        if isinstance(self.threshold, list) and len(self.threshold) != whole.outputs:
            raise IsthmusError(
                f"threshold has {len(self.threshold)} numbers for {whole.outputs} tasks: give one for each of "
                f"{', '.join(names_of(labels, whole.outputs))}, in this order"
            )
        return whole

    def loss(self, step: Step) -> Tensor:
        if self.class_weights == "none":
            return super().loss(step)
        y, known = self.labels(step)
        task = torch.arange(self.tasks, device=y.device)
        cell = (rows.party_of_rows(step.sizes, y.device)[:, None] * self.tasks + task) * 2 + y.long()
        counts = torch.bincount(cell[known], minlength=2 * self.tasks * len(step.sizes)).view(-1, 2)
        counts *= (counts > 0).sum(1, keepdim=True)  # a task of which all are yes, or no, has one kind alone
        weights = counts.view(-1).clamp(min=1).reciprocal()[cell].masked_fill(~known, 0.0).to(y)
        losses = weights * self.entry_loss(step.output, y)
        return step.sum(losses.sum(1)) / step.sum(weights.sum(1)).clamp(min=torch.finfo(y.dtype).tiny)

    def entry_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return focal(F.binary_cross_entropy_with_logits(output, y, reduction="none"), self.focal_gamma)

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """For every task whether the label is yes, and the probability of that as a score."""
        names = names_of(labels, self.tasks)
        yes = torch.stack(
            [(bins(own) >= cut) & ~own.isnan() for own, cut in zip(output.unbind(1), self._cuts, strict=True)]
        ).numpy()
        scores = output.double().sigmoid().t().numpy()
        answers = {f"prediction.{name}": column for name, column in zip(names, yes, strict=True)}
        return answers | {f"score.{name}": column for name, column in zip(names, scores, strict=True)}

    def label_value(self, label: float) -> Any:
        return None if math.isnan(label) else label > 0

    def counts(self, step: Step) -> dict[str, Tensor]:
        """How many `scores` of either class lie in each bin, `[parties, tasks, 2, bins]`, and the sum of the losses."""
        y, known = self.labels(step)
        counts = count_scores(step.output, y, known, step.sizes)
        losses = F.binary_cross_entropy_with_logits(step.output, y, reduction="none")
        losses = losses.masked_fill(~known, 0.0).cpu()  # some devices have no doubles
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
        hits = sum(
            float(no[:cut].sum() + yes[cut:].sum()) for no, yes, cut in zip(negative, positive, self._cuts, strict=True)
        )
        own = {"accuracy": hits / float(entries), "loss": float(counts["loss"] / entries)}
        found = {"recall_at_fpr": recall_at_fpr(counts["scores"], self.max_fpr), "macro_f1": self._of_yes(counts)["f1"]}
        both = (negative.sum(1) > 0) & (positive.sum(1) > 0)
        means = {name: float(values[both].mean()) for name, values in found.items()} if bool(both.any()) else {}
        return own | ranking_metrics(counts["scores"]) | means

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        labels = counts["scores"].cpu().sum(2).double()
        negative, positive = labels.unbind(1)
        same = torch.zeros(*labels.shape, BINS, dtype=torch.float64)
        same[torch.arange(self.tasks), :, BINS // 2 - (negative >= positive).long()] = labels
        return {"scores": same, "loss": -torch.special.xlogy(labels, labels / labels.sum(1, keepdim=True)).nansum()}

    def per_label(self, counts: Mapping[str, Any]) -> dict[str, list[float]]:
        own = {"items": counts["scores"].sum((1, 2)), "roc_auc": areas(counts["scores"]), **self._of_yes(counts)}
        own["average_precision"] = average_precisions(counts["scores"])
        own[PRECISION_ERROR] = average_precision_errors(counts["scores"])
        return {name: values.tolist() for name, values in own.items()}

    def fit_threshold(self, validated: Mapping[str, Any]) -> MultiLabel:
        """This task with the thresholds that `threshold` describes; 0.5 where validation items have one label only."""
        if not isinstance(self.threshold, str):
            return self
        cuts = [best_cut(scores, self.threshold, self.max_fpr) for scores in validated["scores"]]
        return self.model_copy(update={"threshold": [0.5 if cut is None else probability(cut) for cut in cuts]})

    def _may_be_threshold(self, threshold: Any) -> bool:
        listed = type(threshold) is list and len(threshold) == self.tasks
        return listed and all(map(super()._may_be_threshold, threshold))

    @property
    def _cuts(self) -> list[int]:
        """The bin of each task from which on the answer is yes."""
        given = 0.5 if isinstance(self.threshold, str) else self.threshold
        return list(map(cut_at, given if isinstance(given, list) else [given] * self.tasks))

    def _of_yes(self, counts: Mapping[str, Any]) -> dict[str, Tensor]:
        """Recall, precision and F1 of yes for each task, `[tasks]`; NaN where there is nothing to count."""
        counted = above(counts["scores"])
        false, true = counted[torch.arange(self.tasks), :, self._cuts].unbind(1)
        items = counted[:, 1, 0]
        return {"recall": true / items, "precision": true / (true + false), "f1": 2 * true / (items + true + false)}


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
