"""One answer for every item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.models import Models
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Method, Model, Role, State
from isthmus.tasks.classification import Classification
from isthmus.tasks.multilabel import MultiLabel


class Majority(Method):
    """A reference without a model: every item gets the class that most training items have. A model must beat it.

    The server learns the numbers of training items of each class, in a sum over the parties. A task with several
    yes-or-no labels gets the log odds of each, real numbers get their means. Nothing is trained, so all rounds are
    equal and the first is the result.

    Party:  n_kc <- number of training items of class c
    Server: n_c <- sum_k n_kc
    Scores: log((n_c + 1) / sum_c (n_c + 1))
    """

    name: ClassVar[str] = "majority"
    listing: ClassVar[Listing] = Listing(leaves="numbers of items of each class, in a sum, and no weights")
    typed: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = (
        "select",
        "select_over",
        "evaluate_with",
    )  # nothing is trained, and all rounds are equal
    role: ClassVar[Role] = "constant"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph", "edge")
    nouns: ClassVar = {"labels": "sums of training labels", "known": "numbers of training labels"}

    def predictor(self, *args: Any, **where: Any) -> Site:
        return self.site(*args, **where)  # by counts

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if state.once("count"):
            total = federation.total("count")
            state.labels, state.known = total.sum("labels"), total.sum("known")
        for state.round in state.rounds(self.rounds):
            yield state

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {**super().calls(module), "count": 1}

    def models(self, state: State) -> Models:
        return Models(context={"labels": state.labels, "known": state.known})

    class AtParty(Site):
        method: Majority

        @action("total", bounds={"known": "items"})
        def count(self, request: Payload) -> Answer:
            """Sums of training labels and their numbers, `[parties, outputs]`; of classes, how many items have each."""
            width, cohort = self.task.outputs, self.cohort
            at = cohort.masks["train"].nonzero().flatten()
            sizes = torch.bincount(cohort.party[at], minlength=len(cohort)).tolist()
            y = cohort.y[at]
            if not y.is_floating_point():
                y = torch.nn.functional.one_hot(y, width)
            y = y.view(len(y), width).double()
            known = ~y.isnan()
            sums = (y.masked_fill(~known, 0.0), known.double())
            labels, counts = (rows.sum_per_party(each, sizes) for each in sums)
            return Answer({"labels": labels, "known": counts})

        def predict(self, request: Payload) -> Tensor:
            labels, known = request["labels"], request["known"]
            if isinstance(self.task, Classification):
                scores = (labels + 1).log() - (labels + 1).sum().log()
            elif isinstance(self.task, MultiLabel):
                scores = (labels + 1).log() - (known - labels + 1).log()
            else:
                scores = labels / known.clamp(min=1)
            return scores.to(torch.get_default_dtype()).expand(self.cohort.y.size(0), -1)
