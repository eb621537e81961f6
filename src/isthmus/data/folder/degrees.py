"""Features of nodes that have none: how many different neighbours each has."""

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
    return pa.FixedSizeListArray.from_arrays(pa.array(encode(degree).ravel()), MOST + 2)


def encode(degree: NDArray[np.int64]) -> NDArray[np.float64]:
    """The features of nodes with these degrees, `[nodes, MOST + 2]`."""
    features = np.zeros((degree.size, MOST + 2))
    features[:, 0] = np.log1p(degree)
    features[np.arange(degree.size), 1 + degree.clip(max=MOST)] = 1.0
    return features


def decode(features: NDArray[Any]) -> NDArray[np.int64] | None:
    """The degrees of nodes with these features; None if they say something else.

    >>> decode(encode(np.array([0, 3, 400]))).tolist()
    [0, 3, 400]
    """
    if features.shape[1] != MOST + 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        degree = np.expm1(features[:, 0].astype(np.float64)).round()
    if not ((degree >= 0) & (degree < 2**53)).all():
        return None
    found = degree.astype(np.int64)
    return found if np.allclose(features, encode(found)) else None


def _degrees(ids: Any, source: Any, target: Any, directed: bool) -> NDArray[np.int64]:
    known = pa.concat_arrays([ids, source, target]).dictionary_encode().indices.fill_null(-1)
    node, tail, head = np.split(np.asarray(known, dtype=np.int64), [len(ids), len(ids) + len(source)])
    if not directed:
        tail, head = np.concatenate([tail, head]), np.concatenate([head, tail])
    edges = np.unique(np.stack([tail, head])[:, tail != head], axis=1)
    return np.bincount(edges[1][edges.min(0) >= 0], minlength=int(known.to_numpy().max(initial=0)) + 1)[node]
