import dataclasses
import math
import re

import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    precision_recall_curve,
    precision_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)
from torch.nn import functional as F

from isthmus.errors import IsthmusError
from isthmus.tasks.base import Step
from isthmus.tasks.classification import NodeClassification
from isthmus.tasks.ranking import ALERTS

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
    present = step.y.unique()
    recall = recall_score(step.y, guess, average="macro", labels=present)
    assert pooled(NodeClassification(classes=classes, metric="accuracy"), step) == pytest.approx(
        {
            "accuracy": accuracy_score(step.y, guess),
            "macro_f1": f1_score(step.y, guess, average="macro"),
            "balanced_accuracy": recall,
            "loss": F.cross_entropy(step.output, step.y).item(),
        }
    )


@pytest.mark.parametrize(
    ("metric", "classes"),
    [(metric, 2) for metric in NodeClassification.known_metrics]
    + [(metric, 5) for metric in NodeClassification.known_metrics if metric not in ALERTS],
)
def test_the_majority_score_is_what_one_answer_for_all_items_gets(metric, classes):
    task = NodeClassification(classes=classes, metric=metric)
    step = make_step(classes)
    shares = torch.bincount(step.y, minlength=classes) / len(step.y)
    same = dataclasses.replace(step, output=shares.log().expand(len(step.y), -1))
    counts = {name: count.sum(0) for name, count in task.counts(step).items()}
    assert task.majority_score(counts) == pytest.approx(pooled(task, same)[metric], rel=1e-6)


def test_items_of_one_class_have_no_majority_score_by_a_ranking():
    counts = NodeClassification(classes=2, metric="roc_auc").counts(make_step(2, of=1))
    counts = {name: count.sum(0) for name, count in counts.items()}
    assert NodeClassification(classes=2, metric="roc_auc").majority_score(counts) is None
    assert NodeClassification(classes=2, metric="accuracy").majority_score(counts) == 1
    nothing = {name: torch.zeros_like(count) for name, count in counts.items()}
    assert NodeClassification(classes=2, metric="accuracy").majority_score(nothing) is None


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


@pytest.mark.parametrize("classes", [2, 5])
def test_counts_of_scores_give_sklearns_ranking_metrics_of_each_class_against_the_others(classes):
    step = make_step(classes, sizes=(300, 0, 500))
    found = pooled(NodeClassification(classes=classes, metric="macro_f1", select_by="average_precision"), step)
    p, y = step.output.softmax(1), F.one_hot(step.y, classes)
    ranked = [1] if classes == 2 else range(classes)
    for name, score in {"roc_auc": roc_auc_score, "average_precision": average_precision_score}.items():
        due = sum(score(y[:, at], p[:, at]) for at in ranked) / len(ranked)
        assert found[name] == pytest.approx(due, abs=0.003)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(step.y, p.argmax(1)))


def test_parties_count_scores_only_where_a_metric_needs_them():
    counts = {
        (classes, metric): NodeClassification(classes=classes, metric=metric).counts(make_step(classes)).keys()
        for classes, metric in [(2, None), (2, "macro_f1"), (4, None), (4, "roc_auc")]
    }
    assert {key for key, names in counts.items() if "scores" in names} == {(2, None), (4, "roc_auc")}


def test_two_classes_are_judged_by_roc_auc_and_more_by_accuracy():
    assert NodeClassification(classes=2).judged_by == NodeClassification(classes=2).selected_by == "roc_auc"
    assert NodeClassification(classes=3).judged_by == "accuracy"
    task = NodeClassification(metric="macro_f1", select_by="loss").complete_from(NodeClassification(classes=2))
    assert (task.classes, task.judged_by) == (2, "macro_f1")
    assert task.score({"loss": 1.0, "roc_auc": 0.1}) > task.score({"loss": 2.0, "roc_auc": 0.9})


@pytest.mark.parametrize("classes", [2, 4])
def test_counts_of_scores_that_do_not_fit_the_confusion_matrix_are_refused(classes):
    task, step = NodeClassification(classes=classes, metric="roc_auc"), make_step(classes, sizes=(30,))
    counts = {name: count[0] for name, count in task.counts(step).items()}
    assert not task.counts_problem(counts, labels=30)
    scores = counts["scores"].clone()
    scores[0, 0, :2] += 1
    assert "other numbers of scores" in task.counts_problem(counts | {"scores": scores}, labels=60)


def test_figures_of_each_class_are_sklearns():
    step = make_step(classes=4, of=3)
    task = NodeClassification(classes=4)
    found = task.per_label({name: count.sum(0) for name, count in task.counts(step).items()})
    guess, labels = step.output.argmax(1), range(3)
    assert found["items"] == [*torch.bincount(step.y).tolist(), 0]
    assert found["recall"][:3] == pytest.approx(recall_score(step.y, guess, average=None, labels=labels))
    assert found["precision"][:3] == pytest.approx(precision_score(step.y, guess, average=None, labels=labels))
    assert math.isnan(found["recall"][3])
    assert found["f1"] == pytest.approx(f1_score(step.y, guess, average=None, labels=range(4), zero_division=0))


def test_weights_of_classes_weigh_the_loss_of_every_party_as_torch_does():
    step, weights = make_step(), [1.0, 2.0, 0.5, 4.0]
    losses = NodeClassification(classes=4, class_weights=weights).loss(step)
    for loss, output, y in zip(losses, step.output.split(SIZES), step.y.split(SIZES), strict=True):
        due = F.cross_entropy(output, y, torch.tensor(weights)) if len(y) else torch.tensor(0.0)
        torch.testing.assert_close(loss, due)


def test_balanced_weights_let_the_classes_that_a_party_has_count_equally():
    step = make_step(of=3)
    losses = NodeClassification(classes=4, class_weights="balanced").loss(step)
    for loss, output, y in zip(losses, step.output.split(SIZES), step.y.split(SIZES), strict=True):
        own = [F.cross_entropy(output[y == label], y[y == label]) for label in y.unique()]
        torch.testing.assert_close(loss, torch.stack(own).mean() if own else torch.tensor(0.0))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"classes": 3, "class_weights": [1.0, 2.0]}, "class_weights has 2 numbers for 3 classes"),
        ({"classes": 1}, "classes is 1, so there is nothing to tell apart: give labels of two classes"),
        ({"metric": "auc"}, "option 'metric' is 'auc': did you mean 'roc_auc'?"),
        ({"select_by": "rmse"}, "option 'select_by' is 'rmse': known: accuracy"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, text):
    with pytest.raises(IsthmusError, match=re.escape(text)):
        NodeClassification.read(options, "task")


NAMES = ("well", "lame", "ill")


def test_weights_that_do_not_fit_the_classes_of_the_data_are_one_line():
    with pytest.raises(IsthmusError, match="class_weights has 2 numbers for 3 classes"):
        NodeClassification(class_weights=[1.0, 2.0]).complete_from(NodeClassification(classes=3))
    with pytest.raises(
        IsthmusError, match="numbers for 3 classes: give one for each of well, lame, ill, in this order"
    ):
        NodeClassification(class_weights=[1.0, 2.0]).complete_from(NodeClassification(classes=3), NAMES)


def test_weights_may_be_given_by_the_names_of_classes():
    task = NodeClassification.read({"class_weights": {"ill": 20}}, "task")
    assert task.complete_from(NodeClassification(classes=3), NAMES).class_weights == [1.0, 1.0, 20.0]
    weights = NodeClassification(class_weights={"1": 5.0}).complete_from(NodeClassification(classes=2)).class_weights
    assert weights == [1.0, 5.0]
    with pytest.raises(IsthmusError, match="class_weights names a class 'il': did you mean 'ill'"):
        NodeClassification(class_weights={"il": 20.0}).complete_from(NodeClassification(classes=3), NAMES)


def make_rare_step(seed=0, sizes=(4000, 0, 6000)):
    """Two classes, the second one rare, and outputs that are not centred."""
    source = torch.Generator().manual_seed(seed)
    y = (torch.rand(sum(sizes), generator=source) < 0.02).long()
    odds = torch.randn(sum(sizes), generator=source) - 4 + 2.5 * y
    return Step(torch.stack([torch.zeros_like(odds), odds], 1), y, sizes, torch.arange(sum(sizes)))


def summed(task, step):
    return {name: count.sum(0) for name, count in task.counts(step).items()}


def test_figures_of_the_highest_scores_are_those_of_the_pooled_list():
    step = make_rare_step()
    found = pooled(NodeClassification(classes=2, max_fpr=0.01, top_k=50), step)
    odds = step.output[:, 1]
    fpr, tpr, _ = roc_curve(step.y, odds, drop_intermediate=False)
    assert found["recall_at_fpr"] == pytest.approx(tpr[fpr <= 0.01].max(), abs=0.02)
    assert found["precision_at_k"] == pytest.approx(step.y[odds.topk(50).indices].double().mean().item(), abs=0.05)


def test_the_focal_loss_is_torchs_formula_and_its_gradient_is_finite():
    step = make_step()
    task = NodeClassification(classes=4, focal_gamma=2.0, class_weights=[1.0, 2.0, 0.5, 4.0])
    p = step.output.softmax(1)[torch.arange(len(step.y)), step.y]
    weight = torch.tensor([1.0, 2.0, 0.5, 4.0])[step.y]
    values = weight * (1 - p) ** 2 * -p.log()
    due = [
        v.sum() / w.sum() if len(v) else torch.tensor(0.0)
        for v, w in zip(values.split(SIZES), weight.split(SIZES), strict=True)
    ]
    torch.testing.assert_close(task.loss(step), torch.stack(due))
    sure = torch.tensor([[60.0, -60.0], [-60.0, 60.0]], requires_grad=True)
    NodeClassification(classes=2, focal_gamma=0.5).loss(
        Step(sure, torch.tensor([0, 0]), (2,), torch.arange(2))
    ).sum().backward()
    assert sure.grad.isfinite().all()
    assert NodeClassification(classes=4, focal_gamma=0).loss(step).equal(NodeClassification(classes=4).loss(step))


@pytest.mark.parametrize("seed", range(3))
def test_the_best_threshold_by_f1_is_scikit_learns_within_the_width_of_a_bin(seed):
    task, step = NodeClassification(classes=2, threshold="f1", metric="accuracy"), make_rare_step(seed)
    fitted = task.fit_threshold(summed(task, step))
    found = fitted.metrics(summed(task, step))
    precision, recall, _ = precision_recall_curve(step.y, step.output[:, 1])
    best = (2 * precision * recall / (precision + recall).clip(min=1e-12)).max()
    flagged = step.output.softmax(1)[:, 1].double() >= fitted.threshold
    per_label = fitted.per_label(summed(task, step))
    assert per_label["f1"][1] == pytest.approx(f1_score(step.y, flagged)) == pytest.approx(best, abs=0.02)
    assert found["macro_f1"] == pytest.approx(f1_score(step.y, flagged, average="macro"))
    assert found["accuracy"] == pytest.approx(accuracy_score(step.y, flagged))
    assert per_label["f1"][1] > 2 * f1_score(step.y, step.output.argmax(1))


def test_a_threshold_by_false_positives_keeps_its_rate_on_the_items_that_choose_it():
    task, step = NodeClassification(classes=2, threshold="max_fpr", max_fpr=0.01), make_rare_step()
    fitted = task.fit_threshold(summed(task, step))
    flagged = step.output.softmax(1)[:, 1].double() >= fitted.threshold
    rate = flagged[step.y == 0].double().mean()
    assert 0.008 < rate <= 0.01
    assert fitted.metrics(summed(task, step))["recall_at_fpr"] == pytest.approx(recall_score(step.y, flagged))


def test_predictions_use_the_chosen_threshold_and_so_does_the_model_that_is_read_back():
    task, step = NodeClassification(classes=2, threshold="f1"), make_rare_step()
    fitted = task.fit_threshold(summed(task, step))
    again = NodeClassification.read({**fitted.model_dump()}, "task")
    for each in (fitted, again):
        table = each.predictions(step.output, ("fine", "bad"))
        bad = torch.tensor([name == "bad" for name in table["prediction"]])
        assert torch.equal(bad, torch.from_numpy(table["score.bad"]).double() >= fitted.threshold)
        assert bad.sum() > (step.output.argmax(1) == 1).sum()
    assert "is not in this copy" in task.prediction_note
    assert not fitted.prediction_note


@pytest.mark.parametrize("threshold", ["f1", 0.3])
def test_the_first_class_may_be_looked_for(threshold):
    """All is as with the classes exchanged."""
    step = make_rare_step()
    other = dataclasses.replace(step, output=step.output.flip(1), y=1 - step.y)
    options = {"classes": 2, "threshold": threshold, "metric": "average_precision"}
    second, first = NodeClassification(**options), NodeClassification(**options, positive=0)
    due, found = (task.fit_threshold(summed(task, each)) for task, each in ((second, step), (first, other)))
    assert found.threshold == due.threshold
    assert found.metrics(summed(found, other)) == due.metrics(summed(due, step))
    assert found.per_label(summed(found, other))["f1"] == due.per_label(summed(due, step))["f1"][::-1]
    names = [each.predictions(of.output, ("a", "b"))["prediction"] for each, of in ((due, step), (found, other))]
    assert names[0] == [{"a": "b", "b": "a"}[name] for name in names[1]]
    assert not first.counts_problem(summed(first, other), len(other.y), len(SIZES))


def test_the_class_that_is_looked_for_has_a_name():
    inferred, names = NodeClassification(classes=2), ("ill", "well")
    assert NodeClassification(positive="ill").complete_from(inferred, names).positive == 0
    with pytest.raises(IsthmusError, match="positive names a class 'il': did you mean 'ill'"):
        NodeClassification(positive="il").complete_from(inferred, names)
    with pytest.raises(IsthmusError, match="positive is for two classes, there are 3: remove it"):
        NodeClassification(positive=0).complete_from(NodeClassification(classes=3))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_a_given_threshold_is_used_as_it_is(threshold):
    task, step = NodeClassification(classes=2, threshold=threshold), make_rare_step()
    flagged = step.output.softmax(1)[:, 1] >= threshold
    assert pooled(task, step)["accuracy"] == pytest.approx(accuracy_score(step.y, flagged))
    assert task.fit_threshold(summed(task, step)) is task


def test_validation_items_of_one_class_leave_the_threshold_at_a_half():
    task, step = NodeClassification(classes=2, threshold="f1"), make_step(2, of=1)
    assert task.fit_threshold(summed(task, step)).threshold == 0.5


@pytest.mark.parametrize("options", [{"metric": "recall_at_fpr"}, {"select_by": "precision_at_k"}, {"threshold": "f1"}])
def test_options_for_two_classes_are_refused_with_more(options):
    with pytest.raises(IsthmusError, match="is for two classes, there are 3"):
        NodeClassification.read({"classes": 3, **options}, "task")
    with pytest.raises(IsthmusError, match="is for two classes, there are 3"):
        NodeClassification(**options).complete_from(NodeClassification(classes=3))
    NodeClassification(**options).complete_from(NodeClassification(classes=2))


def test_scores_of_very_sure_models_still_rank() -> None:
    logits = torch.tensor([[0.0, 20.0], [0.0, 21.0], [0.0, 22.0]])
    scores = NodeClassification(classes=2).predictions(logits, ["no", "yes"])["score.yes"]
    assert scores[0] < scores[1] < scores[2] < 1
