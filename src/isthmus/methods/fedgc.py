"""FedGC: the parties condense their graphs into one small synthetic graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, IdUnion
from isthmus.federation.verbs import Federation, Needed
from isthmus.federation.wire import Payload
from isthmus.methods.base import Averaging, Learning, Listing, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.optimizer import PartyOptimizer
from isthmus.methods.shared.condensing import Matching
from isthmus.methods.shared.neighbour_sums import NOUNS, NeighbourSums
from isthmus.methods.training import Training
from isthmus.nn.bottleneck import Bottleneck, divergence
from isthmus.nn.condensed import Distance
from isthmus.nn.draws import seed_of, torch_seeded
from isthmus.nn.per_party import PerParty
from isthmus.nn.weights import initial_weights
from isthmus.tasks.base import Step


class FedGC(Matching, Averaging):
    """FedGC (Yan et al.), Algorithm 1: parties condense their graphs into one small graph that hides their members.

    Parties add up features over neighbours across borders, label nodes by self-training, pass features through an
    information bottleneck, and match sums of gradients. What leaves the federation is a synthetic graph, on which any
    model can be trained; membership attacks on it should fail.

    line 2: x_i <- sum_{j in N_i} c_ij x_j, N_i at all parties, hops times     (5)
    line 3: rounds of federated averaging; the model that is best by validation
            labels unlabelled nodes, and a new one learns to label them once more
    line 4: z ~ N(mu, softplus(s)^2), [mu, s] = S W_2 ReLU(W_1 x)     (18)
            L = CE(GCN(z), y) + gamma KL(p(z) || N(0, 1))     (17), (19)
            each party keeps the z that is best by its own validation nodes
    line 5: g_c = sum_k (n_k(c) / n(c)) grad CE_c(f_theta on party k's z)     (9)
            A'_ij = sigm((MLP([x'_i || x'_j]) + MLP([x'_j || x'_i])) / 2)     (8)
            X', MLP by Adam on sum_c sum_i (1 - cos(g_c,i, g'_c,i))     (7), (9)

    c_ij = ((1 + d_i) (1 + d_j))^-1/2 with j = i among them, S is the same within a party, sigm the logistic function,
    g'_c the gradient on the synthetic graph, f is an SGC or a GCN (`backbone`), and theta is drawn in every round. Line
    3 is `teaching` rounds, `passes` times.

    Where text and box of the paper differ, options decide: `local` (the text averages weights in line 3, the box
    gradients, which is one epoch of "sgd") and `condensed` (which nodes line 5 condenses). As in the box, the
    bottleneck trains W_1 and W_2 only, and its GCN is the model of line 3. Without self-training there is no such
    model: each party then trains a GCN with its bottleneck, from first weights that all share.
    """

    name: ClassVar[str] = "fedgc"
    nouns: ClassVar[Mapping[str, str]] = {**NOUNS, **Matching.nouns, "right": "numbers of right answers"}
    listing: ClassVar[Listing] = Listing(
        "condensed",
        1,
        "hashed ids, which the server reads; sums over neighbours, in totals for the parties; gradients in sums by "
        "class; the condensed graph, which all parties get",
        costs="some 90 times federated averaging's time per round, after a set-up of a minute (Cora, 10 parties)",
    )
    disjoint: ClassVar[bool] = True
    everyone: ClassVar[Needed] = "set-up"
    membership_defences: ClassVar[tuple[str, ...]] = ("bottleneck",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"backbone": "gcn", "start": "random", "distance": "mse", "passes": 1}
    }

    preset: Literal["", "paper"] = ""
    """Where options come from that are not given: "paper" takes choices of section 4.1 and Algorithm 1: a GCN of width
    256 is matched, X' starts at noise, gradients differ by their squares, self-training has one pass."""
    hops: int = Field(2, ge=0)
    """Sums over neighbours at all parties, before anything else; 0 is the paper's "- com"."""
    self_training: bool = True
    """Let a model of all parties label nodes without a label; false is the paper's "- st"."""
    teaching: int = Field(30, ge=1)
    """Rounds of federated averaging for this model."""
    passes: int = Field(2, ge=1)
    """Models of self-training: the first learns from training nodes, each further one, from its first weights, from all
    nodes with the labels of the model before; the paper has 1."""
    condensed: Literal["labelled", "training"] = "labelled"
    """Nodes whose gradients are matched: all with a label, their own or one of self-training, or training nodes
    only."""
    distance: Distance = "columns"
    """Distance between gradients: the cosines of (7), or squared differences, which the paper takes for all sets but
    one."""
    bottleneck: bool = True
    """Condense z in place of features; false is the paper's "- ib"."""
    gamma: float = Field(1e-3, ge=0)
    """Weight of the divergence of z from a standard normal, (17)."""
    width: int = Field(256, ge=0)
    """Hidden width of the bottleneck's MLP; 0: the number of features, as in the paper."""
    transforming: Training = Training(epochs=60, optimizer="adam", lr=0.01, weight_decay=0.0)
    """Training of the bottleneck at each party."""
    check_every: int = Field(10, ge=1)
    """Steps of this training between looks at the party's validation nodes."""

    def check(self, module: nn.Module) -> None:
        super().check(module)
        if self.self_training and (self.local.fan_out or self.local.clusters):
            raise IsthmusError(
                "method 'fedgc': self-training trains on the whole graph: leave local.fan_out and local.clusters out"
            )

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        self.require_contributors(federation)
        state.start(
            weights=model.weights(), now=model.weights(), teacher=model.weights(), best=-1.0, taught=0, labelled=0
        )
        for hop in range(self.hops):
            if state.once(f"sum up {hop + 1}"):
                if "union" not in state:
                    state.union = federation.agree("known").save()
                union = IdUnion(**state.union)
                federation.total("sum_up", rows=union, to="parties")
                federation.ask("settle")
                yield state
        if self.self_training:
            yield from self._teach(federation, model, state)
        if self.bottleneck and state.once("transform"):
            request = {"head": state.teacher, "bottleneck": self._first_bottleneck(model.features, federation.seed)}
            federation.ask("transform", request)
            yield state
        yield from super().server(federation, model, state)

    def _teach(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        """Self_train of Algorithm 1: the best model by validation labels the nodes that have no label."""
        while state.labelled < self.passes:
            while state.taught < self.teaching:
                chosen = federation.sample(self.fraction, "teach", state.labelled * self.teaching + state.taught)
                total = federation.total("train", {"weights": state.now}, of=chosen)
                state.now = total.mean("weights", default=state.now)
                counts = federation.total("validate", {"weights": state.now})
                right = float(counts.sum("right"))
                if right >= state.best:  # the last one if there are no validation nodes
                    state.teacher, state.best = state.now, right
                state.taught += 1
                yield state
            federation.ask("label", {"weights": state.teacher})
            state.labelled += 1
            state.now, state.best, state.taught = model.weights(), -1.0, 0
            yield state

    def _first_bottleneck(self, features: int, seed: int) -> dict[str, Tensor]:
        """First weights, equal at all parties, so that their z share one space (line 1)."""
        with torch_seeded(seed_of(seed, "bottleneck")):
            return initial_weights(self.bottleneck_of(features))

    def bottleneck_of(self, features: int) -> Bottleneck:
        return Bottleneck(features, self.width or features)

    def calls(self, module: nn.Module) -> dict[str, int]:
        taught = self.passes * self.teaching if self.self_training else 0
        return {
            **super().calls(module), "known": min(self.hops, 1), "sum_up": self.hops, "settle": self.hops,
            "train": taught, "validate": taught, "label": self.passes if self.self_training else 0,
            "transform": int(self.bottleneck), "name_rows": 0,  # of typed graphs
        }  # fmt: skip

    class AtParty(NeighbourSums, Matching.AtParty, Learning):
        method: FedGC

        train = FedAvg.AtParty.train

        def fit(self, **how: Any) -> Tensor:
            """Train on training nodes; once self-training has labelled the others, on all nodes in every step."""
            if "labels" not in self.kept:
                return super().fit(**how)
            whole, local = self.cohort.block, self.method.local.model_copy(update={"batch_size": 0})
            return local.fit(self, lambda step: self._loss_labelled(step.output), read=lambda *_: (whole, None), **how)

        @action("ask")
        def settle(self, request: Payload) -> Answer:
            """Replace features by the sums over neighbours."""
            self.kept["prepared"] = [{"x": own["x"]} for own in self.summed_up()]
            self.invalidate()
            return Answer({})

        @action("total", bounds={"right": "labels"})
        def validate(self, request: Payload) -> Answer:
            """How many validation nodes are classified right."""
            self.model.load(request["weights"])
            with torch.no_grad():
                return Answer({"right": self._right(self.model(self.cohort.block))})

        @action("ask")
        def label(self, request: Payload) -> Answer:
            """Label all but training nodes with the class that the model predicts."""
            self.model.load(request["weights"])
            with torch.no_grad():
                guess = self.model(self.cohort.block).argmax(1)
            labels = torch.where(self.cohort.masks["train"], self.cohort.y, guess)
            self.kept["labels"] = list(labels.split(self.cohort.items))
            return Answer({})

        @action("ask")
        def transform(self, request: Payload) -> Answer:
            """Local_graph_transformation of Algorithm 1: keep z of the best step on the party's validation nodes."""
            block, options, all_ = self.cohort.block, self.method.transforming, [True] * len(self.cohort)
            self.model.load(request["head"])
            bottleneck = PerParty(self.method.bottleneck_of(block.x.size(1)), len(all_), self.cohort.device)
            bottleneck.load(request["bottleneck"])
            leaves = bottleneck.start_training(block, all_, touched_rows=False)
            if not self.method.self_training:
                dense = replace(block, x=rows.to_dense(block.x))
                leaves += self.model.start_training(dense, all_, touched_rows=False)
                self.model.training = False  # without dropout, like a model that is fixed
            optimizer = PartyOptimizer(options, leaves)
            best = _Best(block.sizes)
            for step in range(options.epochs + 1):
                mean, spread = bottleneck(block)
                z = mean + spread * self._noise(mean.size(1), step).to(mean)
                output = self.model(replace(block, x=z))
                if step % self.method.check_every == 0 or step == options.epochs:
                    best.see(z.detach(), self._right(output.detach()))
                if step < options.epochs:
                    loss = self._loss_labelled(output) + self.method.gamma * divergence(mean, spread, block.sizes)
                    loss.sum().backward()
                    optimizer.step(all_)
            bottleneck.stop_training()
            self.model.stop_training()
            self.kept["prepared"] = [{"x": own} for own in best.z.split(block.sizes)]
            self.invalidate()
            return Answer({})

        def condensed_nodes(self) -> Tensor:
            if self.method.condensed == "training" or "labels" not in self.kept:
                return super().condensed_nodes()
            return torch.arange(len(self.labels), device=self.cohort.device)

        @property
        def labels(self) -> Tensor:
            """The class of every node, with the labels of self-training if there was any."""
            if "labels" not in self.kept:
                return super().labels
            return torch.cat(self.kept.each("labels")).to(self.cohort.device)

        def _noise(self, features: int, step: int) -> Tensor:
            """A standard normal draw for each node, its party's own: `[nodes, features]`."""
            return self.draws("z", step).normal(self.cohort.sizes, features)

        def _loss_labelled(self, output: Tensor) -> Tensor:
            """The task's loss over the nodes with a label, their own or one of self-training, (19)."""
            if "labels" not in self.kept:
                return self.task.loss(self.step(output, mask=self.cohort.masks["train"]))
            y = self.labels
            return self.task.loss(Step(output, y, self.cohort.items, torch.arange(len(y), device=y.device)))

        def _right(self, output: Tensor) -> Tensor:
            """How many validation nodes of each party are classified right, `[parties]`."""
            right = self.cohort.masks["val"] & (output.argmax(1) == self.cohort.y)
            return torch.bincount(self.cohort.party[right], minlength=len(self.cohort)).cpu()

        def trained_on(self, party: Party, prepared: Any) -> Party:
            graph = copy(party.graph)
            graph.x = prepared["x"].cpu()
            return replace(party, graph=graph)


class _Best:
    """Each party's features with the most validation nodes classified right; of equal ones the last."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.right = torch.full((len(sizes),), -1)
        self.z = torch.empty(0)

    def see(self, z: Tensor, right: Tensor) -> None:
        better = right >= self.right
        self.right = torch.where(better, right, self.right)
        mine = better.to(z.device)[rows.party_of_rows(self.sizes, z.device)].unsqueeze(1)
        self.z = torch.where(mine, z, self.z) if self.z.numel() else z
