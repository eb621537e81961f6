"""Convolutions that read features of edges, for one party or many."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch_geometric.utils import softmax

from isthmus.nn.side_by_side import Access, Last, Layer, Rows


class EdgeLayer(Layer):
    """A convolution along edges with features; it reads one hop."""

    hops = 1

    def __init__(self) -> None:
        super().__init__()
        self._rows = Last()

    def rows_of(self, x: Tensor, edge_index: Tensor) -> tuple[Rows, Rows]:
        """All nodes and all edges as rows."""
        found: tuple[Rows, Rows] = self._rows(_rows_of, edge_index, x.size(0))
        return found


def _rows_of(edge_index: Tensor, nodes: int) -> tuple[Rows, Rows]:
    return Rows(torch.arange(nodes, device=edge_index.device)), Rows(edge_index[1])


class EdgeSum(EdgeLayer):
    """sum_j relu(x_j + W e_ji + b)."""

    def __init__(self, i: int, edge_dim: int) -> None:
        super().__init__()
        self.add("edge", i, edge_dim)
        self.add("bias", i, fill=0.0)

    def compute(self, weights: Access, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = self.rows_of(x, edge_index)[1]
        message = (x[edge_index[0]] + weights.linear(edge_attr, weights["edge"], edges, weights["bias"])).relu()
        return x.new_zeros(x.shape).index_add(0, edge_index[1], message)


class EdgeGin(nn.Module):
    """MLP((1 + eps) x_i + sum_j relu(x_j + W e_ji + b)), PyG's GINEConv (Hu et al. 2020).

    Arguments:
        itself: (1 + eps) x.
    """

    hops = 1

    def __init__(self, perceptron: nn.Module, itself: nn.Module, i: int, edge_dim: int) -> None:
        super().__init__()
        self.nn = perceptron
        self.itself = itself
        self.sum = EdgeSum(i, edge_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.nn(self.itself(x) + self.sum(x, edge_index, edge_attr))


class EdgeGat(EdgeLayer):
    """Attention that also reads edge features; those of a self-loop are the mean of the edges into its node.

    score_ji = leaky_relu(a_s . W x_j + a_t . W x_i + a_e . W_e e_ji), for every head
    """

    def __init__(self, i: int, o: int, heads: int, edge_dim: int) -> None:
        super().__init__()
        self.heads, self.out = heads, o
        self.add("weight", heads * o, i)
        self.add("edge", heads * o, edge_dim)
        for name in ("att_src", "att_dst", "att_edge"):
            self.add(name, heads, o)
        self.add("bias", heads * o, fill=0.0)

    def compute(self, weights: Access, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        nodes, edges = self.rows_of(x, edge_index)
        h = weights.linear(x, weights["weight"], nodes).view(-1, self.heads, self.out)
        of_source, of_target = ((h * weights.repeat(weights[name], nodes)).sum(-1) for name in ("att_src", "att_dst"))
        edge = weights["edge"].unflatten(-2, (self.heads, self.out))
        of_edge = weights.linear(edge_attr, torch.einsum("...hoe,...ho->...he", edge, weights["att_edge"]), edges)
        source, target = edge_index
        real = (source != target).unsqueeze(1)  # a self-loop of the graph gives way to the one that is added
        count = x.new_zeros(x.size(0), 1).index_add(0, target, real.to(x.dtype)).clamp(min=1)
        of_loop = of_edge.new_zeros(x.size(0), self.heads).index_add(0, target, of_edge * real) / count
        score = of_source[source] + of_target[target] + of_edge
        score = score.masked_fill(~real, -math.inf)
        every = torch.cat([target, nodes.node])
        scores = torch.nn.functional.leaky_relu(torch.cat([score, of_source + of_target + of_loop]), 0.2)
        share = softmax(scores, every, num_nodes=x.size(0))
        message = torch.cat([h[source], h]) * share.unsqueeze(-1)
        out = x.new_zeros(x.size(0), self.heads * self.out).index_add(0, every, message.flatten(1))
        return out + weights.repeat(weights["bias"], nodes)


class Transformer(EdgeLayer):
    """Attention of queries and keys, PyG's TransformerConv (Shi et al. 2021) without its bias of keys.

    That bias adds the same to all scores of a node, so it changes nothing, and an optimiser would move it by rounding.

    score_ji = (W_q x_i) . (W_k x_j + W_e e_ji) / sqrt(o)
    out_i = W_s x_i + sum_j softmax_j(score_ji) (W_v x_j + W_e e_ji)

    Arguments:
        edge_dim: features of an edge; with 0 they are not read.
    """

    def __init__(self, i: int, o: int, heads: int, edge_dim: int) -> None:
        super().__init__()
        self.heads, self.out, self.edge_dim = heads, o, edge_dim
        for name in ("query", "key", "value", "skip"):
            self.add(name, heads * o, i)
            if name != "key":
                self.add(f"{name}_bias", heads * o, fill=0.0)
        if edge_dim:
            self.add("edge", heads * o, edge_dim)

    def compute(self, weights: Access, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        nodes, edges = self.rows_of(x, edge_index)
        source, target = edge_index
        query, value, skip = (
            weights.linear(x, weights[name], nodes, weights[f"{name}_bias"]) for name in ("query", "value", "skip")
        )
        key, value = weights.linear(x, weights["key"], nodes)[source], value[source]
        if self.edge_dim:
            of_edge = weights.linear(edge_attr, weights["edge"], edges)  # type: ignore[arg-type]
            key, value = key + of_edge, value + of_edge
        shape = (-1, self.heads, self.out)
        score = (query[target].view(shape) * key.view(shape)).sum(-1) / math.sqrt(self.out)
        share = softmax(score, target, num_nodes=x.size(0)).unsqueeze(-1)
        return skip.index_add(0, target, (value.view(shape) * share).flatten(1))
