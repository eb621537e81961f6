"""Builds the parties of a cut from a pool and the items of each party."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import SPLITS, Border, Cohort, Party


def cut_into_parties(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Parties with these items of the whole, in this order; they own their tensors.

    Arguments:
        members: for each party the positions of its items, each once; an item may have several parties, or none.
        coupled: whether edges between nodes of two parties become their border, or are dropped. If several parties
            hold the node at the other end, the first of them is recorded as its owner.
    """
    if whole.level == "graph":
        return _cut_graphs(whole, members, names)
    return _cut_graph(whole, members, names, coupled=coupled)


def _cut_graph(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Parties with the induced subgraphs, and the edges between them."""
    edges = _Edges(whole, members, names)
    parties = []
    for name, items in zip(names, members, strict=True):
        graph, border = edges.of_party(items, coupled=coupled)
        graph.x, graph.y, graph.num_nodes = rows.take(whole.graph.x, items), whole.graph.y[items], items.numel()
        masks = {split: getattr(whole, split)[items] for split in SPLITS}
        parties.append(
            Party(name, graph, "node", ids=edges.ids[items], border=border, structural=whole.structural, **masks)
        )
    return parties


class _Edges:
    """The edges of the whole graph, sorted by target.

    Finding the edges of one party then takes time in proportion to these, not to all edges.
    """

    def __init__(self, whole: Party, members: Sequence[Tensor], names: Sequence[str]) -> None:
        self.ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids
        self.names = names
        self.edge_index, self.weight = whole.graph.edge_index, getattr(whole.graph, "edge_weight", None)
        self.by_target = torch.argsort(self.edge_index[1], stable=True)
        self.arriving = torch.bincount(self.edge_index[1], minlength=whole.nodes)
        self.first = self.arriving.cumsum(0) - self.arriving
        self.position = torch.full((whole.nodes,), -1)  # within the party of this call
        self.holder = torch.full((whole.nodes,), -1)  # the first party with the node
        for at in reversed(range(len(members))):
            self.holder[members[at]] = at

    def of_party(self, nodes: Tensor, *, coupled: bool) -> tuple[Data, Border | None]:
        """The edges between these nodes as a graph, and the border: edges to them from nodes of other parties."""
        arriving = rows.concat_ranges(self.first[nodes], self.arriving[nodes])
        edge = self.by_target[arriving].sort().values  # in the order of the whole graph
        self.position[nodes] = torch.arange(nodes.numel())
        source, target = self.position[self.edge_index[:, edge]]
        self.position[nodes] = -1
        inside = source >= 0
        graph = Data(edge_index=torch.stack([source[inside], target[inside]]))
        if self.weight is not None:
            graph.edge_weight = self.weight[edge[inside]]
        return graph, self._border(edge[~inside], target[~inside]) if coupled else None

    def _border(self, edge: Tensor, inner: Tensor) -> Border:
        """The edges to a party's nodes `inner` as its border, without those from nodes of no party."""
        outer = self.edge_index[0, edge]
        owned = self.holder[outer] >= 0
        edge, inner, outer = edge[owned], inner[owned], outer[owned]
        holder = self.holder[outer]
        across = torch.bincount(holder, minlength=len(self.names)) > 0
        owners = tuple(self.names[at] for at in across.nonzero().flatten().tolist())
        weight = None if self.weight is None else self.weight[edge]
        return Border(inner, self.ids[outer], (across.cumsum(0) - 1)[holder], owners, weight)


def _cut_graphs(whole: Party, members: Sequence[Tensor], names: Sequence[str]) -> list[Party]:
    """Parties with whole graphs: all graphs are sorted by party once, then each party is a slice."""
    order, counts = torch.cat(list(members)), [held.numel() for held in members]
    block = Cohort((whole,)).graphs_of(order)
    assert block.batch is not None
    party_of_graph = rows.party_of_rows(counts, torch.device("cpu"))
    nodes = torch.bincount(party_of_graph[block.batch], minlength=len(names))
    edges = torch.bincount(party_of_graph[block.batch[block.edge_index[0]]], minlength=len(names)).tolist()
    starts, firsts = np.cumsum([0, *nodes.tolist()]), np.cumsum([0, *counts])
    shift = (nodes.cumsum(0) - nodes)[party_of_graph[block.batch[block.edge_index[0]]]]
    per_edge = {"edge_index": (block.edge_index - shift).split(edges, dim=1)}
    if block.edge_weight is not None:
        per_edge["edge_weight"] = block.edge_weight.split(edges)
    batch, y = block.batch.split(nodes.tolist()), whole.graph.y[order].split(counts)
    masks = {split: getattr(whole, split)[order].split(counts) for split in SPLITS}
    parties = []
    for at, name in enumerate(names):
        graph = Data(y=y[at].clone(), batch=batch[at] - int(firsts[at]))
        graph.update({key: part[at].clone(memory_format=torch.contiguous_format) for key, part in per_edge.items()})
        graph.x = rows.slice_rows(block.x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes, graph.num_graphs = int(nodes[at]), counts[at]
        splits = {split: part[at].clone() for split, part in masks.items()}
        parties.append(Party(name, graph, "graph", structural=whole.structural, **splits))
    return parties
