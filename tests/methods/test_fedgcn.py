"""Sums over neighbours at all parties make the layers of a GCN exact."""

from __future__ import annotations

import pytest
import torch
from coupled_parties import coupled, dense, small, started
from hypothesis import given, settings

from helpers import assert_close
from isthmus.errors import IsthmusError
from isthmus.methods.fedgcn import FedGcn
from isthmus.nn.encoders import Encoder

pytestmark = pytest.mark.usefixtures("double_precision")


@settings(max_examples=8)
@given(coupled())
def test_two_hops_of_fedgcn_make_two_layers_exact(drawn):
    whole, parties = drawn
    encoder = Encoder.named("gcn")(hidden=4, dropout=0.0)
    run, module = started(FedGcn(rounds=2), parties, encoder)
    weights = run.go().weights
    module.load_state_dict(weights)
    due = dict(
        zip(
            whole.ids.tolist(),
            module(dense(whole), whole.graph.edge_index, whole.graph.get("edge_weight")).detach(),
            strict=True,
        )
    )
    (site,) = run.transport.sites
    outputs = site.predict_all(weights).split(site.cohort.sizes)
    for party, output in zip(parties, outputs, strict=True):
        for node, row in zip(party.ids.tolist(), output, strict=False):
            torch.testing.assert_close(row, due[node], rtol=1e-8, atol=1e-9)


def test_fewer_hops_of_fedgcn_use_less():
    _, parties = small()
    encoder = Encoder.named("gcn")(hidden=4, dropout=0.0)
    ledgers = []
    for hops in (0, 1, 2):
        run, _ = started(FedGcn(rounds=1, hops=hops), parties, encoder)
        ledgers.append([row["action"] for row in run.go().ledger.rows()])
    assert "sum_up" not in ledgers[0]
    assert "sum_up" in ledgers[1]
    received = []
    for hops in (1, 2):
        run, _ = started(FedGcn(rounds=1, hops=hops), parties, encoder)
        rows = run.go().ledger.rows()
        received.append(sum(row["received"] for row in rows if row["action"] == "sum_up: delivery"))
    assert received[0] < received[1]


def test_a_party_holds_its_sums_once():
    _, parties = small()
    run, _ = started(FedGcn(rounds=1), parties, Encoder.named("gcn")(hidden=4), side_by_side=False)
    run.go()
    for site in run.transport.sites:
        assert not any(site.inbox.values())
        with site.asked():
            (prepared,) = site.kept.each("prepared")
            assert site.cohort.block.x.data_ptr() == prepared["x"].data_ptr()


@pytest.mark.parametrize("local", [{"fan_out": [9]}, {"clusters": 1}])
def test_all_neighbours_and_one_cluster_are_the_whole_graph(local):
    _, parties = small()
    weights = []
    for own in ({}, local):
        method = FedGcn.read({"rounds": 2, "local": {"epochs": 3, **own}}, "fedgcn")
        run, _ = started(method, parties, Encoder.named("gcn")(hidden=4, dropout=0.0))
        weights.append(run.go().weights)
    assert_close(weights[1], weights[0], within=1e-9)


def test_the_first_layer_draws_no_neighbours():
    _, parties = small()
    method = FedGcn.read({"rounds": 1, "local": {"fan_out": [9, 9]}}, "fedgcn")
    with pytest.raises(IsthmusError, match=r"\[9, 9\] and the model reads 1 hop"):
        started(method, parties, Encoder.named("gcn")(hidden=4))[0].go()
