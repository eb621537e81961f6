"""Which earlier rows of a table belong to each of its rows: the edges by which a prediction reads the past alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from isthmus.data.matrices import Ints

Key: TypeAlias = np.ndarray[Any, Any]
"""A column with a key in every row: whole numbers, or texts."""


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
    rows = np.arange(time.size)
    values, code = np.unique(np.concatenate([key, other]), return_inverse=True)
    wanted, held = code[: key.size], code[key.size :]
    moments, moment = np.unique(time, return_inverse=True)
    order = np.lexsort((rows, moment, held))
    place = held[order] * moments.size + moment[order]
    stop = np.searchsorted(place, wanted * moments.size + moment)
    start = np.maximum(np.searchsorted(place, wanted * moments.size), stop - last)
    if np.issubdtype(values.dtype, np.number):
        stop = np.where(key < 0, start, stop)
    count = stop - start
    target = np.repeat(rows, count)
    offset = np.arange(target.size) - np.repeat(count.cumsum() - count, count)
    return np.stack([order[np.repeat(start, count) + offset], target])


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
