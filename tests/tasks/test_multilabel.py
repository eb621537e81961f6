"""Labels of several tasks: what parties count adds up to sklearn's metrics, and a missing label plays no part."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score, roc_curve
from torch.nn import functional

from isthmus.errors import IsthmusError
from isthmus.tasks.base import Step
from isthmus.tasks.multilabel import GraphMultiLabel, NodeMultiLabel
from isthmus.tasks.ranking import BINS

SIZES = (40, 0, 160, 3)
NAN = float("nan")


def make_step(tasks=3, sizes=SIZES, seed=0, spread=1.0, missing=0.3):
    source = torch.Generator().manual_seed(seed)
    items = sum(sizes)
    y = (torch.rand(items, tasks, generator=source) < 0.3).float()
    output = spread * (torch.randn(items, tasks, generator=source) + y)
    y[torch.rand(items, tasks, generator=source) < missing] = NAN
    return Step(output, y, sizes, torch.arange(items))


def pooled(step):
    task = GraphMultiLabel(tasks=step.output.size(1))
    return task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})


def exact_area(step):
    areas = []
    for output, y in zip(step.output.T, step.y.T, strict=True):
        known = ~y.isnan()
        if len(y[known].unique()) == 2:
            areas.append(roc_auc_score(y[known], output[known]))
    return sum(areas) / len(areas)


@pytest.mark.parametrize("metric", GraphMultiLabel.known_metrics)
def test_the_majority_score_is_what_one_answer_per_task_gets(metric):
    task, step = GraphMultiLabel(tasks=3, metric=metric), make_step()
    step.y[:, 2] = torch.where(step.y[:, 2].isnan(), NAN, 1 - step.y[:, 2])  # most of the last task are yes
    counts = {name: count.sum(0) for name, count in task.counts(step).items()}
    same = dataclasses.replace(step, output=step.y.nanmean(0).logit().expand(len(step.y), -1))
    assert task.majority_score(counts) == pytest.approx(pooled(same)[metric], rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.05, 1.0, 30.0])
def test_counts_of_all_parties_sum_to_sklearns_metrics_on_labelled_entries(seed, spread):
    step = make_step(seed=seed, spread=spread)
    known = ~step.y.isnan()
    chance = step.output[known].double().sigmoid().clamp(1e-12, 1 - 1e-12)
    found = pooled(step)
    assert found["accuracy"] == accuracy_score(step.y[known], step.output[known] >= 0)
    if spread < 30:  # sklearn is given chances, which have no digits left far from 0
        assert found["loss"] == pytest.approx(log_loss(step.y[known], chance), rel=1e-5)
    assert found["roc_auc"] == pytest.approx(exact_area(step), abs=0.005)


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_yes_are_sklearns(seed):
    step = make_step(seed=seed)
    step.output.mul_(100).round_()  # no two scores of different items share a bin without being equal
    f1, recall = [], []
    for output, y in zip(step.output.T, step.y.T, strict=True):
        known = ~y.isnan()
        f1.append(f1_score(y[known], output[known] >= 0))
        false, true, _ = roc_curve(y[known], output[known], drop_intermediate=False)
        recall.append(max(true[false <= 0.1]))
    task = GraphMultiLabel(tasks=3, max_fpr=0.1)
    counts = {name: count.sum(0) for name, count in task.counts(step).items()}
    found = task.metrics(counts)
    assert found["macro_f1"] == pytest.approx(sum(f1) / 3)
    assert found["recall_at_fpr"] <= sum(recall) / 3 + 1e-9
    assert found["recall_at_fpr"] == pytest.approx(sum(recall) / 3, abs=0.05)
    assert task.per_label(counts)["f1"] == pytest.approx(f1)


def test_balanced_weights_let_yes_and_no_of_each_task_count_equally():
    step = make_step()
    found = GraphMultiLabel(tasks=3, class_weights="balanced").loss(step)
    starts = [0, *torch.tensor(SIZES).cumsum(0).tolist()]
    for party, (start, stop) in enumerate(itertools.pairwise(starts)):
        means = []
        for output, y in zip(step.output[start:stop].T, step.y[start:stop].T, strict=True):
            kinds = []
            for label in (0.0, 1.0):
                if (y == label).any():
                    losses = functional.binary_cross_entropy_with_logits(
                        output[y == label], y[y == label], reduction="none"
                    )
                    kinds.append(losses.mean())
            means += [sum(kinds) / len(kinds)] if kinds else []
        assert float(found[party]) == pytest.approx(float(sum(means) / len(means)) if means else 0.0, rel=1e-5)


def test_the_focal_loss_of_an_entry_is_its_definition_and_the_metric_stays():
    step, plain, focal = make_step(), GraphMultiLabel(tasks=3), GraphMultiLabel(tasks=3, focal_gamma=2.0)
    known = ~step.y[:40].isnan()
    p = torch.where(step.y[:40] > 0, step.output[:40].sigmoid(), 1 - step.output[:40].sigmoid())[known]
    assert float(focal.loss(step)[0]) == pytest.approx(float((-((1 - p) ** 2) * p.log()).mean()), rel=1e-4)
    assert torch.equal(focal.counts(step)["loss"], plain.counts(step)["loss"])


@given(
    output=st.lists(st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e-3, 2e-3]), min_size=2, max_size=40),
    data=st.data(),
)
@settings(max_examples=50)
def test_the_area_is_never_further_off_than_the_stated_bound(output, data):
    labels = data.draw(st.lists(st.booleans(), min_size=len(output), max_size=len(output)))
    y = torch.tensor([[1.0], [0.0]] + [[float(label)] for label in labels[2:]])
    step = Step(torch.tensor(output)[:, None], y, (len(output),), torch.arange(len(output)))
    counts = GraphMultiLabel(tasks=1).counts(step)["scores"].double()
    negative, positive = counts[0, 0] / counts[0, 0].sum(dim=1, keepdim=True)
    bound = float((negative * positive).sum() / 2)
    assert abs(pooled(step)["roc_auc"] - exact_area(step)) <= bound + 1e-9


def test_a_pair_within_one_bin_counts_half_and_one_in_two_bins_whole():
    def area(negative, positive):
        step = Step(torch.tensor([[negative], [positive]]), torch.tensor([[0.0], [1.0]]), (2,), torch.arange(2))
        return pooled(step)["roc_auc"]

    assert area(0.5, 0.5) == area(0.0, 0.001) == area(0.001, 0.0) == 0.5
    assert area(-1e-9, 0.0) == area(0.0, 0.008) == area(6.0, 6.05) == area(-float("inf"), float("inf")) == 1.0
    assert area(0.008, 0.0) == area(6.05, 6.0) == 0.0


def test_the_area_is_the_mean_over_tasks_that_have_both_classes():
    y = torch.tensor([[1.0, 1.0, NAN], [0.0, 1.0, 0.0], [0.0, NAN, 1.0]])
    output = torch.tensor([[1.0, 0.0, 9.0], [0.0, 0.0, 2.0], [0.0, 0.0, 1.0]])
    assert pooled(Step(output, y, (3,), torch.arange(3)))["roc_auc"] == 0.5  # 1 and 0, the second task has none
    assert "roc_auc" not in pooled(Step(output[:, 1:2], y[:, 1:2], (3,), torch.arange(3)))


def test_counts_of_each_party_are_those_of_its_own_items():
    step, task = make_step(), NodeMultiLabel(tasks=3)
    counts = task.counts(step)
    assert counts["scores"].shape == (len(SIZES), 3, 2, BINS)
    for at, (output, y) in enumerate(zip(step.output.split(SIZES), step.y.split(SIZES), strict=True)):
        alone = task.counts(Step(output, y, (len(y),), torch.arange(len(y))))
        for name, count in alone.items():
            torch.testing.assert_close(counts[name][at], count[0])


def test_the_loss_is_a_mean_over_labelled_entries_and_nothing_for_a_party_without():
    y = torch.tensor([[1.0, NAN], [NAN, NAN], [0.0, 1.0], [NAN, NAN]])
    output = torch.tensor([[0.0, 5.0], [7.0, 8.0], [0.0, 0.0], [3.0, 3.0]], requires_grad=True)
    losses = GraphMultiLabel(tasks=2).loss(Step(output, y, (3, 1, 0), torch.arange(4)))
    torch.testing.assert_close(losses, torch.tensor([2.0, 0.0, 0.0]).log1p() * torch.tensor([0.6309298, 0.0, 0.0]))
    losses.sum().backward()
    assert torch.equal(output.grad != 0, ~y.isnan())
    torch.testing.assert_close(output.grad[0, 0], torch.tensor(-0.5 / 3))


def test_one_task_may_have_labels_without_a_column_of_tasks():
    wide = make_step(tasks=1)
    flat = Step(wide.output, wide.y.squeeze(1), SIZES, wide.items)
    assert pooled(flat) == pooled(wide)


def test_no_labelled_entry_gives_no_metrics():
    step = Step(torch.zeros(2, 3), torch.full((2, 3), NAN), (2,), torch.arange(2))
    assert pooled(step) == pooled(make_step(sizes=(0, 0))) == {}


def test_scores_that_are_no_numbers_reach_the_loss_and_break_nothing():
    step = make_step(sizes=(4, 4), missing=0.0)
    step.output[0] = NAN
    counts = GraphMultiLabel(tasks=3).counts(step)
    assert counts["loss"].isnan().tolist() == [True, False]
    assert counts["scores"].sum(dim=(1, 2, 3)).tolist() == [12, 12]


def test_outputs_that_do_not_fit_the_labels_are_an_error():
    step = make_step(tasks=3)
    with pytest.raises(IsthmusError, match=r"an item has \[3\] outputs and 3 labels; a task with tasks = 4"):
        GraphMultiLabel(tasks=4).loss(step)
    with pytest.raises(IsthmusError, match=r"an item has \[2\] outputs and 3 labels"):
        GraphMultiLabel(tasks=3).counts(Step(step.output[:, :2], step.y, SIZES, step.items))


def test_the_area_chooses_the_round_where_there_is_one():
    task = GraphMultiLabel(tasks=1)
    assert task.score({"roc_auc": 0.7, "accuracy": 0.9}) == 0.7
    assert task.score({"accuracy": 0.9}) is None


@pytest.mark.parametrize("rule", ["f1", "max_fpr"])
@pytest.mark.parametrize("seed", range(3))
def test_each_task_gets_a_threshold_of_its_own(seed, rule):
    step = make_step(seed=seed)
    step.output[:, 1] += 1
    step.output.mul_(8).round_().div_(8)  # different scores lie in different bins
    task = GraphMultiLabel(tasks=3, threshold=rule, max_fpr=0.1)
    fitted = task.fit_threshold(summed(task, step))
    assert fitted.threshold[0] < fitted.threshold[1]
    f1, yes = [], fitted.predictions(step.output, ["a", "b", "c"])
    for at, (output, y) in enumerate(zip(step.output.T, step.y.T, strict=True)):
        known = ~y.isnan()
        found, y = torch.as_tensor(yes[f"prediction.{'abc'[at]}"])[known], y[known]
        f1.append(f1_score(y, found))
        if rule == "f1":
            assert f1[-1] == max(f1_score(y, output[known] >= cut) for cut in output[known].unique())
        else:
            false, _, cuts = roc_curve(y, output[known], drop_intermediate=False)
            assert torch.equal(found, output[known] >= min(cuts[false <= 0.1]))
    assert fitted.metrics(summed(task, step))["macro_f1"] == pytest.approx(sum(f1) / 3)
    assert fitted.per_label(summed(task, step))["f1"] == pytest.approx(f1)
    known = ~step.y.isnan()
    answers = torch.stack([torch.as_tensor(column) for name, column in yes.items() if "prediction" in name], dim=1)
    assert fitted.metrics(summed(task, step))["accuracy"] == accuracy_score(step.y[known], answers[known])


def test_a_task_with_one_label_on_validation_keeps_a_half_and_what_is_given_stays():
    step = make_step()
    step.y[:, 1] = 0
    task = GraphMultiLabel(tasks=3, threshold="f1")
    assert task.fit_threshold(summed(task, step)).threshold[1] == 0.5
    given = GraphMultiLabel(tasks=3, threshold=[0.3, 0.5, 0.9])
    assert given.fit_threshold(summed(given, step)) is given
    shares = [float((output >= 0).float().mean()) for output in step.output.T]
    found = [float(column.mean()) for column in given.predictions(step.output, []).values()][:3]
    assert found[0] > shares[0]
    assert found[1] == pytest.approx(shares[1])
    assert found[2] < shares[2]


def summed(task, step):
    return {name: count.sum(0) for name, count in task.counts(step).items()}
