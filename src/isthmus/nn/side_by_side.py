"""Layers that are written once for one party and for many: each reads its weights through an object that knows which.

A layer's `compute(weights, ...)` is its forward. For one party `weights` multiplies with the layer's own parameters,
for a cohort with each party's slice of the stacks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.nn.products import grouped_linear, per_row
from isthmus.nn.twins import TWINS, Bank


class Rows:
    """Some rows of a graph, party after party: nodes of a type, or edges.

    Arguments:
        node: for every row a node of the same party, ascending by party, `[rows]`.
    """

    def __init__(self, node: Tensor) -> None:
        self.node = node
        self._sizes: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return self.node.numel()

    def per_party(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """How many of these rows each party has, given how many nodes each has."""
        if len(nodes) == 1:
            return (len(self),)
        if nodes not in self._sizes:
            ends = torch.tensor(nodes, device=self.node.device).cumsum(0)
            party = torch.bucketize(self.node, ends, right=True)
            self._sizes[nodes] = tuple(torch.bincount(party, minlength=len(nodes)).tolist())
        return self._sizes[nodes]


class Access(Protocol):
    """How a layer reads its weights. A weight may have a leading party dimension; `...` in an index keeps it."""

    def __getitem__(self, name: str) -> Tensor: ...

    def linear(self, x: Tensor, weight: Tensor, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias` for rows of x; weight `[..., out, in]`, bias `[..., out]`."""

    def heads(self, x: Tensor, weight: Tensor, rows: Rows) -> Tensor:
        """For every head its own product: x `[rows, heads, in]`, weight `[..., heads, out, in]`."""

    def repeat(self, weight: Tensor, rows: Rows) -> Tensor:
        """A weight for every row, to be broadcast."""


class OneParty:
    """The parameters of a layer itself."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __getitem__(self, name: str) -> Tensor:
        weight: Tensor = getattr(self.layer, name)
        return weight

    def linear(self, x: Tensor, weight: Tensor, rows: Rows, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def heads(self, x: Tensor, weight: Tensor, rows: Rows) -> Tensor:
        return torch.einsum("nhi,hoi->nho", x, weight)

    def repeat(self, weight: Tensor, rows: Rows) -> Tensor:
        return weight


class Stacks:
    """The stacks of all parties' weights."""

    def __init__(self, bank: Bank, prefix: str) -> None:
        self.bank, self.prefix = bank, prefix

    def __getitem__(self, name: str) -> Tensor:
        weight: Tensor = self.bank.weights[f"{self.prefix}{name}"]
        return weight

    def linear(self, x: Tensor, weight: Tensor, rows: Rows, bias: Tensor | None = None) -> Tensor:
        sizes = rows.per_party(self.bank.layouts[0])
        out = grouped_linear(x, weight, sizes)
        return out if bias is None else out + per_row(bias, sizes)

    def heads(self, x: Tensor, weight: Tensor, rows: Rows) -> Tensor:
        count, heads = x.shape[:2]
        sizes = rows.per_party(self.bank.layouts[0]) * heads
        by_head = weight.transpose(0, 1).flatten(0, 1)  # head after head, each with all parties
        out = grouped_linear(x.transpose(0, 1).flatten(0, 1), by_head, sizes)
        return out.view(heads, count, -1).transpose(0, 1)

    def repeat(self, weight: Tensor, rows: Rows) -> Tensor:
        return per_row(weight, rows.per_party(self.bank.layouts[0]))


class Layer(nn.Module):
    """A layer with a `compute` for any number of parties. Its parameters are its own, not those of modules inside."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        TWINS[cls] = _twin

    def add(self, name: str, *shape: int, fill: float | None = None) -> None:
        """Add a parameter: of one value, or drawn as those of torch's linear layers."""
        value = torch.empty(shape)
        if fill is not None:
            nn.init.constant_(value, fill)
        elif len(shape) > 1:
            for each in value.view(-1, *shape[-2:]):
                nn.init.kaiming_uniform_(each, a=math.sqrt(5))
        self.register_parameter(name, nn.Parameter(value))

    @abstractmethod
    def compute(self, weights: Access, *inputs: Any) -> Tensor:
        """The outputs, for one party or many."""

    def forward(self, *inputs: Any) -> Tensor:
        return self.compute(OneParty(self), *inputs)


def _twin(layer: Any, bank: Bank, prefix: str, *inputs: Any) -> Tensor:
    weights: Access = Stacks(bank, prefix) if bank.stacked else _Shared(bank, prefix, layer)
    out: Tensor = layer.compute(weights, *inputs)
    return out


class _Shared(OneParty):
    """One slice of the bank for all parties."""

    def __init__(self, bank: Bank, prefix: str, layer: nn.Module) -> None:
        super().__init__(layer)
        self.bank, self.prefix = bank, prefix

    def __getitem__(self, name: str) -> Tensor:
        weight: Tensor = self.bank.weights[f"{self.prefix}{name}"]
        return weight


class Last:
    """A cache of what was made of the last few graphs, by the identity of their tensors, which it keeps alive."""

    def __init__(self, keep: int = 6) -> None:
        self.keep = keep
        self._known: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}

    def __call__(self, make: Any, *key: Any) -> Any:
        if torch.compiler.is_exporting():
            return make(*key)
        at = (make, *(id(each) if isinstance(each, Tensor) else each for each in key))
        if at not in self._known:
            while len(self._known) >= self.keep:
                self._known.pop(next(iter(self._known)))
            self._known[at] = key, make(*key)
        return self._known[at][1]

    def __deepcopy__(self, memo: Any) -> Last:
        return Last(self.keep)
