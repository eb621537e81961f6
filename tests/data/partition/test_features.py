import warnings
from dataclasses import replace

import pytest
import torch
from pools import make_pool, members_of
from sklearn import cluster
from threadpoolctl import threadpool_info, threadpool_limits

from isthmus.data import rows
from isthmus.data.datasets.citations import CiteSeer, Cora
from isthmus.data.datasets.public import data_root
from isthmus.data.partition import features
from isthmus.data.partition.features import KMeans, Sorted
from isthmus.data.partition.structure import Metis
from isthmus.data.pool import DataSet
from isthmus.data.skew import earth_movers


def with_features(x):
    pool = make_pool(0, x.size(0))
    graph = pool.party.graph.clone()
    graph.x = x
    return replace(pool, whole=replace(pool.party, graph=graph))


def blobs(groups, size):
    """Well parted groups of nodes, in turn."""
    source = torch.Generator().manual_seed(0)
    at = torch.arange(groups * size) % groups
    return torch.eye(groups)[at] * 10 + 0.1 * torch.randn(groups * size, groups, generator=source)


@pytest.mark.parametrize("sparse", [False, True])
def test_nodes_with_similar_features_are_together(sparse):
    x = blobs(3, 20)
    pool = with_features(x.to_sparse_csr() if sparse else x)
    found = sorted(sorted(held) for held in members_of(KMeans(n_init=5).cut(pool, 3, seed=0)))
    assert found == [list(range(at, 60, 3)) for at in range(3)]


def test_sparse_features_stay_sparse(monkeypatch):
    monkeypatch.setattr(rows, "to_dense", lambda _: pytest.fail("made dense"))
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda *_: pytest.fail("made dense"))
    x = (torch.rand(50, 30, generator=torch.Generator().manual_seed(0)) < 0.1).float().to_sparse_csr()
    assert all(rows.is_sparse(party.graph.x) for party in KMeans().cut(with_features(x), 4, seed=0))


def test_nodes_without_features_go_out_evenly():
    x = blobs(3, 20)
    x[:30] = 0
    parties = KMeans(n_init=5).cut(with_features(x), 3, seed=0)
    assert sorted(sum(at < 30 for at in held) for held in members_of(parties)) == [10, 10, 10]
    rest = sorted(sorted(at for at in held if at >= 30) for held in members_of(parties))
    assert rest == [list(range(at, 60, 3)) for at in (30, 31, 32)]
    assert [party.items for party in KMeans().cut(with_features(torch.zeros(6, 2)), 3, seed=0)] == [2, 2, 2]


def test_nobody_is_empty_where_features_are_alike_and_nothing_is_said():
    x = torch.ones(30, 2)
    x[:3] = 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parties = KMeans().cut(with_features(x), 20, seed=0)
    assert min(party.items for party in parties) == 1
    assert len(KMeans().cut(with_features(torch.eye(9)[:, :4]), 9, seed=0)) == 9, (
        "fewer rows say something than parties"
    )


def test_large_graphs_are_cut_by_mini_batches(monkeypatch):
    monkeypatch.setattr(features, "FULL_BATCH", 100)
    monkeypatch.setattr(cluster, "KMeans", lambda **_: pytest.fail("all at once"))
    pool = with_features(blobs(4, 200))
    found = sorted(sorted(held) for held in members_of(KMeans(n_init=5).cut(pool, 4, seed=0)))
    assert found == [list(range(at, 800, 4)) for at in range(4)]
    first, again, other = (members_of(KMeans().cut(make_pool(0, 300), 9, seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_one_thread_adds_up_and_the_others_are_given_back(monkeypatch):
    """Several threads would add up in an order of their own, and so might cut otherwise each time."""
    seen, fit = [], cluster.KMeans.fit_predict

    def watched(*arguments):
        seen.extend(each["num_threads"] for each in threadpool_info())
        return fit(*arguments)

    monkeypatch.setattr(cluster.KMeans, "fit_predict", watched)
    with threadpool_limits(2):
        KMeans().cut(make_pool(0, 300), 9, seed=0)
        assert {each["num_threads"] for each in threadpool_info()} == {2}
    assert set(seen) == {1}


def kept_edges(parties, whole):
    return sum(party.edges for party in parties) / whole.edges


@pytest.mark.real
@pytest.mark.parametrize(
    ("data", "title", "metis", "k_means"),
    [(Cora, "Cora", 0.5462, 0.2732), (CiteSeer, "CiteSeer", 0.7962, 0.3623)],
)
@pytest.mark.slow
def test_a_hundred_parties_keep_about_the_edges_that_fedcog_reports(data, title, metis, k_means):
    """FedCog (section V-A) cuts either graph into 100 parties; its k-means sees the words as they are."""
    if not (data_root() / "planetoid" / title / "raw").is_dir():
        pytest.skip(f"{title} is not under {data_root()}")
    pool = data(normalize=False).load(0)
    found = [KMeans().cut(pool, 100, seed) for seed in range(3)]
    kept = [kept_edges(parties, pool.party) for parties in found]
    assert sum(kept) / 3 == pytest.approx(k_means, abs=0.1)
    counts = torch.stack([torch.bincount(party.graph.y, minlength=pool.classes) for party in found[0]])
    assert earth_movers(counts) > 0.5
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    assert kept_edges(Metis().cut(pool, 100, seed=0), pool.party) == pytest.approx(metis, abs=0.04)


@pytest.mark.parametrize("sparse", [False, True])
def test_nodes_are_sorted_by_degree_or_by_features(sparse):
    x = torch.arange(24.0).flip(0).unsqueeze(1).repeat(1, 2)
    pool = with_features(x.to_sparse_csr() if sparse else x)
    found = members_of(Sorted(by="features").cut(pool, 3, seed=0))
    assert [sorted(held) for held in found] == [list(range(16, 24)), list(range(8, 16)), list(range(8))]
    degree = torch.bincount(pool.party.graph.edge_index[1], minlength=24)
    owner = Sorted().assign(pool, 4, seed=0)
    assert torch.bincount(owner).tolist() == [6] * 4
    assert all(degree[owner == at].max() <= degree[owner == at + 1].min() for at in range(3))
    assert not torch.equal(owner, Sorted().assign(pool, 4, seed=1))  # nodes of one degree are in an order of chance


def test_graphs_are_sorted_by_the_means_of_their_nodes():
    pool = DataSet.named("motifs").read({"graphs": 20}, "motifs").load(0)
    graph = pool.party.graph
    nodes, edges = (torch.bincount(graph.batch[at]) for at in (torch.arange(pool.party.nodes), graph.edge_index[1]))
    features = torch.stack([graph.x[graph.batch == at].mean() for at in range(20)])
    for by, value in (("degree", edges / nodes), ("features", features)):
        owner = Sorted(by=by).assign(pool, 2, seed=0)
        assert torch.bincount(owner).tolist() == [10, 10]
        assert value[owner == 0].max() <= value[owner == 1].min() + 1e-6
