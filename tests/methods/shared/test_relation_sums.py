"""Sums over the neighbours of each relation are those of the whole typed graph, and know nothing of later rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from coupled_parties import started
from torch_geometric.data import HeteroData

from isthmus.data.datasets.ledgers import Ledgers
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool, items_per_party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.methods.fedgcn import FedGcn
from isthmus.nn.encoders import Encoder
from isthmus.nn.typed import MeanColumns

BANKS = Ledgers(parties=3, customers=12, transfers=10, days=20, laundering=0.1, borders=True)


def shop(seed: int) -> Party:
    """A typed graph of which some edges have features, some types no columns, and some nodes no neighbours."""
    draw = torch.Generator().manual_seed(seed)
    counts, graph = {"person": 14, "shop": 9, "town": 4}, HeteroData()
    graph["person"].x, graph["shop"].x = (torch.randn(counts[name], 3, generator=draw) for name in ("person", "shop"))
    graph["town"].num_nodes = counts["town"]
    graph["person"].y = torch.arange(14) % 2
    graph["person"].train_mask, graph["person"].test_mask = torch.arange(14) < 9, torch.arange(14) >= 9
    for kind in (
        ("person", "knows", "person"), ("person", "pays", "shop"), ("shop", "serves", "person"), ("town", "has", "shop")
    ):  # fmt: skip
        ends = [torch.randint(counts[end], (18,), generator=draw) for end in (kind[0], kind[2])]
        graph[kind].edge_index = torch.stack(ends)
        if kind[1] in ("knows", "serves"):
            graph[kind].edge_attr = torch.randn(18, 2, generator=draw)
    return Party.of_graph("whole", graph, ids=torch.randperm(27, generator=draw) + 50)


def cut(whole: Party, parties: int = 4) -> list[Party]:
    owner = (torch.arange(whole.nodes) * 7 + 3).remainder(parties)
    return Given().cut(Pool(whole, 2, items_per_party(owner, parties)), parties, seed=0)


def means_by_loops(whole: Party) -> torch.Tensor:
    """The means over the in-neighbours of each node of the whole graph, edge by edge."""
    schema, graph = whole.schema, whole.graph
    columns = MeanColumns(schema)
    found, counts = torch.zeros(whole.nodes, columns.width), torch.zeros(whole.nodes, columns.width)
    for edge, (source, target) in enumerate(graph.edge_index.t().tolist()):
        at = int(graph.edge_type[edge])
        of = schema.columns(schema.ends[at][0])
        found[target, columns.features(at)] += graph.x[source, of]
        counts[target, columns.features(at)] += 1
        if schema.edges[at][1]:
            found[target, columns.attributes(at)] += graph.edge_attr[edge, schema.edge_columns(at)]
            counts[target, columns.attributes(at)] += 1
    return found / counts.clamp(min=1)


def trained_on(parties: list[Party], encoder: str = "rgcn", **options):
    """What the parties train on after the sums, the trained site, and its weights."""
    run, module = started(FedGcn(rounds=1), parties, Encoder.named(encoder)(hidden=4, dropout=0.0, **options))
    weights = run.go().weights
    (site,) = run.transport.sites
    return site.cohort_of(range(len(parties))).parties, site, module, weights


def assert_means_are_those_of(whole: Party, parties: list[Party], made) -> None:
    due = means_by_loops(whole)
    place = {number: at for at, number in enumerate(whole.ids.tolist())}
    for party, own in zip(parties, made, strict=True):
        at = torch.tensor([place[number] for number in party.ids.tolist()])
        torch.testing.assert_close(own.graph.x[:, party.features :], due[at], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_each_relation_are_those_of_the_whole_graph(seed):
    whole = shop(seed)
    parties = cut(whole)
    assert sum(len(party.border.arriving) for party in parties) > 20
    made, *_ = trained_on(parties)
    assert_means_are_those_of(whole, parties, made)


@pytest.mark.parametrize(("encoder", "options"), [("rgcn", {"bases": 2}), ("hetero-sage", {})])
def test_a_model_of_one_layer_is_exact(encoder, options):
    whole = shop(3)
    parties = cut(whole)
    _, site, module, weights = trained_on(parties, encoder, layers=1, **options)
    module.load_state_dict(weights)
    graph = whole.graph
    due = module(graph.x, graph.edge_index, graph.node_type, graph.edge_type, graph.edge_attr).detach()
    place = {number: at for at, number in enumerate(whole.ids.tolist())}
    for party, output in zip(parties, site.predict_all(weights).split(site.cohort.sizes), strict=True):
        at = torch.tensor([place[number] for number in party.ids.tolist()])
        own = party.labelled_type
        torch.testing.assert_close(output[own], due[at][own], atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def banks():
    return list(BANKS.load(0).parties)


def test_banks_that_share_transfers_get_the_sums_of_the_pooled_graph(banks):
    made, *_ = trained_on(banks)
    pooled = pool_parties(banks)
    assert_means_are_those_of(pooled, banks, made)
    own = [MeanColumns(party.schema).width for party in banks]
    apart = [means_by_loops(party) for party in banks]
    assert any(
        not torch.allclose(each.graph.x[:, -width:], alone) for each, width, alone in zip(made, own, apart, strict=True)
    )


def test_nothing_of_a_later_transfer_is_in_a_sum(banks):
    _, transfers = BANKS.draw(0)
    time = torch.from_numpy(transfers.time)
    moment = time.median()
    changed = []
    for party in banks:
        later = (party.ids < time.numel()) & (time[party.ids.clamp(max=time.numel() - 1)] >= moment)
        graph = party.graph.clone()
        graph.x = torch.where(later[:, None], graph.x + 100, graph.x)
        changed.append((party.with_graph(graph, party.border), later))
    one, *_ = trained_on(banks)
    two, *_ = trained_on([party for party, _ in changed])
    for before, after, (_, later) in zip(one, two, changed, strict=True):
        assert torch.equal(before.graph.x[~later], after.graph.x[~later])
        assert not torch.equal(
            before.graph.x[later, before.schema.width :], after.graph.x[later, before.schema.width :]
        )


@pytest.mark.parametrize("encoder", ["hgt", "gcn"])
def test_encoders_that_take_no_means_are_refused_in_one_line(encoder):
    with pytest.raises(IsthmusError, match=r"'fedgcn' sums each relation .*: use encoder rgcn or hetero-sage"):
        trained_on(cut(shop(0)), encoder)


def test_edges_at_several_parties_are_refused_in_one_line():
    joined = BANKS.model_copy(update={"borders": False}).load(0).parties
    with pytest.raises(IsthmusError, match=r"is for graphs whose edges have one owner each, .* edges have several"):
        trained_on(list(joined))


def test_border_edges_that_nobody_sums_up_are_refused_in_one_line():
    parties = cut(shop(0))
    one = replace(parties[0], border=parties[0].border.arriving)
    with pytest.raises(
        IsthmusError, match=r"'fedgcn': \d+ border edges arrive that their source's party does not list"
    ):
        trained_on([one, *parties[1:]])
    assert trained_on(parties[1:]), "edges from parties that take no part have no effect"
