import pytest
import torch

from isthmus.tasks.base import Step, Task
from isthmus.tasks.classification import GraphClassification
from isthmus.tasks.clustering import GraphClustering
from isthmus.tasks.links import LinkPrediction
from isthmus.tasks.metrics import METRICS, metric_of
from isthmus.tasks.multilabel import GraphMultiLabel
from isthmus.tasks.regression import GraphRegression

ITEMS = torch.arange(4)
REALS = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
CLASSES = torch.tensor([0, 1, 0, 1])
SOLVED = [
    (GraphClassification(classes=2), torch.eye(2)[CLASSES], CLASSES),
    (GraphMultiLabel(tasks=1), REALS, REALS),
    (GraphRegression(tasks=1), REALS, REALS),
    (LinkPrediction(width=2), torch.randn(4, 2, 2), CLASSES),
    (GraphClustering(classes=2, probe=2), torch.cat([REALS, REALS], dim=1), CLASSES),
]


@pytest.mark.parametrize(("task", "output", "y"), SOLVED, ids=[type(task).__name__ for task, *_ in SOLVED])
def test_every_metric_of_a_task_is_in_the_table(task, output, y):
    counts = task.counts(Step(output, y, (4,), ITEMS))
    assert task.metrics({name: count.sum(0) for name, count in counts.items()}).keys() <= METRICS.keys()


@pytest.mark.parametrize("kind", [kind for kind in Task.known().values() if kind.__module__.startswith("isthmus.")])
def test_every_metric_that_may_judge_a_task_is_in_the_table(kind):
    assert set(kind.known_metrics) <= METRICS.keys()
    assert kind().judged_by in kind.known_metrics


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("accuracy", "accuracy"),
        ("probe_accuracy", "probe_accuracy"),
        ("pooled_test_accuracy", "accuracy"),
        ("val_party_auc", "party_auc"),
        ("test_roc_auc", "roc_auc"),
        ("rounds", "rounds"),
    ],
)
def test_a_column_is_of_the_metric_with_the_longest_name_that_it_ends_with(column, name):
    assert metric_of(column).name == name


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("test_accuracy", 0.98765, "98.8%"),
        ("test_rmse", 0.98765, "0.988"),
        ("nmi", 0.5, "0.5"),
        ("x", 1234.5, "1.23e+03"),
    ],
)
def test_shares_are_shown_in_percent_and_other_metrics_with_three_digits(column, value, text):
    assert metric_of(column).shown(value, "%") == text
