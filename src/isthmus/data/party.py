"""The data of one party, and several parties side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from isthmus.data import rows
from isthmus.data.labelled_edges import LabelledEdges, of_typed
from isthmus.data.level import Level
from isthmus.data.matrices import run_both_ways
from isthmus.data.neighbours import Graphs, Neighbours, NodeRange, SomeGraphs, Subgraph
from isthmus.data.schema import Inputs, Schema
from isthmus.data.validation import (
    as_tensor,
    check_splits,
    drop_unlabelled,
    validate_batch,
    validate_graph,
    validate_split,
)
from isthmus.errors import IsthmusError, PartyFailed

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
MOST_EDGES = 10_000_000
"""So many edges at most are looked at for whether they run both ways."""
PER_EDGE = ("edge_weight", "edge_type", "edge_attr")
"""Columns of edges that a graph may have."""
NAME_RULE = "letters, digits, spaces and other signs but no '/' and no '\\', and is more than '.' or '..'"
"""What a party's name may have. Files are named after parties."""


@dataclass(frozen=True, eq=False)
class Border:
    """Edges from nodes of other parties to a party's own. Both sides know the edge, only the owner a node's features.

    Edge b runs from the node with id `outer[b]` to the node at position `inner[b]`. Typed edges run one way, so a typed
    border also has the edges that leave.

    Arguments:
        inner: positions of own nodes, `[edges]`.
        outer: ids of the other parties' nodes, `[edges]`.
        owner: the index in `owners` of the party that holds the outer node, `[edges]`.
        owners: names of the other parties.
        weight: weights of the edges, `[edges]`, or none.
        edge_type: their types, `[edges]`, where the graph is typed.
        edge_attr: their features, `[edges, width]`, or none.
        leaving: mask of the edges that run from the inner to the outer node, `[edges]`; none where all arrive.
    """

    inner: Tensor
    outer: Tensor
    owner: Tensor
    owners: tuple[str, ...]
    weight: Tensor | None = None
    edge_type: Tensor | None = None
    edge_attr: Tensor | None = None
    leaving: Tensor | None = None

    def __len__(self) -> int:
        return self.inner.numel()

    @property
    def arriving(self) -> Border:
        """The border without the edges that leave."""
        return self if self.leaving is None else self.where(~self.leaving)

    @property
    def per_edge(self) -> dict[str, Tensor]:
        """Its columns of edges by the names that they have in a graph, see `PER_EDGE`."""
        columns = {"edge_weight": self.weight, "edge_type": self.edge_type, "edge_attr": self.edge_attr}
        return {name: column for name, column in columns.items() if column is not None}

    def where(self, chosen: Tensor) -> Border:
        """The border with these edges, a mask or positions."""
        more = (self.weight, self.edge_type, self.edge_attr, self.leaving)
        columns = (None if each is None else each[chosen] for each in more)
        return Border(self.inner[chosen], self.outer[chosen], self.owner[chosen], self.owners, *columns)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of nodes that a party classifies. Both parties know of a pair across them, as they do of a border edge.

    Arguments:
        first: positions of own nodes, `[pairs]`.
        second: ids of the other node of each pair, `[pairs]`.
        owner: the index in `owners` of the party that holds `second`; -1 if it is the party itself, `[pairs]`.
        owners: names of other parties.
        lent: positions of own nodes whose outputs other parties need to score their pairs, sorted by borrower, then
            id, `[lent]`.
        borrower: the index in `owners` of the party that needs each of these, ascending, `[lent]`.
    """

    first: Tensor
    second: Tensor
    owner: Tensor
    owners: tuple[str, ...]
    lent: Tensor
    borrower: Tensor

    def __len__(self) -> int:
        return self.first.numel()


@dataclass(frozen=True, eq=False, repr=False)
class Party:
    """One organisation's data: its graph or graphs, its border, its splits.

    A party holds one graph with classified nodes (`level="node"`), many small graphs that are classified whole
    (`level="graph"`; `graph` then is a PyG `Batch`), one graph with classified pairs of nodes for link prediction
    (`level="pair"`), or one graph with edges that have labels of their own (`level="edge"`). Build it with
    `Party.of_graph`, `Party.of_graphs` or `Party.of_edges`; `isthmus.data.pairs` makes pairs from a graph's edges.
    Features are a dense or a sparse CSR matrix (bags of words stay sparse).

    Attributes:
        graph: PyG `Data` with `x` `[nodes, features]`, `edge_index` `[2, edges]`, `y` (`[items]` classes, or
            `[items, tasks]` with NaN where a label is missing), optionally `edge_weight` `[edges]` and `edge_attr`
            `[edges, width]`; of a typed graph also `node_type` `[nodes]` and `edge_type` `[edges]`; with labelled
            edges also `edge_label_index` `[2, items]`, and `edge_label_attr` `[items, width]` if these have features.
        train, val, test: masks over the items (nodes, graphs, pairs or labelled edges), `[items]`; an item without any
            label is in none of them.
        ids: ids of the nodes, or of the graphs of a party with many; unique within the party. A node that two parties
            share has the same id at both.
        structural: columns of the features that follow from the edges, as degrees do, ascending; or none.
        schema: the types of nodes and edges, if the graph is typed.
    """

    name: str
    graph: Data
    level: Level
    train: Tensor
    val: Tensor
    test: Tensor
    ids: Tensor | None = None
    border: Border | None = None
    pairs: Pairs | None = None
    structural: Tensor | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or any(letter in self.name for letter in "/\\\0"):
            raise IsthmusError(f"party {self.name!r}: a party's name may have {NAME_RULE}")
        if (self.level == "pair") != (self.pairs is not None):
            raise IsthmusError(
                f"party '{self.name}' has level '{self.level}': level 'pair' needs pairs, and the others have none"
            )
        items = self.items
        if self.nodes == 0:
            raise IsthmusError(f"party '{self.name}' has no nodes: give it at least one, or remove the party")
        for split in SPLITS:
            if getattr(self, split).shape != (items,):
                raise IsthmusError(
                    f"party '{self.name}': mask '{split}' has shape {tuple(getattr(self, split).shape)}, "
                    f"but it has {items} {self.level}s"
                )
        _check_edges(self)
        if self.schema is not None:
            self.schema.check(self.graph, f"party '{self.name}'")
        what, count = ("graph", items) if self.level == "graph" else ("node", self.nodes)
        if self.ids is not None and not isinstance(self.ids, Tensor):
            object.__setattr__(self, "ids", as_tensor(self.ids, "ids", f"party '{self.name}'"))
        if self.ids is not None and (self.ids.shape != (count,) or self.ids.unique().numel() < count):
            raise IsthmusError(f"party '{self.name}': ids must be {count} different numbers, one per {what}")
        if self.border is not None and len(self.border) and self.ids is None:
            raise IsthmusError(f"party '{self.name}' has a border but no ids: other parties refer to its nodes by id")
        if self.graph.y is None or self.graph.y.size(0) != items:
            raise IsthmusError(f"party '{self.name}' needs one label row for each of its {items} {self.level}s")
        if self.pairs is not None:
            _check_pairs(self, self.pairs)
        if self.level == "edge":
            LabelledEdges.of_party(self.graph).check(self.nodes, f"party '{self.name}'")
        if self.structural is not None and not _are_columns(self.structural, self.features):
            raise IsthmusError(
                f"party '{self.name}': structural must be ascending feature columns within 0 .. {self.features - 1}"
            )

    @classmethod
    def unchecked(
        cls,
        name: str,
        graph: Data,
        level: Level,
        *,
        train: Tensor,
        val: Tensor,
        test: Tensor,
        ids: Tensor | None = None,
        border: Border | None = None,
        structural: Tensor | None = None,
        schema: Schema | None = None,
    ) -> Party:
        """A party without the checks of `Party(...)`, for code that builds it from the data of a checked party.

        The checks of a small party take longer than cutting it out of a pool.
        """
        party = object.__new__(cls)
        fields = {"train": train, "val": val, "test": test, "ids": ids, "border": border, "structural": structural}
        vars(party).update(name=name, graph=graph, level=level, pairs=None, schema=schema, **fields)
        return party

    @classmethod
    def of_graph(
        cls,
        name: str,
        graph: Data | HeteroData,
        *,
        ids: Tensor | Mapping[str, Tensor] | None = None,
        border: Border | None = None,
        structural: Tensor | None = None,
        schema: Schema | None = None,
    ) -> Party:
        """A party with one graph; its `train_mask`, `val_mask` and `test_mask` are the splits (none: empty).

        Arguments:
            graph: of nodes of one type or, as a `HeteroData`, of several; then one type has `y`, and the splits.
            ids: ids of the nodes; of a typed graph by type, or in the order of the schema's types.
            schema: of a typed graph, for types that it lacks and other parties have; else the graph's own types.

        >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0]))
        >>> graph.train_mask = torch.tensor([True, False, False])
        >>> Party.of_graph("bank-a", graph).items
        3
        """
        where = f"party '{name}'"
        if isinstance(graph, HeteroData):
            schema = Schema.of([graph], where) if schema is None else schema
            graph = schema.flatten(graph, where)
        elif schema is not None:
            raise IsthmusError(f"{where}: a schema is for a typed graph: give a torch_geometric.data.HeteroData")
        if isinstance(ids, Mapping):
            ids = _ids_by_type(ids, graph, schema, where)
        valid = validate_graph(graph, where)
        nodes = int(valid.num_nodes or 0)
        masks: dict[str, Tensor] = {s: validate_split(graph.get(f"{s}_mask"), nodes, where) for s in SPLITS}
        splits: dict[str, Any] = drop_unlabelled(masks, valid.y)
        party = cls(name, valid, "node", ids=ids, border=border, structural=structural, schema=schema, **splits)
        check_splits(masks, valid.y, where)
        return party

    @classmethod
    def of_edges(
        cls,
        name: str,
        graph: Data | HeteroData,
        *,
        train: Tensor | None = None,
        val: Tensor | None = None,
        test: Tensor | None = None,
        ids: Tensor | Mapping[str, Tensor] | None = None,
        border: Border | None = None,
        structural: Tensor | None = None,
        schema: Schema | None = None,
    ) -> Party:
        """A party with one graph, some of whose edges have labels; `train`, `val`, `test` are masks or positions.

        Arguments:
            graph: with `edge_label`, a row for each labelled edge. These are the columns of `edge_label_index`, with
                features `edge_label_attr` if there are any; without it those of `edge_index`, with `edge_attr`. In a
                `HeteroData` exactly one edge type has `edge_label`. Other edges may lead models to the labelled ones.
            ids, border, structural, schema: as in `of_graph`.

        >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 2], [1, 0, 0]]))
        >>> graph.edge_label = torch.tensor([0, 1, 0])
        >>> Party.of_edges("bank-a", graph, train=torch.tensor([0, 1])).items
        3
        """
        where = f"party '{name}'"
        if isinstance(graph, HeteroData):
            schema = replace(Schema.of([graph], where, whole=True) if schema is None else schema, labelled="")
            flat = schema.flatten(graph, where)
            edges = of_typed(graph, schema, flat, where)
        else:
            if not isinstance(graph, Data):
                raise IsthmusError(f"{where}: a graph must be a Data or a HeteroData, not a {type(graph).__name__}")
            if schema is not None:
                raise IsthmusError(f"{where}: a schema is for a typed graph: give a torch_geometric.data.HeteroData")
            flat, edges = copy(graph), LabelledEdges.of(graph, where)
        if isinstance(ids, Mapping):
            ids = _ids_by_type(ids, flat, schema, where)
        flat.y = edges.y
        valid = validate_graph(flat, where)
        valid.edge_label_index = edges.index
        if edges.attr is not None:
            valid.edge_label_attr = edges.attr
        valid.num_nodes = valid.x.size(0)
        splits = {"train": train, "val": val, "test": test}
        masks = {split: validate_split(value, edges.index.size(1), where) for split, value in splits.items()}
        labelled: dict[str, Any] = drop_unlabelled(masks, valid.y)
        party = cls(name, valid, "edge", ids=ids, border=border, structural=structural, schema=schema, **labelled)
        check_splits(masks, valid.y, where)
        return party

    @classmethod
    def of_graphs(
        cls,
        name: str,
        graphs: Sequence[Data] | Sequence[HeteroData],
        *,
        train: Tensor | None = None,
        val: Tensor | None = None,
        test: Tensor | None = None,
        ids: Tensor | None = None,
        structural: Tensor | None = None,
        schema: Schema | None = None,
    ) -> Party:
        """A party with many graphs; `train`, `val`, `test` are masks or positions over them, `ids` has one for each.

        Typed graphs (`HeteroData`) have `y` of their own and one schema: the one given, or all types that some have.
        """
        where = f"party '{name}'"
        if not graphs:
            raise IsthmusError(f"{where} has no graphs: give it at least one, or remove the party")
        typed = [graph for graph in graphs if isinstance(graph, HeteroData)]
        if typed:
            if len(typed) < len(graphs):
                raise IsthmusError(f"{where}: some of its graphs are typed and some are not: make them alike")
            schema = Schema.of(typed, where, whole=True) if schema is None else schema
            graphs = [schema.flatten(graph, f"{where}, graph {at}") for at, graph in enumerate(typed)]
        valid = [validate_graph(graph, f"{where}, graph {at}") for at, graph in enumerate(graphs)]
        if len({graph.x.size(1) for graph in valid}) > 1 or len({graph.y.shape for graph in valid}) > 1:
            raise IsthmusError(f"{where}: its graphs differ in number of features or shape of labels: make them equal")
        if len({None if graph.get("edge_attr") is None else graph.edge_attr.size(1) for graph in valid}) > 1:
            raise IsthmusError(
                f"{where}: its graphs differ in the width of edge_attr: give all of them the same columns"
            )
        batch = Batch.from_data_list(valid)
        return cls._of_valid_batch(name, batch, {"train": train, "val": val, "test": test}, ids, structural, schema)

    @classmethod
    def of_batch(
        cls,
        name: str,
        graph: Data,
        *,
        train: Tensor | None = None,
        val: Tensor | None = None,
        test: Tensor | None = None,
        ids: Tensor | None = None,
        structural: Tensor | None = None,
    ) -> Party:
        """A party with many graphs that are in one `Data` already, as in a PyG `Batch`.

        Arguments:
            graph: `x`, `edge_index` and perhaps `edge_weight` and `edge_attr` of all graphs, one after another;
                `batch`, the graph of every node, ascending, `[nodes]`; `y`, a row for every graph.
            train, val, test: masks or positions over the graphs.
            ids: ids of the graphs, `[graphs]`.

        >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
        >>> graph.batch = torch.tensor([0, 0, 1])
        >>> Party.of_batch("lab-a", graph, train=torch.tensor([0])).items
        2
        """
        where = f"party '{name}'"
        valid = validate_graph(graph, where)
        valid.num_graphs = valid.y.size(0) if valid.y.dim() else 0
        if not valid.num_graphs:
            raise IsthmusError(f"{where} has no graphs: give it at least one, or remove the party")
        valid.batch = validate_batch(graph.get("batch"), valid.num_nodes, valid.num_graphs, where)
        return cls._of_valid_batch(name, valid, {"train": train, "val": val, "test": test}, ids, structural)

    @classmethod
    def _of_valid_batch(
        cls,
        name: str,
        batch: Data,
        splits: Mapping[str, Tensor | None],
        ids: Tensor | None,
        structural: Tensor | None,
        schema: Schema | None = None,
    ) -> Party:
        where = f"party '{name}'"
        masks = {split: validate_split(value, batch.num_graphs, where) for split, value in splits.items()}
        check_splits(masks, batch.y, where)
        labelled: dict[str, Any] = drop_unlabelled(masks, batch.y)
        return cls(name, batch, "graph", ids=ids, structural=structural, schema=schema, **labelled)

    def outline(self) -> Party:
        """The party's labels, splits, ids and sizes; its features, edges and border take no memory.

        They are zeros, but for edges that do not run both ways, which all join the first two nodes.
        """
        graph = Data(x=_zeros(self.nodes, self.features), y=self.graph.y)
        graph.edge_index = torch.tensor([[0], [int(not self.both_ways)]]).expand(2, self.edges)
        graph.num_nodes = self.nodes
        if self.weighted:
            graph.edge_weight = _zeros(self.edges)
        if self.edge_width:
            graph.edge_attr = _zeros(self.edges, self.edge_width)
        if self.schema is not None:
            graph.node_type = self.graph.node_type
            graph.edge_type = _zeros(self.edges, dtype=torch.long)
        if self.level == "graph":
            graph.num_graphs = self.items
        if self.level == "edge":
            graph.edge_label_index = _zeros(2, self.items, dtype=torch.long)
        if self.label_width:
            graph.edge_label_attr = _zeros(self.items, self.label_width)
        border = None
        if self.border is not None:
            nowhere = _zeros(len(self.border), dtype=torch.long)
            border = Border(nowhere, nowhere, nowhere, self.border.owners, leaving=self.border.leaving)
        masks = {split: getattr(self, split) for split in SPLITS}
        kept: dict[str, Any] = {"ids": self.ids, "structural": self.structural, "schema": self.schema}
        return Party.unchecked(self.name, graph, self.level, border=border, **kept, **masks)

    @property
    def nodes(self) -> int:
        return int(self.graph.num_nodes or 0)

    @property
    def edges(self) -> int:
        """Directed edges, without those of the border."""
        return int(self.graph.edge_index.size(1))

    @property
    def items(self) -> int:
        """Number of classified nodes, graphs, pairs of nodes or edges."""
        if self.pairs is not None:
            return len(self.pairs)
        if self.level == "edge":
            return int(self.graph.edge_label_index.size(1))
        return self.nodes if self.level == "node" else int(self.graph.num_graphs)

    @property
    def labelled_type(self) -> Tensor | None:
        """Mask of the nodes of the type that has labels, `[nodes]`; none where all nodes, or graphs, have."""
        if self.schema is None or not self.schema.labelled:
            return None
        mask: Tensor = self.graph.node_type == self.schema.node_types.index(self.schema.labelled)
        return mask

    @property
    def training_mask(self) -> Tensor:
        """Mask of the items that the party trains on; of pairs only those with two own nodes, `[items]`."""
        return self.train if self.pairs is None else self.train & (self.pairs.owner < 0)

    @property
    def features(self) -> int:
        return int(self.graph.x.size(1))

    @property
    def edge_width(self) -> int:
        """Number of features of an edge, the columns of `edge_attr`."""
        attributes = self.graph.get("edge_attr")
        return 0 if attributes is None else int(attributes.size(1))

    @property
    def label_width(self) -> int:
        """Number of features of a labelled edge, the columns of `edge_label_attr`."""
        attributes = self.graph.get("edge_label_attr")
        return 0 if attributes is None else int(attributes.size(1))

    @property
    def weighted(self) -> bool:
        """Whether edges have weights other than 1."""
        weight = self.graph.get("edge_weight")
        return weight is not None and bool((weight != 1).any())

    @property
    def both_ways(self) -> bool:
        """Whether edges within the party run both ways; very many are taken to do so."""
        return self.edges > MOST_EDGES or run_both_ways(self.graph.edge_index.cpu(), None, self.nodes)

    @property
    def inputs(self) -> Inputs:
        """What a model may read of the party's data."""
        structural = () if self.structural is None or self.schema is not None else tuple(self.structural.tolist())
        return Inputs(self.features, self.edge_width, self.schema, self.label_width, structural)

    def __repr__(self) -> str:
        splits = ", ".join(f"{int(getattr(self, name).sum()):,} {name}" for name in SPLITS)
        held = f"{self.nodes:,} nodes, {self.edges:,} edges, {self.features:,} features"
        return f"Party({self.name!r}: {held}; of {self.items:,} {self.level}s {splits})"

    def without_structural(self, remedy: str) -> Party:
        """The party with zeros in place of features that follow from its edges; an error if nothing is left."""
        if self.structural is None or not self.structural.numel():
            return self
        graph = copy(self.graph)
        graph.x = rows.zero_columns(graph.x, self.structural)
        if not bool((graph.x.values() if rows.is_sparse(graph.x) else graph.x).any()):
            raise PartyFailed(self.name, f"all its features follow from its edges: {remedy}")
        return self.with_graph(graph, self.border)

    def per_edge(self) -> dict[str, Any]:
        """The columns of edges that the graph has, see `PER_EDGE`."""
        return {name: self.graph[name] for name in PER_EDGE if self.graph.get(name) is not None}

    def with_edges(self, edge_index: Tensor) -> Party:
        """The party with other edges, of which nothing but their ends is known, and without those of its border."""
        graph = copy(self.graph)
        for name in self.per_edge():
            del graph[name]
        graph.edge_index, graph.num_nodes = edge_index, self.nodes
        return self.with_graph(graph)

    def without_edge_features(self) -> Party:
        """The party without `edge_attr`; itself if it has none."""
        if not self.edge_width:
            return self
        graph = copy(self.graph)
        del graph.edge_attr
        graph.num_nodes = self.nodes
        return self.with_graph(graph, None if self.border is None else replace(self.border, edge_attr=None))

    def with_graph(self, graph: Data, border: Border | None = None) -> Party:
        """The party with another graph of the same nodes, without the checks of `Party(...)`."""
        party = object.__new__(Party)
        vars(party).update({**vars(self), "graph": graph, "border": border})
        return party

    def typed(self) -> HeteroData:
        """The party's graph, of several types, as PyG's `HeteroData`."""
        if self.schema is None:
            raise IsthmusError(f"party '{self.name}' has nodes of one type only: read its `graph`")
        typed = self.schema.unflatten(self.graph)
        if self.level == "node":
            own = self.labelled_type
            for split in SPLITS:
                typed[self.schema.labelled][f"{split}_mask"] = getattr(self, split)[own]
        return typed


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


def pool_parties(parties: Sequence[Party], name: str = "pooled") -> Party:
    """All parties' data as one party: the upper bound that federated learning cannot use.

    Nodes with the same id become one node, and border edges become edges. An edge that several parties hold counts as
    often as at the one that repeats it most. A node is in the training split if any of its parties has it there, else
    in validation if any has, else in testing. Pairs of all parties follow each other, without those with a node that no
    party holds. So do labelled edges, and whole graphs; these keep their ids if they differ.

    A node has the label that the first of its holders has that knows one, and the features of the holder that knows
    most of them: in most columns it has another value than 0. Of several such holders it is the first.
    """
    check_compatible(parties)
    cohort = Cohort(tuple(parties))
    if cohort.level == "graph" or any(party.ids is None for party in parties):
        block = cohort.block
        graph = Data(x=block.x, edge_index=block.edge_index, y=cohort.y, **block.per_edge)
        graph.num_nodes, graph.batch = block.nodes, block.batch
        if block.node_type is not None:
            graph.node_type = block.node_type
        if block.edge_label_index is not None:
            graph.edge_label_index = block.edge_label_index
        if block.edge_label_attr is not None:
            graph.edge_label_attr = block.edge_label_attr
        graph.num_graphs = sum(cohort.items) if cohort.level == "graph" else None
        known = [party.ids for party in parties if party.ids is not None and cohort.level == "graph"]
        ids = torch.cat(known) if len(known) == len(parties) else None
        ids = None if ids is None or ids.unique().numel() < ids.numel() else ids
        return Party(name, graph, cohort.level, ids=ids, **_of_all(parties, cohort.masks))
    ids = torch.cat([party.ids for party in parties if party.ids is not None])
    known, where = torch.unique(ids, return_inverse=True)
    first = torch.full((known.numel(),), ids.numel()).scatter_reduce(0, where, torch.arange(ids.numel()), "amin")
    edges, columns = [where[cohort.block.edge_index]], [cohort.block.per_edge]
    holders = [torch.full((party.edges,), at) for at, party in enumerate(parties)]
    start = 0
    for number, party in enumerate(parties):
        if party.border is not None and len(party.border):
            border = party.border
            outer = torch.searchsorted(known, border.outer)
            inside = (outer < known.numel()) & (known[outer.clamp(max=known.numel() - 1)] == border.outer)
            ends = torch.stack([outer, where[start + border.inner]])
            ends = ends if border.leaving is None else torch.where(border.leaving, ends.flip(0), ends)
            edges.append(ends[:, inside])
            columns.append({key: column[inside] for key, column in border.per_edge.items()})
            holders.append(torch.full((edges[-1].size(1),), number))
        start += party.nodes
    per_edge = concat_per_edge(columns, [edge.size(1) for edge in edges])
    edge_index = torch.cat(edges, dim=1)
    at = _unique_edges(edge_index, known.numel(), per_edge, torch.cat(holders))
    graph = Data(x=rows.take(cohort.block.x, _fullest(cohort.block.x, where, first)), edge_index=edge_index[:, at])
    graph.update({key: column[at] for key, column in per_edge.items()})
    if cohort.block.node_type is not None:
        graph.node_type = cohort.block.node_type[first]
    graph.y = cohort.y if cohort.level in ("pair", "edge") else _first_labels(cohort.y, where, first)
    graph.num_nodes = known.numel()
    if cohort.level == "pair":
        return _pooled_pairs(name, graph, known, parties)
    if cohort.block.edge_label_index is not None:
        graph.edge_label_index = where[cohort.block.edge_label_index]
        if cohort.block.edge_label_attr is not None:
            graph.edge_label_attr = cohort.block.edge_label_attr
        return Party(name, graph, "edge", ids=known, **_of_all(parties, cohort.masks))
    masks = {split: torch.zeros(known.numel(), dtype=torch.bool) for split in SPLITS}
    for split in SPLITS:
        masks[split][where[cohort.masks[split]]] = True
    masks["val"] &= ~masks["train"]
    masks["test"] &= ~(masks["train"] | masks["val"])
    return Party(name, graph, "node", ids=known, **_of_all(parties, masks))


def _of_all(parties: Sequence[Party], masks: Mapping[Any, Tensor]) -> dict[str, Any]:
    """The fields of a pooled party that follow from any party, and its splits."""
    return {"structural": parties[0].structural, "schema": parties[0].schema, **masks}


def _fullest(x: Tensor, where: Tensor, first: Tensor) -> Tensor:
    """For each pooled node, the first of its rows with the most values other than 0.

    Arguments:
        where: the pooled node of each row.
        first: the first row of each pooled node.
    """
    if first.numel() == where.numel():
        return first
    shared = (torch.bincount(where) > 1)[where].nonzero().flatten()
    own = rows.take(x, shared)
    known = (own != 0).sum(1) if own.layout == torch.strided else own.crow_indices().diff()
    order = known * where.numel() + (where.numel() - 1 - shared)  # ties go to the first row
    best = torch.full_like(first, -1).scatter_reduce(0, where[shared], order, "amax")
    return torch.where(best < 0, first, where.numel() - 1 - best % where.numel())


def _first_labels(y: Tensor, where: Tensor, first: Tensor) -> Tensor:
    """The label of each pooled node: of the first row that has one, task by task; without any, of its first row.

    Arguments:
        where: the pooled node of each row.
        first: the first row of each pooled node.
    """
    flat = y.view(len(y), -1)
    known = ~flat.isnan() if flat.is_floating_point() else flat >= 0
    row = torch.arange(len(y))[:, None].expand_as(flat)
    row = row.masked_fill(~known, len(y))
    labelled = torch.full((len(first), flat.size(1)), len(y))
    labelled = labelled.scatter_reduce(0, where[:, None].expand_as(flat), row, "amin")
    labelled = torch.where(labelled < len(y), labelled, first[:, None])
    return flat.gather(0, labelled).view(-1, *y.shape[1:])


def _pooled_pairs(name: str, graph: Data, ids: Tensor, parties: Sequence[Party]) -> Party:
    """The pooled graph with the pairs of all parties."""
    pairs = [(party.ids, party.pairs) for party in parties if party.ids is not None and party.pairs is not None]
    first = torch.cat([own[each.first] for own, each in pairs])
    second = torch.cat([each.second for _, each in pairs])
    held = torch.isin(second, ids)
    first, second, none = first[held], second[held], torch.empty(0, dtype=torch.long)
    pooled = Pairs(torch.searchsorted(ids, first), second, torch.full_like(first, -1), (), none, none)
    masks = {split: torch.cat([getattr(party, split) for party in parties])[held] for split in SPLITS}
    graph.y = graph.y[held]
    return Party(name, graph, "pair", ids=ids, border=None, pairs=pooled, schema=parties[0].schema, **masks)


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


def _check_pairs(party: Party, pairs: Pairs) -> None:
    where = f"party '{party.name}'"
    if party.ids is None:
        raise IsthmusError(f"{where} has pairs but no ids: a pair refers to its second node by id")
    if not pairs.first.shape == pairs.second.shape == pairs.owner.shape or pairs.lent.shape != pairs.borrower.shape:
        raise IsthmusError(f"{where}: the fields of its pairs have different lengths: give one entry per pair")
    if bool((pairs.borrower[1:] < pairs.borrower[:-1]).any()):
        raise IsthmusError(f"{where}: its lent nodes must be sorted by borrower: sort `borrower`, and `lent` with it")
    nodes, owners = party.nodes, len(pairs.owners)
    for what, values, lowest, stop in (
        ("a node", pairs.first, 0, nodes), ("an owner", pairs.owner, -1, owners),
        ("a lent node", pairs.lent, 0, nodes), ("a borrower", pairs.borrower, 0, owners),
    ):  # fmt: skip
        if values.numel() and not lowest <= int(values.min()) <= int(values.max()) < stop:
            raise IsthmusError(f"{where}: a pair names {what} outside {lowest} .. {stop - 1}")
    if not bool(torch.isin(pairs.second[pairs.owner < 0], party.ids).all()):
        raise IsthmusError(f"{where}: a pair within the party names an id that none of its nodes has")


def _are_columns(values: Tensor, width: int) -> bool:
    if values.dim() != 1 or values.dtype != torch.long:
        return False
    return not values.numel() or bool((values.diff() > 0).all() and values[0] >= 0 and values[-1] < width)


def _check_edges(party: Party) -> None:
    edges, nodes, where = party.graph.edge_index, party.nodes, f"party '{party.name}'"
    if edges is None or edges.dim() != 2 or edges.size(0) != 2 or edges.dtype != torch.long:
        actual = "missing" if edges is None else f"{edges.dtype} of shape {list(edges.shape)}"
        raise IsthmusError(f"{where}: edge_index is {actual}, it must be torch.int64 of shape [2, edges]")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        end, at = ((edges < 0) | (edges >= nodes)).nonzero()[0].tolist()
        verb = "points to" if end else "starts at"
        node = int(edges[end, at])
        raise IsthmusError(f"{where}: edge {at} {verb} node {node}, but its nodes are 0 .. {nodes - 1}")
    if party.level == "graph" and bool((party.graph.batch[edges[0]] != party.graph.batch[edges[1]]).any()):
        raise IsthmusError(f"{where}: an edge joins two graphs: number the nodes of each graph from 0")
    border = party.border
    if border is None:
        return
    more = {} if border.leaving is None else {"leaving": border.leaving}
    per_edge = [column.shape[:1] for column in (border.per_edge | more).values()]
    if not border.inner.shape == border.outer.shape == border.owner.shape or any(
        shape != border.inner.shape for shape in per_edge
    ):
        raise IsthmusError(
            f"{where}: inner, outer and owner of its border have different lengths: give one each per edge"
        )
    width = 0 if border.edge_attr is None else border.edge_attr.size(1)
    if width != party.edge_width or (border.edge_type is None) != (party.schema is None):
        raise IsthmusError(f"{where}: edges of its border have other columns than its own: give both the same ones")
    if party.schema is not None and border.edge_type is not None:
        inner = party.graph.node_type[border.inner]
        ends = torch.stack([torch.full_like(inner, -1), inner])
        ends = ends if border.leaving is None else torch.where(border.leaving, ends.flip(0), ends)
        party.schema.check_ends(ends, border.edge_type, f"{where}, border")
    if not len(border):
        return
    for what, values, count in (("inner node", border.inner, nodes), ("owner", border.owner, len(border.owners))):
        if not 0 <= int(values.min()) <= int(values.max()) < count:
            raise IsthmusError(f"{where}: a border edge names an {what} outside 0 .. {count - 1}")


def _unique_edges(edge_index: Tensor, nodes: int, per_edge: Mapping[str, Tensor], holder: Tensor) -> Tensor:
    """The first of the edges that are equal but for their weights and holders; a holder's second of them is another."""
    key = edge_index[0] * nodes + edge_index[1]
    if (kind := per_edge.get("edge_type")) is not None and kind.numel():
        key = key * (int(kind.max()) + 1) + kind
    if (attributes := per_edge.get("edge_attr")) is not None:
        for column in attributes.unbind(1):  # column by column, because torch compares whole rows slowly
            values, code = torch.unique(column, return_inverse=True)
            key = torch.unique(key, return_inverse=True)[1] * values.numel() + code
    key, holders = torch.unique(key, return_inverse=True)[1], int(holder.max()) + 1 if holder.numel() else 1
    _, own, repeats = torch.unique(key * holders + holder, return_inverse=True, return_counts=True)
    order, count = own.argsort(stable=True), torch.arange(own.numel())
    repeat = torch.empty_like(count)  # which of its holder's equal edges each is
    repeat[order] = count - (repeats.cumsum(0) - repeats)[own[order]]
    groups, where = torch.unique(key * (count.numel() + 1) + repeat, return_inverse=True)
    return torch.full_like(groups, where.numel()).scatter_reduce(0, where, count, "amin")


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


def _ids_by_type(ids: Mapping[str, Tensor], graph: Data, schema: Schema | None, where: str) -> Tensor:
    """The ids of all nodes from those of each type."""
    if schema is None or not isinstance(graph, Data):
        raise IsthmusError(f"{where}: ids by type are for a typed graph: give one tensor")
    if unknown := next((name for name in ids if name not in schema.node_types), None):
        raise IsthmusError(f"{where}: ids name '{unknown}', which is no node type of the schema")
    counts = torch.bincount(graph.node_type, minlength=len(schema.nodes)).tolist()
    for name, count in zip(schema.node_types, counts, strict=True):
        if len(ids.get(name, ())) != count:
            raise IsthmusError(f"{where}: nodes '{name}' have {len(ids.get(name, ()))} ids, they need {count}")
    known = [torch.as_tensor(ids[name]) for name, count in zip(schema.node_types, counts, strict=True) if count]
    return torch.cat(known)


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=dtype).expand(shape)
