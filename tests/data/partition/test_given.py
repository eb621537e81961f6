from dataclasses import replace

import pytest
import torch
from pools import make_pool, members_of

from isthmus.data.partition.given import Given
from isthmus.data.pool import Pool, items_per_party
from isthmus.errors import IsthmusError


def test_given_hands_everyone_their_own():
    pool = replace(make_pool(0, 6), holders=items_per_party(torch.tensor([2, 0, 1, 0, 2, 2]), 3), names=("a", "b", "c"))
    assert Given().natural_count(pool) == 3
    parties = Given().cut(pool, 3, seed=0)
    assert members_of(parties) == [[1, 3], [2], [0, 4, 5]]
    assert [party.name for party in parties] == ["a", "b", "c"]


def test_an_item_may_have_several_holders():
    pool = replace(make_pool(0, 6), holders=(torch.tensor([0, 1, 2]), torch.tensor([2, 3, 5])))
    assert members_of(Given().cut(pool, 2, seed=0)) == [[0, 1, 2], [2, 3, 5]]


def test_parties_that_came_as_parties_are_handed_on():
    made = tuple(Given().cut(replace(make_pool(0, 20), holders=items_per_party(torch.arange(20) % 3, 3)), 3, seed=0))
    pool = Pool(None, 3, parties=made)
    assert Given().natural_count(pool) == 3
    assert all(one is other for one, other in zip(Given().cut(pool, 3, seed=0), made, strict=True))
    broken = Given(edges="broken").cut(pool, 3, seed=0)
    assert all(party.border is None for party in broken)
    assert members_of(broken) == members_of(made)
    assert made[0].border is not None


def test_data_without_owners_are_refused():
    assert Given().natural_count(make_pool(0, 5)) is None
    with pytest.raises(IsthmusError, match="these data have no owners"):
        Given().cut(make_pool(0, 5), 2, seed=0)
