"""FedCog's GCN over coupled graphs is one GCN on the whole graph."""

from __future__ import annotations

import pytest
import torch
from coupled_parties import coupled, dense, started
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional as F
from torch_geometric.data import Data

from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool, items_per_party
from isthmus.methods.fedcog_gcn import FedCogGcn
from isthmus.nn.encoders import Encoder

pytestmark = pytest.mark.usefixtures("double_precision")


@settings(max_examples=8)
@given(coupled(), some.integers(1, 3))
def test_the_gcn_form_is_the_global_gcn(drawn, layers):
    whole, parties = drawn
    encoder = Encoder.named("gcn")(hidden=4, dropout=0.0, layers=layers)
    run, module = started(FedCogGcn(rounds=5, lnnc=False), parties, encoder)
    found = run.go().weights
    graph, optimizer = whole.graph, torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(5):
        optimizer.zero_grad()
        output = module(dense(whole), graph.edge_index, graph.get("edge_weight"))
        F.cross_entropy(output[whole.train], graph.y[whole.train]).backward()
        optimizer.step()
    for weight, due in module.state_dict().items():
        torch.testing.assert_close(found[weight], due, rtol=1e-7, atol=1e-9)


def test_the_gcn_form_counts_labels_where_some_are_missing():
    """The loss is a mean over labels, not over nodes: a step is that of the whole graph only if labels count."""
    source = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(12))[torch.rand(66, generator=source) < 0.3].T
    graph = Data(x=torch.randn(12, 4, generator=source), edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))
    graph.y = (torch.rand(12, 3, generator=source) < 0.5).double()
    graph.y[torch.rand(12, 3, generator=source) < 0.4] = torch.nan
    graph.train_mask = torch.arange(12) < 9
    graph.test_mask = ~graph.train_mask
    whole = Party.of_graph("pooled", graph, ids=torch.arange(12))
    parties = Given().cut(Pool(whole, 3, items_per_party(torch.arange(12) % 3, 3)), 3, seed=0)
    run, module = started(FedCogGcn(rounds=3, lnnc=False), parties, Encoder.named("gcn")(hidden=4, dropout=0.0))
    found = run.go().weights
    optimizer, known = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=5e-4), ~graph.y.isnan()
    for _ in range(3):
        optimizer.zero_grad()
        at = known & whole.train.unsqueeze(1)
        F.binary_cross_entropy_with_logits(module(graph.x, graph.edge_index)[at], graph.y[at]).backward()
        optimizer.step()
    for weight, due in module.state_dict().items():
        torch.testing.assert_close(found[weight], due, rtol=0, atol=1e-9)
