"""The membership audit: how well what a method releases tells who was trained on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import precision_recall_curve, roc_auc_score, roc_curve
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

from isthmus.audit.base import Audit, Shown
from isthmus.data.party import Party, pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.methods.base import Method
from isthmus.methods.fedgc import FedGC
from isthmus.methods.shared import alone
from isthmus.methods.training import LocalTraining
from isthmus.nn.draws import generator, seed_of
from isthmus.nn.weights import redrawn
from isthmus.study.loop import Run
from isthmus.study.setup import shared_nodes
from isthmus.tasks.base import Task
from isthmus.tasks.classification import Classification

FEW = 0.01
"""The false positive rate at which the likelihood attack's true positive rate is told."""


@dataclass(frozen=True)
class Risk:
    """How well one way of asking a released model tells members from others; of all of them at once.

    Attributes:
        auc, f1: of the attack that learns from a shadow model what posteriors members have; `f1` at the threshold that
            is best for it. Chance is 0.5 of `auc`, and of `f1` what calling all items members gives.
        likelihood: AUC of the attacker who has trained models with and without each item: the best of the ratio of both
            cases, of the log-odds alone, and of these less what models without the item have.
        tpr: members that it finds at a false positive rate of 1 percent; 0.01 is chance.
    """

    auc: float
    f1: float
    likelihood: float
    tpr: float


@dataclass(frozen=True)
class Seen:
    """One evaluated round: the task's metric, and the risk by what the model was asked with.

    Attributes:
        asked: "features", as parties hold them, and "transformed", as their training reads them, where that differs.
    """

    round: int
    value: float
    asked: Mapping[str, Risk]

    def worst(self, figure: str) -> float:
        """The figure of the way of asking that is worse for privacy."""
        return max(float(getattr(risk, figure)) for risk in self.asked.values())


@dataclass(frozen=True)
class Members:
    """What a run gives away of who was trained on.

    Attributes:
        protection: the method, and which of its protections is off.
        members, others: how many items of either kind were guessed at.
        metric: what `value` of a round is, of test data.
        chosen: the round that is the run's result.
    """

    protection: str
    members: int
    others: int
    metric: str
    chosen: int
    rounds: tuple[Seen, ...]

    @property
    def last(self) -> Seen:
        """The round that is the run's result."""
        return next(each for each in self.rounds if each.round == self.chosen)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Membership(Audit):
    """An attacker asks a released model about items and guesses which of them it, or what it learned from, trained on.

    Members are the training items, others test items. Every released model is attacked, round by round, in two ways.
    A shadow model is trained on items that are neither, and a network learns from its posteriors how members look
    (Olatunji et al. 2021). And, for an attacker who has the items themselves, models are trained with and without each
    of them, and the odds of the two cases are told apart (Carlini et al. 2022). The model is asked about an item with
    the features that its party holds and, where parties train on others, with those; the worse for privacy counts.
    """

    name: ClassVar[str] = "membership"

    others: int = Field(1000, ge=1)
    """Test items that members are told from, at most."""
    shadows: int = Field(16, ge=2)
    """Models that are trained with and without items, for the likelihood attack."""
    shadow: LocalTraining = LocalTraining(epochs=200, optimizer="adam", lr=0.01, weight_decay=5e-4)
    """How the attacker trains models of its own."""

    def protected(self, method: Method) -> dict[str, Method]:
        """The method as it is; of FedGC besides without the bottleneck."""
        if isinstance(method, FedGC) and method.bottleneck:
            return {"fedgc": method, "without bottleneck": method.model_copy(update={"bottleneck": False})}
        return {method.name: method}

    def of(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: Method | None = None, *, seed: int = 0
    ) -> list[Members]:
        """What is given away, round by round, under each protection.

        Arguments:
            module: the model before training.
        """
        return self.against(self.protected(method or FedGC()), parties, task, module, seed=seed)

    def against(
        self, methods: Mapping[str, Method], parties: Sequence[Party], task: Task, module: nn.Module, *, seed: int = 0
    ) -> list[Members]:
        """The same attacker against one method after another, by what they are called."""
        if not isinstance(task, Classification):
            raise IsthmusError(f"audit 'membership' asks models for classes, task '{task.name}' has none")
        if shared_nodes(parties):
            raise IsthmusError("audit 'membership' is of items that one party holds each: give a cut without overlap")
        attacker = _Attacker(self, parties, task, module, seed)
        return [self._attacked(name, each, attacker) for name, each in methods.items()]

    def _attacked(self, name: str, method: Method, attacker: _Attacker) -> Members:
        task, rounds = attacker.task, list[Seen]()

        def attack(at: int, metrics: Mapping[str, float]) -> None:
            if "weights" not in run.state:
                raise IsthmusError(
                    f"audit 'membership': the parties of method '{method.name}' keep their models, none is released: "
                    "name another method"
                )
            asked = attacker.asked(run, run.state.weights)
            rounds.append(Seen(at, metrics[f"test_{task.select_by}"], {k: attacker.risk(v) for k, v in asked.items()}))

        run = Run(method, attacker.parties, task, attacker.module, seed=attacker.seed, on_round=attack)
        found = run.go()
        members, others = attacker.member.sum(), (~attacker.member).sum()
        return Members(name, int(members), int(others), task.select_by, found.chosen_round, tuple(rounds))

    def shown(self, found: Sequence[Members], parties: int) -> Shown:
        last = [each.last for each in found]
        rows = [(f"test {found[0].metric}", [f"{each.value:.3f}" for each in last])]
        for figure, title in FIGURES.items():
            rows.append((title, [f"{each.worst(figure):.3f}" for each in last]))
        most = [
            (
                f"{title}, at most in any round",
                [f"{max(seen.worst(figure) for seen in each.rounds):.3f}" for each in found],
            )
            for figure, title in FIGURES.items()
            if figure in ("auc", "likelihood")
        ]
        members, others = found[0].members, found[0].others
        luck = ((members + others + 1) / (12 * members * others)) ** 0.5  # of the rank sum that an AUC is
        chance = f"chance is an AUC of 0.5 ± {luck:.3f}, a rate of 0.01, and an F1 of"
        notes = [f"told from {others:,} others; {chance} {2 * members / (2 * members + others):.3f}"]
        if others < FEWEST:
            notes.append(f"a rate at 1 % of {others} others says little")
        return Shown(f"{members:,} members", [each.protection for each in found], [rows, most], notes)


FEWEST = 100
"""Others of whom one is no more than 1 %."""

FIGURES = {
    "auc": "shadow model: AUC",
    "f1": "shadow model: F1",
    "likelihood": "likelihood: AUC",
    "tpr": "likelihood: rate at 1 %",
}


class _Attacker:
    """What one attacker knows, and has trained beforehand.

    Attributes:
        parties: as the method has them.
        member: of the items guessed at, `[guessed]`, in the order of the parties' items.
    """

    def __init__(self, audit: Membership, parties: Sequence[Party], task: Classification, module: nn.Module, seed: int):
        self.audit, self.parties, self.task, self.module, self.seed = audit, list(parties), task, module, seed
        self.whole, places = _whole(parties)
        y, train, test = self.whole.graph.y, self.whole.train, self.whole.test
        source = generator(seed, "membership")
        chosen = torch.zeros_like(test)
        chosen[_drawn(test, audit.others, source)] = True
        self.guessed = train | chosen  # by place in the whole
        self.places = places  # of the parties' items, one party after another
        self.member = train[places][self.guessed[places]].numpy()
        if not self.member.any() or self.member.all():
            raise IsthmusError("audit 'membership' needs training items and test items")
        self.y = y[places][self.guessed[places]]
        self.classifier = self._shadow(~self.guessed, y, source)
        self.inside, self.outside, self.middle, self.spread = self._likelihoods(y, train, source)

    def asked(self, run: Run, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log posteriors of the guessed items by a released model, by what it is asked with: `[guessed, classes]`."""
        assert isinstance(run.transport, LocalTransport)
        (site,) = run.transport.sites
        hosted = site.hosted
        plain = Site(run.method, hosted.parties, self.task, run.module, seed=self.seed)
        found = {"features": plain.outputs(weights)}
        own = site.outputs(weights).split(site.cohort.items)  # of made parties the own items come first
        found["transformed"] = torch.cat([each[:items] for each, items in zip(own, hosted.items, strict=True)])
        if torch.equal(*found.values()):
            del found["transformed"]
        if run.method.pooled:  # the one party has the items in the whole's order
            found = {name: output[self.places] for name, output in found.items()}
        here = self.guessed[self.places]
        return {name: output[here].log_softmax(1) for name, output in found.items()}

    def risk(self, posterior: Tensor) -> Risk:
        """Both attacks, on all guessed items at once."""
        score = self.classifier.predict_proba(_sorted(posterior))[:, 1]
        precision, recall, _ = precision_recall_curve(self.member, score)
        told = _odds(posterior, self.y).double().numpy()
        # another training makes another scale of odds: this model's are brought to that of the attacker's own
        near = (told - told.mean()) / max(told.std(), 1e-12) * self.spread + self.middle
        scores = ((near - self.outside) ** 2 - (near - self.inside) ** 2, told, told - self.outside)
        best = max(scores, key=lambda each: float(roc_auc_score(self.member, each)))
        false, true, _ = roc_curve(self.member, best)
        return Risk(
            auc=float(roc_auc_score(self.member, score)),
            f1=float((2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()),
            likelihood=float(roc_auc_score(self.member, best)),
            tpr=float(true[false <= FEW].max()),
        )

    def _shadow(self, free: Tensor, y: Tensor, source: torch.Generator) -> MLPClassifier:
        """A network that tells a shadow model's training items by their posteriors: three layers."""
        known = self.whole.train
        count = torch.bincount(y[known], minlength=self.task.classes)
        trained = torch.zeros_like(free)
        for kind, due in enumerate(count.tolist()):
            of_class = free & (y == kind)
            trained[_drawn(of_class, min(due, int(of_class.sum()) // 2), source)] = True
        tested = torch.zeros_like(free)
        tested[_drawn(free & ~trained, int(trained.sum()), source)] = True
        if not bool(trained.any()) or not bool(tested.any()):
            raise IsthmusError("audit 'membership': no items are left for a shadow model: guess at fewer `others`")
        posterior = self._model(self._without(~free), trained, "shadow")
        posterior = torch.cat([posterior[trained], posterior[tested]])
        kinds = np.repeat([True, False], [int(trained.sum()), int(tested.sum())])
        classifier = MLPClassifier((64, 32), max_iter=500, random_state=self.seed)
        with warnings.catch_warnings():  # what has not converged after so many passes is as good as it gets
            warnings.simplefilter("ignore", ConvergenceWarning)
            return classifier.fit(_sorted(posterior), kinds)

    def _likelihoods(
        self, y: Tensor, train: Tensor, source: torch.Generator
    ) -> tuple[NDArray[Any], NDArray[Any], float, float]:
        """Mean log-odds of each guessed item's class by models that were trained with it, and by ones that were not;
        mean and deviation of all log-odds."""
        count = torch.bincount(y[train], minlength=self.task.classes)
        told, within, here = [], [], self.guessed[self.places]
        for at in range(self.audit.shadows):
            trained = torch.zeros_like(train)
            for kind, due in enumerate(count.tolist()):
                trained[_drawn(self.guessed & (y == kind), due, source)] = True
            posterior = self._model(self.whole, trained, f"likelihood {at}")
            told.append(_odds(posterior[self.places][here], self.y).double())
            within.append(trained[self.places][here])
        odds, inside = torch.stack(told), torch.stack(within)
        with_, without = _mean(odds, inside), _mean(odds, ~inside)
        gap = (with_ - without).nanmean().nan_to_num()
        # an item that was always in, or always out, has the mean gap
        with_, without = (
            torch.where(with_.isnan(), without + gap, with_),
            torch.where(without.isnan(), with_ - gap, without),
        )
        return with_.numpy(), without.numpy(), float(odds.mean()), float(odds.std())

    def _model(self, party: Party, trained: Tensor, purpose: str) -> Tensor:
        """Log posteriors of all items of a graph by a model trained on some of them."""
        nothing = torch.zeros_like(trained)
        party = replace(party, train=trained, val=nothing, test=nothing)
        seed = seed_of(self.seed, purpose)
        return alone.trained(self.module, redrawn(self.module, seed), party, self.task, self.audit.shadow, seed)[
            1
        ].log_softmax(1)

    def _without(self, hidden: Tensor) -> Party:
        """The whole without the edges of these items, where items are nodes: what an attacker has."""
        if self.whole.level != "node":
            return self.whole
        graph = copy(self.whole.graph)
        kept = ~hidden[graph.edge_index].any(0)
        graph.edge_index = graph.edge_index[:, kept]
        if graph.get("edge_weight") is not None:
            graph.edge_weight = graph.edge_weight[kept]
        return replace(self.whole, graph=graph)


def _whole(parties: Sequence[Party]) -> tuple[Party, Tensor]:
    """All parties put together, and where the items of one after another stand in it."""
    whole = pool_parties(parties)
    if whole.ids is None:
        return whole, torch.arange(whole.items)
    ids = torch.cat([party.ids for party in parties if party.ids is not None])
    return whole, torch.searchsorted(whole.ids, ids)


def _drawn(mask: Tensor, count: int, source: torch.Generator) -> Tensor:
    """Positions of so many items of a mask, or of all."""
    at = mask.nonzero().squeeze(1)
    return at[torch.randperm(at.numel(), generator=source)[:count]]


def _sorted(posterior: Tensor) -> NDArray[Any]:
    """Posteriors from the largest down: what a model is sure of counts, not of which class."""
    return posterior.exp().sort(dim=1, descending=True).values.double().numpy()


def _odds(posterior: Tensor, y: Tensor) -> Tensor:
    """log p / (1 - p) of the items' own classes."""
    own = posterior.gather(1, y.unsqueeze(1))
    others = posterior.scatter(1, y.unsqueeze(1), -torch.inf)
    return own.squeeze(1) - others.logsumexp(1)


def _mean(odds: Tensor, inside: Tensor) -> Tensor:
    """Over the models where the mask holds, `[items]`; NaN where it never does."""
    return torch.where(inside, odds, torch.nan).nanmean(0)
