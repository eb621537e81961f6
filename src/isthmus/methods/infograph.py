"""InfoGraph: a graph's embedding agrees with those of its nodes."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from isthmus.methods.base import Listing
from isthmus.methods.shared.unsupervised import Unsupervised
from isthmus.nn.contrast import Projection, mutual_information_loss
from isthmus.nn.encoders import Embedder
from isthmus.tasks.base import Step


class InfoGraph(Unsupervised):
    """InfoGraph (Sun et al. 2020), trained by FedAvg, or by FedProx as `trainer`.

    Embeddings of a graph and of its nodes are trained to have much mutual information: a graph's embedding should agree
    with those of its own nodes, and not with those of other graphs' nodes.

    h_v = head_1(encoder, node v),  u_g = head_2(encoder, pooled over g)
    I(h, u) = mean over (v, g), v not in g, of  softplus(<h_v, u_g>) - log 2
            + mean over (v, g), v in g, of      softplus(-<h_v, u_g>) - log 2
    l = I(h, u), over a batch of one party's graphs

    I is minus the Jensen-Shannon estimate of mutual information; a head is three layers and a linear shortcut.
    Negatives are the other graphs in a party's batch; the server reads the mean of the parties' weights. A graph's
    embedding is the encoder's, before the head; pooling is `model.pool`, a sum in the paper. The semi-supervised form
    is not here.
    """

    name: ClassVar[str] = "infograph"
    listing: ClassVar[Listing] = Listing("unlabelled", 1)

    def extended(self, module: nn.Module) -> nn.Module:
        return WithHeads(module)

    class AtParty(Unsupervised.AtParty):
        def loss(self, step: Step) -> Tensor:
            h, _, u = step.output
            block = self.block
            assert block.batch is not None
            return mutual_information_loss(h, u, block.batch, block.sizes, block.graphs)


class WithHeads(nn.Module):
    """An embedder, a head for its nodes and one for its graphs: nodes behind theirs, graphs before and behind."""

    def __init__(self, embedder: nn.Module) -> None:
        super().__init__()
        assert isinstance(embedder, Embedder)
        self.embedder = embedder
        self.takes_graphs = embedder.takes_graphs
        self.of_nodes = Projection(embedder.width)
        self.of_graphs = Projection(embedder.width)

    def forward(
        self, x: Any, edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        h, u = self.embedder(x, edge_index, edge_weight, batch, batch_size)
        return self.of_nodes(h.squeeze(1)), u, self.of_graphs(u.squeeze(1))
