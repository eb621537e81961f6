"""Propagation of features without learned weights, hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.nn.products import Propagation, normalised_edges


@dataclass(frozen=True)
class Diffusion:
    """H^(l+1) = (1 - alpha) D^left (A + I) D^right H^(l) + alpha H^(0); the result combines the hops H^(0), ..., H^(K).

    D counts a node's edges and itself. SGC has left = right = -1/2 and APPNP also alpha > 0. GBP has left = r - 1,
    right = -r and a weighted sum of the hops. GPR-GNN takes every hop and learns their weights.

    Arguments:
        hops: K.
        left, right: exponents of the degrees of an edge's target and source.
        restart: alpha.
        weights: weights of the hops 0 ... K in a sum; None takes the last hop alone.
        every: concatenate all hops, `[nodes, (K + 1) features]`.
    """

    hops: int
    left: float = -0.5
    right: float = -0.5
    restart: float = 0.0
    weights: tuple[float, ...] | None = None
    every: bool = False

    def combine(self, hops: Sequence[Any], concat: Callable[[Sequence[Any]], Any]) -> Any:
        """The diffused features, given all hops and how to concatenate them."""
        if self.every:
            return concat(hops)
        if self.weights is None:
            return hops[-1]
        total = self.weights[0] * hops[0]
        for weight, hop in zip(self.weights[1:], hops[1:], strict=True):
            total = total + weight * hop
        return total

    @property
    def needs_all_hops(self) -> bool:
        """Whether the result needs all hops, or only the last."""
        return self.every or self.weights is not None

    def matrix(self, edge_index: Tensor, edge_weight: Tensor | None, nodes: int, dtype: torch.dtype) -> Propagation:
        """D^left (A + I) D^right of a whole graph."""
        index, values = normalised_edges(edge_index, edge_weight, nodes, dtype=dtype)
        degree = torch.ones(nodes, dtype=dtype, device=index.device)
        weight = degree.new_ones(edge_index.size(1)) if edge_weight is None else edge_weight.to(dtype)
        degree = degree.index_add(0, edge_index[1], weight.abs()).clamp(min=1e-12)
        # normalised_edges gives D^-1/2 (A + I) D^-1/2
        values = degree[index[1]] ** (self.left + 0.5) * values * degree[index[0]] ** (self.right + 0.5)
        return Propagation(index, values, nodes)

    def diffuse(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """The diffused features of a whole graph, `[nodes, features]` or, with every hop, `[nodes, (K + 1) features]`.

        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> Diffusion(hops=1).diffuse(torch.eye(2), edges)
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
        """
        matrix = self.matrix(edge_index, edge_weight, x.size(0), x.dtype)
        hops = [x]
        for _ in range(self.hops):
            reached = matrix @ hops[-1]
            hops.append((1 - self.restart) * reached + self.restart * x if self.restart else reached)
        return self.combine(hops, lambda each: torch.cat(list(each), dim=1))
