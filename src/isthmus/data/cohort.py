"""Several parties side by side, as one block of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.neighbours import Graphs, Neighbours, NodeRange, SomeGraphs, Subgraph
from isthmus.data.party import PER_EDGE, SPLITS, Party, Split
from isthmus.errors import IsthmusError


@dataclass(frozen=True, eq=False)
class Block:
    """The graphs of several parties as one block-diagonal graph, the input of a model.

    Arguments:
        x: features, `[nodes, features]`, dense or sparse CSR.
        edge_index: `[2, edges]`, sorted by party.
        sizes: number of nodes of each party; rows are sorted by party.
        edge_weight: `[edges]` or none.
        batch: the graph of every node, `[nodes]`; none if each party has one graph.
        graphs: number of graphs of each party, for readouts; empty if each has one.
        part: which part of a larger block this is, or all graphs of one, for layers that need to know more of it than
            the edges here.
        trims: layers leave out the rows that no seed of `part` needs; the output has a row per seed.
        node_type: the type of every node, `[nodes]`, where graphs are typed.
        edge_type: the type of every edge, `[edges]`, where graphs are typed.
        edge_attr: features of the edges, `[edges, width]`, or none.
        edge_label_index: rows of both ends of the labelled edges to classify, `[2, labelled edges]`, sorted by party;
            the output then has a row for each. With `trims` they count the rows of seeds.
        edge_label_attr: features of these, `[labelled edges, width]`, or none.
        edge_labels: how many of these each party has; empty where no edges are classified.
    """

    x: Tensor
    edge_index: Tensor
    sizes: tuple[int, ...]
    edge_weight: Tensor | None = None
    batch: Tensor | None = None
    graphs: tuple[int, ...] = ()
    part: Subgraph | NodeRange | Graphs | SomeGraphs | None = None
    trims: bool = False
    node_type: Tensor | None = None
    edge_type: Tensor | None = None
    edge_attr: Tensor | None = None
    edge_label_index: Tensor | None = None
    edge_label_attr: Tensor | None = None
    edge_labels: tuple[int, ...] = ()

    @classmethod
    def concat(cls, blocks: Sequence[Block]) -> Block:
        """The parties of several blocks in one; where only some have edge weights, those of the others are 1."""
        if len(blocks) == 1:  # its tensors may be mapped: no copy
            return blocks[0]
        edges = [block.edge_index.size(1) for block in blocks]
        edge_index = blocks[0].edge_index.new_empty(2, sum(edges))
        starts = list(itertools.accumulate((block.nodes for block in blocks), initial=0))
        for block, first, own in zip(blocks, starts, edge_index.split(edges, dim=1), strict=False):
            torch.add(block.edge_index, first, out=own)
        labelled = [
            block.edge_label_index + first
            for block, first in zip(blocks, starts, strict=False)
            if block.edge_label_index is not None
        ]
        of_labelled = [block.edge_label_attr for block in blocks if block.edge_label_attr is not None]
        graphs = itertools.accumulate((sum(block.graphs) for block in blocks), initial=0)
        batch = [block.batch + first for block, first in zip(blocks, graphs, strict=False) if block.batch is not None]
        types = [block.node_type for block in blocks if block.node_type is not None]
        return cls(
            x=rows.concat([block.x for block in blocks]),
            edge_index=edge_index,
            sizes=tuple(size for block in blocks for size in block.sizes),
            batch=torch.cat(batch) if batch else None,
            graphs=tuple(count for block in blocks for count in block.graphs),
            node_type=torch.cat(types) if types else None,
            edge_label_index=torch.cat(labelled, dim=1) if labelled else None,
            edge_label_attr=torch.cat(of_labelled) if of_labelled else None,
            edge_labels=tuple(count for block in blocks for count in block.edge_labels),
            **concat_per_edge([block.per_edge for block in blocks], edges),
        )

    @property
    def nodes(self) -> int:
        return sum(self.sizes)

    @property
    def per_edge(self) -> dict[str, Any]:
        """The columns of edges that there are, see `PER_EDGE`."""
        return {name: column for name in PER_EDGE if (column := getattr(self, name)) is not None}

    def edges_at(self, at: Tensor | slice) -> dict[str, Any]:
        """The columns of these edges, positions or a mask."""
        if isinstance(at, Tensor) and at.dtype == torch.long:  # a third of the time of `column[at]`
            return {name: column.index_select(0, at) for name, column in self.per_edge.items()}
        return {name: column[at] for name, column in self.per_edge.items()}

    def types_at(self, at: Tensor | slice) -> Tensor | None:
        """The types of these nodes, positions or a mask; none where graphs are not typed."""
        return None if self.node_type is None else self.node_type[at]

    @cached_property
    def neighbours(self) -> Neighbours:
        """The edges by target."""
        more = {name: column for name, column in self.per_edge.items() if name != "edge_weight"}
        return Neighbours(self.edge_index, self.nodes, self.edge_weight, more)

    def restricted(self, part: Subgraph, *, trims: bool) -> Block:
        """A part of the block, perhaps for layers that leave out the rows that its seeds do not need."""
        x = self.x if part.nodes.numel() == self.nodes else rows.take(self.x, part.nodes)
        types = self.types_at(part.nodes)
        return Block(x, part.edge_index, part.sizes, part=part, trims=trims, node_type=types, **part.per_edge)

    def for_party(self, at: int) -> Block:
        """The part of the party at position `at`, as a block."""
        start = sum(self.sizes[:at])
        stop = start + self.sizes[at]
        edges = slice(self._edge_ends[at], self._edge_ends[at + 1])
        first = sum(self.graphs[:at])
        labelled = slice(sum(self.edge_labels[:at]), sum(self.edge_labels[: at + 1]))
        ends = self.edge_label_index
        if ends is not None and self.trims and isinstance(self.part, Subgraph):
            ends = self.part.rows_within(0)[ends]  # of all nodes, for no layer of the part leaves out any
        return Block(
            x=rows.slice_rows(self.x, start, stop),
            edge_index=self.edge_index[:, edges] - start,
            sizes=(self.sizes[at],),
            batch=None if self.batch is None else self.batch[start:stop] - first,
            graphs=self.graphs[at : at + 1],
            node_type=self.types_at(slice(start, stop)),
            edge_label_index=None if ends is None else ends[:, labelled] - start,
            edge_label_attr=None if self.edge_label_attr is None else self.edge_label_attr[labelled],
            edge_labels=self.edge_labels[at : at + 1],
            **self.edges_at(edges),
        )

    @cached_property
    def _edge_ends(self) -> list[int]:
        ends = torch.tensor((0, *self.sizes), device=self.edge_index.device).cumsum(0)
        party = torch.bucketize(self.edge_index[0], ends[1:], right=True)
        return [0, *torch.bincount(party, minlength=len(self.sizes)).cumsum(0).tolist()]

    def to(self, device: torch.device) -> Block:
        """This block on a device."""
        tensors = (name for name, value in vars(self).items() if isinstance(value, Tensor))
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in tensors}
        return replace(self, **moved)


@dataclass(eq=False)
class Cohort:
    """Several parties side by side: their graphs as one block; `party` is the party of every item.

    A site that hosts one party has a cohort of one, and runs the same code.

    Arguments:
        parties: parties of one level and one number of features.
        device: the device of the tensors.

    Attributes:
        pair_rows: for every pair the rows of its two nodes, `[items, 2]`, in the outputs of the block's nodes followed
            by those of the `borrowed` ones; -1 for the second node of a pair that is neither trained on nor scored.
        borrowed: for every party, by owner, the ids of other parties' nodes in pairs that it scores, ascending.
    """

    parties: tuple[Party, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.parties = tuple(self.parties)
        check_compatible(self.parties)
        self.level: Level = self.parties[0].level
        self.names = tuple(party.name for party in self.parties)
        self.sizes = tuple(party.nodes for party in self.parties)
        self.items = tuple(party.items for party in self.parties)
        block = Block.concat([_block(party) for party in self.parties])
        if self.device.type == "mps":  # it does not support sparse matrices
            block = replace(block, x=rows.to_dense(block.x))
        block = block.to(self.device)
        if block.batch is not None:
            block = replace(block, part=Graphs(block.edge_index, block.batch, sum(self.items), block.edge_weight))
        self.block = block
        self.y = torch.cat([party.graph.y for party in self.parties]).to(self.device)
        self.party = self.per_item(torch.arange(len(self.parties), device=self.device))
        self.masks = {
            split: torch.cat([getattr(party, split) for party in self.parties]).to(self.device) for split in SPLITS
        }
        self.masks["train"] = torch.cat([party.training_mask for party in self.parties]).to(self.device)
        ends, self.borrowed = _ends(self.parties)
        self.pair_rows = None if ends is None else ends.to(self.device)
        self._parts: dict[tuple[int, ...], Cohort] = {}
        self._last: tuple[Tensor, Block] | None = None
        self._blocks: dict[tuple[bool, ...], Block] = {}
        self._around_training: dict[tuple[int, bool], tuple[Block, Tensor | None]] = {}

    def __len__(self) -> int:
        return len(self.parties)

    def counts(self, split: Split) -> Tensor:
        """Number of items of `split` that each party trains on, or is evaluated on, `[parties]`."""
        return torch.bincount(self.party[self.masks[split]], minlength=len(self)).cpu()

    def per_item(self, values: Tensor) -> Tensor:
        """A value per party, repeated for each of its items."""
        return values.repeat_interleave(torch.tensor(self.items, device=values.device), dim=0)

    def take(self, positions: Sequence[int]) -> Cohort:
        """The cohort of the parties at these positions; all positions return this cohort itself."""
        key = tuple(positions)
        if key == tuple(range(len(self))):
            return self
        if key not in self._parts:
            while len(self._parts) >= 4:  # sampling asks for ever new ones; a few cover those that alternate
                self._parts.pop(next(iter(self._parts)))
            self._parts[key] = Cohort(tuple(self.parties[at] for at in key), self.device)
        return self._parts[key]

    def block_of(self, active: Sequence[bool]) -> Block:
        """The block without the nodes of inactive parties; every party keeps its position."""
        if all(active):
            return self.block
        key = tuple(active)
        if key not in self._blocks:
            while len(self._blocks) >= 4:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[key] = self._part(self._nodes_of(active), active)
        return self._blocks[key]

    def rows_of(self, items: Tensor, active: Sequence[bool] | None = None) -> Tensor:
        """The rows of `block_of(active)` that hold these items of the active parties (default: all).

        Returns:
            `[items]` for nodes; `[items, 2]` for the two nodes of pairs and of labelled edges.
        """
        if self.block.edge_label_index is not None:
            at = self.block.edge_label_index.t()[items]
            return at if active is None or all(active) else self._nodes_of(active).cumsum(0)[at] - 1
        at = items if self.pair_rows is None else self.pair_rows[items]
        return at if active is None or all(active) else self._nodes_of(active).cumsum(0)[at] - 1

    def _nodes_of(self, active: Sequence[bool]) -> Tensor:
        sizes = torch.tensor(self.sizes, device=self.device)
        return torch.tensor(list(active), device=self.device).repeat_interleave(sizes)

    def around_training(self, hops: int, *, trims: bool) -> tuple[Block, Tensor | None]:
        """What a model that reads so many hops of edges reads for all training items, and their rows in its output.

        None for the rows says that the output has a row per item, in order.

        It is kept, with what layers derive from it: without batches every step reads the same.

        Arguments:
            trims: layers leave out the rows that no training item needs.
        """
        key = hops, trims
        if key not in self._around_training:
            seeds = self.rows_of(self.masks["train"].nonzero().squeeze(1))
            part = self.block.neighbours.around(seeds.flatten(), (None,) * hops, self.sizes)
            block = self.block.restricted(replace(part, kept={}), trims=trims)
            at = part.rows_of(seeds, among_seeds=trims)
            if self.level == "edge":
                block = self.with_edges(block, at, self.masks["train"].nonzero().squeeze(1))
            in_order = self.level == "edge" or (trims and self.level == "node")
            self._around_training[key] = block, None if in_order else at
        return self._around_training[key]

    def with_edges(self, block: Block, ends: Tensor, items: Tensor) -> Block:
        """The block with these labelled edges to classify.

        Arguments:
            ends: the rows of their ends in the block, `[items, 2]`.
            items: their positions in the cohort, ascending.
        """
        attributes = self.block.edge_label_attr
        return replace(
            block,
            edge_label_index=ends.t(),
            edge_label_attr=None if attributes is None else attributes[items],
            edge_labels=tuple(torch.bincount(self.party[items], minlength=len(self)).tolist()),
        )

    def _part(self, included: Tensor, active: Sequence[bool]) -> Block:
        """The block of the nodes in the mask `included`, which have no edges to the others."""
        block = self.block
        edges = included[block.edge_index[0]]
        graphs = tuple(n if on else 0 for n, on in zip(block.graphs or self.items, active, strict=True))
        batch = None
        if block.batch is not None:
            present = torch.tensor(list(active), device=self.device)[self.party]
            batch = (present.cumsum(0) - 1)[block.batch[included]]
        return Block(
            x=rows.take(block.x, included.nonzero().squeeze(1)),
            edge_index=(included.cumsum(0) - 1)[block.edge_index[:, edges]],
            sizes=tuple(int(part.sum()) for part in included.split(self.sizes)),
            batch=batch,
            graphs=graphs if block.graphs else (),
            node_type=block.types_at(included),
            **block.edges_at(edges),
        )

    def graphs_of(self, chosen: Tensor) -> Block:
        """The graphs at these positions (sorted by party) as a block; every party keeps its position."""
        if self._last is None or not torch.equal(self._last[0], chosen):  # a full batch is the same every round
            self._last = chosen, self._graphs_of(chosen)
        return self._last[1]

    def _graphs_of(self, chosen: Tensor) -> Block:
        block, whole = self.block, self.block.part
        if not isinstance(whole, Graphs):
            raise IsthmusError("parties with one graph have no batches of graphs: use block_of")
        node_at, edge_at = rows.concat_ranges(whole.first[chosen], whole.nodes[chosen]), whole.edges_of(chosen)
        party = self.party[chosen]
        graphs = torch.bincount(party, minlength=len(self))
        sizes = torch.zeros(len(self), dtype=torch.long, device=self.device).index_add_(0, party, whole.nodes[chosen])
        columns = block.edges_at(edge_at)
        part = whole.some(chosen, edge_at, columns.get("edge_weight"))
        return Block(
            x=rows.take(block.x, node_at),
            edge_index=part.edge_index,
            sizes=tuple(sizes.tolist()),
            node_type=block.types_at(node_at),
            **columns,
            batch=torch.arange(chosen.numel(), device=self.device).repeat_interleave(whole.nodes[chosen]),
            graphs=tuple(graphs.tolist()),
            part=part,
        )


def _block(party: Party) -> Block:
    graph, many = party.graph, party.level == "graph"
    batch, graphs = (graph.batch, (party.items,)) if many else (None, ())
    types = None if party.schema is None else graph.node_type
    more: dict[str, Any] = party.per_edge()
    if party.level == "edge":
        more |= {name: graph.get(name) for name in ("edge_label_index", "edge_label_attr")}
        more["edge_labels"] = (party.items,)
    return Block(graph.x, graph.edge_index, (party.nodes,), batch=batch, graphs=graphs, node_type=types, **more)


def check_compatible(parties: Sequence[Party]) -> None:
    """Refuse parties that differ in level, number of features or shape of labels, or share a name."""
    if not parties:
        raise IsthmusError("there are no parties: a federation needs at least one")
    first = parties[0]
    features, shape, columns = first.features, first.graph.y.shape[1:], _listed(first.structural)
    edge_width, label_width = first.edge_width, first.label_width
    for party in parties:  # there may be very many
        if party.level != first.level:
            what = f"holds {party.level}s and party '{first.name}' {first.level}s: use one level"
        elif party.schema is not first.schema and party.schema != first.schema:
            known, other = (first, party) if party.schema is None else (party, first)
            assert known.schema is not None
            how = known.schema.difference(other.schema)
            what = f"and party '{first.name}' have different types of nodes and edges: {how}; give both one schema"
        elif party.edge_width != edge_width:
            what = (
                f"has {party.edge_width} features of an edge and party '{first.name}' {edge_width}: agree on the "
                "columns of edge_attr"
            )
        elif party.label_width != label_width:
            what = (
                f"has {party.label_width} features of a labelled edge and party '{first.name}' {label_width}: "
                "agree on the columns of edge_label_attr"
            )
        elif party.features != features:
            what = f"has {party.features} features and party '{first.name}' {features}: agree on one encoding"
        elif party.structural is not first.structural and _listed(party.structural) != columns:
            remedy = "give both the same columns that follow from the edges"
            what = f"and party '{first.name}' differ in 'structural': {remedy}"
        elif party.graph.y.shape[1:] != shape:
            what = f"and party '{first.name}' have labels of different shapes: make them equal"
        else:
            continue
        raise IsthmusError(f"party '{party.name}' {what}")
    names = [party.name for party in parties]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise IsthmusError(f"two parties have the name '{double}': rename one")


def _listed(columns: Tensor | None) -> list[int]:
    return [] if columns is None else columns.tolist()


def _ends(parties: Sequence[Party]) -> tuple[Tensor | None, tuple[dict[str, Tensor], ...]]:
    """`Cohort.pair_rows` and `Cohort.borrowed`."""
    if parties[0].pairs is None:
        return None, ()
    ends, borrowed = [], []
    start, slots = 0, sum(party.nodes for party in parties)
    for party in parties:
        assert party.pairs is not None
        assert party.ids is not None
        pairs, across = party.pairs, party.pairs.owner >= 0
        scored = across & (party.val | party.test)
        second = torch.full_like(pairs.first, -1)
        order = torch.argsort(party.ids)
        second[~across] = start + order[torch.searchsorted(party.ids[order], pairs.second[~across])]
        wanted = torch.stack([pairs.owner[scored], pairs.second[scored]])
        wanted, which = torch.unique(wanted, dim=1, return_inverse=True)
        second[scored] = slots + which
        ends.append(torch.stack([start + pairs.first, second], dim=1))
        owned = {name: wanted[1, wanted[0] == at] for at, name in enumerate(pairs.owners)}
        borrowed.append({name: ids for name, ids in owned.items() if ids.numel()})
        start, slots = start + party.nodes, slots + wanted.size(1)
    return torch.cat(ends), tuple(borrowed)


def concat_per_edge(columns: Sequence[Mapping[str, Tensor]], counts: Sequence[int]) -> dict[str, Any]:
    """Columns of edges one after another; where only some have weights, those of the others are 1.

    Arguments:
        counts: number of edges of each.
    """
    joined = {}
    for name in PER_EDGE:
        parts = [(each.get(name), count) for each, count in zip(columns, counts, strict=True)]
        known = [part for part, _ in parts if part is not None]
        if known:
            fill = 1 if name == "edge_weight" else 0
            missing = (
                known[0].new_full((count, *known[0].shape[1:]), fill) if part is None else part for part, count in parts
            )
            joined[name] = torch.cat(list(missing))
    return joined
