"""What edges alone say about a node: its degree, and how likely random walks return to it."""

from __future__ import annotations

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from isthmus.nn.products import Propagation

AT_A_TIME = 2**24
"""Numbers of walks that are held in memory at a time."""


def degree_encoding(edge_index: Tensor, nodes: int, degrees: int) -> Tensor:
    """The degree of each node as a one-hot row, `[nodes, degrees]`; larger ones count as the last, and 0 as 1.

    >>> degree_encoding(torch.tensor([[0, 1], [1, 0]]), 3, 4).argmax(1).tolist()
    [0, 0, 0]
    """
    degree = torch.bincount(edge_index[1], minlength=nodes)
    return F.one_hot(degree.clamp(1, degrees) - 1, degrees)


def walk_encoding(edge_index: Tensor, nodes: int, steps: int, dtype: torch.dtype) -> Tensor:
    """How likely a random walk from a node is back after 1, ..., steps steps, `[nodes, steps]`: the diagonals of T^t.

    T = A D^-1. A walk ends where no edge goes on, so a node without edges has zeros. A column of walks has one start in
    each connected component: many small graphs side by side need few columns.

    >>> walk_encoding(torch.tensor([[0, 1], [1, 0]]), 3, 4, torch.float32).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """
    place = _place_in_component(edge_index, nodes)
    source = edge_index[0]
    share = torch.bincount(source, minlength=nodes).to(dtype).reciprocal()[source]
    walk, columns = Propagation(edge_index, share, nodes), int(place.max()) + 1 if nodes else 0
    found = torch.zeros(nodes, steps, dtype=dtype, device=edge_index.device)
    width = max(1, min(columns, AT_A_TIME // max(1, nodes)))
    for start in range(0, columns, width):
        at = ((place >= start) & (place < start + width)).nonzero().squeeze(1)
        column = place[at] - start
        walkers = found.new_zeros(nodes, width)
        walkers[at, column] = 1
        for step in range(steps):
            walkers = walk @ walkers
            found[at, step] = walkers[at, column]
    return found


def _place_in_component(edge_index: Tensor, nodes: int) -> Tensor:
    """The position of each node among the nodes of its connected component, `[nodes]`."""
    source, target = edge_index.cpu().numpy()
    edges = coo_matrix(([True] * source.size, (source, target)), shape=(nodes, nodes))
    component = torch.from_numpy(connected_components(edges, directed=False)[1]).long()
    order = component.argsort(stable=True)
    sizes = torch.bincount(component)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    place = torch.empty_like(component).scatter_(0, order, torch.arange(nodes) - first)
    return place.to(edge_index.device)


class StructureChannel(nn.Module):
    """Layers that read no features: s^0 is a linear map of both encodings, and s^(l+1) = tanh(GCN(s^l)).

    `forward` returns s^0, ..., s^layers. Encodings are kept for the last graphs that were read.
    """

    KEPT = 4
    """Graphs of training and of evaluation alternate."""

    def __init__(self, width: int, layers: int, degrees: int, steps: int) -> None:
        super().__init__()
        self.degrees, self.steps = degrees, steps
        self.embed = nn.Linear(degrees + steps, width)
        self.convs = nn.ModuleList(gnn.GCNConv(width, width) for _ in range(layers))
        self._encoded: list[tuple[Tensor, Tensor]] = []

    def forward(self, edge_index: Tensor, nodes: int) -> list[Tensor]:
        s = [self.embed(self.encode(edge_index, nodes))]
        for conv in self.convs:
            s.append(conv(s[-1], edge_index).tanh())
        return s

    def encode(self, edge_index: Tensor, nodes: int) -> Tensor:
        """Both encodings of each node, `[nodes, degrees + steps]`."""
        dtype = self.embed.weight.dtype
        for edges, encoded in self._encoded:
            if edges is edge_index and len(encoded) == nodes and encoded.dtype == dtype:
                return encoded
        degree = degree_encoding(edge_index, nodes, self.degrees).to(dtype)
        encoded = torch.cat([degree, walk_encoding(edge_index, nodes, self.steps, dtype)], dim=1)
        self._encoded = [*self._encoded[1 - self.KEPT :], (edge_index, encoded)]
        return encoded
