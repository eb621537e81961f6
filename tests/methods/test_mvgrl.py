"""MVGRL with several trainers."""

import pytest
import torch

from helpers import make_graph_parties
from isthmus.data.views import add_diffusion_view
from isthmus.methods.mvgrl import Mvgrl
from isthmus.nn.encoders import Encoder, split_views
from isthmus.study.setup import extended, module_for, task_of
from isthmus.tasks.clustering import GraphClustering
from isthmus.testing import check_method, small_parties


def test_mvgrls_encoders_begin_with_weights_of_their_own_that_the_seed_draws():
    parties = make_graph_parties()
    task = task_of(GraphClustering(), parties)
    made = [
        extended(Mvgrl(), module_for(Encoder.named("gcn")(hidden=6), parties, task, seed), seed).state_dict()
        for seed in (0, 0, 1)
    ]
    one, again, other = made
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["of_nodes.past.weight"], other["of_nodes.past.weight"])
    name = "body.convs.0.lin.weight"
    assert not torch.equal(one[f"embedders.0.{name}"], one[f"embedders.1.{name}"])


def test_the_nodes_head_may_read_the_last_layer_alone():
    """As in the public code: `mlp1` is as wide as a layer, `mlp2` maps all layers to that width."""
    parties = make_graph_parties()
    task = task_of(GraphClustering(), parties)
    plain = module_for(Encoder.named("gcn")(hidden=6, layers=3, dropout=0.0), parties, task, 0)
    module = extended(Mvgrl(node_head_reads="last"), plain, 0)
    graph = add_diffusion_view(parties[0], restart=0.2, threshold=0.0).graph
    h, u = module(graph.x.to_dense(), graph.edge_index, graph.edge_weight, graph.batch, parties[0].items)
    for view, edges in enumerate(split_views(graph.edge_index, graph.edge_weight)):
        layers, x = [], graph.x.to_dense()
        for conv in module.embedders[view].body.convs:
            x = conv(x, *edges).relu()
            layers.append(x)
        every = torch.cat(layers, dim=1)
        pooled = module.embedders[view].pool(every, graph.batch, parties[0].items)
        torch.testing.assert_close(h[:, view], module.of_nodes(layers[-1]))
        torch.testing.assert_close(u[:, view], module.of_graphs(pooled))
    assert (h.size(2), u.size(2)) == (6, 6)


@pytest.mark.slow
def test_mvgrl_with_the_public_codes_heads_conforms():
    local = {"epochs": 2, "batch_size": 4, "optimizer": "sgd", "lr": 0.01, "weight_decay": 0.0}
    options = {"rounds": 3, "node_head_reads": "last", "local": local}
    encoder = Encoder.named("gcn")(hidden=8, dropout=0.0)
    check_method(Mvgrl.read(options, "mvgrl"), small_parties("graph"), encoder=encoder)
