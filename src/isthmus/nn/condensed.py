"""A small synthetic graph whose features are learned and whose edges follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from isthmus.nn.diffusion import Diffusion
from isthmus.nn.draws import Draws
from isthmus.nn.products import Propagation, grouped_linear, normalised_edges

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
    matrix = _normalised(matrix)
    for _ in range(hops):
        x = matrix @ x
    return x


def _normalised(matrix: Tensor) -> Tensor:
    """S = D^-1/2 (A' + I) D^-1/2."""
    looped = matrix + torch.eye(matrix.size(0), device=matrix.device)
    scale = looped.sum(1).rsqrt()
    return scale.unsqueeze(1) * looped * scale


def class_shares(y: Tensor, classes: int) -> Tensor:
    """How much each row counts in the mean over the rows of each class, `[rows, classes]`."""
    own = F.one_hot(y, classes).float()
    return own / own.sum(0).clamp(min=1)


def linear_gradients(h: Tensor, y: Tensor, weight: Tensor, share: Tensor) -> Tensor:
    """Gradients of a linear model's cross-entropy, weighted in several ways, `[ways, classes, features]`.

    g_k = sum_i share_ik (softmax(W h_i) - e_{y_i}) h_i^T. Computed without autograd, because the result is
    differentiated again.

    Arguments:
        h: `[rows, features]`.
        weight: W, `[classes, features]`.
        share: `[rows, ways]`, for each class its mean if they are `class_shares`.
    """
    return torch.einsum("nk,no,nd->kod", share, _errors(h, y, weight), h)


def gcn_gradients(
    x: Tensor, matrix: Tensor | None, y: Tensor, hidden: Tensor, output: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for both weights of a GCN of two layers without biases, S relu(S X V^T) W^T.

    With E_k the errors times share_k, and o the product of elements: dV_k = (S^T E_k W o [S X V^T > 0])^T S X. The
    result is `[ways, width, features]` and `[ways, classes, width]`.

    Arguments:
        matrix: A' of S = D^-1/2 (A' + I) D^-1/2; none where nodes have no edges.
        hidden, output: V `[width, features]` and W `[classes, width]`.
    """
    hop = torch.eye(x.size(0), device=x.device) if matrix is None else _normalised(matrix)
    near = hop @ x
    first = near @ hidden.T
    h = hop @ first.relu()
    back = torch.einsum("nm,nk,nw->kmw", hop, share, _errors(h, y, output) @ output) * (first > 0)
    return torch.einsum("kmw,md->kwd", back, near), linear_gradients(h, y, output, share)


def _errors(h: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return (h @ weight.T).softmax(1) - F.one_hot(y, weight.size(0)).to(h.dtype)


def party_gradients(h: Tensor, y: Tensor, party: Tensor, parties: int, weight: Tensor) -> Tensor:
    """`linear_gradients` of every party's classes in one backward pass, `[parties, classes, classes, features]`.

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


class PartyGcn:
    """`gcn_gradients` of every party's classes, side by side, for graphs that stay as they are while weights change.

    Only nodes next to `at` are read. An error of class c that reaches a node is a row of its own, so the work grows
    with the pairs of a node and a class next to it: few more than nodes, where neighbours are alike.

    Arguments:
        x: features of all nodes, `[nodes, features]`.
        edges: edges, and their weights or none.
        at: the nodes whose losses count, at least one.
        y, party: of each of them.
        shape: numbers of parties and of classes.
    """

    def __init__(
        self,
        x: Tensor,
        edges: tuple[Tensor, Tensor | None],
        at: Tensor,
        y: Tensor,
        party: Tensor,
        shape: tuple[int, int],
    ) -> None:
        self.y, self.party, self.shape = y, party, shape
        group = party * shape[1] + y
        self.count = torch.bincount(group, minlength=shape[0] * shape[1])
        self.size = self.count[group].unsqueeze(1)
        (source, target), values = normalised_edges(*edges, x.size(0), dtype=x.dtype)
        row = torch.full((x.size(0),), -1, device=x.device)
        row[at] = torch.arange(at.numel(), device=x.device)
        here = row[target] >= 0
        source, target, values = source[here], row[target[here]], values[here]
        near, column = source.unique(return_inverse=True)
        self.near = Diffusion(1).diffuse(x, *edges)[near]
        self.hop = Propagation(torch.stack([column, target]), values, near.numel(), at.numel())
        pairs, pair = (group[target] * near.numel() + column).unique(return_inverse=True)
        self.back = Propagation(torch.stack([target, pair]), values, at.numel(), pairs.numel())
        self.node = pairs % near.numel()
        self.paired = self.near[self.node]
        self.pairs = torch.bincount(pairs // near.numel(), minlength=self.count.numel()).tolist()

    def gradients(self, hidden: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """`[parties, classes, width, features]` and `[parties, classes, classes, width]`."""
        first = self.near @ hidden.T
        h = self.hop @ first.relu()
        back = self.back @ (_errors(h, self.y, output) / self.size @ output) * (first > 0)[self.node]
        slopes = hidden.new_empty(self.count.numel(), *hidden.shape)
        for own, errors, x in zip(slopes, back.split(self.pairs), self.paired.split(self.pairs), strict=True):
            torch.mm(errors.T, x, out=own)
        return slopes.view(*self.shape, *hidden.shape), party_gradients(h, self.y, self.party, self.shape[0], output)


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
