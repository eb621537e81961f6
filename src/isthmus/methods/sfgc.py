"""SFGC: condense a graph to nodes whose only edges are loops, along the paths of training."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, Role, State
from isthmus.methods.optimizer import Optimizer
from isthmus.methods.shared.condensing import Condensing
from isthmus.methods.training import Training
from isthmus.nn.draws import Draws, draws_of, seed_of
from isthmus.nn.weights import draw_weights


class SFGC(Condensing):
    """SFGC (Zheng et al. 2023): a student trained on nodes without neighbours follows experts trained on the graph.

    In each round an expert is trained on the whole graph for t epochs, t drawn, to theta_t, and for `span` more to
    theta_{t+span}. A student starts at theta_t and takes `steps` steps of gradient descent on (I, X', Y'), nodes with
    no edge but a loop; X' and the student's learning rate descend on its distance from the expert's last weights.

    expert:  theta_t, theta_{t+span}  by SGD on (A, X, Y), t from 0 to latest
    student: s_0 = theta_t
             s_{j+1} = s_j - rate grad CE(f(I, X'; s_j), Y'),  j < steps
    loss   = || s_steps - theta_{t+span} ||^2 / || theta_t - theta_{t+span} ||^2
    step:    X' and log rate by Adam on the loss, through all steps of the student

    It is a reference for `fedgc`: all data are in one place. The authors train experts beforehand and draw from their
    saved weights; here every round trains one, which saves nothing and costs some seconds.
    """

    name: ClassVar[str] = "sfgc"
    nouns: ClassVar[Mapping[str, str]] = {
        **Condensing.nouns,
        "start": "model weights before training",
        "goal": "model weights after training",
    }
    listing: ClassVar[Listing] = Listing("condensed", leaves="all data, to one place")
    role: ClassVar[Role] = "pooled"

    rounds: int = Field(200, ge=1)
    """Rounds of matching, at most."""
    finetune: bool = False
    """Train the model further on the whole graph before it is evaluated."""
    min_contributors: int = Field(1, ge=1)
    """Parties that a sum needs; all data are in one place."""
    noise: float = Field(0.1, gt=0)
    """Noise around a class's mean, as a share of the features' deviation; small, for no neighbours average it out."""
    descent: Optimizer = Optimizer(optimizer="adam", lr=0.01, weight_decay=0.0)
    """The server's optimiser of X' and of the student's rate."""
    latest: int = Field(50, ge=0)
    """Most epochs of an expert before its segment begins."""
    span: int = Field(50, ge=1)
    """Epochs of an expert's segment, which a student has to reproduce."""
    steps: int = Field(50, ge=1)
    """Steps of a student."""
    rate: float = Field(0.3, gt=0)
    """The student's first learning rate; it is learned."""
    expert: Training = Training(epochs=1, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4)
    """Training of the experts; their epochs are drawn, and `span`. Not Adam: its steps are
    long even where gradients are small, and a student, with its plain steps, could not follow."""

    def more(self, x: Tensor, draws: Draws) -> dict[str, Tensor]:
        return {"rate": torch.tensor(self.rate).log()}

    def joined(self, graph: Mapping[str, Tensor]) -> Tensor:
        return torch.eye(graph["x"].size(0))

    def condense(self, federation: Federation, model: Model, state: State) -> None:
        """One round: an expert's segment, a student on the synthetic nodes, one step of X' and of its rate."""
        begins = int(draws_of(federation.seed, "begins", state.round).integers((1,), self.latest + 1))
        seed = seed_of(federation.seed, "expert", state.round)
        request = {"weights": draw_weights(model.module, seed), "begins": begins}
        total = federation.total("expert", request)
        start, goal = total.mean("start"), total.mean("goal")
        graph = {name: value.clone().requires_grad_() for name, value in state.graph.items()}
        student = self._student(model.module, start, state.scale * graph["x"], graph["rate"].exp(), state.y)
        far = sum(((student[name] - goal[name]).square().sum() for name in student), torch.zeros(()))
        near = sum(((start[name] - goal[name]).square().sum() for name in student), torch.zeros(()))
        self.descend(state, graph, far / near.clamp(min=torch.finfo(near.dtype).tiny))

    def _student(
        self, module: nn.Module, start: dict[str, Tensor], x: Tensor, rate: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Weights after some steps on the synthetic nodes, as a function of their features and of the rate.

        Loops train the weights that a model has for neighbours, and it uses those on a graph.
        """
        module = deepcopy(module).eval()
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        weights = {name: start[name].requires_grad_() for name in names}
        still = {name: value for name, value in start.items() if name not in weights}
        loops = torch.arange(x.size(0)).expand(2, -1)
        for _ in range(self.steps):
            output = functional_call(module, weights | still, (x, loops))
            slopes = torch.autograd.grad(F.cross_entropy(output, y), list(weights.values()), create_graph=True)
            weights = {name: weights[name] - rate * slope for name, slope in zip(names, slopes, strict=True)}
        return weights

    class AtParty(Condensing.AtParty):
        method: SFGC

        @action("total")
        def expert(self, request: Payload) -> Answer:
            """Weights where a segment of training begins, and where it ends."""
            self.model.load(request["weights"])
            begins = int(request["begins"])
            if begins:
                self.method.expert.model_copy(update={"epochs": begins}).fit(self, self.task.loss)
            start = self.model.stacks()
            self.method.expert.model_copy(update={"epochs": self.method.span}).fit(self, self.task.loss)
            return Answer({"start": start, "goal": self.model.stacks()})
