"""Shops are the same for the same seed, and have the shares that were asked for; both sides know a pair across them."""

import pytest
import torch

from isthmus.data import mapped
from isthmus.data.cache import cache_root
from isthmus.data.datasets import shops
from isthmus.data.datasets.shops import Shops
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from party_folders import assert_same_parties


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))


def load(seed=0, **options):
    return Shops(**{"parties": 4, "nodes": 2000, "classes": 5, "features": 8, "degree": 10, **options}).load(seed)


def test_same_seed_same_shops(tmp_path, monkeypatch):
    first = load(seed=3).parties
    assert_same_parties(load(seed=3).parties, first)
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "another"))
    assert_same_parties(load(seed=3).parties, first)
    assert not torch.equal(load(seed=4).parties[0].graph.x[:50], first[0].graph.x[:50])


def test_shops_are_made_once(monkeypatch):
    first = load().parties
    monkeypatch.setattr(Shops, "_write", None)
    monkeypatch.setattr(Shops, "_write_shop", lambda *_, **__: pytest.fail("is written again"))
    assert_same_parties(load().parties, first)
    assert len(list((cache_root() / "mapped").iterdir())) == 1 + 4


@pytest.mark.parametrize("cross", [0.0, 0.2])
@pytest.mark.parametrize("homophily", [0.0, 0.6])
def test_shops_have_the_shares_asked_for(cross, homophily):
    parties = load(cross=cross, homophily=homophily, skew=0.0).parties
    inner, across = sum(party.edges for party in parties), sum(len(party.border) for party in parties)
    assert inner + across == pytest.approx(2000 * 10, rel=0.01)
    assert across == pytest.approx(2000 * 10 * cross, rel=0.01)
    pool = pool_parties(parties)
    source, target = pool.graph.y[pool.graph.edge_index]
    assert float((source == target).float().mean()) == pytest.approx(homophily + (1 - homophily) / 5, abs=0.05)
    for split, share in (("train", 0.1), ("val", 0.05), ("test", 0.85)):
        assert float(getattr(pool, split).float().mean()) == pytest.approx(share, abs=0.005)


def test_edges_are_different_run_both_ways_and_are_known_at_both_sides(monkeypatch):
    monkeypatch.setattr(shops, "DRAWN", 100)
    monkeypatch.setattr(mapped, "BLOCK", 64)
    parties = load().parties
    between = set()
    for party in parties:
        source, target = party.graph.edge_index
        key = source * party.nodes + target
        assert key.unique().numel() == key.numel()
        assert torch.equal(key.sort().values, (target * party.nodes + source).sort().values)
        assert bool((source != target).all())
        owner = [party.border.owners[at] for at in party.border.owner.tolist()]
        ends = zip(party.border.outer.tolist(), party.ids[party.border.inner].tolist(), owner, strict=True)
        between |= {(outer, inner, name, party.name) for outer, inner, name in ends}
    assert between == {(inner, outer, mine, other) for outer, inner, other, mine in between}
    holder = {int(node): party.name for party in parties for node in party.ids}
    assert all(holder[outer] == name for outer, _, name, _ in between)
    assert len(between) == sum(len(party.border) for party in parties)


def test_few_products_are_in_most_pairs():
    (party,) = load(parties=1, tail=2.1).parties
    degree = torch.bincount(party.graph.edge_index[1], minlength=party.nodes).sort(descending=True).values
    assert degree[:200].sum() > 0.35 * degree.sum()
    assert len(party.border) == 0


def test_neighbours_say_more_than_a_product_s_own_features():
    (party,) = load(parties=1, nodes=4000, noise=1.0, degree=20, classes=5, features=16).parties
    x, y, (source, target) = party.graph.x, party.graph.y, party.graph.edge_index
    means = torch.stack([x[y == kind].mean(0) for kind in range(5)])
    around = torch.zeros_like(x).index_add(0, target, x[source]) + x
    own, both = (float((h @ means.t()).argmax(1).eq(y).float().mean()) for h in (x, around))
    assert 0.3 < own < both - 0.1


def test_too_few_products_are_an_error():
    with pytest.raises(IsthmusError, match="3 nodes are too few for 4 parties"):
        load(nodes=3)
