"""The distance of the parties' labels from those of the whole."""

from __future__ import annotations

import torch
from torch import Tensor


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
