"""Sums over neighbours at all parties, hop by hop, are those of the whole graph; with noise they hide its edges."""

import math
from dataclasses import replace

import pytest
import torch
from coupled_parties import coupled, dense, small, started
from hypothesis import given, settings

from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.private import PrivateEdges, PrivateNodes
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.methods.fedcog import FedCog
from isthmus.methods.fedgcn import FedGcn
from isthmus.methods.shared.hop_sums import add_up_hops
from isthmus.nn.aggregation import Aggregated, aggregations
from isthmus.nn.encoders import Encoder
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.items import STEPS
from isthmus.privacy.options import EdgePrivacy, NodePrivacy
from isthmus.privacy.random_bits import NoiseKey
from isthmus.study.loop import Run
from isthmus.study.private import private_answers
from isthmus.study.setup import module_for, task_for


def gap(**options):
    return Encoder.named("gap")(hidden=4, width=3, dropout=0.0, **options)


METHODS = [FedGcn(rounds=1), FedCog(rounds=1, lnnc=False, through="totals")]
"""Those that make such sums."""


def hops_of(site):
    """By party the hops that it trains on."""
    width = site.reader.depth * site.reader.width
    return [party.graph.x[:, -width:] for party in site.cohort_of(range(len(site.hosted))).parties]


def literal(reader: Aggregated, whole):
    """The hops of the whole graph, node by node."""
    neighbours = [set() for _ in range(whole.nodes)]
    for source, target in whole.graph.edge_index.T.tolist():
        if source != target:
            neighbours[target].add(source)
    h, found = reader.first(dense(whole).double()), []
    for _ in range(reader.depth):
        sums = torch.stack([sum((h[j] for j in sorted(near)), torch.zeros(h.size(1)).double()) for near in neighbours])
        lengths = sums.norm(dim=1, keepdim=True)
        h = torch.where(lengths > 0, sums / lengths, sums)
        found.append(h)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@settings(max_examples=8)
@given(drawn=coupled())
def test_hops_are_those_of_the_whole_graph(method, drawn):
    whole, parties = drawn
    run, module = started(method, parties, gap(hops=2))
    run.go()
    (site,) = run.transport.sites
    due = literal(aggregations(module)[0], whole)
    at = {node: row for row, node in enumerate(whole.ids.tolist())}
    for party, hops in zip(parties, hops_of(site), strict=True):
        rows = due[[at[node] for node in party.ids.tolist()]]
        torch.testing.assert_close(hops, rows.to(hops), rtol=1e-4, atol=1e-5)
    assert not any(site.inbox.values())
    assert all(party.graph.edge_index.numel() == 0 for party in site.cohort_of(range(len(parties))).parties)


def private_run(parties, privacy, method=METHODS[0]):
    task = task_for(parties, 3)
    options = {"weighting": "even", "select": "last", "local": {"optimizer": "sgd"}}
    method = type(method).read({**method.model_dump(exclude_unset=True), **options}, "method")
    return Run(method, parties, task, module_for(gap(), parties, task, 0), privacy=privacy, side_by_side=False)


UNITS = [EdgePrivacy(epsilon=1e9), NodePrivacy(epsilon=1e9, neighbours=3)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("privacy", UNITS, ids=["edge", "node"])
def test_noise_that_is_next_to_nothing_leads_to_exact_hops(privacy, method):
    _, parties = small()
    exact, _ = started(method, parties, gap())
    exact.go()
    noisy = private_run(parties, privacy, method)
    noisy.go()
    for one, other in zip(
        hops_of(exact.transport.sites[0]), [hops_of(each)[0] for each in noisy.transport.sites], strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=0)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("privacy", UNITS, ids=["edge", "node"])
def test_the_server_learns_the_same_whatever_the_edges_are(privacy, method):
    """Ids, sizes, rows and counts are equal with a border and without one."""
    told = []
    for cross in (True, False):
        _, parties = small()
        if not cross:
            parties = [replace(party, border=None) for party in parties]
        ledger = private_run(parties, privacy, method).go().ledger
        told.append(
            [row for row in ledger.rows() if row["action"] in ("known", "add_hop", "add_hop: delivery", "settle")]
        )
    assert told[0] == told[1]
    assert len(told[0]) > 4


@pytest.mark.parametrize(
    ("privacy", "kind", "changes"),
    [(EdgePrivacy(epsilon=4.0), PrivateEdges, 2), (NodePrivacy(epsilon=4.0, neighbours=5), PrivateNodes, 5)],
)
def test_what_a_party_reads_has_all_noise_without_its_own_share(privacy, kind, changes):
    plan = HopPlan.of(privacy, 1)
    h, none = torch.zeros(1, 4, dtype=torch.float64), torch.empty(2, 0, dtype=torch.long)
    parts = [plan.part(h, none, 3000, 4, NoiseKey(7), name, 1) for name in "abcd"]
    for reader in range(4):
        rest = sum(part for at, part in enumerate(parts) if at != reader)
        assert rest.dtype == torch.long  # whole numbers: a rounded part would tell more than the sum
        assert float(rest.double().std()) / STEPS == pytest.approx(plan.multiplier * math.sqrt(changes), rel=0.03)
    with pytest.raises(IsthmusError, match="there is no noise that it does not know"):
        plan.part(h, none, 10, 1, NoiseKey(7), "a", 1)


def test_an_edge_that_crosses_changes_one_row_at_each_end_by_one_length():
    """As large a change as an edge inside a party makes: the noise is sized for both alike."""
    _, parties = small()
    made = []
    for held in (parties, [replace(party, border=None) for party in parties]):
        site, *_ = private_run(held, EdgePrivacy(epsilon=1e9)).transport.sites
        reply = site.answer("add_hop", {"hop": 1, "ids": torch.arange(6), "shares": 2}, ("a",))
        made.append(reply.columns["sum"][0])
    lengths = ((made[0] - made[1]).double() / STEPS).norm(dim=1)
    others = parties[0].border.outer.unique().tolist()
    assert others
    for node, length in enumerate(lengths.tolist()):
        assert length == pytest.approx(float(node in others), abs=1e-3)


def test_nodes_with_more_neighbours_at_all_parties_than_promised_are_refused():
    _, parties = small()
    within = [int(torch.bincount(party.graph.edge_index[0]).max()) for party in parties]
    assert max(within) == 1  # one node has two neighbours, both elsewhere
    with pytest.raises(IsthmusError, match=r"has a node with edges to more than 1 others: set privacy\.neighbours"):
        private_run(parties, NodePrivacy(epsilon=8.0, neighbours=1)).go()


@pytest.mark.parametrize("ids", [[], [5, 4, 3, 2, 1, 0], [0, 1, 2, 2], [0, 1, 3, 4, 5], [[0, 1, 2]], [0.0, 1.0, 2.0]])
@pytest.mark.parametrize("cross", [True, False])
def test_an_answer_does_not_follow_from_ids_that_the_server_leaves_out(ids, cross):
    _, parties = small()
    held = parties if cross else [replace(party, border=None) for party in parties]
    site, *_ = private_run(held, EdgePrivacy(epsilon=8.0)).transport.sites
    reply = site.answer("add_hop", {"hop": 1, "ids": torch.tensor(ids), "shares": 2}, ("a",))
    assert "refused: the ids in the request are not those of all parties' nodes" in reply.failures["a"]


@pytest.mark.parametrize("repeatable", [True, False])
def test_two_requests_get_different_noise(repeatable):
    """Equal noise would cancel, and leave the difference of two sums bare."""
    plan = HopPlan.of(EdgePrivacy(epsilon=8.0), 2)
    _, parties = small()
    task, method = task_for(parties, 3), METHODS[0]
    module = module_for(gap(), parties, task, 0)
    private = private_answers(EdgePrivacy(epsilon=8.0), method, module, task)
    key = 3 if repeatable else bytes(range(32))
    site = method.site([parties[0]], task, module, private=private, noise_key=key)
    asked = [{"hop": 1, "ids": torch.arange(6), "shares": 2}, {"hop": 1, "ids": torch.arange(7), "shares": 2}]
    same, one, other = (site.answer("add_hop", each, ("a",)).columns["sum"][0] for each in (asked[0], *asked))
    assert torch.equal(same, one)  # asked again, it says nothing new
    differences = (one - other[:6]).double() / STEPS
    assert float(differences.std()) > plan.multiplier


def test_a_request_says_among_how_many_parties_the_noise_is_shared():
    _, parties = small()
    site, *_ = private_run(parties, EdgePrivacy(epsilon=8.0)).transport.sites
    request = {"hop": 1, "ids": torch.arange(6), "shares": 2}
    assert site.least("add_hop", request) == 2
    for wrong in (Each({"a": request}), {**request, "shares": torch.tensor(9)}, {**request, "shares": True}):
        with pytest.raises(IsthmusError, match="does not say among how many parties"):
            site.least("add_hop", wrong)
    reply = site.answer("add_hop", {"hop": 1, "ids": torch.arange(6)}, ("a",))
    assert "does not say among how many parties" in reply.failures["a"]


def test_nodes_that_several_parties_hold_are_refused_in_private():
    """One of them would read in its row what the others add to it, edge by edge."""
    _, parties = small()
    twice = [replace(party, ids=torch.arange(party.nodes), border=None) for party in parties]
    task, privacy = task_for(twice, 3), EdgePrivacy(epsilon=8.0)
    method, module = FedGcn(rounds=1), module_for(gap(), twice, task, 0)
    private = private_answers(privacy, method, module, task)
    federation = Federation(LocalTransport([method.site(twice, task, module, private=private)]), private=private)
    with pytest.raises(IsthmusError, match="several parties hold 3 of the nodes: each must have one owner"):
        add_up_hops(federation, 2)


def test_directed_edges_are_refused():
    _, parties = small()
    parties = [party.with_edges(party.graph.edge_index[:, :1]) for party in parties]
    with pytest.raises(IsthmusError, match="edges do not run back"):
        started(FedGcn(rounds=1), parties, gap())[0].go()
