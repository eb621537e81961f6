"""Real numbers: what parties count adds up to sklearn's errors on the labelled entries."""

import pytest
import torch
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from isthmus.tasks.base import Step
from isthmus.tasks.regression import GraphRegression, NodeRegression

SIZES = (12, 0, 40, 1)
NAN = float("nan")


def make_step(tasks=2, seed=0):
    source = torch.Generator().manual_seed(seed)
    items = sum(SIZES)
    y = 3 * torch.randn(items, tasks, generator=source)
    output = y + torch.randn(items, tasks, generator=source)
    y[torch.rand(items, tasks, generator=source) < 0.3] = NAN
    return Step(output, y, SIZES, torch.arange(items))


def pooled(task, step):
    return task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})


@pytest.mark.parametrize("tasks", [1, 4])
def test_counts_of_all_parties_sum_to_sklearns_errors(tasks):
    step = make_step(tasks)
    known = ~step.y.isnan()
    due = {
        "rmse": root_mean_squared_error(step.y[known], step.output[known]),
        "mae": mean_absolute_error(step.y[known], step.output[known]),
    }
    assert pooled(GraphRegression(tasks=tasks), step) == pytest.approx({**due, "loss": due["rmse"] ** 2})


def test_labels_beside_predictions_are_as_the_tables_had_them():
    y = torch.tensor([[0.1, 339.56], [NAN, 1e-7], [-2.0, 16777216.0]])
    assert NodeRegression(tasks=2).label_columns(y, ["a", "b"]) == {
        "label.a": [0.1, None, -2.0],
        "label.b": [339.56, 1e-7, 16777216.0],
    }


def test_counts_of_each_party_are_those_of_its_own_items():
    step, task = make_step(), NodeRegression(tasks=2)
    counts = task.counts(step)
    for at, (output, y) in enumerate(zip(step.output.split(SIZES), step.y.split(SIZES), strict=True)):
        alone = task.counts(Step(output, y, (len(y),), torch.arange(len(y))))
        for name, count in alone.items():
            torch.testing.assert_close(counts[name][at], count[0])


def test_the_loss_is_a_mean_over_labelled_entries_and_nothing_for_a_party_without():
    y = torch.tensor([[1.0, NAN], [3.0, 0.0], [NAN, NAN]])
    output = torch.tensor([[2.0, 9.0], [0.0, 1.0], [7.0, 7.0]], requires_grad=True)
    losses = GraphRegression(tasks=2).loss(Step(output, y, (2, 1, 0), torch.arange(3)))
    torch.testing.assert_close(losses, torch.tensor([11 / 3, 0.0, 0.0]))
    losses.sum().backward()
    torch.testing.assert_close(output.grad, torch.tensor([[2.0, 0.0], [-6.0, 2.0], [0.0, 0.0]]) / 3)


@pytest.mark.parametrize("tasks", [1, 4])
def test_the_majority_score_is_that_of_each_tasks_mean_label(tasks):
    step, task = make_step(tasks), GraphRegression(tasks=tasks)
    known = ~step.y.isnan()
    means = step.y.nanmean(0).expand_as(step.y)
    counts = {name: count.sum(0) for name, count in task.counts(step).items()}
    assert task.majority_score(counts) == pytest.approx(root_mean_squared_error(step.y[known], means[known]))
    assert GraphRegression(tasks=tasks, metric="mae").majority_score(counts) is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("labels", -2.0, ""),
        ("labels", -9.0, "sums of labels do not fit those of their squares"),
        ("labels", -1e200, "'labels' is too large"),
        ("squares", -4.0, "'squares' is negative or not finite"),
        ("absolute", 9.0, "sums of absolute errors do not fit those of their squares"),
    ],
)
def test_sums_that_no_labels_can_have_are_refused(name, value, why):
    step, task = Step(torch.zeros(1, 1), torch.full((1, 1), -2.0), (1,), torch.arange(1)), NodeRegression(tasks=1)
    counts = {each: count.sum(0) for each, count in task.counts(step).items()}
    assert task.counts_problem(counts | {name: torch.full_like(counts[name], value)}, labels=1) == why


def test_no_labelled_entry_gives_no_metrics():
    step = Step(torch.zeros(2, 1), torch.full((2, 1), NAN), (2,), torch.arange(2))
    assert pooled(GraphRegression(tasks=1), step) == {}
