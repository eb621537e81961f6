"""How unevenly labels are spread: over the parties, and over the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

RARE = 10
"""A class is rare if the most frequent one has at least this many times its items."""


def rare_classes(counts: Sequence[int]) -> list[int]:
    """The rare classes among those that have items.

    >>> rare_classes([300, 200, 5, 0]), rare_classes([60, 40])
    ([2], [])
    """
    return [at for at, items in enumerate(counts) if 0 < RARE * items <= max(counts)]


def rarest_class(counts: Sequence[int]) -> int | None:
    """The rarest class that has items, if it is rare.

    >>> rarest_class([300, 200, 5, 0]), rarest_class([60, 40])
    (2, None)
    """
    return min(rare_classes(counts), key=counts.__getitem__, default=None)


def rare_settings(counts: Sequence[int]) -> dict[str, Any]:
    """The settings by which a rare class counts, by their paths; of two classes, its average precision is the metric.

    >>> rare_settings([2, 90])
    {'task.metric': 'average_precision', 'task.positive': 0, 'task.class_weights': 'balanced'}
    """
    weights = {"task.class_weights": "balanced"}
    if len(counts) > 2:
        return {"task.metric": "macro_f1", **weights}
    first = {"task.positive": 0} if rarest_class(counts) == 0 else {}  # usually it is the second
    return {"task.metric": "average_precision", **first, **weights}


def rare_class(counts: Sequence[int], names: Sequence[str], remedy: str) -> str:
    """A sentence on the rarest class and what to do about it; empty if it is not rare.

    Arguments:
        names: of the classes, if they are known.
        remedy: how the caller sets `rare_settings`.
    """
    rarest = rarest_class(counts)
    if rarest is None:
        return ""
    share = counts[rarest] / sum(counts)
    name = f"'{names[rarest]}'" if names else f"class {rarest}"
    accuracy = f"a model that never predicts it can have an accuracy of {1 - share:.1%}"
    blind = accuracy if len(counts) == 2 else "accuracy hardly counts it"
    ranked = " (and ROC AUC tells little of it)" if len(counts) == 2 else ""
    judge = "judge by another metric, and weigh classes in the loss"
    return f"{name} is rare, {share:.1%} of the labels: {blind}{ranked}, so {judge}: {remedy}"


def earth_movers(counts: Tensor) -> float:
    """The earth mover's distance between the parties' class distributions and that of the whole.

    It is the sum over parties i of |S_i| / |S| times the sum over classes of |q_i - p|. Party i has |S_i| of the |S|
    items, q_i are its shares of the classes, and p those of all parties together. The distance is 0 if all parties have
    the same mix, and always below 2. An item that several parties hold counts once for each of them.

    Arguments:
        counts: number of labelled items of each class at each party, `[parties, classes]`.

    >>> earth_movers(torch.tensor([[10, 0], [0, 10]]))
    1.0
    >>> earth_movers(torch.tensor([[5, 5], [10, 10]]))
    0.0
    """
    counts = counts.to(torch.float64)
    items = counts.sum()
    if items == 0:
        return 0.0
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True) / items
    return float((counts - expected).abs().sum() / items)
