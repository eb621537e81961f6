"""A small synthetic graph that is learned: its edges follow from its features, its gradients from its edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from isthmus.nn.products import grouped_linear

Distance = Literal["mse", "columns"]
PAIRS = 1_000_000
"""Of as many pairs of synthetic nodes hidden layers are held at a time."""


def allot_nodes(counts: Tensor, total: int) -> Tensor:
    """How many of `total` synthetic nodes each class gets: as its nodes are, by largest remainder, one at least.

    A class without nodes gets none.

    >>> allot_nodes(torch.tensor([6.0, 3.0, 0.0, 1.0]), 5).tolist()
    [3, 1, 0, 1]
    """
    here = counts > 0
    due = counts.double() / counts.sum() * max(total, int(here.sum()))
    given = torch.where(here, due.floor().clamp(min=1), 0.0)
    while int(given.sum()) != max(total, int(here.sum())):
        over = int(given.sum()) > max(total, int(here.sum()))
        # who is furthest above its share gives one away, who is furthest below gets one
        gap = torch.where(here & (given > 1), given - due, -torch.inf) if over else torch.where(here, due - given, -1.0)
        given[gap.argmax()] += -1 if over else 1
    return given.long()


def initial_edge_weights(features: int, width: int, nodes: int, source: torch.Generator) -> dict[str, Tensor]:
    """Weights of the MLP of (8), drawn as torch's Linear layers are; it starts with about one neighbour for a node.

    With a last bias of 0 every pair would be joined by 1/2, and all nodes would start with the same neighbours' mean.
    """
    wide, narrow = (2 * features) ** -0.5, width**-0.5

    def drawn(*shape: int, bound: float) -> Tensor:
        return (2 * torch.rand(*shape, generator=source) - 1) * bound

    return {
        "edges/first": drawn(width, 2 * features, bound=wide),
        "edges/first_bias": drawn(width, bound=wide),
        "edges/second": drawn(1, width, bound=narrow),
        "edges/second_bias": torch.full((1,), -float(torch.tensor(max(nodes - 1, 1)).log())),
    }


def adjacency(x: Tensor, edges: Mapping[str, Tensor], *, symmetric: bool) -> Tensor:
    """A' by (8), `[nodes, nodes]`, without loops: sigma of MLP([x_i || x_j]), or of the mean of both directions.

    The first layer reads both halves of a pair apart and adds them up, so that no pair is ever put together; hidden
    layers of some nodes' pairs at a time are held, and made again for the gradient.
    """
    half = x.size(1)
    left, right = x @ edges["edges/first"][:, :half].T, x @ edges["edges/first"][:, half:].T

    def scores(part: Tensor) -> Tensor:
        hidden = (part.unsqueeze(1) + right.unsqueeze(0) + edges["edges/first_bias"]).relu()
        return (hidden @ edges["edges/second"].T).squeeze(2) + edges["edges/second_bias"]

    parts = left.split(max(1, PAIRS // x.size(0)))
    found: list[Any] = [checkpoint(scores, part, use_reentrant=False) for part in parts]
    score = torch.cat(found)
    if symmetric:
        score = (score + score.T) / 2
    return score.sigmoid() * (1 - torch.eye(x.size(0), device=x.device))


def propagate(x: Tensor, joined: Tensor | None, hops: int) -> Tensor:
    """(D^-1/2 (A' + I) D^-1/2)^hops X', as a GCN reads A'_ij: what comes to i from j; without edges X' itself."""
    if joined is None:
        return x
    looped = joined + torch.eye(x.size(0), device=x.device)
    scale = looped.sum(1).rsqrt()
    matrix = scale.unsqueeze(1) * looped * scale
    for _ in range(hops):
        x = matrix @ x
    return x


def class_gradients(h: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Gradients of a linear model's cross-entropy, one for each class: the mean over that class's rows alone.

    g_c = (1 / n_c) sum_{i: y_i = c} (softmax(W h_i) - e_c) h_i^T, zero for a class without rows. Written out, for it
    is differentiated once more.

    Arguments:
        h: `[rows, features]`.
        weight: W, `[classes, features]`.

    Returns:
        `[classes, classes, features]`.
    """
    own = F.one_hot(y, weight.size(0)).to(h.dtype)
    error = (h @ weight.T).softmax(1) - own
    share = own / own.sum(0).clamp(min=1)
    return torch.einsum("nc,no,nd->cod", share, error, h)


def party_gradients(h: Tensor, y: Tensor, party: Tensor, parties: int, weight: Tensor) -> Tensor:
    """As `class_gradients` for every party, `[parties, classes, classes, features]`: one backward pass for all of them.

    Every party's every class has a copy of the weights of its own, so that none mixes with another.
    """
    classes = weight.size(0)
    group = party * classes + y
    order = group.argsort(stable=True)
    sizes = torch.bincount(group, minlength=parties * classes)
    stack = weight.expand(parties * classes, *weight.shape).clone().requires_grad_()
    output = grouped_linear(h[order], stack, tuple(sizes.tolist()))
    losses = F.cross_entropy(output, y[order], reduction="none") / sizes[group[order]]
    (slopes,) = torch.autograd.grad(losses.sum(), stack)
    return slopes.view(parties, classes, *weight.shape)


def squares(ours: Tensor, theirs: Tensor) -> Tensor:
    """The squared differences, added up for each class: `[classes, ...] -> [classes]`."""
    return (ours - theirs).square().flatten(1).sum(1)


def columns(ours: Tensor, theirs: Tensor) -> Tensor:
    """(7) for each class: sum_i (1 - cos(g_i, g'_i)) over the outputs i of the model."""
    return (1 - F.cosine_similarity(ours, theirs, dim=2)).sum(1)


DISTANCES: dict[Distance, Callable[[Tensor, Tensor], Tensor]] = {"mse": squares, "columns": columns}


def to_data(x: Tensor, y: Tensor, joined: Tensor | None, threshold: float) -> Data:
    """The synthetic graph as PyG has it: an edge j -> i for A'_ij, if above `threshold` times the strongest.

    Where all are weak beside a node's weight of 1 on itself, what they must be above is that share of 1 / nodes: edges
    that matching has ended, weights of 1e-9, mean nothing to a GCN and everything to a model that takes means over
    neighbours without the node itself.

    >>> to_data(torch.eye(2), torch.tensor([0, 1]), torch.tensor([[0.0, 0.9], [0.1, 0.0]]), 0.5).edge_index.tolist()
    [[1], [0]]
    """
    if joined is None:
        edge_index, weight = torch.empty(2, 0, dtype=torch.long), torch.empty(0)
    else:
        least = threshold * max(float(joined.max()), 1 / len(joined))
        target, source = (joined > least).nonzero(as_tuple=True)
        edge_index, weight = torch.stack([source, target]), joined[target, source]
    return Data(x=x.clone(), y=y.clone(), edge_index=edge_index, edge_weight=weight, num_nodes=x.size(0))
