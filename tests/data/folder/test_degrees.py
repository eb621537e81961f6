"""A node's degree is the number of its different neighbours, whatever rows a table has."""

import math

import pyarrow as pa
import pytest

from isthmus.data.folder.degrees import MOST, degree_column


def degrees(ids, source, target, directed=False):
    rows = degree_column(pa.array(ids), pa.array(source), pa.array(target), directed=directed).to_pylist()
    for row in rows:
        assert len(row) == MOST + 2
        assert sorted(row[1:]) == [0.0] * MOST + [1.0]
    assert [row[1:].index(1.0) for row in rows] == [min(round(math.expm1(row[0])), MOST) for row in rows]
    return [round(math.expm1(row[0])) for row in rows]


def test_neighbours_count_once_and_a_loop_not_at_all():
    source, target = ["a", "b", "a", "c", "b"], ["b", "a", "b", "c", "z"]
    assert degrees(["a", "b", "c", "d"], source, target) == [1, 2, 0, 0]
    assert degrees(["a", "b", "c", "d"], source, target, directed=True) == [1, 1, 0, 0]


@pytest.mark.parametrize("count", [MOST, MOST + 1, 500])
def test_high_degrees_share_a_feature_but_not_their_logarithm(count):
    assert degrees([0], [0] * count, list(range(1, count + 1))) == [count]


def test_a_graph_without_edges_has_degrees_of_zero():
    none = pa.array([], pa.int64())
    assert [row[1] for row in degree_column(pa.array([1, 2]), none, none, directed=False).to_pylist()] == [1.0, 1.0]
