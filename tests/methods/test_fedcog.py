"""FedCog, its GCN form and FedGCN give what one graph would give."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional as F
from torch_geometric.data import Data

from isthmus.data.coupling import decouple
from isthmus.data.partition.given import Given
from isthmus.data.party import Border, Party
from isthmus.data.pool import Pool, items_per_party
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedcog import FedCog
from isthmus.methods.fedcog_gcn import FedCogGcn
from isthmus.methods.feddyn import FedDyn
from isthmus.methods.fedgcn import FedGcn
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for

pytestmark = pytest.mark.usefixtures("double_precision")
DIFFUSING = {
    "sgc": {"hops": 2},
    "gbp": {"hops": 3, "r": 0.3},
    "appnp": {"hops": 3, "first": "propagate"},
    "gprgnn": {"hops": 2, "first": "propagate"},
}


@some.composite
def coupled(draw, most=24):
    """A graph and its cut: isolated nodes, nodes with only crossing edges, parties of one node, weights, sparse x."""
    nodes = draw(some.integers(2, most))
    parties = draw(some.integers(1, min(nodes, 6)))
    source = torch.Generator().manual_seed(draw(some.integers(0, 2**20)))
    pairs = torch.randint(nodes, (2, draw(some.integers(0, 3 * nodes))), generator=source)
    pairs = torch.unique(torch.stack([pairs.amin(0), pairs.amax(0)])[:, pairs[0] != pairs[1]], dim=1)
    x = torch.randn(nodes, 5, generator=source) * (torch.rand(nodes, 5, generator=source) < 0.6)
    graph = Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))
    graph.y = torch.randint(3, (nodes,), generator=source)
    if draw(some.booleans()):
        graph.edge_weight = torch.rand(pairs.size(1), generator=source).repeat(2) + 0.1
    graph.train_mask = torch.rand(nodes, generator=source) < 0.5
    graph.train_mask[0] = True
    graph.val_mask = graph.test_mask = ~graph.train_mask
    graph.val_mask = torch.zeros_like(graph.train_mask)
    if not bool(graph.test_mask.any()):
        graph.train_mask[-1], graph.test_mask[-1] = False, True
    if draw(some.booleans()):
        graph.x = graph.x.to_sparse_csr()
    whole = Party.of_graph("pooled", graph, ids=torch.randperm(nodes, generator=source) + 100)
    owner = torch.cat([torch.arange(parties), torch.randint(parties, (nodes - parties,), generator=source)])
    owner = owner[torch.randperm(nodes, generator=source)]
    pool = Pool(whole, 3, items_per_party(owner, parties))
    return whole, Given().cut(pool, parties, seed=0)


def started(method, parties, encoder, *, side_by_side=True):
    task = task_for(parties, 3)
    module = module_for(encoder, parties, task, 0)
    return Run(method, parties, task, module, seed=0, side_by_side=side_by_side), copy.deepcopy(module)


def trained_on(run):
    """What every node trains on after the set-up, by its id."""
    return {
        node: row
        for site in run.transport.sites
        for party in site.cohort_of(range(len(site.hosted))).parties
        for node, row in zip(party.ids.tolist(), party.graph.x.to_dense(), strict=False)
    }


def dense(party):
    return party.graph.x.to_dense() if party.graph.x.layout != torch.strided else party.graph.x


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


def small(cross=True):
    """Two parties of three nodes: 0 - 1, 3 - 4 inside; 2 has edges to 3 and 5 only, 5 to 2 only."""
    edges = torch.tensor([[0, 3, 2, 2], [1, 4, 3, 5]])
    graph = Data(x=torch.eye(6) + 0.1, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.arange(6) % 2)
    graph.train_mask, graph.test_mask = torch.arange(6) < 4, torch.arange(6) >= 4
    whole = Party.of_graph("pooled", graph, ids=torch.arange(6))
    pool = Pool(whole, 2, items_per_party(torch.tensor([0, 0, 0, 1, 1, 1]), 2), names=("a", "b"))
    return whole, Given().cut(pool, 2, seed=0)


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
    run, _ = started(FedCog(rounds=1), [one_way, parties[1]], Encoder.named("sgc")())
    with pytest.raises(IsthmusError, match="run one way only"):
        run.go()
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
