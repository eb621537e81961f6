import sys

import pytest
import torch
from pools import make_pool
from torch_geometric.data import Data

from isthmus.data.datasets.banks import Banks
from isthmus.data.partition.labels import Random
from isthmus.data.partition.structure import Louvain, Metis
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.errors import IsthmusError


def test_louvain_keeps_communities_whole_where_it_can():
    pool = ring_of_cliques(8, 6)
    parties = Louvain().cut(pool, 4, seed=0)
    assert [party.items for party in parties] == [12] * 4
    assert sum(party.edges for party in parties) >= pool.party.edges - 2 * 8
    assert Louvain().cut(pool, 48, seed=0)[0].items == 1


def test_louvain_splits_the_largest_community_into_neighbours():
    numbers = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    path = torch.stack([numbers[:-1], numbers[1:]])
    graph = Data(x=torch.zeros(32, 1), edge_index=torch.cat([path, path.flip(0)], dim=1), y=torch.zeros(32).long())
    pool = Pool(Party.of_graph("pooled", graph), classes=1)
    parties = Louvain().cut(pool, 16, seed=0)
    assert sum(len(party.border) for party in parties) <= 2 * 17  # scattered halves would cut nearly all 62 edges


def ring_of_cliques(cliques, size):
    """Every clique is tied to the next by one edge; the nodes are numbered across the cliques."""
    inside = [
        (a * cliques + k, b * cliques + k) for k in range(cliques) for a in range(size) for b in range(size) if a != b
    ]
    ties = [(k, (k + 1) % cliques) for k in range(cliques)]
    edges = torch.tensor(inside + ties + [(b, a) for a, b in ties]).t()
    graph = Data(x=torch.zeros(cliques * size, 1), edge_index=edges, y=torch.zeros(cliques * size, dtype=torch.long))
    return Pool(Party.of_graph("pooled", graph, ids=torch.arange(cliques * size)), classes=1)


def test_metis_gives_every_party_about_as_much_and_cuts_fewer_edges_than_chance() -> None:
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    pool = Banks().load(0)
    parties, again, chance = Metis().cut(pool, 5, 0), Metis().cut(pool, 5, 0), Random().cut(pool, 5, 0)
    sizes = [party.nodes for party in parties]
    assert max(sizes) <= 1.2 * min(sizes)
    assert sum(party.edges for party in parties) > 1.5 * sum(party.edges for party in chance)
    assert all(torch.equal(one.ids, other.ids) for one, other in zip(parties, again, strict=True))


def test_metis_cuts_graphs_with_loops_in_one_direction_or_without_edges() -> None:
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    assert len(Metis().cut(make_pool(0, 50), 5, seed=0)) == 5
    ring = ring_of_cliques(4, 5)
    one_way = ring.party.graph.edge_index[:, ring.party.graph.edge_index[0] <= ring.party.graph.edge_index[1]]
    for edges in (one_way, torch.arange(20).repeat(2, 1), torch.empty(2, 0, dtype=torch.long)):
        graph = Data(x=torch.zeros(20, 1), edge_index=edges, y=torch.zeros(20, dtype=torch.long))
        parties = Metis().cut(Pool(Party.of_graph("pooled", graph), 1), 4, seed=0)
        assert sum(party.items for party in parties) == 20
    whole, turned = (Metis().assign(pool, 4, seed=0) for pool in (ring, with_edges(ring, one_way)))
    assert torch.equal(whole, turned), "an edge counts once, whichever way it runs"
    loops = torch.cat([ring.party.graph.edge_index, torch.arange(9).repeat(2, 1)], dim=1)
    assert torch.equal(Metis().assign(with_edges(ring, loops), 4, seed=0), whole)


def with_edges(pool, edges):
    graph = pool.party.graph.clone()
    graph.edge_index = edges
    return Pool(Party.of_graph("pooled", graph), pool.classes)


def test_without_pymetis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(IsthmusError, match=r"pip install 'isthmus\[metis\]'"):
        Metis().cut(Banks().load(0), 3, 0)


def test_metis_takes_its_algorithm():
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    pool = Banks().load(0)
    found = {algorithm: Metis(algorithm=algorithm).assign(pool, 6, 0) for algorithm in (None, "kway", "recursive")}
    assert torch.equal(found[None], found["recursive"])
    assert not torch.equal(found["kway"], found["recursive"])
    assert torch.equal(Metis().assign(pool, 9, 0), Metis(algorithm="kway").assign(pool, 9, 0))
    with pytest.raises(IsthmusError, match="option 'algorithm' is 'kmeans': give 'kway' or 'recursive'"):
        Metis.read({"algorithm": "kmeans"}, "partition")


@pytest.mark.parametrize(
    ("cliques", "size", "parties", "delta"), [(8, 6, 4, 0), (8, 6, 4, 3), (20, 5, 4, 6), (5, 20, 4, 6), (3, 31, 7, 2)]
)
def test_louvain_packs_pieces_into_parties_of_a_size_and_loses_none(cliques, size, parties, delta):
    pool = ring_of_cliques(cliques, size)
    owner = Louvain(delta=delta).assign(pool, parties, 0)
    sizes, share = torch.bincount(owner, minlength=parties), pool.party.items // parties
    assert owner.numel() == pool.party.items == int(sizes.sum()), "each node has one owner"
    assert int(sizes.min()) >= 1
    pieces_fit = size <= delta + share // 2
    assert int(sizes.max()) <= share + delta or not pieces_fit, "large pieces may fit nowhere"
    if cliques == 8:
        assert (owner.view(size, cliques) == owner[:cliques]).all(), "a clique that is small enough stays whole"


def test_a_delta_that_leaves_no_piece_is_refused():
    with pytest.raises(IsthmusError, match=r"partition 'louvain': delta = 12 must be below 12, the nodes of a party"):
        Louvain(delta=12).cut(ring_of_cliques(8, 6), 4, seed=0)


@pytest.mark.parametrize("partition", [Louvain(by_labels=True), Metis(communities=12)], ids=["louvain", "metis"])
def test_communities_with_the_same_mix_of_labels_go_to_one_party(partition):
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    ring = ring_of_cliques(12, 5)
    graph = ring.party.graph.clone()
    graph.y = torch.arange(60) % 12 % 3  # of each clique one class
    pool = Pool(Party.of_graph("pooled", graph, ids=torch.arange(60)), classes=3)
    parties = partition.cut(pool, 3, seed=0)
    assert sorted(party.items for party in parties) == [20] * 3
    assert all(party.graph.y.unique().numel() == 1 for party in parties)
    alike = partition.cut(ring, 3, seed=0)  # all communities have one mix
    assert sorted(party.items for party in alike) == [1, 1, 58]


def test_refusals_of_communities_with_the_same_mix():
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    with pytest.raises(IsthmusError, match="communities = 2 are too few for 3 parties: ask for more"):
        Metis(communities=2).cut(ring_of_cliques(4, 5), 3, seed=0)
    with pytest.raises(IsthmusError, match="delta has no effect with by_labels: leave one of them out"):
        Louvain.read({"by_labels": True, "delta": 3}, "partition")
