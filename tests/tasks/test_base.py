import pytest
import torch

from helpers import make_graph_parties
from isthmus.tasks.base import Step, Task
from isthmus.tasks.classification import NodeClassification
from isthmus.tasks.multilabel import GraphMultiLabel
from isthmus.tasks.regression import GraphRegression

SIZES = (12, 0, 40, 1)


@pytest.mark.parametrize(
    ("name", "level", "outputs"),
    [
        ("node-classification", "node", {"classes": 5}),
        ("graph-classification", "graph", {"classes": 5}),
        ("node-multilabel", "node", {"tasks": 5}),
        ("graph-multilabel", "graph", {"tasks": 5}),
        ("node-regression", "node", {"tasks": 5}),
        ("graph-regression", "graph", {"tasks": 5}),
        ("edge-classification", "edge", {"classes": 5}),
        ("edge-multilabel", "edge", {"tasks": 5}),
        ("edge-regression", "edge", {"tasks": 5}),
        ("graph-clustering", "graph", {"classes": 5}),
        ("link-prediction", "pair", {"width": 5}),
    ],
)
def test_a_task_is_found_by_its_name_and_has_the_outputs_that_it_needs(name, level, outputs):
    task = Task.named(name)(**outputs)
    assert (task.level, task.outputs) == (level, 5)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_step_sums_and_averages_rows_of_each_party(shape):
    values = torch.randn(sum(SIZES), *shape, generator=torch.Generator().manual_seed(1))
    step = Step(values, torch.zeros(sum(SIZES)), SIZES, torch.arange(sum(SIZES)))
    parts = values.split(SIZES)
    torch.testing.assert_close(step.sum(values), torch.stack([part.sum(0) for part in parts]))
    if not shape:
        means = torch.stack([part.mean() if len(part) else torch.tensor(0.0) for part in parts])
        torch.testing.assert_close(step.mean(values), means)


def test_a_smaller_error_and_a_larger_share_score_more():
    assert GraphRegression(tasks=1).score({"rmse": 1.0}) > GraphRegression(tasks=1).score({"rmse": 2.0})
    task = GraphMultiLabel(tasks=1)
    assert task.score({"roc_auc": 0.9, "accuracy": 0.1}) > task.score({"roc_auc": 0.8, "accuracy": 0.2})
    assert task.score({"accuracy": 0.1}) is None


def test_a_task_takes_parties_as_the_cut_makes_them():
    parties = list(make_graph_parties())
    assert NodeClassification(classes=3).make_parties(None, lambda pool: parties, 0) is parties


def test_the_loss_of_several_labels_counts_labelled_entries():
    nan = float("nan")
    y = torch.tensor([[1.0, nan], [nan, nan], [0.0, 1.0]])
    step = Step(torch.zeros(3, 2), y, (2, 1), torch.arange(3))
    assert GraphMultiLabel(tasks=2).loss_counts(step).tolist() == [1, 2]
    assert NodeClassification(classes=2).loss_counts(step).tolist() == [2, 1]
