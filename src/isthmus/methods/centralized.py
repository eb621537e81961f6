"""All data in one place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.data.cohort import Cohort
from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.federation import wire
from isthmus.federation.site import Site
from isthmus.methods.base import Listing, Role
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.layerwise import infer
from isthmus.tasks.base import Task


class Centralized(FedAvg):
    """A reference that a federation cannot run: one party holds all nodes and all edges."""

    name: ClassVar[str] = "centralized"
    typed: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ("fraction", "aggregate", "select_over")  # there is one party
    listing: ClassVar[Listing] = Listing(demo=5, leaves="all data, to one place")
    role: ClassVar[Role] = "pooled"

    @property
    def reads_across(self) -> bool:
        return True

    @property
    def predicts_together(self) -> bool:
        return True

    def predictor(self, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any) -> Site:
        """On the graph that these parties make together, as in training; one alone has its own."""
        if len(parties) == 1:
            return super().predictor(parties, task, module, **where)
        return Pooled(self, parties, task, module, **where)


class Pooled(Site):
    """Predicts for several parties on the graph that they make together."""

    @cached_property
    def _found(self) -> tuple[Tensor, Tensor]:
        """The outputs and embeddings of the whole graph, by the model of the first call."""
        return infer(self.model, Cohort((self._whole,), self.hosted.device).block, embed=True)

    @cached_property
    def _whole(self) -> Party:
        return pool_parties(self.hosted.parties)

    def predict(self, request: wire.Payload) -> Tensor:
        self.load_evaluated(request)
        return self._own(self._found[0])

    def embed(self) -> tuple[Tensor, Tensor]:
        output, embedding = self._found
        return self._own(output), self._own(embedding)

    def _own(self, values: Tensor) -> Tensor:
        """The rows of the party asked: of its nodes, or of its labelled edges, which stand one party after another."""
        (at,) = self.positions
        (party,) = self.cohort.parties
        if party.level == "edge":
            start = sum(self.hosted.items[:at])
            return values[start : start + self.hosted.items[at]]
        assert party.ids is not None
        assert self._whole.ids is not None
        return values[torch.searchsorted(self._whole.ids, party.ids).to(values.device)]
