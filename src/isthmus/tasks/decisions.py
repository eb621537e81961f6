"""What tasks share whose scores become decisions: a threshold, and a loss for rare classes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat

from isthmus.errors import IsthmusError
from isthmus.tasks.base import Task
from isthmus.tasks.ranking import Rule

Probability = Annotated[float, Field(ge=0, le=1)]


class Decisions(Task):
    """Common ground of tasks that decide by scores between classes, or between yes and no."""

    class_weights: Literal["none", "balanced"] | list[PositiveFloat] | dict[str, PositiveFloat] = "none"
    focal_gamma: float = Field(0.0, ge=0)
    """Exponent of the focal loss; 0 is cross-entropy, 2 is usual."""
    threshold: Probability | list[Probability] | Rule = 0.5
    max_fpr: float = Field(0.001, ge=0, le=1)
    """False-positive rate of the metric `recall_at_fpr`, of two classes, and of a threshold that it chooses."""

    @property
    def loss_is_of_items(self) -> bool:
        return self.class_weights == "none"

    @property
    def prediction_note(self) -> str:
        if isinstance(self.threshold, str):
            return (
                f"the threshold that task.threshold = '{self.threshold}' chose is not in this copy of the model, so "
                "answers are those of a threshold of 0.5: use the model of the study's result folder"
            )
        if self.class_weights == "none" or self.threshold != 0.5:
            return ""
        balanced = self.class_weights == "balanced"
        frequencies = "all were equally frequent" if balanced else "their frequencies were multiplied by these weights"
        return (
            f"the model was trained with class weights ({self.class_weights}), so it chooses classes as if "
            f"{frequencies}: rank items by a score column, and choose a threshold on validation data"
        )

    def without_threshold(self) -> Self:
        return self if self.threshold == 0.5 else self.model_copy(update={"threshold": 0.5})

    def with_threshold(self, threshold: Any) -> Self:
        if not isinstance(self.threshold, str):
            raise IsthmusError(f"refused: task.threshold is {self.threshold}, which leaves none to choose")
        if not self._may_be_threshold(threshold):
            raise IsthmusError("refused: a threshold that is no number from 0 to 1")
        return self.model_copy(update={"threshold": threshold})

    def _may_be_threshold(self, threshold: Any) -> bool:
        return type(threshold) is float and 0 <= threshold <= 1
