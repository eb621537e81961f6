"""One exchange of statistics, a surrogate graph at the server, and models that each party fits to its own graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, IdUnion
from isthmus.federation.models import Models
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning, Listing, Method, Model, State
from isthmus.methods.optimizer import Optimizer, server_step
from isthmus.methods.shared import alone
from isthmus.methods.training import LocalTraining, Training
from isthmus.nn.condensed import adjacency, initial_edge_weights, propagate, to_data
from isthmus.nn.draws import Draws, draws_of, seed_of
from isthmus.nn.layerwise import infer
from isthmus.nn.products import Propagation, normalised_edges
from isthmus.tasks.base import Step
from isthmus.tasks.classification import NodeClassification


class OpFGL(Method):
    """O-pFGL (Yan et al. 2024): one sum of statistics of each class, from which the server makes a graph to train on.

    The server matches a small graph, the surrogate, to the means and deviations that propagated features have in each
    class over all parties, and trains a model on it. Each party fits this model to its own graph. It holds nodes of
    classes that it knows badly near the shared model's predictions P.

    Party:  H = [X, MX, .., M^hops X], M = D^-1/2 (A + I) D^-1/2
            sums of H and of H^2 over the training nodes of each class
    Server: mean m_c and deviation s_c of each class, n_c its training nodes
            X', and A' by a perceptron of pairs of X', minimise
            alignment sum_c n_c / n (MSE(m_c, m'_c) + MSE(s_c, s'_c))
            + smoothness sum_ij A'_ij d_ij / sum_ij A'_ij
            d_ij = mean(1 - exp(-(x'_i - x'_j)^2 / 2));  trains on (X', A')
    Party:  minimise F_k + mean_v gamma_v KL(P_v || softmax f_v)
            gamma_v = strength sum_c Y_vc / (1 + log(1 + h_c))
            h_c = sum over training nodes of c of the neighbours' share in c
            Y <- 0.9 D^-1/2 A D^-1/2 Y + 0.1 Y^0, twice

    Only training nodes count as neighbours in h_c. A class with one surrogate node has no deviation. Data leave a party
    once, before the first round: sums that masks and encryption protect. In each round parties go on training alone and
    are evaluated, so that validation chooses when to stop. A class that fewer than `min_holders` parties hold is left
    out of the surrogate; the paper has no such bound. The public code takes a wider perceptron and minimises the sum of
    the exponentials themselves, which joins nodes that differ.
    """

    name: ClassVar[str] = "o-pfgl"
    listing: ClassVar[Listing] = Listing(leaves="sums of propagated features by class, once, and no weights")
    without: ClassVar[tuple[str, ...]] = ("evaluate_with",)  # parties evaluate models of their own
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_classes: ClassVar[bool] = True
    tuned: ClassVar[tuple[str, ...]] = ("strength",)
    nouns: ClassVar[Mapping[str, str]] = {
        "statistics/sum": "propagated features of each class",
        "statistics/square": "their squares",
    }

    rounds: int = Field(30, ge=1)
    """Rounds in which parties fit their models, at most."""
    hops: int = Field(2, ge=0, le=100)
    """Propagations of the features whose statistics are matched."""
    ratio: float = Field(0.026, gt=0, le=1)
    """Surrogate nodes of a class as a share of its training nodes, at least one."""
    steps: int = Field(3000, ge=1)
    """Steps in which the surrogate is matched: of fifty, ten are the perceptron's and forty the features'."""
    features: Optimizer = Optimizer(optimizer="adam", lr=5e-3, weight_decay=0.0)
    """The optimiser of X'."""
    edges: Optimizer = Optimizer(optimizer="adam", lr=1e-3, weight_decay=0.0)
    """The optimiser of the perceptron."""
    edge_width: int = Field(128, ge=1)
    """Hidden width of the perceptron."""
    threshold: float = Field(0.01, ge=0, lt=1)
    """Weight below which the surrogate has no edge."""
    alignment: float = Field(10.0, ge=0)
    """Weight of the distance between statistics."""
    smoothness: float = Field(0.1, ge=0)
    """Weight of the differences between neighbours of the surrogate."""
    target: Training = Training(epochs=3000, optimizer="adam", lr=1e-4, weight_decay=0.0)
    """Training of the shared model on the surrogate."""
    tuning: LocalTraining = LocalTraining(epochs=100, optimizer="adam", lr=1e-4, weight_decay=0.0, keep_optimizer=True)
    """Training of a party's model in each round."""
    strength: float = Field(0.2, ge=0)
    """Weight of the distance to the shared model's predictions."""
    min_holders: int = Field(2, ge=1)
    """Parties that must hold training nodes of a class; other classes are left out."""

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {**super().calls(module), "statistics": 1}

    def models(self, state: State) -> Models:
        return Models(shared=state.weights, personal=True)

    def product(self, state: State) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in state.surrogate.items()} if "surrogate" in state else {}

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if self.min_holders > (there := len(federation.parties)):
            why = f"a sum needs {self.min_holders} parties, there are {there}: lower `min_holders`"
            raise IsthmusError(f"method '{self.name}': {why}")
        state.start(weights=model.weights())
        if state.once("surrogate"):
            classes = IdUnion(torch.arange(model.outputs), torch.zeros(0))
            total = federation.total("statistics", rows=classes, min_contributors=self.min_holders)
            count, mean, deviation = statistics(*(total.sum(name) for name in ("items", "sum", "square")))
            if not bool(count.any()):
                raise IsthmusError(
                    f"method '{self.name}': no class has training nodes at {self.min_holders} parties: "
                    "lower `min_holders`, or label more nodes"
                )
            state.surrogate = self.matched(count, mean, deviation, draws_of(federation.seed, "surrogate"))
            wire.check(state.surrogate)  # matching may diverge
            state.weights = self.trained(model, state.surrogate, seed_of(federation.seed, "target"))
            yield state
        for state.round in state.rounds(self.rounds):
            federation.ask("personalise", {"weights": state.weights})
            yield state

    def matched(self, count: Tensor, mean: Tensor, deviation: Tensor, draws: Draws) -> dict[str, Tensor]:
        """The surrogate: `x`, `y`, `edge_index` and `edge_weight`."""
        given = [math.ceil(self.ratio * float(each)) for each in count.round()]
        y = torch.arange(len(count)).repeat_interleave(torch.tensor(given))
        kind, width = torch.get_default_dtype(), mean.size(1) // (self.hops + 1)
        parts = {
            "x": draws.of("x").normal((len(y),), width),
            **initial_edge_weights(width, self.edge_width, len(y), draws.of("edges")),
        }
        parts = {name: value.to(kind) for name, value in parts.items()}
        moments = [{name: torch.zeros_like(value) for name, value in parts.items()} for _ in range(2)]
        taken = {"features": 0, "edges": 0}
        for step in range(self.steps):
            parts = {name: value.detach().requires_grad_() for name, value in parts.items()}
            self.apart(parts, y, count.to(kind), mean.to(kind), deviation.to(kind)).backward()
            moved = "edges" if step % 50 < 10 else "features"
            slopes = {
                name: torch.zeros_like(value) if value.grad is None else value.grad
                for name, value in parts.items()
                if (name == "x") == (moved == "features")
            }
            taken[moved] += 1
            fixed = {name: value.detach() for name, value in parts.items()}
            parts, *new = server_step(getattr(self, moved), taken[moved], fixed, slopes, *moments)
            moments = [{**old, **own} for old, own in zip(moments, new, strict=True)]
        with torch.no_grad():
            graph = to_data(parts["x"], y, self.joined(parts), 0.0)
        return {name: graph[name].detach() for name in ("x", "y", "edge_index", "edge_weight")}

    def joined(self, parts: Mapping[str, Tensor]) -> Tensor:
        """A', `[nodes, nodes]`."""
        matrix = adjacency(parts["x"], parts, symmetric=True)
        return matrix * (matrix >= self.threshold)

    def apart(self, parts: Mapping[str, Tensor], y: Tensor, count: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """What the surrogate is matched by: its distance to the statistics, and between its neighbours."""
        matrix, h = self.joined(parts), [parts["x"]]
        for _ in range(self.hops):
            h.append(propagate(h[-1], matrix, 1))
        seen, gap = torch.cat(h, dim=1), torch.zeros(())
        for c in y.unique().tolist():
            own = seen[y == c]
            of_class = (own.mean(0) - mean[c]).square().mean()
            if len(own) > 1:
                spread = own.var(0).clamp(min=1e-12).sqrt()  # the root of 0 has no gradient
                of_class = of_class + (spread - deviation[c]).square().mean()
            gap = gap + count[c] / count.sum() * of_class
        x = parts["x"]
        i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)  # both directions of a pair differ by as much
        differ = 1 - (-0.5 * (x.index_select(0, i) - x.index_select(0, j)).square()).exp().mean(1)
        both = matrix[i, j] + matrix[j, i]
        rough = (both * differ).sum() / matrix.sum().clamp(min=torch.finfo(x.dtype).tiny)
        return self.alignment * gap + self.smoothness * rough

    def trained(self, model: Model, surrogate: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """The weights of the shared model, trained on the surrogate."""
        edges = surrogate["edge_index"], surrogate["edge_weight"]
        graph = copy(to_data(surrogate["x"], surrogate["y"], None, 0.0))
        graph.edge_index, graph.edge_weight = edges
        graph.train_mask = torch.ones(len(surrogate["y"]), dtype=torch.bool)
        task, party = NodeClassification(classes=model.outputs), Party.of_graph("surrogate", graph)
        return alone.trained(model.module, model.weights(), party, task, self.target, seed)[0]

    class AtParty(Learning):
        method: OpFGL

        @action("total", contributors="min_holders", bounds={"items": "items"})
        def statistics(self, request: Payload) -> Answer:
            """Number of training nodes of each class, and the sums of H and H^2 over them."""
            cohort, block, classes = self.cohort, self.cohort.block, self.task.outputs
            h = [rows.to_dense(block.x)]
            edges = normalised_edges(block.edge_index, block.edge_weight, block.nodes, dtype=h[0].dtype)
            matrix = Propagation(*edges, block.nodes)
            for _ in range(self.method.hops):
                h.append(matrix @ h[-1])
            train = cohort.masks["train"]
            seen = torch.cat(h, dim=1)[train].double()
            group, shape = cohort.party[train] * classes + cohort.y[train], (len(cohort), classes)
            items = torch.bincount(group, minlength=len(cohort) * classes).view(shape).double()
            first, second = (
                seen.new_zeros(items.numel(), seen.size(1)).index_add(0, group, each).view(*shape, -1)
                for each in (seen, seen.square())
            )
            ids = torch.arange(classes).expand(shape)
            fields = {"ids": ids, "items": items, "sum": first, "square": second}
            return Answer(fields, weight=(items > 0).double())

        @action("ask")
        def personalise(self, request: Payload) -> Answer:
            block = self.cohort.block
            self.model.load({**self.model.initial, **request["weights"]})
            given, gamma = infer(self.model, block).log_softmax(1), self.trust()
            self.load_model(request["weights"])

            def loss(step: Step) -> Tensor:
                own = step.output.log_softmax(1)
                apart = (given.exp() * (given - own)).sum(1)
                held = rows.mean_per_party(gamma * apart, self.cohort.sizes)
                return self.task.loss(replace(step, output=step.output[step.items])) + held

            self.method.tuning.fit(self, loss, read=lambda *_: (block, None))
            self.keep_model()
            return Answer({})

        def trust(self) -> Tensor:
            """gamma of each node, `[nodes]`."""
            cohort, block, classes = self.cohort, self.cohort.block, self.task.outputs
            known, y, kind = cohort.masks["train"], cohort.y, torch.get_default_dtype()
            source, target = block.edge_index[:, block.edge_index[0] != block.edge_index[1]]
            both = known[source] & known[target]
            near = torch.bincount(target[both], minlength=block.nodes)
            alike = torch.bincount(target[both & (y[source] == y[target])], minlength=block.nodes)
            share = alike.to(kind) / near.clamp(min=1)
            group = cohort.party[known] * classes + y[known]
            h = share.new_zeros(len(cohort) * classes).index_add(0, group, share[known]).view(-1, classes)
            start = share.new_zeros(block.nodes, classes)
            start[known] = F.one_hot(y[known], classes).to(kind)
            edges = normalised_edges(block.edge_index, None, block.nodes, self_loops=False, dtype=kind)
            matrix, labels = Propagation(*edges, block.nodes), start
            for _ in range(2):
                labels = (0.9 * (matrix @ labels) + 0.1 * start).clamp(0, 1)
            labels = torch.where(labels.sum(1, keepdim=True) > 0, labels, 1 / classes)
            return self.method.strength * (labels / (1 + h.log1p())[cohort.party]).sum(1)


def statistics(count: Tensor, total: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sample deviation of each class, from its sums.

    >>> statistics(torch.tensor([2.0]), torch.tensor([[4.0]]), torch.tensor([[10.0]]))
    (tensor([2.]), tensor([[2.]]), tensor([[1.4142]]))
    """
    count, each = count.round(), count.round().clamp(min=1).unsqueeze(1)
    mean = total / each
    spread = (square - each * mean.square()).clamp(min=0) / (each - 1).clamp(min=1)
    return count, mean, spread.sqrt()
