"""The membership audit: how well released models reveal which items they were trained on."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import precision_recall_curve, roc_auc_score, roc_curve
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

from isthmus.audit.base import Audit, AuditTable
from isthmus.data import cache
from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.methods.base import Method
from isthmus.methods.shared import alone
from isthmus.methods.training import Training
from isthmus.nn.draws import Draws, draws_of, seed_of
from isthmus.nn.weights import draw_weights
from isthmus.study.loop import Run
from isthmus.study.setup import shared_nodes
from isthmus.tasks.base import Task
from isthmus.tasks.classification import Classification

FEW, FEWER = 0.01, 0.001
"""False positive rates at which the likelihood attack's true positive rate is reported."""


@dataclass(frozen=True)
class Risk:
    """How well members are told from others by one way to query a released model.

    Attributes:
        auc, f1: of the attack that learns from a shadow model how posteriors of members look; `f1` is at its best
            threshold. Chance is an `auc` of 0.5, and the `f1` of calling all items members.
        likelihood: AUC of the attack that trains models with and without each item. Its score is the best of the
            likelihood ratio, the log-odds, and the log-odds minus those of models without the item.
        tpr, tpr_low: the share of members that it finds at a false positive rate of 1 percent, and of 0.1 percent; as
            much is chance.
    """

    auc: float
    f1: float
    likelihood: float
    tpr: float
    tpr_low: float


@dataclass(frozen=True)
class RoundRisk:
    """One evaluated round: the task's metric, and the risk by how the model is queried.

    Attributes:
        asked: by "features", as parties hold them, and by "transformed" ones, as training reads them, if they differ.
    """

    round: int
    value: float
    asked: Mapping[str, Risk]

    def worst(self, figure: str) -> float:
        """The figure of the query that is worse for privacy."""
        return max(float(getattr(risk, figure)) for risk in self.asked.values())


@dataclass(frozen=True)
class MembershipLeak:
    """What a run reveals about its training items.

    Attributes:
        protection: the method, or the defence that is off.
        members, others: numbers of items of either kind.
        metric: the test metric that `value` of a round is.
        chosen: the round that is the run's result.
        curves: ROC curves of that round by attack, each as false and true positive rates, for the worse of the queries.
    """

    protection: str
    members: int
    others: int
    metric: str
    chosen: int
    rounds: tuple[RoundRisk, ...]
    curves: Mapping[str, Sequence[tuple[float, float]]]

    @property
    def last(self) -> RoundRisk:
        """The round that is the run's result."""
        return next(each for each in self.rounds if each.round == self.chosen)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Membership(Audit):
    """An attacker queries a released model and guesses which items were used to train it.

    Members are training items; the others are test items. The model of every evaluated round is attacked in two ways.
    In the first, the attacker trains a shadow model on items that are neither, and a network learns from its posteriors
    how members look (Olatunji et al. 2021). In the second, the attacker has the items, trains models with and without
    each of them, and compares the likelihoods (Carlini et al. 2022). The model is queried with the features that
    parties hold and, if parties train on transformed ones, with those; the worse for privacy counts.
    """

    name: ClassVar[str] = "membership"

    others: int = Field(1000, ge=1)
    """Test items to tell members from, at most."""
    shadows: int = Field(16, ge=2)
    """Models that the likelihood attack trains, each with a part of the items."""
    shadow: Training = Training(epochs=200, optimizer="adam", lr=0.01, weight_decay=5e-4)
    """How the attacker trains its own models."""

    def protected(self, method: Method) -> dict[str, Method]:
        """Return the method as it is, and without each of its defences, by title."""
        active = [name for name in method.membership_defences if getattr(method, name)]
        return {method.name: method} | {f"without {name}": method.model_copy(update={name: False}) for name in active}

    def run(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: Method, *, seed: int = 0
    ) -> list[MembershipLeak]:
        return self.compare(self.protected(method), parties, task, module, seed=seed)

    def compare(
        self, methods: Mapping[str, Method], parties: Sequence[Party], task: Task, module: nn.Module, *, seed: int = 0
    ) -> list[MembershipLeak]:
        """Attack several methods, given by title, with one attacker."""
        if not isinstance(task, Classification):
            raise IsthmusError(f"audit 'membership' needs a task with classes, '{task.name}' has none")
        if shared_nodes(parties):
            raise IsthmusError("audit 'membership' needs parties that share no nodes: choose another partition")
        attacker = _Attacker(self, parties, task, module, seed)
        return [self._attack(title, method, attacker) for title, method in methods.items()]

    def _attack(self, title: str, method: Method, attacker: _Attacker) -> MembershipLeak:
        task, rounds, curves = attacker.task, list[RoundRisk](), dict[int, Curves]()

        def attack(number: int, metrics: Mapping[str, float]) -> None:
            if "weights" not in run.state:
                raise IsthmusError(f"audit 'membership': method '{method.name}' releases no model: attack another")
            asked = attacker.asked(run, run.state.weights)
            found = {query: attacker.risk(posterior) for query, posterior in asked.items()}
            risks = {query: risk for query, (risk, _) in found.items()}
            rounds.append(RoundRisk(number, metrics[f"test_{task.judged_by}"], risks))
            worse = {figure: max(risks, key=lambda query: getattr(risks[query], figure)) for figure in ATTACKS}
            curves[number] = {ATTACKS[figure]: found[query][1][ATTACKS[figure]] for figure, query in worse.items()}

        run = Run(method, attacker.parties, task, attacker.module, seed=attacker.seed, on_round=attack)
        found = run.go()
        members, others = attacker.member.sum(), (~attacker.member).sum()
        chosen = found.chosen_round
        return MembershipLeak(title, int(members), int(others), task.judged_by, chosen, tuple(rounds), curves[chosen])

    def table(self, found: Sequence[MembershipLeak], parties: int) -> AuditTable:
        last = [each.last for each in found]
        rows = [(f"test {found[0].metric}", [f"{each.value:.3f}" for each in last])]
        rows += [(title, [f"{each.worst(figure):.3f}" for each in last]) for figure, title in FIGURES.items()]
        worst = []
        for figure in ("auc", "likelihood"):
            cells = [f"{max(each.worst(figure) for each in leak.rounds):.3f}" for leak in found]
            worst.append((f"{FIGURES[figure]}, worst round", cells))
        members, others = found[0].members, found[0].others
        std = ((members + others + 1) / (12 * members * others)) ** 0.5  # of an AUC by chance, a rank sum
        f1 = 2 * members / (2 * members + others)
        chance = f"an AUC of 0.5 ± {std:.3f}, a rate of {FEW} at 1 % and {FEWER} at 0.1 %, and an F1 of {f1:.3f}"
        notes = [f"{others:,} others; chance is {chance}"]
        if few := [f"{rate:.1%}".replace(".0", "").replace("%", " %") for rate in (FEW, FEWER) if others * rate < 1]:
            notes.append(f"with only {others} others, the rate at {' and at '.join(few)} says little")
        curves = {f"{each.protection}, {attack}": points for each in found for attack, points in each.curves.items()}
        return AuditTable(f"{members:,} members", [each.protection for each in found], [rows, worst], notes, curves)


FIGURES = {
    "auc": "shadow model: AUC", "f1": "shadow model: F1",
    "likelihood": "likelihood: AUC", "tpr": "likelihood: rate at 1 %", "tpr_low": "likelihood: rate at 0.1 %",
}  # fmt: skip

ATTACKS = {"auc": "shadow model", "likelihood": "likelihood"}
"""The attacks, by the figure that is their AUC."""

Curves = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class _Learned:
    """What an attacker has learned from its own models.

    Attributes:
        classifier: tells members by their sorted posteriors.
        inside, outside: mean log-odds of each guessed item's class by models trained with it, and without it.
        mean, std: of the log-odds of all items by all of these models.
    """

    classifier: MLPClassifier
    inside: NDArray[Any]
    outside: NDArray[Any]
    mean: float
    std: float


MOST_KEPT = 16
"""Attackers that are kept: their models take most of an audit's time, and serve all methods on the same data."""
_KEPT: dict[tuple[Any, ...], _Learned] = {}
"""By a hash of all that it depends on. It tells about members, so it stays in memory."""


class _Attacker:
    """One attacker's knowledge, and the models it has trained.

    Attributes:
        guessed: mask of the items to guess about, in the order of all parties put together.
        rows: where the items of one party after another stand in that order.
        member: which of the guessed items are members, `[guessed]`, in the order of the parties' items.
    """

    def __init__(self, audit: Membership, parties: Sequence[Party], task: Classification, module: nn.Module, seed: int):
        self.audit, self.parties, self.task, self.module, self.seed = audit, list(parties), task, module, seed
        self.whole, self.rows = _whole(parties)
        y, train, test = self.whole.graph.y, self.whole.train, self.whole.test
        draws = draws_of(seed, "membership")
        chosen = torch.zeros_like(test)
        chosen[_draw(test, audit.others, draws.of("others"))] = True
        self.guessed = train | chosen
        self.member = train[self.rows][self.guessed[self.rows]].numpy()
        if not self.member.any() or self.member.all():
            raise IsthmusError("audit 'membership' needs training items and test items")
        self.y = y[self.rows][self.guessed[self.rows]]
        key = self._key()
        if (learned := _KEPT.get(key)) is None:
            learned = _Learned(
                self._shadow(~self.guessed, y, draws.of("shadow")),
                *self._likelihoods(y, train, draws.of("likelihoods")),
            )
            if key:
                _KEPT[key] = learned
                for old in list(_KEPT)[:-MOST_KEPT]:
                    del _KEPT[old]
        self.learned = learned

    def _key(self) -> tuple[Any, ...]:
        """A hash of all that the attacker's models depend on, and its classes; empty if it cannot be written down."""
        known = BytesIO()
        try:
            _Digests(known).dump((self.audit, self.whole, self.rows, self.task, self.module, self.seed))
        except (pickle.PicklingError, AttributeError, TypeError):  # such as a layer that is defined in a function
            return ()
        # pickle names classes, and a notebook may define one anew under its name
        return (cache.digest(known.getvalue()), type(self.task), *(type(part) for part in self.module.modules()))

    def asked(self, run: Run, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Query a released model: log posteriors of the guessed items, `[guessed, classes]`, by query."""
        assert isinstance(run.transport, LocalTransport)

        def of_features(site: Site) -> Sequence[Tensor]:
            plain = Site(run.method, site.hosted.parties, self.task, run.module, seed=self.seed)
            return plain.predict_all(weights).split(site.hosted.items)

        def of_made(site: Site) -> Sequence[Tensor]:
            own = site.predict_all(weights).split(site.cohort.items)  # of made parties the own items come first
            return [each[:items] for each, items in zip(own, site.hosted.items, strict=True)]

        queries = {"features": of_features, "transformed": of_made}
        found = {name: torch.cat(run.transport.by_party(query)) for name, query in queries.items()}
        if torch.equal(*found.values()):
            del found["transformed"]
        if run.method.role == "pooled":  # the single party has the order of all parties put together
            found = {name: output[self.rows] for name, output in found.items()}
        here = self.guessed[self.rows]
        return {name: output[here].log_softmax(1) for name, output in found.items()}

    def risk(self, posterior: Tensor) -> tuple[Risk, Curves]:
        """Run both attacks on all guessed items; also return each one's ROC curve."""
        learned = self.learned
        score = learned.classifier.predict_proba(_sorted(posterior))[:, 1]
        precision, recall, _ = precision_recall_curve(self.member, score)
        odds = _odds(posterior, self.y).double().numpy()
        # training differently changes the scale of the odds, so rescale them to that of the attacker's models
        scaled = (odds - odds.mean()) / max(odds.std(), 1e-12) * learned.std + learned.mean
        scores = ((scaled - learned.outside) ** 2 - (scaled - learned.inside) ** 2, odds, odds - learned.outside)
        best = max(scores, key=lambda each: float(roc_auc_score(self.member, each)))
        false, true, _ = roc_curve(self.member, best)
        risk = Risk(
            auc=float(roc_auc_score(self.member, score)),
            f1=float((2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()),
            likelihood=float(roc_auc_score(self.member, best)),
            tpr=float(true[false <= FEW].max()),
            tpr_low=float(true[false <= FEWER].max()),
        )
        rates = ((false, true), roc_curve(self.member, score)[:2])
        points = [np.column_stack(each).round(4).tolist() for each in rates]
        return risk, {"likelihood": points[0], "shadow model": points[1]}

    def _shadow(self, free: Tensor, y: Tensor, draws: Draws) -> MLPClassifier:
        """Train a network to recognise the training items of a shadow model by their posteriors."""
        known = self.whole.train
        count = torch.bincount(y[known], minlength=self.task.classes)
        trained = torch.zeros_like(free)
        for kind, wanted in enumerate(count.tolist()):
            of_class = free & (y == kind)
            trained[_draw(of_class, min(wanted, int(of_class.sum()) // 2), draws.of("trained", kind))] = True
        tested = torch.zeros_like(free)
        tested[_draw(free & ~trained, int(trained.sum()), draws.of("tested"))] = True
        if not bool(trained.any()) or not bool(tested.any()):
            raise IsthmusError("audit 'membership': no items are left for a shadow model: set audit.others to fewer")
        posterior = self._model(self._without(~free), trained, "shadow")
        posterior = torch.cat([posterior[trained], posterior[tested]])
        kinds = np.repeat([True, False], [int(trained.sum()), int(tested.sum())])
        classifier = MLPClassifier((64, 32), max_iter=500, random_state=self.seed)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # more passes hardly improve it
            return classifier.fit(_sorted(posterior), kinds)

    def _likelihoods(self, y: Tensor, train: Tensor, draws: Draws) -> tuple[NDArray[Any], NDArray[Any], float, float]:
        """Train models with and without items; return `inside`, `outside`, `mean` and `std` of `_Learned`."""
        count = torch.bincount(y[train], minlength=self.task.classes)
        all_odds, within, here = [], [], self.guessed[self.rows]
        for number in range(self.audit.shadows):
            trained = torch.zeros_like(train)
            for kind, wanted in enumerate(count.tolist()):
                trained[_draw(self.guessed & (y == kind), wanted, draws.of(number, kind))] = True
            posterior = self._model(self.whole, trained, f"likelihood {number}")
            all_odds.append(_odds(posterior[self.rows][here], self.y).double())
            within.append(trained[self.rows][here])
        odds, inside = torch.stack(all_odds), torch.stack(within)
        with_, without = _mean(odds, inside), _mean(odds, ~inside)
        gap = (with_ - without).nanmean().nan_to_num()
        # an item that is in all models, or in none, gets the mean gap
        with_, without = (
            torch.where(with_.isnan(), without + gap, with_),
            torch.where(without.isnan(), with_ - gap, without),
        )
        return with_.numpy(), without.numpy(), float(odds.mean()), float(odds.std())

    def _model(self, party: Party, trained: Tensor, purpose: str) -> Tensor:
        """Train a model on some items of a graph; return log posteriors of all of them."""
        nothing = torch.zeros_like(trained)
        party = replace(party, train=trained, val=nothing, test=nothing)
        seed = seed_of(self.seed, purpose)
        _, output = alone.trained(
            self.module, draw_weights(self.module, seed), party, self.task, self.audit.shadow, seed
        )
        return output.log_softmax(1)

    def _without(self, hidden: Tensor) -> Party:
        """Return what an attacker has: all parties without the edges of these items, if items are nodes."""
        if self.whole.level != "node":
            return self.whole
        graph = copy(self.whole.graph)
        visible = ~hidden[graph.edge_index].any(0)
        graph.edge_index = graph.edge_index[:, visible]
        graph.update({name: column[visible] for name, column in self.whole.per_edge().items()})
        return replace(self.whole, graph=graph)


class _Digests(pickle.Pickler):
    """Write a digest in place of each tensor, as torch writes equal tensors differently."""

    def persistent_id(self, given: Any) -> str | None:
        return cache.digest(given) if isinstance(given, Tensor) else None


def _whole(parties: Sequence[Party]) -> tuple[Party, Tensor]:
    """Put all parties together; return also where the items of one party after another stand."""
    whole = pool_parties(parties)
    if whole.ids is None or whole.level in ("graph", "edge"):
        return whole, torch.arange(whole.items)
    ids = torch.cat([party.ids for party in parties if party.ids is not None])
    return whole, torch.searchsorted(whole.ids, ids)


def _draw(mask: Tensor, count: int, draws: Draws) -> Tensor:
    """Draw positions of `count` items of a mask, or of all."""
    positions = mask.nonzero().squeeze(1)
    return positions[draws.order((positions.numel(),))[:count]]


def _sorted(posterior: Tensor) -> NDArray[Any]:
    """Sort posteriors from the largest down: how sure a model is counts, not of which class."""
    return posterior.exp().sort(dim=1, descending=True).values.double().numpy()


def _odds(posterior: Tensor, y: Tensor) -> Tensor:
    """Compute log p / (1 - p) of the items' own classes."""
    own = posterior.gather(1, y.unsqueeze(1))
    others = posterior.scatter(1, y.unsqueeze(1), -torch.inf)
    return own.squeeze(1) - others.logsumexp(1)


def _mean(odds: Tensor, inside: Tensor) -> Tensor:
    """Average over the models where the mask holds, `[items]`; NaN where it never does."""
    return torch.where(inside, odds, torch.nan).nanmean(0)
