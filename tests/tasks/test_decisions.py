"""Thresholds that are chosen elsewhere, and what a reader of decisions must know."""

import pytest
import torch

from isthmus.errors import IsthmusError
from isthmus.tasks.base import Step
from isthmus.tasks.classification import NodeClassification
from isthmus.tasks.multilabel import NodeMultiLabel
from isthmus.tasks.regression import NodeRegression


def test_a_threshold_of_another_machine_is_taken_where_one_is_to_be_chosen():
    task = NodeClassification(classes=2, threshold="f1")
    assert task.with_threshold(0.25).threshold == 0.25
    for wrong in (1.5, "f1", 1, float("nan"), None):
        with pytest.raises(IsthmusError, match="refused: a threshold that is no number from 0 to 1"):
            task.with_threshold(wrong)
    for other in (NodeClassification(classes=2, threshold=0.4), NodeRegression(tasks=1)):
        with pytest.raises(IsthmusError, match=r"leaves n.* to choose"):
            other.with_threshold(0.25)


def test_thresholds_of_another_machine_are_one_for_each_task():
    task = NodeMultiLabel(tasks=2, threshold="f1")
    assert task.with_threshold([0.25, 0.5]).threshold == [0.25, 0.5]
    for wrong in (0.25, [0.25], [0.25, 1.5], [0.25, "0.5"], [0.25, float("nan")]):
        with pytest.raises(IsthmusError, match="refused: a threshold that is no number from 0 to 1"):
            task.with_threshold(wrong)
    with pytest.raises(IsthmusError, match="threshold has 1 numbers for 2 tasks: give one for each of ill, cured"):
        NodeMultiLabel(threshold=[0.5]).complete_from(NodeMultiLabel(tasks=2), ["ill", "cured"])


@pytest.mark.parametrize("task", [NodeClassification(classes=2, class_weights="balanced"),
                                  NodeMultiLabel(tasks=2, class_weights="balanced")])  # fmt: skip
def test_decisions_of_a_model_with_class_weights_are_noted_unless_a_threshold_is_set(task):
    assert "was trained with class weights (balanced)" in task.prediction_note
    chosen = task.model_copy(update={"threshold": 0.4})
    assert not chosen.prediction_note
    assert "is not in this copy" in task.model_copy(update={"threshold": "f1"}).prediction_note
    assert chosen.without_threshold() == task


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_what_was_chosen_decides_as_it_was_counted(scale):
    """Also where scores are so high that their probabilities are all 1 in double precision."""
    draw = torch.Generator().manual_seed(0)
    odds = scale * torch.randn(500, generator=draw)
    y = (torch.rand(500, generator=draw) < odds.sign() * 0.3 + 0.4).long()
    step = Step(torch.stack([torch.zeros(500), odds], dim=1), y, (500,), torch.arange(500))
    for rule in ("f1", "max_fpr"):
        task = NodeClassification(classes=2, threshold=rule, max_fpr=0.2, metric="accuracy")
        counts = {name: count.sum(0) for name, count in task.counts(step).items()}
        fitted = task.fit_threshold(counts)
        right = torch.tensor([name == "1" for name in fitted.predictions(step.output, [])["prediction"]]) == (y == 1)
        assert fitted.metrics(counts)["accuracy"] == float(right.double().mean())
