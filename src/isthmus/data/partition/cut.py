"""A pool and what each party holds of it, made into parties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import SPLITS, Border, Cohort, Party


def cut_into_parties(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Parties that hold these items of the whole, each in this order, with tensors of their own.

    Arguments:
        members: for each party the positions of its items, each once; an item may be with several parties, or none.
        coupled: whether edges between two parties' nodes are known to both as their border, or dropped. An edge
            whose other end several parties hold is written down with the first of them as its owner.
    """
    if whole.level == "graph":
        return _cut_pile(whole, members, names)
    return _cut_graph(whole, members, names, coupled=coupled)


def _cut_graph(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Induced subgraphs, and the edges between them."""
    edges = _Edges(whole, members, names)
    parties = []
    for name, held in zip(names, members, strict=True):
        graph, border = edges.around(held, coupled=coupled)
        graph.x, graph.y, graph.num_nodes = rows.take(whole.graph.x, held), whole.graph.y[held], held.numel()
        masks = {split: getattr(whole, split)[held] for split in SPLITS}
        parties.append(
            Party(name, graph, "node", ids=edges.ids[held], border=border, structural=whole.structural, **masks)
        )
    return parties


class _Edges:
    """The edges of the whole, to be asked for those of one party after another.

    They are sorted by the node at which they arrive, so that asking takes time in proportion to what arrives at the
    party: a thousand small parties are no thousand passes over all edges.
    """

    def __init__(self, whole: Party, members: Sequence[Tensor], names: Sequence[str]) -> None:
        self.ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids
        self.names = names
        self.edge_index, self.weight = whole.graph.edge_index, getattr(whole.graph, "edge_weight", None)
        self.by_target = torch.argsort(self.edge_index[1], stable=True)
        self.arriving = torch.bincount(self.edge_index[1], minlength=whole.nodes)
        self.first = self.arriving.cumsum(0) - self.arriving
        self.place = torch.full((whole.nodes,), -1)  # within the party that asks
        self.holder = torch.full((whole.nodes,), -1)  # the first party that holds a node
        for at in reversed(range(len(members))):
            self.holder[members[at]] = at

    def around(self, held: Tensor, *, coupled: bool) -> tuple[Data, Border | None]:
        """The edges between these nodes as a graph, and those that reach them from other parties' nodes."""
        arriving = rows.concat_ranges(self.first[held], self.arriving[held])
        edge = self.by_target[arriving].sort().values  # in the order that they have in the whole
        self.place[held] = torch.arange(held.numel())
        source, target = self.place[self.edge_index[:, edge]]
        self.place[held] = -1
        inside = source >= 0
        graph = Data(edge_index=torch.stack([source[inside], target[inside]]))
        if self.weight is not None:
            graph.edge_weight = self.weight[edge[inside]]
        return graph, self._border(edge[~inside], target[~inside]) if coupled else None

    def _border(self, edge: Tensor, inner: Tensor) -> Border:
        """Edges that arrive at a party's nodes `inner` as its border; what comes from nobody's nodes is left out."""
        outer = self.edge_index[0, edge]
        owned = self.holder[outer] >= 0
        edge, inner, outer = edge[owned], inner[owned], outer[owned]
        holder = self.holder[outer]
        across = torch.bincount(holder, minlength=len(self.names)) > 0
        owners = tuple(self.names[at] for at in across.nonzero().flatten().tolist())
        weight = None if self.weight is None else self.weight[edge]
        return Border(inner, self.ids[outer], (across.cumsum(0) - 1)[holder], owners, weight)


def _cut_pile(whole: Party, members: Sequence[Tensor], names: Sequence[str]) -> list[Party]:
    """Piles of graphs: all parties' graphs stand one after another once, then every party is a run of them."""
    order, counts = torch.cat(list(members)), [held.numel() for held in members]
    block = Cohort((whole,)).graphs_of(order)
    assert block.batch is not None
    whose = rows.party_of_rows(counts, torch.device("cpu"))
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
        graph.x = rows.slice_rows(block.x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes, graph.num_graphs = int(nodes[at]), counts[at]
        held = {split: run[at].clone() for split, run in masks.items()}
        parties.append(Party(name, graph, "graph", structural=whole.structural, **held))
    return parties
