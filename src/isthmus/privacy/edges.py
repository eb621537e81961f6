"""Graphs as tables of node pairs, which can be released with noise so that edges stay secret (FGCL, section III-B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from isthmus.data import rows
from isthmus.options import Options


@dataclass(frozen=True, eq=False)
class NodePairs:
    """All pairs of nodes within each of several graphs, graph after graph, without padding.

    Arguments:
        source: first node of each pair, ascending, `[pairs]`.
        target: second node, larger, of the same graph, `[pairs]`.
        sizes: number of nodes of each graph.
        start: the first pair of each source node, `[nodes + 1]`.
    """

    source: Tensor
    target: Tensor
    sizes: tuple[int, ...]
    start: Tensor

    @classmethod
    def of_graphs(cls, sizes: Sequence[int]) -> NodePairs:
        """All pairs of graphs with so many nodes.

        >>> pairs = NodePairs.of_graphs([3, 1, 2])
        >>> pairs.source.tolist(), pairs.target.tolist()
        ([0, 0, 1, 4], [1, 2, 2, 5])
        """
        counts = torch.tensor(list(sizes), dtype=torch.long)
        last = counts.cumsum(0).repeat_interleave(counts)  # where each node's graph ends
        others = last - torch.arange(last.numel()) - 1  # nodes after this one in its graph
        start = torch.cat([others.new_zeros(1), others.cumsum(0)])
        source = torch.arange(others.numel()).repeat_interleave(others)
        target = torch.arange(source.numel()) - start[source] + source + 1
        return cls(source, target, tuple(sizes), start)

    def __len__(self) -> int:
        return self.source.numel()

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of pairs of each graph."""
        return tuple(size * (size - 1) // 2 for size in self.sizes)

    def bits(self, edge_index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """1 for pairs with an edge in either direction, else 0, `[pairs]`; loops are ignored."""
        low, high = edge_index.min(0).values, edge_index.max(0).values
        low, high = low[low < high], high[low < high]
        bits = torch.zeros(len(self), dtype=dtype)
        bits[self.start[low] + high - low - 1] = 1
        return bits

    def graph(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Edges `[2, edges]` in both directions and their weights `[edges]`; a pair of weight 0 is no edge."""
        at = weights.nonzero().squeeze(1)
        source, target, weights = self.source[at], self.target[at], weights[at]
        return torch.stack([torch.cat([source, target]), torch.cat([target, source])]), weights.repeat(2)


class PostProcessing(Options):
    """How released values become edge weights. It reads nothing else, so it costs no privacy."""

    clamp: bool = True
    """Clamp values to [0, 1]."""
    threshold: float | None = None
    """Set values of at least this to 1 and others to 0."""
    degree: float | None = Field(None, gt=0)
    """Keep only the largest values of each graph, so many that nodes have this many neighbours on average."""
    keep: Literal["all", "edges", "degrees"] = "all"
    """edges: keep only the largest values of each graph, as many as it has edges by an unbiased estimate; of equal
    values, as randomised response has, those of the first nodes. degrees: scale weights so that a node has as many
    neighbours as by an unbiased estimate, as degree-preserving randomised response does by sampling (Hidano and
    Murakami 2022)."""

    @model_validator(mode="after")
    def _keeps_in_one_way(self) -> Self:
        if self.degree is not None and self.keep != "all":
            raise ValueError("degree says how many values to keep: set keep = 'all', or leave out degree")
        return self

    def apply(self, values: Tensor, pairs: NodePairs, unbiased: Tensor | None = None) -> Tensor:
        """Edge weights from the released values of these pairs.

        Arguments:
            unbiased: estimates of the bits whose expectations are the bits; the values if they are such estimates.

        >>> PostProcessing().apply(torch.tensor([-0.3, 0.4, 1.7]), NodePairs.of_graphs([3])).tolist()
        [0.0, 0.4000000059604645, 1.0]
        """
        estimates, sizes = values if unbiased is None else unbiased, torch.tensor(pairs.sizes, dtype=torch.float64)
        largest = None
        if self.degree is not None:
            largest = _largest(values, pairs, (sizes * self.degree / 2).round().long())
        elif self.keep == "edges":
            graph = rows.party_of_rows(pairs.counts, values.device)
            edges = torch.zeros_like(sizes).index_add(0, graph, estimates.double())
            largest = _largest(values, pairs, edges.round().long())
        if self.threshold is not None:
            values = (values >= self.threshold).to(values)
        elif self.clamp:
            values = values.clamp(0, 1)
        if self.keep == "degrees":
            share = (_degrees(estimates, pairs) / _degrees(values, pairs)).nan_to_num(0, 0, 0).clamp(0, 1)
            values = values * (share[pairs.source] + share[pairs.target]) / 2
        return values if largest is None else values * largest


def _degrees(weights: Tensor, pairs: NodePairs) -> Tensor:
    """The sum of the weights of each node's pairs, `[nodes]`."""
    sums = weights.new_zeros(sum(pairs.sizes))
    return sums.index_add(0, pairs.source, weights).index_add(0, pairs.target, weights)


def _largest(values: Tensor, pairs: NodePairs, allowed: Tensor) -> Tensor:
    """A mask of the largest values of each graph, at most `allowed`, `[graphs]`."""
    graph = rows.party_of_rows(pairs.counts, values.device)
    order = torch.argsort(values, descending=True, stable=True)
    order = order[torch.argsort(graph[order], stable=True)]  # by graph, within a graph from the largest
    counts = torch.tensor(pairs.counts)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel()) - (counts.cumsum(0) - counts)[graph[order]]
    return rank < allowed[graph]
