"""What is held out is with nobody, what is no link is none in the whole graph, and every pair is with one party."""

import copy
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from isthmus.data import rows
from isthmus.data.cohort import Cohort
from isthmus.data.folder import degrees
from isthmus.data.pairs import assign_pairs, hold_out_links, sample_non_links
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.partition.given import Given
from isthmus.data.party import SPLITS, Pairs, Party
from isthmus.data.pool import Pool, items_per_party, numpy_generator
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError


def make_pool(seed, nodes, edges, *, both_ways=True, weighted=False):
    """A random graph with loops and repeated edges; its features tell the nodes apart, its ids are no positions."""
    source = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes, (2, edges), generator=source)
    if both_ways:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    ids = 7 * torch.randperm(nodes, generator=source) + 3
    graph = Data(x=torch.stack([ids, ids**2 % 101], dim=1).float(), edge_index=edge_index, y=torch.zeros(nodes).long())
    if weighted:  # a weight that tells the edge
        graph.edge_weight = (ids[edge_index[0]] * ids[edge_index[1]]).float()
    return Pool(Party.of_graph("pooled", graph, ids=ids), classes=2)


def names_of(count):
    return [f"p{at}" for at in range(count)]


def take_apart(whole, members):
    return cut_into_parties(whole.party, members, names_of(len(members)), coupled=True)


@st.composite
def studies(draw, shared=False):
    """A pool, what of it is held out, and parties with their pairs."""
    nodes = draw(st.integers(4, 30))
    whole = make_pool(
        draw(st.integers(0, 2**16)), nodes, draw(st.integers(0, 2 * nodes)),
        both_ways=draw(st.booleans()), weighted=draw(st.booleans()),
    )  # fmt: skip
    parties = draw(st.integers(1, min(5, nodes)))
    owner = torch.tensor(
        [*range(parties), *draw(st.lists(st.integers(0, parties - 1), min_size=nodes, max_size=nodes))]
    )
    members = list(items_per_party(owner[:nodes], parties))
    if shared:
        also = draw(st.lists(st.integers(0, nodes - 1), max_size=6))
        members = [torch.cat([held, torch.tensor(also, dtype=torch.long)]).unique() for held in members]
    seed = draw(st.integers(0, 3))
    shares = {"val": draw(st.sampled_from([0.0, 0.1, 0.3])), "test": draw(st.sampled_from([0.2, 0.5]))}
    links, every = len(linked(whole.party)), nodes * (nodes - 1) // 2
    if links + sum(round(share * links) for share in shares.values()) > every:
        shares = {"val": 0.0, "test": 0.0}
    held = hold_out_links(whole, **shares, seed=seed)
    return whole, held, assign_pairs(take_apart(held.pool, members), held, train=1.0, seed=seed)


def pairs_of(party, split=None):
    """Of a party's pairs the two ids, in any order, and whether they are a link."""
    first, second, y = party.ids[party.pairs.first], party.pairs.second, party.graph.y
    at = slice(None) if split is None else getattr(party, split)
    ends = torch.stack([first[at], second[at]], dim=1).tolist()
    return [(frozenset(each), bool(link)) for each, link in zip(ends, y[at].tolist(), strict=True)]


def linked(party):
    """Ids that edges join, within the party and across its border; loops left out."""
    ids, border = party.ids, party.border
    found = {frozenset(each) for each in ids[party.graph.edge_index].t().tolist()}
    if border is not None:
        found |= {frozenset(each) for each in torch.stack([border.outer, ids[border.inner]], dim=1).tolist()}
    return {each for each in found if len(each) == 2}


@given(st.booleans().flatmap(lambda shared: studies(shared=shared)))
@settings(max_examples=30)
def test_what_is_asked_is_with_nobody_and_what_is_no_link_is_none_of_the_whole(study):
    whole, held, parties = study
    links = linked(whole.party)
    asked = [pair for party in parties for split in ("val", "test") for pair in pairs_of(party, split)]
    for party in parties:
        assert not linked(party) & {pair for pair, _ in asked}
        assert not {pair for pair, _ in pairs_of(party, "train")} & {pair for pair, _ in asked}
    every = [pair for party in parties for pair in pairs_of(party)]
    assert all((pair in links) == link for pair, link in every)
    assert all(len(pair) == 2 for pair, _ in every)
    assert len({pair for pair, _ in every}) == len(every), "a pair is asked about twice"
    assert len(asked) == held.val.size(1) + held.test.size(1)
    for split in ("val", "test"):
        told = [link for party in parties for _, link in pairs_of(party, split)]
        assert sum(told) * 2 == len(told)
    trained = {pair for party in parties for pair, link in pairs_of(party, "train") if link}
    assert trained == links - {pair for pair, link in asked if link}


def with_degrees(party, sparse):
    """The party with a column of its own, and its nodes' degrees."""
    degree = torch.from_numpy(degrees.encode(neighbours(party))).float()
    graph = copy.copy(party.graph)
    graph.x = torch.cat([graph.x[:, :1], degree, graph.x[:, 1:]], dim=1)
    graph.x = rows.to_csr(graph.x) if sparse else graph.x
    return replace(party, graph=graph, structural=torch.arange(1, degrees.MOST + 3))


def neighbours(party):
    """From how many different nodes edges arrive at each of a party's nodes, counted one by one."""
    ids, border = party.ids.tolist(), party.border
    found = {(ids[source], target) for source, target in party.graph.edge_index.t().tolist()}
    if border is not None:
        found |= set(zip(border.outer.tolist(), border.inner.tolist(), strict=True))
    return np.array([sum(end == at and start != ids[at] for start, end in found) for at in range(party.nodes)])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
def test_degrees_do_not_tell_which_links_are_held_out(both_ways, sparse):
    whole = make_pool(0, 60, 150, both_ways=both_ways)
    parts = [with_degrees(party, sparse) for party in take_apart(whole, list(torch.arange(60).split(20)))]
    pooled = with_degrees(whole.party, sparse)
    for pool in (Pool(pooled, classes=2), Pool(None, classes=2, parties=tuple(parts))):
        held = hold_out_links(pool, val=0.1, test=0.3, seed=0).pool
        kept = list(held.parties or [held.party])
        for before, party in zip(parts if held.parties else [pooled], kept, strict=True):
            x, due = rows.to_dense(party.graph.x), rows.to_dense(before.graph.x)
            assert rows.is_sparse(party.graph.x) == sparse
            assert degrees.decode(x[:, party.structural].numpy()).tolist() == neighbours(party).tolist()
            assert neighbours(party).sum() < neighbours(before).sum()
            assert torch.equal(x[:, [0, -1]], due[:, [0, -1]])


def test_other_features_that_follow_from_edges_are_refused():
    pool = make_pool(0, 30, 60)
    told = replace(pool.party, structural=torch.tensor([1]))
    with pytest.raises(IsthmusError, match=r"party 'pooled': some features .* may tell which links are held out"):
        hold_out_links(replace(pool, whole=told), val=0.1, test=0.1, seed=0)


@given(studies())
@settings(max_examples=30)
def test_a_pair_is_with_the_holder_of_its_first_node_and_both_ends_are_known(study):
    whole, _, parties = study
    asked = {pair for party in parties for split in ("val", "test") for pair, _ in pairs_of(party, split)}
    holder = {node: party.name for party in parties for node in party.ids.tolist()}
    for party in parties:
        pairs = party.pairs
        owners = [party.name if at < 0 else pairs.owners[at] for at in pairs.owner.tolist()]
        assert owners == [holder[node] for node in pairs.second.tolist()]
        own = [train and name == party.name for train, name in zip(party.train.tolist(), owners, strict=True)]
        assert party.training_mask.tolist() == own
        trained = [pair for pair, on in zip(pairs_of(party), own, strict=True) if on]
        count = sum(link for _, link in trained)
        nodes = set(party.ids.tolist())
        taken = {pair for pair in linked(whole.party) | asked if pair <= nodes}
        assert len(trained) - count == min(count, party.nodes * (party.nodes - 1) // 2 - len(taken))


@given(st.booleans().flatmap(lambda shared: studies(shared=shared)))
@settings(max_examples=30)
def test_what_a_party_lends_is_what_others_need(study):
    _, _, parties = study
    cohort = Cohort(tuple(parties))
    by_name = dict(zip(cohort.names, cohort.borrowed, strict=True))
    for party in parties:
        for at, name in enumerate(party.pairs.owners):
            lent = party.ids[party.pairs.lent[party.pairs.borrower == at]]
            assert torch.equal(lent, by_name[name].get(party.name, lent[:0]))
    borrowed = [ids for owned in cohort.borrowed for ids in owned.values()]
    assert sum(ids.numel() for ids in borrowed) == sum(party.pairs.lent.numel() for party in parties)
    ids = torch.cat([*(party.ids for party in parties), *borrowed])
    due = torch.cat([torch.stack([p.ids[p.pairs.first], p.pairs.second], dim=1) for p in parties])
    read = torch.cat([party.training_mask | party.val | party.test for party in parties])
    assert torch.equal(ids[cohort.pair_rows][read], due[read])
    assert bool((cohort.pair_rows[~read, 1] == -1).all())
    for at, party in enumerate(parties):  # alone it reads the same pairs
        alone = Cohort((party,))
        second = torch.cat([party.ids, *alone.borrowed[0].values()])[alone.pair_rows[:, 1]]
        assert torch.equal(second[party.training_mask], party.pairs.second[party.training_mask])
        assert cohort.counts("train")[at] == alone.counts("train")[0] == party.training_mask.sum()


@given(st.booleans().flatmap(lambda shared: studies(shared=shared)))
@settings(max_examples=30)
def test_pooled_parties_hold_the_same_graph_and_the_same_pairs(study):
    _, held, parties = study
    whole = pool_parties(parties)
    assert linked(whole) == linked(held.pool.party)
    assert whole.pairs.owners == ()
    for split in SPLITS:
        assert sorted(map(str, pairs_of(whole, split))) == sorted(
            str(pair) for party in parties for pair in pairs_of(party, split)
        )
    assert bool((whole.training_mask == whole.train).all())
    assert torch.equal(whole.graph.x[:, 0].long(), whole.ids)


@given(studies())
@settings(max_examples=25)
def test_weights_stay_with_their_edges(study):
    whole, held, parties = study
    if "edge_weight" not in whole.party.graph:
        return
    for party in [held.pool.party, *parties]:
        ends = party.ids[party.graph.edge_index]
        assert torch.equal(party.graph.edge_weight, ends.prod(0).float())
        if party.border is not None:
            assert torch.equal(party.border.weight, (party.border.outer * party.ids[party.border.inner]).float())


@given(st.integers(1, 12), st.integers(0, 2**16), st.data())
@settings(max_examples=30)
def test_absent_pairs_are_any_of_those_not_taken(nodes, seed, data):
    every = nodes * (nodes - 1) // 2
    taken = sorted(data.draw(st.sets(st.integers(0, max(0, every - 1)), max_size=every)) if every else [])
    count = data.draw(st.integers(0, every + 2))
    found = sample_non_links(
        nodes, torch.tensor(taken, dtype=torch.long), count, numpy_generator(seed, "test")
    ).tolist()
    assert found == sorted(set(found))
    assert len(found) == min(count, every - len(taken))
    assert set(found) <= set(range(every)) - set(taken)


def test_absent_pairs_are_drawn_evenly():
    draw, taken = numpy_generator(0, "test"), torch.tensor([0, 4, 5, 9])
    found = torch.cat([sample_non_links(5, taken, 2, draw) for _ in range(3000)]).bincount(minlength=10)
    free = [1, 2, 3, 6, 7, 8]
    assert found[taken].sum() == 0
    assert (found[free] - 1000).abs().max() < 120  # four standard deviations


def test_pairs_among_very_many_nodes_are_the_links_there():
    nodes = 400_001
    links = torch.tensor([[0, 5, nodes - 2, 7, 1], [nodes - 1, nodes - 1, nodes - 1, nodes - 2, 2]])
    graph = Data(x=torch.zeros(nodes, 1), edge_index=links, y=torch.zeros(nodes).long())
    held = hold_out_links(Pool(Party.of_graph("pooled", graph), classes=2), val=0.4, test=0.4, seed=0)
    (party,) = assign_pairs(
        cut_into_parties(held.pool.party, [torch.arange(nodes)], ["all"], coupled=True), held, train=1.0, seed=0
    )
    assert {pair for pair, link in pairs_of(party) if link} == {frozenset(each) for each in links.t().tolist()}


def test_the_same_seed_holds_out_the_same_and_another_other_links():
    whole = make_pool(0, 40, 80)
    first, again, other = (hold_out_links(whole, val=0.1, test=0.2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.test, again.test)
    assert torch.equal(first.val, again.val)
    assert not torch.equal(first.test, other.test)
    parties = take_apart(first.pool, items_per_party(torch.arange(40) % 3, 3))
    once, twice, else_ = (assign_pairs(parties, first, train=0.7, seed=seed) for seed in (0, 0, 1))
    assert [pairs_of(party) for party in once] == [pairs_of(party) for party in twice]
    assert [pairs_of(party, "train") for party in once] != [pairs_of(party, "train") for party in else_]
    assert [pairs_of(party, "test") for party in once] == [pairs_of(party, "test") for party in else_]


def test_a_share_of_the_links_left_is_trained_on_and_all_of_them_stay():
    whole = make_pool(0, 40, 80)
    held = hold_out_links(whole, val=0.1, test=0.2, seed=0)
    parties = assign_pairs(take_apart(held.pool, items_per_party(torch.arange(40) % 3, 3)), held, train=0.5, seed=0)
    left = linked(held.pool.party)
    trained = [pair for party in parties for pair, link in pairs_of(party, "train") if link]
    assert len(trained) == round(0.5 * len(left))
    assert linked(pool_parties(parties)) == left


def test_links_leave_data_that_come_as_parties_with_shared_nodes():
    whole = make_pool(1, 30, 60, weighted=True)
    members = [torch.arange(0, 14), torch.arange(10, 24), torch.arange(20, 30)]
    came = Pool(None, 2, parties=tuple(take_apart(whole, members)))
    held = hold_out_links(came, val=0.1, test=0.3, seed=0)
    parties = assign_pairs(Given().cut(held.pool, 3, 0), held, train=1.0, seed=0)
    asked = {pair for party in parties for split in ("val", "test") for pair, _ in pairs_of(party, split)}
    assert asked
    assert not any(linked(party) & asked for party in parties)
    assert not linked(pool_parties(parties)) & asked
    asked_links = asked & linked(whole.party)
    assert linked(pool_parties(parties)) | asked_links == linked(pool_parties(came.parties))


def test_no_pair_joins_parties_that_no_link_joins():
    members = [torch.arange(0, 20), torch.arange(20, 30), torch.arange(30, 50)]
    alone = cut_into_parties(make_pool(1, 50, 300).party, members, names_of(3), coupled=False)
    held = hold_out_links(Pool(None, 2, parties=tuple(alone)), val=0.2, test=0.3, seed=0)
    parties = assign_pairs(Given().cut(held.pool, 3, 0), held, train=1.0, seed=0)
    every = {pair for party in parties for pair, _ in pairs_of(party)}
    own = [set(party.ids.tolist()) for party in parties]
    assert all(any(pair <= ids for ids in own) for pair in every)
    for party in parties:
        asked = [link for split in ("val", "test") for _, link in pairs_of(party, split)]
        assert 2 * sum(asked) == len(asked) > 0
    links = set().union(*(linked(party) for party in alone))
    assert not any(pair in links for party in parties for pair, link in pairs_of(party) if not link)


def test_pairs_that_end_at_nodes_of_nobody_are_left_out():
    held = hold_out_links(make_pool(0, 30, 60), val=0.0, test=0.4, seed=0)
    parties = assign_pairs(take_apart(held.pool, [torch.arange(0, 12), torch.arange(12, 20)]), held, train=1.0, seed=0)
    there = set(torch.cat([party.ids for party in parties]).tolist())
    every = [pair for party in parties for pair, _ in pairs_of(party)]
    assert every
    assert all(pair <= there for pair in every)


def test_edges_that_are_dropped_by_the_cut_are_trained_on_by_nobody():
    whole = make_pool(0, 30, 60)
    held = hold_out_links(whole, val=0.0, test=0.2, seed=0)
    broken = cut_into_parties(held.pool.party, items_per_party(torch.arange(30) % 3, 3), names_of(3), coupled=False)
    parties = assign_pairs(broken, held, train=1.0, seed=0)
    assert {pair for party in parties for pair, link in pairs_of(party, "train") if link} == {
        pair for party in broken for pair in linked(party)
    }
    assert any(bool((party.pairs.owner >= 0)[party.test].any()) for party in parties), "pairs across are still asked"


def test_what_cannot_be_held_out_is_refused():
    whole = make_pool(0, 6, 200)
    with pytest.raises(IsthmusError, match=r"val = 0.5 and test = 0.5 leave no link"):
        hold_out_links(whole, val=0.5, test=0.5, seed=0)
    with pytest.raises(IsthmusError, match="lower val or test"):
        hold_out_links(whole, val=0.4, test=0.5, seed=0)
    held = hold_out_links(make_pool(0, 10, 12), val=0.0, test=0.2, seed=0)
    with pytest.raises(IsthmusError, match="has links that are held out"):
        assign_pairs([make_pool(0, 10, 12).party], held, train=1.0, seed=0)
    graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0]))
    with pytest.raises(IsthmusError, match="many graphs"):
        hold_out_links(Pool(Party.of_graphs("a", [graph]), 2), val=0.1, test=0.1, seed=0)


def test_parties_of_pairs_are_checked():
    held = hold_out_links(make_pool(0, 10, 12), val=0.0, test=0.2, seed=0)
    (party,) = assign_pairs([held.pool.party], held, train=1.0, seed=0)

    def made(**changes):
        parts = {"name": "a", "graph": party.graph, "level": "pair", "ids": party.ids, "pairs": party.pairs}
        return Party(**{**parts, **{split: getattr(party, split) for split in SPLITS}, **changes})

    def changed(**parts):
        return Pairs(**{**vars(party.pairs), **parts})

    assert made().items == len(party.pairs)
    for changes, text in [
        ({"level": "node"}, "level 'pair' needs pairs"),
        ({"pairs": None}, "level 'pair' needs pairs"),
        ({"ids": None}, "pairs but no ids"),
        ({"pairs": changed(owner=party.pairs.owner[1:])}, "different lengths"),
        ({"pairs": changed(lent=torch.tensor([0]))}, "different lengths"),
        ({"pairs": changed(first=party.pairs.first + 10)}, r"a node outside 0 .. 9"),
        ({"pairs": changed(owner=torch.zeros_like(party.pairs.owner))}, r"an owner outside -1 .. -1"),
        ({"pairs": changed(second=party.pairs.second + 1)}, "an id that none of its nodes has"),
        ({"pairs": changed(lent=torch.tensor([0, 1]), borrower=torch.tensor([1, 0]))}, "sort `borrower`"),
        ({"train": torch.zeros(3, dtype=torch.bool)}, "but it has 16 pairs"),
    ]:
        with pytest.raises(IsthmusError, match=text):
            made(**changes)


def test_some_of_the_parties_pooled_hold_the_pairs_between_them():
    held = hold_out_links(make_pool(0, 30, 60), val=0.0, test=0.4, seed=0)
    parties = assign_pairs(take_apart(held.pool, items_per_party(torch.arange(30) % 3, 3)), held, train=1.0, seed=0)
    some = pool_parties(parties[:2])
    there = set(some.ids.tolist())
    due = [pair for party in parties[:2] for pair in pairs_of(party) if pair[0] <= there]
    assert sorted(map(str, pairs_of(some))) == sorted(map(str, due))
    assert 0 < len(due) < sum(party.items for party in parties[:2])


def shop(seed):
    """Customers who own accounts, which pay each other; `held by` is the reverse of `owns`, `asked for` is another."""
    source, graph = torch.Generator().manual_seed(seed), HeteroData()
    graph["account"].x, graph["account"].y = torch.randn(40, 2, generator=source), torch.zeros(40).long()
    graph["customer"].x = torch.randn(20, 3, generator=source)
    owns = torch.stack([torch.randint(20, (60,), generator=source), torch.randint(40, (60,), generator=source)])
    graph["customer", "owns", "account"].edge_index = owns
    graph["account", "held by", "customer"].edge_index = owns.flip(0)[:, ::2]
    asked = torch.stack([torch.randint(20, (90,), generator=source), torch.randint(40, (90,), generator=source)])
    graph["customer", "asked for", "account"].edge_index = torch.cat([owns[:, 30:], asked], dim=1)
    graph["account", "pays", "account"].edge_index = torch.randint(40, (2, 80), generator=source)
    return graph


def joined(party, kind):
    """Pairs of ids that a type of edges joins."""
    at = party.schema.edge_types.index(kind)
    edges = party.ids[party.graph.edge_index[:, party.graph.edge_type == at]]
    return {frozenset(each) for each in edges.t().tolist() if each[0] != each[1]}


OWNS = ("customer", "owns", "account")


@pytest.mark.parametrize(("relation", "kind", "ends"), [
    ("owns", OWNS, {"customer", "account"}), ("account pays account", ("account", "pays", "account"), {"account"}),
])  # fmt: skip
def test_links_of_one_relation_join_its_types_and_its_reverse_does_not_tell_them(relation, kind, ends):
    shops = [Party.of_graph(name, shop(at), ids=torch.arange(60) + 100 * at) for at, name in enumerate("ab")]
    pool = Pool(None, classes=2, parties=tuple(shops))
    held = hold_out_links(pool, val=0.1, test=0.3, seed=0, relation=relation)
    parties = assign_pairs(held.pool.parties, held, train=1.0, seed=0)
    for before, party in zip(shops, parties, strict=True):
        links, left = joined(before, kind), joined(party, kind)
        asked = {pair: link for split in ("val", "test") for pair, link in pairs_of(party, split)}
        every = [*asked.items(), *pairs_of(party, "train")]
        assert {pair for pair, link in asked.items() if link} == links - left
        assert {pair for pair, link in pairs_of(party, "train") if link} == left
        assert len(asked) == 2 * len(links - left) > 0
        assert all((pair in links) == link for pair, link in every)
        type_of = dict(zip(party.ids.tolist(), party.graph.node_type.tolist(), strict=True))
        names = party.schema.node_types
        assert all({names[type_of[node]] for node in pair} == ends for pair, _ in every)
        trained = dict(pairs_of(party, "train"))
        for side in (0, 1) if len(ends) == 2 else ():  # links and other pairs have the same nodes
            for some, lost in ((asked, 0), (trained, 2)):
                links_of, others = (
                    Counter(node for pair in some if some[pair] == link for node in pair if type_of[node] == side)
                    for link in (True, False)
                )
                assert others <= links_of
                assert (links_of - others).total() <= lost  # of many links a few find no other that they fit with
        for other in before.schema.edge_types:  # no edge joins a pair that is asked, neither of the reverse relation
            assert joined(before, other) - set(asked) == joined(party, other)


@pytest.mark.parametrize("kind", [("customer", "owns", "account"), ("account", "follows", "account")])
def test_a_node_that_lost_its_only_link_does_not_give_the_link_away(kind):
    """Each row names one other, so a row whose link is held out has none left."""
    graph = HeteroData()
    graph["account"].x, graph["account"].y = torch.zeros(400, 1), torch.zeros(400).long()
    graph["customer"].x = torch.zeros(400, 1)
    graph[kind].edge_index = torch.stack([torch.arange(200), 200 + torch.randperm(200)])
    pool = Pool(None, classes=2, parties=(Party.of_graph("a", graph, ids=torch.arange(800)),))
    held = hold_out_links(pool, val=0.1, test=0.2, seed=0, relation=kind[1])
    (party,) = assign_pairs(held.pool.parties, held, train=1.0, seed=0)
    degree = torch.bincount(party.graph.edge_index.flatten(), minlength=party.nodes)
    at = dict(zip(party.ids.tolist(), degree.tolist(), strict=True))
    asked = [pair for split in ("val", "test") for pair in pairs_of(party, split)]
    assert len(asked) == 120
    assert {at[node] for pair, _ in asked for node in pair} == {0}


def test_a_link_that_no_other_pair_stands_beside_has_none():
    """A party's only customer owns all its accounts; those of another party pair as ever."""
    shops = []
    for at, (name, customers) in enumerate((("a", 1), ("b", 30))):
        graph = HeteroData()
        graph["account"].x, graph["account"].y = torch.zeros(60, 1), torch.zeros(60).long()
        graph["customer"].x = torch.zeros(30, 1)
        graph["customer", "owns", "account"].edge_index = torch.stack([torch.arange(60) % customers, torch.arange(60)])
        shops.append(Party.of_graph(name, graph, ids=torch.arange(90) + 100 * at))
    held = hold_out_links(Pool(None, classes=2, parties=tuple(shops)), val=0.1, test=0.2, seed=0, relation="owns")
    one, other = assign_pairs(held.pool.parties, held, train=1.0, seed=0)
    ones, others = (Counter(link for _, link in pairs_of(party, "test")) for party in (one, other))
    assert ones[False] == 0 < ones[True]
    assert others[False] == others[True] > 0
    with pytest.raises(IsthmusError, match="no pair beside the 18 held-out links has no edge"):
        hold_out_links(Pool(None, classes=2, parties=(shops[0],)), val=0.1, test=0.2, seed=0, relation="owns")


@pytest.mark.parametrize("disjoint", [None, 0.0, 0.4])
def test_links_that_are_trained_on_apart_leave_the_graph_as_held_out_ones_do(disjoint):
    """A relation in which each account has one customer is halved by default, for all that are asked lost theirs."""
    shops = []
    for at, name in enumerate("ab"):
        graph = shop(at)
        accounts = torch.randperm(40, generator=torch.Generator().manual_seed(at))
        graph["customer", "owns", "account"].edge_index = torch.stack([torch.arange(40) % 20, accounts])
        shops.append(Party.of_graph(name, graph, ids=torch.arange(60) + 100 * at))
    pool = Pool(None, classes=2, parties=tuple(shops))
    for relation, share in (("owns", 0.5 if disjoint is None else disjoint), ("pays", disjoint or 0.0)):
        held = hold_out_links(pool, val=0.1, test=0.1, seed=0, relation=relation)
        links = held.links.numel()
        left = links - 2 * round(0.1 * links)
        parties = assign_pairs(held.pool.parties, held, train=1.0, seed=0, disjoint=disjoint)
        trained = Counter()
        for party in parties:
            pairs = dict(pairs_of(party, "train"))
            trained.update(pairs.values())
            for kind in party.schema.edge_types if share else ():
                assert not set(pairs) & joined(party, kind), "no edge tells what is trained on"
            if not share:
                kind = next(each for each in shops[0].schema.edge_types if each[1] == relation)
                assert {pair for pair, link in pairs.items() if link} == joined(party, kind)
        assert trained[True] == (round(share * left) if share else left)
        assert trained[True] - 2 <= trained[False] <= trained[True]
    half = assign_pairs(held.pool.parties, held, train=0.5, seed=0, disjoint=disjoint)
    assert abs(2 * sum(sum(dict(pairs_of(party, "train")).values()) for party in half) - trained[True]) <= 2


def edges_of(party):
    """Pairs of ids that an edge joins."""
    return {frozenset(each) for each in party.ids[party.graph.edge_index].t().tolist() if each[0] != each[1]}


def test_links_of_one_graph_that_are_trained_on_apart_leave_it_after_the_cut():
    """The cut is that of the graph with them, and each party has as many other pairs of its own."""
    pool = make_pool(0, 60, 150)
    held = hold_out_links(pool, val=0.1, test=0.1, seed=0)
    parties = cut_into_parties(held.pool.party, items_per_party(torch.arange(60) % 3, 3), names_of(3), coupled=False)
    whole, apart = (assign_pairs(parties, held, train=1.0, seed=0, disjoint=each) for each in (0.0, 0.5))
    for before, one, other in zip(parties, whole, apart, strict=True):
        links, others = (Counter(link for _, link in pairs_of(party, "train")) for party in (one, other))
        had, left = edges_of(before), edges_of(other)
        assert links[True] == len(had)
        assert others[True] == others[False] > 0
        assert {pair for pair, link in pairs_of(other, "train") if link} == had - left


def test_a_relation_that_there_is_not_is_named():
    pool = Pool(None, classes=2, parties=(Party.of_graph("a", shop(0), ids=torch.arange(60)),))
    for relation, says in (
        ("", "name the relation whose links are asked, task.relation: held by, pays, "),
        ("own", "did you mean 'owns'?"),
    ):
        with pytest.raises(IsthmusError, match=re.escape(says)):
            hold_out_links(pool, val=0.1, test=0.1, seed=0, relation=relation)
    with pytest.raises(IsthmusError, match="the graph has no types: leave it out"):
        hold_out_links(make_pool(0, 30, 60), val=0.1, test=0.1, seed=0, relation="owns")
