"""Federated averaging whose server also learns what each party knows best, on graphs made from noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.data.level import Level
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.optimizer import Optimizer, server_step
from isthmus.nn.draws import draws_of, seed_of, torch_seeded
from isthmus.nn.per_party import PerParty
from isthmus.nn.pseudo import NOISE, PseudoNodes, join_similar, sameness
from isthmus.nn.structure import walk_encoding
from isthmus.nn.weights import initial_weights

TEACHER, RELIABILITY = "teacher", "reliability"


class FedTAD(FedAvg):
    """FedTAD (Zhu et al. 2024): after averaging, the shared model learns each class from parties that know it well.

    A party is reliable for a class if its training nodes of this class resemble their neighbours. The server makes
    small graphs from noise; a generator learns to make such on which parties see the classes asked for and the shared
    model differs from them. Then the shared model f moves towards the parties' predictions p_k, weighted by r_kc.

    Party:  w_k <- w_t, then w_k <- w_k - step(grad F_k(w_k));  over v of class c
            R_kc = sum_v (1 + sum_{u in N_v} cos(xi_v, xi_u)) / (d_v + 1)
            xi_v = [x_v, probabilities that walks of 1, 2, .. steps return to v]
    Server: w = sum_k (n_k / n) w_k;  r_kc = R_kc / sum_k R_kc
            then server_epochs times, with noise z and classes c:
            X = G(z, c), edges between each node and its most similar ones
            sem = sum_k mean_v r_kc -log p_k(c | v)
            div = sum_k mean_v r_kc KL(p_k(v) || f(v))
            same = exp(-mean_ij ||z_i - z_j||^2 ||x_i - x_j||_1)
            G <- G - step(grad(semantic sem - div + diversity same))
            w <- w - step(grad div), student_steps times

    The server reads sums only. The derivative of div for w needs sum_k r_kc p_k alone; that for X is the sum of the
    derivatives that parties compute. So it never gets a single party's model, as the paper's server does. Where a class
    is one party's alone, the rows of this class are that party's predictions of generated nodes. The means run over
    the nodes of each class, and are added up. A class that nobody has training nodes of is left out.

    The public code takes absolute differences of outputs for KL, and numbers of visited nodes for the walks. Here the
    server's steps run without dropout. In each round a party answers 2 server_epochs further sums, each of a graph's
    features or probabilities.
    """

    name: ClassVar[str] = "fedtad"
    listing: ClassVar[Listing] = Listing(leaves="predictions and gradients for generated graphs, in sums by class")
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    for_classes: ClassVar[bool] = True
    tuned: ClassVar[tuple[str, ...]] = ("server_epochs", "semantic")
    nouns: ClassVar[Mapping[str, str]] = {
        RELIABILITY: "how reliable it is for each class",
        "slope": "derivatives of a loss for generated features",
        "share": "weighted class probabilities of generated nodes",
    }

    server_epochs: int = Field(5, ge=1, le=1000)
    """Graphs that the server makes and learns from in a round."""
    student_steps: int = Field(5, ge=1, le=1000)
    """Steps of the shared model on each graph."""
    generated: int = Field(100, ge=2, le=10_000)
    """Nodes of a generated graph."""
    neighbours: int = Field(5, ge=1)
    """Most similar nodes that a generated node is joined with, itself among them."""
    walks: int = Field(5, ge=1, le=1000)
    """Longest walk in the code of a node's surroundings."""
    semantic: float = Field(1.0, ge=0)
    """Weight of sem (lambda_1)."""
    diversity: float = Field(1.0, ge=0)
    """Weight of the diversity of generated nodes (lambda_2)."""
    generating: Optimizer = Optimizer(optimizer="adam", lr=1e-3)
    """The generator's optimiser; its moments last over the rounds."""
    distilling: Optimizer = Optimizer(optimizer="adam", lr=1e-3)
    """The shared model's optimiser on generated graphs; its moments last over the rounds."""

    def calls(self, module: nn.Module) -> dict[str, int]:
        graphs = self.rounds * self.server_epochs
        return {**super().calls(module), "guide": graphs, "teach": graphs}

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        with torch_seeded(seed_of(federation.seed, "generator")):
            generator = PseudoNodes(model.features, model.outputs)
        weights, made = model.weights(), initial_weights(generator)
        zeros = {name: torch.zeros_like(weights[name]) for name in model.trained()}
        none = {name: torch.zeros_like(weight) for name, weight in made.items()}
        state.start(
            weights=weights, first=zeros, second=zeros, steps=0,
            generator={name: weight.clone() for name, weight in made.items()},
            made_first=none, made_second=none, made=0,
        )  # fmt: skip
        student = PerParty(model.module, 1)
        for state.round in state.rounds(self.rounds):
            chosen = federation.sample(self.fraction)
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            state.weights = total.mean("weights", default=state.weights)
            reliable = total.sum(RELIABILITY)
            teachers = [party for party in chosen if party not in total.missing]
            if bool((reliable > 0).any()):
                for epoch in range(self.server_epochs):
                    self._learn(federation, state, generator, student, teachers, reliable, epoch)
            yield state

    def _learn(
        self,
        federation: Federation,
        state: State,
        generator: PseudoNodes,
        student: PerParty,
        teachers: Sequence[str],
        reliable: Tensor,
        epoch: int,
    ) -> None:
        """A step of the generator, and the shared model's on the graph that it then makes."""
        z = draws_of(federation.seed, "noise", state.round, epoch).normal((self.generated,), NOISE)
        held = (reliable > 0).nonzero().squeeze(1)
        c = held[torch.arange(self.generated) * len(held) // self.generated]
        generator.load_state_dict(state.generator)
        x = generator(z.to(torch.get_default_dtype()), c)
        edges = join_similar(x, self.neighbours)
        student.load(state.weights)
        seen = x.detach().requires_grad_()
        given = student(Block(seen, edges, (self.generated,))).log_softmax(1)
        request = {"features": seen.detach(), "edges": edges, "classes": c, "reliable": reliable}
        asked = federation.total("guide", {**request, "given": given.detach()}, of=teachers)
        (asked.sum("share").to(given) * given).sum().backward()  # of -div, what depends on X by f
        assert seen.grad is not None
        x.backward(seen.grad + asked.sum("slope").to(x), retain_graph=True)
        (self.diversity * sameness(z.to(x), x)).backward()
        state.made += 1
        slopes = {name: weight.grad for name, weight in generator.named_parameters() if weight.grad is not None}
        state.generator, state.made_first, state.made_second = server_step(
            self.generating, state.made, state.generator, slopes, state.made_first, state.made_second
        )
        generator.zero_grad()
        generator.load_state_dict(state.generator)
        x = generator(z.to(x), c).detach()
        edges = join_similar(x, self.neighbours)
        asked = federation.total("teach", {**request, "features": x, "edges": edges}, of=teachers)
        block, share = Block(x, edges, (self.generated,)), asked.sum("share")
        for _ in range(self.student_steps):
            student.load(state.weights)
            leaves = student.start_training(block, [True], touched_rows=False)
            student.training = False  # without dropout
            found = student(block).log_softmax(1)
            (-(share.to(found) * found).sum()).backward()
            slopes = {leaf.name: slope_of(leaf.tensor)[0] for leaf in leaves}
            student.stop_training()
            state.steps += 1
            state.weights, state.first, state.second = server_step(
                self.distilling, state.steps, state.weights, slopes, state.first, state.second
            )

    class AtParty(FedAvg.AtParty):
        method: FedTAD

        @action("total")
        def train(self, request: Payload) -> Answer:
            self.model.load(request["weights"])
            self.fit()
            self.kept[TEACHER] = self.model.stacks()
            if RELIABILITY not in self.kept:
                self.kept[RELIABILITY] = self.reliability()
            fields = {"weights": self.model.weights(), RELIABILITY: self.kept[RELIABILITY]}
            return Answer(fields, weight={"weights": self.averaging_weights()})

        @action("total")
        def guide(self, request: Payload) -> Answer:
            """Derivatives of semantic sem_k - div_k for the features, and the weighted probabilities."""
            x = request["features"].repeat(len(self.cohort), 1).to(self.hosted.device).requires_grad_()
            own, weight, c = self.log_probabilities(x, request)
            gap = (own.exp() * (own - request["given"].to(own).repeat(len(self.cohort), 1))).sum(1)
            wrong = -own.gather(1, c.unsqueeze(1)).squeeze(1)
            (weight * (self.method.semantic * wrong - gap)).sum().backward()
            assert x.grad is not None
            return Answer({"slope": self.by_party(x.grad), **self.share(own, weight)})

        @action("total")
        def teach(self, request: Payload) -> Answer:
            """The weighted probabilities of each class, r_kc p_k(v) / (nodes of class c)."""
            x = request["features"].repeat(len(self.cohort), 1).to(self.hosted.device)
            with torch.no_grad():
                own, weight, _ = self.log_probabilities(x, request)
            return Answer(self.share(own, weight))

        def log_probabilities(self, x: Tensor, request: Payload) -> tuple[Tensor, Tensor, Tensor]:
            """log p_k of all nodes of the graph, party after party; their weights; and their classes."""
            if TEACHER not in self.kept:
                raise IsthmusError("there is no trained model yet: train first")
            count, c = len(self.cohort), request["classes"].to(x.device)
            edges = request["edges"].to(x.device)
            shift = (torch.arange(count, device=x.device) * len(c)).repeat_interleave(edges.size(1))
            self.model.load(self.kept[TEACHER])
            own = self.model(Block(x, edges.repeat(1, count) + shift, (len(c),) * count)).log_softmax(1)
            reliable = request["reliable"].to(x.device)
            shares = self.kept[RELIABILITY].to(x.device) / torch.where(reliable > 0, reliable, 1.0)
            sizes = torch.bincount(c, minlength=len(reliable)).clamp(min=1)
            return own, (shares / sizes)[:, c].flatten().to(own), c.repeat(count)

        def share(self, own: Tensor, weight: Tensor) -> dict[str, Any]:
            return {"share": self.by_party((weight.unsqueeze(1) * own.exp()).detach())}

        def by_party(self, values: Tensor) -> Tensor:
            """`[parties, nodes, ...]`"""
            return values.view(len(self.cohort), -1, values.size(1))

        def surroundings(self) -> Tensor:
            """What xi has beside the features, `[nodes, walks]`: how probably walks of each length return."""
            block = self.cohort.block
            walks = walk_encoding(block.edge_index, block.nodes, self.method.walks, block.x.dtype)
            return walks.to(block.x.dtype)

        def reliability(self) -> Tensor:
            """R_kc, `[parties, classes]`; a negative one, of nodes unlike their neighbours, counts as 0."""
            cohort, block = self.cohort, self.cohort.block
            unit = F.normalize(torch.cat([rows.to_dense(block.x), self.surroundings()], dim=1), dim=1)
            source, target = block.edge_index[:, block.edge_index[0] != block.edge_index[1]]
            near = (unit[source] * unit[target]).sum(1)
            total = (1 + near.new_zeros(block.nodes).index_add(0, target, near)).double()
            each = total / (1 + torch.bincount(target, minlength=block.nodes))
            train = cohort.masks["train"]
            group = cohort.party[train] * self.task.outputs + cohort.y[train]
            found = each.new_zeros(len(cohort) * self.task.outputs).index_add(0, group, each[train])
            return found.view(len(cohort), -1).clamp(min=0)


def slope_of(weight: Tensor) -> Tensor:
    """Its gradient; zeros without one."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad
