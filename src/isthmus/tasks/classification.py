"""One class per node, or per graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.party import Level
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.tasks.base import Step, Task, names_of
from isthmus.tasks.ranking import BINS, RANKING, count_scores, ranking_metrics


class Classes(Task):
    """Common ground of tasks whose items have one class each: what a confusion matrix tells."""

    classes: int = Field(0, ge=0)
    """Number of classes; 0 takes that of the labels."""

    @property
    def outputs(self) -> int:
        return self.classes

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        whole = self if self.classes else self.model_copy(update={"classes": inferred.outputs})
        return super(Classes, whole).complete_from(inferred, labels)

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["confusion"].sum())

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        confusion = counts["confusion"].cpu()
        same = torch.zeros_like(confusion)
        same[:, confusion.sum(1).argmax()] = confusion.sum(1)
        return {name: torch.zeros_like(count) for name, count in counts.items()} | {"confusion": same}

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


class Classification(Classes):
    """Cross-entropy; accuracy, balanced accuracy and macro-F1 from a confusion matrix, which sums over parties.

    ROC AUC and average precision follow from counts of scores in bins, see `tasks/ranking.py`. Of several classes they
    are means of each class against the others. Parties count scores only if one of the two is `metric` or `select_by`.

    >>> import torch
    >>> step = Step(torch.eye(2), torch.tensor([0, 0]), (2,), torch.arange(2))
    >>> task = NodeClassification(classes=2)
    >>> task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})["accuracy"]
    0.5
    """

    known_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy", "macro_f1", *RANKING, "loss")

    class_weights: Literal["none", "balanced"] | list[PositiveFloat] | dict[str, PositiveFloat] = "none"
    """Weights of the classes in the loss: none; balanced, so that the classes that a party has in a step count equally;
    or a number for each class, the same at all parties: a list, or a table by the classes' names, 1 for the others."""

    @model_validator(mode="after")
    def _one_weight_per_class(self) -> Self:
        if self.classes == 1:
            raise ValueError("classes is 1: give at least 2, or 0 for those of the labels")
        if isinstance(self.class_weights, list) and self.classes and len(self.class_weights) != self.classes:
            raise ValueError(f"class_weights has {len(self.class_weights)} numbers for {self.classes} classes")
        return self

    @property
    def default_metric(self) -> str:
        return "roc_auc" if self.classes == 2 else "accuracy"

    @property
    def ranks(self) -> bool:
        """Whether parties count scores."""
        return not {self.judged_by, self.selected_by}.isdisjoint(RANKING)

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        whole = super().complete_from(inferred, labels)
        names, weights = names_of(labels, whole.outputs), self.class_weights
        if isinstance(weights, dict):
            if unknown := next((name for name in weights if name not in names), None):
                raise IsthmusError(f"class_weights names a class '{unknown}': {did_you_mean(unknown, names)}")
            weights = [weights.get(name, 1.0) for name in names]
        if isinstance(weights, list) and len(weights) != len(names):
            raise IsthmusError(
                f"class_weights has {len(weights)} numbers for {len(names)} classes: give one for each of "
                f"{', '.join(names)}, in this order"
            )
        return whole.model_copy(update={"class_weights": weights})

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """The class of every item, and the softmax of its outputs as a score for each class."""
        names, scores = names_of(labels, self.classes), output.softmax(dim=1)
        columns = {f"score.{name}": column for name, column in zip(names, scores.t().numpy(), strict=True)}
        return {"prediction": [names[at] for at in output.argmax(dim=1).tolist()], **columns}

    @property
    def prediction_note(self) -> str:
        if self.class_weights == "none":
            return ""
        balanced = self.class_weights == "balanced"
        frequencies = "all were equally frequent" if balanced else "their frequencies were multiplied by these weights"
        return (
            f"the model was trained with class weights ({self.class_weights}), so it chooses classes as if "
            f"{frequencies}: rank items by a score column, and choose a threshold on validation data"
        )

    def loss(self, step: Step) -> Tensor:
        self._check(step)
        losses = F.cross_entropy(step.output, step.y, reduction="none")
        if self.class_weights == "none":
            return step.mean(losses)
        weights = self._item_weights(step).to(losses)
        return step.sum(weights * losses) / step.sum(weights).clamp(min=torch.finfo(losses.dtype).tiny)

    def counts(self, step: Step) -> dict[str, Tensor]:
        self._check(step)
        predicted = step.output.argmax(dim=1)
        party = rows.party_of_rows(step.sizes, predicted.device)
        cell = (party * self.classes + step.y) * self.classes + predicted
        confusion = torch.bincount(cell, minlength=len(step.sizes) * self.classes**2)
        loss = F.cross_entropy(step.output, step.y, reduction="none").cpu()  # some devices have no doubles
        counts = {"confusion": confusion.view(-1, self.classes, self.classes), "loss": step.sum(loss.double())}
        if self.ranks:
            odds, y = self._log_odds(step.output), F.one_hot(step.y, self.classes)[:, -self._ranked :]
            counts["scores"] = count_scores(odds, y, torch.ones_like(y, dtype=torch.bool), step.sizes)
        return counts

    def count_forms(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        scores = {"scores": (True, (self._ranked, 2, BINS))} if self.ranks else {}
        return {"confusion": (True, (self.classes, self.classes)), "loss": (False, ())} | scores

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        if why := super().counts_problem(counts, labels, parties):
            return why
        if self.ranks:
            held = counts["confusion"].cpu().sum(1)[-self._ranked :]
            due = torch.stack([held.new_tensor(int(self.count(counts))) - held, held], dim=1)
            if not torch.equal(counts["scores"].cpu().sum(2).to(due), due):
                return "it counts other numbers of scores than of items of each class"
        return ""

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        confusion = counts["confusion"].cpu()
        items = confusion.sum()
        if not items:
            return {}
        ranking = ranking_metrics(counts["scores"]) if "scores" in counts else {}
        return self.confusion_metrics(confusion) | {"loss": float(counts["loss"] / items)} | ranking

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        items = counts["confusion"].cpu().sum(1).double()
        loss = -torch.special.xlogy(items, items / items.sum()).sum()
        positive = items[-self._ranked :]
        ties = {"scores": torch.stack([items.sum() - positive, positive], dim=1).unsqueeze(2)} if self.ranks else {}
        return {**super().same_answer(counts), "loss": loss, **ties}

    def per_label(self, counts: Mapping[str, Any]) -> dict[str, list[float]]:
        confusion = counts["confusion"].cpu().double()
        hits, items = confusion.diagonal(), confusion.sum(1)
        figures = {"items": items, "recall": hits / items, "precision": hits / confusion.sum(0)}
        return {name: values.tolist() for name, values in figures.items()}

    def _check(self, step: Step) -> None:
        if step.output.dim() != 2 or step.output.size(1) != self.classes:
            shape = list(step.output.shape[1:])
            raise IsthmusError(f"the model gives {shape} outputs per item, the task has {self.classes} classes")

    @property
    def _ranked(self) -> int:
        """How many classes are ranked against the others; of two classes, the second one."""
        return 1 if self.classes == 2 else self.classes

    def _log_odds(self, output: Tensor) -> Tensor:
        """The log odds of each ranked class, `[items, ranked]`."""
        if self.classes == 2:
            return output[:, 1:] - output[:, :1]
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
