"""The inversion audit: whether a party's plain update shows the graph that it trained on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from isthmus.audit.base import Audit, AuditTable
from isthmus.audit.gradients import Block, Piece, Vocabulary, blocks_in, glued, kinds_in
from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.private import PrivateItems
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Convolutions, Readout
from isthmus.nn.stacks import slice_of
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.options import ItemPrivacy
from isthmus.tasks.base import Step, Task

EXACT = 1e-4
"""Relative distance of gradients up to which they are those of one graph."""
LABELS = 32
"""Labels that are tried, at most."""
FEWEST = 3
"""Nodes of a graph that is looked for."""


@dataclass(frozen=True)
class Inverted:
    """What an attacker reads from updates, as means over the graphs that were trained on.

    Attributes:
        protection: of the updates.
        victims: graphs, each alone in one step.
        exact: graphs that were read whole.
        features, blocks: how well the features of nodes, and nodes with their neighbours, were read: the F1 score of
            both lists.
        by_chance: the same for whoever guesses blindly: another graph of the data, or every row once if that is better.
    """

    protection: str
    victims: int
    exact: int
    features: float
    blocks: float
    by_chance: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class GradientInversion(Audit):
    """An attacker reads the graph from an update of one step on it, in the manner of GRAIN (Drencheva et al. 2025).

    The attacker has the model, the learning rate and a vocabulary, every feature row with every degree that occurs in
    the data, and does not know the label. It reads the update of one graph, the sum of several, and one with noise.
    """

    name: ClassVar[str] = "inversion"
    by_name_only: ClassVar[bool] = True

    victims: int = Field(10, ge=1)
    """Training graphs to read."""
    nodes: int = Field(16, ge=FEWEST)
    """Nodes of a graph at most; larger graphs are not attacked."""
    pieces: int = Field(3000, ge=1)
    """Unfinished graphs that the attacker looks at for each number of nodes."""
    graphs: int = Field(500, ge=1)
    """Graphs whose gradient the attacker compares with the update."""
    together: int = Field(8, ge=2)
    """Parties, of one graph each, in the sum that masks leave."""
    epsilon: float = Field(8.0, gt=0)
    """Of the noise on items, for one step."""

    def run(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: Any, *, seed: int = 0
    ) -> list[Inverted]:
        lr, source = self._rate(parties, task, module, method), np.random.default_rng(seed)
        small = [each for party in parties for each in training_graphs(party) if FEWEST <= each.num_nodes <= self.nodes]
        if len(small) < max(2, self.together):
            raise IsthmusError(
                f"audit 'inversion': {len(small)} training graphs have {FEWEST} to {self.nodes} nodes, and "
                f"{max(2, self.together)} are needed: set audit.nodes higher"
            )
        vocabulary = vocabulary_of(parties)
        reader = Reader(self, module, task, vocabulary, labels_of(small))
        victims = source.permutation(len(small))[: self.victims].tolist()
        truths = [Read.of_graph(each, vocabulary) for each in small]
        plan = ItemPlan.of(ItemPrivacy(epsilon=self.epsilon), 1, 1)
        noise = plan.multiplier * plan.options.clip
        names = "none", f"sum of {self.together}", f"item, epsilon {self.epsilon:g}"
        found: dict[str, list[Read]] = {name: [] for name in names}
        chances: list[tuple[float, float]] = []
        for victim in victims:
            others = [at for at in source.permutation(len(small)).tolist() if at != victim]
            chances += [truths[victim].scores(truths[at]) for at in others[: self.together]]
            group = [small[at] for at in (victim, *others[: self.together - 1])]
            plain = updates_of(group, task, module, lr, seed)
            noisy = updates_of(group[:1], task, module, lr, seed, PrivateItems(plan, ("train",)))
            total = {name: torch.stack([each[name] for each in plain]).sum(0) for name in plain[0]}
            ways = zip(found.values(), (plain[0], total, noisy[0]), (0.0, 0.0, noise), strict=True)
            for reads, gradient, spread in ways:
                reads.append(reader.read(gradient, lr, spread))
        every = Read(Counter(range(len(vocabulary.rows))), Counter())
        blind = fmean(truths[victim].scores(every)[0] for victim in victims)
        chance = max(blind, fmean(each[0] for each in chances)), fmean(each[1] for each in chances)
        shown = []
        for protection, reads in found.items():
            scores = [truths[victim].scores(read) for victim, read in zip(victims, reads, strict=True)]
            exact = sum(truths[victim] == read for victim, read in zip(victims, reads, strict=True))
            means = fmean(each[0] for each in scores), fmean(each[1] for each in scores)
            shown.append(Inverted(protection, len(victims), exact, *means, chance))
        return shown

    def table(self, found: Sequence[Inverted], parties: int) -> AuditTable:
        features, blocks = found[0].by_chance
        section = [
            ("read whole", [f"{each.exact:,}" for each in found]),
            ("features of nodes, F1", [f"{each.features:.3f}" for each in found]),
            ("nodes with neighbours, F1", [f"{each.blocks:.3f}" for each in found]),
        ]
        note = f"chance is F1 {features:.3f} and {blocks:.3f}: another graph of the data, or every feature row once"
        return AuditTable(f"{found[0].victims:,} graphs", [each.protection for each in found], [section], [note])

    def _rate(self, parties: Sequence[Party], task: Task, module: nn.Module, method: Any) -> float:
        """The learning rate of a step, if the attack is for this model."""
        convolutions = module.body if isinstance(module, Readout) else None
        layers = list(convolutions.convs) if isinstance(convolutions, Convolutions) else []
        if len(layers) < 2 or not all(isinstance(each, GCNConv) for each in layers):
            raise IsthmusError("audit 'inversion' is for graphs and two layers of gcn: set model.encoder = 'gcn'")
        if any(each.p for each in module.modules() if isinstance(each, nn.Dropout)):
            raise IsthmusError("audit 'inversion' reads steps without dropout: set model.dropout = 0")
        if not task.loss_is_of_items:
            raise IsthmusError("audit 'inversion' is for losses of single graphs: set task.class_weights = 'none'")
        local = getattr(method, "local", None)
        return float(local.rate) if local is not None else 0.1


class Reader:
    """An attacker who has the model.

    Arguments:
        audit: its options.
        module: the model before the step.
        labels: that a graph may have.
    """

    def __init__(
        self,
        audit: GradientInversion,
        module: nn.Module,
        task: Task,
        vocabulary: Vocabulary,
        labels: Sequence[Tensor],
    ) -> None:
        self.audit, self.module, self.task, self.vocabulary, self.labels = audit, module, task, vocabulary, labels
        self.weights = dict(module.named_parameters())
        self.layers = [f"body.convs.{at}.lin.weight" for at in (0, 1)]

    def read(self, gradient: Mapping[str, Tensor], lr: float, noise: float) -> Read:
        """The graph whose gradient is nearest, or without one all that lies in the spans.

        Arguments:
            noise: the standard deviation of noise on the gradient, which is public.
        """
        first, second = self.layers
        rounding = [max(noise, 2.0**-25 * float(self.weights[name].detach().abs().max()) / lr) for name in self.layers]
        kinds = kinds_in(gradient[first], rounding[0], self.vocabulary)
        bias = self.weights.get("body.convs.0.bias")
        weight = self.weights[first].detach()
        found = blocks_in(
            gradient[second], rounding[1], weight, None if bias is None else bias.detach(), kinds, self.vocabulary
        )
        if not found:
            rows_read = {int(self.vocabulary.row[kind]) for kind in kinds}
            return Read(Counter(rows_read), Counter())
        size = sum(float(each.double().square().sum()) for each in gradient.values()) ** 0.5
        best, nearest = None, float("inf")
        graphs = glued(found, FEWEST, self.audit.nodes, self.audit.pieces)
        for piece in itertools.islice(graphs, self.audit.graphs):
            for label in self.labels:
                own = self.gradient_of(piece, label)
                away = sum(float((own[name] - gradient[name]).double().square().sum()) for name in own) ** 0.5
                if away < nearest:
                    best, nearest = piece, away
            if nearest < EXACT * size:
                break
        if best is None:
            return Read(Counter(int(self.vocabulary.row[kind]) for kind, _ in found), Counter(found))
        return Read.of_piece(best, self.vocabulary)

    def gradient_of(self, piece: Piece, label: Tensor) -> dict[str, Tensor]:
        """The gradient of a step on a graph."""
        x = self.vocabulary.rows[self.vocabulary.row[piece.kinds]].to(next(iter(self.weights.values())).dtype)
        batch = torch.zeros(len(piece.kinds), dtype=torch.long)
        output = self.module(x=x, edge_index=piece.edge_index, edge_weight=None, batch=batch, batch_size=1)
        step = Step(output, label, (1,), torch.tensor([0]))
        found = torch.autograd.grad(self.task.loss(step).sum(), list(self.weights.values()))
        return dict(zip(self.weights, found, strict=True))


@dataclass(frozen=True)
class Read:
    """What is known of a graph: the feature rows of its nodes, and its blocks, each as often as it occurs."""

    rows: Counter[int]
    blocks: Counter[Block]
    form: object = None

    @classmethod
    def of_piece(cls, piece: Piece, vocabulary: Vocabulary) -> Read:
        blocks = Counter(
            (kind, tuple(sorted(piece.kinds[near] for near in around)))
            for kind, around in zip(piece.kinds, piece.around, strict=True)
        )
        return cls(Counter(int(vocabulary.row[kind]) for kind in piece.kinds), blocks, piece.form())

    @classmethod
    def of_graph(cls, graph: Data, vocabulary: Vocabulary) -> Read:
        kinds = vocabulary.kind_of(graph.x, torch.bincount(graph.edge_index[0], minlength=graph.num_nodes))
        piece = Piece(kinds, [set() for _ in kinds])
        for a, b in graph.edge_index.t().tolist():
            piece.around[a].add(b)
        return cls.of_piece(piece, vocabulary)

    def scores(self, guess: Read) -> tuple[float, float]:
        """F1 scores of a guess: of feature rows, and of blocks."""
        return f1(self.rows, guess.rows), f1(self.blocks, guess.blocks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Read) and self.form is not None and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.form)


def f1(true: Counter[Any], guess: Counter[Any]) -> float:
    """
    >>> f1(Counter("aab"), Counter("ab"))
    0.8
    """
    return 2 * (true & guess).total() / max(1, true.total() + guess.total())


def updates_of(
    graphs: Sequence[Data], task: Task, module: nn.Module, lr: float, seed: int, private: PrivateItems | None = None
) -> list[dict[str, Tensor]]:
    """What parties of one graph each send after one step of gradient descent, as gradients."""
    parties = [
        Party.of_graphs(f"party-{at}", [each], train=torch.tensor([True]), val=torch.tensor([False]),
                        test=torch.tensor([False]))
        for at, each in enumerate(graphs)
    ]  # fmt: skip
    names = [party.name for party in parties]
    method = FedAvg(rounds=1, local={"epochs": 1, "optimizer": "sgd", "lr": lr, "weight_decay": 0.0})
    site = method.site(parties, task, module, seed=seed, private=private)
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    columns = site.answer("train", {"weights": before}, names).columns
    return [
        {name: (weight - slice_of(columns[f"weights/{name}"], at)) / lr for name, weight in before.items()}
        for at in range(len(names))
    ]


def training_graphs(party: Party) -> list[Data]:
    """The training graphs of a party, each with a label."""
    graph, found = party.graph, []
    x, edges = rows.to_dense(graph.x), graph.edge_index
    sizes = torch.bincount(graph.batch, minlength=party.items)
    first = sizes.cumsum(0) - sizes
    for at in party.train.nonzero().squeeze(1).tolist():
        own = edges[:, graph.batch[edges[0]] == at] - first[at]
        nodes = slice(int(first[at]), int(first[at] + sizes[at]))
        found.append(Data(x=x[nodes], edge_index=own, y=graph.y[at : at + 1], num_nodes=int(sizes[at])))
    return found


def labels_of(graphs: Sequence[Data]) -> list[Tensor]:
    """The labels that graphs have, each as one of a single graph."""
    labels = torch.unique(torch.cat([graph.y for graph in graphs]).nan_to_num(0), dim=0)
    if len(labels) > LABELS:
        raise IsthmusError(f"audit 'inversion': graphs have {len(labels):,} labels, and it tries {LABELS} at most")
    return list(labels.split(1))


def vocabulary_of(parties: Sequence[Party]) -> Vocabulary:
    """Every feature row with every degree that occurs in the data."""
    x = torch.cat([rows.to_dense(party.graph.x) for party in parties])
    degrees = [torch.bincount(party.graph.edge_index[0], minlength=party.nodes) for party in parties]
    return Vocabulary.of(x, torch.cat(degrees))
