"""Encoders of typed graphs: R-GCN, heterogeneous GraphSAGE and HGT.

A layer reads the rows of each node type from one flat matrix (see `isthmus.data.schema`) and writes the same way. It
computes only types that a later layer or the task reads, and has weights for no others: they would never be trained,
but travel.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.utils import softmax

from isthmus.data.level import Level
from isthmus.data.schema import Schema
from isthmus.errors import IsthmusError
from isthmus.nn.encoders import Embedder, Encoder, MessagePassing
from isthmus.nn.pointwise import gelu, sigmoid
from isthmus.nn.products import ALIGNED, Propagation
from isthmus.nn.side_by_side import Access, Last, Layer, Rows


class Relation:
    """The edges of one type, between positions among the nodes of the source's and of the target's type.

    Arguments:
        source, target: `[edges]`.
        shape: numbers of nodes of the target's and of the source's type.
        attributes: features of these edges, `[edges, columns]`, or none.
    """

    def __init__(self, source: Tensor, target: Tensor, shape: tuple[int, int], attributes: Tensor | None) -> None:
        self.source, self.target, self.shape = source, target, shape
        self._mean: Propagation | None = None
        self.mean_attributes = None
        count = torch.bincount(target, minlength=shape[0]).clamp(min=1)
        self._share = count.reciprocal()[target]
        if attributes is not None:
            total = attributes.new_zeros(shape[0], attributes.size(1)).index_add_(0, target, attributes)
            self.mean_attributes = total / count.unsqueeze(1)

    def mean(self, x: Tensor) -> Tensor:
        """For every node of the target's type the mean over its in-neighbours; zeros without any."""
        if self._mean is None:
            into, nodes = self.shape
            edges = torch.stack([self.source, self.target])
            self._mean = Propagation(edges, self._share.to(x.dtype), nodes, into)
        return self._mean @ x


class TypedGraph:
    """A flat graph taken apart by type.

    Attributes:
        rows: for every node type the positions of its nodes, ascending.
        relations: for every edge type its edges.
    """

    def __init__(
        self, node_type: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor | None, schema: Schema
    ) -> None:
        kinds = len(schema.nodes)
        self.order = torch.argsort(node_type, stable=True)
        self.counts: list[int] = torch.bincount(node_type, minlength=kinds).tolist()
        self.rows = [Rows(part) for part in self.order.split(self.counts)]
        self.place = torch.empty_like(self.order)
        self.place[self.order] = torch.arange(self.order.numel(), device=self.order.device)
        self.sorted = bool((node_type[1:] >= node_type[:-1]).all())  # one party, whose nodes follow each other by type
        starts = torch.tensor(self.counts, device=node_type.device).cumsum(0) - torch.tensor(
            self.counts, device=node_type.device
        )
        by_type = torch.argsort(edge_type, stable=True)
        edges = by_type.split(torch.bincount(edge_type, minlength=len(schema.edges)).tolist())
        local = self.place[edge_index]
        self.relations = []
        for at, ((source, target), own) in enumerate(zip(schema.ends, edges, strict=True)):
            ends = local[:, own] - torch.stack([starts[source], starts[target]]).unsqueeze(1)
            columns = schema.edge_columns(at)
            attributes = None if edge_attr is None or columns.start == columns.stop else edge_attr[own][:, columns]
            shape = (self.counts[target], self.counts[source])
            self.relations.append(Relation(ends[0], ends[1], shape, attributes))

    def by_type(self, x: Tensor) -> Sequence[Tensor]:
        """The rows of each type."""
        return (x if self.sorted else x.index_select(0, self.order)).split(self.counts)

    def flat(self, parts: Sequence[Tensor | None], width: int, like: Tensor) -> Tensor:
        """The rows of all types in the order of the graph; zeros for types without any."""
        every = [
            like.new_zeros(count, width) if part is None else part
            for part, count in zip(parts, self.counts, strict=True)
        ]
        joined = torch.cat(every)
        return joined if self.sorted else joined.index_select(0, self.place)


@dataclass(frozen=True)
class MeanColumns:
    """Columns for the means over each node's in-neighbours, relation by relation, and over the features of these edges.

    A node has in-neighbours by relations into its own type only, so relations into different types share columns.
    """

    schema: Schema

    @cached_property
    def _starts(self) -> tuple[list[int], int]:
        """The first column of each relation, and the width of all."""
        widths, starts = [0] * len(self.schema.nodes), []
        for at, (_, target) in enumerate(self.schema.ends):
            starts.append(widths[target])
            widths[target] += self._source_width(at) + self.schema.edges[at][1]
        return starts, max(widths)

    @property
    def width(self) -> int:
        return self._starts[1]

    def features(self, at: int) -> slice:
        """The columns for features of a relation's sources; the first is that of their ones."""
        start = self._starts[0][at]
        return slice(start, start + self._source_width(at))

    def attributes(self, at: int) -> slice:
        """The columns for features of a relation's edges."""
        start = self.features(at).stop
        return slice(start, start + self.schema.edges[at][1])

    def _source_width(self, at: int) -> int:
        return 1 + self.schema.nodes[self.schema.ends[at][0]][1]


class _ExportedRelation:
    """As `Relation`, between positions among all nodes."""

    def __init__(self, edge_index: Tensor, nodes: Tensor, attributes: Tensor | None) -> None:
        self.source, self.target = edge_index
        self._nodes = nodes.numel()
        one = torch.ones_like(self.target)
        self._count = torch.zeros_like(nodes).index_add(0, self.target, one).clamp(min=1).unsqueeze(1)
        self.mean_attributes = None if attributes is None else self._mean(attributes)

    def mean(self, x: Tensor) -> Tensor:
        return self._mean(x[self.source])

    def _mean(self, messages: Tensor) -> Tensor:
        return messages.new_zeros(self._nodes, messages.size(1)).index_add(0, self.target, messages) / self._count


class ExportedGraph:
    """As `TypedGraph`, without sizes that depend on how many nodes have which type: each type has a row for every node,
    of which only those of its own nodes are read. An exported program is made of it, for graphs of any size.
    """

    def __init__(
        self, node_type: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor | None, schema: Schema
    ) -> None:
        nodes, kinds = torch.arange(node_type.size(0), device=node_type.device), len(schema.nodes)
        self.node_type, self.counts, self.rows = node_type, [node_type.size(0)] * kinds, [Rows(nodes)] * kinds
        self.relations = []
        for at in range(len(schema.edges)):
            own, columns = (edge_type == at).nonzero().squeeze(1), schema.edge_columns(at)
            attributes = None if edge_attr is None or columns.start == columns.stop else edge_attr[own][:, columns]
            self.relations.append(_ExportedRelation(edge_index[:, own], nodes, attributes))

    def by_type(self, x: Tensor) -> Sequence[Tensor]:
        return [x] * len(self.rows)

    def flat(self, parts: Sequence[Tensor | None], width: int, like: Tensor) -> Tensor:
        out = like.new_zeros(like.size(0), width)
        for at, part in enumerate(parts):
            out = out if part is None else torch.where((self.node_type == at).unsqueeze(1), part, out)
        return out


class TypedLayer(Layer):
    """A layer of a typed graph.

    Arguments:
        schema: of the graph.
        columns: for each node type which columns of the input are its own.
        out: width of the output.
        needed: positions of the node types whose output is read.
    """

    def __init__(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> None:
        super().__init__()
        self.schema, self.columns, self.out, self.needed = schema, tuple(columns), out, tuple(sorted(needed))
        self.into: dict[int, list[int]] = {
            kind: [at for at, (_, target) in enumerate(schema.ends) if target == kind] for kind in self.needed
        }

    def width(self, kind: int) -> int:
        """Columns of the input of a node type."""
        return self.columns[kind].stop - self.columns[kind].start

    def edge_width(self, relation: int) -> int:
        return self.schema.edges[relation][1]


class MeanLayer(TypedLayer):
    """sum_r W_r mean_{j in N_r(i)} x_j + U_r mean_{j in N_r(i)} e_ji + W_0 x_i + b, e of relations with edge features.

    All means into a node are multiplied with all their weights in one product.

    Attributes:
        known: where the input has these means, behind the features of all node types; None: they follow from the edges.
    """

    known: MeanColumns | None = None

    def __init__(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> None:
        super().__init__(schema, columns, out, needed)
        self._read = Last()

    def compute(self, weights: Access, x: Tensor, graph: TypedGraph) -> Tensor:
        fixed = torch.is_grad_enabled() and not x.requires_grad  # features, of which every epoch reads the same means
        read = self._read(self._inputs, x, graph) if fixed else self._inputs(x, graph)
        outputs: list[Tensor | None] = [None] * len(graph.counts)
        for kind, relations in self.into.items():
            factors = [self.own_weight(weights, kind)]
            for at in relations:
                factors.append(self.relation_weight(weights, at, self.schema.ends[at][0]))
                if self.edge_width(at):
                    factors.append(weights[f"edges_{at}"])
            if filled := read[kind].size(1) - sum(factor.size(-1) for factor in factors):
                factors.append(factors[0].new_zeros(*factors[0].shape[:-1], filled))
            joined = torch.cat(factors, dim=-1)
            outputs[kind] = weights.linear(read[kind], joined, graph.rows[kind], self.bias_of(weights, kind))
        return graph.flat(outputs, self.out, x)

    def _inputs(self, x: Tensor, graph: TypedGraph) -> dict[int, Tensor]:
        """For each needed type what its nodes' outputs are made of, side by side: own features, means, zeros."""
        parts, known, width = graph.by_type(x), self.known, self.schema.width
        own = [part[:, columns] for part, columns in zip(parts, self.columns, strict=True)]
        found = {}
        for kind, relations in self.into.items():
            read = [own[kind]]
            for at in relations:
                if known is not None:
                    read.append(parts[kind][:, width:][:, known.features(at)])
                    read += [parts[kind][:, width:][:, known.attributes(at)]] * bool(self.edge_width(at))
                    continue
                relation = graph.relations[at]
                read.append(relation.mean(own[self.schema.ends[at][0]]))
                if self.edge_width(at):
                    assert relation.mean_attributes is not None
                    read.append(relation.mean_attributes.to(x.dtype))
            more = -sum(part.size(1) for part in read) % ALIGNED
            if more and not torch.compiler.is_exporting():  # a product of another width would copy all of it
                read.append(x.new_zeros(len(own[kind]), more))
            found[kind] = torch.cat(read, dim=1)
        return found

    @abstractmethod
    def own_weight(self, weights: Access, kind: int) -> Tensor:
        """The weight of the node itself."""

    @abstractmethod
    def relation_weight(self, weights: Access, at: int, source: int) -> Tensor:
        """The weight of a relation's mean."""

    @abstractmethod
    def bias_of(self, weights: Access, kind: int) -> Tensor:
        """The bias of a node type."""

    def _add_edges(self) -> None:
        for at in sorted(at for relations in self.into.values() for at in relations):
            if self.edge_width(at):
                self.add(f"edges_{at}", self.out, self.edge_width(at))


class RgcnLayer(MeanLayer):
    """One layer of R-GCN: one root weight for all nodes, a weight per relation, perhaps of shared bases.

    Arguments:
        bases: number of bases B of W_r = sum_b a_rb V_b; 0 gives every relation a weight of its own.
    """

    def __init__(
        self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int], bases: int = 0
    ) -> None:
        super().__init__(schema, columns, out, needed)
        width = max(each.stop for each in columns)
        self.place = {at: place for place, at in enumerate(sorted(at for each in self.into.values() for at in each))}
        self.bases = bases if self.place else 0
        self.add("root", out, width)
        if self.bases:
            self.add("basis", bases, out, width)
            self.add("coefficients", len(self.place), bases)
        else:
            for at in self.place:
                self.add(f"relation_{at}", out, self.width(schema.ends[at][0]))
        self._add_edges()
        self.add("bias", out, fill=0.0)

    def own_weight(self, weights: Access, kind: int) -> Tensor:
        return weights["root"][..., self.columns[kind]]

    def relation_weight(self, weights: Access, at: int, source: int) -> Tensor:
        if not self.bases:
            return weights[f"relation_{at}"]
        share = weights["coefficients"][..., self.place[at], :]
        return torch.einsum("...b,...boi->...oi", share, weights["basis"][..., self.columns[source]])

    def bias_of(self, weights: Access, kind: int) -> Tensor:
        return weights["bias"]


class SageLayer(MeanLayer):
    """One layer of heterogeneous GraphSAGE: a weight per node type for a node itself, one per relation for the mean."""

    def __init__(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> None:
        super().__init__(schema, columns, out, needed)
        for kind, relations in self.into.items():
            self.add(f"own_{kind}", out, self.width(kind))
            self.add(f"bias_{kind}", out, fill=0.0)
            for at in relations:
                self.add(f"relation_{at}", out, self.width(schema.ends[at][0]))
        self._add_edges()

    def own_weight(self, weights: Access, kind: int) -> Tensor:
        return weights[f"own_{kind}"]

    def relation_weight(self, weights: Access, at: int, source: int) -> Tensor:
        return weights[f"relation_{at}"]

    def bias_of(self, weights: Access, kind: int) -> Tensor:
        return weights[f"bias_{kind}"]


class HgtLayer(TypedLayer):
    """One layer of HGT: attention of a node over all its in-neighbours, with weights per node type and per relation.

    For head h, edge j -> i of relation r between types s and t, d = out / heads:

    score_ji = (Q_t x_i) . (W^K_r K_s x_j) p_r / sqrt(d);   a_ji = softmax of score_ji over all edges into i
    out_i = A_t gelu(sum_j a_ji W^V_r V_s x_j), mixed with x_i by sigmoid(skip_t) where both are equally wide
    """

    def __init__(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int], heads: int) -> None:
        super().__init__(schema, columns, out, needed)
        self.heads, each = heads, out // heads
        used = sorted(at for relations in self.into.values() for at in relations)
        for kind in sorted({schema.ends[at][0] for at in used}):
            for name in ("key", "value"):
                self.add(f"{name}_{kind}", out, self.width(kind))
                self.add(f"{name}_bias_{kind}", out, fill=0.0)
        for kind, relations in self.into.items():
            if relations:
                self.add(f"query_{kind}", out, self.width(kind))
                self.add(f"query_bias_{kind}", out, fill=0.0)
            self.add(f"out_{kind}", out, out)
            self.add(f"out_bias_{kind}", out, fill=0.0)
            if self.width(kind) == out:
                self.add(f"skip_{kind}", 1, fill=1.0)
        for at in used:
            self.add(f"key_relation_{at}", heads, each, each)
            self.add(f"value_relation_{at}", heads, each, each)
            self.add(f"prior_{at}", heads, fill=1.0)

    def compute(self, weights: Access, flat: Tensor, graph: TypedGraph) -> Tensor:
        heads, each = self.heads, self.out // self.heads
        x = [part[:, columns] for part, columns in zip(graph.by_type(flat), self.columns, strict=True)]
        outputs: list[Tensor | None] = [None] * len(x)

        def rows_of(name: str, kind: int) -> Tensor:
            bias = weights[f"{name}_bias_{kind}"]
            out = weights.linear(x[kind], weights[f"{name}_{kind}"], graph.rows[kind], bias)
            return out.view(-1, heads, each)

        sources = {self.schema.ends[at][0] for relations in self.into.values() for at in relations}
        keys = {kind: rows_of("key", kind) for kind in sources}
        values = {kind: rows_of("value", kind) for kind in sources}
        for kind, relations in self.into.items():
            h = x[kind].new_zeros(graph.counts[kind], self.out)
            if relations:
                query, scores, messages, targets = rows_of("query", kind), [], [], []
                for at in relations:
                    source, relation = self.schema.ends[at][0], graph.relations[at]
                    rows = graph.rows[source]
                    key = weights.heads(keys[source], weights[f"key_relation_{at}"], rows)
                    value = weights.heads(values[source], weights[f"value_relation_{at}"], rows)
                    key = key * weights.repeat(weights[f"prior_{at}"], rows).unsqueeze(-1)
                    scores.append((query[relation.target] * key[relation.source]).sum(-1))
                    messages.append(value[relation.source])
                    targets.append(relation.target)
                target = torch.cat(targets)
                share = softmax(torch.cat(scores) / math.sqrt(each), target, num_nodes=graph.counts[kind])
                h = h.index_add(0, target, (torch.cat(messages) * share.unsqueeze(-1)).flatten(1))
            rows = graph.rows[kind]
            out = weights.linear(gelu(h), weights[f"out_{kind}"], rows, weights[f"out_bias_{kind}"])
            if self.width(kind) == self.out:
                share = weights.repeat(sigmoid(weights[f"skip_{kind}"]), rows)
                out = share * out + (1 - share) * x[kind]
            outputs[kind] = out
        return graph.flat(outputs, self.out, flat)


class TypedConvolutions(MessagePassing):
    """Layers of a typed graph with dropout before each, and perhaps ReLU between them.

    Arguments:
        linear: a layer after them, with dropout before it.
    """

    weighted = False

    def __init__(
        self,
        convs: Sequence[TypedLayer],
        dropout: float,
        *,
        rectify: bool,
        dropout_features: bool,
        linear: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.linear = linear
        self.head = f"convs.{len(convs) - 1}" if linear is None else "linear"
        self.dropout = nn.Dropout(dropout)
        self.rectify, self.dropout_features = rectify, dropout_features
        self.schema = convs[0].schema
        self.hops = len(convs)
        self.reads_edge_features = any("edges_" in name for name, _ in self.named_parameters())
        self._graphs = Last()

    def forward(
        self, x: Tensor, edge_index: Tensor, node_type: Tensor, edge_type: Tensor, edge_attr: Tensor | None = None
    ) -> Tensor:
        kind = ExportedGraph if torch.compiler.is_exporting() else TypedGraph
        graph = self._graphs(kind, node_type, edge_index, edge_type, edge_attr, self.schema)
        for at, conv in enumerate(self.convs):
            x = self.dropout(x) if at or self.dropout_features else x
            x = conv(x, graph)
            if self.rectify and at < len(self.convs) - 1:
                x = x.relu()
        return x if self.linear is None else self.linear(self.dropout(x))


def with_known_means(module: nn.Module) -> TypedConvolutions | None:
    """A copy of a model whose first layer reads means from its input, see `MeanColumns`; None if it takes no means."""
    if not isinstance(module, TypedConvolutions) or not isinstance(module.convs[0], MeanLayer):
        return None
    module = deepcopy(module)
    first: Any = module.convs[0]
    first.known = MeanColumns(module.schema)
    module.hops = len(module.convs) - 1
    return module


class TypedEncoder(Encoder):
    """An encoder of typed graphs."""

    dropout_features: bool = False
    """Dropout on the features, too; otherwise only on the inputs of the layers after the first."""

    def build(self, features: int, classes: int, level: Level) -> nn.Module:
        if level != "node":
            return super().build(features, classes, level)
        schema = self._schema()
        return self._body(schema, classes, {schema.node_types.index(schema.labelled)})

    def embedder(self, features: int) -> Embedder:
        raise IsthmusError(f"model '{self.name}': it reads typed graphs, of which methods without labels have no views")

    def body(self, features: int, out: int) -> nn.Module:
        schema = self._schema()
        return self._body(schema, out, range(len(schema.nodes)))

    def _schema(self) -> Schema:
        if self._inputs is None or self._inputs.schema is None:
            raise IsthmusError(
                f"model '{self.name}': it reads typed graphs, and the parties' graphs have no types: give HeteroData, "
                "or use another model, such as gcn"
            )
        return self._inputs.schema

    def _body(self, schema: Schema, out: int, needed: Collection[int]) -> nn.Module:
        """The model whose outputs are read for nodes of these types."""
        convs = self._layers(schema, self.widths(0, out), needed)
        return TypedConvolutions(convs, self.dropout, rectify=True, dropout_features=self.dropout_features)

    def _layers(self, schema: Schema, widths: Sequence[tuple[int, int]], needed: Collection[int]) -> list[TypedLayer]:
        layers: list[TypedLayer] = []
        kinds = range(len(schema.nodes))
        for at in reversed(range(len(widths))):
            i, o = widths[at]
            columns = [slice(0, i) if at else schema.columns(kind) for kind in kinds]
            layers.insert(0, self._layer(schema, columns, o, needed))
            needed = set(needed) | {source for source, target in schema.ends if target in needed}
        return layers

    @abstractmethod
    def _layer(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> TypedLayer:
        """A layer for these columns of each type."""


class Rgcn(TypedEncoder):
    """Relational graph convolutional network (Schlichtkrull et al. 2018): a mean and a weight per relation."""

    name: ClassVar[str] = "rgcn"
    bases: int = Field(0, ge=0, le=1000)
    """Number of weight matrices that all relations share, each relation with its own mix; 0: a matrix per relation."""

    def _layer(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> TypedLayer:
        return RgcnLayer(schema, columns, out, needed, self.bases)


class HeteroSage(TypedEncoder):
    """GraphSAGE of typed graphs (Hamilton et al. 2017): a mean and a weight per relation, a weight per node type."""

    name: ClassVar[str] = "hetero-sage"

    def _layer(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> TypedLayer:
        return SageLayer(schema, columns, out, needed)


class Hgt(TypedEncoder):
    """Heterogeneous graph transformer (Hu et al. 2020) with a linear layer after it. It reads no edge features."""

    name: ClassVar[str] = "hgt"
    heads: int = Field(4, ge=1, le=1000)
    """Attention heads; `hidden` is a multiple of it."""

    def _body(self, schema: Schema, out: int, needed: Collection[int]) -> nn.Module:
        if self.hidden % self.heads:
            raise IsthmusError(
                f"model 'hgt': hidden = {self.hidden} is no multiple of heads = {self.heads}: change one of them"
            )
        convs = self._layers(schema, self.widths(0, self.hidden), needed)
        linear: Any = nn.Linear(self.hidden, out)
        options: dict[str, Any] = {"rectify": False, "dropout_features": self.dropout_features}
        return TypedConvolutions(convs, self.dropout, linear=linear, **options)

    def _layer(self, schema: Schema, columns: Sequence[slice], out: int, needed: Collection[int]) -> TypedLayer:
        return HgtLayer(schema, columns, out, needed, self.heads)
