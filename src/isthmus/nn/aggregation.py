"""Sums over neighbours of rows of unit length, hop by hop, which need no weights (GAP, Sajadmanesh et al. 2023).

    H^(0) = unit(X P)         P a fixed matrix of random numbers, the same for all
    H^(k) = unit(A H^(k-1))   A[i, j] = 1 for an edge j -> i; loops and repeated edges do not count

A row has length 1, or is 0. So an edge changes a row of a sum by a vector of length 1 at most, whatever the features
are, and noise of that scale hides it (`privacy.hops`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.utils import coalesce, remove_self_loops

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Encoder, Perceptron
from isthmus.nn.side_by_side import Last

Sum = Callable[[Tensor, Tensor], Tensor]
"""Given rows and the edges, the sum over each row's neighbours."""


class Aggregated(Perceptron):
    """A perceptron that reads the features of a node, and its hops H^(1), ..., H^(K), side by side.

    Arguments:
        features: width of the data.
        width: numbers of each hop, by a random projection; 0 keeps the features.
        depth: hops of edges (K).

    Attributes:
        given: what it receives has the hops beside the features already.
    """

    first_layer = None  # it reads no sparse features

    def __init__(self, features: int, width: int, depth: int, widths: list[tuple[int, int]], dropout: float) -> None:
        super().__init__([(features + depth * (width or features), widths[0][1]), *widths[1:]], dropout)
        self.features, self.width, self.depth = features, width, depth
        self.given = False
        self._projection = projection(features, width) if width else None  # no weight: it is never trained or sent
        self._last = Last(2)

    @property
    def hops(self) -> int:  # type: ignore[override]
        return self.depth

    @property
    def takes_hops(self) -> bool:
        return False

    def forward(self, x: Any, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        return super().forward(x if self.given else self._last(self.aggregate, x, edge_index))

    def aggregate(self, x: Tensor, edge_index: Tensor, total: Sum | None = None) -> Tensor:
        """The features of all nodes and their hops, side by side, `[nodes, features + K width]`.

        Arguments:
            total: sums over neighbours; exact by default.
        """
        exporting = torch.compiler.is_exporting()  # a program cannot count the edges that are left
        edges = edge_index if exporting else simple_edges(edge_index, x.size(0))
        h, found = self.first(x), [rows.to_dense(x)]
        for _ in range(self.depth):
            h = unit((total or sum_over_neighbours)(h, edges))
            found.append(h)
        return torch.cat(found, dim=1)

    def first(self, x: Tensor) -> Tensor:
        """What the first hop sums up, H^(0)."""
        dense = rows.to_dense(x)
        return unit(dense if self._projection is None else dense @ self._projection.to(dense))


class Gap(Encoder):
    """GAP (Sajadmanesh et al. 2023): sums of neighbours' features, hop by hop, then a perceptron on all hops.

    With `[privacy] unit = "edge"` the sums have noise. GAP projects features by a perceptron that it trains beforehand;
    here the projection is random and the same for all, so that parties need no training for it, and the perceptron
    reads the features, too.
    """

    name: ClassVar[str] = "gap"

    hops: int = Field(2, ge=1, le=100)
    """Hops of edges that are summed (K). Each of them is a release."""
    width: int = Field(16, ge=0, le=1 << 20)
    """Numbers of each hop, to which features are projected at random; 0 keeps the features. Noise grows with its
    root."""

    def body(self, features: int, out: int) -> nn.Module:
        return Aggregated(features, self.width, self.hops, self.widths(features, out), self.dropout)


def simple_edges(edge_index: Tensor, nodes: int) -> Tensor:
    """Each edge once, without loops."""
    edges: Tensor = coalesce(remove_self_loops(edge_index)[0], num_nodes=nodes)
    return edges


def without_edges(party: Party, x: Tensor) -> Party:
    """The party with these features, and without edges, border and features that follow from edges."""
    bare = party.with_edges(party.graph.edge_index.new_empty(2, 0))
    bare.graph.x = x
    return replace(bare, structural=None)


def sum_over_neighbours(h: Tensor, edge_index: Tensor) -> Tensor:
    """The sum over the sources of each node's edges, without loops."""
    reached = h[edge_index[0]] * (edge_index[0] != edge_index[1]).unsqueeze(1)
    return torch.zeros_like(h).index_add(0, edge_index[1], reached)


def unit(h: Tensor) -> Tensor:
    """Rows scaled to length 1; a row of zeros stays.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return h / torch.linalg.vector_norm(h, dim=1, keepdim=True).clamp(min=torch.finfo(h.dtype).tiny)


@lru_cache(maxsize=4)
def projection(features: int, width: int) -> Tensor:
    """The random matrix, `[features, width]`, by which distances stay about as they are; it follows from no data."""
    with torch.device("cpu"):  # models are also built without memory
        return draws_of("projection", features, width).normal((features,), width) / math.sqrt(width)


def aggregations(module: nn.Module) -> list[Aggregated]:
    """The parts of a model that read hops."""
    return [part for part in module.modules() if isinstance(part, Aggregated)]


def reading_hops(module: nn.Module) -> nn.Module:
    """The same model for parties that have the hops beside their features."""
    module = copy.deepcopy(module)
    for part in aggregations(module):
        part.given = True
    return module


def only_aggregation(modules: Sequence[Aggregated]) -> Aggregated | None:
    """The one part that reads hops; None if there is none, or if there are several that read others."""
    kinds = {(part.features, part.width, part.depth) for part in modules}
    return modules[0] if len(kinds) == 1 else None
