"""SFGC's students and synthetic nodes."""

from copy import deepcopy

import pytest
import torch
from condensing_runs import run_of
from torch.nn import functional as F

from isthmus.methods.base import Model
from isthmus.methods.sfgc import SFGC
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import module_for, task_for


@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_sfgcs_student_is_gradient_descent_written_out(parties, encoder):
    method = SFGC(rounds=2, steps=3)
    task = task_for(parties)
    module = module_for(Encoder.named(encoder)(hidden=8, dropout=0.0), parties, task, 0)
    x, y = torch.randn(6, parties[0].features), torch.arange(6) % 2
    start = {name: value.clone() for name, value in Model(module).weights().items()}
    found = method._student(module, start, x, torch.tensor(0.3), y)
    twin = deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(twin(x, torch.arange(6).expand(2, -1)), y).backward()
        optimizer.step()
    for name, value in twin.named_parameters():
        torch.testing.assert_close(found[name].detach(), value.detach(), atol=1e-6, rtol=1e-4)
        assert not torch.equal(value, start[name]), "loops train the weights for neighbours too"


def test_sfgcs_nodes_and_rate_move_and_have_no_edges_but_loops(parties):
    run = run_of(SFGC(rounds=3, every=3, latest=2, span=3, steps=3, ratio=0.1), parties)
    found = run.go()
    nodes = torch.arange(len(found.graph["x"]))
    assert torch.equal(found.graph["edge_index"], torch.stack([nodes, nodes]))
    assert abs(float(run.state.graph["rate"].exp()) - run.method.rate) > 1e-3
