"""The edge audit: how well released edge weights, and a model trained on them, reveal edges."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

from isthmus.audit.base import Audit, AuditTable
from isthmus.data import rows
from isthmus.data.cohort import Block, Cohort
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fgcl import FGCL, budgets, safe
from isthmus.privacy.accounting import PrivacyCost
from isthmus.privacy.edges import NodePairs
from isthmus.study.loop import Run
from isthmus.tasks.base import Step, Task

NODES = 50_000
"""Nodes in the copies of a graph that the model reads at once."""


@dataclass(frozen=True)
class Guess:
    """How well a score separates joined pairs of nodes from others.

    Attributes:
        auc: area under the ROC curve; 0.5 is chance.
        advantage: the largest difference of true and false positive rates; 0 is chance.
        joined, apart: numbers of joined and other pairs.
    """

    auc: float
    advantage: float
    joined: int
    apart: int

    @classmethod
    def of(cls, score: NDArray[Any], joined: NDArray[Any]) -> Guess | None:
        """Score guesses; None if all pairs are joined, or none is.

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
    """What an attacker learns about edges from a run.

    Attributes:
        protection: what hides them.
        epsilon, delta: the budget spent on every edge; infinite without noise.
        bound: the largest advantage that (epsilon, delta) allows anyone who sees the release of one pair.
        released: guesses from the released weights of training graphs; None without a release.
        trained: guesses from the model about the same graphs.
        others: guesses from the model about graphs nobody trained on, which show what it says of edges in general.
        metric, value: of the model on test data.
    """

    protection: str
    epsilon: float
    delta: float
    bound: float
    released: Guess | None
    trained: Guess
    others: Guess | None
    metric: str = ""
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; an infinite epsilon is None, because JSON has no infinity."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


class EdgeInference(Audit):
    """An attacker guesses which nodes of a graph are joined, from FGCL's released weights or from the trained model.

    With the weights, the attacker adds up the log-odds of the two cases over a graph's views. With the model, the
    attacker knows a graph's features, label and all edges but one, as in the definition of differential privacy, and
    guesses an edge where it lowers the model's loss. Guesses are about training graphs and, for comparison, others.
    """

    name: ClassVar[str] = "edges"
    attacked: ClassVar[str] = FGCL.name

    epsilons: Annotated[list[float], AfterValidator(budgets)] = Field([0.1, 1.0, 10.0, 100.0])
    """Privacy budgets per view to try; if empty, the method's own."""
    graphs: int = Field(100, ge=1)
    """Graphs to guess about with the model: as many training graphs, and as many others."""

    def protected(self, method: FGCL) -> dict[str, FedAvg]:
        """Return training without noise, and the method with each budget."""
        shared = {name: getattr(method, name) for name in FedAvg.model_fields}
        views = [[each] * len(method.epsilons) for each in self.epsilons] or [method.epsilons]
        noisy = [method.model_copy(update={"epsilons": each}) for each in views]
        return {"none": FedAvg(**shared), **{f"epsilon {epsilons_text(each.epsilons)}": each for each in noisy}}

    def run(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: FGCL | None = None, *, seed: int = 0
    ) -> list[Leak]:
        """Attack training without noise, and the method under each budget."""
        if parties[0].level not in FGCL.levels:
            raise IsthmusError(f"audit 'edges' is for parties of many graphs, these hold one of {parties[0].level}s")
        method = method or FGCL()
        parties = [_unweighted(party) for party in parties]  # FGCL ignores weights
        if method.hides_structural:
            parties = [safe(party) for party in parties]  # also without noise, so that only the noise differs
        methods = self.protected(method).items()
        return [self._leak(name, each, parties, task, module, seed) for name, each in methods]

    def table(self, found: Sequence[Leak], parties: int) -> AuditTable:
        sections = [[("epsilon spent on an edge", [f"{each.epsilon:g}" for each in found])]]
        titles = {"released": "released weights", "trained": "model, its graphs", "others": "model, other graphs"}
        for name, title in titles.items():
            guesses = [getattr(each, name) for each in found]
            section = [
                (f"{title}: {label}", ["-" if guess is None else f"{getattr(guess, figure):.3f}" for guess in guesses])
                for figure, label in (("auc", "AUC"), ("advantage", "advantage"))
            ]
            if name == "released":
                bounds = ["-" if each.released is None else f"{each.bound:.3f}" for each in found]
                section.append(("released weights: bound", bounds))
            sections.append(section)
        if found[0].value is not None:
            sections.append([(f"test {found[0].metric}", [f"{each.value:.3f}" for each in found])])
        note = "chance is AUC 0.5 and advantage 0; a leak is what the model tells of its graphs beyond other graphs"
        return AuditTable(f"{found[0].trained.joined:,} edges", [each.protection for each in found], sections, [note])

    def _leak(
        self, protection: str, method: FedAvg, parties: Sequence[Party], task: Task, module: nn.Module, seed: int
    ) -> Leak:
        run = Run(method, parties, task, module, seed=seed)
        result = run.go()
        trained = deepcopy(module)
        trained.load_state_dict(result.weights)
        both = guess_from_model(trained, task, parties, self.graphs, np.random.default_rng(seed))
        value = result.metrics.get(f"test_{task.judged_by}")
        if not isinstance(method, FGCL):
            return Leak(protection, math.inf, 0.0, 1.0, None, *both, task.judged_by, value)
        assert isinstance(run.transport, LocalTransport)
        released = guess_from_release(method, run.transport, run.state.draws)
        account = method.account(run.state)
        spent = PrivacyCost(math.inf) if account is None else account.cost()  # no guarantee
        bound = math.tanh(spent.epsilon / 2) + 2 * spent.delta / (1 + math.exp(min(spent.epsilon, 700.0)))
        return Leak(protection, spent.epsilon, spent.delta, min(bound, 1.0), released, *both, task.judged_by, value)


def _unweighted(party: Party) -> Party:
    graph = copy(party.graph)
    graph.edge_weight = None
    return replace(party, graph=graph)


def epsilons_text(epsilons: Sequence[float]) -> str:
    """Write the budgets of all views.

    >>> epsilons_text([1.0, 0.5])
    '1 + 0.5'
    """
    return " + ".join(f"{each:.10g}" for each in epsilons)


def guess_from_release(method: FGCL, transport: LocalTransport, released: Collection[str]) -> Guess:
    """Guess every pair of nodes of the training graphs from what these parties last released."""
    scores, joined = [], []
    for site in transport.sites:
        for party, pairs, evidence in released_evidence(method, site):
            if party.name in released:
                trains = party.train[rows.party_of_rows(pairs.counts, party.train.device)]
                scores.append(evidence[trains])
                joined.append(pairs.bits(party.graph.edge_index)[trains] > 0)
    return _required(Guess.of(torch.cat(scores).numpy(), torch.cat(joined).numpy()))


def released_evidence(method: FGCL, site: Site) -> Iterator[tuple[Party, NodePairs, Tensor]]:
    """By party all pairs of nodes of its graphs, and their log-odds to be joined by what it last released."""
    assert isinstance(site, FGCL.AtParty)
    with site.asked():
        released_views = site.kept.each("prepared")
    for party, pairs, views in zip(site.hosted.parties, site.pairs, released_views, strict=True):
        weights = [views[str(view)].cpu().double() for view in range(len(views))]
        evidence = [each.log_odds(weight) for each, weight in zip(method.mechanisms(), weights, strict=True)]
        yield party, pairs, torch.stack(evidence).sum(0)


def guess_from_model(
    model: nn.Module, task: Task, parties: Sequence[Party], graphs: int, source: np.random.Generator
) -> tuple[Guess, Guess | None]:
    """Guess edges from a model, in up to `graphs` training graphs and as many others, if there are any."""
    cohort = Cohort(tuple(parties))
    masks = cohort.masks["train"], cohort.masks["val"] | cohort.masks["test"]
    trains, others = (source.permutation(mask.nonzero().squeeze(1).numpy())[:graphs].tolist() for mask in masks)
    model.eval()
    of_trained = _required(_guess(model, task, cohort, trains, source))
    return of_trained, _guess(model, task, cohort, others, source)


def _guess(
    model: nn.Module, task: Task, cohort: Cohort, chosen: Sequence[int], source: np.random.Generator
) -> Guess | None:
    """Guess all edges of each graph, and as many other pairs if there are enough."""
    scores, joined = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for graph in chosen:
        block = cohort.graphs_of(torch.tensor([graph]))
        pairs = NodePairs.of_graphs([block.nodes])
        bits = pairs.bits(block.edge_index) > 0
        edges, apart = (mask.nonzero().squeeze(1) for mask in (bits, ~bits))
        asked = torch.cat([edges, apart[torch.from_numpy(source.permutation(apart.numel()))][: edges.numel()]])
        losses = _losses(model, task, block, pairs, edges, asked, cohort.y[graph])
        gain = losses[1:] - losses[0]
        scores.append(torch.where(bits[asked], gain, -gain))
        joined.append(bits[asked])
    return Guess.of(torch.cat(scores).numpy(), torch.cat(joined).numpy())


def _required(guess: Guess | None) -> Guess:
    if guess is None:
        raise IsthmusError("audit 'edges' needs graphs in which some pairs of nodes are joined and others are not")
    return guess


@torch.no_grad()
def _losses(
    model: nn.Module, task: Task, block: Block, pairs: NodePairs, edges: Tensor, asked: Tensor, y: Tensor
) -> Tensor:
    """Return the loss on a graph, then on the graph with one of the pairs asked about flipped, `[1 + asked]`.

    Arguments:
        edges: positions of joined pairs.
        asked: positions of the pairs asked about: all joined ones, then others.
    """
    x, losses = rows.to_dense(block.x), []
    for part in torch.arange(-1, asked.numel()).split(max(1, NODES // block.nodes)):  # -1 is the graph itself
        copies = part.numel()
        without = part.unsqueeze(1) == torch.arange(edges.numel())
        copy, edge = (~without).nonzero(as_tuple=True)
        adding = (part >= edges.numel()).nonzero().squeeze(1)
        copy, pair = torch.cat([copy, adding]), torch.cat([edges[edge], asked[part[adding]]])
        one_way = torch.stack([pairs.source[pair], pairs.target[pair]]) + copy * block.nodes
        batch = torch.arange(copies).repeat_interleave(block.nodes)
        output = model(x.repeat(copies, 1), torch.cat([one_way, one_way.flip(0)], dim=1), None, batch, copies)
        step = Step(output, y.unsqueeze(0).expand(copies, *y.shape), (1,) * copies, torch.arange(copies))
        losses.append(task.loss(step).double())
    return torch.cat(losses)
