"""A pool and what each party holds of it, made into parties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import SPLITS, Border, Cohort, Party


def parties_of(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Parties that hold these items of the whole, each in this order, with tensors of their own.

    Arguments:
        members: for each party the positions of its items, each once; an item may be with several parties, or none.
        coupled: whether edges between two parties' nodes are known to both as their border, or dropped. An edge
            whose other end several parties hold is written down with the first of them as its owner.
    """
    if whole.level == "graph":
        return _cut_pile(whole, members, names)
    return _cut_graph(whole, members, names, coupled=coupled)


@dataclass(frozen=True, eq=False)
class _Copies:
    """Every party's copies of nodes, party after party.

    Arguments:
        node: for every copy the node that it is one of.
        party: for every copy whose it is.
        sizes: copies of each party.
        nodes: nodes of the whole.
    """

    node: Tensor
    party: Tensor
    sizes: list[int]
    nodes: int

    @classmethod
    def of(cls, members: Sequence[Tensor], nodes: int) -> _Copies:
        sizes = [held.numel() for held in members]
        return cls(torch.cat(list(members)), rows.owners(sizes, torch.device("cpu")), sizes, nodes)

    @property
    def place(self) -> Tensor:
        """For every copy its position within its party."""
        starts = torch.tensor([0, *self.sizes[:-1]]).cumsum(0)
        return torch.arange(self.node.numel()) - starts[self.party]

    def by_node(self) -> tuple[Tensor, Tensor]:
        """Copies sorted by their node (the first party's copy first), and how many there are of each node."""
        return torch.argsort(self.node, stable=True), torch.bincount(self.node, minlength=self.nodes)

    def find(self, party: Tensor, node: Tensor) -> Tensor:
        """The copies of these nodes at these parties; -1 where a party has none."""
        key = self.party * self.nodes + self.node
        order = torch.argsort(key)
        key, wanted = key[order], party * self.nodes + node
        at = torch.searchsorted(key, wanted).clamp(max=max(0, key.numel() - 1))
        return torch.where(key[at] == wanted, order[at], -1)


def _cut_graph(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Induced subgraphs, and the edges between them."""
    copies = _Copies.of(members, whole.nodes)
    ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids
    inner, borders = _edges(whole, copies, ids, names)
    x = rows.take(whole.graph.x, copies.node)
    nodes: dict[str, Tensor] = {"y": whole.graph.y, "ids": ids, **{split: getattr(whole, split) for split in SPLITS}}
    runs = {key: value[copies.node].split(copies.sizes) for key, value in nodes.items()}
    starts = np.cumsum([0, *copies.sizes])
    parties = []
    for at, name in enumerate(names):
        graph = inner[at]
        graph.x = rows.between(x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes = copies.sizes[at]
        mine = {key: run[at].clone() for key, run in runs.items()}
        graph.y = mine.pop("y")
        parties.append(Party(name, graph, "node", border=borders[at] if coupled else None, **mine))
    return parties


def _edges(whole: Party, copies: _Copies, ids: Tensor, names: Sequence[str]) -> tuple[list[Data], list[Border]]:
    """For each party the edges within it, and those that arrive at its nodes from nodes that it does not hold."""
    source, target = whole.graph.edge_index
    weight = getattr(whole.graph, "edge_weight", None)
    order, count = copies.by_node()
    first = count.cumsum(0) - count
    edge = torch.arange(source.numel()).repeat_interleave(count[target])  # once for every copy of its target
    arrives = order[rows.ranges(count, target)]
    party = copies.party[arrives]
    if int(count.max()) <= 1:  # no node is with two parties: the copy that there is, is with this party or not
        there = order[first[source[edge]].clamp(max=max(0, order.numel() - 1))]
        there = torch.where((count[source[edge]] == 1) & (copies.party[there] == party), there, -1)
    else:
        there = copies.find(party, source[edge])
    inside = there >= 0
    place = copies.place
    graphs = []
    for kept in _runs(inside, party, len(names)):
        graph = Data(edge_index=torch.stack([place[there[kept]], place[arrives[kept]]]))
        if weight is not None:
            graph.edge_weight = weight[edge[kept]]
        graphs.append(graph)
    borders = []
    for kept in _runs(~inside & (count[source[edge]] > 0), party, len(names)):
        outer = source[edge[kept]]
        across, which = torch.unique(copies.party[order[first[outer]]], return_inverse=True)
        owners = tuple(names[other] for other in across.tolist())
        run = None if weight is None else weight[edge[kept]]
        borders.append(Border(place[arrives[kept]], ids[outer], which, owners, run))
    return graphs, borders


def _runs(mask: Tensor, group: Tensor, groups: int) -> list[Tensor]:
    """For each group the positions where the mask is set, in their order."""
    kept = torch.nonzero(mask).flatten()
    order = torch.argsort(group[kept], stable=True)
    counts = torch.bincount(group[kept], minlength=groups).tolist()
    return list(kept[order].split(counts))


def _cut_pile(whole: Party, members: Sequence[Tensor], names: Sequence[str]) -> list[Party]:
    """Piles of graphs: all parties' graphs stand one after another once, then every party is a run of them."""
    order, counts = torch.cat(list(members)), [held.numel() for held in members]
    block = Cohort((whole,)).graphs_of(order)
    assert block.batch is not None
    whose = rows.owners(counts, torch.device("cpu"))
    nodes = torch.bincount(whose[block.batch], minlength=len(names))
    edges = torch.bincount(whose[block.batch[block.edge_index[0]]], minlength=len(names)).tolist()
    starts, firsts = np.cumsum([0, *nodes.tolist()]), np.cumsum([0, *counts])
    shift = (nodes.cumsum(0) - nodes)[whose[block.batch[block.edge_index[0]]]]
    per_edge = {"edge_index": (block.edge_index - shift).split(edges, dim=1)}
    if block.edge_weight is not None:
        per_edge["edge_weight"] = block.edge_weight.split(edges)
    batch, y = block.batch.split(nodes.tolist()), whole.graph.y[order].split(counts)
    masks = {split: getattr(whole, split)[order].split(counts) for split in SPLITS}
    parties = []
    for at, name in enumerate(names):
        graph = Data(y=y[at].clone(), batch=batch[at] - int(firsts[at]))
        graph.update({key: run[at].clone(memory_format=torch.contiguous_format) for key, run in per_edge.items()})
        graph.x = rows.between(block.x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes, graph.num_graphs = int(nodes[at]), counts[at]
        parties.append(Party(name, graph, "graph", **{split: run[at].clone() for split, run in masks.items()}))
    return parties
