"""Areas and average precisions from counts in bins, against scikit-learn on the scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from isthmus.tasks.ranking import (
    areas,
    average_precision_errors,
    average_precisions,
    count_scores,
    precision_at_k,
    ranking_metrics,
    recall_at_fpr,
)


def counted(scores, y):
    return count_scores(scores, y, torch.ones_like(y, dtype=torch.bool), (len(y),))[0]


@pytest.mark.parametrize("seed", range(3))
def test_counts_in_bins_give_scikit_learns_figures(seed):
    source = torch.Generator().manual_seed(seed)
    y = (torch.rand(400, 2, generator=source) < 0.2).long()
    scores = torch.randn(400, 2, generator=source) + y
    found = counted(scores, y)
    for at in range(2):
        assert areas(found)[at].item() == pytest.approx(roc_auc_score(y[:, at], scores[:, at]), abs=0.003)
        due = average_precision_score(y[:, at], scores[:, at])
        assert average_precisions(found)[at].item() == pytest.approx(due, abs=0.02)
    assert ranking_metrics(found)["roc_auc"] == pytest.approx(areas(found).mean().item())


@given(
    output=st.lists(st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e-3, 2e-3, 3e-3]), min_size=2, max_size=40),
    data=st.data(),
)
@settings(max_examples=80)
def test_an_average_precision_is_never_further_off_than_is_said(output, data):
    labels = data.draw(st.lists(st.booleans(), min_size=len(output), max_size=len(output)))
    y = torch.tensor([[1], [0], *([int(label)] for label in labels[2:])])
    scores = torch.tensor(output)[:, None]
    found = counted(scores, y)
    off = abs(average_precisions(found).item() - average_precision_score(y, scores))
    assert off <= average_precision_errors(found).item() + 1e-9


def test_the_error_of_an_average_precision_is_reached():
    y, scores = torch.tensor([[1], [1], [0], [0]]), torch.tensor([[0.003], [0.002], [0.001], [0.0]])
    for signed in (scores, -scores + 0.003):  # all in one bin, the positives first or last
        exact = average_precision_score(y, signed)
        assert exact == pytest.approx(1.0 if signed is scores else (1 / 3 + 2 / 4) / 2)
        off = abs(average_precisions(counted(signed, y)).item() - exact)
        assert off <= average_precision_errors(counted(signed, y)).item() + 1e-12
    assert average_precision_errors(counted(scores, y)).item() == pytest.approx(0.5)
    apart = torch.tensor([[4.0], [1.0], [-1.0], [-4.0]])  # each in a bin of its own
    assert average_precision_errors(counted(apart, y)).item() == 0.0


def test_scores_within_one_bin_are_ties():
    y = torch.tensor([[0], [1], [1], [0]])
    scores = torch.full((4, 1), 0.5)
    assert areas(counted(scores, y)).item() == roc_auc_score(y, scores)
    assert average_precisions(counted(scores, y)).item() == average_precision_score(y, scores)


def test_one_class_alone_has_no_figures():
    found = counted(torch.randn(5, 1), torch.ones(5, 1, dtype=torch.long))
    assert areas(found).isnan().all()
    assert average_precisions(found).isnan().all()
    assert ranking_metrics(found) == {}


def rare(seed, items=20_000, share=0.01):
    """Scores and labels of which few are positive, and scores on the edges of bins, where nothing is rounded."""
    source = torch.Generator().manual_seed(seed)
    y = (torch.rand(items, 1, generator=source) < share).long()
    scores = torch.randn(items, 1, generator=source) - 5 + 3 * y
    step = (512 * scores / (4 + scores.abs())).floor() / 512
    return scores, 4 * step / (1 - step.abs()) + 1e-6, y


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_recall_at_a_false_positive_rate_is_scikit_learns_and_never_too_large(seed, rate):
    scores, rounded, y = rare(seed)
    due = {}
    for name, values in {"exact": scores, "rounded": rounded}.items():
        fpr, tpr, _ = roc_curve(y, values, drop_intermediate=False)
        due[name] = tpr[fpr <= rate].max()
    found = recall_at_fpr(counted(scores, y), rate).item()
    assert found == pytest.approx(due["rounded"])
    assert due["exact"] - 0.05 < found <= due["exact"] + 1e-12


@pytest.mark.parametrize("k", [1, 10, 100, 50_000])
@pytest.mark.parametrize("seed", range(3))
def test_precision_of_the_highest_scores_is_that_of_the_sorted_list(seed, k):
    scores, _, y = rare(seed)
    ranked = y.flatten()[scores.flatten().argsort(descending=True)]
    taken = min(k, len(y))
    cells = counted(scores, y)[0]
    higher = cells.sum(0).flip(0).cumsum(0)
    bin_of_last = cells.sum(0).flip(0)[(higher >= taken).nonzero()[0]].item()
    error = 0 if taken == len(y) else min(1, bin_of_last / taken)
    assert precision_at_k(counted(scores, y), k).item() == pytest.approx(
        ranked[:taken].double().mean().item(), abs=error
    )
    if k >= 100:
        assert error < 0.3
    ties = torch.zeros_like(scores)
    assert precision_at_k(counted(ties, y), k).item() == pytest.approx(y.double().mean().item())


def test_highest_scores_of_one_class_or_of_nothing():
    positives = counted(torch.randn(5, 1), torch.ones(5, 1, dtype=torch.long))
    assert recall_at_fpr(positives, 0.5).isnan().all()
    assert precision_at_k(positives, 3).tolist() == [1.0]
    nothing = torch.zeros_like(positives)
    assert recall_at_fpr(nothing, 0.5).isnan().all()
    assert precision_at_k(nothing, 3).isnan().all()
