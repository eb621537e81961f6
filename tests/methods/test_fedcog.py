"""FedCog's propagation over a coupled graph is that over the whole graph, and messages carry sums only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from coupled_parties import coupled, dense, small, started
from hypothesis import given, settings
from hypothesis import strategies as some
from torch_geometric.data import Data

from isthmus.data.coupling import decouple
from isthmus.data.party import Border, Party
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedcog import FedCog, _scaled
from isthmus.methods.fedcog_gcn import FedCogGcn
from isthmus.methods.feddyn import FedDyn
from isthmus.methods.fedgcn import FedGcn
from isthmus.nn.encoders import Encoder

pytestmark = pytest.mark.usefixtures("double_precision")

DIFFUSING = {
    "sgc": {"hops": 2},
    "gbp": {"hops": 3, "r": 0.3},
    "appnp": {"hops": 3, "first": "propagate"},
    "gprgnn": {"hops": 2, "first": "propagate"},
}


def trained_on(run):
    """What every node trains on after the set-up, by its id."""
    return {
        node: row
        for site in run.transport.sites
        for party in site.cohort_of(range(len(site.hosted))).parties
        for node, row in zip(party.ids.tolist(), party.graph.x.to_dense(), strict=False)
    }


@settings(max_examples=15)
@given(coupled(), some.sampled_from(sorted(DIFFUSING)), some.booleans(), some.sampled_from(["letters", "totals"]))
def test_embeddings_are_those_of_the_whole_graph(drawn, name, side_by_side, through):
    whole, parties = drawn
    encoder = Encoder.named(name).read(DIFFUSING[name], name)
    run, module = started(FedCog(rounds=1, lnnc=False, through=through), parties, encoder, side_by_side=side_by_side)
    run.go()
    due = module.diffusion.diffuse(dense(whole), whole.graph.edge_index, whole.graph.get("edge_weight"))
    found = trained_on(run)
    torch.testing.assert_close(torch.stack([found[node] for node in whole.ids.tolist()]), due, rtol=0, atol=1e-10)


def test_the_server_reads_nothing_of_the_propagation():
    _, parties = small()
    run, _ = started(FedCog(rounds=1), parties, Encoder.named("sgc")())
    rows = [row for row in run.go().ledger.rows() if row["action"].startswith(("propagate", "settle"))]
    assert {row["eyes"] for row in rows if row["action"].startswith("propagate")} == {"the addressed party"}
    assert sum(row["sent"] for row in rows if row["action"] == "settle") < 64


def test_lnnc_only_adds_edges_and_leaves_nobody_alone():
    _, parties = small()
    before, after = decouple(parties), decouple(parties, join_isolated=True)
    assert ((after.inner - before.inner).data >= 0).all()
    assert after.added == 2  # 2 in the first party, 5 in the second: 4's neighbour is 3
    inside = after.inner.toarray() - torch.eye(6).numpy()
    assert (inside.sum(1) > 0).all()


@settings(max_examples=30)
@given(coupled())
def test_lnnc_joins_every_node_whose_party_has_two(drawn):
    _, parties = drawn
    before, after = decouple(parties).inner.toarray(), decouple(parties, join_isolated=True).inner.toarray()
    assert ((after - before) >= 0).all()
    first = 0
    for party in parties:
        own = after[first : first + party.nodes, first : first + party.nodes].copy()
        own[range(party.nodes), range(party.nodes)] = 0
        if party.nodes > 1:
            assert (own.sum(1) > 0).all()
        untouched = before[first : first + party.nodes].sum(1) > 1 + 1e-9
        assert (own.sum(1) > 0)[untouched].all()
        first += party.nodes


def test_lnnc_finds_the_nearest_by_angle():
    x = torch.tensor([[1.0, 0.0], [10.0, 9.0], [5.0, 0.5], [0.0, 0.0]])
    graph = Data(x=x, edge_index=torch.tensor([[1, 2], [2, 1]]), y=torch.zeros(4, dtype=torch.long))
    party = Party.of_graph("a", graph, ids=torch.arange(4))
    added = decouple([party], join_isolated=True).inner.toarray() - decouple([party]).inner.toarray()
    assert set(zip(*added.nonzero(), strict=True)) == {(0, 2), (2, 0), (3, 0), (0, 3)}  # 3 has no direction: the first


def test_sums_over_fewer_than_least_are_not_sent():
    _, parties = small()
    run, _ = started(FedCog(rounds=1, lnnc=False, min_neighbours=2), parties, Encoder.named("sgc")())
    kept: list[dict[str, list[int]]] = []
    send = run.transport.send

    def watched(command):
        if (command.do, command.action) == ("deliver", "propagate"):
            boxes = command.payload.values()
            kept.extend({sender: letter["ids"].tolist() for sender, letter in box.items()} for box in boxes)
        return send(command)

    run.transport.send = watched
    run.go()
    assert kept == [{"b": [2]}] * 2  # in both hops: two nodes of b are joined to 2, one of a to each of 3 and 5


def test_totals_show_nobody_s_part_and_come_to_the_same():
    _, parties = small()
    found = []
    for through in ("letters", "totals"):
        run, _ = started(FedCog(rounds=1, min_neighbours=2, through=through), parties, Encoder.named("sgc")())
        ledger = run.go().ledger
        found.append(trained_on(run))
    assert {row["action"]: row["eyes"] for row in ledger.rows() if row["action"] in ("border", "propagate_total")} == {
        "border": "server sees each answer",
        "propagate_total": "parties see the sum",
    }
    assert "propagate" not in {row["action"] for row in ledger.rows()}
    for node, row in found[0].items():
        torch.testing.assert_close(found[1][node], row)


def test_any_method_trains():
    _, parties = small()
    for trainer, kind in (({"name": "feddyn", "alpha": 0.1}, FedDyn), ({"name": "fedavg"}, FedAvg)):
        method = FedCog.read({"trainer": trainer, "rounds": 2, "local": {"epochs": 3}}, "fedcog")
        assert isinstance(method.training(), kind)
        assert (method.training().rounds, method.training().local.epochs) == (2, 3)
        run, _ = started(method, parties, Encoder.named("sgc")())
        assert "train" in {row["action"] for row in run.go().ledger.rows()}
    with pytest.raises(IsthmusError, match="'centralized' is no trainer"):
        FedCog.read({"trainer": {"name": "centralized"}}, "fedcog").training()
    with pytest.raises(IsthmusError, match="unknown option 'alpha'"):
        FedCog.read({"trainer": {"name": "fedavg", "alpha": 1}}, "fedcog").training()


def test_what_it_cannot_do_is_said_in_one_line():
    _, parties = small()
    with pytest.raises(IsthmusError, match="needs an encoder that propagates first"):
        started(FedCog(rounds=1), parties, Encoder.named("gat")())
    with pytest.raises(IsthmusError, match="use encoder gcn"):
        started(FedCogGcn(rounds=1), parties, Encoder.named("sgc")())
    one_way = replace(
        parties[0], graph=Data(x=parties[0].graph.x, edge_index=torch.tensor([[0], [1]]), y=torch.zeros(3).long())
    )
    with pytest.raises(
        IsthmusError, match="party 'a': some of its edges do not run back with the same weight, as this"
    ):
        started(FedCog(rounds=1), [one_way, parties[1]], Encoder.named("sgc")())
    with pytest.raises(IsthmusError, match="do not run back"):
        started(FedGcn(rounds=1), [one_way, parties[1]], Encoder.named("gcn")())
    started(FedGcn(rounds=1, hops=0), [one_way, parties[1]], Encoder.named("gcn")())[0].go()  # it adds nothing up
    stray = Border(torch.tensor([0]), torch.tensor([99]), torch.tensor([0]), ("b",))
    run, _ = started(FedCog(rounds=1), [replace(parties[0], border=stray), parties[1]], Encoder.named("sgc")())
    with pytest.raises(IsthmusError, match=r"party 'a': its list of edges to party 'b' differs"):
        run.go()


def test_edges_that_only_one_side_lists_stop_the_run():
    """A border edge less at one party would make sums wrong without a word."""
    _, parties = small()
    border = parties[0].border
    less = replace(
        parties[0], border=Border(border.inner[1:], border.outer[1:], border.owner[1:], border.owners, border.weight)
    )
    for method in (FedCog(rounds=1), FedCog(rounds=1, through="totals"), FedCogGcn(rounds=1)):
        encoder = "gcn" if isinstance(method, FedCogGcn) else "sgc"
        run, _ = started(method, [less, *parties[1:]], Encoder.named(encoder)())
        with pytest.raises(IsthmusError, match=r"its list of edges to .*party.* differs"):
            run.go()


def test_nodes_with_two_owners_are_refused():
    _, parties = small()
    twice = [replace(parties[0], border=None), replace(parties[0], name="twin", border=None)]
    for method in (FedCog(rounds=1), FedCogGcn(rounds=1), FedGcn(rounds=1)):
        with pytest.raises(IsthmusError, match="is for graphs whose nodes have one owner each"):
            started(method, twice, Encoder.named("sgc" if isinstance(method, FedCog) else "gcn")())


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_scaling_a_matrix_gives_the_bits_of_the_products(kind):
    draw = np.random.default_rng(0)
    matrix = scipy.sparse.csr_array(scipy.sparse.random_array((60, 60), density=0.3, rng=draw))
    left, right = draw.random((2, 60)).astype(kind)
    due = (scipy.sparse.diags_array(left) @ matrix.astype(kind) @ scipy.sparse.diags_array(right)).tocsr()
    found = _scaled(matrix, left, right)
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, part), getattr(due, part))
