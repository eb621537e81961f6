"""Common ground of the methods that learn to embed graphs without labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from isthmus.data.cohort import Block
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.data.views import add_diffusion_view
from isthmus.errors import IsthmusError
from isthmus.federation.site import Site
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning
from isthmus.methods.shared.composed import Composed
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Embedder, uses_edge_weights
from isthmus.tasks.base import Step, Task


class Unsupervised(Composed):
    """A method that learns to embed whole graphs without labels: it gives the loss, and `trainer` trains."""

    levels: ClassVar[tuple[Level, ...]] = ("graph",)
    unsupervised: ClassVar[bool] = True

    without: ClassVar[tuple[str, ...]] = ("select", "patience")  # to choose between rounds would take labels
    rounds: int = Field(20, ge=1)
    """Communication rounds, at most."""
    local: LocalTraining = LocalTraining(epochs=5, batch_size=128, lr=1e-3)
    """Training at the parties."""

    def check(self, module: nn.Module) -> None:
        if not isinstance(module, Embedder):
            raise IsthmusError(f"method '{self.name}' needs an encoder of Isthmus that embeds, not a model of your own")
        super().check(module)
        local = getattr(self.training(), "local", self.local)
        if local.batch_size == 1:
            raise IsthmusError(
                f"method '{self.name}' contrasts the graphs of a batch: set local.batch_size to 2 or more, or 0 for all"
            )

    def predictor(self, *args: Any, **where: Any) -> Site:
        return self.site(*args, **where)  # whose output sums over views

    class AtParty(Learning):
        def __init__(
            self, method: Unsupervised, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            super().__init__(method.training(), parties, task, module, **where)
            self.loss_method = method

        def fit(self, **how: Any) -> Tensor:
            steps: Tensor = self.method.local.fit(self, self.loss, read=self.read, **how)
            return steps

        def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, None]:
            """The block of a step: its graphs, and no rows, as the loss takes all outputs."""
            self.block = self.cohort.graphs_of(chosen)
            return self.block, None

        @abstractmethod
        def loss(self, step: Step) -> Tensor:
            """The loss of a step by party, `[parties]`."""

        def predict(self, request: Payload) -> Tensor:
            """Embeddings of graphs, summed over their views, `[graphs, width]`."""
            return super().predict(request)[1].sum(1)


class TwoViews(Unsupervised):
    """A method with two views of each graph: the graph, and its diffusion by personalised PageRank."""

    restart: float = Field(0.2, ge=1e-6, lt=1)
    """Restart probability of the diffusion (its alpha)."""
    threshold: float = Field(0.02, ge=0)
    """Leave out entries of the diffusion below this."""

    def check(self, module: nn.Module) -> None:
        super().check(module)
        if not uses_edge_weights(module):
            raise IsthmusError(
                f"method '{self.name}' needs an encoder that weighs edges: gcn, or gin, gat or sage with "
                "model.weighted = true"
            )

    class AtParty(Unsupervised.AtParty):
        def __init__(self, method: TwoViews, parties: Sequence[Party], *args: Any, **where: Any) -> None:
            views = [add_diffusion_view(party, restart=method.restart, threshold=method.threshold) for party in parties]
            super().__init__(method, views, *args, **where)
