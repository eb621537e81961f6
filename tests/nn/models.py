"""Modules that work side by side, and modules that run one party after another."""

import torch
from torch import nn
from torch_geometric import nn as gnn

from helpers import CLASSES, FEATURES

HIDDEN = 8


class Body(nn.Module):
    """One convolution, something, one linear layer."""

    def __init__(self, middle=None, conv=None):
        super().__init__()
        self.conv = conv or gnn.GCNConv(FEATURES, HIDDEN)
        self.middle = middle or nn.Identity()
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        return self.head(self.middle(self.conv(x, edge_index)).relu())


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(self, x)


class Weighted(Body):
    """Reads the weights of edges."""

    def forward(self, x, edge_index, edge_weight):
        return self.head(self.conv(x, edge_index, edge_weight).relu())


class Named(Body):
    """Names its first layer."""

    first_layer = "conv.lin.weight"


class Centred(Named):
    """Names a first layer, and mixes rows."""

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index)
        return self.head((h - h.mean(0)).relu())


class ByHand(Body):
    """Reads a layer's weight past the layer."""

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).relu() @ self.head.weight.t() + self.head.bias


class Tied(nn.Module):
    """Two layers, one weight."""

    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.outside.weight = self.inside.weight

    def forward(self, x, edge_index):
        return self.outside(self.inside(x).relu())[:, :CLASSES]


class OverEdges(nn.Module):
    """A linear layer that sees edges, not nodes."""

    def __init__(self):
        super().__init__()
        self.message, self.head = nn.Linear(2 * FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        messages = self.message(torch.cat([x[edge_index[0]], x[edge_index[1]]], dim=1)).relu()
        return self.head(messages.new_zeros(x.size(0), HIDDEN).index_add(0, edge_index[1], messages))


def noisy(layer, x):
    return x + 0.1 * torch.randn(x.shape) if layer.training else x


def basic(kind, **options):
    return kind(FEATURES, HIDDEN, 2, CLASSES, **options)


SIDE_BY_SIDE = {
    "gcn": lambda: basic(gnn.GCN, dropout=0.5),
    "gcn-batch": lambda: basic(gnn.GCN, norm="batch_norm", dropout=0.5),
    "gcn-joined": lambda: basic(gnn.GCN, jk="cat"),
    "gcn-improved": lambda: Weighted(conv=gnn.GCNConv(FEATURES, HIDDEN, improved=True, bias=False)),
    "gcn-without-self-loops": lambda: Weighted(conv=gnn.GCNConv(FEATURES, HIDDEN, add_self_loops=False)),
    "gcn-unnormalised": lambda: Weighted(conv=gnn.GCNConv(FEATURES, HIDDEN, normalize=False)),
    "sage": lambda: basic(gnn.GraphSAGE, dropout=0.5),
    "gin": lambda: basic(gnn.GIN, dropout=0.5),
    "gin-batch": lambda: basic(gnn.GIN, norm="batch_norm"),
    "gat": lambda: basic(gnn.GAT, heads=2),
    "gat-averaged-heads": lambda: Body(conv=gnn.GATConv(FEATURES, HIDDEN, heads=3, concat=False, residual=True)),
    "layer-norm": lambda: Body(nn.LayerNorm(HIDDEN)),
    "batch-norm": lambda: Body(nn.BatchNorm1d(HIDDEN)),
    "batch-norm-without-weights": lambda: Body(nn.BatchNorm1d(HIDDEN, affine=False)),
    "batch-norm-without-memory": lambda: Body(nn.BatchNorm1d(HIDDEN, track_running_stats=False)),
    "two-names-one-layer": lambda: Body(nn.Sequential(*[nn.Linear(HIDDEN, HIDDEN)] * 2)),
}


ONE_BY_ONE = {
    "gcn-layer": lambda: basic(gnn.GCN, norm="layer_norm"),
    "gcn-pair": lambda: basic(gnn.GCN, norm="pair_norm"),
    "gcn-graph": lambda: basic(gnn.GCN, norm="graph_norm"),
    "gcn-recurrent": lambda: basic(gnn.GCN, jk="lstm"),
    "gat-attention-dropout": lambda: basic(gnn.GAT, heads=2, dropout=0.5),
    "gatv2": lambda: Body(conv=gnn.GATv2Conv(FEATURES, HIDDEN)),
    "cached": lambda: Body(nn.PReLU(), conv=gnn.GCNConv(FEATURES, HIDDEN, cached=True)),
    "centred": Centred,
    "noisy": lambda: Body(Call(noisy)),
    "alpha-dropout": lambda: Body(nn.AlphaDropout(0.5)),
    "weight-read-past-its-layer": ByHand,
    "tied": Tied,
    "over-edges": OverEdges,
}


def build(name):
    torch.manual_seed(0)
    return (SIDE_BY_SIDE | ONE_BY_ONE)[name]()
