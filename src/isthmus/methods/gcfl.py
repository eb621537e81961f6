"""One model per cluster of parties, where clusters split by how the parties' updates point."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Answers, Total
from isthmus.federation.models import Group, Models
from isthmus.federation.robust import Comparison
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning, Listing, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.draws import draws_of
from isthmus.nn.stacks import dense
from isthmus.nn.weights import Weights, body_weights, initial_weights

log = logging.getLogger(__name__)


class GCFL(FedAvg):
    """GCFL (Xie et al. 2021), Algorithm 1: a model for each cluster of parties; clusters split as training goes on.

    If a cluster's mean hardly moves although its parties do, they pull in different directions, and one model suits
    none of them. The server then cuts the cluster in two where updates are least similar.

    Party:  theta_k <- theta_C - step(grad F_k), and d_k = theta_k - theta_C
    Server: theta_C <- theta_C + d_C, d_C = sum_k (n_k / n) d_k over the cluster C
            split C in round t > warm_up if ||d_C|| < eps1 and max_k ||d_k|| > eps2
            by the minimum cut (Stoer and Wagner 1997) of 1 + cos(d_i, d_j)

    The server reads a sum per cluster. Only where it may split one does it ask each party of it for ||d_k|| and `width`
    random projections of d_k, of which cosines are known to about 1 / sqrt(width); in the paper it reads every update.
    Both halves start from the mean of the round, for a second sum over one half would show the other. A cluster of one
    party trains without the server. A cluster is split only if all its parties answered; if too few of one answer, it
    keeps its model for the round. No test data choose a model. eps1 and eps2 depend on data, model and learning rate.
    """

    name: ClassVar[str] = "gcfl"
    listing: ClassVar[Listing] = Listing(leaves="norms and random projections of updates, which the server reads")
    typed: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ("fraction",)  # a split needs the updates of all parties
    tuned: ClassVar[tuple[str, ...]] = ("eps1", "eps2")
    soon: ClassVar[Mapping[str, Any]] = {"warm_up": 0, "eps1": 1e9, "eps2": 0.0}
    nouns: ClassVar[Mapping[str, str]] = {
        "norm": "update's length",
        "projection": "update's random projections",
    }

    eps1: float = Field(0.05, ge=0)
    """A cluster may be split if its mean update is shorter than this."""
    eps2: float = Field(0.1, ge=0)
    """It is split if the longest update of a party is longer than this."""
    warm_up: int = Field(20, ge=0)
    """Rounds before the first split."""
    share: Literal["all", "body"] = "all"
    """What a cluster shares: the whole model; or all but the head, which then stays at each party, for classes that
    differ in meaning."""
    width: int = Field(256, ge=0, le=1 << 20)
    """Random projections of its update that a party sends where its cluster may be split; 0 sends the whole update."""

    def shared(self, module: nn.Module) -> tuple[str, ...]:
        """Names of the weights that a cluster shares."""
        return body_weights(module) if self.share == "body" else tuple(initial_weights(module))

    def check(self, module: nn.Module) -> None:
        super().check(module)
        if isinstance(rule := self.aggregation(), Comparison):
            raise IsthmusError(
                f"method '{self.name}': aggregate = '{rule.name}' compares parties, for which clusters get too small:"
                " set aggregate = 'mean' or 'clipped-mean'"
            )

    def calls(self, module: nn.Module) -> dict[str, int]:
        late = max(0, self.rounds - self.warm_up)
        return {**super().calls(module), "compare": late, "train_alone": max(0, late - 1)}

    def models(self, state: State) -> Models:
        alone = any(len(parties) == 1 for parties in state.members.values())
        groups = {name: Group(tuple(parties), state.own[name]) for name, parties in state.members.items()}
        return Models(groups=groups, personal=alone or self.share == "body")

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        weights, trained = model.weights(), set(model.trained())
        start = {name: weights[name] for name in self.shared(model.module)}
        state.start(members={"all": list(federation.parties)}, own={"all": start}, since={"all": 0})
        for state.round in state.rounds(self.rounds):
            members, own, since = {}, {}, {}
            for name, parties in state.members.items():
                before, halves = state.own[name], [parties]
                mean, complete = self.train(federation, parties, before, lenient=len(state.members) > 1)
                moved = norm_of(mean[each] - before[each] for each in mean if each in trained)
                if complete and moved < self.eps1 and self.may_split(state, name):
                    halves = self.split(federation, parties, self.form(mean, trained))
                begun = state.since[name] if len(halves) == 1 else state.round
                for at, half in enumerate(halves, start=1):
                    called = name if len(halves) == 1 else f"{name}-{at}"
                    members[called], own[called], since[called] = half, mean, begun
            state.members, state.own, state.since = members, own, since
            yield state

    def train(
        self, federation: Federation, parties: Sequence[str], weights: Weights, *, lenient: bool
    ) -> tuple[Weights, bool]:
        """The mean that a cluster has trained, and whether all its parties are in it."""
        request = {"weights": weights}
        try:
            if len(parties) == 1:
                federation.ask("train_alone", request, of=parties)
                return weights, False
            total: Total = federation.total("train", request, of=parties)
        except TooFewAnswers as error:
            if not lenient or self.quorum == 1:
                raise
            log.warning("the cluster of %s keeps its model: %s", ", ".join(parties), error)
            return weights, False
        return total.mean("weights", default=weights), not total.missing

    def may_split(self, state: State, name: str) -> bool:
        """Whether the server knows enough of a cluster to split it."""
        return bool(len(state.members[name]) > 2 and state.round > self.warm_up)

    def split(self, federation: Federation, parties: list[str], form: Payload) -> list[list[str]]:
        """The two halves of a cluster; the cluster itself if its parties move too little or some did not answer.

        Arguments:
            form: shapes of what a party answers.
        """
        try:
            answers = federation.ask("compare", form, of=parties)
        except TooFewAnswers:
            return [parties]
        if answers.missing or not self.longest(answers) > self.eps2:
            return [parties]
        return [[parties[at] for at in half] for half in minimum_cut(self.similarity(answers))]

    def form(self, weights: Weights, trained: set[str]) -> dict[str, Tensor]:
        """Shapes of what a party answers to `compare`."""
        whole = sum(weight.numel() for name, weight in weights.items() if name in trained)
        return {"norm": torch.zeros((), dtype=torch.float64), "projection": torch.zeros(self.width or whole).double()}

    def longest(self, answers: Answers) -> float:
        """The length of the longest update."""
        return max(float(answer["norm"]) for answer in answers.values())

    def similarity(self, answers: Answers) -> Tensor:
        """1 + cos of the updates, `[parties, parties]`."""
        projections = torch.stack([answer["projection"] for answer in answers.values()])
        unit = F.normalize(projections / projections.abs().amax(1, keepdim=True).clamp(min=1e-300), dim=1)
        return 1 + unit @ unit.T

    class AtParty(Learning):
        method: GCFL

        @action("total")
        def train(self, request: Payload) -> Answer:
            sent = request["weights"]
            self.load_model(sent)
            self.fit()
            weights = self.model.weights()
            if own := [name for name in weights if name not in sent]:
                self.keep_model(own)
            trained = (name for name, _ in self.model.module.named_parameters() if name in sent)
            self.remember({name: (dense(weights[name]) - sent[name]).flatten(1).double() for name in trained})
            return Answer({"weights": {name: weights[name] for name in sent}}, weight=self.averaging_weights())

        @action("ask")
        def train_alone(self, request: Payload) -> Answer:
            """As `train`, for the only party of a cluster, which keeps its model."""
            self.load_model(request["weights"])
            self.fit()
            self.keep_model()
            return Answer({})

        def remember(self, update: Mapping[str, Tensor]) -> None:
            """Keep what `compare` answers of this update, by weight `[parties, numbers]`."""
            self.kept["norm"] = lengths_of(update)
            self.kept["projection"] = projections(update, self.method.width)

        @action("ask", bounds={"norm": None})
        def compare(self, request: Payload) -> Answer:
            return Answer({name: self.kept[name] for name in ("norm", "projection")})


def lengths_of(update: Mapping[str, Tensor]) -> Tensor:
    """The length of each party's update, which is by weight `[parties, numbers]`."""
    return torch.stack([each.square().sum(1) for each in update.values()]).sum(0).sqrt()


def norm_of(tensors: Iterable[Tensor]) -> float:
    """The length of all numbers of these tensors together."""
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors)) ** 0.5


def projections(update: Mapping[str, Tensor], width: int) -> Tensor:
    """Random projections of each party's update, `[parties, width]`; the update itself for a width of 0.

    Each number is added to one of `width` sums, or subtracted; which one, and the sign, are the same at all parties
    (a count sketch). Products of two projections are, on average, those of the updates.

    Arguments:
        update: by weight, `[parties, numbers]`.
    """
    if not width:
        return torch.cat(list(update.values()), dim=1)
    first = next(iter(update.values()))
    found = first.new_zeros(len(first), width)
    for name, change in update.items():
        bits = draws_of("projection", name).bits((change.size(1),), device=change.device).squeeze(1).long()
        sign = (bits & 1) * 2 - 1
        found.index_add_(1, (bits >> 1 & 0x7FFFFFFF) % width, change * sign)
    return found


def minimum_cut(similarity: Tensor) -> list[list[int]]:
    """The two sides of the minimum cut of a complete graph, each ascending; position 0 is in the first.

    >>> minimum_cut(torch.tensor([[2.0, 0.1, 1.0], [0.1, 2.0, 0.2], [1.0, 0.2, 2.0]]))
    [[0, 2], [1]]
    """
    import networkx  # slow to import, and only needed here

    weights: Any = similarity.nan_to_num().clamp(min=0)
    graph = networkx.Graph()
    graph.add_weighted_edges_from((i, j, float(weights[i, j])) for j in range(len(weights)) for i in range(j))
    _, sides = networkx.stoer_wagner(graph)
    return sorted(sorted(side) for side in sides)
