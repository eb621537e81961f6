"""Twins: layers that work on all parties side by side, each on its own slice of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from isthmus.data import rows
from isthmus.errors import IsthmusError
from isthmus.nn.draws import NotSideBySide, rows_per_party
from isthmus.nn.hops import HopPropagations, own_rows, propagates_first
from isthmus.nn.products import (
    Features,
    Propagation,
    by_input,
    grouped_linear,
    mean_edges,
    normalised_edges,
    per_row,
    plain_edges,
)
from isthmus.nn.stacks import FirstLayer


class Bank:
    """What the twins of one model read during a forward pass: the weights, and how rows divide among parties."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.stacked = False
        self.layouts: list[tuple[int, ...]] = [()]
        self.edge_labels: tuple[int, ...] = ()
        self.propagations = HopPropagations()

    def per_row(self, name: str, count: int) -> Tensor:
        """The weight called `name` for each of `count` rows; a shared weight as it is, to be broadcast."""
        weight: Tensor = self.weights[name]
        if not self.stacked:
            return weight
        stack = weight.squeeze(1) if weight.dim() > 2 and weight.size(1) == 1 else weight
        return per_row(stack, rows_per_party(count, self.layouts))

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Within the `with`, there is no weight called `name`."""
        weights, self.weights = self.weights, {each: value for each, value in self.weights.items() if each != name}
        try:
            yield
        finally:
            self.weights = weights


Twin: TypeAlias = Callable[..., Tensor]
TWINS: dict[type[nn.Module], Twin] = {}
"""Layers with another forward, by exact type."""
REPEATED: dict[type[nn.Module], tuple[str, ...]] = {
    gnn.GATConv: ("att_src", "att_dst", "bias"),
    gnn.ChebConv: ("bias",),
}
"""Layers that keep PyG's forward: their own parameters are applied row by row, so they are repeated for the rows."""


def twin(*kinds: type[nn.Module]) -> Callable[[Twin], Twin]:
    """Register a forward for layers of these types: `forward(layer, bank, prefix, *inputs)`."""

    def register(forward: Twin) -> Twin:
        TWINS.update(dict.fromkeys(kinds, forward))
        return forward

    return register


@twin(nn.Linear, gnn.Linear)
def _linear(layer: Any, bank: Bank, prefix: str, x: Any) -> Tensor:
    return linear(bank, prefix, x, bank.weights[f"{prefix}weight"])


def linear(bank: Bank, prefix: str, x: Any, weight: Any) -> Tensor:
    """The product of rows with their party's weight, plus its bias."""
    bias: Tensor | None = bank.weights.get(f"{prefix}bias")
    out: Tensor
    if not bank.stacked:
        return F.linear(x, weight, bias)
    if isinstance(weight, FirstLayer) and weight.columns.touched and weight.columns.x is not x.x:
        if weight.party_rows.requires_grad:
            raise IsthmusError("a first layer stored by touched rows is trained on the features it was made for")
        weight = weight.stack()
    if isinstance(weight, FirstLayer):
        columns = weight.columns
        if columns.x is not x.x:  # a batch of those features
            columns = x.all_columns(rows_per_party(x.size(0), bank.layouts))
        out = x.grouped(weight.party_rows, columns)
    elif isinstance(x, Features):
        out = x.grouped(by_input(weight), x.all_columns(rows_per_party(x.size(0), bank.layouts)))
    elif x.dim() == 2:
        return grouped_linear(x, weight, rows_per_party(x.size(0), bank.layouts), bias)
    else:
        flat = x.reshape(-1, x.size(-1))
        out = grouped_linear(flat, weight, rows_per_party(flat.size(0), bank.layouts)).view(*x.shape[:-1], -1)
    return out if bias is None else out + bank.per_row(f"{prefix}bias", x.size(0))


def propagates_by_matrix(layer: nn.Module) -> bool:
    """Whether a layer's twin propagates by a matrix, of which it may then get some rows (see `Hop`)."""
    if isinstance(layer, gnn.SAGEConv):
        return layer.aggr == "mean" and not layer.project
    if isinstance(layer, gnn.GraphConv | gnn.GINConv):
        return layer.aggr == "add"
    return type(layer) in TWINS


def propagation(
    layer: Any, bank: Bank, h: Any, edge_index: Tensor, edge_weight: Tensor | None = None, **options: Any
) -> Propagation:
    """The matrix by which a layer propagates: normalised, or the edge weights as they are."""
    if not getattr(layer, "normalize", True):
        return bank.propagations(plain_edges, edge_index, edge_weight, h.size(0), dtype=h.dtype)
    return bank.propagations(normalised_edges, edge_index, edge_weight, h.size(0), dtype=h.dtype, **options)


@twin(gnn.GCNConv)
def _gcn(layer: Any, bank: Bank, prefix: str, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    if not layer.normalize and edge_weight is not None and edge_weight.requires_grad:
        h = layer.propagate(edge_index, x=layer.lin(x), edge_weight=edge_weight)
    else:
        options = {"improved": layer.improved, "self_loops": layer.add_self_loops}
        hop = propagation(layer, bank, x, edge_index, edge_weight, **options)
        # on 42,000 nodes the right order takes 101 s rather than 133
        first = isinstance(x, Tensor) and propagates_first(edge_index, x.size(1), layer.out_channels)
        h = layer.lin(hop @ x) if first else hop @ layer.lin(x)
    return h if layer.bias is None else h + bank.per_row(f"{prefix}bias", h.size(0))


# PyG gathers a row per edge in the next three; with 200,000 edges the cached sparse product takes half the time
@twin(gnn.SAGEConv)
def _sage(layer: Any, bank: Bank, prefix: str, x: Tensor, edge_index: Tensor) -> Tensor:
    if not propagates_by_matrix(layer):
        return type(layer).forward(layer, x, edge_index)
    out: Tensor = layer.lin_l(bank.propagations(mean_edges, edge_index, None, x.size(0), dtype=x.dtype) @ x)
    out = out + layer.lin_r(own_rows(x, edge_index)) if layer.root_weight else out
    return F.normalize(out, p=2.0, dim=-1) if layer.normalize else out


@twin(gnn.GraphConv)
def _graph_conv(
    layer: Any, bank: Bank, prefix: str, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None
) -> Tensor:
    if not propagates_by_matrix(layer) or (edge_weight is not None and edge_weight.requires_grad):
        return type(layer).forward(layer, x, edge_index, edge_weight)
    reached = bank.propagations(plain_edges, edge_index, edge_weight, x.size(0), dtype=x.dtype) @ x
    return layer.lin_rel(reached) + layer.lin_root(own_rows(x, edge_index))


@twin(gnn.GINConv)
def _gin(layer: Any, bank: Bank, prefix: str, x: Any, edge_index: Tensor) -> Tensor:
    if not propagates_by_matrix(layer):
        raise NotSideBySide("an aggregation other than the sum")
    hop, sparse, bias = bank.propagations(plain_edges, edge_index, None, x.size(0), dtype=x.dtype), False, ""
    if isinstance(x, Features):  # the first product is narrow, a sum of sparse features wide and dense
        sparse, bias = True, f"{prefix}nn.0.bias"
        with bank.without(bias):
            x = layer.nn[0](x)
    own = own_rows(x, edge_index)
    eps = bank.per_row(f"{prefix}eps", own.size(0)) if f"{prefix}eps" in bank.weights else layer.eps
    summed: Tensor = hop @ x + (1 + eps) * own
    if not sparse:
        return layer.nn(summed)
    return layer.nn[1:](summed + bank.per_row(bias, summed.size(0)) if bias in bank.weights else summed)


@twin(gnn.SGConv)
def _sgc(layer: Any, bank: Bank, prefix: str, x: Tensor, *edges: Any, **named: Any) -> Tensor:
    hop = propagation(layer, bank, x, *edges, **named, self_loops=layer.add_self_loops)
    for _ in range(layer.K):
        x = hop @ x
    return layer.lin(x)


@twin(gnn.TAGConv)
def _tag(layer: Any, bank: Bank, prefix: str, x: Tensor, *edges: Any, **named: Any) -> Tensor:
    hop = propagation(layer, bank, x, *edges, **named, self_loops=False)
    out: Tensor = layer.lins[0](x)
    for lin in layer.lins[1:]:
        x = hop @ x
        out = out + lin(x)
    return out if layer.bias is None else out + bank.per_row(f"{prefix}bias", out.size(0))


@twin(gnn.LGConv)
def _light(layer: Any, bank: Bank, prefix: str, x: Tensor, *edges: Any, **named: Any) -> Tensor:
    return propagation(layer, bank, x, *edges, **named, self_loops=False) @ x


@twin(gnn.APPNP)
def _appnp(layer: Any, bank: Bank, prefix: str, x: Tensor, *edges: Any, **named: Any) -> Tensor:
    if not layer.normalize or (layer.dropout > 0 and layer.training):
        raise NotSideBySide("propagation with dropout of edges")
    hop = propagation(layer, bank, x, *edges, **named, self_loops=layer.add_self_loops)
    h = x
    for _ in range(layer.K):
        h = (1 - layer.alpha) * (hop @ h) + layer.alpha * x
    return h


@twin(nn.LayerNorm)
def _layer_norm(layer: Any, bank: Bank, prefix: str, x: Tensor) -> Tensor:
    if len(layer.normalized_shape) != 1 or x.dim() != 2:
        raise NotSideBySide("layer normalisation over more than the features")
    out = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    if layer.weight is not None:
        out = out * bank.per_row(f"{prefix}weight", x.size(0))
    return out if layer.bias is None else out + bank.per_row(f"{prefix}bias", x.size(0))


@twin(nn.BatchNorm1d)
def _batch_norm(layer: Any, bank: Bank, prefix: str, x: Tensor) -> Tensor:
    """Statistics per party, as if each party were alone."""
    if x.dim() != 2:
        raise NotSideBySide("batch normalisation of more than two dimensions")
    use_batch = layer.training or layer.running_mean is None
    names = [f"{prefix}{name}" for name in ("running_mean", "running_var", "weight", "bias")]
    sizes = rows_per_party(x.size(0), bank.layouts)
    if not bank.stacked and not use_batch:
        mean, var, scale, shift = (bank.weights.get(name) for name in names)
        return F.batch_norm(x, mean, var, scale, shift, False, 0.0, layer.eps)
    out: Tensor
    if use_batch:
        count = torch.tensor(sizes, dtype=x.dtype, device=x.device).clamp(min=1).unsqueeze(1)
        mean = rows.sum_per_party(x, sizes) / count
        centred = x - per_row(mean, sizes)
        var = rows.sum_per_party(centred * centred, sizes) / count
        _move_statistics(layer, bank, names[:2], mean.detach(), var.detach(), sizes)
        out = centred * per_row((var + layer.eps).rsqrt(), sizes)
    else:
        mean, var = bank.weights[names[0]], bank.weights[names[1]]
        out = (x - per_row(mean, sizes)) * per_row((var + layer.eps).rsqrt(), sizes)
    if layer.affine:
        out = out * bank.per_row(names[2], x.size(0)) + bank.per_row(names[3], x.size(0))
    return out


def _move_statistics(
    layer: Any, bank: Bank, names: Sequence[str], mean: Tensor, var: Tensor, sizes: Sequence[int]
) -> None:
    if layer.running_mean is None:
        return
    if layer.momentum is None:
        raise NotSideBySide("batch normalisation with a cumulative average")
    count = torch.tensor(sizes, dtype=var.dtype, device=var.device).unsqueeze(1)
    unbiased = var * (count / (count - 1).clamp(min=1))
    for name, new in zip(names, (mean, unbiased), strict=True):
        running = bank.weights[name]
        running.copy_(torch.where(count > 0, torch.lerp(running, new, layer.momentum), running))


def _repeated_forward(
    layer: Any, bank: Bank, prefix: str, direct: Sequence[str], forward: Any, *args: Any, **kwargs: Any
) -> Any:
    count = args[0].size(0) if args and hasattr(args[0], "size") else sum(bank.layouts[0])
    for name in direct:
        if f"{prefix}{name}" in bank.weights:
            layer.__dict__[name] = bank.per_row(f"{prefix}{name}", count)
    return forward(*args, **kwargs)


def without_caches(module: nn.Module) -> nn.Module:
    """Empty and switch off the caches of convolutions: they would use the first party's graph for every other party."""
    for layer in module.modules():
        if getattr(layer, "cached", False) is True:
            layer.cached = False  # type: ignore[assignment]
        for name in vars(layer):
            if name.startswith("_cached"):
                setattr(layer, name, None)
    return module


def twin_of(module: nn.Module, bank: Bank) -> nn.Module | None:
    """A copy of `module` whose layers read the bank; None if a layer is unknown."""
    copied = copy.deepcopy(module)
    for path, layer in copied.named_modules():
        prefix = f"{path}." if path else ""
        own = {name for name, _ in layer.named_parameters(recurse=False)}
        own |= {name for name, buffer in layer.named_buffers(recurse=False) if buffer.is_floating_point()}
        if type(layer) in TWINS:
            layer.forward = partial(TWINS[type(layer)], layer, bank, prefix)
        elif type(layer) in REPEATED:
            names = REPEATED[type(layer)]
            if not own <= set(names) or getattr(layer, "edge_dim", None) is not None:
                return None
            for name in names:
                for registered in (layer._parameters, layer._buffers):
                    if name in registered:  # move it to where `_repeated_forward` can set it
                        layer.__dict__[name] = registered.pop(name)
            layer.forward = partial(_repeated_forward, layer, bank, prefix, names, layer.forward)
        elif own:
            return None
    return copied
