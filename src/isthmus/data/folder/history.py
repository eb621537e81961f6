"""Join each row of a table to the last earlier rows that share a value with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
"""A number per row, equal for equal values; negative without a value."""
Ranks = NDArray[np.int64]
"""Places of moments among all different moments, from 0: the codes times the number of moments fit 64 bits."""


def last_before(
    source: Codes, source_time: Ranks, target: Codes, target_time: Ranks, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of rows, sources and targets: for each target the last `most` sources that share its value and are
    strictly earlier. Targets ascend; the sources of a target follow each other in time.

    >>> row, time = np.array([7, 7, 8, 7]), np.array([0, 1, 2, 3])
    >>> sources, targets = last_before(row, time, row, time, most=1)
    >>> sources.tolist(), targets.tolist()
    ([0, 1], [1, 3])
    """
    moments = int(max(source_time.max(initial=-1), target_time.max(initial=-1))) + 1
    known, asking = np.flatnonzero(source >= 0), np.flatnonzero(target >= 0)
    place = source[known] * moments + source_time[known]
    order = np.argsort(place, kind="stable")
    place, rows = place[order], known[order]
    # in the order of the values, because searching for neighbouring values reads neighbouring memory
    wanted = target[asking] * moments + target_time[asking]
    turn = np.argsort(wanted, kind="stable")
    stop, first = np.empty_like(wanted), np.empty_like(wanted)
    stop[turn] = np.searchsorted(place, wanted[turn], side="left")
    first[turn] = np.searchsorted(place, target[asking][turn] * moments, side="left")
    counts = np.minimum(stop - first, most)
    ends = counts.cumsum()
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    return rows[np.repeat(stop - counts, counts) + within], np.repeat(asking, counts)
