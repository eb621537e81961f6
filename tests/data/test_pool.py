from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import make_node_parties
from isthmus.data.datasets.banks import Banks
from isthmus.data.pool import Pool, items_per_party, numpy_generator, rank_within, split_by_share
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError

GROUPS = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(torch.tensor)


def test_a_pool_is_its_whole_or_its_parties_put_together():
    whole = Banks(nodes=30).load(0).party
    assert Pool(whole, 4).party is whole
    parties = make_node_parties()
    pool = Pool(None, 3, parties=parties)
    assert pool.party is pool.party
    assert torch.equal(pool.party.graph.edge_index, pool_parties(parties).graph.edge_index)
    for empty in (Pool(None, 3), Pool(None, 3, parties=())):
        with pytest.raises(IsthmusError, match="neither 'whole' nor 'parties'"):
            _ = empty.party
    assert replace(pool, whole=whole).party is whole


@given(GROUPS, st.integers(0, 3))
def test_held_by_is_everyone_s_items_ascending(owner, more):
    parties = int(owner.max()) + 1 + more
    held = items_per_party(owner, parties)
    assert [own.tolist() for own in held] == [
        [at for at in range(owner.numel()) if owner[at] == p] for p in range(parties)
    ]


@given(GROUPS, st.integers(0, 100))
def test_ranks_are_a_random_order_of_every_group(group, seed):
    rank = rank_within(group, numpy_generator(seed, "test"))
    for each in group.unique():
        assert sorted(rank[group == each].tolist()) == list(range(int((group == each).sum())))


def test_every_order_is_as_likely():
    seen = torch.zeros(3, 3)
    for seed in range(300):
        seen[torch.arange(3), rank_within(torch.zeros(3, dtype=torch.long), numpy_generator(seed, "test"))] += 1
    assert (seen > 70).all()


@given(GROUPS, st.integers(0, 10), st.integers(0, 10), st.integers(0, 100))
def test_splits_are_apart_and_have_their_share_of_every_group(group, train, val, seed):
    if train + val > 10:
        with pytest.raises(IsthmusError, match="add up to more than 1"):
            split_by_share(group, train / 10, val / 10, numpy_generator(seed, "test"))
        return
    masks = split_by_share(group, train / 10, val / 10, numpy_generator(seed, "test"))
    assert (sum(mask.int() for mask in masks.values()) == 1).all()
    for each in group.unique():
        count = int((group == each).sum())
        for split, share in (("train", train), ("val", val), ("test", 10 - train - val)):
            assert abs(int(masks[split][group == each].sum()) - share / 10 * count) <= 1


def test_two_uses_of_a_seed_draw_apart_and_one_use_the_same():
    assert numpy_generator(0, "a").random() == numpy_generator(0, "a").random()
    assert len({numpy_generator(seed, purpose).random() for seed in range(3) for purpose in ("a", "b")}) == 6
