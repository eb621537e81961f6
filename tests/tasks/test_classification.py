import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional as F

from isthmus.tasks.base import Step
from isthmus.tasks.classification import NodeClassification

SIZES = (12, 0, 40, 1)


def make_step(classes=4, sizes=SIZES, seed=0, of=None):
    """Outputs and labels; the labels are drawn from the first `of` classes."""
    source = torch.Generator().manual_seed(seed)
    items = sum(sizes)
    y = torch.randint(of or classes, (items,), generator=source)
    output = torch.randn(items, classes, generator=source) + 1.5 * F.one_hot(y, classes)
    return Step(output, y, sizes, torch.arange(items))


def pooled(task, step):
    return task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("classes", "of"), [(2, 2), (4, 4), (7, 3), (70, 70), (300, 80)])
def test_counts_of_all_parties_sum_to_sklearns_metrics_on_pooled_predictions(classes, of, seed):
    step = make_step(classes, seed=seed, of=of)
    guess = step.output.argmax(1)
    assert pooled(NodeClassification(classes=classes), step) == pytest.approx(
        {
            "accuracy": accuracy_score(step.y, guess),
            "macro_f1": f1_score(step.y, guess, average="macro"),
            "loss": F.cross_entropy(step.output, step.y).item(),
        }
    )


def test_counts_of_each_party_are_those_of_its_own_items():
    task, step = NodeClassification(classes=4), make_step()
    counts = task.counts(step)
    for at, (output, y) in enumerate(zip(step.output.split(SIZES), step.y.split(SIZES), strict=True)):
        alone = task.counts(Step(output, y, (len(y),), torch.arange(len(y))))
        for name, count in alone.items():
            torch.testing.assert_close(counts[name][at], count[0])


def test_the_confusion_matrix_has_a_row_for_the_truth_and_a_column_for_the_guess():
    step = Step(torch.eye(3)[[2, 2, 0]], torch.tensor([1, 1, 0]), (1, 2), torch.arange(3))
    confusion = NodeClassification(classes=3).counts(step)["confusion"]
    assert confusion.nonzero().tolist() == [[0, 1, 2], [1, 0, 0], [1, 1, 2]]


def test_the_loss_is_a_mean_per_party_and_nothing_for_a_party_without_items():
    step = make_step()
    losses = NodeClassification(classes=4).loss(step)
    for loss, output, y in zip(losses, step.output.split(SIZES), step.y.split(SIZES), strict=True):
        due = F.cross_entropy(output, y) if len(y) else torch.tensor(0.0)
        torch.testing.assert_close(loss, due)


def test_a_partys_gradient_does_not_depend_on_the_other_parties():
    step = make_step()
    output = step.output.clone().requires_grad_()
    NodeClassification(classes=4).loss(Step(output, step.y, SIZES, step.items)).sum().backward()
    for slope, own, y in zip(output.grad.split(SIZES), step.output.split(SIZES), step.y.split(SIZES), strict=True):
        alone = own.clone().requires_grad_()
        F.cross_entropy(alone, y).backward() if len(y) else None
        torch.testing.assert_close(slope, torch.zeros_like(own) if alone.grad is None else alone.grad)


def test_no_items_give_no_metrics():
    task, step = NodeClassification(classes=3), make_step(3, sizes=(0, 0))
    assert task.counts(step)["confusion"].shape == (2, 3, 3)
    assert pooled(task, step) == {}
    assert torch.equal(task.loss(step), torch.zeros(2))


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 9, 17, 40])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_metrics_are_bit_for_bit_those_of_whole_matrices(classes, most):
    source = torch.Generator().manual_seed(classes)
    for _ in range(20):
        confusion = torch.randint(most + 1, (classes, classes), generator=source)
        confusion[torch.rand(classes, classes, generator=source) < 0.8] = 0  # some classes and guesses do not occur
        confusion[-1, 0] = 1
        whole = confusion.double()
        hits, either = whole.diagonal(), whole.sum(0) + whole.sum(1)
        f1 = 2 * hits / either.clamp(min=1)
        found = NodeClassification(classes=classes).metrics({"confusion": confusion, "loss": torch.tensor(1.0)})
        assert found["accuracy"] == float(hits.sum() / whole.sum())
        assert found["macro_f1"] == float(f1[either > 0].mean())
        assert found["loss"] == float(torch.tensor(1.0) / confusion.sum())
