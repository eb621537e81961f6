"""Graph condensation: what FedGC and its references have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, NotFinite
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, IdUnion
from isthmus.federation.models import Models
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Method, Model, State
from isthmus.methods.optimizer import Optimizer, server_step
from isthmus.methods.shared import alone
from isthmus.methods.training import Training
from isthmus.nn.condensed import (
    DISTANCES,
    Distance,
    PartyGcn,
    adjacency,
    allot_nodes,
    class_shares,
    gcn_gradients,
    initial_edge_weights,
    linear_gradients,
    party_gradients,
    propagate,
    to_data,
)
from isthmus.nn.diffusion import Diffusion
from isthmus.nn.draws import Draws, draws_of, seed_of
from isthmus.nn.weights import initial_weights
from isthmus.options import OnlyWith
from isthmus.tasks.classification import NodeClassification


class Condensing(Method):
    """Common ground of the methods that learn a synthetic graph G' = (A', X', Y').

    Y' has the classes' shares. X' is learned in units of the features' root mean square, so that a learning rate means
    the same for all data. The study's model is trained on G' alone and then, with `finetune`, by each party.
    """

    nouns: ClassVar[Mapping[str, str]] = {"square": "squared features", "count/sum": "features of each class"}
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_classes: ClassVar[bool] = True

    rounds: int = Field(200, ge=1)
    """Rounds of condensation, at most."""
    every: int = Field(50, ge=1)
    """Rounds between evaluations, each of which trains a model from the start; the last round is always evaluated."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the parties drawn in each round."""
    ratio: float = Field(0.026, gt=0, le=1)
    """Synthetic nodes as a share of all parties' nodes (r), at least one of each class."""
    start: Literal["classes", "random"] = "classes"
    """Start X' at each class's mean over all parties, with noise, or at noise alone."""
    noise: float = Field(1.0, gt=0)
    """Noise around a class's mean, as a share of the features' standard deviation."""
    descent: Optimizer = Optimizer(optimizer="adam", lr=0.03, weight_decay=0.0)
    """The server's optimiser of X'; its moments last over the rounds."""
    target: Training = Training(epochs=300, optimizer="adam", lr=0.01, weight_decay=5e-4)
    """Training of the model on the synthetic graph, from its first weights."""
    finetune: bool = True
    """Let each party train the model further on its own graph before it is evaluated there."""
    tuning: Training = Training(epochs=10, lr=0.001)
    """Training of each party's model with `finetune`."""
    min_contributors: int = Field(2, ge=1)
    """Parties that must hold condensed nodes of a class; other classes are left out. The paper has no such bound: 1."""

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        self.require_contributors(federation)
        state.start(weights=model.weights())
        if state.once("count"):
            self.begin(federation, model, state)
            yield state
        for state.round in state.rounds(self.rounds):
            self.condense(federation, model, state)
            if state.round % self.every == 0 or state.round == self.rounds:
                seed = seed_of(federation.seed, state.round)
                state.weights = self.trained(model.module, self.graph(state), state.classes, seed)
            yield state

    def models(self, state: State) -> Models:
        return Models(shared=state.weights)

    def require_contributors(self, federation: Federation) -> None:
        """Raise an error, before anything is sent, if there are too few parties for any sum."""
        if self.min_contributors > (there := len(federation.parties)):
            why = f"a sum needs {self.min_contributors} parties, there are {there}: lower `min_contributors`"
            raise IsthmusError(f"method '{self.name}': {why}")

    @abstractmethod
    def condense(self, federation: Federation, model: Model, state: State) -> None:
        """One round: the parties' sums, and one step of the synthetic graph."""

    def begin(self, federation: Federation, model: Model, state: State) -> None:
        """Set how many synthetic nodes each class has, and their first features."""
        size = federation.total("size", min_contributors=self.min_contributors)
        state.classes = model.outputs
        counted = federation.total("count", rows=self.classes(state), min_contributors=self.min_contributors)
        items, sums = counted.sum("items").round(), counted.sum("sum").double()
        if not bool(items.any()):
            raise IsthmusError(
                f"method '{self.name}': no class has training nodes at {self.min_contributors} parties: "
                "lower `min_contributors`, or label more nodes"
            )
        given = allot_nodes(items, round(self.ratio * float(size.sum("nodes"))))
        state.y = torch.arange(state.classes).repeat_interleave(given)
        square = size.sum("square").double() / size.sum("items").double()
        state.scale = float(square.mean().sqrt()) or 1.0
        x = draws_of(federation.seed, "condensed").normal((state.y.numel(),), square.numel())
        if self.start == "classes":
            spread = (square - (sums.sum(0) / items.sum()).square()).clamp(min=0).sqrt()
            mean = sums / items.clamp(min=1).unsqueeze(1)
            x = ((mean[state.y] + self.noise * spread * x) / state.scale).float()
        state.graph = {"x": x, **self.more(x, draws_of(federation.seed, "more"))}
        state.first = state.second = {name: torch.zeros_like(value) for name, value in state.graph.items()}

    def more(self, x: Tensor, draws: Draws) -> dict[str, Tensor]:
        """First values of what is learned beside X'."""
        return {}

    def descend(self, state: State, graph: Mapping[str, Tensor], loss: Tensor) -> None:
        """One step of the optimisers on the synthetic graph's parts."""
        slopes = torch.autograd.grad(loss, list(graph.values()), allow_unused=True, materialize_grads=True)
        by_name = dict(zip(graph, slopes, strict=True))
        for options, names in self.optimizers(graph).items():
            part = {name: by_name[name] for name in names}
            state.graph, first, second = server_step(options, state.round, state.graph, part, state.first, state.second)
            state.first, state.second = {**state.first, **first}, {**state.second, **second}

    def optimizers(self, graph: Mapping[str, Tensor]) -> dict[Optimizer, list[str]]:
        """Names of the parts that each optimiser moves."""
        return {self.descent: list(graph)}

    def classes(self, state: State) -> IdUnion:
        """The rows of sums that are keyed by class."""
        return IdUnion(torch.arange(state.classes), torch.zeros(0))

    # ---- the synthetic graph, at the server

    def joined(self, graph: Mapping[str, Tensor]) -> Tensor | None:
        """A', `[nodes, nodes]`; none where synthetic nodes have no edges."""
        return None

    def graph(self, state: State) -> Data:
        """G' as it is now."""
        if wrong := [name for name, value in state.graph.items() if not bool(value.isfinite().all())]:
            rate = "edge_lr" if wrong[0].startswith("edges/") else "descent.lr"
            why = f"'{wrong[0]}' of the synthetic graph is not finite: lower {rate}"
            raise NotFinite(f"method '{self.name}', by round {state.round}: {why}")
        with torch.no_grad():
            return to_data(state.scale * state.graph["x"], state.y, self.joined(state.graph), self.weakest)

    @property
    def weakest(self) -> float:
        """The share of the strongest edge that an edge must have to be released."""
        return 0.0

    def product(self, state: State) -> dict[str, Tensor]:
        if "graph" not in state:
            return {}
        graph = self.graph(state)
        return {name: graph[name] for name in ("x", "y", "edge_index", "edge_weight")}

    def trained(self, module: nn.Module, graph: Data, classes: int, seed: int) -> dict[str, Tensor]:
        """Train a model on a synthetic graph, from its present weights, and return its weights."""
        graph = copy(graph)
        graph.train_mask = torch.ones(int(graph.num_nodes or 0), dtype=torch.bool)
        task = NodeClassification(classes=classes)
        party = Party.of_graph("condensed", graph)
        return alone.trained(module, initial_weights(module), party, task, self.target, seed)[0]

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {**super().calls(module), "size": 1, "count": 1}

    class AtParty(Site):
        method: Condensing

        @action("total", contributors="min_contributors", bounds={"nodes": "nodes", "items": "items", "square": None})
        def size(self, request: Payload) -> Answer:
            """Numbers of nodes and condensed nodes; the sum of the condensed nodes' squared features."""
            nodes = torch.tensor(self.cohort.items, dtype=torch.float64)
            at = self.condensed_nodes()
            x = rows.to_dense(rows.take(self.cohort.block.x, at))
            square = x.new_zeros(len(self.cohort), x.size(1)).index_add(0, self.cohort.party[at], x.square())
            return Answer({"nodes": nodes, "items": self.per_class(at).sum(1), "square": square})

        @action("total", contributors="min_contributors", bounds={"items": "items"})
        def count(self, request: Payload) -> Answer:
            """Number of condensed nodes of each class; with `start = "classes"` also the sum of their features."""
            at = self.condensed_nodes()
            group, items = self.groups(at), self.per_class(at)
            x = rows.to_dense(rows.take(self.cohort.block.x, at))
            if self.method.start == "random":
                x = x[:, :0]
            sums = x.new_zeros(items.numel(), x.size(1)).index_add(0, group, x).view(*items.shape, x.size(1))
            # weight 0: a party without nodes of a class is no contributor to it
            return Answer({"ids": self.class_ids(), "items": items, "sum": sums}, weight=(items > 0).double())

        @action("total", "ask")
        def evaluate(self, request: Payload) -> Answer:
            """Counts of the metrics; with `finetune` after the party has trained the model further on its own graph."""
            if not self.method.finetune:
                return super().evaluate(request)
            self.model.load(request["weights"])
            self.method.tuning.fit(self, self.task.loss)
            return super().evaluate({"weights": self.model.stacks()})

        def condensed_nodes(self) -> Tensor:
            """Positions of the nodes that are condensed: the training nodes."""
            return self.cohort.masks["train"].nonzero().squeeze(1)

        @property
        def labels(self) -> Tensor:
            """The class of every node, `[nodes]`; read for condensed ones."""
            return self.cohort.y

        def groups(self, at: Tensor) -> Tensor:
            """Number these nodes by party and class, `[nodes]`."""
            return self.cohort.party[at] * self.task.outputs + self.labels[at]

        def per_class(self, at: Tensor) -> Tensor:
            """Count these nodes by party and class, `[parties, classes]`."""
            shape = len(self.cohort), self.task.outputs
            return torch.bincount(self.groups(at), minlength=shape[0] * shape[1]).view(shape).to(torch.float32)

        def class_ids(self) -> Tensor:
            return torch.arange(self.task.outputs).expand(len(self.cohort), -1)


class Matching(Condensing):
    """Gradient matching, (3) to (9).

    Each round the server draws weights theta of a GCN, or of an SGC (a linear layer over K propagations). The parties
    send the gradient of its loss for each class of their condensed nodes, in sums, and X' and the MLP behind A' take a
    step towards a graph with the same gradients.
    """

    nouns: ClassVar[Mapping[str, str]] = {**Condensing.nouns, "slopes": "gradients"}
    backbone: Literal["sgc", "gcn"] = "sgc"
    """Model whose gradients are matched: an SGC, whose messages are small, or a GCN of two layers without biases."""
    hops_matched: Annotated[int, OnlyWith("backbone", "sgc")] = Field(2, ge=0)
    """Propagations of the SGC (K)."""
    width_matched: Annotated[int, OnlyWith("backbone", "gcn")] = Field(256, ge=1)
    """Hidden width of the GCN."""
    distance: Distance = "mse"
    """Distance between gradients: squared differences, or the cosines of (7), output by output."""
    edges: bool = True
    """Learn edges of synthetic nodes; without them A' is the identity."""
    symmetric: bool = True
    """Weigh an edge equally in both directions, as in (8)."""
    edge_width: int = Field(128, ge=1)
    """Hidden width of the MLP that computes A'."""
    edge_lr: float = Field(1e-3, gt=0)
    """Learning rate of this MLP; after one large step all edges may stay 0."""
    threshold: float = Field(0.01, ge=0, lt=1)
    """The released graph leaves out edges weaker than this share of the strongest edge, or of 1 / nodes if that is
    more."""
    renew: int = Field(1, ge=1)
    """Rounds until theta is drawn again."""
    inner: int = Field(0, ge=0)
    """Training steps of theta on G' in each round."""
    lr_inner: float = Field(0.01, gt=0)
    """Learning rate of these steps."""

    def condense(self, federation: Federation, model: Model, state: State) -> None:
        if (state.round - 1) % self.renew == 0:
            state.theta, state.asked = self._drawn(federation, state), False
        if not state.asked:  # sums at the same theta over other parties would give away single parties' gradients
            chosen, classes = federation.sample(self.fraction), self.classes(state)
            total = federation.total(
                "match", {"theta": state.theta}, of=chosen, rows=classes, min_contributors=self.min_contributors
            )
            state.goal, state.opened, state.asked = total.mean("slopes"), total.opened, self.inner == 0
        graph = {name: value.clone().requires_grad_() for name, value in state.graph.items()}
        shares = class_shares(state.y, state.classes)
        ours = self._slopes(state.scale * graph["x"], self.joined(graph), state.y, state.theta, shares)
        apart = [DISTANCES[self.distance](slopes, state.goal[name]) for name, slopes in ours.items()]
        self.descend(state, graph, torch.stack(apart)[:, state.opened].sum())
        if self.inner:
            state.theta = self._descended(state)

    def more(self, x: Tensor, draws: Draws) -> dict[str, Tensor]:
        return initial_edge_weights(x.size(1), self.edge_width, x.size(0), draws) if self.edges else {}

    def optimizers(self, graph: Mapping[str, Tensor]) -> dict[Optimizer, list[str]]:
        edges = self.descent.model_copy(update={"lr": self.edge_lr})
        own = [name for name in graph if name.startswith("edges/")]
        return {self.descent: [name for name in graph if name not in own], **({edges: own} if own else {})}

    @property
    def weakest(self) -> float:
        return self.threshold

    def joined(self, graph: Mapping[str, Tensor]) -> Tensor | None:
        return adjacency(graph["x"], graph, symmetric=self.symmetric) if self.edges else None

    def _drawn(self, federation: Federation, state: State) -> dict[str, Tensor]:
        """Weights of the backbone, as torch draws a Linear layer's: by layer, `[out, in]`."""
        features, width = state.graph["x"].size(1), self.width_matched
        shapes = {"output": (state.classes, features)}
        if self.backbone == "gcn":
            shapes = {"hidden": (width, features), "output": (state.classes, width)}
        draws = draws_of(federation.seed, "theta", state.round)
        by_layer = {"hidden": draws.of("hidden"), "output": draws}
        return {
            name: (2 * by_layer[name].uniform((out,), into) - 1) * float(into) ** -0.5
            for name, (out, into) in shapes.items()
        }

    def _descended(self, state: State) -> dict[str, Tensor]:
        """Return theta after `inner` steps of gradient descent on the synthetic graph."""
        with torch.no_grad():
            x, matrix = state.scale * state.graph["x"], self.joined(state.graph)
        even = torch.full((state.y.numel(), 1), 1 / state.y.numel())
        theta: dict[str, Tensor] = state.theta
        for _ in range(self.inner):
            slopes = self._slopes(x, matrix, state.y, theta, even)
            theta = {name: value - self.lr_inner * slopes[name][0] for name, value in theta.items()}
        return theta

    def _slopes(
        self, x: Tensor, matrix: Tensor | None, y: Tensor, theta: Mapping[str, Tensor], share: Tensor
    ) -> dict[str, Tensor]:
        """Gradients on the synthetic graph, a mean for each column of `share`: by layer, `[columns, out, in]`."""
        if self.backbone == "sgc":
            h = propagate(x, matrix, self.hops_matched)
            return {"output": linear_gradients(h, y, theta["output"], share)}
        return dict(zip(("hidden", "output"), gcn_gradients(x, matrix, y, **theta, share=share), strict=True))

    def calls(self, module: nn.Module) -> dict[str, int]:
        matched = self.rounds if self.inner else math.ceil(self.rounds / self.renew)
        return {**super().calls(module), "match": matched}

    class AtParty(Condensing.AtParty):
        method: Matching

        def __init__(self, *args: Any, **where: Any) -> None:
            super().__init__(*args, **where)
            self._read: tuple[Any, Any] | None = None

        @action("total", contributors="min_contributors")
        def match(self, request: Payload) -> Answer:
            """The gradient of each class, (9), weighted by its number of condensed nodes."""
            at, theta, parties = self.condensed_nodes(), request["theta"], len(self.cohort)
            weight, y, party = self.per_class(at), self.labels[at], self.cohort.party[at]
            if self.method.backbone == "sgc":
                slopes = {"output": party_gradients(self.diffused[at], y, party, parties, theta["output"])}
            elif not at.numel():
                slopes = {name: value.new_zeros(*weight.shape, *value.shape) for name, value in theta.items()}
            else:
                slopes = dict(zip(("hidden", "output"), self.around(at).gradients(**theta), strict=True))
            return Answer({"ids": self.class_ids(), "slopes": slopes}, weight=weight)

        @property
        def diffused(self) -> Tensor:
            """Features after K propagations within each party, `[nodes, features]`."""
            block = self.cohort.block
            if self._read is None or self._read[0] is not block:
                x = rows.to_dense(block.x)
                diffusion = Diffusion(self.method.hops_matched)
                self._read = block, diffusion.diffuse(x, block.edge_index, block.edge_weight)
            found: Tensor = self._read[1]
            return found

        def around(self, at: Tensor) -> PartyGcn:
            """What a GCN reads of these nodes."""
            block = self.cohort.block
            if self._read is None or self._read[0] is not block:
                edges, shape = (block.edge_index, block.edge_weight), (len(self.cohort), self.task.outputs)
                x = rows.to_dense(block.x)
                self._read = block, PartyGcn(x, edges, at, self.labels[at], self.cohort.party[at], shape)
            found: PartyGcn = self._read[1]
            return found
