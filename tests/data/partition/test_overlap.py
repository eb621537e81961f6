import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import make_pile, make_pool, members_of

from isthmus.data.partition.overlap import Overlap
from isthmus.data.party import SPLITS
from isthmus.errors import IsthmusError


def holders(parties, items):
    """By how many parties each item is held."""
    return torch.bincount(torch.tensor([at for held in members_of(parties) for at in held]), minlength=items)


@pytest.mark.parametrize("make", [make_pool, make_pile])
def test_everybody_holds_their_proportion_drawn_freely(make):
    pool, partition = make(0, 3000), Overlap()
    assert partition.natural_count(pool) == 6
    parties = partition.cut(pool, 6, seed=0)
    assert [party.items for party in parties] == [900, 1200, 1500, 1500, 1800, 2100]
    everywhere = float((holders(parties, 3000) == 6).double().mean())
    assert everywhere == pytest.approx(math.prod(partition.proportions), abs=0.006)


def test_proportions_come_round_again():
    pool = make_pool(0, 100)
    parties = Overlap(proportions=[0.2, 0.5]).cut(pool, 5, seed=0)
    assert [party.items for party in parties] == [20, 50, 20, 50, 20]
    assert len({tuple(held) for held in members_of(parties)}) == 5


@pytest.mark.parametrize("shared", [0.0, 0.05, 0.1, 0.15, 0.3])
def test_the_share_that_all_hold_is_the_one_asked_for(shared):
    parties = Overlap(shared=shared).cut(make_pool(0, 1001), 6, seed=0)
    found = holders(parties, 1001)
    assert int((found == 6).sum()) == round(shared * 1001)
    assert [party.items for party in parties] == [round(share * 1001) for share in Overlap().proportions]


def test_what_all_hold_is_drawn_blindly():
    times, pool = torch.zeros(50), make_pool(0, 50)
    for seed in range(60):
        times += torch.bincount(torch.cat(Overlap(shared=0.3).members(pool, 6, seed)), minlength=50) == 6
    assert 5 < times.min() <= times.max() < 35, "18 on average"


@settings(max_examples=50)
@given(st.integers(1, 25), st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.floats(0, 1), st.integers(0, 2**16))
def test_shared_items_are_exactly_as_many_or_the_cut_is_impossible(items, proportions, shared, seed):
    sizes = [round(share * items) for share in proportions]
    common, parties = round(shared * items), len(sizes)
    gaps = sum(items - size for size in sizes)
    possible = min(sizes) > 0 and common <= min(sizes) and gaps >= items - common
    partition = Overlap(proportions=proportions, shared=shared)
    if not possible:
        with pytest.raises(IsthmusError, match=r"^partition 'overlap': (proportion|shared = )"):
            partition.members(make_pool(seed, items), parties, seed)
        return
    members = partition.members(make_pool(seed, items), parties, seed)
    assert [held.numel() for held in members] == sizes
    assert all(held.unique().numel() == held.numel() for held in members)
    assert int((torch.bincount(torch.cat(members), minlength=items) == parties).sum()) == common


def test_items_that_are_no_longer_with_all_are_given_away_blindly():
    """Two parties that hold everything but the gaps that they must have: who misses what is drawn anew by each seed."""
    pool, partition = make_pool(0, 200), Overlap(proportions=[0.5], shared=0.0)
    lost = torch.zeros(200)
    for seed in range(50):
        (first, second) = partition.members(pool, 2, seed)
        assert sorted([*first.tolist(), *second.tolist()]) == list(range(200))
        lost[first] += 1
    assert 10 < int(lost.min()) <= int(lost.max()) < 40


def test_a_shared_item_is_in_the_same_split_everywhere():
    for pool in (make_pool(0, 200), make_pile(0, 200)):
        parties = Overlap(shared=0.2).cut(pool, 6, seed=0)
        seen = {}
        for party, held in zip(parties, members_of(parties), strict=True):
            for at, item in enumerate(held):
                found = [bool(getattr(party, split)[at]) for split in SPLITS]
                assert seen.setdefault(item, found) == found
        assert sum(test for _, _, test in seen.values()) > 20


def test_edges_are_broken_unless_they_are_asked_for():
    pool = make_pool(0, 100)
    assert all(party.border is None for party in Overlap().cut(pool, 3, seed=0))
    assert all(len(party.border) > 0 for party in Overlap(edges="coupled").cut(pool, 3, seed=0))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shared": 0.4}, "shared = 0.4 is more than the smallest proportion, 0.3: lower it"),
        ({"proportions": [0.9], "shared": 0.0}, "share at least 40 of 100 nodes: raise it to 0.4 or lower the proport"),
        ({"proportions": [0.5, 0.001]}, "proportion 0.001 of 100 nodes rounds to 0: raise it"),
    ],
)
def test_what_cannot_be_is_refused(options, reason):
    with pytest.raises(IsthmusError) as refusal:
        Overlap(**options).cut(make_pool(0, 100), 6, seed=0)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "options", [{"proportions": []}, {"proportions": [0.5, 1.5]}, {"proportions": [0]}, {"shared": 2}]
)
def test_options_out_of_bounds_are_refused(options):
    with pytest.raises(IsthmusError, match=r"^partition 'overlap': option '(proportions|shared)"):
        Overlap.read(options, "partition 'overlap'")


def test_parties_sample_halves_of_communities():
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    pool = make_pool(0, 401)
    partition = Overlap(per_community=3, proportions=[0.5], split=(0.2, 0.4, 0.4), split_by="global")
    parties = partition.cut(pool, 6, seed=0)
    held = [set(each) for each in members_of(parties)]
    first, second = set().union(*held[:3]), set().union(*held[3:])
    assert not first & second, "communities are disjoint"
    assert all(held[a] & held[b] for a, b in ((0, 1), (1, 2), (3, 4)))
    assert len(set(map(frozenset, held))) == 6
    assert {len(each) for each in held[:3]} | {len(each) for each in held[3:]} <= set(range(90, 111))
    edges = pool.party.graph.edge_index.t().tolist()
    for party, own in zip(parties, held, strict=True):
        assert party.edges == sum(source in own and target in own for source, target in edges), "induced edges"
        assert party.border is None
    assert members_of(partition.cut(pool, 6, seed=0)) == members_of(parties) != members_of(partition.cut(pool, 6, 1))


def test_what_fits_no_communities_is_refused():
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    pool = make_pool(0, 60)
    assert Overlap(per_community=5, proportions=[0.5]).natural_count(pool) == 5
    with pytest.raises(IsthmusError, match="7 parties are no multiple of per_community = 5: ask for 10"):
        Overlap(per_community=5).cut(pool, 7, seed=0)
    with pytest.raises(IsthmusError, match="per_community is for one graph"):
        Overlap(per_community=2).cut(make_pile(0, 60), 4, seed=0)
    with pytest.raises(IsthmusError, match=r"proportion 0.01 of a community of .* nodes is none: raise it"):
        Overlap(per_community=2, proportions=[0.01]).cut(pool, 4, seed=0)
    with pytest.raises(IsthmusError, match="shared is for parties that all sample the whole: leave it out"):
        Overlap(per_community=2, shared=0.1)
