import numpy as np
import pytest
import torch

from isthmus.data.partition import Given
from isthmus.data.pool import DataSet
from isthmus.data.synthetic import PLANTED, Banks, Motifs, _Accounts
from isthmus.errors import IsthmusError


def same(left, right):
    return all(torch.equal(left.party.graph[key], right.party.graph[key]) for key in ("x", "edge_index", "y")) and all(
        torch.equal(getattr(left.party, split), getattr(right.party, split)) for split in ("train", "val", "test")
    )


def crossing(pool):
    source, target = pool.owner[pool.party.graph.edge_index]
    return float((source != target).float().mean())


def alike(pool):
    source, target = pool.party.graph.y[pool.party.graph.edge_index]
    return float((source == target).float().mean())


@pytest.mark.parametrize("data", [Banks(nodes=200), Motifs(graphs=30)], ids=lambda each: each.name)
def test_same_seed_same_data_whatever_else_was_drawn(data):
    torch.manual_seed(1)
    first = data.load(seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(data.load(seed=5), first)
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
        for bank in range(4):
            assert float(mask[pool.owner == bank].float().mean()) == pytest.approx(share, abs=0.01)


def test_transfers_go_both_ways_once_and_never_to_oneself():
    edge_index = Banks().load(0).party.graph.edge_index
    pairs = set(zip(*edge_index.tolist(), strict=True))
    assert len(pairs) == edge_index.size(1)
    assert {(b, a) for a, b in pairs} == pairs
    assert all(a != b for a, b in pairs)


def test_partners_are_drawn_by_activity_from_the_class_inside_or_outside_the_bank():
    owner, y = np.array([0, 1, 2, 0, 1, 2, 1]), np.array([0, 0, 0, 1, 1, 1, 0])
    activity = np.array([1.0, 2, 3, 4, 5, 6, 7])
    accounts = _Accounts(owner, y, activity)
    label, bank, generator = np.zeros(20_000, dtype=int), np.ones(20_000, dtype=int), np.random.default_rng(0)
    for across, wanted in ((True, [1, 0, 3, 0, 0, 0, 0]), (False, [0, 2, 0, 0, 0, 0, 7])):
        drawn = np.bincount(accounts._partner(label, bank, across, generator), minlength=7) / 20_000
        np.testing.assert_allclose(drawn, np.array(wanted) / sum(wanted), atol=0.02)


def test_few_accounts_make_many_transfers():
    degree = torch.bincount(Banks().load(0).party.graph.edge_index[0], minlength=1200).sort(descending=True).values
    assert degree[:120].sum() > 0.25 * degree.sum()


def test_skew_makes_banks_differ_in_labels():
    def spread(skew):
        pool = Banks(skew=skew).load(0)
        mixes = [torch.bincount(pool.party.graph.y[pool.owner == bank], minlength=4).float() for bank in range(4)]
        return float(torch.stack([mix / mix.sum() for mix in mixes]).std(0).mean())

    assert spread(0.0) < 0.05 < 0.15 < spread(0.6)


def test_without_noise_the_features_are_the_class():
    graph = Banks(noise=0.0).load(0).party.graph
    assert graph.x.unique(dim=0).size(0) == 4
    means = torch.stack([graph.x[graph.y == label][0] for label in range(4)])
    torch.testing.assert_close(means.norm(dim=1), torch.ones(4))
    assert torch.equal(means[graph.y], graph.x)


def test_banks_are_cut_by_their_owners_with_a_border():
    pool = Banks(parties=7, nodes=300).load(0)
    parties = Given().cut(pool, 7, seed=0)
    assert sum(len(party.border) for party in parties) == round(crossing(pool) * pool.party.edges)
    assert all(party.train.any() and party.test.any() for party in parties)


@pytest.mark.parametrize(
    "odd", [{"parties": 1}, {"nodes": 4}, {"classes": 1}, {"degree": 0}, {"parties": 1, "nodes": 1}]
)
def test_odd_banks_work(odd):
    banks = Banks(**odd)
    pool = banks.load(0)
    assert len(Given().cut(pool, banks.parties, seed=0)) == banks.parties


def test_too_few_accounts_are_refused():
    with pytest.raises(IsthmusError, match="3 nodes are too few for 4 parties: ask for more nodes"):
        Banks(nodes=3).load(0)
    with pytest.raises(IsthmusError, match="more than the whole"):
        Banks(train=0.8, val=0.5).load(0)


def test_more_than_the_features_tell_an_account_s_class():
    """The neighbours' features add to an account's own, and those across the border add once more."""
    pool = Banks().load(0)
    graph, owner = pool.party.graph, pool.owner
    source, target = graph.edge_index
    within = owner[source] == owner[target]

    def hits(edges):
        x = graph.x.index_add(0, target[edges], graph.x[source[edges]])
        x = x / (1 + torch.bincount(target[edges], minlength=1200)).unsqueeze(1)
        means = torch.stack([x[graph.y == label].mean(0) for label in range(4)])
        return float((torch.cdist(x, means).argmin(1) == graph.y).float().mean())

    assert hits(torch.zeros_like(within)) + 0.02 < hits(within)
    assert hits(within) + 0.02 < hits(torch.ones_like(within))


def test_a_motif_is_planted_in_every_graph():
    pool = Motifs(graphs=50, classes=5, features=4).load(0)
    graph, size = pool.party.graph, 6
    assert torch.bincount(graph.y).tolist() == [10] * 5
    assert torch.equal(graph.x.sum(1), torch.ones(graph.x.size(0)))
    for at in range(50):
        nodes = torch.nonzero(graph.batch == at).flatten()
        source, target = graph.edge_index[:, graph.batch[graph.edge_index[0]] == at]
        tree = nodes.numel() - size
        assert 8 <= tree <= 16
        first = int(nodes[0]) + tree
        planted = (source >= first) & (target >= first)
        found = {
            (a, b) for a, b in zip((source - first)[planted].tolist(), (target - first)[planted].tolist(), strict=True)
        }
        motif = set(PLANTED[int(graph.y[at])](size))
        assert found == motif | {(b, a) for a, b in motif}
        assert source.numel() == 2 * (tree - 1 + len(motif) + 1)  # the tree, the motif and the edge that ties them


def test_wheel_has_a_hub_and_a_rim():
    wheel = PLANTED[3](5)
    assert sorted(wheel) == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1)]


def test_motifs_are_split_alike_in_every_class():
    party = Motifs().load(0).party
    for label in range(3):
        own = party.graph.y == label
        assert [int(getattr(party, split)[own].sum()) for split in ("train", "val", "test")] == [60, 20, 20]


def test_generated_sets_are_known_by_name():
    assert DataSet.named("banks") is Banks
    assert DataSet.named("motifs") is Motifs
    summary = DataSet.named("banks").describe()
    assert summary["summary"]
    assert all(option["help"] for option in summary["options"])
