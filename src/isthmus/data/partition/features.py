"""Cuts that look at the features of nodes."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_matrix
from torch import Tensor

from isthmus.data import rows
from isthmus.data.partition.base import Partition, fill_empty_parties
from isthmus.data.party import Level
from isthmus.data.pool import Pool, numpy_generator, rank_within

AT_ONCE = 100_000
"""More nodes than this are clustered by k-means on mini-batches, which looks at some of them in every step."""


class KMeans(Partition):
    """Nodes with similar features together: clusters found by k-means, one for each party, of whatever size.

    Nodes without any feature, such as papers without a known word, go out evenly: a cluster around them would draw in
    nearly all others, as the origin is nearer to a sparse row than any other row is. Features are taken as they are, so
    it matters whether they were normalised before. Above 100,000 nodes k-means runs on mini-batches.
    """

    name: ClassVar[str] = "k-means"
    levels: ClassVar[tuple[Level, ...]] = ("node",)

    n_init: int = Field(1, ge=1)
    """Starts with other centres each time; the clustering with the least spread is taken."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        generator = numpy_generator(seed, "partition")
        x = _matrix(pool.party.graph.x)
        told = np.asarray(abs(x).sum(axis=1)).ravel() > 0
        owner = torch.zeros(x.shape[0], dtype=torch.long)
        owner[~told] = rank_within(owner[~told], generator) % parties
        if told.any():
            owner[told] = self._clusters(x[told], parties, int(generator.integers(2**31)))
        return fill_empty_parties(owner, parties)

    def _clusters(self, x: Any, parties: int, seed: int) -> Tensor:
        """For every row its cluster; empty ones where rows are fewer, or fewer differ, than there are parties."""
        from sklearn import cluster, exceptions  # slow to import, and only needed here
        from threadpoolctl import threadpool_limits

        options = {"n_clusters": min(parties, x.shape[0]), "n_init": self.n_init, "random_state": seed}
        large = x.shape[0] > AT_ONCE
        means = cluster.MiniBatchKMeans(batch_size=4096, **options) if large else cluster.KMeans(**options)
        with threadpool_limits(1), warnings.catch_warnings():  # several threads add up in an order of their own
            warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
            found: NDArray[np.int32] = means.fit_predict(x)
        return torch.from_numpy(found).long()


def _matrix(x: Tensor) -> Any:
    """Features for sklearn, sparse as they were."""
    if not rows.is_sparse(x):
        return x.numpy()
    return csr_matrix((x.values().numpy(), x.col_indices().int().numpy(), x.crow_indices().int().numpy()), x.shape)
