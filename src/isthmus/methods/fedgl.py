"""FedGL: parties whose graphs overlap; the server finds pseudo labels and a pseudo graph for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from isthmus.data import similar
from isthmus.data.party import Level, Party
from isthmus.errors import IsthmusError, PartyFailed
from isthmus.federation.answers import Answer, IdUnion, Total
from isthmus.federation.site import Prepared, action
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State, Weighting
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedcog_gcn import convolutions_of
from isthmus.tasks.base import Step, Task
from isthmus.tasks.classification import NodeClassification

log = logging.getLogger("isthmus")
NONE, CLOSED = -1, -2
"""In place of a class: no pseudo label; and a row that was not opened, for which the party's own guess stands."""


class FedGL(FedAvg):
    """FedGL (Chen et al. 2021), Algorithm 1: federated averaging with self-supervision that the server finds.

    Parties hold overlapping samples of one graph. Each round they train on L = L_GCN + alpha L_SSL (8), where L_SSL is
    over their unlabelled nodes that have a global pseudo label, on their graph with the global pseudo graph added to it
    (9). Then the server sums up what they predict for each node (11) and its embedding (13), by hashed node id, takes
    for pseudo labels what is predicted with a probability above `threshold` (12), and joins each node to the
    `neighbours` most similar ones (14).

    Parties: L = L_GCN + alpha L_SSL     (8)
             A_k <- D^-1/2 (A_k + I + beta A'_(k)) D^-1/2     (9), joined
    Server:  P = sum_k w_k P_k,  H = sum_k w_k H_k,  by node     (11), (13)
             y_i = argmax_j P_ij where max_j P_ij > lambda, else none     (12)
             A' = max(cos(h_i, h_j), 0), s largest a row, rows sum to 1     (14)
             w <- sum_k (N_k / M) w_k     (10)

    `A'_(k)` is the part of A' among party k's nodes. The paper's (9) adds two matrices, each normalised by itself:
    `A_k + beta D'^-1/2 A'_(k) D'^-1/2` with A_k normalised already (`normalize_jointly = false`). In (11) and (13) its w_k is
    N_k / M, see below; its (14) is max(H H^T, 0) (`similarity = "dot"`). Here P is the softmax of H, the fused outputs
    of the models, unless probabilities are told beside them (`send_probabilities`); and two nodes are joined in A' where each is
    among the other's nearest (`mutual`).

    Sums by node are all that the server reads. Of a node that fewer than `min_contributors` of the parties hold that take part
    the sum is not opened: the sum of one would be its prediction. Such a node has no pseudo neighbours, and its pseudo
    label is what its own party predicts.

    Where the paper is silent or ambiguous:

    - A node's weights N_k / M are divided by their sum over the parties that hold it. Read literally (`fusion = "all"`)
      M is the sum over all parties, and a node that few hold has small probabilities, below any threshold.
    - L_GCN and L_SSL are means over their nodes, as in the GCN that the paper builds on; `sum_losses` is (8) to the letter.
    - Parties train and are evaluated on complemented graphs. The graph that all parts make together, on which a study
      measures the global goal, lacks no edge and is taken as it is.
    - What a model predicts that has hardly learned anything leads all astray: pseudo labels and graph wait until a
      share `min_confident` of the nodes is predicted above the threshold, the graph also until predictions have settled.
    - The pseudo graph of `similarity = "dot"`, one-sided, from the first round on, is (14) to the letter: nodes with
      large embeddings become everybody's neighbours, and accuracy falls far. See the options below.
    """

    name: ClassVar[str] = "fedgl"
    nouns: ClassVar[Mapping[str, str]] = {"embedding": "class scores", "probability": "class probabilities"}
    listing: ClassVar[Listing] = Listing("overlap", 1, "predictions and embeddings of nodes, in sums by node")
    levels: ClassVar[tuple[Level, ...]] = ("node",)

    weighting: Weighting = "size"
    """What a party's weights and predictions count by: all its items (the paper's), its training items, or evenly."""
    pseudo_labels: bool = True
    """Whether there are pseudo labels."""
    pseudo_graph: bool = True
    """Whether there is a pseudo graph."""
    threshold: float = Field(0.5, ge=0, lt=1)
    """Probability above which a prediction is a pseudo label (lambda)."""
    alpha: float = Field(0.2, ge=0)
    """Weight of the loss on pseudo labels."""
    sum_losses: bool = False
    """Losses are sums over nodes instead of means."""
    beta: float = Field(1.0, ge=0)
    """Weight of the pseudo graph."""
    neighbours: int = Field(100, ge=1)
    """Pseudo neighbours of a node, at most (s)."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """What similarity of two embeddings is."""
    mutual: bool = True
    """Pseudo neighbours are those that choose each other; otherwise those that a node chooses."""
    min_confident: float = Field(0.3, ge=0, le=1)
    """Both begin when at least this share of the nodes is predicted with a probability above the threshold."""
    max_changed: float = Field(0.03, ge=0, le=1)
    """The pseudo graph begins when at most this share of the nodes is predicted otherwise than a round before."""
    normalize_jointly: bool = True
    """The pseudo graph's edges are normalised together with the graph's; otherwise apart, as (9) has it, for a GCN."""
    fusion: Literal["holders", "all"] = "holders"
    """Over whom the weights of a node's predictions come to one: the parties that hold it, or all."""
    min_contributors: int = Field(2, ge=1)
    """Holders that a node has at least for the server to read its sum; 1 is the paper's."""
    send_probabilities: bool = False
    """Probabilities are told beside embeddings, as (11) has it; the parts of two holders follow from both sums."""
    search: Literal["exact", "approximate"] = "exact"
    """How similar nodes are found: among all, or in inverted lists (needs faiss)."""

    def check(self, module: nn.Module) -> None:
        if self.fusion == "all" and self.weighting != "size":
            raise IsthmusError("method 'fedgl': fusion = 'all' goes with weighting = 'size'")
        if self.pseudo_graph and not self.normalize_jointly:
            convolutions_of(module, self.name)
        if self.pseudo_graph and not takes_weights(module):
            raise IsthmusError(
                "method 'fedgl': the pseudo graph has weights, which this model does not take: "
                "use gcn, or pseudo_graph = false"
            )

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        if state.once("agree"):
            state.union = federation.agree("known").save()
        union = IdUnion(**state.union)
        if not bool((union.holders >= self.min_contributors).any()):
            log.warning("fedgl: no node is with %d parties: the server finds nothing that they share", self.min_contributors)
        for state.round in state.rounds(self.rounds):
            chosen = [party for party in federation.sample(self.fraction) if party in union.held]
            if "labels" in state:  # line 16
                federation.ask("learn", Each(self.hints(state, union, chosen)), of=chosen)
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            state.weights = total.mean("weights", default=state.weights)  # line 11
            if self.pseudo_labels or self.pseudo_graph:
                told = federation.total("tell", of=chosen, rows=union, min_contributors=self.min_contributors)
                everyone = sum(union.held[party].numel() for party in chosen if party not in told.missing)
                self.discover(told, everyone, state)
            yield state

    def discover(self, told: Total, everyone: int, state: State) -> None:
        """Lines 12 to 15: pseudo labels and a pseudo graph, once there is something to learn from them.

        Arguments:
            everyone: nodes of the parties that told something, added up (M).
        """
        opened = told.opened
        assert opened is not None
        embedding = self.fused(told, "embedding", everyone)
        probability = self.fused(told, "probability", everyone) if self.send_probabilities else embedding.softmax(1)
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
        """Write down the rounds in which predictions first are confident, and first settled after that."""
        state.start(guess=torch.full_like(guess, NONE))
        seen = opened & (state.guess != NONE)
        changed = float((guess != state.guess)[seen].float().mean()) if seen.any() else 1.0
        state.guess = torch.where(opened, guess, state.guess)
        if not self.min_confident or (opened.any() and float(sure.sum()) >= self.min_confident * float(opened.sum())):
            state.start(ready=state.round)
        if self.pseudo_graph and "ready" in state and changed <= self.max_changed:
            state.start(began=state.round)

    def fused(self, told: Total, name: str, everyone: int) -> Tensor:
        """(11) and (13)."""
        return told.mean(name) if self.fusion == "holders" else told.sum(name) / everyone

    def neighbourhood(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """(14): pairs (of, neighbour) of nodes, `[2, pairs]`, and weights that sum up to one for each `of`."""
        rows = F.normalize(embedding) if self.similarity == "cosine" else embedding
        graph = similar.SEARCHES[self.search](rows, self.neighbours)
        if self.mutual:
            graph = graph.minimum(graph.T)
        graph = similar.normalize_rows(graph).tocoo()
        pairs = torch.stack([torch.from_numpy(graph.row), torch.from_numpy(graph.col)]).long()
        return pairs, torch.from_numpy(graph.data)

    def hints(self, state: State, union: IdUnion, chosen: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Line 16: what is about each party's own nodes, in its own order."""
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

    def reads(self, module: nn.Module) -> nn.Module:
        """The model that reads complemented graphs: (9) normalises them before its layers see them."""
        if not self.pseudo_graph or self.normalize_jointly:
            return module
        module = deepcopy(module)
        convs: Any = convolutions_of(module, self.name).convs
        for conv in convs:
            conv.normalize = conv.add_self_loops = False
        return module

    def complemented(self, graph: Data, edges: Tensor, weight: Tensor) -> Data:
        """(9): the graph with a pseudo graph added to it.

        Joined, D^-1/2 (A + I + beta A') D^-1/2, where rows of A' sum up to one over the whole union: all pseudo
        neighbours together count as one. Apart, D^-1/2 (A + I) D^-1/2 + beta D'^-1/2 A' D'^-1/2, where a node that has
        no pseudo neighbour here gets nothing.

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

    class AtParty(Prepared, FedAvg.AtParty):
        method: FedGL

        def __init__(self, method: FedGL, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any):
            if method.pseudo_labels and not isinstance(task, NodeClassification):
                raise IsthmusError(f"method 'fedgl': task '{task.name}' has no classes that could be pseudo labels")
            super().__init__(method, parties, task, method.reads(module), **where)
            guess = [torch.full((party.nodes,), NONE) for party in parties]
            self.begin(prepared=[_nothing(party) for party in parties], guess=guess)

        @action
        def known(self, request: Payload) -> Answer:
            """The ids of the party's nodes."""
            return Answer({"ids": [_ids(party) for party in self.cohort.parties]})

        @action
        def learn(self, request: Payload) -> Answer:
            """Line 5, and who has which pseudo label; labelled nodes have none."""
            made = []
            for at, (party, guess) in enumerate(zip(self.held.parties, self.kept.each("guess"), strict=True)):
                label = request["labels"][at].cpu()
                label = torch.where(label == CLOSED, guess.cpu(), label).masked_fill(party.train, NONE)
                hint = _nothing(party) | {"label": label}
                if "edges" in request:
                    hint |= {"edges": request["edges"][at].long().cpu(), "weight": request["weight"][at].cpu()}
                made.append(hint)
            self.kept["prepared"] = made
            self.invalidate()
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            graph = self.method.complemented(party.graph, prepared["edges"].cpu(), prepared["weight"].cpu())
            return replace(party, graph=graph, train=party.train | (prepared["label"].cpu() >= 0))

        @action
        def train(self, request: Payload) -> Answer:
            """Line 7."""
            self.model.load(request["weights"])
            pseudo = torch.cat([each["label"] for each in self.kept.each("prepared")])
            self.method.local.fit(self, partial(self._loss, pseudo.to(self.cohort.device)))
            self.kept["trained"] = self.model.stacks()
            return Answer({"weights": self.model.weights()}, weight=self.averaging_weights())

        def _loss(self, pseudo: Tensor, step: Step) -> Tensor:
            """(8)."""
            pseudo = pseudo[step.items]
            loss = self._reduced(_part(step, step.y, pseudo < 0))
            if (pseudo >= 0).any():
                loss = loss + self.method.alpha * self._reduced(_part(step, pseudo, pseudo >= 0))
            return loss

        def _reduced(self, step: Step) -> Tensor:
            loss = self.task.loss(step)
            return loss * self.task.loss_counts(step).to(loss) if self.method.sum_losses else loss

        @action
        def tell(self, request: Payload) -> Answer:
            """Line 8: what the model trained here says of each node, by its id."""
            self.model.load(self.kept["trained"])
            with torch.no_grad():
                embedding = self.model(self.cohort.block)
            probability = embedding.softmax(1)
            confidence, guess = (each.cpu() for each in probability.max(1))
            sizes = list(self.cohort.sizes)
            self.kept["guess"] = list(torch.where(confidence > self.method.threshold, guess, NONE).split(sizes))
            fields = {"embedding": list(embedding.split(sizes))}
            if self.method.send_probabilities:
                fields |= {"probability": list(probability.split(sizes))}
            ids = [_ids(party) for party in self.cohort.parties]
            return Answer({"ids": ids, **fields}, weight=self.averaging_weights())


def takes_weights(module: nn.Module) -> bool:
    """Whether weights of edges change what a model says."""
    named = "edge_weight" in signature(module.forward).parameters
    return bool(getattr(module, "weighted", named))


def _ids(party: Party) -> Tensor:
    if party.ids is None:
        raise PartyFailed(party.name, "its nodes have no ids: FedGL adds up by them what several parties say of a node")
    return party.ids.cpu()


def _nothing(party: Party) -> dict[str, Tensor]:
    """What a party knows before the first round."""
    none = torch.full((party.nodes,), NONE)
    return {"label": none, "edges": torch.empty(2, 0, dtype=torch.long), "weight": torch.empty(0)}


def _part(step: Step, y: Tensor, mask: Tensor) -> Step:
    """Some of a step's items, with these labels."""
    sizes = tuple(int(size) for size in step.sum(mask.long()).tolist())
    return Step(step.output[mask], y[mask], sizes, step.items[mask])
