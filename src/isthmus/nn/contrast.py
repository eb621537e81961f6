"""Contrastive losses, which compare the items of each party with each other, for all parties at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows


class Projection(nn.Module):
    """Three layers and a linear shortcut, which map embeddings to what a loss contrasts, as wide unless `out` is."""

    def __init__(self, width: int, out: int | None = None) -> None:
        super().__init__()
        out = width if out is None else out
        layers = [layer for i in (width, out, out) for layer in (nn.Linear(i, out), nn.ReLU())]
        self.layers = nn.Sequential(*layers)
        self.past = nn.Linear(width, out)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.layers(h) + self.past(h)
        return out


def pad_rows(values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rows of each party, padded with zeros, `[parties, most, ...]`, and a mask of the rows, `[parties, most]`.

    >>> pad_rows(torch.tensor([1.0, 2.0, 3.0]), (2, 1))[0].tolist()
    [[1.0, 2.0], [3.0, 0.0]]
    """
    most = max(sizes)
    counts = torch.tensor(sizes, device=values.device)
    mask = torch.arange(most, device=values.device) < counts.unsqueeze(1)
    if all(size == most for size in sizes):
        return values.view(len(sizes), most, *values.shape[1:]), mask
    out = values.new_zeros(len(sizes), most, *values.shape[1:])
    out[mask] = values
    return out, mask


def contrast_views(u: Tensor, sizes: Sequence[int], temperature: float, *, unit: bool = True) -> Tensor:
    """The contrastive loss between two views of items: (5) and (6) of FCLG, SimCLR's NT-Xent; `[parties]`.

    L(u, v) = log(sum_{z in U + V, z != u} exp(u z / tau) / exp(u v / tau)); the mean of L(u, v) and L(v, u) over a
    party's items.

    Arguments:
        u: embeddings, `[items, 2, width]`.
        unit: scale embeddings to length 1 first. Without, as printed, products of sums over nodes are large: the
            logarithm of the sum stays finite, but nearly all of it is its largest term.
    """
    u = F.normalize(u, dim=2) if unit else u
    z, mask = pad_rows(u, sizes)
    z, mask = z.flatten(1, 2), mask.repeat_interleave(2, dim=1)  # [parties, 2 most, width]
    score = z @ z.mT / temperature
    diagonal = torch.eye(z.size(1), dtype=torch.bool, device=z.device)
    others = score.masked_fill(diagonal | ~mask.unsqueeze(1), -torch.inf).logsumexp(2)[mask]
    own = (u[:, 0] * u[:, 1]).sum(1) / temperature
    return rows.mean_per_party(others.view(-1, 2).mean(1) - own, sizes)


def mutual_information_loss(h: Tensor, u: Tensor, graph: Tensor, nodes: Sequence[int], graphs: Sequence[int]) -> Tensor:
    """Minus the Jensen-Shannon estimate of the mutual information of nodes and graphs, `[parties]`.

    With T = <h_v, u_g>: the mean of softplus(-T) over nodes and their own graphs, plus the mean of softplus(T) over
    nodes and the party's other graphs (Hjelm et al. 2019, InfoGraph (5)).

    Arguments:
        h: embeddings of nodes, `[nodes, width]`.
        u: embeddings of graphs, `[graphs, width]`.
        graph: the graph of each node, `[nodes]`.
        nodes, graphs: how many each party has.
    """
    own = (h * u[graph]).sum(1)
    score = pad_rows(h, nodes)[0] @ pad_rows(u, graphs)[0].mT  # [parties, most nodes, most graphs], 0 for padding
    inside = rows.sum_per_party(F.softplus(own) - math.log(2), nodes)
    outside = (F.softplus(score) - math.log(2)).sum((1, 2)) - inside
    count = torch.tensor([n * (g - 1) for n, g in zip(nodes, graphs, strict=True)], device=h.device)
    return outside / count.clamp(min=1) + rows.mean_per_party(F.softplus(-own) - math.log(2), nodes)
