"""The data of one party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from isthmus.data import rows
from isthmus.data.labelled_edges import LabelledEdges, of_typed
from isthmus.data.level import Level
from isthmus.data.matrices import run_both_ways
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
