"""What is learned: a loss to train on, and counts that sum over parties to metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.party import Level
from isthmus.options import Registered


@dataclass(frozen=True, eq=False)
class Step:
    """Outputs and labels of some items, party after party.

    Arguments:
        output: model outputs of the items, `[items, classes]`.
        y: their labels, `[items]`.
        sizes: how many of the items are each party's.
        items: their positions among all items of the cohort, `[items]`.
    """

    output: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    items: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Mean of a value per item over each party's items, `[parties]`; 0 for a party without."""
        count = torch.tensor(self.sizes, dtype=values.dtype, device=values.device)
        return self.sum(values) / count.clamp(min=1)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a value (or row) per item over each party's items, `[parties, ...]`."""
        return rows.summed(values, self.sizes)


class Task(Registered):
    """A task by name."""

    kind: ClassVar[str] = "task"
    home: ClassVar[str] = "isthmus.tasks"
    level: ClassVar[Level]
    select_by: ClassVar[str] = "accuracy"
    """The metric that chooses the round, on validation data; larger is better."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of the model's output."""

    @abstractmethod
    def loss(self, step: Step) -> Tensor:
        """The mean loss of each party's items, `[parties]`."""

    @abstractmethod
    def counts(self, step: Step) -> dict[str, Tensor]:
        """Sums per party from which `metrics` follow, each `[parties, ...]`."""

    @abstractmethod
    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        """Metrics from counts summed over any parties."""
