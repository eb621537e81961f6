"""Cuts of one graph into communities."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from isthmus.data.level import Level
from isthmus.data.partition.base import Partition, fill_empty_parties, pack_groups
from isthmus.data.partition.features import clusters_of
from isthmus.data.partition.labels import classes_of
from isthmus.data.party import Party
from isthmus.data.pool import Pool, numpy_generator
from isthmus.errors import missing_extra

Algorithm = Literal["kway", "recursive"]
"""How METIS cuts: into all parts at once, or in two again and again."""


class Louvain(Partition):
    """Communities found by the Louvain method, packed into parties of similar size.

    It takes about ten seconds for 250,000 edges, and a minute for a million.
    """

    name: ClassVar[str] = "louvain"
    levels: ClassVar[tuple[Level, ...]] = ("node",)

    resolution: float = Field(1.0, gt=0)
    """Above 1 for smaller communities, below 1 for larger ones."""
    delta: int | None = Field(None, ge=0)
    """Cut communities into pieces of at most N/K - delta nodes, N nodes and K parties, and fill one party after another
    up to N/K + delta; a piece that fits nowhere goes to the smallest party. By default as few communities as possible
    are cut, and each goes to the smallest party."""
    by_labels: bool = False
    """Give each party the communities with the same mix of labels (k-means), for parties of any size whose labels
    differ: OpenFGL's Louvain+."""

    @model_validator(mode="after")
    def _packs_in_one_way(self) -> Self:
        if self.by_labels and self.delta is not None:
            raise ValueError("delta has no effect with by_labels: leave one of them out")
        return self

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        communities = self._communities(pool.party, seed)
        if self.by_labels:
            found = torch.empty(pool.party.items, dtype=torch.long)
            for at, community in enumerate(_split_largest(communities, parties)):
                found[community] = at
            return _alike(self, found, pool, parties, seed)
        if self.delta is not None:
            return self._packed(communities, parties, pool.party.items, self.delta)
        return pack_groups(_split_largest(communities, parties), parties, pool.party.items)

    def _communities(self, party: Party, seed: int) -> list[list[int]]:
        import networkx  # slow to import, and only needed here

        graph = networkx.Graph()
        graph.add_nodes_from(range(party.nodes))
        graph.add_edges_from(party.graph.edge_index.t().tolist())
        communities = networkx.community.louvain_communities(
            graph, resolution=self.resolution, seed=int(numpy_generator(seed, "partition").integers(2**31))
        )
        position = _bandwidth_order(party)  # so that a community that must be split falls into connected halves
        return [sorted(community, key=position.__getitem__) for community in communities]

    def _packed(self, communities: Sequence[list[int]], parties: int, nodes: int, delta: int) -> Tensor:
        """The owner of every node, by pieces of communities in the order of node ids."""
        share = nodes // parties
        if delta >= share:
            raise self.error(f"delta = {delta} must be below {share}, the nodes of a party: lower it")
        whole = [sorted(community) for community in sorted(communities, key=min)]
        pieces = [each[at : at + share - delta] for each in whole for at in range(0, len(each), share - delta)]
        owner, sizes, turn = torch.empty(nodes, dtype=torch.long), [0] * parties, 0
        for piece in sorted(pieces, key=len, reverse=True):
            order = [*range(turn, parties), *range(turn)]
            room = (at for at in order if sizes[at] < share and sizes[at] + len(piece) <= share + delta)
            turn = next(room, min(range(parties), key=sizes.__getitem__))
            owner[piece] = turn
            sizes[turn] += len(piece)
        return fill_empty_parties(owner, parties)


class Metis(Partition):
    """Parts of similar size with few edges between them, by METIS; needs the extra `metis`."""

    name: ClassVar[str] = "metis"
    levels: ClassVar[tuple[Level, ...]] = ("node",)

    algorithm: Algorithm | None = None
    """Cut into all parts at once, or in two again and again; by default the second for up to 8 parties."""
    communities: int = Field(0, ge=0)
    """Cut into so many communities, and give each party those with the same mix of labels (k-means), for parties of any
    size whose labels differ: OpenFGL's METIS+ has 100. 0: a part for each party."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        drawn = int(numpy_generator(seed, "partition").integers(2**31))
        what, whole = "partition 'metis'", pool.party
        if 0 < self.communities < parties:
            raise self.error(f"communities = {self.communities} are too few for {parties} parties: ask for more")
        parts = min(self.communities or parties, whole.items)
        found = metis_parts(whole.graph.edge_index, whole.items, parts, drawn, what, algorithm=self.algorithm)
        if self.communities:
            return _alike(self, found, pool, parties, seed)
        return found if parties == 1 else fill_empty_parties(found, parties)


def metis_parts(
    edge_index: Tensor, nodes: int, parts: int, seed: int, what: str, *, algorithm: Algorithm | None = None
) -> Tensor:
    """The part of every node in METIS' cut of a graph; `what` needs it."""
    try:
        import pymetis
    except ImportError as error:
        raise missing_extra("pymetis", "metis", what) from error
    if parts == 1:
        return torch.zeros(nodes, dtype=torch.long)
    source, target = edge_index.numpy()
    no_loop = source != target  # METIS allows no loops
    ends = np.concatenate([source[no_loop], target[no_loop]]), np.concatenate([target[no_loop], source[no_loop]])
    adjacency = coo_array((np.ones(ends[0].size, dtype=np.int8), ends), shape=(nodes, nodes)).tocsr()
    options = pymetis.Options(seed=seed % 2**31)
    graph = pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices)
    recursive = None if algorithm is None else algorithm == "recursive"
    _, part = pymetis.part_graph(parts, graph, recursive=recursive, options=options)
    return torch.tensor(part)


def _alike(partition: Partition, community: Tensor, pool: Pool, parties: int, seed: int) -> Tensor:
    """The owner of every node: communities whose shares of classes are alike by k-means go to one party."""
    y, classes = classes_of(partition, pool)
    _, community = community.unique(return_inverse=True)
    counts = torch.zeros(int(community.max()) + 1, classes + 1, dtype=torch.double)
    counts.index_put_((community, y), torch.ones(len(y), dtype=torch.double), accumulate=True)
    shares = counts / counts.sum(1, keepdim=True)
    drawn = int(numpy_generator(seed, "mix of labels").integers(2**31))
    return fill_empty_parties(clusters_of(shares.numpy(), parties, drawn)[community], parties)


def _bandwidth_order(party: Party) -> list[int]:
    """The position of each node in an order that keeps neighbours close."""
    source, target = party.graph.edge_index.numpy()
    adjacency = coo_array((np.ones(source.size), (source, target)), shape=(party.nodes, party.nodes)).tocsr()
    positions: list[int] = np.argsort(reverse_cuthill_mckee(adjacency)).tolist()
    return positions


def _split_largest(communities: Sequence[list[int]], wanted: int) -> list[list[int]]:
    """Halve the largest community until there are as many as wanted."""
    heap = [(-len(community), at, community) for at, community in enumerate(communities)]
    heapq.heapify(heap)
    while len(heap) < wanted:
        size, _, largest = heapq.heappop(heap)
        middle = -size // 2
        for half in (largest[:middle], largest[middle:]):
            heapq.heappush(heap, (-len(half), half[0], half))
    return [community for _, _, community in sorted(heap)]
