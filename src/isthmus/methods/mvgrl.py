"""MVGRL: the nodes of one view of a graph tell which graph the other view is of."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.methods.base import Listing
from isthmus.methods.shared.unsupervised import TwoViews
from isthmus.nn.contrast import Projection, mutual_information_loss
from isthmus.nn.encoders import Embedder, Views
from isthmus.tasks.base import Step


class Mvgrl(TwoViews):
    """MVGRL (Hassani and Khasahmadi 2020), trained by FedAvg, or by FedProx as `trainer`.

    A graph and its diffusion have an encoder each, and heads for nodes and for graphs in common; nodes of one view and
    graphs of the other are to tell of each other.

    S = alpha (I - (1 - alpha) D^-1/2 (A + I) D^-1/2)^-1
    h^A_v = head_1(encoder_A, node v),  u^A_g = head_2(encoder_A, pooled over g)
    h^S_v, u^S_g likewise by encoder_S on the edges of S
    I(h, u) = mean over (v, g), v not in g, of  softplus(<h_v, u_g>) - log 2
            + mean over (v, g), v in g, of      softplus(-<h_v, u_g>) - log 2
    l = I(h^A, u^S) + I(h^S, u^A), over a batch of one party's graphs

    alpha is `restart`, and entries of S below `threshold` are left out. The embedding of a graph is the sum of both
    views', u^A_g + u^S_g. Every layer is trained and sent; in the public code the convolutions stand in a plain list,
    which torch does not see. Encoders get a diffusion as weighted edges: a GCN normalises it once more, where the
    public code multiplies by it as it is.
    """

    name: ClassVar[str] = "mvgrl"
    listing: ClassVar[Listing] = Listing("unlabelled", 2)

    def extended(self, module: nn.Module) -> nn.Module:
        return TwoEncoders(module)

    class AtParty(TwoViews.AtParty):
        def loss(self, step: Step) -> Tensor:
            h, u = step.output
            block = self.block
            assert block.batch is not None
            where = block.batch, block.sizes, block.graphs
            return mutual_information_loss(h[:, 0], u[:, 1], *where) + mutual_information_loss(h[:, 1], u[:, 0], *where)


class TwoEncoders(nn.Module):
    """An embedder for each view, `[..., views, width]` behind the heads."""

    def __init__(self, embedder: nn.Module) -> None:
        super().__init__()
        assert isinstance(embedder, Embedder)
        self.embedders = nn.ModuleList([embedder, _drawn_anew(embedder)])
        self.views = Views()
        self.of_nodes = Projection(embedder.width)
        self.of_graphs = Projection(embedder.width)

    def forward(
        self, x: Any, edge_index: Tensor, edge_weight: Tensor, batch: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        found = []
        for embedder, edges in zip(self.embedders, self.views(edge_index, edge_weight), strict=True):
            h, u = embedder(x, *edges, batch, batch_size)
            found.append((self.of_nodes(h.squeeze(1)), self.of_graphs(u.squeeze(1))))
        h, u = (torch.stack(each, dim=1) for each in zip(*found, strict=True))
        return h, u


def _drawn_anew(module: nn.Module) -> nn.Module:
    """A copy with other weights."""
    module = deepcopy(module)
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
    return module
