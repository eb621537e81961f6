"""AdaFGL's second network: propagation as a frozen model of all parties sees a party's nodes to be related."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.nn.encoders import uses_edge_weights
from isthmus.nn.projected import widths_of
from isthmus.nn.twins import Bank, linear, twin
from isthmus.nn.weights import head_of

SCORE = "score"
"""Name of the homophily confidence score, a part of the weights that is not trained; below 0 before it is known."""
BODY = "body."
"""Beginning of the names of the first network's weights."""


class Adaptive(nn.Module):
    """A model of nodes, `body`, and a party's own networks, which replace its outputs once the score is known.

    P = softmax(body(X, A)), fixed;  R_uv = cos(P_u, P_v), 0 for u = v;  A' = alpha A + (1 - alpha) 1[R > threshold]
    X' = [X, MX, .., M^hops X],  M = D^-1/2 (A' + I) D^-1/2
    homophilous:   H = MLP(X');  (softmax(H) + P) / 2
    heterophilous: (softmax(MLP(X)) + softmax(MLP(X')) + softmax(`message` of MLP(X'))) / 3
    Output: log(score homophilous + (1 - score) heterophilous)

    In training, once the score is known, the outputs are the four MLPs' and P, side by side: `[nodes, 5 classes]`.
    """

    def __init__(
        self, module: nn.Module, *, hidden: int, dropout: float, alpha: float, beta: float, threshold: float, hops: int
    ) -> None:
        super().__init__()
        self.body = copy.deepcopy(module)
        self.head = f"{BODY}{head_of(module)}".rstrip(".")
        features, outputs = widths_of(module)[0], widths_of(module.get_submodule(head_of(module)))[1]
        self.alpha, self.beta, self.threshold, self.hops = alpha, beta, threshold, hops
        wide = features * (hops + 1)
        self.homophilous = _perceptron(HopLinear(wide, hidden, hops), [hidden, outputs], dropout)
        self.of_features = _perceptron(nn.Linear(features, hidden), [hidden, hidden, outputs], dropout)
        self.of_hops = _perceptron(HopLinear(wide, hidden, hops), [hidden, hidden, outputs], dropout)
        self.messages = _perceptron(HopLinear(wide, hidden, hops), [hidden, hidden, outputs], dropout)
        self.register_buffer(SCORE, torch.tensor(-1.0))
        self.supports_edge_weight = uses_edge_weights(module)
        self._takes_weights = "edge_weight" in signature(module.forward).parameters
        self._last: tuple[list[Any], Any] = ([], None)

    @property
    def first_layer(self) -> str | None:
        inner = getattr(self.body, "first_layer", None)
        return None if inner is None else f"{BODY}{inner}"

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        score: Tensor = self.get_buffer(SCORE)
        return self.run(x, edge_index, edge_weight, (x.size(0),), score.view(1), None)

    def run(
        self,
        x: Any,
        edge_index: Any,
        edge_weight: Tensor | None,
        sizes: Sequence[int],
        score: Tensor,
        weights: list[Any] | None,
    ) -> Tensor:
        """The outputs for parties of these sizes with these scores, `[parties]`.

        Arguments:
            weights: of `body`: with the same ones, and the same graph, what follows from P is not computed again.
        """
        edges = (edge_index, edge_weight) if self._takes_weights else (edge_index,)
        if not torch.compiler.is_exporting() and not bool((score >= 0).any()):
            out: Tensor = self.body(x, *edges)
            return out
        key = None if weights is None else [x, edge_index, edge_weight, *weights]
        if key is None or not _same(key, self._last[0]):
            output = self._fixed(x, *edges)
            found = output, *self._related(edge_index, edge_weight, output.softmax(1), sizes)
            self._last = ([], None) if key is None else (key, found)
        else:
            found = self._last[1]
        output, relations, matrices = found
        given, of_features = output.softmax(1), self.of_features(x)
        networks = self.homophilous, self.of_hops, self.messages
        h, of_hops, messages = (each[1:](each[0](x, matrices)) for each in networks)
        parts = zip(relations, messages.split(list(sizes)), strict=True)
        of_messages = torch.cat([message(e.clone(), own, self.beta) for own, e in parts if e.size(0)])
        if self.training:
            return torch.cat([h, of_features, of_hops, of_messages, given], dim=1)
        alike = (h.softmax(1) + given) / 2
        unlike = (of_features.softmax(1) + of_hops.softmax(1) + of_messages.softmax(1)) / 3
        share = score.expand(x.size(0)) if len(sizes) == 1 else score.repeat_interleave(torch.tensor(sizes))
        share = share.unsqueeze(1).to(output)
        both = share * alike + (1 - share) * unlike
        return torch.where(share >= 0, both.clamp(min=torch.finfo(both.dtype).tiny).log(), output)

    def _fixed(self, x: Any, *edges: Any) -> Tensor:
        """The outputs of `body` as in evaluation, without gradients."""
        if not self.training:
            out: Tensor = self.body(x, *edges)
            return out
        self.body.eval()
        try:
            with torch.no_grad():
                fixed: Tensor = self.body(x, *edges)
                return fixed
        finally:
            self.body.train()

    def _related(
        self, edge_index: Tensor, edge_weight: Tensor | None, given: Tensor, sizes: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """R and M of every party."""
        counts = [edge_index.size(1)]
        if len(sizes) > 1:
            party = rows.party_of_rows(sizes, edge_index.device)
            counts = torch.bincount(party[edge_index[0]], minlength=len(sizes)).tolist()
        weight = given.new_ones(edge_index.size(1)) if edge_weight is None else edge_weight.to(given.dtype)
        starts = list(itertools.accumulate(sizes[:-1], initial=0))
        relations, matrices = [], []
        split = given.split(list(sizes)), edge_index.split(counts, 1), weight.split(counts)
        for start, p, edges, values in zip(starts, *split, strict=True):
            relation = similar(p.clone())
            near = (relation > self.threshold).to(p.dtype)
            adjacent = torch.zeros_like(near).index_put((edges[1] - start, edges[0] - start), values, accumulate=True)
            matrix = self.alpha * adjacent + (1 - self.alpha) * near + torch.eye(p.size(0), dtype=p.dtype).to(p.device)
            scale = matrix.abs().sum(1).rsqrt()
            relations.append(relation)
            matrices.append(scale.unsqueeze(1) * matrix * scale)
        return relations, matrices


class HopLinear(nn.Linear):
    """[X, MX, .., M^hops X] W^T + b, as X W_0^T + M (X W_1^T + M (..)) + b: products are narrow, X may be sparse."""

    def __init__(self, wide: int, outputs: int, hops: int) -> None:
        super().__init__(wide, outputs)
        self.hops = hops

    def forward(self, x: Any, matrices: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        every = F.linear(x, self.by_hop(self.weight))
        return self.summed(every, matrices) + self.bias

    def by_hop(self, weight: Tensor) -> Tensor:
        """`[.., out, (hops + 1) in] -> [.., out (hops + 1), in]`"""
        return weight.view(*weight.shape[:-2], -1, weight.size(-1) // (self.hops + 1))

    def summed(self, every: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """What M sums up of the products of all hops, `[rows, out (hops + 1)] -> [rows, out]`."""
        products = every.view(every.size(0), -1, self.hops + 1).unbind(2)
        if torch.compiler.is_exporting():
            return _horner(products, matrices)
        total: Tensor = Horner.apply(matrices, *products)  # type: ignore[no-untyped-call]
        return total


@twin(HopLinear)
def _hop_linear(layer: Any, bank: Bank, prefix: str, x: Any, matrices: Sequence[Tensor]) -> Tensor:
    weight, bias = (bank.weights[f"{prefix}{name}"] for name in ("weight", "bias"))
    with bank.without(f"{prefix}bias"):
        every = linear(bank, prefix, x, layer.by_hop(weight))
    out: Tensor = layer.summed(every, matrices)
    return out + bank.per_row(f"{prefix}bias", out.size(0)) if bank.stacked else out + bias


class Horner(torch.autograd.Function):
    """P_0 + M (P_1 + M (..)) for the rows of each party, M its constant matrix."""

    @staticmethod
    def forward(ctx: Any, matrices: Sequence[Tensor], *products: Tensor) -> Tensor:
        ctx.matrices, ctx.count = matrices, len(products)
        return _horner(products, matrices)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slopes: list[list[Tensor]] = [[] for _ in range(ctx.count)]
        for matrix, part in zip(ctx.matrices, grad.split([len(each) for each in ctx.matrices]), strict=True):
            own = part.clone()  # the library rounds in another way where a party's numbers begin elsewhere
            for at, of_hop in enumerate(slopes):
                own = matrix.T @ own if at else own
                of_hop.append(own)
        return None, *map(torch.cat, slopes)


def _horner(products: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    sizes = [each.size(0) for each in matrices]
    *others, last = (each.split(sizes) for each in products)
    sums = [part.clone() for part in last]
    for of_hop in reversed(others):
        sums = [part + matrix @ own for part, matrix, own in zip(of_hop, matrices, sums, strict=True)]
    return torch.cat(sums)


@twin(Adaptive)
def _adaptive(
    layer: Any, bank: Bank, prefix: str, x: Any, edge_index: Any, edge_weight: Tensor | None = None
) -> Tensor:
    sizes = bank.layouts[0]
    score = bank.weights[f"{prefix}{SCORE}"].expand(len(sizes))
    weights = [weight for name, weight in bank.weights.items() if name.startswith(f"{prefix}{BODY}")]
    out: Tensor = layer.run(x, edge_index, edge_weight, sizes, score, weights)
    return out


def similar(p: Tensor) -> Tensor:
    """R: cosines of the rows of probabilities, 0 on the diagonal, `[nodes, nodes]`."""
    unit = _unit(p)
    return _off_diagonal(unit @ unit.T)


def _off_diagonal(pairs: Tensor) -> Tensor:
    """The same with 0 on the diagonal, in place but for programs."""
    if torch.compiler.is_exporting():
        return pairs * (1 - torch.eye(pairs.size(0), dtype=pairs.dtype).to(pairs.device))
    pairs.diagonal().zero_()
    return pairs


def _unit(p: Tensor) -> Tensor:
    return p / p.norm(dim=1, keepdim=True)


def message(e: Tensor, relation: Tensor, beta: float) -> Tensor:
    """(softmax(S+ E) - softmax(S- E) + E) / 2: neighbours that are alike attract, others repel; `[nodes, classes]`.

    S = beta R + (1 - beta) R(E) minus its mean, the positive entries divided by the largest and the negative ones by
    the mean, and 1 on the diagonal; S+ and S- are max(S, 0) and max(-S, 0).
    """
    # Few passes over the pairs, whose matrices fit into no cache: scales and the diagonal come after the products, and
    # these have the narrow side on the left, which takes a fifth of the time.
    unit, narrow, least = _unit(e.softmax(1)), e.T.contiguous(), torch.finfo(e.dtype).tiny ** 0.5
    both = _off_diagonal(torch.addmm(relation, unit, unit.T.contiguous(), beta=beta, alpha=1 - beta))
    mean = both.mean()
    centred = both - mean
    near, total = (narrow @ centred.relu()).T, (narrow @ centred).T
    attract = near / (both.max() - mean).clamp(min=least) + e
    repel = (near - total - mean * e) / mean.clamp(min=least)
    return (attract.softmax(1) - repel.softmax(1) + e) / 2


def _perceptron(first: nn.Module, widths: Sequence[int], dropout: float) -> nn.Sequential:
    """The first layer, then linear layers of these widths, with ReLU and dropout before each."""
    others = (nn.Linear(i, o) for i, o in itertools.pairwise(widths))
    return nn.Sequential(first, *(layer for each in others for layer in (nn.ReLU(), nn.Dropout(dropout), each)))


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether these are the same objects."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
