import numpy as np
import pytest

from isthmus.tasks.coordinates import tsne


def test_neighbours_stay_together():
    source = np.random.default_rng(0)
    z = np.concatenate([source.normal(0, 0.1, (15, 8)), source.normal(5, 0.1, (15, 8))])
    at = tsne(z)
    assert (at.shape, at.dtype) == ((30, 2), np.float32)
    within = max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (at[:15], at[15:]))
    assert np.linalg.norm(at[:15].mean(0) - at[15:].mean(0)) > 2 * within
    assert np.array_equal(at, tsne(z))


@pytest.mark.parametrize("items", [0, 3])
def test_too_few_items_are_all_at_the_origin(items):
    assert np.array_equal(tsne(np.ones((items, 5))), np.zeros((items, 2)))
