"""Features of nodes that have none: how many neighbours each has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isthmus.data.folder.arrow import to_plain

NAME = "degree"
MOST = 31
"""Degrees are one-hot up to this one; higher ones share its feature."""
DECLARATION = {"kind": "vector", "width": MOST + 2, "structural": True}
"""What `party.toml` says of the column."""


def degree_column(ids: Any, source: Any, target: Any, *, directed: bool) -> Any:
    """Return a vector for each node: the logarithm of 1 + its degree, then its degree one-hot.

    The degree is the number of different neighbours, at the party or across its border; with directed edges, of those
    from which an edge arrives.

    >>> ids, source, target = pa.array([7, 8, 9]), pa.array([7, 8, 7]), pa.array([8, 7, 4])
    >>> [row[1:4] for row in degree_column(ids, source, target, directed=False).to_pylist()]
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    degree = _degrees(to_plain(ids), to_plain(source), to_plain(target), directed)
    features = np.zeros((degree.size, MOST + 2))
    features[:, 0] = np.log1p(degree)
    features[np.arange(degree.size), 1 + degree.clip(max=MOST)] = 1.0
    return pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), MOST + 2)


def _degrees(ids: Any, source: Any, target: Any, directed: bool) -> NDArray[np.int64]:
    known = pa.concat_arrays([ids, source, target]).dictionary_encode().indices.fill_null(-1)
    node, tail, head = np.split(np.asarray(known, dtype=np.int64), [len(ids), len(ids) + len(source)])
    if not directed:
        tail, head = np.concatenate([tail, head]), np.concatenate([head, tail])
    edges = np.unique(np.stack([tail, head])[:, tail != head], axis=1)
    return np.bincount(edges[1][edges.min(0) >= 0], minlength=int(known.to_numpy().max(initial=0)) + 1)[node]
