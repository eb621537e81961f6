"""Each row is joined to the last earlier rows that share its value."""

import numpy as np
import pytest

from isthmus.data.folder.history import last_before


def one_by_one(source, source_time, target, target_time, most):
    found = set()
    for at, (value, time) in enumerate(zip(target, target_time, strict=True)):
        earlier = [
            (source_time[other], other)
            for other in range(len(source))
            if value >= 0 and source[other] == value and source_time[other] < time
        ]
        found |= {(other, at) for _, other in sorted(earlier)[-most:]} if most else set()
    return found


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_it_equals_a_search_row_by_row(most):
    draw = np.random.default_rng(most)
    source, target = draw.integers(-1, 5, 60), draw.integers(-1, 5, 40)
    source_time = draw.permutation(60)
    target_time = draw.integers(0, 60, 40)
    sources, targets = last_before(source, source_time, target, target_time, most)
    assert set(zip(sources.tolist(), targets.tolist(), strict=True)) == one_by_one(
        source, source_time, target, target_time, most
    )


def test_rows_of_the_same_moment_are_not_joined():
    same = np.zeros(5, dtype=np.int64)
    assert last_before(same, same, same, same, 3)[0].size == 0


def test_tables_without_rows_have_no_edges():
    none = np.zeros(0, dtype=np.int64)
    assert last_before(none, none, np.array([1]), np.array([4]), 3)[0].size == 0
    assert last_before(np.array([1]), np.array([4]), none, none, 3)[0].size == 0
