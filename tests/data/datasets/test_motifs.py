import pytest
import torch

from isthmus.data.datasets.motifs import Motifs
from isthmus.data.datasets.planting import MOTIFS
from isthmus.data.pool import DataSet


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
        motif = set(MOTIFS[int(graph.y[at])](size))
        assert found == motif | {(b, a) for a, b in motif}
        assert source.numel() == 2 * (tree - 1 + len(motif) + 1)  # the tree, the motif and the edge that ties them


def test_motifs_are_split_alike_in_every_class():
    party = Motifs().load(0).party
    for label in range(3):
        own = party.graph.y == label
        assert [int(getattr(party, split)[own].sum()) for split in ("train", "val", "test")] == [60, 20, 20]


def test_same_seed_same_data_whatever_else_was_drawn():
    first, again, other = (Motifs(graphs=30).load(seed).party.graph for seed in (5, 5, 6))
    assert all(torch.equal(first[key], again[key]) for key in ("x", "edge_index", "y", "batch"))
    assert not torch.equal(first.edge_index[:, :50], other.edge_index[:, :50])


def test_kinds_of_node_say_nothing():
    graph = Motifs(graphs=2000, features=2).load(0).party.graph
    for label in range(3):
        assert float(graph.x[graph.y[graph.batch] == label, 0].mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("odd", [{"graphs": 1}, {"classes": 1}, {"features": 1}, {"smallest": 1}])
def test_odd_motifs_work(odd):
    assert Motifs(**odd).load(0).party.items == odd.get("graphs", 300)


def test_motifs_are_known_by_name_and_documented():
    assert DataSet.named("motifs") is Motifs
    assert all(option["help"] for option in Motifs.describe()["options"])
