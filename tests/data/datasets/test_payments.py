"""Columns of payments and of the edges between them."""

import numpy as np
import pytest

from isthmus.data.datasets.payments import features, history


def test_edges_say_how_long_ago_and_how_much_more():
    time, amount = np.array([0, 7200]), np.array([100.0, 50.0])
    found = history(time, np.array([1, 2]), np.array([2, 3]), amount, last=2)
    edges, columns = found["payment", "received by its sender", "payment"]
    assert edges.tolist() == [[0], [1]]
    assert columns.flatten().tolist() == pytest.approx([np.log(3) / 4, np.log(0.5)])
    assert sum(edges.size(1) for edges, _ in found.values()) == 1


def test_features_of_a_payment():
    time = np.array([6 * 3600, 5 * 86400 + 12 * 3600])
    x = features(time, np.exp([4.0, 6.0]), np.array([False, True]), (np.array([1, -1]), 2))
    assert x == pytest.approx(np.array([[0, 1, 0, 0, 0, 0, 1], [1, 0, -1, 1, 1, 0, 0]]), abs=1e-6)
