"""A method with a fault of its public code differs from the method by that fault."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn.models import LabelPropagation

from helpers import make_node_parties
from isthmus.data.partition import Partition
from isthmus.data.pool import DataSet
from isthmus.methods.base import Method
from isthmus.nn.encoders import Gcn
from isthmus.nn.layerwise import infer
from isthmus.own_code import import_files
from isthmus.study.run import run

FOLDER = Path(__file__).parents[2] / "benchmarks" / "papers" / "fgl"
FILES = [FOLDER / "defects.py", FOLDER / "adafgl_faults.py"]


@pytest.fixture
def both(monkeypatch):
    """Trains a faulty method, and returns what a call of its parties gives and what the method's own would."""
    import_files(FILES)

    def found(name: str, function: str, call: int = 0, **options: Any) -> tuple[Any, Any]:
        kind, given = Method.named(name), []
        faulty, own = (getattr(each.AtParty, function) for each in (kind, kind.__mro__[1]))

        def recorded(self, *args):
            result = faulty(self, *args)
            given.append((result, own(self, *args)))
            return result

        recorded.__dict__.update(faulty.__dict__)
        monkeypatch.setattr(kind.AtParty, function, recorded)
        run(name, make_node_parties(), model=Gcn(hidden=8), **{"rounds": 2, **options})
        return given[call]

    return found


def test_scoring_has_dropout(both):
    noisy, plain = both("fedavg-dropout-in-scoring", "predict")
    assert not torch.allclose(noisy, plain)


def test_zeros_for_absent_classes_count_by_all_items(both):
    zeros, plain = both("fedproto-absent-as-zero", "train", local={"epochs": 1, "lr": 1e-9})
    assert torch.allclose(zeros.fields["prototypes"], plain.fields["prototypes"], atol=1e-6)
    nodes = torch.tensor([[party.nodes] for party in make_node_parties()])
    assert torch.equal(zeros.weight, nodes.expand_as(plain.weight).to(zeros.weight))
    assert bool((plain.weight == 0).any())
    assert not zeros.fields["prototypes"][plain.weight == 0].any()


def test_numbers_of_nodes_stand_for_walks(both):
    numbers, walks = both("fedtad-node-numbers", "surroundings", server_epochs=1)
    assert (numbers.size(1), walks.size(1)) == (15, 5)
    assert torch.equal(numbers, numbers.floor())
    sizes = [party.nodes for party in make_node_parties()]
    for own, size in zip(numbers.split(sizes), sizes, strict=True):
        assert 1 < float(own.max()) < size
        for first in (0, 1, 3, 6, 10):  # of walks of 1 to 5 nodes
            assert own[:, first].tolist() == list(range(size))


def test_classes_are_weighed_within_a_party(both):
    shares, reliable = both("fedtad-own-classes", "reliability", server_epochs=1)
    torch.testing.assert_close(shares.sum(1), torch.ones(len(shares), dtype=shares.dtype))
    torch.testing.assert_close(shares * reliable.sum(1, keepdim=True), reliable)
    (_, weight, c), (_, plain, _) = both("fedtad-own-classes", "log_probabilities", server_epochs=1)
    assert weight.sum() > plain.sum(), "the weights of a class need not have the sum 1"
    assert weight.shape == c.shape


def test_labels_are_propagated_as_by_pyg(both, monkeypatch):
    outputs = []

    def recorded(model, block):
        outputs.append(infer(model, block))
        return outputs[-1]

    monkeypatch.setattr(sys.modules["defects"], "infer", recorded)
    (soft, _), (plain, _) = both("fedgta-unlabelled-as-zero", "propagated")
    sizes = [party.nodes for party in make_node_parties()]
    for party, output, found in zip(make_node_parties(), outputs[0].split(sizes), soft.split(sizes), strict=True):
        propagation = LabelPropagation(num_layers=5, alpha=0.5)
        due = propagation(output.softmax(1), party.graph.edge_index, mask=party.train).softmax(1)
        due[party.train] = torch.nn.functional.one_hot(party.graph.y[party.train], due.size(1)).to(due)
        torch.testing.assert_close(found, due)
    assert not torch.allclose(soft, plain)


def test_both_views_are_the_partys_own(both):
    own, received = both("fgssl-own-views", "seen_by_received", local={"epochs": 2, "lr": 0.5})
    assert torch.equal(own, received), "before the first step"
    own, received = both("fgssl-own-views", "seen_by_received", -1, local={"epochs": 2, "lr": 0.5})
    assert own.requires_grad
    assert not received.requires_grad
    assert not torch.allclose(own, received)


def test_one_predictor_is_taken(both):
    switch, score = both("adafgl-switch", "homophily", personal_rounds=1)
    assert set(switch.tolist()) <= {0.0, 1.0}
    assert torch.equal(switch, (score > 0.89999).double())


def test_outputs_are_compared_with_probabilities(both):
    logits, plain = both("adafgl-logits", "loss", rounds=3, personal_rounds=2)
    assert not torch.allclose(logits, plain)


def test_edges_are_added_between_nodes_of_equal_or_of_different_labels():
    import_files(FILES)
    pool = DataSet.named("banks").read({"parties": 4, "nodes": 400}, "banks").load(0)
    kinds = set()
    for seed in range(3):
        plain = Partition.named("metis")().cut(pool, 4, seed)
        for before, after in zip(plain, Partition.named("metis-with-labelled-edges")().cut(pool, 4, seed), strict=True):
            added = after.graph.edge_index[:, before.graph.edge_index.size(1) :]
            assert torch.equal(after.graph.edge_index[:, : before.graph.edge_index.size(1)], before.graph.edge_index)
            same = after.graph.y[added[0]] == after.graph.y[added[1]]
            assert added.size(1) > 0
            assert bool(same.all()) or not bool(same.any())
            kinds.add(bool(same.all()))
            assert {tuple(each) for each in added.T.tolist()} == {tuple(each) for each in added.flip(0).T.tolist()}
            old = {tuple(each) for each in before.graph.edge_index.T.tolist()}
            assert old.isdisjoint(tuple(each) for each in added.T.tolist())
    assert kinds == {True, False}
