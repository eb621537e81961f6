"""FedGL: parties whose graphs overlap; the server finds pseudo labels and a pseudo graph for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from isthmus.data import similar
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, PartyFailed
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, IdUnion, Total
from isthmus.federation.site import Prepared
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State, Weighting
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedcog_gcn import convolutions_of
from isthmus.nn.encoders import uses_edge_weights
from isthmus.nn.layerwise import infer
from isthmus.tasks.base import Step, Task
from isthmus.tasks.classification import NodeClassification

log = logging.getLogger("isthmus")
NONE, CLOSED = -1, -2
"""In place of a class: no pseudo label; a row that was not opened, where the party takes its own prediction."""


class FedGL(FedAvg):
    """FedGL (Chen et al. 2021), Algorithm 1: federated averaging with pseudo labels and a pseudo graph from the server.

    Parties hold overlapping samples of one graph. The server adds up what the parties predict for each node and how
    they embed it; from these sums it labels nodes that have no label and joins similar nodes, and the parties train on
    both.

    Parties: L = L_GCN + alpha L_SSL, over nodes with a pseudo label     (8)
             A_k <- D^-1/2 (A_k + I + beta A'_(k)) D^-1/2     (9)
    Server:  P = sum_k w_k P_k,  H = sum_k w_k H_k,  by node     (11), (13)
             y_i = argmax_j P_ij where max_j P_ij > lambda, else none     (12)
             A' = max(cos(h_i, h_j), 0), s largest a row, rows sum to 1     (14)
             w <- sum_k (N_k / M) w_k     (10)

    A'_(k) is the part of A' among the nodes of party k. The server learns which hashed ids each party holds, reads sums
    by node, and opens a node's sum only if `min_contributors` of the asked parties hold it: a sum over one party would
    be that party's prediction. Other nodes get no pseudo neighbours, and their own party's prediction as pseudo label.

    The defaults differ from the paper where its formulas fail or give single parties away: cosines in place of dot
    products, one normalisation of both graphs, weights w_k that add up to one over a node's holders, P as the softmax
    of H, means in place of sums of losses, and a start once models have learned something. The options name the
    paper's choice. The graph of all parties' nodes, on which a study measures the global goal, has the edges that some
    party holds, and gets no pseudo graph.
    """

    name: ClassVar[str] = "fedgl"
    tuned: ClassVar[tuple[str, ...]] = ("alpha", "beta", "threshold")
    nouns: ClassVar[Mapping[str, str]] = {"embedding": "class scores", "probability": "class probabilities"}
    listing: ClassVar[Listing] = Listing("overlap", 1, "predictions and embeddings of nodes, in sums by node")
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_shared: ClassVar[bool] = True

    weighting: Weighting = "size"
    """What weights and predictions of a party are weighted by: all its nodes (as in the paper), its training nodes, or
    evenly."""
    pseudo_labels: bool = True
    """Train on pseudo labels: predictions that the server finds sure enough."""
    pseudo_graph: bool = True
    """Train on a pseudo graph: edges between nodes that the server finds similar."""
    threshold: float = Field(0.5, ge=0, lt=1)
    """A prediction becomes a pseudo label if its probability is above this (lambda)."""
    alpha: float = Field(0.2, ge=0)
    """Weight of the loss on pseudo labels."""
    sum_losses: bool = False
    """Add losses up over nodes, as (8) prints it, in place of their mean; many pseudo labels then outweigh the
    labels."""
    beta: float = Field(1.0, ge=0)
    """Weight of the pseudo graph beside the party's own graph."""
    neighbours: int = Field(100, ge=1)
    """Most pseudo neighbours of a node (s)."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """How similar two nodes are: the cosine of their embeddings, or the dot product, as (14) prints it."""
    mutual: bool = True
    """Join two nodes if each is among the other's most similar ones; false, as in the paper: if one of them is."""
    min_confident: float = Field(0.3, ge=0, le=1)
    """Pseudo labels and graph start once this share of the nodes has a prediction above the threshold; 0, as in the
    paper: in the first round."""
    max_changed: float = Field(0.03, ge=0, le=1)
    """The pseudo graph starts once at most this share of the nodes changes its predicted class in a round; 1, as in the
    paper: at once."""
    normalize_jointly: bool = True
    """Normalise the party's graph with the pseudo edges in it; false, as (9) prints it: each by itself, which needs a
    GCN."""
    fusion: Literal["holders", "all"] = "holders"
    """A node's weights w_k add up to one over the parties that hold it, or, as in the paper, over all parties."""
    min_contributors: int = Field(2, ge=1)
    """The server opens a node's sum only if at least this many parties hold the node; the paper's 1 shows it single
    predictions."""
    send_probabilities: bool = False
    """Send probabilities beside embeddings, as (11) prints it; from both sums the parts of two holders can be solved
    for."""
    search: Literal["exact", "approximate"] = "exact"
    """Find similar nodes among all, or approximately, with inverted lists (needs faiss)."""

    def check(self, module: nn.Module) -> None:
        if self.fusion == "all" and self.weighting != "size":
            raise IsthmusError("method 'fedgl': fusion = 'all' needs weighting = 'size'")
        if self.pseudo_graph and not self.normalize_jointly:
            convolutions_of(module, self.name)
        if self.pseudo_graph and not uses_edge_weights(module):
            raise IsthmusError(
                "method 'fedgl': this model does not read the edge weights of the pseudo graph: "
                "use encoder gcn, or set pseudo_graph = false"
            )

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        if state.once("agree"):
            state.union = federation.agree("known").save()
        union = IdUnion(**state.union)
        if not bool((union.holders >= self.min_contributors).any()):
            log.warning("fedgl: no node is held by %d parties: the server opens no sum", self.min_contributors)
        for state.round in state.rounds(self.rounds):
            chosen = [party for party in federation.sample(self.fraction) if party in union.held]
            if "labels" in state:  # line 16
                federation.ask("learn", Each(self.hints(state, union, chosen)), of=chosen)
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            state.weights = total.mean("weights", default=state.weights)  # line 11
            if self.pseudo_labels or self.pseudo_graph:
                total = federation.total("tell", of=chosen, rows=union, min_contributors=self.min_contributors)
                nodes = sum(union.held[party].numel() for party in chosen if party not in total.missing)
                self.discover(total, nodes, state)
            yield state

    def discover(self, total: Total, nodes: int, state: State) -> None:
        """Set pseudo labels and pseudo graph from sums by node, once models have learned something (lines 12-15).

        Arguments:
            nodes: nodes of the parties that answered, added up (M).
        """
        opened = total.opened
        assert opened is not None
        embedding = self.fused(total, "embedding", nodes)
        probability = self.fused(total, "probability", nodes) if self.send_probabilities else embedding.softmax(1)
        confidence, guess = probability.max(1)
        sure = opened & (confidence > self.threshold)
        self.watch(guess, sure, opened, state)
        found = self.pseudo_labels and "ready" in state
        state.labels = torch.where(opened, torch.where(sure & found, guess, NONE), CLOSED if found else NONE)
        if "began" in state:
            at = opened.nonzero().squeeze(1)
            ends, state.similarity = self.neighbourhood(embedding[at])
            state.ends = at[ends]

    def watch(self, guess: Tensor, sure: Tensor, opened: Tensor, state: State) -> None:
        """Record the first round with enough confident predictions, and the first after it with few changes."""
        state.start(guess=torch.full_like(guess, NONE))
        known = opened & (state.guess != NONE)
        changed = float((guess != state.guess)[known].float().mean()) if known.any() else 1.0
        state.guess = torch.where(opened, guess, state.guess)
        if not self.min_confident or (opened.any() and float(sure.sum()) >= self.min_confident * float(opened.sum())):
            state.start(ready=state.round)
        if self.pseudo_graph and "ready" in state and changed <= self.max_changed:
            state.start(began=state.round)

    def fused(self, total: Total, name: str, nodes: int) -> Tensor:
        """Weighted mean over the parties, by node: (11) and (13)."""
        return total.mean(name) if self.fusion == "holders" else total.sum(name) / nodes

    def neighbourhood(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The pseudo graph (14): pairs (node, neighbour), `[2, pairs]`, and weights that add up to one per node."""
        rows = F.normalize(embedding) if self.similarity == "cosine" else embedding
        graph = similar.SEARCHES[self.search](rows, self.neighbours)
        if self.mutual:
            graph = graph.minimum(graph.T)
        graph = similar.normalize_rows(graph).tocoo()
        pairs = torch.stack([torch.from_numpy(graph.row), torch.from_numpy(graph.col)]).long()
        return pairs, torch.from_numpy(graph.data)

    def hints(self, state: State, union: IdUnion, chosen: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return for each party the labels and edges of its own nodes, in its own order (line 16)."""
        graph = None
        if "ends" in state:
            nodes = union.ids.numel()
            graph = csr_array((state.similarity.numpy(), tuple(state.ends.numpy())), shape=(nodes, nodes))
        found = {}
        for party in chosen:
            own = union.held[party]
            found[party] = {"labels": state.labels[own]}
            if graph is not None:
                part = graph[own.numpy()][:, own.numpy()].tocoo()
                ends = torch.stack([torch.from_numpy(part.col), torch.from_numpy(part.row)])
                found[party] |= {"edges": ends.int(), "weight": torch.from_numpy(part.data)}
        return found

    def without_normalization(self, module: nn.Module) -> nn.Module:
        """The model for graphs that `complemented` has already normalised; the same where it has not."""
        if not self.pseudo_graph or self.normalize_jointly:
            return module
        module = deepcopy(module)
        convs: Any = convolutions_of(module, self.name).convs
        for conv in convs:
            conv.normalize = conv.add_self_loops = False
        return module

    def complemented(self, graph: Data, edges: Tensor, weight: Tensor) -> Data:
        """Return the graph with the pseudo edges added to it, (9).

        Jointly normalised it is D^-1/2 (A + I + beta A') D^-1/2, where rows of A' sum up to
        one over the whole union: all pseudo neighbours together count as one. Normalised apart it is D^-1/2 (A + I)
        D^-1/2 + beta D'^-1/2 A' D'^-1/2, where a node that has no pseudo neighbour here gets nothing.

        Arguments:
            edges: `[2, pairs]`, from a pseudo neighbour to a node.
            weight: `[pairs]`.
        """
        if not self.pseudo_graph or (self.normalize_jointly and not weight.numel()):
            return graph
        nodes, own = int(graph.num_nodes or 0), graph.get("edge_weight")
        index, weight = graph.edge_index, weight.to(graph.x.dtype)
        if self.normalize_jointly:
            own = weight.new_ones(index.size(1)) if own is None else own
        else:
            index, own = gcn_norm(index, own, nodes, dtype=weight.dtype)
            degree = weight.new_zeros(nodes).index_add_(0, edges[1], weight)
            scale = torch.where(degree > 0, degree, 1.0).rsqrt()
            weight = scale[edges[0]] * weight * scale[edges[1]]
        index, weight = torch.cat([index, edges], dim=1), torch.cat([own, self.beta * weight])
        return Data(x=graph.x, y=graph.y, edge_index=index, edge_weight=weight, num_nodes=nodes)

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {**super().calls(module), "known": 1, "learn": self.rounds - 1}

    class AtParty(Prepared, FedAvg.AtParty):
        method: FedGL

        def __init__(self, method: FedGL, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any):
            if method.pseudo_labels and not isinstance(task, NodeClassification):
                raise IsthmusError(f"method 'fedgl': task '{task.name}' has no classes that could be pseudo labels")
            super().__init__(method, parties, task, method.without_normalization(module), **where)
            guess = [torch.full((party.nodes,), NONE) for party in parties]
            self.begin(prepared=[_nothing(party) for party in parties], guess=guess)

        @action("ask")
        def known(self, request: Payload) -> Answer:
            """Ids of own nodes."""
            return Answer({"ids": [_ids(party) for party in self.cohort.parties]})

        @action("ask")
        def learn(self, request: Payload) -> Answer:
            """Keep pseudo labels, for nodes without a label, and pseudo edges (line 5)."""
            hints = []
            for at, (party, guess) in enumerate(zip(self.held.parties, self.kept.each("guess"), strict=True)):
                label = request["labels"][at].cpu()
                label = torch.where(label == CLOSED, guess.cpu(), label).masked_fill(party.train, NONE)
                hint = _nothing(party) | {"label": label}
                if "edges" in request:
                    hint |= {"edges": request["edges"][at].long().cpu(), "weight": request["weight"][at].cpu()}
                hints.append(hint)
            self.kept["prepared"] = hints
            self.invalidate()
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            graph = self.method.complemented(party.graph, prepared["edges"].cpu(), prepared["weight"].cpu())
            return replace(party, graph=graph, train=party.train | (prepared["label"].cpu() >= 0))

        @action("total")
        def train(self, request: Payload) -> Answer:
            """Train on labels and pseudo labels (line 7)."""
            self.model.load(request["weights"])
            pseudo = torch.cat([each["label"] for each in self.kept.each("prepared")])
            self.method.local.fit(self, partial(self._loss, pseudo.to(self.cohort.device)))
            self.kept["trained"] = self.model.stacks()
            return Answer({"weights": self.model.weights()}, weight=self.averaging_weights())

        def _loss(self, pseudo: Tensor, step: Step) -> Tensor:
            """L_GCN + alpha L_SSL, (8)."""
            pseudo = pseudo[step.items]
            loss = self._reduced(_part(step, step.y, pseudo < 0))
            if (pseudo >= 0).any():
                loss = loss + self.method.alpha * self._reduced(_part(step, pseudo, pseudo >= 0))
            return loss

        def _reduced(self, step: Step) -> Tensor:
            loss = self.task.loss(step)
            return loss * self.task.loss_counts(step).to(loss) if self.method.sum_losses else loss

        @action("total", contributors="min_contributors")
        def tell(self, request: Payload) -> Answer:
            """Embeddings, and perhaps probabilities, of own nodes by id (line 8)."""
            self.model.load(self.kept["trained"])
            embedding = infer(self.model, self.cohort.block)
            probability = embedding.softmax(1)
            confidence, guess = (each.cpu() for each in probability.max(1))
            sizes = list(self.cohort.sizes)
            self.kept["guess"] = list(torch.where(confidence > self.method.threshold, guess, NONE).split(sizes))
            fields = {"embedding": list(embedding.split(sizes))}
            if self.method.send_probabilities:
                fields |= {"probability": list(probability.split(sizes))}
            ids = [_ids(party) for party in self.cohort.parties]
            return Answer({"ids": ids, **fields}, weight=self.averaging_weights())


def _ids(party: Party) -> Tensor:
    if party.ids is None:
        raise PartyFailed(
            party.name, "its nodes have no ids, by which FedGL adds up predictions: give ids in nodes.parquet"
        )
    return party.ids.cpu()


def _nothing(party: Party) -> dict[str, Tensor]:
    """Labels and edges before the first round: none."""
    none = torch.full((party.nodes,), NONE)
    return {"label": none, "edges": torch.empty(2, 0, dtype=torch.long), "weight": torch.empty(0)}


def _part(step: Step, y: Tensor, mask: Tensor) -> Step:
    """The step with the items in `mask` only, and these labels."""
    sizes = tuple(int(size) for size in step.sum(mask.long()).tolist())
    return Step(step.output[mask], y[mask], sizes, step.items[mask])
