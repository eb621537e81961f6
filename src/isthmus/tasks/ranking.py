r"""How well scores rank items, from counts that parties can add up.

Parties cannot add up areas under curves, but they can add up how many scores of either class lie in fixed bins: 1,024
even steps of z / (4 + \|z\|) for a logit z. Unlike the logistic function this separates scores far from 0 too, in steps
of 1/128 at z = 0 and 1/20 at z = 6. Scores within one bin are ties; that is the only approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from isthmus.data import rows

BINS = 1024
"""Number of bins, even: the two in the middle meet at a score of 0."""
WIDTH = 4.0
"""Half of the bins are for scores between -WIDTH and WIDTH."""
RANKING = ("roc_auc", "average_precision")
"""Metrics that follow from these counts."""
ALERTS = ("recall_at_fpr", "precision_at_k")
"""Metrics of the highest scores alone, for two classes, that follow from these counts."""
PRECISION_ERROR = "average_precision_error"
"""Of each class by how much its average precision can be off, at most, because scores are counted in bins."""
BORDERS = (0, *range(BINS // 20 + 1, BINS - BINS // 20), BINS)
"""Where thresholds may lie: where bins begin whose logit is within 36, beyond which doubles have no probabilities below
1; and below and above all."""
Rule = Literal["f1", "max_fpr"]
"""How validation items choose a threshold, see `best_cut`."""
OF_ONE_CLASS = ("average_precision", *ALERTS)
"""Metrics that are not the same for the other one of two classes."""


def count_scores(scores: Tensor, y: Tensor, known: Tensor, sizes: Sequence[int]) -> Tensor:
    """How many scores of either class, negatives first, lie in each bin: `[parties, tasks, 2, bins]`.

    Arguments:
        scores, y, known: logits, whether they are of a positive, and which of them count, all `[items, tasks]`.
        sizes: number of items of each party.
    """
    tasks = scores.size(1)
    item, task = known.nonzero(as_tuple=True)
    cell = (rows.party_of_rows(sizes, scores.device)[item] * tasks + task) * 2 + y[known].long()
    counts = torch.zeros(len(sizes), tasks, 2, BINS, dtype=torch.int32, device=scores.device)
    counts.view(-1).index_add_(0, cell * BINS + bins(scores[known]), torch.ones_like(cell, dtype=torch.int32))
    return counts


def areas(scores: Tensor) -> Tensor:
    r"""Areas under ROC curves, `[...]`; NaN where a class has no scores.

    With :math:`p_b` and :math:`n_b` the shares of the positive and negative scores in bin b,

    .. math:: \mathrm{AUC} = \sum_b p_b \left(\tfrac{1}{2} n_b + \sum_{a<b} n_a\right),

    so a pair within one bin counts half, like a tie. The error is at most :math:`\frac{1}{2}\sum_b p_b n_b`, half the
    share of the pairs within one bin. For 400 items, a tenth of them positive, the mean error is 0.0002 if the logits
    of a class have a standard deviation of 1. If it is 0.05, as in an untrained model, the error is 0.002 around a
    logit of 0 and 0.005 around -3.

    Arguments:
        scores: as of `count_scores`, `[..., 2, bins]`.
    """
    negative, positive = scores.cpu().double().unbind(-2)
    below = negative.cumsum(-1) - negative / 2
    return (positive * below).sum(-1) / (positive.sum(-1) * negative.sum(-1))


def average_precisions(scores: Tensor) -> Tensor:
    r"""Average precisions, `[...]`; NaN where a class has no scores.

    .. math:: \mathrm{AP} = \sum_b p_b \frac{P_b}{P_b + N_b},

    where :math:`p_b` is the share of the positives in bin b, and :math:`P_b` and :math:`N_b` are the numbers of
    positive and negative scores in this bin and above.

    Arguments:
        scores: as of `count_scores`, `[..., 2, bins]`.
    """
    negative, positive = scores.cpu().double().unbind(-2)
    true, false = (each.flip(-1).cumsum(-1).flip(-1) for each in (positive, negative))
    precision = true / (true + false).clamp(min=1)
    found = (positive * precision).sum(-1) / positive.sum(-1)
    return found.masked_fill(negative.sum(-1) == 0, torch.nan)


def average_precision_errors(scores: Tensor) -> Tensor:
    r"""By how much `average_precisions` can be off, at most, `[...]`; NaN where a class has no scores.

    In a bin with P positive and N negative scores, above which are T positives and F negatives, the exact precisions
    are highest if all positives come first, as a tie, and lowest if they come last, one by one:

    .. math:: \sum_{i=1}^{P} \frac{T + i}{T + F + N + i} \le \text{sum} \le P \frac{T + P}{T + P + F}.

    Arguments:
        scores: as of `count_scores`, `[..., 2, bins]`.
    """
    negative, positive = scores.cpu().double().unbind(-2)
    false, true = above(scores)[..., 1:].unbind(-2)
    last = true + false + negative  # the sum of (T + i) / (last + i) is P - (last - T) times that of 1 / (last + i)
    inverse = torch.digamma(last + positive + 1) - torch.digamma(last + 1)
    low = (positive - (last - true) * inverse).sum(-1)
    high = (positive * (true + positive) / (true + positive + false).clamp(min=1)).sum(-1)
    found = average_precisions(scores)
    return torch.maximum(found - low / positive.sum(-1), high / positive.sum(-1) - found)


def recall_at_fpr(scores: Tensor, rate: float) -> Tensor:
    """The largest recall of a threshold with a false-positive rate of at most `rate`, `[...]`; NaN without a class.

    Thresholds lie between bins, so the result is never too large. It is too small by at most the share of the positives
    in the one bin in which the rate is exceeded.

    Arguments:
        scores: as of `count_scores`, `[..., 2, bins]`.
    """
    false, true = above(scores).unbind(-2)
    allowed = false <= rate * false[..., :1] * (1 + 1e-12)  # a product such as 0.001 * 3000 is a little below 3
    recall = torch.where(allowed, true, 0).amax(-1) / true[..., 0]
    return recall.masked_fill(false[..., 0] == 0, torch.nan)


def precision_at_k(scores: Tensor, k: int) -> Tensor:
    """The share of positives among the `k` highest scores, or among all if there are fewer, `[...]`; NaN without any.

    Of the bin that the k-th score lies in, as many items count as are still to be taken, with the bin's mean share of
    positives. This is the mean over random orders of these ties. The error is at most the share of the `k` items that
    are taken from this bin.

    Arguments:
        scores: as of `count_scores`, `[..., 2, bins]`.
    """
    cells = scores.cpu().double()
    higher = above(scores)[..., 1:].sum(-2)
    here = cells.sum(-2)
    taken = (k - higher).clamp(min=0).minimum(here)
    found = (taken * cells[..., 1, :] / here.clamp(min=1)).sum(-1)
    return found / taken.sum(-1)


def above(scores: Tensor) -> Tensor:
    """How many scores of either class lie in each bin and above; a last column has none: `[..., 2, bins + 1]`."""
    sums = scores.cpu().double().flip(-1).cumsum(-1).flip(-1)
    return torch.cat([sums, torch.zeros_like(sums[..., :1])], dim=-1)


def best_cut(scores: Tensor, rule: Rule, max_fpr: float) -> int | None:
    """The bin from which on scores count as positive: the best of `BORDERS`; None where a class has no scores.

    Arguments:
        scores: as of `count_scores`, `[2, bins]`.
        rule: f1, the best F1 of the positives; max_fpr, the lowest border with at most this false-positive rate.
    """
    counts = above(scores)
    negatives, positives = counts[:, 0].tolist()
    if not negatives or not positives:
        return None
    false, true = counts[:, BORDERS].unbind(0)
    if rule == "max_fpr":
        return BORDERS[int((false <= max_fpr * negatives * (1 + 1e-12)).nonzero()[0])]
    f1 = 2 * true / (true + false + positives)
    best = (f1 == f1.max()).nonzero().flatten()
    return BORDERS[int(best[(best - torch.arange(len(best)) == best[0]).sum() // 2])]  # the middle of a gap of scores


def probability(cut: int) -> float:
    """The probability of the logit where one of the `BORDERS` lies.

    >>> probability(BINS // 2), round(probability(BINS // 4), 3), probability(BINS)
    (0.5, 0.018, 1.0)
    """
    step = cut / (BINS // 2) - 1
    return 1 / (1 + math.exp(-WIDTH * step / (1 - abs(step)))) if abs(step) < 1 else float(step > 0)


def cut_at(threshold: float) -> int:
    """The one of the `BORDERS` that is nearest to a probability.

    >>> cut_at(0.5), cut_at(1.0), all(cut_at(probability(cut)) == cut for cut in BORDERS)
    (512, 1024, True)
    """
    if not 0 < threshold < 1:
        return BINS if threshold else 0
    logit = math.log(threshold / (1 - threshold))
    nearest = round(BINS // 2 * (1 + logit / (WIDTH + abs(logit))))
    return min(max(nearest, BORDERS[1]), BORDERS[-2])


def ranking_metrics(scores: Tensor) -> dict[str, float]:
    """ROC AUC and average precision, each a mean over the tasks that have both classes: nothing if none has.

    Arguments:
        scores: as of `count_scores`, `[tasks, 2, bins]`.
    """
    found = {"roc_auc": areas(scores), "average_precision": average_precisions(scores)}
    both = ~found["roc_auc"].isnan()
    return {name: float(values[both].mean()) for name, values in found.items()} if bool(both.any()) else {}


def bins(scores: Tensor) -> Tensor:
    """The bin of every score. NaN goes to the middle bin; the loss names its party."""
    finite = scores.detach().nan_to_num(nan=0.0)
    place = (BINS // 2) * (finite / (WIDTH + finite.abs()))
    return (place.floor().long() + BINS // 2).clamp(0, BINS - 1)
