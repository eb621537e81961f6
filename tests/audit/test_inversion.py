"""Graphs are read from plain updates of one step, and from sums and noisy updates no better than by chance."""

import pytest
import torch
from torch_geometric.data import Data

from helpers import make_node_parties
from isthmus.audit.inversion import GradientInversion, f1, training_graphs, updates_of
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import module_for, task_for

TYPES = 6


def molecules(count=30):
    """Rings with tails, of random atoms."""
    source, found = torch.Generator().manual_seed(1), []
    for at in range(count):
        ring, nodes = 3 + at % 3, 6 + at % 3
        edges = [(each, (each + 1) % ring) for each in range(ring)]
        edges += [(each - 1, each) for each in range(ring, nodes)]
        pairs = torch.tensor(edges).t()
        x = torch.eye(TYPES)[torch.randint(TYPES, (nodes,), generator=source)]
        found.append(Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], 1), y=torch.tensor([at % 2])))
    mask = torch.ones(count, dtype=torch.bool)
    return Party.of_graphs("party-0", found, train=mask, val=~mask, test=~mask)


def setting(encoder="gcn", **options):
    parties = [molecules()]
    task = task_for(parties)
    return parties, task, module_for(Encoder.named(encoder)(hidden=96, **options), parties, task, 0)


def test_a_plain_update_is_read_and_a_protected_one_is_not():
    audit = GradientInversion(victims=3, nodes=8, pieces=400, graphs=60, together=30)
    plain, total, noisy = audit.run(*setting(dropout=0.0), FedAvg(local={"lr": 0.5}))
    assert plain.exact == 3
    assert plain.features > 0.9
    assert plain.blocks > plain.by_chance[1] + 0.3
    for protected in (total, noisy):
        assert protected.exact == 0
        assert protected.features <= protected.by_chance[0]
        assert protected.blocks <= protected.by_chance[1]
    table = audit.table([plain, total, noisy], 1)
    assert table.columns == ["none", "sum of 30", "item, epsilon 8"]


def test_an_update_is_the_gradient():
    parties, task, module = setting(dropout=0.0)
    graph = training_graphs(parties[0])[4]
    (found,) = updates_of([graph], task, module, 0.5, 0)
    output = module(graph.x, graph.edge_index, None, torch.zeros(graph.num_nodes, dtype=torch.long), 1)
    torch.nn.functional.cross_entropy(output, graph.y).backward()
    for name, weight in module.named_parameters():
        assert torch.allclose(found[name], weight.grad, atol=1e-6)


def test_f1_counts_what_is_there_more_than_once():
    from collections import Counter

    assert f1(Counter("aab"), Counter("aab")) == 1.0
    assert f1(Counter("aab"), Counter("abb")) == pytest.approx(2 / 3)
    assert f1(Counter("aab"), Counter()) == 0.0


def test_what_cannot_be_read_is_one_line():
    audit, method = GradientInversion(), FedAvg()
    for options, message in (
        ({"dropout": 0.5}, r"reads steps without dropout: set model\.dropout = 0"),
        ({"encoder": "gin"}, r"is for graphs and two layers of gcn: set model\.encoder = 'gcn'"),
    ):
        with pytest.raises(IsthmusError, match=message):
            audit.run(*setting(**options), method)
    with pytest.raises(IsthmusError, match=r"0 training graphs have 3 to 4 nodes.*set audit\.nodes higher"):
        GradientInversion(nodes=4).run(*setting(dropout=0.0), method)
    nodes = make_node_parties([20])
    module = module_for(Encoder.named("gcn")(dropout=0.0), nodes, task_for(nodes), 0)
    with pytest.raises(IsthmusError, match="is for graphs"):
        audit.run(nodes, task_for(nodes), module, method)
