"""MVGRL with several trainers."""

import torch

from helpers import make_graph_parties
from isthmus.methods.mvgrl import Mvgrl
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import extended, module_for, task_of
from isthmus.tasks.clustering import GraphClustering


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
