import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import assert_sound_links
from isthmus.data.datasets.banks import Banks
from isthmus.data.partition.given import Given
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError


def same(left, right):
    return all(torch.equal(left.party.graph[key], right.party.graph[key]) for key in ("x", "edge_index", "y")) and all(
        torch.equal(getattr(left.party, split), getattr(right.party, split)) for split in ("train", "val", "test")
    )


def owners(pool):
    """The owner of each account, of banks without overlap."""
    owner = torch.full((pool.party.nodes,), -1)
    for at, held in enumerate(pool.holders):
        assert (owner[held] == -1).all()
        owner[held] = at
    assert (owner >= 0).all()
    return owner


def crossing(pool):
    source, target = owners(pool)[pool.party.graph.edge_index]
    return float((source != target).float().mean())


def alike(pool):
    source, target = pool.party.graph.y[pool.party.graph.edge_index]
    return float((source == target).float().mean())


def test_same_seed_same_data_whatever_else_was_drawn():
    data = Banks(nodes=200, communities=3, overlap=0.2)
    torch.manual_seed(1)
    np.random.seed(1)
    first = data.load(seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = data.load(seed=5)
    assert same(again, first)
    assert all(torch.equal(*each) for each in zip(again.holders, first.holders, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(data.load(seed=6).party.graph.x[:50], first.party.graph.x[:50])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cross", [0.0, 0.3, 1.0])
def test_banks_have_the_shares_asked_for(cross, seed):
    pool = Banks(cross=cross, homophily=0.8, degree=5).load(seed)
    assert crossing(pool) == pytest.approx(cross, abs=0.01)
    assert pool.party.edges == pytest.approx(1200 * 5, rel=0.02)
    assert alike(pool) > 0.75
    for split, share in (("train", 0.1), ("val", 0.2), ("test", 0.7)):
        mask = getattr(pool.party, split)
        for held in pool.holders:
            assert float(mask[held].float().mean()) == pytest.approx(share, abs=0.01)


def test_few_accounts_make_many_transfers_and_the_tail_says_how_many():
    def busiest(tail):
        """The share of the transfers that the busiest hundredth of the accounts takes part in."""
        edge_index = Banks(nodes=5000, tail=tail).load(0).party.graph.edge_index
        degree = torch.bincount(edge_index[0], minlength=5000).sort(descending=True).values
        return float(degree[:50].sum() / degree.sum())

    assert busiest(2.1) > busiest(2.5) > 0.08 > 0.05 > busiest(4.0) > 0.01


def test_skew_makes_banks_differ_in_labels():
    def spread(skew):
        pool = Banks(skew=skew).load(0)
        mixes = [torch.bincount(pool.party.graph.y[held], minlength=4).float() for held in pool.holders]
        return float(torch.stack([mix / mix.sum() for mix in mixes]).std(0).mean())

    assert spread(0.0) < 0.05 < 0.15 < spread(0.6)


def test_without_noise_the_features_are_the_class():
    graph = Banks(noise=0.0).load(0).party.graph
    assert graph.x.unique(dim=0).size(0) == 4
    means = torch.stack([graph.x[graph.y == label][0] for label in range(4)])
    torch.testing.assert_close(means.norm(dim=1), torch.ones(4))
    assert torch.equal(means[graph.y], graph.x)


def test_communities_cut_across_banks_and_classes():
    """With them far fewer edges lie between the parts of a graph that was cut into as many communities."""

    def found(communities):
        import networkx

        graph = Banks(nodes=800, cross=0.5, homophily=0.0, communities=communities, closeness=0.95).load(0).party.graph
        network = networkx.Graph(graph.edge_index.t().tolist())
        parts = networkx.community.louvain_communities(network, seed=0)
        return networkx.community.modularity(network, parts), max(len(part) for part in parts)

    (without, _), (within, largest) = found(1), found(8)
    assert without + 0.2 < within
    assert largest < 2 * 800 / 8  # each of the eight, give or take, and none of the four banks


def test_communities_leave_accounts_and_their_owners_as_they_were():
    plain, others = Banks().load(3), Banks(communities=5).load(3)
    assert torch.equal(plain.party.graph.x, others.party.graph.x)
    assert torch.equal(owners(plain), owners(others))
    assert crossing(others) == pytest.approx(0.3, abs=0.01)
    assert alike(others) == pytest.approx(alike(plain), abs=0.05)


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_the_share_asked_for_has_a_second_bank(overlap):
    pool = Banks(overlap=overlap).load(0)
    count = torch.bincount(torch.cat(pool.holders), minlength=1200)
    assert count.min() >= 1
    assert count.max() <= 2
    assert int((count == 2).sum()) == round(overlap * 1200)
    assert all((held.diff() > 0).all() for held in pool.holders)


def test_with_overlap_only_the_holders_change():
    plain, shared = Banks().load(0), Banks(overlap=0.3).load(0)
    assert same(plain, shared)
    assert all(set(few.tolist()) <= set(many.tolist()) for few, many in zip(plain.holders, shared.holders, strict=True))


def test_banks_are_cut_by_their_owners_with_a_border():
    pool = Banks(parties=7, nodes=300).load(0)
    parties = Given().cut(pool, 7, seed=0)
    assert sum(len(party.border) for party in parties) == round(crossing(pool) * pool.party.edges)
    assert all(party.train.any() and party.test.any() for party in parties)


@settings(max_examples=25)
@given(
    parties=st.integers(1, 6),
    nodes=st.integers(6, 80),
    cross=st.floats(0, 1),
    overlap=st.floats(0, 1),
    communities=st.integers(1, 5),
    classes=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_transfers_go_both_ways_once_and_never_to_oneself_and_no_cut_loses_one(seed, **options):
    pool = Banks(**options).load(seed)
    assert_sound_links(pool, options["parties"], seed)


@pytest.mark.parametrize(
    "odd", [{"parties": 1}, {"nodes": 4}, {"classes": 1}, {"degree": 0}, {"parties": 1, "nodes": 1}, {"overlap": 1.0}]
)
def test_odd_banks_work(odd):
    banks = Banks(**odd)
    pool = banks.load(0)
    assert len(Given().cut(pool, banks.parties, seed=0)) == banks.parties


def test_too_few_accounts_are_refused():
    with pytest.raises(IsthmusError, match="3 nodes are too few for 4 parties: ask for more nodes"):
        Banks(nodes=3).load(0)
    with pytest.raises(IsthmusError, match="add up to more than 1"):
        Banks(train=0.8, val=0.5).load(0)


def test_more_than_the_features_tell_an_account_s_class():
    """The neighbours' features add to an account's own, and those across the border add once more."""
    pool = Banks().load(0)
    graph, owner = pool.party.graph, owners(pool)
    source, target = graph.edge_index
    within = owner[source] == owner[target]

    def hits(edges):
        x = graph.x.index_add(0, target[edges], graph.x[source[edges]])
        x = x / (1 + torch.bincount(target[edges], minlength=1200)).unsqueeze(1)
        means = torch.stack([x[graph.y == label].mean(0) for label in range(4)])
        return float((torch.cdist(x, means).argmin(1) == graph.y).float().mean())

    assert hits(torch.zeros_like(within)) + 0.02 < hits(within)
    assert hits(within) + 0.02 < hits(torch.ones_like(within))


def test_banks_are_known_by_name_and_documented():
    assert DataSet.named("banks") is Banks
    summary = DataSet.named("banks").describe()
    assert summary["summary"]
    assert all(option["help"] for option in summary["options"])
