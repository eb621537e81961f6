import pytest
import torch
from torch import nn
from torch_geometric import nn as gnn
from torch_geometric.utils import to_dense_adj

from helpers import CLASSES, FEATURES, make_parties, plain_output
from isthmus.errors import IsthmusError
from isthmus.nn import structure
from isthmus.nn.encoders import Encoder
from isthmus.nn.structure import StructureChannel, degree_encoding, walk_encoding
from isthmus.study.config import Study
from isthmus.study.export import export_model
from isthmus.study.run import run_study

pytestmark = pytest.mark.usefixtures("double_precision")
RING, STAR = ((0, 1), (1, 2), (2, 0)), tuple((3, leaf) for leaf in range(4, 24))
EDGES = torch.tensor([*RING, *STAR, *((b, a) for a, b in RING + STAR)]).t()
"""A ring, a star with 20 leaves, and two nodes without edges, 24 and 25."""
STEPS = 16


def return_probabilities(edge_index, nodes):
    """diag((A D^-1)^t) of dense matrices."""
    adjacency = to_dense_adj(edge_index, max_num_nodes=nodes)[0].t().double()
    walk = adjacency / adjacency.sum(0).clamp(min=1)
    return torch.stack([torch.linalg.matrix_power(walk, t).diagonal() for t in range(1, STEPS + 1)], dim=1)


@pytest.mark.parametrize("at_a_time", [1, 200, 2**24])
def test_walks_return_as_powers_of_the_dense_matrix_say(at_a_time, monkeypatch):
    monkeypatch.setattr(structure, "AT_A_TIME", at_a_time)
    found = walk_encoding(EDGES, 26, STEPS, torch.float64)
    torch.testing.assert_close(found, return_probabilities(EDGES, 26))
    assert found[:3, 1].tolist() == [0.5] * 3
    assert not found[24:].any()


def test_walks_of_a_directed_graph_follow_its_edges():
    edges = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 3, 3]])
    torch.testing.assert_close(walk_encoding(edges, 5, STEPS, torch.float64), return_probabilities(edges, 5))


def test_degrees_are_one_hot_and_the_ends_hold_what_lies_beyond():
    degrees = degree_encoding(EDGES, 26, 16)
    assert torch.equal(degrees.sum(1), torch.ones(26).long())
    assert degrees.argmax(1).tolist() == [1, 1, 1, 15, *[0] * 22]


def test_an_encoder_says_how_much_of_both_it_tells():
    graph = {"edge_index": EDGES, "nodes": 26}
    channel = Encoder.named("two-channel")(hidden=4, degrees=3, walks=5).build(FEATURES, CLASSES, "node").structure
    both = channel.encode(**graph)
    assert both.shape == (26, 8)
    torch.testing.assert_close(both[:, 3:], return_probabilities(EDGES, 26)[:, :5].to(both.dtype))
    assert both[:4, :3].argmax(1).tolist() == [1, 1, 1, 2]


def test_a_graph_without_edges_has_finite_encodings():
    both = StructureChannel(4, 1, 16, STEPS).encode(torch.empty(2, 0, dtype=torch.long), 3)
    assert both.shape == (3, 32)
    assert both.sum() == 3
    assert StructureChannel(4, 1, 16, STEPS).encode(torch.empty(2, 0, dtype=torch.long), 0).shape == (0, 32)


def test_encodings_are_kept_for_the_edges_they_were_made_from():
    channel, other = StructureChannel(4, 1, 16, STEPS), EDGES.flip(1)[:, :6].contiguous()
    first = channel.encode(EDGES, 26)
    assert channel.encode(EDGES, 26) is first
    assert not torch.equal(channel.encode(other, 26), first)
    assert channel.encode(EDGES, 27).size(0) == 27
    for _ in range(10):
        channel.encode(EDGES.clone(), 26)
    assert len(channel._encoded) == channel.KEPT


class AsWritten(nn.Module):
    """The network of the paper with two layers."""

    def __init__(self, level):
        super().__init__()
        self.inputs, self.embed = nn.Linear(FEATURES, 6), nn.Linear(32, 6)
        self.gin = nn.ModuleList(
            gnn.GINConv(nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 6))) for _ in range(2)
        )
        self.gcn = nn.ModuleList(gnn.GCNConv(6, 6) for _ in range(2))
        self.join = nn.Linear(12, 6 if level == "graph" else CLASSES)
        self.post, self.out = nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, CLASSES)

    def forward(self, x, edge_index, batch=None):
        degree = torch.bincount(edge_index[1], minlength=len(x)).clamp(1, 16)
        s = torch.cat([nn.functional.one_hot(degree - 1, 16), return_probabilities(edge_index, len(x))], dim=1)
        h, s = self.inputs(x), self.embed(s)
        for gin, gcn in zip(self.gin, self.gcn, strict=True):
            h = torch.relu(gin(torch.cat([h, s], dim=1), edge_index))
            s = torch.tanh(gcn(s, edge_index))
        h = self.join(torch.cat([h, s], dim=1))
        return h if batch is None else self.out(self.post(gnn.global_add_pool(h, batch)))


@pytest.mark.parametrize("level", ["node", "graph"])
def test_the_network_is_that_of_the_paper(level):
    module = Encoder.named("two-channel")(hidden=6, layers=2).build(FEATURES, CLASSES, level).eval()
    due, names = AsWritten(level), {"structure.embed": "embed", "structure.convs": "gcn", "convs": "gin"}
    weights = {}
    for name, weight in module.state_dict().items():
        name = name.removeprefix("body.").replace("after.0", "post.0").replace("head", "out")
        prefix = next((each for each in names if name.startswith(each)), "")
        weights[names.get(prefix, "") + name.removeprefix(prefix)] = weight
    missing, unknown = due.load_state_dict(weights, strict=False)
    assert not unknown
    assert {name.partition(".")[0] for name in missing} == (set() if level == "graph" else {"post", "out"})
    for party in make_parties(level):
        graph = party.graph
        more = {"batch": graph.batch} if level == "graph" else {}
        torch.testing.assert_close(plain_output(module, graph), due(graph.x, graph.edge_index, **more))


@pytest.mark.slow  # torch's exporter takes long to import
def test_a_program_cannot_hold_walks(tmp_path):
    study = Study.of({"data": {"name": "motifs"}, "model": {"encoder": "two-channel"}, "training": {"rounds": 1}})
    with pytest.raises(IsthmusError, match="torch cannot export model Readout"):
        export_model(run_study(study).model(), tmp_path / "model.pt2")
