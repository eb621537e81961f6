"""Small parties and comparisons that several test modules share."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR, StepLR
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from isthmus.data.cohort import Cohort
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.data.pooled import pool_parties
from isthmus.data.rows import to_dense
from isthmus.methods.training import LocalTraining, PartyOptimizer
from isthmus.nn import decoupled, encoders
from isthmus.nn.draws import Draws, draws_of, seed_of
from isthmus.nn.encoders import Encoder
from isthmus.nn.per_party import Leaf, PerParty, per_party
from isthmus.nn.weights import Weights, initial_weights
from isthmus.tasks.base import Step
from isthmus.tasks.classification import NodeClassification


def slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases of a test, all but the quick ones among the slow tests."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in quick else pytest.mark.slow)
        for case in cases
    ]


FEATURES, CLASSES = 16, 3
ENCODERS = [
    name for name, kind in Encoder.known().items() if kind.__module__ in (encoders.__name__, decoupled.__name__)
]
"""Names of the encoders that follow all laws; those of typed graphs and of private sums have their own tests."""
NODES = (23, 40, 5, 31)
GRAPHS = (6, 9, 2, 7)
UNTOUCHED = FEATURES - 1
"""A word that nobody uses."""


def bags(nodes: int, source: torch.Generator) -> Tensor:
    """Bags of words: few entries, most of them zero; the last word is in none of them."""
    x = torch.rand(nodes, FEATURES, generator=source) * (torch.rand(nodes, FEATURES, generator=source) < 0.2)
    x[torch.arange(nodes), torch.randint(UNTOUCHED, (nodes,), generator=source)] = 1.0
    x[:, UNTOUCHED] = 0.0
    return x


def make_graph(nodes: int, source: torch.Generator, *, sparse: bool = False, weighted: bool = False) -> Data:
    x = bags(nodes, source)
    edge_index = to_undirected(torch.randint(nodes, (2, 2 * nodes), generator=source), num_nodes=nodes)
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=edge_index)
    if weighted:
        graph.edge_weight = torch.rand(edge_index.size(1), generator=source) + 0.5
    return graph


def make_node_parties(
    nodes: Sequence[int] = NODES, *, sparse: bool = False, weighted: bool = False, untrained: Sequence[int] = ()
) -> tuple[Party, ...]:
    """Parties with one graph each, of unequal sizes; those at the positions `untrained` have no training node."""
    parties = []
    for at, count in enumerate(nodes):
        source = torch.Generator().manual_seed(at)
        graph = make_graph(count, source, sparse=sparse, weighted=weighted)
        graph.y = torch.randint(CLASSES, (count,), generator=source)
        turn = torch.arange(count) % 5
        graph.train_mask = (turn < 2) & (at not in untrained)
        graph.val_mask, graph.test_mask = turn == 2, turn > 2
        parties.append(Party.of_graph(f"party-{at}", graph))
    return tuple(parties)


def make_graph_parties(
    graphs: Sequence[int] = GRAPHS, *, sparse: bool = False, weighted: bool = False, untrained: Sequence[int] = ()
) -> tuple[Party, ...]:
    """Parties with several small graphs each; those at the positions `untrained` have no training graph."""
    parties = []
    for at, count in enumerate(graphs):
        source = torch.Generator().manual_seed(100 + at)
        pile = []
        for _ in range(count):
            nodes = int(torch.randint(3, 9, (1,), generator=source))
            graph = make_graph(nodes, source, sparse=False, weighted=weighted)
            graph.y = torch.randint(CLASSES, (1,), generator=source)
            pile.append(graph)
        turn = torch.arange(count) % 4
        train = (turn < 2) & (at not in untrained)
        party = Party.of_graphs(f"party-{at}", pile, train=train, val=turn == 2, test=turn == 3)
        if sparse:
            party.graph.x = party.graph.x.to_sparse_csr()
        parties.append(party)
    return tuple(parties)


def make_parties(level: str, **options: object) -> tuple[Party, ...]:
    return (make_node_parties if level == "node" else make_graph_parties)(**options)  # type: ignore[arg-type]


def assert_close(found: Mapping[str, Tensor], due: Mapping[str, Tensor], within: float = 1e-5) -> None:
    """The same names, and the same values up to `within`, absolute and relative."""
    assert found.keys() == due.keys()
    for name, value in due.items():
        torch.testing.assert_close(
            found[name].detach(), value.detach(), rtol=within, atol=within, msg=lambda text, at=name: f"{at}: {text}"
        )


# ---- the law: a cohort of K parties gives what K cohorts of one give


STEADY = LocalTraining(epochs=5, optimizer="sgd", lr=0.02, momentum=0.9)
"""For models with normalisation: Adam turns the rounding of a gradient that is zero (a bias before it) into steps."""


@dataclass
class Trained:
    """What some steps of training left: the first step's output and gradients, and the weights after the last."""

    output: tuple[Tensor, ...]
    gradients: Weights
    weights: Weights


def apart(module: nn.Module, parties: int) -> Weights:
    """Weights of the module, a little different for every party."""
    source = torch.Generator().manual_seed(7)
    return {
        name: weight + 0.2 * torch.rand((parties, *weight.shape), generator=source)
        for name, weight in initial_weights(module).items()
    }


def slope_of(leaf: Leaf) -> Tensor:
    return torch.zeros_like(leaf.tensor) if leaf.tensor.grad is None else leaf.tensor.grad.clone()


def from_leaves(model: PerParty, leaves: Sequence[Leaf], values: Sequence[Tensor]) -> Weights:
    """The way back from `PerParty.like_leaves`, for first layers that are kept whole."""
    weights = initial_weights(model.module)
    stacks = {}
    for leaf, value in zip(leaves, values, strict=True):
        full = value.shape == (model.parties, *weights[leaf.name].shape)
        by_input = value if full else value.view(model.parties, -1, value.size(1))
        stacks[leaf.name] = value if full else by_input.transpose(1, 2).contiguous()
    return stacks


def draws_for(cohort: Cohort, *purpose: object) -> Draws:
    """Draws that depend on each party's name."""
    return Draws.seeded([seed_of(name) for name in cohort.names]).of(*purpose)


def train_side_by_side(
    model: PerParty, parties: Sequence[Party], weights: Weights, options: LocalTraining | None = None
) -> Trained:
    """Full-batch steps on the training items (graphs alone, nodes in their whole graph), dropout and all."""
    cohort = Cohort(tuple(parties))
    options = options or LocalTraining(optimizer="adam", epochs=5)
    chosen = cohort.masks["train"].nonzero().squeeze(1)
    sizes = tuple(cohort.counts("train").tolist())
    block, at = cohort.block, chosen
    if cohort.level == "graph":
        block, at = cohort.graphs_of(chosen), torch.arange(chosen.numel())
    model.load(weights)
    leaves = model.start_training(block, [True] * len(cohort), touched_rows=False)
    optimizer = PartyOptimizer(options, leaves)
    found = None
    for step in range(options.epochs):
        output = model(block, draws_for(cohort, step))
        losses = NodeClassification(classes=CLASSES).loss(Step(output[at], cohort.y[chosen], sizes, chosen))
        losses.sum().backward()
        if found is None:
            slopes = [slope_of(leaf) for leaf in leaves]
            rows_of = cohort.items if cohort.level == "node" else sizes
            found = output.detach().split(rows_of), from_leaves(model, leaves, slopes)
        optimizer.step([True] * len(cohort))
    model.stop_training()
    assert found is not None
    return Trained(*found, model.stacks())


def assert_law(module: nn.Module, parties: Sequence[Party], options: LocalTraining | None = None) -> PerParty:
    """Outputs, gradients and trained weights of every party are the same alone and side by side."""
    weights = apart(module, len(parties))
    model = per_party(module, len(parties))
    together = train_side_by_side(model, parties, weights, options)
    for at, party in enumerate(parties):
        own = {name: stack[at : at + 1] for name, stack in weights.items()}
        alone = train_side_by_side(per_party(module, 1), [party], own, options)
        torch.testing.assert_close(together.output[at], alone.output[0], rtol=1e-5, atol=1e-5)
        assert_close({n: g[at] for n, g in together.gradients.items()}, {n: g[0] for n, g in alone.gradients.items()})
        assert_close({n: w[at] for n, w in together.weights.items()}, {n: w[0] for n, w in alone.weights.items()})
    return model


# ---- plain PyTorch: one party after another, each with a copy of the module


def plain_output(module: nn.Module, graph: Data) -> Tensor:
    offered = {
        "x": to_dense(graph.x),
        "edge_index": graph.edge_index,
        "edge_weight": graph.get("edge_weight"),
        "batch": graph.get("batch"),
        "batch_size": getattr(graph, "num_graphs", None),
    }
    named = inspect.signature(module.forward).parameters
    return module(**{name: value for name, value in offered.items() if name in named})


def plain_batches(party: Party, options: LocalTraining, seed: int, answered: int, epoch: int) -> Sequence[Tensor]:
    items = party.train.nonzero().squeeze(1)
    if options.batch_size == 0 or not items.numel():
        return [items] if items.numel() else []
    draws = draws_of(seed, party.name).of_counts([answered]).of("order", epoch)
    order = draws.order((items.numel(),))
    return items[order].split(options.batch_size)


def plain_optimizer(options: LocalTraining, module: nn.Module) -> torch.optim.Optimizer:
    common = {"lr": options.rate, "weight_decay": options.weight_decay}
    if options.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), momentum=options.momentum, **common)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.optimizer](module.parameters(), **common)


def plain_rates(options: LocalTraining, rounds: int) -> list[float]:
    """The learning rate of every round, by torch's own schedulers."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=options.rate)
    after = rounds - options.warm_up
    main: LRScheduler
    if options.schedule == "linear":
        main = LinearLR(optimizer, start_factor=1.0, end_factor=options.decay_to, total_iters=after)
    elif options.schedule == "cosine":
        main = CosineAnnealingLR(optimizer, T_max=after, eta_min=options.decay_to * options.rate)
    else:
        every = options.decay_every if options.schedule == "step" else rounds
        main = StepLR(optimizer, step_size=every, gamma=options.decay_by)
    if options.warm_up:
        warm = LinearLR(optimizer, start_factor=1 / (options.warm_up + 1), total_iters=options.warm_up)
        main = SequentialLR(optimizer, [warm, main], milestones=[options.warm_up])
    found = []
    for _ in range(rounds):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        main.step()
    return found


def plain_fit(
    module: nn.Module,
    party: Party,
    options: LocalTraining,
    *,
    seed: int = 0,
    answered: int = 1,
    extra: Callable[[nn.Module], Tensor] | None = None,
) -> tuple[nn.Module, int]:
    """A trained copy of the module and the number of steps; `extra` is added to the loss. Features must be dense."""
    module = copy.deepcopy(module).train()
    optimizer = plain_optimizer(options, module)
    steps = 0
    for epoch in range(options.epochs):
        for batch in plain_batches(party, options, seed, answered, epoch):
            optimizer.zero_grad()
            if party.level == "node":
                output = plain_output(module, party.graph)[batch]
            else:
                output = plain_output(module, Batch.from_data_list([party.graph[int(at)] for at in batch]))
            loss = F.cross_entropy(output, party.graph.y[batch])
            (loss if extra is None else loss + extra(module)).backward()
            if options.clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), options.clip)
            optimizer.step()
            steps += 1
    return module, steps


def assert_sound_links(whole: Pool, parties: int, seed: int) -> None:
    """Edges run both ways, each once, and never to oneself; cut by holder and pooled again none is lost."""
    edge_index = whole.party.graph.edge_index
    pairs = set(zip(*edge_index.tolist(), strict=True))
    assert len(pairs) == edge_index.size(1)
    assert {(b, a) for a, b in pairs} == pairs
    assert all(a != b for a, b in pairs)
    again = pool_parties(Given().cut(whole, parties, seed))
    assert set(zip(*again.graph.edge_index.tolist(), strict=True)) == pairs
    assert torch.equal(again.graph.x, whole.party.graph.x)


@cache
def rounds_rows_alike() -> bool:
    """Whether this machine rounds a row of a product alike whatever rows stand beside it, as few outputs need it.

    Some processors' libraries do not. There a model that parties share scores to some nine digits, not to the bit, what
    it scores in other pieces.
    """
    x, weight = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)), torch.linspace(-1, 1, 48).view(3, 16)
    whole = F.linear(x, weight)
    pieces = [(at, count) for at in range(0, 170, 13) for count in (1, 3, 8, 30)]
    return all(torch.equal(F.linear(x[at : at + n], weight), whole[at : at + n]) for at, n in pieces)


def assert_same_history(found: Sequence[Any], due: Sequence[Any]) -> None:
    """Every round's metrics are equal: to the bit where the machine rounds rows alike, else to rounding."""
    if rounds_rows_alike():
        assert found == due
    assert [each[:-1] for each in found] == [each[:-1] for each in due]
    assert [each[-1] for each in found] == pytest.approx([each[-1] for each in due], rel=1e-6, nan_ok=True)
