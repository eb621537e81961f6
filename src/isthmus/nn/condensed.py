"""A small synthetic graph whose features are learned and whose edges follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from isthmus.nn.draws import Draws
from isthmus.nn.products import grouped_linear

Distance = Literal["mse", "columns"]
PAIRS_AT_ONCE = 1_000_000
"""Pairs of synthetic nodes whose hidden layers are in memory at a time."""


def allot_nodes(counts: Tensor, total: int) -> Tensor:
    """Divide `total` synthetic nodes among the classes in proportion to their nodes, by largest remainder.

    Every class with nodes gets at least one synthetic node; a class without gets none.

    >>> allot_nodes(torch.tensor([6.0, 3.0, 0.0, 1.0]), 5).tolist()
    [3, 1, 0, 1]
    """
    present = counts > 0
    total = max(total, int(present.sum()))
    share = counts.double() / counts.sum() * total
    nodes = torch.where(present, share.floor().clamp(min=1), 0.0)
    while int(nodes.sum()) < total:  # the class furthest below its share gets one more
        nodes[torch.where(present, share - nodes, -1.0).argmax()] += 1
    while int(nodes.sum()) > total:  # the class furthest above its share loses one
        nodes[torch.where(nodes > 1, nodes - share, -torch.inf).argmax()] -= 1
    return nodes.long()


def initial_edge_weights(features: int, width: int, nodes: int, draws: Draws) -> dict[str, Tensor]:
    """Initial weights of the MLP of (8), drawn like torch's Linear layers, with about one neighbour per node.

    With a last bias of 0 every pair would have an edge of weight 1/2, and all nodes the same mean of neighbours.
    """
    wide, narrow = (2 * features) ** -0.5, width**-0.5

    def draw(name: str, *shape: int, bound: float) -> Tensor:
        return (2 * draws.of(name).uniform(shape[:1], *shape[1:]) - 1) * bound

    return {
        "edges/first": draw("first", width, 2 * features, bound=wide),
        "edges/first_bias": draw("first bias", width, bound=wide),
        "edges/second": draw("second", 1, width, bound=narrow),
        "edges/second_bias": torch.full((1,), -float(torch.tensor(max(nodes - 1, 1)).log())),
    }


def adjacency(x: Tensor, edges: Mapping[str, Tensor], *, symmetric: bool) -> Tensor:
    """A' of (8), `[nodes, nodes]`, without loops: sigma of MLP([x_i || x_j]), or of the mean of both directions.

    To save memory the first layer is applied to x_i and x_j apart and summed; hidden layers are computed for some
    nodes' pairs at a time, and once more for the gradient.
    """
    half = x.size(1)
    left, right = x @ edges["edges/first"][:, :half].T, x @ edges["edges/first"][:, half:].T

    def scores(part: Tensor) -> Tensor:
        hidden = (part.unsqueeze(1) + right.unsqueeze(0) + edges["edges/first_bias"]).relu()
        return (hidden @ edges["edges/second"].T).squeeze(2) + edges["edges/second_bias"]

    parts = left.split(max(1, PAIRS_AT_ONCE // x.size(0)))
    computed: list[Any] = [checkpoint(scores, part, use_reentrant=False) for part in parts]
    score = torch.cat(computed)
    if symmetric:
        score = (score + score.T) / 2
    return score.sigmoid() * (1 - torch.eye(x.size(0), device=x.device))


def propagate(x: Tensor, matrix: Tensor | None, hops: int) -> Tensor:
    """(D^-1/2 (A' + I) D^-1/2)^hops X', with A'_ij as the weight of the edge j -> i; X' without edges."""
    if matrix is None:
        return x
    looped = matrix + torch.eye(x.size(0), device=x.device)
    scale = looped.sum(1).rsqrt()
    matrix = scale.unsqueeze(1) * looped * scale
    for _ in range(hops):
        x = matrix @ x
    return x


def class_gradients(h: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Gradients of a linear model's mean cross-entropy over the rows of each class, `[classes, classes, features]`.

    g_c = (1 / n_c) sum_{i: y_i = c} (softmax(W h_i) - e_c) h_i^T, zero for a class without rows. Computed without
    autograd, because the result is differentiated again.

    Arguments:
        h: `[rows, features]`.
        weight: W, `[classes, features]`.
    """
    own = F.one_hot(y, weight.size(0)).to(h.dtype)
    error = (h @ weight.T).softmax(1) - own
    share = own / own.sum(0).clamp(min=1)
    return torch.einsum("nc,no,nd->cod", share, error, h)


def party_gradients(h: Tensor, y: Tensor, party: Tensor, parties: int, weight: Tensor) -> Tensor:
    """`class_gradients` of every party in one backward pass, `[parties, classes, classes, features]`.

    Every class of every party has its own copy of the weights.
    """
    classes = weight.size(0)
    group = party * classes + y
    order = group.argsort(stable=True)
    sizes = torch.bincount(group, minlength=parties * classes)
    stack = weight.expand(parties * classes, *weight.shape).clone().requires_grad_()
    output = grouped_linear(h[order], stack, tuple(sizes.tolist()))
    losses = F.cross_entropy(output, y[order], reduction="none") / sizes[group[order]]
    (gradients,) = torch.autograd.grad(losses.sum(), stack)
    return gradients.view(parties, classes, *weight.shape)


def squares(ours: Tensor, theirs: Tensor) -> Tensor:
    """The sum of squared differences of each class: `[classes, ...] -> [classes]`."""
    return (ours - theirs).square().flatten(1).sum(1)


def columns(ours: Tensor, theirs: Tensor) -> Tensor:
    """(7) of each class: sum_i (1 - cos(g_i, g'_i)) over the outputs i of the model."""
    return (1 - F.cosine_similarity(ours, theirs, dim=2)).sum(1)


DISTANCES: dict[Distance, Callable[[Tensor, Tensor], Tensor]] = {"mse": squares, "columns": columns}


def to_data(x: Tensor, y: Tensor, matrix: Tensor | None, threshold: float) -> Data:
    """The synthetic graph as PyG data: an edge j -> i of weight A'_ij, if above `threshold` times the largest weight.

    If all weights are below 1 / nodes, they are compared with `threshold` times that: weights of 1e-9 mean nothing to a
    GCN, whose self-loops have weight 1, but dominate a model that takes means over neighbours alone.

    >>> to_data(torch.eye(2), torch.tensor([0, 1]), torch.tensor([[0.0, 0.9], [0.1, 0.0]]), 0.5).edge_index.tolist()
    [[1], [0]]
    """
    if matrix is None:
        edge_index, weight = torch.empty(2, 0, dtype=torch.long), torch.empty(0)
    else:
        bound = threshold * max(float(matrix.max()), 1 / len(matrix))
        target, source = (matrix > bound).nonzero(as_tuple=True)
        edge_index, weight = torch.stack([source, target]), matrix[target, source]
    return Data(x=x.clone(), y=y.clone(), edge_index=edge_index, edge_weight=weight, num_nodes=x.size(0))
