"""Encoders by name, built from PyG layers where PyG has them."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch_geometric import nn as gnn

from isthmus.data.level import Level
from isthmus.data.schema import Inputs
from isthmus.errors import IsthmusError
from isthmus.nn.edge_features import EdgeGat, EdgeGin, Transformer
from isthmus.nn.edge_readout import EdgeReadout
from isthmus.nn.hops import GraphsHop, edges_of_view, of_layer, own_rows
from isthmus.nn.products import EdgeValues, Propagation, mean_edges, plain_edges
from isthmus.nn.side_by_side import Layer
from isthmus.nn.structure import StructureChannel
from isthmus.nn.twins import REPEATED, Bank, propagates_by_matrix, twin
from isthmus.options import Registered

Pool = Literal["mean", "sum", "max"]
POOLS = {"mean": gnn.global_mean_pool, "sum": gnn.global_add_pool, "max": gnn.global_max_pool}


class Encoder(Registered):
    """A graph model by name; `build` makes the module for nodes, for whole graphs or for edges."""

    kind: ClassVar[str] = "encoder"
    built_in_module: ClassVar[str] = "isthmus.nn"
    entry_points: ClassVar[str] = "isthmus.encoders"
    lr: ClassVar[float] = 0.01
    """The local learning rate that suits it on nodes, with Adam or AdamW: what methods train with that name none."""

    reads_edges: ClassVar[bool] = True
    """Whether its models of nodes read edges."""

    hidden: int = Field(64, ge=1, le=1 << 20)
    """Width of the hidden layers."""
    layers: int = Field(2, ge=1, le=1000)
    """Number of layers; of models that propagate without weight matrices, the number of linear layers."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout on the input of every layer during training."""
    pool: Pool = "mean"
    """How node embeddings are pooled to a graph embedding, for graph tasks."""

    _inputs: Inputs | None = PrivateAttr(None)

    def reading(self, inputs: Inputs) -> Self:
        """The encoder for these data, whose types and edge features `build` may need to know."""
        bound = self.model_copy()
        bound._inputs = inputs
        return bound

    @property
    def edge_dim(self) -> int:
        """How many features of an edge the model reads, where its option `edge_features` says that it does."""
        if not getattr(self, "edge_features", False):
            return 0
        if getattr(self, "weighted", False):
            raise IsthmusError(
                f"model '{self.name}': it reads edge weights or edge features: set one of the two options"
            )
        width = 0 if self._inputs is None else self._inputs.edge_features
        if not width:
            raise IsthmusError(
                f"model '{self.name}': edge_features is set, and the parties' edges have none (edge_attr)"
            )
        return width

    def build(self, features: int, classes: int, level: Level) -> nn.Module:
        """The module `forward(x, edge_index, edge_weight, batch, batch_size)` with `classes` outputs and a head.

        Of edges it is an `EdgeReadout`.
        """
        if level == "edge":
            attributes = 0 if self._inputs is None else self._inputs.label_features
            return EdgeReadout(self.body(features, self.hidden), self.hidden, attributes, classes, self.dropout)
        if level != "graph":
            return self.body(features, classes)
        return Readout(self.body(features, self.hidden), self.hidden, classes, self.pool)

    def embedder(self, features: int) -> Embedder:
        """The module that embeds nodes and, by pooling them, whole graphs; it concatenates all convolutions."""
        body = self.body(features, self.hidden)
        if isinstance(body, Convolutions):
            body.concatenate = True
        return Embedder(body, features, self.pool)

    @abstractmethod
    def body(self, features: int, out: int) -> nn.Module:
        """Node embeddings of width `out`: `forward(x, edge_index, edge_weight)`."""

    def widths(self, features: int, out: int) -> list[tuple[int, int]]:
        """(in, out) of every layer."""
        sizes = [features, *[self.hidden] * (self.layers - 1), out]
        return list(itertools.pairwise(sizes))


class MessagePassing(nn.Module):
    """A model along edges.

    Attributes:
        hops: how many hops of edges its layers read; None if it is not known.
    """

    hops: int | None = None

    @property
    def trims(self) -> bool:
        """Whether its layers can leave out rows that the next ones do not need."""
        return False

    @property
    def takes_hops(self) -> bool:
        """Whether layers can propagate by rows of a larger graph's matrices (see `isthmus.nn.hops`)."""
        if any(isinstance(layer, Layer) for layer in self.modules()):
            return False
        return all(propagates_by_matrix(layer) for layer in self.modules() if isinstance(layer, gnn.MessagePassing))

    @property
    def reach(self) -> int | None:
        """How many hops of edges must be present for an output row to be as in the whole graph; None: all."""
        return None if any(isinstance(module, nn.BatchNorm1d) for module in self.modules()) else self.hops


class Readout(nn.Module):
    """Node embeddings, ReLU if `rectify`, pooled per graph, layers `after` that, one linear layer: for graph tasks.

    Attributes:
        takes_graphs: layers can propagate by matrices of all graphs, of which a batch has some (see `GraphsHop`).
    """

    def __init__(
        self,
        body: nn.Module,
        hidden: int,
        classes: int,
        pool: Pool,
        *,
        after: nn.Module | None = None,
        rectify: bool = True,
    ) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(hidden, classes)
        self.pool = POOLS[pool]
        self.after = nn.Identity() if after is None else after
        self.rectify = rectify
        self._reads = frozenset(signature(body.forward).parameters)

    @property
    def takes_graphs(self) -> bool:
        return type(self) in (Readout, SetReadout) and propagates_by_matrices(self.body)

    @property
    def first_layer(self) -> str | None:
        inner = getattr(self.body, "first_layer", None)
        return None if inner is None else f"body.{inner}"

    def forward(
        self,
        x: Any,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        batch: Tensor,
        batch_size: int,
        node_type: Tensor | None = None,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        more = {"edge_weight": edge_weight, "node_type": node_type, "edge_type": edge_type, "edge_attr": edge_attr}
        h = self.body(x, edge_index, **{name: value for name, value in more.items() if name in self._reads})
        return self.head(self.after(self.pooled(h, batch, batch_size)))

    def pooled(self, h: Tensor, batch: Tensor, batch_size: int) -> Tensor:
        """A row for every graph from the rows of its nodes."""
        return self.pool(h.relu() if self.rectify else h, batch, batch_size)


class Embedder(nn.Module):
    """Embeddings of nodes and of graphs, in one view of their edges or in several.

    `forward` returns h `[nodes, views, width]` and, pooled from it, u `[graphs, views, width]`. With several views,
    edge weights are `[edges, views]`; an edge has weight 0 in a view that it is not in.

    Attributes:
        width: width of an embedding.
        takes_graphs: as that of a `Readout`.
    """

    def __init__(self, body: nn.Module, features: int, pool: Pool) -> None:
        super().__init__()
        self.body = body
        self.pool = POOLS[pool]
        with torch.no_grad():
            x = torch.zeros(2, features)
            two = self.body.eval().to(x.device)(x, torch.empty(2, 0, dtype=torch.long))
        self.body.train()
        self.width = two.size(1)
        self.views = Views()

    @property
    def takes_graphs(self) -> bool:
        return type(self) is Embedder and propagates_by_matrices(self.body)

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Tensor | None, batch: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        h = torch.stack([self.body(x, *edges).relu() for edges in self.views(edge_index, edge_weight)], dim=1)
        return h, self.pool(h.flatten(1), batch, batch_size).view(-1, *h.shape[1:])


class Views(nn.Module):
    """`split_views` with a cache for the last edges, so that their propagation matrices are cached too."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Any, ...] = (None, None, [])

    def forward(self, edge_index: Any, edge_weight: Tensor | None) -> list[tuple[Any, Tensor | None]]:
        if isinstance(edge_index, GraphsHop):  # which keeps them itself
            return split_views(edge_index, edge_weight)
        if self._last[0] is not edge_index or self._last[1] is not edge_weight:
            self._last = edge_index, edge_weight, split_views(edge_index, edge_weight)
        views: list[tuple[Any, Tensor | None]] = self._last[2]
        return views


def split_views(edge_index: Any, edge_weight: Tensor | None) -> list[tuple[Any, Tensor | None]]:
    """The edges and edge weights of each view."""
    if edge_weight is None or edge_weight.dim() == 1:
        return [(edge_index, edge_weight)]
    views = range(edge_weight.size(1))
    if isinstance(edge_index, GraphsHop):
        return [(GraphsHop(edge_index.part, view), edge_weight[:, view]) for view in views]
    return [edges_of_view(edge_index, edge_weight, view) for view in views]


def uses_edge_weights(module: nn.Module) -> bool:
    """Whether a model uses edge weights: one of an encoder, or one of your own whose forward names `edge_weight`."""
    if not getattr(module, "supports_edge_weight", "edge_weight" in signature(module.forward).parameters):
        return False  # PyG's own models name it and say whether they use it
    return bool(getattr(getattr(module, "body", module), "weighted", True))


def uses_edge_features(module: nn.Module) -> bool:
    """Whether a model reads features of edges: an encoder's, or one of your own whose forward names `edge_attr`."""
    inner = getattr(module, "body", module)  # a readout names all arguments that a body may read
    reads = getattr(inner, "reads_edge_features", None)
    return "edge_attr" in signature(inner.forward).parameters if reads is None else bool(reads)


def uses_types(module: nn.Module) -> bool:
    """Whether a model knows the types of nodes or edges, other than by the columns that each type has."""
    inner = getattr(module, "body", module)
    return bool({"node_type", "edge_type"} & signature(inner.forward).parameters.keys())


class Convolutions(MessagePassing):
    """Convolutions with dropout before each and ReLU between them.

    Arguments:
        weighted: the convolutions read edge weights.
        edge_features: they read features of edges, and no weights.
        linear: a layer after the convolutions, with ReLU and dropout before it.
        dropout_features: dropout before the first convolution, too.

    Attributes:
        concatenate: return the outputs of all layers after their ReLU, `[nodes, layers * width]`.
    """

    concatenate = False

    def __init__(
        self,
        convs: Sequence[nn.Module],
        dropout: float,
        *,
        weighted: bool,
        edge_features: bool = False,
        first_layer: str | None = None,
        linear: nn.Module | None = None,
        dropout_features: bool = True,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.linear = linear
        self.head = f"convs.{len(convs) - 1}" if linear is None else "linear"
        self.dropout = nn.Dropout(dropout)
        self.dropout_features = dropout_features
        self.weighted = weighted
        self.reads_edge_features = edge_features
        self.first_layer = first_layer

    @property
    def trims(self) -> bool:
        return self.takes_hops and not self.concatenate and all(type(conv) in ONE_HOP for conv in self.convs)

    @property
    def hops(self) -> int | None:  # type: ignore[override]
        hops = [hops_of_layer(conv) for conv in self.convs]
        return None if None in hops else sum(each or 0 for each in hops)

    @property
    def reach(self) -> int | None:
        # layers that normalise by what they see of a graph need all of it
        return None if any(isinstance(layer, gnn.ChebConv) for layer in self.modules()) else super().reach

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        last, outputs = len(self.convs) - 1, []
        for at, conv in enumerate(self.convs):
            x = self.dropout(x) if at or self.dropout_features else x
            edges = of_layer(edge_index, at, len(self.convs))
            if self.reads_edge_features:
                x = conv(x, edges, edge_attr)
            else:
                x = conv(x, edges, edge_weight) if self.weighted else conv(x, edges)
            if at < last or self.concatenate or self.linear is not None:
                x = x.relu()
            outputs.append(x)
        if self.concatenate:
            return torch.cat(outputs, dim=1)
        return x if self.linear is None else self.linear(self.dropout(x))


class Gcn(Encoder):
    """Graph convolutional network (Kipf and Welling 2017)."""

    name: ClassVar[str] = "gcn"
    lr: ClassVar[float] = 0.1

    linear_head: bool = False
    """Put a linear layer after the convolutions, which are then all `hidden` wide; models of graphs, and of edges,
    always have one."""
    dropout_features: bool = True
    """Dropout on the features, too; otherwise only on the inputs of the layers after the first."""

    def build(self, features: int, classes: int, level: Level) -> nn.Module:
        if level in ("graph", "edge") and self.linear_head:
            raise IsthmusError(f"model 'gcn': a model of {level}s has a linear head already: leave linear_head out")
        return super().build(features, classes, level)

    def embedder(self, features: int) -> Embedder:
        if self.linear_head:
            raise IsthmusError("model 'gcn': a model that embeds has no head: leave linear_head out")
        return super().embedder(features)

    def body(self, features: int, out: int) -> nn.Module:
        convs = [gnn.GCNConv(i, o) for i, o in self.widths(features, self.hidden if self.linear_head else out)]
        return Convolutions(
            convs,
            self.dropout,
            weighted=True,
            first_layer="convs.0.lin.weight",
            linear=nn.Linear(self.hidden, out) if self.linear_head else None,
            dropout_features=self.dropout_features,
        )


class Gat(Encoder):
    """Graph attention network (Velickovic et al. 2018)."""

    name: ClassVar[str] = "gat"
    lr: ClassVar[float] = 0.1
    heads: int = Field(4, ge=1, le=1000)
    """Attention heads of the hidden layers, concatenated; the last layer has one."""
    weighted: bool = False
    """Attention also reads edge weights, as an edge feature; self-loops have weight 1."""
    edge_features: bool = False
    """Attention also reads the features of edges; those of a self-loop are the mean of the edges into its node."""

    def body(self, features: int, out: int) -> nn.Module:
        per_head = max(1, self.hidden // self.heads)
        sizes = [features, *[per_head * self.heads] * (self.layers - 1)]
        if edge_dim := self.edge_dim:
            of_edges = [EdgeGat(i, per_head, self.heads, edge_dim) for i in sizes[:-1]]
            of_edges.append(EdgeGat(sizes[-1], out, 1, edge_dim))
            return Convolutions(of_edges, self.dropout, weighted=False, edge_features=True)
        layer = WeightedGat if self.weighted else gnn.GATConv
        convs = [layer(i, per_head, heads=self.heads) for i in sizes[:-1]]
        convs.append(layer(sizes[-1], out, heads=1))
        return Convolutions(convs, self.dropout, weighted=self.weighted)


class WeightedGat(nn.Module):
    """Attention that also reads edge weights; these are 1 for self-loops and in graphs without weights."""

    def __init__(self, i: int, o: int, heads: int) -> None:
        super().__init__()
        self.conv = gnn.GATConv(i, o, heads=heads, edge_dim=1, fill_value=1.0)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.conv(x, edge_index, x.new_ones(edge_index.size(1)) if edge_weight is None else edge_weight)


class GraphSage(Encoder):
    """GraphSAGE with mean aggregation (Hamilton et al. 2017)."""

    name: ClassVar[str] = "sage"
    lr: ClassVar[float] = 0.1
    weighted: bool = False
    """Weigh neighbours by their edge weights, divided by the sum of the weights' absolute values."""

    def body(self, features: int, out: int) -> nn.Module:
        layer = WeightedSage if self.weighted else gnn.SAGEConv
        convs = [layer(i, o) for i, o in self.widths(features, out)]
        return Convolutions(convs, self.dropout, weighted=self.weighted)


class WeightedSage(nn.Module):
    """W_1 sum_j w_ji x_j / sum_j |w_ji| + W_2 x_i + b: GraphSAGE's mean with edge weights, which PyG's lacks."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.lin_l = gnn.Linear(i, o)
        self.lin_r = gnn.Linear(i, o, bias=False)
        self.mean = Propagate(mean_edges)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.lin_l(self.mean(x, edge_index, edge_weight)) + self.lin_r(own_rows(x, edge_index))


class Propagate(nn.Module):
    """M h, where `edges` gives the matrix M.

    `normalised_edges`: D^-1/2 (A + I) D^-1/2. `plain_edges`: the weighted sum over a node's neighbours, sum_j w_ji h_j.
    `mean_edges`: that sum divided by sum_j |w_ji|. Without I, nodes without an edge get zeros.
    """

    def __init__(self, edges: EdgeValues) -> None:
        super().__init__()
        self.edges = edges

    def forward(self, h: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return Propagation(*self.edges(edge_index, edge_weight, h.size(0), dtype=h.dtype), h.size(0)) @ h


@twin(Propagate)
def _propagate(
    layer: Any, bank: Bank, prefix: str, h: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None
) -> Tensor:
    return bank.propagations(layer.edges, edge_index, edge_weight, h.size(0), dtype=h.dtype) @ h


class Gin(Encoder):
    """Graph isomorphism network (Xu et al. 2019) with two-layer perceptrons and learned epsilon."""

    name: ClassVar[str] = "gin"
    lr: ClassVar[float] = 0.03
    pool: Pool = "sum"
    """How node embeddings are pooled to a graph embedding, for graph tasks."""
    norm: bool = False
    """Batch normalisation inside the perceptrons."""
    statistics: Literal["travel", "stay"] = "travel"
    """travel: running statistics of batch normalisation travel with the weights. stay: there are none, and every batch
    is normalised with its own statistics, in evaluation too."""
    weighted: bool = False
    """Weigh neighbours by their edge weights."""
    edge_features: bool = False
    """Add the features of edges to those of neighbours, as GINE does (Hu et al. 2020)."""

    def body(self, features: int, out: int) -> nn.Module:
        perceptrons = [self._perceptron(i, o) for i, o in self.widths(features, out)]
        if edge_dim := self.edge_dim:
            inputs = (i for i, _ in self.widths(features, out))
            of_edges = [EdgeGin(mlp, ScaledSelf(), i, edge_dim) for mlp, i in zip(perceptrons, inputs, strict=True)]
            return Convolutions(of_edges, self.dropout, weighted=False, edge_features=True)
        convs = [WeightedGin(mlp) if self.weighted else gnn.GINConv(mlp, train_eps=True) for mlp in perceptrons]
        first = None if self.weighted else "convs.0.nn.0.weight"
        return Convolutions(convs, self.dropout, weighted=self.weighted, first_layer=first)

    def _perceptron(self, i: int, o: int) -> nn.Module:
        norm = [nn.BatchNorm1d(self.hidden, track_running_stats=self.statistics == "travel")] if self.norm else []
        return nn.Sequential(nn.Linear(i, self.hidden), *norm, nn.ReLU(), nn.Linear(self.hidden, o))


class WeightedGin(nn.Module):
    """MLP((1 + eps) x_i + sum_j w_ji x_j): GIN's sum with edge weights, which PyG's lacks."""

    def __init__(self, perceptron: nn.Module) -> None:
        super().__init__()
        self.nn = perceptron
        self.itself = ScaledSelf()
        self.sum = Propagate(plain_edges)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.nn(self.itself(own_rows(x, edge_index)) + self.sum(x, edge_index, edge_weight))


class ScaledSelf(nn.Module):
    """(1 + eps) x with learned eps."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.eps) * x


REPEATED[ScaledSelf] = ("eps",)

ONE_HOP: tuple[type[nn.Module], ...] = (
    gnn.GCNConv, gnn.SAGEConv, gnn.GINConv, gnn.GATConv, gnn.GraphConv, WeightedSage, WeightedGin, WeightedGat,
)  # fmt: skip
"""Convolutions that read the rows of a node and of its in-neighbours."""


BY_MATRIX: tuple[type[nn.Module], ...] = (
    gnn.GCNConv, gnn.SAGEConv, gnn.GINConv, gnn.GraphConv, gnn.TAGConv, WeightedSage, WeightedGin,
)  # fmt: skip
"""Convolutions that read edges by nothing but a propagation matrix, with sums or means over neighbours."""


def propagates_by_matrices(body: nn.Module) -> bool:
    """Whether all that a body does with edges is to propagate by matrices; of a body of others nobody knows."""
    if type(body) is not Convolutions or body.reads_edge_features:
        return False
    return all(
        type(conv) in BY_MATRIX and (propagates_by_matrix(conv) or not isinstance(conv, gnn.MessagePassing))
        for conv in body.convs
    )


def hops_of_layer(conv: nn.Module) -> int | None:
    """How many hops of edges a convolution reads, if that is known."""
    if type(conv) in ONE_HOP:
        return 1
    if isinstance(conv, ChebFixed):
        return len(conv.conv.lins) - 1
    hops: int | None = conv.K if isinstance(conv, gnn.TAGConv) else getattr(conv, "hops", None)
    return hops


class TransformerEncoder(Encoder):
    """Graph transformer (Shi et al. 2021): attention of queries and keys, and a linear layer for the node itself."""

    name: ClassVar[str] = "transformer"
    heads: int = Field(4, ge=1, le=1000)
    """Attention heads of the hidden layers, concatenated; the last layer has one."""
    edge_features: bool = False
    """Keys and values also read the features of edges."""

    def body(self, features: int, out: int) -> nn.Module:
        per_head = max(1, self.hidden // self.heads)
        sizes = [features, *[per_head * self.heads] * (self.layers - 1)]
        convs = [Transformer(i, per_head, self.heads, self.edge_dim) for i in sizes[:-1]]
        convs.append(Transformer(sizes[-1], out, 1, self.edge_dim))
        return Convolutions(convs, self.dropout, weighted=False, edge_features=self.edge_features)


class Cheb(Encoder):
    """Chebyshev spectral convolutions (Defferrard et al. 2016)."""

    name: ClassVar[str] = "cheb"
    hops: int = Field(1, ge=1, le=1000)
    """Order of the polynomials."""

    def body(self, features: int, out: int) -> nn.Module:
        convs = [ChebFixed(i, o, self.hops) for i, o in self.widths(features, out)]
        return Convolutions(convs, self.dropout, weighted=True)


class ChebFixed(nn.Module):
    """ChebConv with the largest eigenvalue set to 2, the bound of a normalised Laplacian.

    PyG's default follows from the largest edge weight of all graphs together, which would mix parties.
    """

    def __init__(self, i: int, o: int, hops: int) -> None:
        super().__init__()
        self.conv = gnn.ChebConv(i, o, hops + 1)  # it counts terms

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.conv(x, edge_index, edge_weight, lambda_max=x.new_tensor(2.0))


class GraphConv(Encoder):
    """k-GNN of order one (Morris et al. 2019): separate weights for a node and the sum of its neighbours."""

    name: ClassVar[str] = "graphconv"
    lr: ClassVar[float] = 0.2

    def body(self, features: int, out: int) -> nn.Module:
        convs = [gnn.GraphConv(i, o) for i, o in self.widths(features, out)]
        return Convolutions(convs, self.dropout, weighted=True)


class Tag(Encoder):
    """Topology adaptive graph convolutions (Du et al. 2017)."""

    name: ClassVar[str] = "tag"
    hops: int = Field(3, ge=1, le=1000)
    """Hops of one layer."""

    def body(self, features: int, out: int) -> nn.Module:
        convs = [gnn.TAGConv(i, o, self.hops) for i, o in self.widths(features, out)]
        return Convolutions(convs, self.dropout, weighted=True)


class Perceptron(MessagePassing):
    """Linear layers with dropout before each and ReLU between them; edges are ignored."""

    first_layer: str | None = "linears.0.weight"
    weighted = False
    hops = 0

    def __init__(self, widths: list[tuple[int, int]], dropout: float) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(i, o) for i, o in widths)
        self.head = f"linears.{len(widths) - 1}"
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        for at, linear in enumerate(self.linears):
            x = linear(self.dropout(x))
            if at < len(self.linears) - 1:
                x = x.relu()
        return x


class Mlp(Encoder):
    """Multi-layer perceptron on the features alone, a baseline without edges."""

    name: ClassVar[str] = "mlp"
    lr: ClassVar[float] = 0.1
    reads_edges: ClassVar[bool] = False

    def body(self, features: int, out: int) -> nn.Module:
        return Perceptron(self.widths(features, out), self.dropout)


class DeepSets(Encoder):
    """Deep sets (Zaheer et al. 2017): a perceptron on every node, pooled, then a perceptron; edges are ignored."""

    name: ClassVar[str] = "deepsets"
    reads_edges: ClassVar[bool] = False
    pool: Pool = "sum"
    """How node embeddings are pooled to a graph embedding, for graph tasks."""
    counts: bool = False
    """Pool a linear map of the features, so that the model is a perceptron on their sums, such as counts of atoms."""

    def build(self, features: int, classes: int, level: Level) -> nn.Module:
        if level != "graph":
            return super().build(features, classes, level)
        body = Perceptron([(features, self.hidden)], self.dropout) if self.counts else self.body(features, self.hidden)
        after = [layer for _ in range(self.layers - 1) for layer in (nn.Linear(self.hidden, self.hidden), nn.ReLU())]
        return SetReadout(body, self.hidden, classes, self.pool, after=nn.Sequential(*after), counts=self.counts)

    def body(self, features: int, out: int) -> nn.Module:
        return Perceptron(self.widths(features, out), self.dropout)


class SetReadout(Readout):
    """Node embeddings, ReLU unless their sums are `counts`, pooled per graph, further layers, one linear layer."""

    def __init__(
        self, body: nn.Module, hidden: int, classes: int, pool: Pool, *, after: nn.Module, counts: bool
    ) -> None:
        super().__init__(body, hidden, classes, pool, after=after)
        self.counts = counts

    def pooled(self, h: Tensor, batch: Tensor, batch_size: int) -> Tensor:
        return self.pool(h if self.counts else h.relu(), batch, batch_size).relu()


class TwoChannel(Encoder):
    """FedStar's network (Tan et al. 2023): GIN layers on features, and GCN layers on what edges alone say of a node."""

    name: ClassVar[str] = "two-channel"
    layers: int = Field(3, ge=1, le=1000)
    """Number of layers of each channel."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout after every layer of the features' channel during training."""
    degrees: int = Field(16, ge=1, le=1 << 20)
    """Degrees that are told apart; larger ones count as the last."""
    walks: int = Field(16, ge=1, le=1000)
    """Steps of the longest random walk whose return is told."""
    pool: Pool = "sum"
    """How node embeddings are pooled to a graph embedding, for graph tasks."""

    def build(self, features: int, classes: int, level: Level) -> nn.Module:
        if level != "graph":
            return super().build(features, classes, level)
        after = nn.Sequential(nn.Linear(self.hidden, self.hidden), nn.ReLU(), nn.Dropout(self.dropout))
        body = self.body(features, self.hidden)
        return Readout(body, self.hidden, classes, self.pool, after=after, rectify=False)

    def body(self, features: int, out: int) -> nn.Module:
        return TwoChannels(features, self.hidden, out, self.layers, self.dropout, self.degrees, self.walks)


class TwoChannels(MessagePassing):
    """s^(l+1) = tanh(GCN(s^l)) and h^(l+1) = ReLU(GIN([h^l, s^l])), then one linear layer on [h, s].

    How likely walks return to a node depends on edges far away, so it reads the whole graph.
    """

    first_layer = "inputs.weight"
    head = "join"
    weighted = False
    takes_hops = False

    def __init__(
        self, features: int, hidden: int, out: int, layers: int, dropout: float, degrees: int, walks: int
    ) -> None:
        super().__init__()
        self.inputs = nn.Linear(features, hidden)
        self.structure = StructureChannel(hidden, layers, degrees, walks)
        self.convs = nn.ModuleList(gnn.GINConv(self._perceptron(hidden)) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.join = nn.Linear(2 * hidden, out)

    @staticmethod
    def _perceptron(hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        h = self.inputs(x)
        *before, last = self.structure(edge_index, h.size(0))
        for conv, s in zip(self.convs, before, strict=True):
            h = self.dropout(conv(torch.cat([h, s], dim=1), edge_index).relu())
        return self.join(torch.cat([h, last], dim=1))
