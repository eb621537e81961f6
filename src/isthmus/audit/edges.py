"""The edge audit: how well released weights, and a model trained on them, tell who is joined to whom."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

from isthmus.audit.base import Audit, Shown
from isthmus.data import rows
from isthmus.data.party import Block, Cohort, Party
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fgcl import FGCL, budgets, safe
from isthmus.privacy.accounting import Spent
from isthmus.privacy.edges import Pairs
from isthmus.study.loop import Run
from isthmus.tasks.base import Step, Task

NODES = 50_000
"""Of as many copies of a graph the model is asked at once."""


@dataclass(frozen=True)
class Guess:
    """How well pairs that are joined are told from pairs that are not, by a score.

    Attributes:
        auc: area under the ROC curve: how often a joined pair scores higher than one that is not; 0.5 is chance.
        advantage: the largest difference of true and false positive rates; 0 is chance.
        joined, apart: how many pairs of either kind were guessed at.
    """

    auc: float
    advantage: float
    joined: int
    apart: int

    @classmethod
    def of(cls, score: NDArray[Any], joined: NDArray[Any]) -> Guess | None:
        """None where all pairs are joined, or none is.

        >>> Guess.of(np.array([0.2, 0.7, 0.1]), np.array([True, True, False])).auc
        1.0
        """
        count = int(joined.sum())
        if not 0 < count < joined.size:
            return None
        false, true, _ = roc_curve(joined, score)
        auc = float(roc_auc_score(joined, score))
        return cls(auc, float(np.max(true - false)), count, joined.size - count)


@dataclass(frozen=True)
class Leak:
    """What an attacker learns of edges from a run.

    Attributes:
        protection: what hides them.
        epsilon, delta: what was spent on every edge; infinite without noise.
        most: by (epsilon, delta) the largest advantage that anybody can have who sees what was released of one pair.
        released: guesses from the released weights of the graphs that were trained on; none without a release.
        trained: guesses from the model, of the same graphs.
        others: guesses from the model, of graphs that nobody trained on: what it tells of edges in general.
        metric, value: of the model on test data.
    """

    protection: str
    epsilon: float
    delta: float
    most: float
    released: Guess | None
    trained: Guess
    others: Guess | None
    metric: str = ""
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, which knows no infinity: no epsilon there."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


class EdgeInference(Audit):
    """An attacker guesses which nodes of a graph are joined, from FGCL's released weights or from the trained model.

    The weights: the log-odds of the two cases, added up over a graph's views. The model: its attacker has a graph's
    features and label, and all its edges but one, the case that differential privacy is about; a pair counts as joined
    where the model's loss is smaller with the edge than without. Edges of graphs that were trained on are guessed at,
    and for comparison those of graphs that were not.
    """

    name: ClassVar[str] = "edges"
    attacked: ClassVar[str] = "fgcl"

    epsilons: Annotated[list[float], AfterValidator(budgets)] = Field([0.1, 1.0, 10.0, 100.0])
    """Privacy budgets of a view to try; without any, the method's own."""
    graphs: int = Field(100, ge=1)
    """Graphs of either kind that the model is asked about."""

    def protected(self, method: FGCL) -> dict[str, FedAvg]:
        """Training without noise, and the method with each of the budgets."""
        shared = {name: getattr(method, name) for name in FedAvg.model_fields}
        views = [[each] * len(method.epsilons) for each in self.epsilons] or [method.epsilons]
        noisy = [method.model_copy(update={"epsilons": each}) for each in views]
        return {"none": FedAvg(**shared), **{f"epsilon {told(each.epsilons)}": each for each in noisy}}

    def of(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: FGCL | None = None, *, seed: int = 0
    ) -> list[Leak]:
        """What is learned without noise and under each budget.

        Arguments:
            module: the model before training.
            method: FGCL with options of its own; its budgets are replaced.
        """
        if parties[0].level not in FGCL.levels:
            raise IsthmusError(f"audit 'edges' is of parties of many graphs, these hold one of {parties[0].level}s")
        method = method or FGCL()
        parties = [_unweighted(party) for party in parties]  # edges are there or not, to FGCL
        if method.features == "safe":
            parties = [safe(party) for party in parties]  # without noise too, so that only the noise differs
        runs = self.protected(method).items()
        return [self._leak(name, each, parties, task, module, seed) for name, each in runs]

    def shown(self, found: Sequence[Leak], parties: int) -> Shown:
        sections = [[("epsilon spent on an edge", [f"{each.epsilon:g}" for each in found])]]
        for name, title in {
            "released": "released weights",
            "trained": "model, its graphs",
            "others": "model, other graphs",
        }.items():
            guesses = [getattr(each, name) for each in found]
            section = [
                (f"{title}: {told}", ["-" if guess is None else f"{getattr(guess, figure):.3f}" for guess in guesses])
                for figure, told in (("auc", "AUC"), ("advantage", "advantage"))
            ]
            if name == "released":
                most = ["-" if each.released is None else f"{each.most:.3f}" for each in found]
                section.append(("the same, at most", most))
            sections.append(section)
        if found[0].value is not None:
            sections.append([(f"test {found[0].metric}", [f"{each.value:.3f}" for each in found])])
        note = "AUC 0.5 and advantage 0 are chance; what the model tells of other graphs it tells of all"
        return Shown(f"{found[0].trained.joined:,} edges", [each.protection for each in found], sections, [note])

    def _leak(
        self, protection: str, method: FedAvg, parties: Sequence[Party], task: Task, module: nn.Module, seed: int
    ) -> Leak:
        run = Run(method, parties, task, module, seed=seed)
        result = run.go()
        trained = deepcopy(module)
        trained.load_state_dict(result.weights)
        both = guessed_from_model(trained, task, parties, self.graphs, np.random.default_rng(seed))
        value = result.metrics.get(f"test_{task.select_by}")
        if not isinstance(method, FGCL):
            return Leak(protection, math.inf, 0.0, 1.0, None, *both, task.select_by, value)
        assert isinstance(run.transport, LocalTransport)
        released = guessed_from_release(method, run.transport, run.state.draws)
        account = method.account(run.state)
        spent = Spent(math.inf) if account is None else account.spent()  # where nothing is claimed
        most = math.tanh(spent.epsilon / 2) + 2 * spent.delta / (1 + math.exp(min(spent.epsilon, 700.0)))
        return Leak(protection, spent.epsilon, spent.delta, min(most, 1.0), released, *both, task.select_by, value)


def _unweighted(party: Party) -> Party:
    graph = copy(party.graph)
    graph.edge_weight = None
    return replace(party, graph=graph)


def told(epsilons: Sequence[float]) -> str:
    """
    >>> told([1.0, 0.5])
    '1 + 0.5'
    """
    return " + ".join(f"{each:.10g}" for each in epsilons)


def guessed_from_release(method: FGCL, transport: LocalTransport, released: Collection[str]) -> Guess:
    """From what these parties last released of the graphs that were trained on: every pair of their nodes."""
    scores, joined = [], []
    for site in transport.sites:
        assert isinstance(site, FGCL.AtParty)
        site.kept.now = tuple(range(len(site.hosted)))
        for party, pairs, views in zip(site.hosted.parties, site.pairs, site.kept.each("prepared"), strict=True):
            if party.name in released:
                trains = party.train[rows.party_of_rows(pairs.counts, party.train.device)]
                weights = [views[str(view)].cpu().double() for view in range(len(views))]
                evidence = [each.evidence(weight) for each, weight in zip(method.mechanisms(), weights, strict=True)]
                scores.append(torch.stack(evidence).sum(0)[trains])
                joined.append(pairs.bits(party.graph.edge_index)[trains] > 0)
    return _needed(Guess.of(torch.cat(scores).numpy(), torch.cat(joined).numpy()))


def guessed_from_model(
    model: nn.Module, task: Task, parties: Sequence[Party], graphs: int, source: np.random.Generator
) -> tuple[Guess, Guess | None]:
    """From a model, of graphs that it was trained on, and of others where there are any; so many of each at most."""
    cohort = Cohort(tuple(parties))
    masks = cohort.masks["train"], cohort.masks["val"] | cohort.masks["test"]
    trains, others = (source.permutation(mask.nonzero().squeeze(1).numpy())[:graphs].tolist() for mask in masks)
    model.eval()
    of_trained = _needed(_guessed(model, task, cohort, trains, source))
    return of_trained, _guessed(model, task, cohort, others, source)


def _guessed(
    model: nn.Module, task: Task, cohort: Cohort, chosen: Sequence[int], source: np.random.Generator
) -> Guess | None:
    """Of each graph all edges, and as many other pairs where there are so many."""
    scores, joined = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for at in chosen:
        block = cohort.graphs_of(torch.tensor([at]))
        pairs = Pairs.of([block.nodes])
        bits = pairs.bits(block.edge_index) > 0
        there, apart = (mask.nonzero().squeeze(1) for mask in (bits, ~bits))
        asked = torch.cat([there, apart[torch.from_numpy(source.permutation(apart.numel()))][: there.numel()]])
        losses = _losses(model, task, block, pairs, there, asked, cohort.y[at])
        gain = losses[1:] - losses[0]
        scores.append(torch.where(bits[asked], gain, -gain))
        joined.append(bits[asked])
    return Guess.of(torch.cat(scores).numpy(), torch.cat(joined).numpy())


def _needed(guess: Guess | None) -> Guess:
    if guess is None:
        raise IsthmusError("audit 'edges': nothing is to be guessed: give graphs with some pairs joined and others not")
    return guess


@torch.no_grad()
def _losses(
    model: nn.Module, task: Task, block: Block, pairs: Pairs, there: Tensor, asked: Tensor, y: Tensor
) -> Tensor:
    """The loss on a graph, then on it with each of the pairs asked about turned round, `[1 + asked]`.

    Arguments:
        there: pairs that are joined, by position.
        asked: of these all and then others.
    """
    x, losses = rows.to_dense(block.x), []
    for part in torch.arange(-1, asked.numel()).split(max(1, NODES // block.nodes)):  # -1: as it is
        copies = part.numel()
        without = part.unsqueeze(1) == torch.arange(there.numel())
        copy, edge = (~without).nonzero(as_tuple=True)
        adding = (part >= there.numel()).nonzero().squeeze(1)
        copy, pair = torch.cat([copy, adding]), torch.cat([there[edge], asked[part[adding]]])
        one_way = torch.stack([pairs.source[pair], pairs.target[pair]]) + copy * block.nodes
        batch = torch.arange(copies).repeat_interleave(block.nodes)
        output = model(x.repeat(copies, 1), torch.cat([one_way, one_way.flip(0)], dim=1), None, batch, copies)
        step = Step(output, y.unsqueeze(0).expand(copies, *y.shape), (1,) * copies, torch.arange(copies))
        losses.append(task.loss(step).double())
    return torch.cat(losses)
