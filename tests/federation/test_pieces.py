"""Parties in one process are split into cohorts, and results do not tell how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx
import pytest
import torch

from helpers import CLASSES, FEATURES, assert_same_history, make_graph_parties, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.data.party import Party
from isthmus.federation import pieces, wire
from isthmus.federation.pieces import aligned, training_rows
from isthmus.methods.base import Method
from isthmus.methods.ditto import Ditto
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedper import FedPer
from isthmus.methods.scaffold import Scaffold
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Gcn
from isthmus.study.loop import Run
from isthmus.tasks.classification import GraphClassification, NodeClassification

SIZES = (5, 9, 4, 6, 30, 4, 7, 5, 6, 3, 8)


def literal(nodes: Sequence[int], most_parties: int, most_nodes: int) -> list[range]:
    """From every party on, the largest aligned block within the limits."""
    found, start = [], 0
    while start < len(nodes):
        fitting = [1]
        for level in range(1, 8):
            width = 2**level
            within = nodes[start : start + width]
            if start % width == 0 and len(within) <= most_parties and sum(within) <= most_nodes:
                fitting.append(width)
        found.append(range(start, min(start + max(fitting), len(nodes))))
        start = found[-1].stop
    return found


def drop_edges(party: Party) -> Party:
    """The party with every fourth edge, so that some nodes are joined to no training node."""
    graph = party.graph.clone()
    graph.edge_index = graph.edge_index[:, ::4]
    return replace(party, graph=graph)


@pytest.mark.parametrize("most_parties", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("most_nodes", [1, 9, 13, 40, 1000])
@pytest.mark.parametrize("count", [1, 2, 5, 8, 11])
def test_pieces_are_the_largest_aligned_blocks(count: int, most_parties: int, most_nodes: int) -> None:
    nodes = SIZES[:count]
    assert aligned(nodes, most_parties, most_nodes) == literal(nodes, most_parties, most_nodes)


def test_rows_read_in_training_are_those_within_reach_of_a_training_node() -> None:
    parties = [drop_edges(party) for party in make_node_parties(SIZES)]
    due = []
    for party in parties:
        graph = networkx.DiGraph(party.graph.edge_index.flip(0).t().tolist())
        graph.add_nodes_from(range(party.nodes))
        trained = party.train.nonzero().flatten().tolist()
        reached = [networkx.single_source_shortest_path_length(graph, node, cutoff=2) for node in trained]
        due.append(tuple(len({node for found in reached for node in found if found[node] <= hops}) for hops in (1, 2)))
    assert training_rows(parties, reach=2) == due
    assert [rows for _, rows in due] != list(SIZES)
    assert training_rows(parties, reach=None) == [(size,) for size in SIZES]


def test_rows_read_in_training_on_graphs_are_those_of_training_graphs() -> None:
    parties = make_graph_parties()
    cohort = Cohort(tuple(parties))
    chosen = cohort.masks["train"].nonzero().squeeze(1)
    assert training_rows(parties, reach=2) == [(size,) for size in cohort.graphs_of(chosen).sizes]


METHODS: dict[str, Method] = {
    "fedavg": FedAvg(rounds=3, local=LocalTraining(epochs=2)),
    "batches and sampling": FedAvg(rounds=3, fraction=0.6, local=LocalTraining(epochs=2, batch_size=3)),
    "clip and momentum": FedAvg(
        rounds=3, local=LocalTraining(epochs=2, optimizer="sgd", lr=0.1, momentum=0.9, clip=0.1)
    ),
    "scaffold": Scaffold(rounds=3, local=LocalTraining(epochs=2, optimizer="sgd", lr=0.1)),
    "ditto": Ditto(rounds=3),
    "fedper": FedPer(rounds=3),
}


def run_of(method: Method, parties: Sequence[Party], **options: Any) -> Run:
    level = parties[0].level
    task = (NodeClassification if level == "node" else GraphClassification)(classes=CLASSES)
    torch.manual_seed(0)
    return Run(method, parties, task, Gcn(hidden=8).build(FEATURES, CLASSES, level), seed=5, **options)


@pytest.mark.parametrize("held", ["nodes", "sparse", "graphs"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.thinned(10)
def test_a_run_in_pieces_is_the_run_of_one_cohort(name: str, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parties = make_graph_parties() if held == "graphs" else make_node_parties(SIZES, sparse=held == "sparse")
    whole = run_of(METHODS[name], parties)
    due = whole.go()
    monkeypatch.setattr(pieces, "PARTIES", 2)
    monkeypatch.setattr(pieces, "SORTED_FROM", 1)
    split = run_of(METHODS[name], parties)
    assert [len(run.transport.sites) for run in (whole, split)] == [1, -(-len(parties) // 2)]  # type: ignore[attr-defined]
    assert max(map(len, (site.hosted for site in split.transport.sites))) == 2  # type: ignore[attr-defined]
    found = split.go()
    for (name, value), (_, other) in zip(wire.flatten(found.models), wire.flatten(due.models), strict=True):
        assert torch.equal(value, other), name
    assert_same_history(found.history, due.history)
    assert found.parties.keys() == due.parties.keys()
    assert list(found.parties) == list(due.parties)
    assert found.ledger.entries == due.ledger.entries
