"""Tasks: what models learn. A task has a loss, and counts that parties can add up, from which metrics follow."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.errors import IsthmusError
from isthmus.nn.encoders import Encoder
from isthmus.options import Registered
from isthmus.tasks.metrics import metric_of, suggest_metric

LARGEST_SUM = 1e100
"""No sum of losses or errors is larger: sums over any number of parties stay finite."""


class CountForm(NamedTuple):
    """What counts of a name look like: whole numbers or sums, their shape, and whether they may be negative."""

    whole: bool
    shape: tuple[int, ...]
    signed: bool = False


@dataclass(frozen=True, eq=False)
class Step:
    """Outputs and labels of some items, party after party.

    Arguments:
        output: model outputs of the items, `[items, outputs]`; for links, those of both ends, `[items, 2, outputs]`;
            for a method's own model, whatever it returns.
        y: labels of the items: classes `[items]`, or `[items, tasks]` with NaN where a label is missing.
        sizes: number of items of each party.
        items: positions of the items in the cohort, `[items]`.
        embedding: what the model's head receives for the items, `[items, width]`; None unless asked for.
        beside: the same of other models, in the same mode and with the same dropout; empty unless asked for.
    """

    output: Any
    y: Tensor
    sizes: tuple[int, ...]
    items: Tensor
    embedding: Tensor | None = None
    beside: tuple[Tensor, ...] = ()

    def mean(self, values: Tensor) -> Tensor:
        """Mean of a value per item over each party's items, `[parties]`; 0 for a party without items."""
        return rows.mean_per_party(values, self.sizes)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a value (or row) per item over each party's items, `[parties, ...]`."""
        return rows.sum_per_party(values, self.sizes)

    def class_means(self, classes: int) -> tuple[Tensor, Tensor]:
        """Mean embedding of each party's items of each class, `[parties, classes, width]`, and how many there are."""
        assert self.embedding is not None
        group = rows.party_of_rows(self.sizes, self.y.device) * classes + self.y
        counts = torch.bincount(group, minlength=len(self.sizes) * classes)
        sums = self.embedding.new_zeros(counts.numel(), self.embedding.size(1)).index_add(0, group, self.embedding)
        means = sums / counts.clamp(min=1).unsqueeze(1)
        return means.view(len(self.sizes), classes, -1), counts.view(len(self.sizes), classes)


class Task(Registered):
    """A task by name."""

    kind: ClassVar[str] = "task"
    built_in_module: ClassVar[str] = "isthmus.tasks"
    level: ClassVar[Level]
    known_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that may judge it, the default first; `tasks/metrics.py` says whether less is better. Empty: any."""

    unsupervised: ClassVar[bool] = False
    """Models learn without labels: they embed items, and metrics are over the items of all parties together."""

    metric: str | None = None
    """The metric of headline and tables; by default ROC AUC for two classes, else the first one of the task."""
    select_by: str | None = None
    """The metric that chooses the round on validation data; by default, the same as `metric`."""

    @field_validator("metric", "select_by")
    @classmethod
    def _known(cls, metric: str | None) -> str | None:
        if metric and cls.known_metrics and metric not in cls.known_metrics:
            raise ValueError(suggest_metric(metric, cls.known_metrics))
        return metric

    @property
    def judged_by(self) -> str:
        """The metric of headline and tables."""
        return self.metric or self.default_metric

    @property
    def selected_by(self) -> str:
        """The metric that chooses the round."""
        return self.select_by or self.judged_by

    @property
    def default_metric(self) -> str:
        """The metric of headline and tables if none is named."""
        return self.known_metrics[0] if self.known_metrics else "accuracy"

    @property
    def loss_is_of_items(self) -> bool:
        """Whether the loss of some items is a mean of what each has by itself."""
        return not self.unsupervised

    @property
    def picture_rounds(self) -> Sequence[int]:
        """Rounds after which a study stores `coordinates` of all items, for pictures."""
        return ()

    def model(self, encoder: Encoder, features: int) -> nn.Module:
        """The module that learns this."""
        return encoder.build(features, self.outputs, self.level)

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        """This task, with options left open taken from `inferred`, the task that fits the labels.

        Arguments:
            labels: names of the classes, or of the tasks; numbers stand for those without.
        """
        return self.model_copy(update={"metric": self.judged_by, "select_by": self.selected_by or None})

    def make_parties(self, pool: Pool, cut: Callable[[Pool], list[Party]], seed: int) -> list[Party]:
        """Make the parties of a pool that `cut` takes apart.

        A task whose items are not the labelled ones of the data makes them here.
        """
        return self.set_masks(cut(pool))

    def set_masks(self, parties: list[Party]) -> list[Party]:
        """Return the parties with the task's own masks of their items; most tasks keep those of the data."""
        return parties

    def coordinates(self, output: Tensor) -> Tensor | None:
        """Coordinates of items in a picture, `[items, 2]`, from their outputs; None for a task without pictures."""
        return None

    def predictions(self, output: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """The columns of a table of predictions, from the outputs of some items.

        Arguments:
            labels: names of the classes, or of the tasks; numbers stand for those without.
        """
        raise IsthmusError(f"task '{self.name}' predicts nothing of single items: use isthmus embed")

    def is_label(self, y: Tensor) -> bool:
        """Whether labels are of the kind that it learns: classes, or numbers."""
        return True

    def label_columns(self, y: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        """The columns beside `predictions` with the labels of these items, None where one is missing."""
        return {}

    @property
    def prediction_note(self) -> str:
        """What a reader of predictions must know first; empty if there is nothing."""
        return ""

    def postprocess(self, output: Tensor, sizes: Sequence[int]) -> Tensor:
        """What is evaluated, computed from the outputs of all items of each party together."""
        return output

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of the model's output."""

    @abstractmethod
    def loss(self, step: Step) -> Tensor:
        """The mean loss of each party's items, `[parties]`."""

    def loss_counts(self, step: Step) -> Tensor:
        """How many values each party's loss is the mean of, `[parties]`."""
        return torch.tensor(step.sizes, device=step.output.device)

    @abstractmethod
    def counts(self, step: Step) -> dict[str, Tensor]:
        """Counts and sums of each party, `[parties, ...]`, from which `metrics` follow."""

    def count_forms(self) -> dict[str, CountForm]:
        """What the counts look like, by name; a task that does not say gets no checks."""
        return {}

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        """Say what is wrong with counts that parties on other machines answered, or with a sum of them.

        Arguments:
            labels: labels that the parties hold, which bound what they can count.
            parties: how many parties the counts are of.
        """
        forms = self.count_forms()
        if not forms:
            return ""
        if not isinstance(counts, Mapping) or counts.keys() != forms.keys():
            return f"there are other counts than {', '.join(forms)}"
        for name, (whole, shape, signed) in forms.items():
            value = counts[name]
            if not isinstance(value, Tensor) or tuple(value.shape) != shape or value.is_floating_point() == whole:
                return f"'{name}' is not {'whole' if whole else 'real'} numbers {list(shape)}"
            if not bool(torch.isfinite(value).all()) or not (signed or bool((value >= 0).all())):
                return f"'{name}' is negative or not finite"
            if not whole and bool((value.abs() > LARGEST_SUM).any()):
                return f"'{name}' is too large"
            if whole and bool((value > max(labels, parties)).any()):
                return f"'{name}' counts more than the {labels} labels that were introduced"
        if not self.count(counts) <= labels:
            return f"it counts {self.count(counts):g} labels, {labels} were introduced"
        return ""

    @abstractmethod
    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        """Metrics from counts that were summed over some parties."""

    def fit_threshold(self, validated: Mapping[str, Any]) -> Task:
        """This task with the threshold that the counts of validation items choose; itself if it chooses none."""
        return self

    def without_threshold(self) -> Task:
        """This task with the answer of the highest score, as where one answer is for all."""
        return self

    def with_threshold(self, threshold: Any) -> Task:
        """This task with a threshold that another machine chose by `fit_threshold`, where it leaves one to choose."""
        raise IsthmusError(f"refused: task '{self.name}' leaves no threshold to choose")

    @abstractmethod
    def count(self, counts: Mapping[str, Any]) -> float:
        """How many values the counts are of: items, or labelled entries."""

    def majority_score(self, counts: Mapping[str, Any]) -> float | None:
        """The value that `judged_by` would have with the same answer for every item, the most frequent one.

        None for a task in which one answer for all means nothing, and where the counts do not give the metric.
        """
        same = self.same_answer(counts)
        return None if same is None else self.without_threshold().metrics(same).get(self.judged_by)

    def same_answer(self, counts: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the counts of the same items would be if all got one answer: a class with its share as score, a mean."""
        return None

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """The figure that chooses between rounds, larger is better; None where the data do not give the metric."""
        value = metrics.get(self.selected_by)
        return -value if value is not None and metric_of(self.selected_by).smaller_is_better else value

    def per_label(self, counts: Mapping[str, Any]) -> dict[str, list[float]]:
        """Figures of each class, or of each of several tasks, from summed counts: `items` and others, by name.

        NaN where the data do not give a figure; empty for a task without classes.
        """
        return {}


class MultiTask(Task):
    """Several labels per item, real numbers `[items, tasks]`; NaN stands for a missing label.

    A party's loss is the mean over its labelled entries, whatever their items and tasks. A missing label adds nothing
    to loss, gradient or metrics.
    """

    tasks: int = Field(0, ge=0)
    """Number of labels of every item; 0 takes that of the data."""

    @property
    def outputs(self) -> int:
        return self.tasks

    def complete_from(self, inferred: Task, labels: Sequence[str] = ()) -> Task:
        whole = self if self.tasks else self.model_copy(update={"tasks": inferred.outputs})
        return super(MultiTask, whole).complete_from(inferred, labels)

    def is_label(self, y: Tensor) -> bool:
        return y.is_floating_point()

    def label_columns(self, y: Tensor, labels: Sequence[str]) -> dict[str, Any]:
        y = y.unsqueeze(1) if y.dim() == 1 else y
        texts = y.t().cpu().numpy().astype(str)  # of single precision the shortest decimal: 0.1, not 0.10000000149
        columns = zip(names_of(labels, y.size(1)), texts, strict=True)
        return {f"label.{name}": [self.label_value(float(each)) for each in column] for name, column in columns}

    def label_value(self, label: float) -> Any:
        """A label as predictions say it; None for a missing one."""
        return None if math.isnan(label) else label

    @abstractmethod
    def entry_loss(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of every entry, `[items, tasks]`."""

    def loss(self, step: Step) -> Tensor:
        y, known = self.labels(step)
        losses = self.entry_loss(step.output, y).masked_fill(~known, 0.0)
        return step.sum(losses.sum(1)) / step.sum(known.sum(1)).clamp(min=1)

    def loss_counts(self, step: Step) -> Tensor:
        return step.sum(self.labels(step)[1].sum(1))

    def labels(self, step: Step) -> tuple[Tensor, Tensor]:
        """Labels, with 0 for the missing ones, and a mask of the others, both `[items, tasks]`."""
        y = step.y.unsqueeze(1) if step.y.dim() == 1 else step.y
        if step.output.shape != y.shape or y.size(1) != self.tasks:
            raise IsthmusError(
                f"an item has {list(step.output.shape[1:])} outputs and {y.size(1)} labels; a task with "
                f"tasks = {self.tasks} needs {self.tasks} of each"
            )
        known = ~y.isnan()
        return y.to(step.output.dtype).masked_fill(~known, 0.0), known


def focal(losses: Tensor, gamma: float) -> Tensor:
    """The focal losses of items, or entries, with these cross-entropies; the same for `gamma` 0."""
    if not gamma:
        return losses
    return (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny) ** gamma * losses


def names_of(labels: Sequence[str], count: int) -> list[str]:
    """The names of classes or tasks, numbers where they have none.

    >>> names_of((), 2), names_of(("low", "high"), 2)
    (['0', '1'], ['low', 'high'])
    """
    return list(labels) if len(labels) == count else [str(at) for at in range(count)]
