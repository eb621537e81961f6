"""One real number per node, graph or edge, or several, any of which may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from isthmus.data.level import Level
from isthmus.tasks.base import CountForm, MultiTask, Step, names_of

ROUNDING = 1e-6
"""Share by which sums of errors may differ: masked ones are rounded."""


class Regression(MultiTask):
    """Mean squared error; RMSE and MAE over the labelled entries of all tasks together.

    Labels are not scaled: a task with larger numbers weighs more, so scale them to one range before.

    >>> import torch
    >>> y = torch.tensor([[1.0], [2.0], [float("nan")]])
    >>> step = Step(torch.tensor([[1.0], [5.0], [9.0]]), y, (3,), torch.arange(3))
    >>> task = GraphRegression(tasks=1)
    >>> task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})["mae"]
    1.5
    """

    known_metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "loss")

    def entry_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(output, y, reduction="none")

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """The predicted number for every task."""
        names = names_of(labels, self.tasks)
        return {f"prediction.{name}": column for name, column in zip(names, output.t().numpy(), strict=True)}

    def counts(self, step: Step) -> dict[str, Tensor]:
        """Sums of `squared` and `absolute` errors; of each task the `entries` with a label, and sums of labels."""
        y, known = self.labels(step)
        pair = (y, step.output - y)
        y, error = (each.masked_fill(~known, 0.0).cpu().double() for each in pair)  # some devices have no doubles
        of_all = {"squared": error.square().sum(1), "absolute": error.abs().sum(1)}
        of_each = {"entries": known.long(), "labels": y, "squares": y.square()}
        return {name: step.sum(values) for name, values in (of_all | of_each).items()}

    def count_forms(self) -> dict[str, CountForm]:
        each = (self.tasks,)
        labels = {"labels": CountForm(False, each, signed=True), "squares": CountForm(False, each)}
        errors = {"squared": CountForm(False, ()), "absolute": CountForm(False, ())}
        return errors | {"entries": CountForm(True, each)} | labels

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        if why := super().counts_problem(counts, labels, parties):
            return why
        sums = {name: value.cpu().double() for name, value in counts.items()}
        entries = sums["entries"]
        pairs = {
            "absolute errors": (sums["absolute"], entries.sum(), sums["squared"]),
            "labels": (sums["labels"].abs(), entries, sums["squares"]),
        }
        for what, (first, number, squares) in pairs.items():
            most = number.sqrt() * squares.sqrt()  # by the inequality of Cauchy and Schwarz
            if bool((first > most * (1 + ROUNDING) + ROUNDING).any()):
                return f"sums of {what} do not fit those of their squares"
        return ""

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["entries"].sum())

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        entries = self.count(counts)
        if entries == 0:
            return {}
        squared = float(counts["squared"]) / entries
        absolute = {"mae": float(counts["absolute"]) / entries} if "absolute" in counts else {}
        return {"rmse": math.sqrt(squared), **absolute, "loss": squared}

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Each task's mean label for all items; its absolute errors do not follow from sums."""
        entries, labels, squares = (counts[name].cpu().double() for name in ("entries", "labels", "squares"))
        errors = squares - labels.square() / entries.clamp(min=1)
        return {"entries": entries, "squared": errors.clamp(min=0).sum()}


class NodeRegression(Regression):
    """One real number per node, or several."""

    name: ClassVar[str] = "node-regression"
    level: ClassVar[Level] = "node"


class GraphRegression(Regression):
    """One real number per graph, or several."""

    name: ClassVar[str] = "graph-regression"
    level: ClassVar[Level] = "graph"


class EdgeRegression(Regression):
    """One real number per edge, or several."""

    name: ClassVar[str] = "edge-regression"
    level: ClassVar[Level] = "edge"
