"""Graph condensation by gradient matching: what FedGC and the methods it is compared with have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import Level, Party
from isthmus.errors import IsthmusError
from isthmus.federation.answers import Answer, IdUnion
from isthmus.federation.site import Site, action
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Averaging, Learning, Model, State
from isthmus.methods.training import LocalTraining, moved
from isthmus.nn.condensed import (
    DISTANCES,
    Distance,
    adjacency,
    class_slopes,
    edges_start,
    party_slopes,
    propagated,
    released,
    shares,
)
from isthmus.nn.diffusion import Diffusion
from isthmus.nn.draws import generator, seed_of
from isthmus.nn.per_party import initial_weights
from isthmus.tasks.classification import NodeClassification


class Condensing(Averaging):
    """Common ground of the methods that learn a synthetic graph G' = (A', X', Y') by matching gradients, (3) to (9).

    Each round the server draws weights theta of an SGC (a linear layer over K propagations), the parties tell the
    gradient of its loss over their training nodes of each class, and X' and the MLP behind A' take a step towards the
    graph whose gradients are the same. Y' keeps the classes' shares. X' is learned in units of the features' root mean
    square, so that a learning rate means the same whatever features are. The model that a study names is trained on G'
    alone and then, where that is asked for, fine-tuned by each party.
    """

    levels: ClassVar[tuple[Level, ...]] = ("node",)
    disjoint: ClassVar[bool] = True

    rounds: int = Field(200, ge=1)
    """Rounds of matching, at most."""
    every: int = Field(50, ge=1)
    """Rounds from one evaluation, which trains the model anew, to the next; the last round is always evaluated."""
    ratio: float = Field(0.026, gt=0, le=1)
    """r: synthetic nodes, as a share of all parties' nodes; there is at least one of each class."""
    hops_matched: int = Field(2, ge=0)
    """K: propagations of the SGC whose gradients are matched."""
    distance: Distance = "mse"
    """Between gradients: squared differences, or the cosines of (7), output by output."""
    edges: bool = True
    """Whether synthetic nodes have edges; without, A' is the identity."""
    symmetric: bool = True
    """Whether A' of (8) is the same in both directions."""
    edge_width: int = Field(128, ge=1)
    """Hidden width of the MLP that makes A'."""
    threshold: float = Field(0.01, ge=0, lt=1)
    """Weaker edges than this are left out of the graph that is released."""
    start: Literal["classes", "random"] = "classes"
    """Where X' starts: drawn from mean and spread of each class over all parties, or from a standard normal."""
    renew: int = Field(1, ge=1)
    """Rounds with the same theta before it is drawn anew; DosCond's and the paper's one, GCond's several."""
    inner: int = Field(0, ge=0)
    """Steps that theta is trained on G' from one of these rounds to the next."""
    lr_inner: float = Field(0.01, gt=0)
    """Learning rate of these steps."""
    optimizer: LocalTraining = LocalTraining(epochs=1, optimizer="adam", lr=0.03, weight_decay=0.0)
    """The server's optimiser of X' and A'; its moments last over the rounds."""
    target: LocalTraining = LocalTraining(epochs=300, optimizer="adam", lr=0.01, weight_decay=5e-4)
    """Training of the model on the synthetic graph, from its first weights."""
    finetune: bool = True
    """Whether each party trains it further on its own graph before it is evaluated there."""
    tuning: LocalTraining = LocalTraining(epochs=10, lr=0.001)
    """This training."""
    least: int = Field(2, ge=1)
    """A class is left out whose gradient fewer parties would add to; 1 is the paper to the letter."""

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        if state.once("count"):
            self.begin(federation, state)
            yield state
        for state.round in state.rounds(self.rounds):
            self.matched(federation, model, state)
            if state.round % self.every == 0 or state.round == self.rounds:
                seed = seed_of(federation.seed, state.round)
                state.weights = self.trained(model.module, self.graph(state), seed)
            yield state

    def matched(self, federation: Federation, model: Model, state: State) -> None:
        """One round: the gradients at the parties, one step of X' and A' towards them, `inner` of theta towards G'."""
        if (state.round - 1) % self.renew == 0:
            state.theta = self._drawn(federation, state)
        chosen, classes = federation.sample(self.fraction), self._classes(state)
        told = federation.total("match", {"theta": state.theta}, of=chosen, rows=classes, least=self.least)
        assert told.opened is not None  # the other classes' gradients are not known
        graph = {name: value.clone().requires_grad_() for name, value in state.graph.items()}
        ours = class_slopes(self._hidden(state, graph), state.y, state.theta)
        self.descend(state, graph, DISTANCES[self.distance](ours, told.mean("slopes"))[told.opened].sum())
        if self.inner:
            state.theta = self._further(state)

    def descend(self, state: State, graph: Mapping[str, Tensor], loss: Tensor) -> None:
        """One step of the optimiser on what the synthetic graph is made of."""
        slopes = torch.autograd.grad(loss, list(graph.values()), allow_unused=True, materialize_grads=True)
        state.graph, state.first, state.second = moved(
            self.optimizer, state.round, state.graph, dict(zip(graph, slopes, strict=True)), state.first, state.second
        )

    def product(self, state: State) -> dict[str, Tensor]:
        if "graph" not in state:
            return {}
        graph = self.graph(state)
        return {name: graph[name] for name in ("x", "y", "edge_index", "edge_weight")}

    # ---- the synthetic graph, at the server

    def graph(self, state: State) -> Data:
        """G' as it is now."""
        with torch.no_grad():
            joined = self._joined(state.graph)
        return released(state.scale * state.graph["x"], state.y, joined, self.threshold)

    def trained(self, module: nn.Module, graph: Data, seed: int) -> dict[str, Tensor]:
        """A model's weights after training on a synthetic graph alone, from those that it has."""
        graph = copy(graph)
        graph.train_mask = torch.ones(int(graph.num_nodes or 0), dtype=torch.bool)
        task = NodeClassification(classes=max(2, int(graph.y.max()) + 1))
        site = Site(self, [Party.of_graph("condensed", graph)], task, module, seed=seed)
        site.kept.now = (0,)
        site.model.load(initial_weights(module))
        self.target.fit(site, lambda step: step.mean(F.cross_entropy(step.output, step.y, reduction="none")))
        return {name: stack[0].clone() for name, stack in site.model.stacks().items()}

    def _classes(self, state: State) -> IdUnion:
        return IdUnion(torch.arange(state.classes), torch.zeros(0))

    def begin(self, federation: Federation, state: State) -> None:
        """How many synthetic nodes of each class there are, and where their features start."""
        size = federation.total("size")
        state.classes = int(size.sum("classes")) // size.contributors
        counted = federation.total("count", rows=self._classes(state), least=self.least)
        items = counted.sum("items")
        if not bool(items.any()):
            raise IsthmusError(
                f"method '{self.name}': no class has training nodes at {self.least} parties: "
                "lower `least`, or label more"
            )
        given = shares(items, round(self.ratio * float(size.sum("nodes"))))
        state.y = torch.arange(state.classes).repeat_interleave(given)
        source = generator(federation.seed, "condensed")
        sums, squares = counted.sum("sum"), counted.sum("square")
        state.scale = float((squares.sum() / items.sum() / sums.size(1)).sqrt()) or 1.0
        x = torch.randn(state.y.numel(), sums.size(1), generator=source)
        if self.start == "classes":
            mean = sums / items.clamp(min=1).unsqueeze(1)
            spread = (squares / items.clamp(min=1).unsqueeze(1) - mean.square()).clamp(min=0).sqrt()
            x = ((mean[state.y] + spread[state.y] * x) / state.scale).to(x.dtype)
        state.graph = {"x": x}
        if self.edges:
            state.graph |= edges_start(x.size(1), self.edge_width, state.y.numel(), source)
        state.first = state.second = {name: torch.zeros_like(value) for name, value in state.graph.items()}

    def _drawn(self, federation: Federation, state: State) -> Tensor:
        """Weights of the SGC, as torch draws a Linear layer's: `[classes, features]`."""
        features = state.graph["x"].size(1)
        source = generator(federation.seed, "theta", state.round)
        return (2 * torch.rand(state.classes, features, generator=source) - 1) * float(features) ** -0.5

    def _further(self, state: State) -> Tensor:
        """theta after some steps of gradient descent on the synthetic graph."""
        with torch.no_grad():
            h = self._hidden(state, state.graph)
        share = torch.bincount(state.y, minlength=state.classes).to(h) / state.y.numel()
        theta: Tensor = state.theta
        for _ in range(self.inner):
            theta = theta - self.lr_inner * torch.einsum("c,cod->od", share, class_slopes(h, state.y, theta))
        return theta

    def _hidden(self, state: State, graph: Mapping[str, Tensor]) -> Tensor:
        """What the SGC's linear layer reads."""
        return propagated(state.scale * graph["x"], self._joined(graph), self.hops_matched)

    def _joined(self, graph: Mapping[str, Tensor]) -> Tensor | None:
        return adjacency(graph["x"], graph, symmetric=self.symmetric) if self.edges else None

    class AtParty(Learning):
        method: Condensing

        def __init__(self, method: Any, parties: Any, task: Any, module: nn.Module, **where: Any) -> None:
            if not isinstance(task, NodeClassification):
                raise IsthmusError(f"method '{method.name}': task '{task.name}' has no classes to match gradients of")
            super().__init__(method, parties, task, module, **where)
            self._reached: tuple[Any, Tensor] | None = None

        @action
        def size(self, request: Payload) -> Answer:
            """How many nodes there are, and how many classes."""
            nodes = torch.tensor(self.cohort.items, dtype=torch.float64)
            return Answer({"nodes": nodes, "classes": torch.full_like(nodes, self.task.outputs)})

        @action
        def count(self, request: Payload) -> Answer:
            """Training nodes of each class, the sum of their features and of their squares."""
            at = self._trained_on()
            x = rows.dense(rows.take(self.cohort.block.x, at)).double()
            classes, group = self.task.outputs, self._groups(at)
            shape = (len(self.cohort), classes, x.size(1))
            sums = [x.new_zeros(shape).flatten(0, 1).index_add(0, group, each).view(shape) for each in (x, x.square())]
            items = self._items(group)
            ids = torch.arange(classes).expand(len(self.cohort), -1)
            # who has no node of a class adds nothing to it
            return Answer({"ids": ids, "items": items, "sum": sums[0], "square": sums[1]}, weight=(items > 0).double())

        @action
        def match(self, request: Payload) -> Answer:
            """The gradient of each class, (9), weighted by how many training nodes of it there are."""
            at = self._trained_on()
            h, y, theta = self.reached[at], self.cohort.y[at], request["theta"]
            slopes = party_slopes(h, y, self.cohort.party[at], len(self.cohort), theta)
            ids = torch.arange(theta.size(0)).expand(len(self.cohort), -1)
            return Answer({"ids": ids, "slopes": slopes}, weight=self._items(self._groups(at)))

        @action
        def evaluate(self, request: Payload) -> Answer:
            """As ever, after the party has trained the model further on its own graph."""
            if not self.method.finetune:
                return super().evaluate(request)
            self.model.load(request["weights"])
            self.method.tuning.fit(self, self.task.loss)
            return super().evaluate({"weights": self.model.stacks()})

        @property
        def reached(self) -> Tensor:
            """Features after K propagations within each party, `[nodes, features]`."""
            block = self.cohort.block
            if self._reached is None or self._reached[0] is not block:
                x = rows.dense(block.x)
                self._reached = block, Diffusion(self.method.hops_matched).of(x, block.edge_index, block.edge_weight)
            return self._reached[1]

        def _trained_on(self) -> Tensor:
            return self.cohort.masks["train"].nonzero().squeeze(1)

        def _groups(self, at: Tensor) -> Tensor:
            return self.cohort.party[at] * self.task.outputs + self.cohort.y[at]

        def _items(self, group: Tensor) -> Tensor:
            parties, classes = len(self.cohort), self.task.outputs
            return torch.bincount(group, minlength=parties * classes).view(parties, classes).double()
