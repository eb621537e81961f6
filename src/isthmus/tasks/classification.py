"""One class per node, graph or edge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PrivateAttr, model_validator
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.tasks.base import CountForm, Step, Task, focal, names_of
from isthmus.tasks.decisions import Decisions, Probability
from isthmus.tasks.ranking import (
    ALERTS,
    BINS,
    PRECISION_ERROR,
    RANKING,
    Rule,
    average_precision_errors,
    average_precisions,
    best_cut,
    bins,
    count_scores,
    cut_at,
    precision_at_k,
    probability,
    ranking_metrics,
    recall_at_fpr,
)


class Classes(Task):
    """Common ground of tasks whose items have one class each: what a confusion matrix tells."""

    classes: int = Field(0, ge=0)
    """Number of classes; 0 takes that of the labels."""

    @property
    def outputs(self) -> int:
        return self.classes

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        if 0 < self.classes < inferred.outputs:
            raise IsthmusError(
                f"task.classes is {self.classes}, the data have {inferred.outputs}: give at least that many, or leave "
                "it out"
            )
        whole = self if self.classes else self.model_copy(update={"classes": inferred.outputs})
        return super(Classes, whole).complete_from(inferred, labels)

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["confusion"].sum())

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        confusion = counts["confusion"].cpu()
        same = torch.zeros_like(confusion)
        same[:, confusion.sum(1).argmax()] = confusion.sum(1)
        return {name: torch.zeros_like(count) for name, count in counts.items()} | {"confusion": same}

    def is_label(self, y: Tensor) -> bool:
        return not y.is_floating_point()

    def label_columns(self, y: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        names = names_of(labels, len(labels) or self.classes)
        return {"label": [names[at] if 0 <= at < len(names) else None for at in y.tolist()]}

    def confusion_metrics(self, confusion: Tensor) -> dict[str, float]:
        """What a confusion matrix with at least one item tells, `[classes, guesses]`.

        In Python's numbers: for a small matrix, and there may be one for each of thousands of parties, a call of torch
        takes longer than the sums.
        """
        cells = confusion.tolist()
        items, guesses = [sum(row) for row in cells], [sum(column) for column in zip(*cells, strict=True)]
        hits = [row[at] for at, row in enumerate(cells)]
        f1 = [2 * hit / (item + guess) for hit, item, guess in zip(hits, items, guesses, strict=True) if item + guess]
        mean = torch.tensor(f1, dtype=torch.float64).mean()
        recall = [hit / item for hit, item in zip(hits, items, strict=True) if item]
        balanced = math.fsum(recall) / len(recall)
        return {"accuracy": sum(hits) / sum(items), "macro_f1": float(mean), "balanced_accuracy": balanced}


class Classification(Decisions, Classes):
    """Cross-entropy; accuracy, balanced accuracy and macro-F1 from a confusion matrix, which sums over parties.

    ROC AUC and average precision follow from counts of scores in bins, see `tasks/ranking.py`. Of several classes they
    are means of each class against the others. Parties count scores only if `metric`, `select_by` or `threshold` needs
    them. For two classes they also give figures of the highest scores alone: the recall at a false-positive rate of
    `max_fpr`, and the precision of the `top_k` highest scores.

    With `focal_gamma` the loss of an item is the focal loss (Lin et al. 2017), FL = -(1 - p)^gamma log p with p the
    probability of its class, so that items that are easily told apart weigh little. The metric `loss` stays the
    cross-entropy.

    >>> import torch
    >>> step = Step(torch.eye(2), torch.tensor([0, 0]), (2,), torch.arange(2))
    >>> task = NodeClassification(classes=2)
    >>> task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})["accuracy"]
    0.5
    """

    known_metrics: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        *RANKING,
        *ALERTS,
        "loss",
    )

    class_weights: Literal["none", "balanced"] | list[PositiveFloat] | dict[str, PositiveFloat] = "none"
    """Weights of the classes in the loss: none; balanced, so that the classes that a party has in a step count equally;
    or a number for each class, the same at all parties: a list, or a table by the classes' names, 1 for the others."""

    positive: str | Literal[0, 1] | None = None
    """Which of two classes is looked for, by name or position: metrics of scores and `threshold` are about it. None
    takes the second one."""
    threshold: Probability | Rule = 0.5
    """Probability from which an item is in the class `positive`. A word chooses it in every evaluation, on the
    validation items of all parties together: f1, the best F1 score of this class; max_fpr, the lowest one with a
    false-positive rate of at most `max_fpr`. The model keeps the chosen number."""
    top_k: int = Field(100, ge=1)
    """How many of the highest scores the metric `precision_at_k` is of, for two classes."""

    _cut: int | None = PrivateAttr(None)  # the bin at which the chosen threshold lies

    @model_validator(mode="after")
    def _one_weight_per_class(self) -> Self:
        if self.classes == 1:
            raise ValueError(
                "classes is 1, so there is nothing to tell apart: give labels of two classes, or another task"
            )
        if isinstance(self.class_weights, list) and self.classes and len(self.class_weights) != self.classes:
            raise ValueError(f"class_weights has {len(self.class_weights)} numbers for {self.classes} classes")
        if self.classes and (why := self._needs_two_classes(self.classes)):
            raise ValueError(why)
        return self

    @property
    def default_metric(self) -> str:
        return "roc_auc" if self.classes == 2 else "accuracy"

    @property
    def ranks(self) -> bool:
        """Whether parties count scores."""
        counted = not {self.judged_by, self.selected_by}.isdisjoint((*RANKING, *ALERTS))
        return counted or isinstance(self.threshold, str)

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        whole = super().complete_from(inferred, labels)
        if why := self._needs_two_classes(whole.outputs):
            raise IsthmusError(why)
        names, weights, positive = names_of(labels, whole.outputs), self.class_weights, self.positive
        if isinstance(positive, str):
            if positive not in names:
                raise IsthmusError(f"positive names a class '{positive}': {did_you_mean(positive, names)}")
            positive = 1 if positive == names[1] else 0
        if isinstance(weights, dict):
            if unknown := next((name for name in weights if name not in names), None):
                raise IsthmusError(f"class_weights names a class '{unknown}': {did_you_mean(unknown, names)}")
            weights = [weights.get(name, 1.0) for name in names]
        if isinstance(weights, list) and len(weights) != len(names):
            raise IsthmusError(
                f"class_weights has {len(weights)} numbers for {len(names)} classes: give one for each of "
                f"{', '.join(names)}, in this order"
            )
        return whole.model_copy(update={"class_weights": weights, "positive": positive})

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """The class of every item, and the softmax of its outputs as a score for each class.

        In double precision: in single, all scores of logits that differ by 17 or more are 1 and cannot be ranked.
        """
        names, scores = names_of(labels, self.classes), output.double().softmax(dim=1)
        columns = {f"score.{name}": column for name, column in zip(names, scores.t().numpy(), strict=True)}
        return {"prediction": [names[at] for at in self._guess(output).tolist()], **columns}

    def loss(self, step: Step) -> Tensor:
        self._check(step)
        losses = focal(F.cross_entropy(step.output, step.y, reduction="none"), self.focal_gamma)
        if self.class_weights == "none":
            return step.mean(losses)
        weights = self._item_weights(step).to(losses)
        return step.sum(weights * losses) / step.sum(weights).clamp(min=torch.finfo(losses.dtype).tiny)

    def counts(self, step: Step) -> dict[str, Tensor]:
        self._check(step)
        predicted = self._guess(step.output)
        party = rows.party_of_rows(step.sizes, predicted.device)
        cell = (party * self.classes + step.y) * self.classes + predicted
        confusion = torch.bincount(cell, minlength=len(step.sizes) * self.classes**2)
        loss = F.cross_entropy(step.output, step.y, reduction="none").cpu()  # some devices have no doubles
        counts = {"confusion": confusion.view(-1, self.classes, self.classes), "loss": step.sum(loss.double())}
        if self.ranks:
            odds, y = self._log_odds(step.output), F.one_hot(step.y, self.classes)[:, self._ranked]
            counts["scores"] = count_scores(odds, y, torch.ones_like(y, dtype=torch.bool), step.sizes)
        return counts

    def count_forms(self) -> dict[str, CountForm]:
        ranked = 1 if self.classes == 2 else self.classes
        scores = {"scores": CountForm(True, (ranked, 2, BINS))} if self.ranks else {}
        return {"confusion": CountForm(True, (self.classes, self.classes)), "loss": CountForm(False, ())} | scores

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        if why := super().counts_problem(counts, labels, parties):
            return why
        if self.ranks:
            held = counts["confusion"].cpu().sum(1)[self._ranked]
            due = torch.stack([held.new_tensor(int(self.count(counts))) - held, held], dim=1)
            if not torch.equal(counts["scores"].cpu().sum(2).to(due), due):
                return "it counts other numbers of scores than of items of each class"
        return ""

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        confusion = self._confusion(counts)
        items = confusion.sum()
        if not items:
            return {}
        ranking = ranking_metrics(counts["scores"]) if "scores" in counts else {}
        if ranking and self.classes == 2:
            ranking["recall_at_fpr"] = float(recall_at_fpr(counts["scores"], self.max_fpr))
            ranking["precision_at_k"] = float(precision_at_k(counts["scores"], self.top_k))
        return self.confusion_metrics(confusion) | {"loss": float(counts["loss"] / items)} | ranking

    def fit_threshold(self, validated: Mapping[str, Any]) -> Classification:
        """This task with the threshold that `threshold` describes; 0.5 where validation items have one class only.

        Thresholds lie between bins: the chosen one is the best of `BORDERS` in `tasks/ranking.py`.
        """
        if not isinstance(self.threshold, str):
            return self
        cut = best_cut(validated["scores"][0], self.threshold, self.max_fpr)
        if cut is None:
            return self.model_copy(update={"threshold": 0.5})
        chosen = self.model_copy(update={"threshold": probability(cut)})
        chosen._cut = cut
        return chosen

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        items = counts["confusion"].cpu().sum(1).double()
        loss = -torch.special.xlogy(items, items / items.sum()).sum()
        positive = items[self._ranked]
        ties = {"scores": torch.stack([items.sum() - positive, positive], dim=1).unsqueeze(2)} if self.ranks else {}
        return {**super().same_answer(counts), "loss": loss, **ties}

    def per_label(self, counts: Mapping[str, Any]) -> dict[str, list[float]]:
        confusion = self._confusion(counts).double()
        hits, items, guesses = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        f1 = 2 * hits / (items + guesses)
        figures = {"items": items, "recall": hits / items, "precision": hits / guesses, "f1": f1}
        if "scores" in counts:  # of two classes one is ranked
            for name, of in (("average_precision", average_precisions), (PRECISION_ERROR, average_precision_errors)):
                figures[name] = torch.full_like(f1, torch.nan)
                figures[name][self._ranked] = of(counts["scores"])
        return {name: values.tolist() for name, values in figures.items()}

    def _check(self, step: Step) -> None:
        if step.output.dim() != 2 or step.output.size(1) != self.classes:
            shape = list(step.output.shape[1:])
            raise IsthmusError(
                f"the model gives {shape} outputs per item, the task has {self.classes} classes: make its last layer "
                f"{self.classes} wide (the width that an encoder's body is given)"
            )

    def _needs_two_classes(self, classes: int) -> str:
        """Say which option needs two classes, if there are others."""
        if classes == 2:
            return ""
        if only := next((name for name in (self.metric, self.select_by) if name in ALERTS), None):
            return f"metric '{only}' is for two classes, there are {classes}: choose one of {', '.join(RANKING)}"
        if only := next(
            (name for name, usual in (("threshold", 0.5), ("positive", None)) if getattr(self, name) != usual), ""
        ):
            return f"{only} is for two classes, there are {classes}: remove it"
        return ""

    def _guess(self, output: Tensor) -> Tensor:
        """The class of every item, `[items]`."""
        if self.classes != 2 or isinstance(self.threshold, str) or self.threshold == 0.5:
            return output.argmax(dim=1)
        odds, cut = self._log_odds(output).squeeze(1), cut_at(self.threshold)
        if probability(cut) == self.threshold:  # one that was chosen, and so counted
            found = (bins(odds) >= cut) & ~odds.isnan()
        else:
            found = odds >= math.log(self.threshold / (1 - self.threshold))
        return (found == bool(self._sought)).long()

    def _confusion(self, counts: Mapping[str, Any]) -> Tensor:
        """The confusion matrix, of scores in bins if the threshold was chosen among them."""
        if self._cut is None or "scores" not in counts:
            return torch.as_tensor(counts["confusion"]).cpu()
        scores = counts["scores"][0].cpu()
        cells = torch.stack([scores[:, : self._cut].sum(1), scores[:, self._cut :].sum(1)], dim=1)
        return cells if self._sought else cells.flip(0, 1)

    @property
    def _sought(self) -> int:
        """Of two classes the one that is looked for."""
        return 1 if self.positive is None else int(self.positive)

    @property
    def _ranked(self) -> slice:
        """The classes that are ranked against the others."""
        return slice(self._sought, self._sought + 1) if self.classes == 2 else slice(None)

    def _log_odds(self, output: Tensor) -> Tensor:
        """The log odds of each ranked class, `[items, ranked]`."""
        if self.classes == 2:
            return output[:, self._ranked] - output[:, 1 - self._sought, None]
        log_p = output.cpu().double().log_softmax(dim=1)  # some devices have no doubles
        return (log_p - torch.log(-torch.expm1(log_p))).to(output)

    def _item_weights(self, step: Step) -> Tensor:
        """The weight of every item in its party's loss, `[items]`."""
        if self.class_weights != "balanced":
            return torch.tensor(list(self.class_weights), device=step.y.device)[step.y]
        cell = rows.party_of_rows(step.sizes, step.y.device) * self.classes + step.y
        return torch.bincount(cell, minlength=len(step.sizes) * self.classes).reciprocal()[cell]


class NodeClassification(Classification):
    """One class per node."""

    name: ClassVar[str] = "node-classification"
    level: ClassVar[Level] = "node"


class GraphClassification(Classification):
    """One class per graph."""

    name: ClassVar[str] = "graph-classification"
    level: ClassVar[Level] = "graph"


class EdgeClassification(Classification):
    """One class per edge."""

    name: ClassVar[str] = "edge-classification"
    level: ClassVar[Level] = "edge"
