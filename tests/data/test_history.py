"""Earlier rows by key, against a loop over all pairs of rows."""

import numpy as np
import pytest

from isthmus.data.history import earlier_rows, histories, last_before


def by_loops(time, key, other, last):
    edges = []
    for row in range(len(time)):
        before = [each for each in range(len(time)) if other[each] == key[row] and time[each] < time[row]]
        if isinstance(key[row], str) or key[row] >= 0:
            edges += [(each, row) for each in sorted(before, key=lambda at: (time[at], at))[-last:]]
    return edges


@pytest.mark.parametrize("last", [1, 3, 100])
@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_edges_are_those_of_a_loop_over_all_pairs(seed, texts, last):
    generator = np.random.default_rng(seed)
    time = generator.integers(-5, 12, size=60) * 1_000_000_007
    key, other = generator.integers(-1, 8, size=(2, 60))
    if texts:
        key, other = key.astype(str), other.astype(str)
    found = earlier_rows(time, key, other, last)
    assert [tuple(edge) for edge in found.T.tolist()] == by_loops(time, key.tolist(), other.tolist(), last)


def test_a_transfer_has_four_histories_and_none_reaches_a_row_of_the_same_moment_or_later():
    generator = np.random.default_rng(0)
    time, sender, receiver = generator.integers(6, size=(3, 200))
    found = histories(time, {"from": sender, "to": receiver}, last=4)
    assert list(found) == [("from", "from"), ("from", "to"), ("to", "from"), ("to", "to")]
    columns = {"from": sender, "to": receiver}
    for (own, other), (earlier, row) in found.items():
        assert len(row) > 100
        assert (time[earlier] < time[row]).all()
        assert (columns[other][earlier] == columns[own][row]).all()
        assert np.bincount(row).max() == 4


def test_a_missing_key_matches_nothing_and_a_table_may_be_empty():
    nothing = np.array([-1, -1])
    assert earlier_rows(np.array([0, 1]), nothing, nothing, last=2).shape == (2, 0)
    empty = np.zeros(0, dtype=np.int64)
    assert earlier_rows(empty, empty, empty, last=2).shape == (2, 0)


def searched(source, source_time, target, target_time, most):
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
def test_rows_of_two_tables_are_those_of_a_search_row_by_row(most):
    draw = np.random.default_rng(most)
    source, target = draw.integers(-1, 5, 60), draw.integers(-1, 5, 40)
    source_time = draw.permutation(60)
    target_time = draw.integers(0, 60, 40)
    sources, targets = last_before(source, source_time, target, target_time, most)
    assert set(zip(sources.tolist(), targets.tolist(), strict=True)) == searched(
        source, source_time, target, target_time, most
    )


def test_rows_of_two_tables_of_the_same_moment_are_not_joined():
    same = np.zeros(5, dtype=np.int64)
    assert last_before(same, same, same, same, 3)[0].size == 0


def test_tables_without_rows_have_no_edges():
    none = np.zeros(0, dtype=np.int64)
    assert last_before(none, none, np.array([1]), np.array([4]), 3)[0].size == 0
    assert last_before(np.array([1]), np.array([4]), none, none, 3)[0].size == 0
