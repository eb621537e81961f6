"""One real number per node, graph or edge, or several, any of which may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from isthmus.data.level import Level
from isthmus.tasks.base import MultiTask, Step, names_of

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
        """The number of labelled `entries`, and the sums of their `squared` and `absolute` errors."""
        y, known = self.labels(step)
        error = (step.output - y).masked_fill(~known, 0.0).cpu().double()  # some devices have no doubles
        sums = {"squared": error.square(), "absolute": error.abs()}
        return {"entries": step.sum(known.sum(1))} | {name: step.sum(errors.sum(1)) for name, errors in sums.items()}

    def count_forms(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        return {"entries": (True, ()), "squared": (False, ()), "absolute": (False, ())}

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        if why := super().counts_problem(counts, labels, parties):
            return why
        entries, squared, absolute = (float(counts[name]) for name in ("entries", "squared", "absolute"))
        most = math.sqrt(entries) * math.sqrt(squared)  # by the inequality of Cauchy and Schwarz
        return "" if absolute <= most * (1 + ROUNDING) + ROUNDING else "absolute errors do not fit the squared ones"

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["entries"])

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        entries = float(counts["entries"])
        if entries == 0:
            return {}
        squared = float(counts["squared"]) / entries
        return {"rmse": math.sqrt(squared), "mae": float(counts["absolute"]) / entries, "loss": squared}


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
