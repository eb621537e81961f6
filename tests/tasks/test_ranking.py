"""Areas and average precisions from counts in bins, against scikit-learn on the scores."""

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from isthmus.tasks.ranking import areas, average_precisions, count_scores, ranking_metrics


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
