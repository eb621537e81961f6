"""Checks graphs, splits and batches that users pass in, and converts them to the types that models read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.errors import IsthmusError


def validate_graph(graph: Any, where: str) -> Data:
    """A new graph with the checked features, edges, weights and labels of this one.

    Arguments:
        where: what messages call the graph, such as "party 'bank-a'".
    """
    if not isinstance(graph, Data):
        raise IsthmusError(f"{where}: a graph must be a torch_geometric.data.Data, not a {type(graph).__name__}")
    x = _features(graph.get("x"), where)
    valid = Data(x=x, edge_index=as_tensor(graph.get("edge_index"), "edge_index", where))
    valid.y = _labels(graph.get("y"), where)
    if graph.get("edge_weight") is not None:
        valid.edge_weight = _edge_weight(graph.edge_weight, valid.edge_index, where)
    if graph.get("edge_attr") is not None:
        valid.edge_attr = _edge_attr(graph.edge_attr, valid.edge_index, where)
    for name in ("node_type", "edge_type"):  # of a typed graph, see `Schema`
        if graph.get(name) is not None:
            valid[name] = graph[name]
    valid.num_nodes = x.size(0)
    return valid


def validate_split(value: Any, items: int, where: str) -> Tensor:
    """A mask over the items, from a mask or from positions."""
    if value is None:
        return torch.zeros(items, dtype=torch.bool)
    if isinstance(value, range | list | tuple):
        value = list(value) or torch.empty(0, dtype=torch.long)  # torch reads an empty list as floats
    value = as_tensor(value, "a split", where)
    if value.dtype == torch.bool:
        return value.reshape(-1)
    if value.is_floating_point() or value.unique().numel() < value.numel():
        raise IsthmusError(f"{where}: a split must be a mask (torch.bool) or different positions (whole numbers)")
    if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < items:
        raise IsthmusError(f"{where}: a split names a position outside 0 .. {items - 1}")
    mask = torch.zeros(items, dtype=torch.bool)
    mask[value.long()] = True
    return mask


def validate_batch(batch: Any, nodes: int, graphs: int, where: str) -> Tensor:
    """The graph of every node, ascending, `[nodes]`."""
    batch = as_tensor(batch, "batch", where)
    if batch.shape != (nodes,) or batch.is_floating_point() or batch.dtype == torch.bool:
        raise IsthmusError(f"{where}: batch must be {nodes} whole numbers, the graph of every node")
    if nodes and (int(batch.min()) < 0 or int(batch.max()) >= graphs or bool((batch[1:] < batch[:-1]).any())):
        raise IsthmusError(f"{where}: batch must ascend within 0 .. {graphs - 1}, one number for every row of y")
    return batch.long()


def check_splits(masks: Mapping[str, Tensor], y: Tensor, where: str) -> None:
    """Refuse splits that share items, or hold items without a class."""
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        if masks[first].shape == masks[second].shape and bool((masks[first] & masks[second]).any()):
            raise IsthmusError(f"{where}: '{first}' and '{second}' share items: give each item to one split")
    if y.is_floating_point() or y.dim() != 1:
        return
    for split, mask in masks.items():
        if mask.shape == y.shape and bool((y[mask] < 0).any()):
            at = int((mask & (y < 0)).nonzero()[0])
            raise IsthmusError(f"{where}: item {at} in '{split}' has label {int(y[at])}: classes are 0, 1, ...")


def drop_unlabelled(masks: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    """The splits without items whose labels are all missing (NaN)."""
    if not y.is_floating_point() or y.dim() == 0:
        return dict(masks)
    missing = y.isnan()
    has_label = ~(missing if y.dim() == 1 else missing.flatten(1).all(dim=1))
    return {split: mask & has_label if mask.shape == has_label.shape else mask for split, mask in masks.items()}


def as_tensor(value: Any, what: str, where: str) -> Tensor:
    if value is None:
        unknown = ": give unknown labels as -1, or NaN where labels are numbers" if what == "y" else ""
        raise IsthmusError(f"{where}: {what} is missing{unknown}")
    try:
        if isinstance(value, Tensor):
            return value.detach()
        return torch.as_tensor(value.to_numpy().copy() if hasattr(value, "to_numpy") else value)  # of pandas
    except (TypeError, ValueError, RuntimeError) as error:
        raise IsthmusError(f"{where}: {what} is a {type(value).__name__}, not a tensor") from error


def _features(x: Any, where: str) -> Tensor:
    x = as_tensor(x, "x", where)
    if x.layout == torch.sparse_coo:
        x = rows.to_csr(x.coalesce())
    if x.dim() != 2:
        raise IsthmusError(f"{where}: x has shape {list(x.shape)}, it must be [nodes, features]")
    values = x.values() if rows.is_sparse(x) else x
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        raise IsthmusError(
            f"{where}: x has {int((~torch.isfinite(values)).sum())} NaN or infinite values: replace them"
        )
    return x.to(torch.get_default_dtype())


def _labels(y: Any, where: str) -> Tensor:
    y = as_tensor(y, "y", where)
    if y.is_floating_point():
        whole = y.dim() == 1 and bool(y.numel()) and bool((y == y.floor()).all())  # not so with NaN
        if whole and not 0 <= float(y.min()) <= float(y.max()) <= 1:
            raise IsthmusError(
                f"{where}: y holds whole numbers as floats: give classes as y.long(), measured values as y.view(-1, 1)"
            )
        return y
    return (y.squeeze(1) if y.dim() == 2 and y.size(1) == 1 else y).long()


def _edge_weight(weight: Any, edges: Tensor, where: str) -> Tensor:
    weight = as_tensor(weight, "edge_weight", where)
    weight = weight.squeeze(1) if weight.dim() == 2 and weight.size(1) == 1 else weight
    if weight.dim() != 1 or weight.size(0) != edges.size(-1) or not bool(torch.isfinite(weight).all()):
        raise IsthmusError(f"{where}: edge_weight must be {edges.size(-1)} finite numbers, one for each edge")
    return weight.to(torch.get_default_dtype())


def _edge_attr(values: Any, edges: Tensor, where: str) -> Tensor:
    values = as_tensor(values, "edge_attr", where)
    values = values.unsqueeze(1) if values.dim() == 1 else values
    if values.dim() != 2 or values.size(0) != edges.size(-1):
        raise IsthmusError(
            f"{where}: edge_attr has shape {list(values.shape)}, it must be [{edges.size(-1)}, features]"
        )
    if values.is_floating_point() and not bool(values.isfinite().all()):
        count = int((~values.isfinite()).sum())
        raise IsthmusError(f"{where}: edge_attr has {count} NaN or infinite values: replace them")
    return values.to(torch.get_default_dtype())
