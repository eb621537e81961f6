"""FedCog for GCN: the layers of one network run across all parties, in every iteration, forth and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from isthmus.data import matrices, rows
from isthmus.data.coupling import Coupling, decouple
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Answers, Mail, Total
from isthmus.federation.letters import Form
from isthmus.federation.models import Models
from isthmus.federation.verbs import Federation, Needed
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Method, Model, State
from isthmus.methods.fedcog import form_of_sums, positions_of
from isthmus.methods.optimizer import Optimizer, server_step
from isthmus.methods.shared.neighbour_sums import Coupled
from isthmus.nn.draws import PartyDropout
from isthmus.nn.encoders import Convolutions
from isthmus.nn.products import Features, SparseProduct, by_input, grouped_linear, per_row
from isthmus.nn.weights import Weights
from isthmus.tasks.base import Task


class FedCogGcn(Method):
    """FedCog for GCN (Lei et al. 2023), (9) and (10): a graph convolution over coupled graphs in every iteration.

    Parties exchange sums over neighbours before every layer and their gradients after it, so that together they train
    one GCN on the whole graph.

    Forth,  (9):  h_u^(l+1/2) <- sum_{v in N_u^I} beta_v h_v^(l) W^(l), exchanged
            (10): h_u^(l+1) <- ReLU(gamma_u (own sum + received sums for u) + b^(l))
    Back:   the gradient of a received sum goes back to its sender, layer by layer
    Server: one step of the optimiser on the sum of the parties' gradients

    The loss is the mean over all parties' training labels, so that an iteration equals one step of the same GCN on the
    whole graph (Theorem 1), to rounding. Every party takes part in every iteration. A run is saved between iterations
    only, because parties keep intermediate values for the backward pass.

    The server sees sizes of messages, and the sum of the parties' gradients. Theorem 2 covers the messages forth. It
    does not cover the gradients that go back: they depend on labels near the border, and nothing is proved about them.
    """

    name: ClassVar[str] = "fedcog-gcn"
    nouns: ClassVar[Mapping[str, str]] = {
        "h": "hidden features or their gradients",
        "gradients/weights": "gradients of model weights",
    }
    for_crossing: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing(
        "coupled", 2, "sums over neighbours and their gradients, from party to party, in every round"
    )
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    everyone: ClassVar[Needed] = "always"
    disjoint: ClassVar[bool] = True
    both_ways: ClassVar[bool] = True

    rounds: int = Field(200, ge=1)
    """Iterations, at most: each is one step of the optimiser."""
    descent: Optimizer = Optimizer(optimizer="adam", lr=0.01, weight_decay=5e-4)
    """The server's optimiser; its moments last over the iterations."""
    lnnc: bool = True
    """Local nearest neighbour connection: join nodes without a neighbour in their party to the most similar one
    there."""
    min_neighbours: int = Field(1, ge=1)
    """Send no sum over fewer own nodes than this."""

    def check(self, module: nn.Module) -> None:
        convolutions_of(module, self.name)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        layers = len(convolutions_of(model.module, self.name).convs)
        weights = model.weights()
        zeros = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        state.start(weights=weights, first=zeros, second=zeros)
        if state.once("count"):
            state.items = float(federation.total("count").sum("items"))
            yield state
        for state.round in state.rounds(self.rounds):
            self._forth(federation, state, layers, training=True)
            for layer in reversed(range(layers)):
                federation.exchange("back", {"layer": layer, "items": state.items})
            gradients = federation.total("gradients", {"weights": state.weights})
            state.weights, state.first, state.second = server_step(
                self.descent, state.round, state.weights, gradients.sum("weights"), state.first, state.second
            )
            yield state

    def models(self, state: State) -> Models:
        return Models(shared=state.weights)

    def evaluate(self, federation: Federation, state: State) -> Total | Answers:
        layers = 1 + max(int(name.split(".")[1]) for name in state.weights)
        self._forth(federation, state, layers, training=False)
        return self.collect_counts(federation)

    def _forth(self, federation: Federation, state: State, layers: int, *, training: bool) -> None:
        for layer in range(layers):
            start = {"weights": state.weights} if layer == 0 else {}
            federation.exchange("forth", {"layer": layer, "training": training, **start})

    def calls(self, module: nn.Module) -> dict[str, int]:
        counts = super().calls(module)
        layers = len(convolutions_of(module, self.name).convs)
        passes = {"forth": layers * (self.rounds + counts["evaluate"]), "back": layers * self.rounds}
        return {**counts, "count": 1, **passes}

    class AtParty(Coupled):
        method: FedCogGcn

        def __init__(self, method: Method, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any):
            super().__init__(method, parties, task, module, **where)
            gcn = convolutions_of(module, method.name)
            self.layers, self.dropout = len(gcn.convs), gcn.dropout.p
            self._tape = _Tape()

        @action("total", bounds={"items": "labels"})
        def count(self, request: Payload) -> Answer:
            output = torch.empty(self.cohort.block.nodes, self.task.outputs, device=self.cohort.device)
            return Answer({"items": self.task.loss_counts(self.step(output, mask=self.cohort.masks["train"]))})

        def due_sums(self, sender: str) -> Form | None:
            """Sums of a layer's width, each over as many neighbours as a node has, at most."""
            half, coupling = self._tape.halves[-1].detach(), self.coupling.coupling
            largest = half.abs().max() * coupling.degree.max()
            return form_of_sums(self.cohort.parties[0], coupling, sender, h=largest.expand(1, half.size(1)))

        @action("exchange", protected=True, form=due_sums)
        def forth(self, request: Payload) -> Mail:
            """Internal propagation (9) of one layer; the sums for others' nodes go to their owners."""
            layer, training = int(request["layer"]), bool(request["training"])
            graph: _Products = self.coupling
            if layer == 0:
                self._tape = _Tape(self._stacks(request["weights"], training))
                block = self.cohort.block
                h: Any = Features(block.x) if rows.is_sparse(block.x) else block.x
            else:
                h = self._output(layer - 1, training).relu()
            if training and self.dropout:
                with PartyDropout(self.draws("dropout", layer), (self.cohort.sizes,)):
                    h = F.dropout(h, self.dropout)
            t = graph.scale * self._linear(h, layer)
            self._tape.halves.append(graph.inner @ t)
            self._tape.sent.append(graph.outer @ self.shown(t, layer, training))
            return self._letters(self._tape.sent[-1].detach())

        def shown(self, t: Tensor, layer: int, training: bool) -> Tensor:
            """Rows of own nodes as they enter the sums for others' nodes."""
            return t

        def due_slopes(self, sender: str) -> Form | None:
            """A gradient for each sum that the sender got."""
            own = self.coupling.coupling.slots[0].get(sender)
            return own and {"h": self._tape.largest.expand(own.stop - own.start, -1)}

        @action("exchange", protected=True, form=due_slopes)
        def back(self, request: Payload) -> Mail:
            """Send the gradient of the sums received in one layer back to their senders."""
            layer, tape = int(request["layer"]), self._tape
            if layer == self.layers - 1:
                tape.loss = self._loss(self._output(layer, True)) / float(request["items"])
            else:
                self._take_back(layer + 1)
            (slope,) = tape.gradients([tape.received[layer]])
            tape.largest = slope.abs().max().expand(1, slope.size(1))
            return Mail([{sender: {"h": slope[at]} for sender, at in own.items()} for own in tape.arrivals])

        @action("total")
        def gradients(self, request: Payload) -> Answer:
            """Each party's part of the gradient, `[parties, ...]` for each weight."""
            self._take_back(0)
            found = self._tape.gradients(list(self._tape.stacks.values()))
            self._tape = _Tape()
            return Answer({"weights": dict(zip(request["weights"], found, strict=True))})

        @action("total", "ask")
        def evaluate(self, request: Payload) -> Answer:
            with torch.no_grad():
                output = self._output(self.layers - 1, False)
                masks = self.cohort.masks
                return Answer(
                    {split: self.task.counts(self.step(output, mask=masks[split])) for split in ("val", "test")}
                )

        def models(self) -> dict[str, Weights]:
            stacks = self._tape.stacks
            return {
                party: {name: stack[at].detach().clone() for name, stack in stacks.items()}
                for at, party in enumerate(self.cohort.names)
            }

        def couple(self) -> _Products:
            method = self.method
            coupling = decouple(self.cohort.parties, join_isolated=method.lnnc, min_neighbours=method.min_neighbours)
            return _Products.of(coupling, self.cohort.device)

        def _stacks(self, weights: Mapping[str, Tensor], training: bool) -> dict[str, Tensor]:
            """The weights once for each party, so that each has a gradient of its own."""
            parties = len(self.cohort)
            return {
                name: weight.expand(parties, *weight.shape).clone().requires_grad_(training)
                for name, weight in weights.items()
            }

        def _linear(self, h: Any, layer: int) -> Tensor:
            stack = self._tape.stacks[f"convs.{layer}.lin.weight"]
            if isinstance(h, Features):
                return h.grouped(by_input(stack), h.all_columns(self.cohort.sizes))
            return grouped_linear(h, stack, self.cohort.sizes)

        def _letters(self, sums: Tensor) -> Mail:
            coupling = self.coupling.coupling
            return Mail(
                [
                    {owner: {"ids": torch.from_numpy(coupling.ids[at]), "h": sums[at]} for owner, at in own.items()}
                    for own in coupling.slots
                ]
            )

        def _output(self, layer: int, training: bool) -> Tensor:
            """Border propagation (10) of one layer, before the ReLU."""
            tape, half = self._tape, self._tape.halves[layer]
            received, tape.arrivals, first = torch.zeros_like(half, requires_grad=False), [], 0
            receivers = self.coupling.coupling.receivers
            for party, expected, letters in zip(self.cohort.parties, receivers, self.received("forth"), strict=True):
                at = positions_of(party, expected, {sender: letter["ids"] for sender, letter in letters.items()})
                tape.arrivals.append({sender: (first + nodes).to(half.device) for sender, nodes in at.items()})
                for sender, letter in letters.items():
                    received.index_add_(0, tape.arrivals[-1][sender], letter["h"])
                first += party.nodes
            tape.received.append(received.requires_grad_(training))
            bias = per_row(tape.stacks[f"convs.{layer}.bias"], self.cohort.sizes)
            return self.coupling.scale * (half + received) + bias

        def _loss(self, output: Tensor) -> Tensor:
            """The sum of the loss over the training nodes here."""
            step = self.step(output, mask=self.cohort.masks["train"])
            return (self.task.loss(step) * self.task.loss_counts(step).to(output)).sum()

        def _take_back(self, layer: int) -> None:
            """Read the gradient of the sums sent in one layer, as their receivers return it."""
            slope = torch.zeros_like(self._tape.sent[layer])
            for own, letters in zip(self.coupling.coupling.slots, self.received("back"), strict=True):
                for owner, letter in letters.items():
                    slope[own[owner]] = letter["h"]
            self._tape.slopes[layer] = slope


@dataclass
class _Tape:
    """Intermediate values of one iteration, for the backward pass.

    Arguments:
        stacks: weights, a slice for each party.
        halves, sent, received: by layer, own sums, sums for others, and sums from others.
        arrivals: by party, which of its nodes each sender sent sums for.
        slopes: by layer, the gradient of the sums sent.
        largest: of the last gradient of received sums, as a row of it.
    """

    stacks: dict[str, Tensor] = field(default_factory=dict)
    halves: list[Tensor] = field(default_factory=list)
    sent: list[Tensor] = field(default_factory=list)
    received: list[Tensor] = field(default_factory=list)
    arrivals: list[dict[str, Tensor]] = field(default_factory=list)
    slopes: dict[int, Tensor] = field(default_factory=dict)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    largest: Tensor = field(default_factory=lambda: torch.zeros(1, 0))

    def gradients(self, of: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gradients of the loss with respect to `of`, through this site and through the sums that it sent."""
        ends = [self.loss, *(self.sent[layer] for layer in self.slopes)]
        slopes = [torch.ones_like(self.loss), *self.slopes.values()]
        found = torch.autograd.grad(ends, of, slopes, retain_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(x) if slope is None else slope for x, slope in zip(of, found, strict=True))


@dataclass(frozen=True, eq=False)
class _Products:
    """Decoupled graphs as products with a gradient."""

    coupling: Coupling
    inner: _Product
    outer: _Product
    scale: Tensor

    @classmethod
    def of(cls, coupling: Coupling, device: torch.device) -> _Products:
        dtype = torch.get_default_dtype()
        scale = torch.from_numpy(coupling.degree**-0.5).to(device, dtype).unsqueeze(1)
        return cls(coupling, _Product(coupling.inner, device, dtype), _Product(coupling.outer, device, dtype), scale)


class _Product:
    """A constant sparse matrix, stored with its transpose."""

    def __init__(self, matrix: Any, device: torch.device, dtype: torch.dtype) -> None:
        self._matrix, self._transpose = (
            matrices.to_tensor(each).to(device, dtype) for each in (matrix, matrix.T.tocsr())
        )

    def __matmul__(self, h: Tensor) -> Tensor:
        return SparseProduct.apply(self._matrix, self._transpose, h)  # type: ignore[no-untyped-call]


def convolutions_of(module: nn.Module, method: str) -> Convolutions:
    """The model as a GCN; an error of this method if it is another one."""
    if not isinstance(module, Convolutions) or not all(isinstance(conv, GCNConv) for conv in module.convs):
        raise IsthmusError(f"method '{method}' needs the layers of a GCN: use encoder gcn")
    return module
