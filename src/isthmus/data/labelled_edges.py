"""Edges with labels, as PyG names them: `edge_label_index`, `edge_label` and `edge_label_attr`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from isthmus.data.schema import Schema
from isthmus.errors import IsthmusError


@dataclass(frozen=True, eq=False)
class LabelledEdges:
    """Edges that are classified or measured; they need not be edges of the graph that a model reads.

    Arguments:
        index: the positions of both nodes of each, `[2, items]`; the order of the two matters.
        y: the labels.
        attr: features of each, `[items, width]`, or none.
    """

    index: Tensor
    y: Any
    attr: Tensor | None

    @classmethod
    def of(cls, graph: Any, where: str) -> LabelledEdges:
        """Read the labelled edges of a `Data`, or of one edge type of a `HeteroData`.

        Without `edge_label_index`, the labels are those of `edge_index`, and the features are `edge_attr`.
        """
        y = graph.get("edge_label")
        if y is None:
            raise IsthmusError(f"{where}: edge_label is missing: give a label for each column of edge_label_index")
        given = graph.get("edge_label_index")
        index = torch.as_tensor(graph.edge_index if given is None else given)
        attr = graph.get("edge_attr" if given is None else "edge_label_attr")
        y = torch.as_tensor(y)
        if index.dim() != 2 or index.size(0) != 2 or index.dtype != torch.long:
            raise IsthmusError(f"{where}: edge_label_index must be torch.int64 of shape [2, labelled edges]")
        if not y.dim() or y.size(0) != index.size(1):
            raise IsthmusError(
                f"{where}: edge_label has shape {list(y.shape)}, it must have a row for each of the {index.size(1)} "
                f"columns of {'edge_index' if given is None else 'edge_label_index'}"
            )
        return cls(index, y, None if attr is None else _attributes(torch.as_tensor(attr), index.size(1), where))

    @classmethod
    def of_party(cls, graph: Data) -> LabelledEdges:
        """The labelled edges of a party's graph."""
        return cls(graph.edge_label_index, graph.y, graph.get("edge_label_attr"))

    def check(self, nodes: int, where: str) -> None:
        """Refuse edges with an end that is no node of the graph."""
        if self.index.numel() and not 0 <= int(self.index.min()) <= int(self.index.max()) < nodes:
            at = int(((self.index < 0) | (self.index >= nodes)).any(0).nonzero()[0])
            raise IsthmusError(
                f"{where}: labelled edge {at} joins nodes {self.index[:, at].tolist()}, but the party has nodes "
                f"0 .. {nodes - 1}: add the other party's node to the graph, with what this party knows of it"
            )


def of_typed(graph: HeteroData, schema: Schema, flat: Data, where: str) -> LabelledEdges:
    """Read the labelled edges of a typed graph, which exactly one edge type has, as positions in the flat graph."""
    kinds = [kind for kind in graph.edge_types if graph[kind].get("edge_label") is not None]
    if len(kinds) != 1:
        found = " and ".join(f"({', '.join(kind)})" for kind in kinds) or "no edge type"
        raise IsthmusError(f"{where}: {found} has edge_label: give labels to the edges of exactly one type")
    kind = kinds[0]
    found_edges = LabelledEdges.of(graph[kind], f"{where}, edges ({', '.join(kind)})")
    counts = torch.bincount(flat.node_type, minlength=len(schema.nodes))
    ends = torch.tensor(schema.ends[schema.edge_types.index(kind)])
    for end, count in zip(found_edges.index, counts[ends].tolist(), strict=True):
        if end.numel() and not 0 <= int(end.min()) <= int(end.max()) < count:
            raise IsthmusError(
                f"{where}: a labelled edge ({', '.join(kind)}) ends at a node outside 0 .. {count - 1} of its type"
            )
    return replace(found_edges, index=found_edges.index + (counts.cumsum(0) - counts)[ends][:, None])


def _attributes(attr: Tensor, edges: int, where: str) -> Tensor:
    attr = attr.detach().unsqueeze(1) if attr.dim() == 1 else attr.detach()
    if attr.dim() != 2 or attr.size(0) != edges:
        raise IsthmusError(f"{where}: features of labelled edges have shape {list(attr.shape)}, not [{edges}, width]")
    if attr.is_floating_point() and not bool(attr.isfinite().all()):
        raise IsthmusError(f"{where}: features of labelled edges have NaN or infinite values: replace them")
    return attr.to(torch.get_default_dtype())
