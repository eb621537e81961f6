"""The types of a graph's nodes and edges, and typed graphs as one flat graph.

A PyG `HeteroData` becomes one `Data`: the columns of all node types stand side by side in `x`, and each type's range
begins with a column of ones, so that any linear layer has a bias per type. Whatever handles one graph then handles
typed graphs too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError

EdgeType: TypeAlias = tuple[str, str, str]
"""The type of the source, the relation, the type of the target."""
_SPLITS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class Schema:
    """The types of a typed graph's nodes and edges, each with its number of columns. All parties of a study share it.

    Arguments:
        nodes: name and number of columns of each node type; a node's `node_type` is its position here.
        edges: type and number of columns of each edge type; an edge's `edge_type` is its position here.
        labelled: the node type whose nodes have labels; empty if whole graphs have.

    >>> schema = Schema((("account", 2), ("bank", 0)), ((("account", "at", "bank"), 1),), "account")
    >>> schema.width, schema.columns(0), schema.columns(1)
    (4, slice(0, 3, None), slice(3, 4, None))
    """

    nodes: tuple[tuple[str, int], ...]
    edges: tuple[tuple[EdgeType, int], ...]
    labelled: str = ""

    def __post_init__(self) -> None:
        names = self.node_types
        for kind, known in (("node", names), ("edge", self.edge_types)):
            if len(set(known)) < len(known):
                raise IsthmusError(f"schema: an {kind} type occurs twice: name each once")
        if not names or any(columns < 0 for _, columns in (*self.nodes, *self.edges)):
            raise IsthmusError("schema: it needs a node type, and numbers of columns are 0 or more")
        for source, relation, target in self.edge_types:
            if unknown := next((end for end in (source, target) if end not in names), None):
                raise IsthmusError(
                    f"schema: edges ({source}, {relation}, {target}) end at '{unknown}', which is no node type"
                )
        if self.labelled and self.labelled not in names:
            raise IsthmusError(f"schema: labels belong to '{self.labelled}', which is no node type")

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        return tuple(name for name, _ in self.edges)

    @cached_property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """The positions of the source's and the target's node type, for every edge type."""
        names = self.node_types
        return tuple((names.index(source), names.index(target)) for source, _, target in self.edge_types)

    @property
    def width(self) -> int:
        """Columns of `x`: those of all node types, and one of ones for each."""
        return sum(1 + columns for _, columns in self.nodes)

    @property
    def edge_width(self) -> int:
        """Columns of `edge_attr`: those of all edge types."""
        return sum(columns for _, columns in self.edges)

    def columns(self, at: int) -> slice:
        """The columns of `x` that belong to a node type; the first of them holds ones."""
        start, stop = list(accumulate((1 + columns for _, columns in self.nodes), initial=0))[at : at + 2]
        return slice(start, stop)

    def edge_columns(self, at: int) -> slice:
        """The columns of `edge_attr` that belong to an edge type."""
        start, stop = list(accumulate((columns for _, columns in self.edges), initial=0))[at : at + 2]
        return slice(start, stop)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values, which `of_dict` reads."""
        return {
            "nodes": [{"type": name, "columns": columns} for name, columns in self.nodes],
            "edges": [{"type": list(name), "columns": columns} for name, columns in self.edges],
            "labelled": self.labelled,
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Schema:
        nodes = tuple((str(each["type"]), int(each["columns"])) for each in values["nodes"])
        edges = tuple(((*map(str, each["type"]),), int(each["columns"])) for each in values["edges"])
        return cls(nodes, edges, str(values["labelled"]))  # type: ignore[arg-type]

    @classmethod
    def of(cls, graphs: Sequence[HeteroData], where: str = "graph", *, whole: bool = False) -> Schema:
        """The schema of some graphs: all types that one of them has, by name.

        Arguments:
            where: what messages call them, such as "party 'bank-a'".
            whole: whether the graphs have labels, not nodes.
        """
        nodes: dict[str, int] = {}
        edges: dict[EdgeType, int] = {}
        labelled: set[str] = set()
        for graph in graphs:
            for name in graph.node_types:
                _note(
                    nodes, name, _columns(graph[name].get("x"), f"{where}, nodes '{name}'", "x"), where, "nodes", name
                )
                labelled |= {name} if graph[name].get("y") is not None else set()
            for kind in graph.edge_types:
                what = f"edges {_text(kind)}"
                width = _columns(graph[kind].get("edge_attr"), f"{where}, {what}", "edge_attr")
                _note(edges, kind, width, where, "edges", _text(kind))
        if not whole and len(labelled) != 1:
            found = " and ".join(f"'{name}'" for name in sorted(labelled)) or "no node type"
            raise IsthmusError(f"{where}: {found} has y: give labels to the nodes of exactly one type")
        return cls(tuple(sorted(nodes.items())), tuple(sorted(edges.items())), "" if whole else labelled.pop())

    def flatten(self, graph: HeteroData, where: str) -> Data:
        """The typed graph as one flat graph: nodes by type in the schema's order, edges by type.

        Types that the graph lacks have no nodes and no edges. Nodes without labels have label -1, or NaN where labels
        are real numbers.

        Returns:
            `x` `[nodes, width]`, `node_type` `[nodes]`, `edge_index` `[2, edges]`, `edge_type` `[edges]`, `edge_attr`
            `[edges, edge_width]` if edges have columns, `edge_weight` if any type has it, `y` and the masks of splits.
        """
        self._check_types(graph, where)
        counts = [self._count(graph, name, where) for name in self.node_types]
        starts = list(accumulate(counts, initial=0))
        flat = Data(x=torch.zeros(starts[-1], self.width))
        flat.node_type = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        for at, (name, width) in enumerate(self.nodes):
            rows, columns = slice(starts[at], starts[at + 1]), self.columns(at)
            flat.x[rows, columns.start] = 1.0
            if width and counts[at]:
                flat.x[rows, columns.start + 1 : columns.stop] = _numbers(
                    graph[name].x, (counts[at], width), f"{where}, nodes '{name}'", "x"
                )
        self._flatten_edges(graph, flat, counts, starts, where)
        self._flatten_labels(graph, flat, starts, where)
        flat.num_nodes = starts[-1]
        return flat

    def _check_types(self, graph: HeteroData, where: str) -> None:
        for name in graph.node_types:
            if name not in self.node_types:
                raise IsthmusError(f"{where}: nodes '{name}' are not in the schema, which has {_list(self.node_types)}")
        for kind in graph.edge_types:
            if kind not in self.edge_types:
                known = ", ".join(map(_text, self.edge_types)) or "none"
                raise IsthmusError(f"{where}: edges {_text(kind)} are not in the schema, which has {known}")

    def _count(self, graph: HeteroData, name: str, where: str) -> int:
        if name not in graph.node_types:
            return 0
        store = graph[name]
        count = store.x.size(0) if store.get("x") is not None else store.num_nodes
        if count is None:
            raise IsthmusError(f"{where}: nodes '{name}' have neither x nor num_nodes: give one of them")
        return int(count)

    def _flatten_edges(
        self, graph: HeteroData, flat: Data, counts: Sequence[int], starts: Sequence[int], where: str
    ) -> None:
        index, types, attributes, weights = [torch.empty(2, 0, dtype=torch.long)], [], [], []
        weighted = any(graph[kind].get("edge_weight") is not None for kind in graph.edge_types)
        for at, (kind, width) in enumerate(self.edges):
            if kind not in graph.edge_types or graph[kind].get("edge_index") is None:
                continue
            store, what = graph[kind], f"{where}, edges {_text(kind)}"
            edges = torch.as_tensor(store.edge_index)
            if edges.dim() != 2 or edges.size(0) != 2 or edges.dtype != torch.long:
                raise IsthmusError(
                    f"{what}: edge_index is {edges.dtype} of shape {list(edges.shape)}, it must be torch.int64 of "
                    "shape [2, edges]"
                )
            for end, verb in enumerate(("start at", "point to")):
                of = self.ends[at][end]
                if edges.size(1) and not 0 <= int(edges[end].min()) <= int(edges[end].max()) < counts[of]:
                    wrong = int(edges[end][(edges[end] < 0) | (edges[end] >= counts[of])][0])
                    raise IsthmusError(
                        f"{what} {verb} node {wrong} of '{self.nodes[of][0]}', which has nodes 0 .. {counts[of] - 1}"
                    )
            index.append(edges + torch.tensor([[starts[end]] for end in self.ends[at]]))
            count = edges.size(1)
            types.append(torch.full((count,), at))
            row = torch.zeros(count, self.edge_width)
            if width:
                row[:, self.edge_columns(at)] = _numbers(store.get("edge_attr"), (count, width), what, "edge_attr")
            attributes.append(row)
            weights.append(
                torch.as_tensor(store.edge_weight) if weighted and "edge_weight" in store else torch.ones(count)
            )
        flat.edge_index = torch.cat(index, dim=1)
        flat.edge_type = torch.cat(types) if types else torch.empty(0, dtype=torch.long)
        if self.edge_width:
            flat.edge_attr = torch.cat(attributes) if attributes else torch.empty(0, self.edge_width)
        if weighted:
            flat.edge_weight = torch.cat(weights)

    def _flatten_labels(self, graph: HeteroData, flat: Data, starts: Sequence[int], where: str) -> None:
        if not self.labelled:
            flat.y = graph.get("y")
            return
        own = graph[self.labelled] if self.labelled in graph.node_types else {}
        at = self.node_types.index(self.labelled)
        rows, nodes = slice(starts[at], starts[at + 1]), starts[-1]
        if (y := own.get("y")) is None:
            if rows.start == rows.stop:
                raise IsthmusError(
                    f"{where}: it has no nodes '{self.labelled}', whose labels are learned: give it some"
                )
            raise IsthmusError(f"{where}: y of the nodes '{self.labelled}' is missing: give each a label")
        y = torch.as_tensor(y)
        if not y.dim() or y.size(0) != rows.stop - rows.start:
            raise IsthmusError(
                f"{where}: y of the nodes '{self.labelled}' has shape {list(y.shape)}, it must have "
                f"{rows.stop - rows.start} rows"
            )
        flat.y = torch.full((nodes, *y.shape[1:]), float("nan") if y.is_floating_point() else -1, dtype=y.dtype)
        flat.y[rows] = y
        for name in _SPLITS:
            if (split := own.get(name)) is not None:
                split = torch.as_tensor(split)
                if split.dtype != torch.bool or split.shape != (rows.stop - rows.start,):
                    raise IsthmusError(
                        f"{where}: {name} of the nodes '{self.labelled}' must be {rows.stop - rows.start} of torch.bool"
                    )
                flat[name] = torch.zeros(nodes, dtype=torch.bool)
                flat[name][rows] = split

    def unflatten(self, graph: Data) -> HeteroData:
        """The typed graph of a flat one, whatever the order of its nodes; it has the ones of no type.

        >>> typed = HeteroData()
        >>> typed["account"].x, typed["account"].y = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
        >>> typed["account", "pays", "account"].edge_index = torch.tensor([[0], [1]])
        >>> schema = Schema.of([typed])
        >>> schema.unflatten(schema.flatten(typed, "graph"))["account"].x.tolist()
        [[1.0], [2.0]]
        """
        typed = HeteroData()
        x = to_dense(graph.x)
        local = torch.empty(x.size(0), dtype=torch.long)
        for at, (name, width) in enumerate(self.nodes):
            rows, columns = (graph.node_type == at).nonzero().squeeze(1), self.columns(at)
            local[rows] = torch.arange(rows.numel())
            typed[name].num_nodes = rows.numel()
            if width:
                typed[name].x = x[rows, columns.start + 1 : columns.stop]
            if name == self.labelled:
                typed[name].y = graph.y[rows]
                for split in _SPLITS:
                    if graph.get(split) is not None:
                        typed[name][split] = graph[split][rows]
        for at, (kind, width) in enumerate(self.edges):
            chosen = graph.edge_type == at
            typed[kind].edge_index = local[graph.edge_index[:, chosen]]
            if width:
                typed[kind].edge_attr = graph.edge_attr[chosen][:, self.edge_columns(at)]
            if graph.get("edge_weight") is not None:
                typed[kind].edge_weight = graph.edge_weight[chosen]
        if not self.labelled and graph.get("y") is not None:
            typed.y = graph.y
        return typed

    def check(self, graph: Data, where: str) -> None:
        """Refuse a flat graph that is not of this schema."""
        nodes, edges = graph.x.size(0), graph.edge_index.size(1)
        node_type, edge_type, attributes = graph.get("node_type"), graph.get("edge_type"), graph.get("edge_attr")
        for what, values, count, kinds in (
            ("node_type", node_type, nodes, len(self.nodes)), ("edge_type", edge_type, edges, len(self.edges)),
        ):  # fmt: skip
            if values is None or values.shape != (count,) or values.dtype != torch.long:
                raise IsthmusError(f"{where}: {what} must be {count} of torch.int64, positions in its schema")
            if count and not 0 <= int(values.min()) <= int(values.max()) < kinds:
                raise IsthmusError(f"{where}: {what} names a type outside 0 .. {kinds - 1}")
        if graph.x.size(1) != self.width:
            raise IsthmusError(f"{where}: x has {graph.x.size(1)} columns, its schema has {self.width}")
        if (0 if attributes is None else attributes.size(1)) != self.edge_width:
            raise IsthmusError(f"{where}: edge_attr must have the {self.edge_width} columns of its schema")
        self.check_ends(node_type[graph.edge_index], edge_type, where)

    def check_ends(self, found: Tensor, edge_type: Tensor, where: str) -> None:
        """Refuse edges whose ends have other types than their own type says.

        Arguments:
            found: the types of both ends of every edge, `[2, edges]`; -1 where it is not known.
        """
        if not edge_type.numel():
            return
        wrong = ((found != torch.tensor(self.ends)[edge_type].t()) & (found >= 0)).any(0)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            names = [self.node_types[end] if end >= 0 else "another party's node" for end in found[:, at].tolist()]
            kind = _text(self.edge_types[int(edge_type[at])])
            raise IsthmusError(f"{where}: edge {at} of type {kind} joins '{names[0]}' to '{names[1]}'")

    def difference(self, other: Schema | None) -> str:
        """How another schema differs from this one, in a few words."""
        if other is None:
            return "one has no types"
        for what, own, others in (("nodes", self.nodes, other.nodes), ("edges", self.edges, other.edges)):
            for name, columns in own:
                known = dict(others).get(name)
                text = _text(name) if isinstance(name, tuple) else f"'{name}'"
                if known is None:
                    return f"{what} {text} are known to one only"
                if known != columns:
                    return f"{what} {text} have {columns} columns and {known}"
            if len(others) > len(own):
                return other.difference(self)
        return "their order or the labelled type" if self != other else "nothing"


@dataclass(frozen=True)
class Inputs:
    """What a model may read of the data.

    Arguments:
        features, edge_features: numbers of features of a node, and of an edge.
        schema: the types of both, of a typed graph.
        label_features: number of features of a labelled edge, where edges are classified.
        structural: positions of the features that follow from edges, of graphs without types.
    """

    features: int
    edge_features: int = 0
    schema: Schema | None = None
    label_features: int = 0
    structural: tuple[int, ...] = ()


SMALLEST = Inputs(1, 1, Schema((("node", 0),), ((("node", "to", "node"), 1),), "node"))
"""The least that any model reads: one feature of a node and one of an edge, of one type each."""


def _note(found: dict[Any, int], kind: Any, width: int | None, where: str, what: str, name: str) -> None:
    width = found.get(kind, 0) if width is None else width
    if found.setdefault(kind, width) != width:
        raise IsthmusError(f"{where}: {what} {name} have {found[kind]} columns in one graph and {width} in another")


def _columns(values: Any, where: str, what: str) -> int | None:
    if values is None:
        return None
    values = torch.as_tensor(values)
    if values.dim() not in (1, 2) or (what == "x" and values.dim() == 1):
        raise IsthmusError(f"{where}: {what} has shape {list(values.shape)}, it must have a row each")
    return int(values.size(1)) if values.dim() == 2 else 1


def _numbers(values: Any, shape: tuple[int, int], where: str, what: str) -> Tensor:
    """The values as finite real numbers of this shape."""
    if values is None:
        raise IsthmusError(f"{where}: {what} is missing, other graphs have {shape[1]} columns of it")
    values = to_dense(torch.as_tensor(values).detach())
    values = values.unsqueeze(1) if values.dim() == 1 else values
    if tuple(values.shape) != shape:
        raise IsthmusError(f"{where}: {what} has shape {list(values.shape)}, it must be {list(shape)}")
    if values.is_floating_point() and not bool(values.isfinite().all()):
        count = int((~values.isfinite()).sum())
        raise IsthmusError(f"{where}: {what} has {count} NaN or infinite values: replace them")
    return values.to(torch.get_default_dtype())


def _text(kind: EdgeType) -> str:
    return f"({', '.join(kind)})"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
