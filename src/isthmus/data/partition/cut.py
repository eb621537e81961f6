"""Builds the parties of a cut from a pool and the items of each party."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.cohort import Cohort
from isthmus.data.party import PER_EDGE, SPLITS, Border, Party


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


EDGES = 2**18
"""Edges to the nodes of parties that are cut together: many small parties at once, a large one alone."""


def _cut_graph(whole: Party, members: Sequence[Tensor], names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Parties with the induced subgraphs, and the edges between them."""
    edges = _Edges(whole, members, names)
    parties = []
    for start, stop in _stretches(members, edges.arriving):
        items, counts = torch.cat(list(members[start:stop])), [held.numel() for held in members[start:stop]]
        columns = edges.of_parties(start, items, counts, coupled=coupled)
        columns["x"] = rows.split_rows(rows.take(whole.graph.x, items), counts)
        columns["y"] = rows.split_copies(whole.graph.y[items], counts)
        if whole.schema is not None:
            columns["node_type"] = rows.split_copies(whole.graph.node_type[items], counts)
        masks = {split: rows.split_copies(getattr(whole, split)[items], counts) for split in SPLITS}
        ids = rows.split_copies(edges.ids[items], counts)
        border = columns.pop("border", [None] * len(counts))
        for at, count in enumerate(counts):
            graph = Data(**{key: column[at] for key, column in columns.items()}, num_nodes=count)
            own: dict[str, Any] = {split: mask[at] for split, mask in masks.items()}
            own |= {"ids": ids[at], "border": border[at], "structural": whole.structural, "schema": whole.schema}
            parties.append(Party.unchecked(names[start + at], graph, "node", **own))
    return parties


def _stretches(members: Sequence[Tensor], arriving: Tensor) -> Iterator[tuple[int, int]]:
    """Stretches of parties that are cut together, as first and stop.

    No two parties of a stretch share an item, and at most `EDGES` edges arrive at a stretch of several parties.
    """
    items, party = torch.cat(list(members)), _party_of(members)
    order = torch.argsort(items, stable=True)
    again = items[order[1:]] == items[order[:-1]]
    shared = torch.full((len(members),), -1)  # the last earlier party that shares an item
    shared.scatter_reduce_(0, party[order[1:][again]], party[order[:-1][again]], "amax")
    edges = torch.zeros(len(members), dtype=torch.long).index_add_(0, party, arriving[items]).tolist()
    start, total = 0, 0
    for at, (earlier, count) in enumerate(zip(shared.tolist(), edges, strict=True)):
        total += count
        if at > start and (earlier >= start or total > EDGES):
            yield start, at
            start, total = at, count
    yield start, len(members)


class _Edges:
    """The edges of the whole graph, sorted by target.

    Finding the edges of some parties then takes time in proportion to these, not to all edges.
    """

    def __init__(self, whole: Party, members: Sequence[Tensor], names: Sequence[str]) -> None:
        self.ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids
        self.names = names
        self.edge_index, self.per_edge = whole.graph.edge_index, whole.per_edge()
        self.by_target, self.arriving, self.first = _by_end(self.edge_index[1], whole.nodes)
        self.by_source = None if whole.schema is None else _by_end(self.edge_index[0], whole.nodes)
        self.position = torch.full((whole.nodes,), -1)  # among the nodes of this call
        self.holder = torch.full((whole.nodes,), len(members))  # the first party with the node
        self.holder.scatter_reduce_(0, torch.cat(list(members)), _party_of(members), "amin")

    def of_parties(self, start: int, nodes: Tensor, counts: Sequence[int], *, coupled: bool) -> dict[str, list[Any]]:
        """By party the edges between its nodes, their columns, and the border: edges from nodes of other parties.

        Arguments:
            start: the position of the first of these parties; the others follow it.
            nodes: their nodes, all different, one party after another.
            counts: the number of nodes of each party.
        """
        party = rows.party_of_rows(counts, nodes.device)
        arriving = self.arriving[nodes]
        edge = self.by_target[rows.concat_ranges(self.first[nodes], arriving)]
        if len(counts) > 1:  # in the order of the parties, then of the whole graph
            stride = self.edge_index.size(1)
            edge = (party.repeat_interleave(arriving) * stride + edge).sort().values % stride
        else:
            edge = edge.sort().values
        self.position[nodes] = torch.arange(nodes.numel())
        source, target = self.position[self.edge_index[:, edge]]
        self.position[nodes] = -1
        of = party[target]
        inside = (source >= 0) & (party[source] == of)
        firsts = torch.tensor(counts).cumsum(0) - torch.tensor(counts)
        target = target - firsts[of]
        within = torch.bincount(of[inside], minlength=len(counts)).tolist()
        columns: dict[str, list[Any]] = {
            "edge_index": rows.split_copies(
                torch.stack([source[inside] - firsts[of[inside]], target[inside]]), within, dim=1
            )
        }
        for name, column in self.per_edge.items():
            columns[name] = rows.split_copies(column[edge[inside]], within)
        if coupled:
            outside = ~inside
            across = edge[outside], target[outside], of[outside]
            columns["border"] = self._borders(*across, len(counts), self._leaving(nodes, party, firsts))
        return columns

    def _leaving(self, nodes: Tensor, party: Tensor, firsts: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """The edges from these nodes to nodes of other parties, the positions of their sources, and their parties.

        None of untyped graphs, whose edges run both ways.
        """
        if self.by_source is None:
            return None
        order, leaving, first = self.by_source
        edge = order[rows.concat_ranges(first[nodes], leaving[nodes])]
        self.position[nodes] = torch.arange(nodes.numel())
        source, target = self.position[self.edge_index[:, edge]]
        self.position[nodes] = -1
        of = party[source]
        outside = (target < 0) | (party[target] != of)
        return edge[outside], (source - firsts[of])[outside], of[outside]

    def _borders(
        self,
        edge: Tensor,
        inner: Tensor,
        party: Tensor,
        parties: int,
        leaving: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> list[Border]:
        """The edges to the nodes `inner` of each party as its border, without those from nodes of no party."""
        outer, leaves = self.edge_index[0, edge], None
        if leaving is not None:
            outer = torch.cat([outer, self.edge_index[1, leaving[0]]])
            leaves = torch.arange(outer.numel()) >= edge.numel()
            order = torch.argsort(torch.cat([party, leaving[2]]), stable=True)
            edge, inner, party = (torch.cat(each)[order] for each in zip((edge, inner, party), leaving, strict=True))
            outer, leaves = outer[order], leaves[order]
        owned = self.holder[outer] < len(self.names)
        edge, inner, outer, party = edge[owned], inner[owned], outer[owned], party[owned]
        leaves = None if leaves is None else leaves[owned]
        pair = party * len(self.names) + self.holder[outer]
        across, rank = _distinct(pair, parties * len(self.names))
        per_party = torch.bincount(across // len(self.names), minlength=parties)
        owner = rank - (per_party.cumsum(0) - per_party)[party]
        named = [self.names[at] for at in (across % len(self.names)).tolist()]
        ends = itertools.pairwise(itertools.accumulate(per_party.tolist(), initial=0))
        owners = [tuple(named[first:stop]) for first, stop in ends]
        counts = torch.bincount(party, minlength=parties).tolist()
        each = (rows.split_copies(values, counts) for values in (inner, self.ids[outer], owner))
        columns = (self.per_edge.get(name) for name in PER_EDGE)
        of_edges = [None if each is None else each[edge] for each in columns]
        more = ([None] * parties if each is None else rows.split_copies(each, counts) for each in (*of_edges, leaves))
        return list(map(Border, *each, owners, *more))


def _by_end(ends: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges in the order of these ends; for each node how many it has, and the place of its first."""
    counts = torch.bincount(ends, minlength=nodes)
    return torch.argsort(ends, stable=True), counts, counts.cumsum(0) - counts


def _party_of(members: Sequence[Tensor]) -> Tensor:
    """The party of every item of `torch.cat(members)`."""
    return rows.party_of_rows([held.numel() for held in members], torch.device("cpu"))


def _distinct(values: Tensor, stop: int) -> tuple[Tensor, Tensor]:
    """The distinct ones of these numbers below `stop`, ascending, and the rank of each number among them."""
    if values.numel() < stop:
        distinct, rank = torch.unique(values, return_inverse=True)
        return distinct, rank
    present = torch.zeros(stop, dtype=torch.bool)  # a large party has few neighbours, and many edges to each
    present[values] = True
    return present.nonzero().flatten(), (present.cumsum(0) - 1)[values]


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
    per_edge |= {name: column.split(edges) for name, column in block.per_edge.items()}
    batch, y = block.batch.split(nodes.tolist()), whole.graph.y[order].split(counts)
    ids = rows.split_copies(order if whole.ids is None else whole.ids[order], counts)
    masks = {split: getattr(whole, split)[order].split(counts) for split in SPLITS}
    parties = []
    for at, name in enumerate(names):
        graph = Data(y=y[at].clone(), batch=batch[at] - int(firsts[at]))
        graph.update({key: part[at].clone(memory_format=torch.contiguous_format) for key, part in per_edge.items()})
        graph.x = rows.slice_rows(block.x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes, graph.num_graphs = int(nodes[at]), counts[at]
        if block.node_type is not None:
            graph.node_type = block.node_type[int(starts[at]) : int(starts[at + 1])].clone()
        splits = {split: part[at].clone() for split, part in masks.items()}
        kept: dict[str, Any] = {"ids": ids[at], "structural": whole.structural, "schema": whole.schema}
        parties.append(Party.unchecked(name, graph, "graph", **kept, **splits))
    return parties
