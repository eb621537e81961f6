"""Encoders in which propagation has no weight matrices and is apart from the layers that learn."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric import nn as gnn

from isthmus.nn.diffusion import Diffusion
from isthmus.nn.encoders import Encoder, MessagePassing, Perceptron, Propagate
from isthmus.nn.pointwise import sigmoid
from isthmus.nn.products import normalised_edges
from isthmus.nn.twins import REPEATED

First = Literal["learn", "propagate"]


class Sgc(Encoder):
    """Simplified graph convolution (Wu et al. 2019): S^K X, then one linear layer."""

    name: ClassVar[str] = "sgc"
    lr: ClassVar[float] = 2.0
    without: ClassVar[tuple[str, ...]] = ("layers",)

    hops: int = Field(2, ge=1, le=1000)
    """Number K of propagations."""

    def body(self, features: int, out: int) -> nn.Module:
        return Simplified(features, out, self.hops)


class Diffused(MessagePassing):
    """A model of diffused features: f(diffusion(X)).

    Attributes:
        diffusion: how features are diffused, without learned weights.
        diffused: the features it receives are diffused already, for instance by several parties together.
    """

    def __init__(self, diffusion: Diffusion) -> None:
        super().__init__()
        self.diffusion = diffusion
        self.diffused = False

    @property
    def before(self) -> Diffusion | None:
        """What diffuses the features before anything is learned from them; None if they are diffused already."""
        return None if self.diffused else self.diffusion

    @property
    def takes_hops(self) -> bool:
        return self.diffused

    @property
    def hops(self) -> int | None:  # type: ignore[override]  # a property for an attribute
        return 0 if self.diffused else self.diffusion.hops

    @property
    def reach(self) -> int | None:
        # the degrees, by which features are diffused, need one hop more
        return 0 if self.diffused else self.diffusion.hops + 1


class Simplified(Diffused):
    """S^K X W + b. X W is propagated, because it is narrow: in PyG's order of the products a step on Cora, with 200
    times as many features as classes, takes many times as long. The whole model is its head."""

    first_layer = "linear.weight"
    head = ""
    before = None

    def __init__(self, features: int, out: int, hops: int) -> None:
        super().__init__(Diffusion(hops))
        self.linear = nn.Linear(features, out, bias=False)
        self.hop = Propagate(normalised_edges)
        self.bias = Bias(out)

    @property
    def takes_hops(self) -> bool:
        return True

    @property
    def reach(self) -> int | None:
        return self.hops

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        h = self.linear(x)
        for _ in range(0 if self.diffused else self.diffusion.hops):
            h = self.hop(h, edge_index, edge_weight)
        return self.bias(h)


class Bias(nn.Module):
    """h + b."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.bias


REPEATED[Bias] = ("bias",)


class Appnp(Encoder):
    """Predict, then propagate with restart alpha (Gasteiger et al. 2019)."""

    name: ClassVar[str] = "appnp"
    lr: ClassVar[float] = 0.2
    hops: int = Field(10, ge=1, le=1000)
    """Number of propagations."""
    alpha: float = Field(0.1, ge=0, le=1)
    """Restart probability."""
    first: First = "learn"
    """learn: apply the perceptron, then propagate its outputs. propagate: propagate the features first."""

    def body(self, features: int, out: int) -> nn.Module:
        if self.first == "propagate":
            return DiffusedPerceptron(
                Diffusion(self.hops, restart=self.alpha), self.widths(features, out), self.dropout
            )
        return Personalised(Perceptron(self.widths(features, out), self.dropout), self.hops, self.alpha)


class Personalised(MessagePassing):
    """A perceptron, then PyG's personalised propagation."""

    def __init__(self, perceptron: Perceptron, hops: int, alpha: float) -> None:
        super().__init__()
        self.perceptron = perceptron
        self.first_layer, self.head = f"perceptron.{perceptron.first_layer}", f"perceptron.{perceptron.head}"
        self.propagate = gnn.APPNP(hops, alpha)
        self.hops = hops

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.propagate(self.perceptron(x), edge_index, edge_weight)


class Gbp(Encoder):
    """Bidirectional propagation (Chen et al. 2020): sum_k w_k (D^(r-1) A D^-r)^k X, then a perceptron.

    w_k = alpha (1 - alpha)^k. Features are propagated exactly, not by sampling.
    """

    name: ClassVar[str] = "gbp"
    lr: ClassVar[float] = 0.1
    hops: int = Field(4, ge=1, le=1000)
    """Number of propagations."""
    alpha: float = Field(0.1, gt=0, le=1)
    """Decay of the hop weights."""
    r: float = Field(0.5, ge=0, le=1)
    """Convolution exponent: 0.5 is the symmetric normalisation."""

    def body(self, features: int, out: int) -> nn.Module:
        weights = tuple(self.alpha * (1 - self.alpha) ** k for k in range(self.hops + 1))
        diffusion = Diffusion(self.hops, left=self.r - 1, right=-self.r, weights=weights)
        return DiffusedPerceptron(diffusion, self.widths(features, out), self.dropout)


class DiffusedPerceptron(Diffused):
    """Diffused features, then a perceptron."""

    def __init__(self, diffusion: Diffusion, widths: list[tuple[int, int]], dropout: float) -> None:
        super().__init__(diffusion)
        self.perceptron = Perceptron(widths, dropout)
        self.head = f"perceptron.{self.perceptron.head}"

    @property
    def first_layer(self) -> str | None:
        return f"perceptron.{Perceptron.first_layer}" if self.diffused else None

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.perceptron(x if self.diffused else self.diffusion.diffuse(x, edge_index, edge_weight))


class GprGnn(Encoder):
    """Generalised PageRank (Chien et al. 2021): learned hop weights, initially those of personalised PageRank."""

    name: ClassVar[str] = "gprgnn"
    lr: ClassVar[float] = 0.05
    hops: int = Field(10, ge=1, le=1000)
    """Number of propagations."""
    alpha: float = Field(0.1, ge=0, le=1)
    """Restart probability of the initial hop weights."""
    first: First = "learn"
    """learn: apply the perceptron, then propagate its outputs. propagate: propagate the features first."""

    def body(self, features: int, out: int) -> nn.Module:
        start = self.alpha * (1 - self.alpha) ** torch.arange(self.hops + 1.0)
        start[-1] = (1 - self.alpha) ** self.hops
        perceptron = Perceptron(self.widths(features, out), self.dropout)
        return (GprBody if self.first == "learn" else DiffusedGpr)(perceptron, start)


class DiffusedGpr(Diffused):
    """f(sum_k gamma_k S^k X) with learned gamma."""

    def __init__(self, perceptron: Perceptron, start: Tensor) -> None:
        super().__init__(Diffusion(start.numel() - 1, every=True))
        self.perceptron = perceptron
        self.head = f"perceptron.{perceptron.head}"
        self.gamma = HopWeights(start)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        hops = x if self.diffused else self.diffusion.diffuse(x, edge_index, edge_weight)
        return self.perceptron(self.gamma(hops.view(hops.size(0), self.gamma.length, -1)))


class GprBody(MessagePassing):
    """sum_k gamma_k S^k f(X) with learned gamma."""

    def __init__(self, perceptron: Perceptron, start: Tensor) -> None:
        super().__init__()
        self.perceptron = perceptron
        self.first_layer, self.head = f"perceptron.{perceptron.first_layer}", f"perceptron.{perceptron.head}"
        self.hop = Propagate(normalised_edges)
        self.gamma = HopWeights(start)
        self.hops = self.gamma.length - 1

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        hops = [self.perceptron(x)]
        for _ in range(self.gamma.length - 1):
            hops.append(self.hop(hops[-1], edge_index, edge_weight))
        return self.gamma(torch.stack(hops, dim=1))


class HopWeights(nn.Module):
    """A weight per hop: `[rows, hops, width] -> [rows, width]`."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.length = start.numel()
        self.weight = nn.Parameter(start.clone())

    def forward(self, hops: Tensor) -> Tensor:
        return (hops * self.weight.unsqueeze(-1)).sum(1)


REPEATED[HopWeights] = ("weight",)


class Gamlp(Encoder):
    """Graph attention multi-layer perceptron (Zhang et al. 2022): every node weighs its hops, then a perceptron."""

    name: ClassVar[str] = "gamlp"
    lr: ClassVar[float] = 0.05
    layers: int = Field(3, ge=1, le=1000)
    """Number of linear layers of the perceptron."""
    hops: int = Field(3, ge=1, le=1000)
    """Number of propagations."""

    def body(self, features: int, out: int) -> nn.Module:
        perceptron = Perceptron(self.widths(features, out), self.dropout)
        return AttentivePerceptron(perceptron, HopAttention(features, self.hops))


class AttentivePerceptron(Diffused):
    """f(sum_k a_k S^k X), a_k the attention of each node to its hops."""

    def __init__(self, perceptron: Perceptron, attention: HopAttention) -> None:
        super().__init__(Diffusion(attention.hops, every=True))
        self.perceptron = perceptron
        self.head = f"perceptron.{perceptron.head}"
        self.attention = attention

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        hops = x if self.diffused else self.diffusion.diffuse(x, edge_index, edge_weight)
        return self.perceptron(self.attention(hops))


class HopAttention(nn.Module):
    """sum_k a_k x_k, a = softmax over k of sigmoid(u [x_0 .. x_K] + v x_k): `[rows, (K + 1) width] -> [rows, width]`.

    This is the attention that GAMLP calls JK.
    """

    def __init__(self, width: int, hops: int) -> None:
        super().__init__()
        self.hops = hops
        self.of_all = nn.Linear((hops + 1) * width, 1)
        self.of_each = nn.Linear(width, 1, bias=False)

    def forward(self, hops: Tensor) -> Tensor:
        each = hops.view(hops.size(0), self.hops + 1, -1)
        scores = torch.cat([self.of_each(hop.contiguous()) for hop in each.unbind(1)], dim=1)
        attention = sigmoid(self.of_all(hops) + scores).softmax(1)
        return (each * attention.unsqueeze(-1)).sum(1)


class LightGcn(Encoder):
    """LightGCN (He et al. 2020): a linear embedding, propagated without weight matrices, averaged over hops."""

    name: ClassVar[str] = "lightgcn"
    lr: ClassVar[float] = 0.1
    without: ClassVar[tuple[str, ...]] = ("layers",)

    hops: int = Field(3, ge=1, le=1000)
    """Number of propagations."""

    def body(self, features: int, out: int) -> nn.Module:
        return LightBody(features, self.hidden, out, self.hops, self.dropout)


class LightBody(MessagePassing):
    """Embed, propagate with PyG's LGConv, average over hops, one linear layer."""

    first_layer = "embed.weight"

    def __init__(self, features: int, hidden: int, out: int, hops: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embed = nn.Linear(features, hidden)
        self.convs = nn.ModuleList(gnn.LGConv() for _ in range(hops))
        self.hops = hops
        self.head = nn.Linear(hidden, out)

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        h = self.embed(self.dropout(x))
        total = h
        for conv in self.convs:
            h = conv(h, edge_index, edge_weight)
            total = total + h
        return self.head(self.dropout(total / (len(self.convs) + 1)))
