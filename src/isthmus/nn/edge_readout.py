"""The head of models that classify edges: it reads the embeddings of both ends, and the edge's own features."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.nn.twins import Bank, twin


class Ends(nn.Module):
    """From rows of nodes to rows of labelled edges: [z_u, z_v, features of the edge], in this order."""

    def forward(self, z: Tensor, edge_label_index: Tensor, edge_label_attr: Tensor | None) -> Tensor:
        source, target = edge_label_index
        both = [z.index_select(0, source), z.index_select(0, target)]
        return torch.cat(both if edge_label_attr is None else [*both, edge_label_attr], dim=1)


@twin(Ends)
def _ends(layer: Any, bank: Bank, prefix: str, *inputs: Any) -> Tensor:
    bank.layouts[:] = [bank.edge_labels]  # rows are those of labelled edges from here on
    return Ends.forward(layer, *inputs)


class EdgeReadout(nn.Module):
    """Embeddings of nodes, then of each labelled edge (u, v): W_2 drop(relu(W_1 [relu(z_u), relu(z_v), a_uv])).

    W_2 is the head: what it receives is the embedding of the edge.

    Arguments:
        body: embeds nodes, `hidden` wide.
        attributes: number of features of a labelled edge.
    """

    def __init__(self, body: nn.Module, hidden: int, attributes: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.body = body
        self.ends = Ends()
        self.join = nn.Linear(2 * hidden + attributes, hidden)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, classes)
        self.attributes = attributes
        self._reads = frozenset(signature(body.forward).parameters)

    @property
    def first_layer(self) -> str | None:
        inner = getattr(self.body, "first_layer", None)
        return None if inner is None else f"body.{inner}"

    @property
    def takes_hops(self) -> bool:
        """Whether the body's layers can propagate by rows of a larger graph's matrices."""
        return bool(getattr(self.body, "takes_hops", False))

    @property
    def trims(self) -> bool:
        """Whether the body's layers can leave out the nodes that no labelled edge needs."""
        return bool(getattr(self.body, "trims", False))

    @property
    def reach(self) -> int | None:
        """How many hops from its ends an edge's output depends on."""
        reach: int | None = getattr(self.body, "reach", None)
        return reach

    @property
    def hops(self) -> int | None:
        """How many hops of edges the body's layers read."""
        hops: int | None = getattr(self.body, "hops", None)
        return hops

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_label_index: Tensor,
        edge_label_attr: Tensor | None = None,
        edge_weight: Tensor | None = None,
        node_type: Tensor | None = None,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        more = {"edge_weight": edge_weight, "node_type": node_type, "edge_type": edge_type, "edge_attr": edge_attr}
        z = self.body(x, edge_index, **{name: value for name, value in more.items() if name in self._reads})
        h = self.join(self.ends(z.relu(), edge_label_index, edge_label_attr if self.attributes else None))
        out: Tensor = self.head(self.dropout(h.relu()))
        return out
