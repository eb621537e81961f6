"""Which earlier rows of a table belong to each of its rows: the edges by which a prediction reads the past alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.data.matrices import Ints

Key: TypeAlias = np.ndarray[Any, Any]
"""A column with a key in every row: whole numbers, or texts."""
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


def earlier_rows(time: Ints, key: Key, other: Key, last: int) -> Ints:
    """For each row, the `last` latest rows with `other` equal to its `key` that are dated before it.

    The result is `[2, edges]`: an earlier row, and the row that it is earlier than. It is sorted by the second, then
    by time. Rows of the same moment are never joined, so no row reaches itself or a later one along any number of
    edges. Of earlier rows with the same date, the ones further down in the table are the later ones.

    Arguments:
        time: when each row happened, whole numbers of any unit, `[rows]`.
        key: what each row looks for, `[rows]`; a negative number stands for a missing key, which matches nothing.
        other: what each row is found by, in the same form.
        last: how many earlier rows to keep for each row.

    Three transfers leave account 7, and the third one goes back to it:

    >>> time, source, target = np.array([1, 2, 3]), np.array([7, 7, 8]), np.array([8, 9, 7])
    >>> earlier_rows(time, source, source, last=2).tolist()  # the same sender
    [[0], [1]]
    >>> earlier_rows(time, source, target, last=2).tolist()  # the sender received before
    [[0], [2]]
    """
    values, code = np.unique(np.concatenate([key, other]), return_inverse=True)
    if np.issubdtype(values.dtype, np.number):
        code = np.where(values[code] < 0, -1, code)
    moment = np.unique(time, return_inverse=True)[1]
    return np.stack(last_before(code[key.size :], moment, code[: key.size], moment, last))


def histories(time: Ints, keys: Mapping[str, Key], last: int) -> dict[tuple[str, str], Ints]:
    """The edges of `earlier_rows` for every combination of a row's keys, by the pair of their names.

    A transfer has two keys, the sender and the receiver, and so four histories. In `histories(...)["to", "from"]` the
    receiver of a row was the sender of the earlier one.

    >>> time, keys = np.array([1, 2]), {"from": np.array([5, 6]), "to": np.array([6, 7])}
    >>> {names: edges.tolist() for names, edges in histories(time, keys, last=1).items() if edges.size}
    {('from', 'to'): [[0], [1]]}
    """
    pairs = itertools.product(keys, repeat=2)
    return {(own, other): earlier_rows(time, keys[own], keys[other], last) for own, other in pairs}
