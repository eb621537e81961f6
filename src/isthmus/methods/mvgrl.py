"""MVGRL: nodes of one view of a graph agree with the other view of it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from isthmus.methods.base import Listing
from isthmus.methods.shared.unsupervised import TwoViews
from isthmus.nn.contrast import Projection, mutual_information_loss
from isthmus.nn.encoders import Embedder, Views
from isthmus.tasks.base import Step


class Mvgrl(TwoViews):
    """MVGRL (Hassani and Khasahmadi 2020), trained by FedAvg, or by FedProx as `trainer`.

    A graph and its diffusion have an encoder each, with common heads for nodes and for graphs; nodes of one view and
    graphs of the other are trained to have much mutual information.

    S = alpha (I - (1 - alpha) D^-1/2 (A + I) D^-1/2)^-1
    h^A_v = head_1(encoder_A, node v),  u^A_g = head_2(encoder_A, pooled over g)
    h^S_v, u^S_g likewise by encoder_S on the edges of S
    I(h, u) = mean over (v, g), v not in g, of  softplus(<h_v, u_g>) - log 2
            + mean over (v, g), v in g, of      softplus(-<h_v, u_g>) - log 2
    l = I(h^A, u^S) + I(h^S, u^A), over a batch of one party's graphs

    alpha is `restart`; entries of S below `threshold` are left out. A graph's embedding is u^A_g + u^S_g. The server
    reads the mean of the parties' weights.

    Every layer is trained and sent; in the public code convolutions are in a plain list, which torch does not register.
    Encoders read a diffusion as weighted edges: a GCN normalises them, where the public code multiplies by S.
    """

    name: ClassVar[str] = "mvgrl"
    listing: ClassVar[Listing] = Listing(
        "unlabelled", 2, costs="4 times the time of a contrast without diffusion (PROTEINS)"
    )

    node_head_reads: Literal["all", "last"] = "all"
    """What the head of nodes reads: the outputs of all layers; or of the last, as in the public code, where both heads
    are as wide as a layer."""

    def extended(self, module: nn.Module) -> nn.Module:
        return TwoEncoders(module, last=self.node_head_reads == "last")

    class AtParty(TwoViews.AtParty):
        def loss(self, step: Step) -> Tensor:
            h, u = step.output
            block = self.block
            assert block.batch is not None
            where = block.batch, block.sizes, block.graphs
            return mutual_information_loss(h[:, 0], u[:, 1], *where) + mutual_information_loss(h[:, 1], u[:, 0], *where)


class TwoEncoders(nn.Module):
    """An embedder for each view, `[..., views, width]` behind the heads.

    Arguments:
        last: the nodes' head reads the last layer alone, and heads are as wide as a layer.
    """

    def __init__(self, embedder: nn.Module, *, last: bool = False) -> None:
        super().__init__()
        assert isinstance(embedder, Embedder)
        self.embedders = nn.ModuleList([embedder, _redrawn(embedder)])
        self.views = Views()
        self.takes_graphs = embedder.takes_graphs
        self.width = embedder.width // len(getattr(embedder.body, "convs", "1")) if last else embedder.width
        self.of_nodes = Projection(self.width)
        self.of_graphs = Projection(embedder.width, self.width)

    def forward(
        self, x: Any, edge_index: Tensor, edge_weight: Tensor, batch: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        found = []
        for embedder, edges in zip(self.embedders, self.views(edge_index, edge_weight), strict=True):
            h, u = embedder(x, *edges, batch, batch_size)
            found.append((self.of_nodes(h.squeeze(1)[:, -self.width :]), self.of_graphs(u.squeeze(1))))
        h, u = (torch.stack(each, dim=1) for each in zip(*found, strict=True))
        return h, u


def _redrawn(module: nn.Module) -> nn.Module:
    """A copy with newly drawn weights."""
    module = deepcopy(module)
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
    return module
