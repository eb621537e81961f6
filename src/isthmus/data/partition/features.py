"""Cuts by the features of nodes, or by their degree."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_matrix
from torch import Tensor

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.partition.base import Partition, fill_empty_parties
from isthmus.data.pool import Pool, numpy_generator, rank_within

FULL_BATCH = 100_000
"""Above this number of nodes k-means runs on mini-batches."""


class KMeans(Partition):
    """Nodes with similar features: clusters of any size found by k-means, one for each party.

    Nodes without any feature, such as papers without a known word, are spread evenly: a cluster around them would
    attract nearly all others, as the origin is nearer to a sparse row than other rows are. Features are not normalised
    first. Above 100,000 nodes k-means runs on mini-batches.
    """

    name: ClassVar[str] = "k-means"
    levels: ClassVar[tuple[Level, ...]] = ("node",)

    n_init: int = Field(1, ge=1)
    """Number of runs with different initial centres; the clustering with the lowest inertia is used."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        generator = numpy_generator(seed, "partition")
        x = _matrix(pool.party.graph.x)
        has_features = np.asarray(abs(x).sum(axis=1)).ravel() > 0
        owner = torch.zeros(x.shape[0], dtype=torch.long)
        owner[~has_features] = rank_within(owner[~has_features], generator) % parties
        if has_features.any():
            owner[has_features] = clusters_of(x[has_features], parties, int(generator.integers(2**31)), self.n_init)
        return fill_empty_parties(owner, parties)


def clusters_of(x: Any, count: int, seed: int, n_init: int = 1) -> Tensor:
    """The cluster of every row by k-means; some are empty if there are fewer different rows than clusters."""
    from sklearn import cluster, exceptions  # slow to import, and only needed here
    from threadpoolctl import threadpool_limits

    options = {"n_clusters": min(count, x.shape[0]), "n_init": n_init, "random_state": seed}
    large = x.shape[0] > FULL_BATCH
    means = cluster.MiniBatchKMeans(batch_size=4096, **options) if large else cluster.KMeans(**options)
    quiet = warnings.catch_warnings(action="ignore", category=exceptions.ConvergenceWarning)
    with threadpool_limits(1), quiet:  # with several threads the order of sums varies
        clusters: NDArray[np.int32] = means.fit_predict(x)
    return torch.from_numpy(clusters).long()


class Sorted(Partition):
    """Equally many items for every party, sorted by degree or by features: graphs by the mean of their nodes."""

    name: ClassVar[str] = "sorted"

    by: Literal["degree", "features"] = "degree"
    """Sort by edges per node, or by the mean of all features."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        party = pool.party
        if self.by == "degree":
            of_nodes = torch.bincount(party.graph.edge_index[1], minlength=party.nodes).double()
        else:
            of_nodes = torch.from_numpy(np.asarray(_matrix(party.graph.x).mean(axis=1)).ravel()).double()
        value = of_nodes
        if party.level == "graph":
            value = rows.mean_per_party(of_nodes, torch.bincount(party.graph.batch, minlength=party.items).tolist())
        drawn = torch.from_numpy(numpy_generator(seed, "partition").permutation(party.items))  # among equal ones
        order = drawn[value[drawn].argsort(stable=True)]
        owner = torch.empty_like(order)
        owner[order] = torch.arange(party.items) * parties // party.items
        return owner


def _matrix(x: Tensor) -> Any:
    """Features for sklearn, sparse if they were."""
    if not rows.is_sparse(x):
        return x.numpy()
    return csr_matrix((x.values().numpy(), x.col_indices().int().numpy(), x.crow_indices().int().numpy()), x.shape)
