"""One class per node, or per graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.party import Level
from isthmus.errors import IsthmusError
from isthmus.tasks.base import Step, Task, names_of


class Classification(Task):
    """Cross-entropy; accuracy and macro-F1 from a confusion matrix, which sums over parties.

    >>> import torch
    >>> step = Step(torch.eye(2), torch.tensor([0, 0]), (2,), torch.arange(2))
    >>> task = NodeClassification(classes=2)
    >>> task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})["accuracy"]
    0.5
    """

    classes: int = Field(ge=2)
    """Number of classes."""

    @property
    def outputs(self) -> int:
        return self.classes

    def _check(self, step: Step) -> None:
        if step.output.dim() != 2 or step.output.size(1) != self.classes:
            shape = list(step.output.shape[1:])
            raise IsthmusError(f"the model gives {shape} outputs per item, the task has {self.classes} classes")

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """The class of every item, and the softmax of its outputs as a score for each class."""
        names, scores = names_of(labels, self.classes), output.softmax(dim=1)
        columns = {f"score.{name}": column for name, column in zip(names, scores.t().numpy(), strict=True)}
        return {"prediction": [names[at] for at in output.argmax(dim=1).tolist()], **columns}

    def loss(self, step: Step) -> Tensor:
        self._check(step)
        return step.mean(F.cross_entropy(step.output, step.y, reduction="none"))

    def counts(self, step: Step) -> dict[str, Tensor]:
        self._check(step)
        predicted = step.output.argmax(dim=1)
        party = rows.party_of_rows(step.sizes, predicted.device)
        cell = (party * self.classes + step.y) * self.classes + predicted
        confusion = torch.bincount(cell, minlength=len(step.sizes) * self.classes**2)
        loss = F.cross_entropy(step.output, step.y, reduction="none").cpu()  # some devices have no doubles
        return {"confusion": confusion.view(-1, self.classes, self.classes), "loss": step.sum(loss.double())}

    def count_forms(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        return {"confusion": (True, (self.classes, self.classes)), "loss": (False, ())}

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["confusion"].sum())

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        confusion = counts["confusion"].cpu()
        items = confusion.sum()
        return self.confusion_metrics(confusion) | {"loss": float(counts["loss"] / items)} if items else {}

    def majority(self, counts: Mapping[str, Any]) -> float | None:
        items = counts["confusion"].cpu().sum(1)
        return float(items.max() / items.sum()) if items.sum() else None

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
        return {"accuracy": sum(hits) / sum(items), "macro_f1": float(mean)}


class NodeClassification(Classification):
    """One class per node."""

    name: ClassVar[str] = "node-classification"
    level: ClassVar[Level] = "node"


class GraphClassification(Classification):
    """One class per graph."""

    name: ClassVar[str] = "graph-classification"
    level: ClassVar[Level] = "graph"
