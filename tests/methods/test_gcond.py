"""GCond and DosCond learn a small graph from data in one place."""

import pytest
import torch
from condensing_runs import QUICK, run_of, server_of
from torch.nn import functional as F

from isthmus.methods.fedgc import FedGC
from isthmus.methods.gcond import DosCond, GCond
from isthmus.nn.condensed import propagate


def test_theta_is_drawn_anew_and_trained_between(parties):
    thetas = {}
    for name, options in {"one": {}, "two": {"renew": 2}, "inner": {"renew": 2, "inner": 3}}.items():
        server, _, state, _ = server_of(
            FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, **options), parties
        )
        next(server)
        thetas[name] = []
        for _ in range(2):
            next(server)
            thetas[name].append(state.theta["output"].clone())
    assert not torch.equal(*thetas["one"])
    assert torch.equal(*thetas["two"])
    assert not torch.equal(*thetas["inner"])


@pytest.mark.parametrize("backbone", ["sgc", "gcn"])
def test_steps_of_theta_are_gradient_descent_on_the_synthetic_graph(parties, backbone):
    options = {"renew": 4, "inner": 2, "lr_inner": 0.5, "backbone": backbone}
    method = FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, **options)
    server, _, state, _ = server_of(method, parties)
    next(server)
    next(server)
    joined = method.joined(state.graph)
    matrix = propagate(torch.eye(len(joined)), joined, 1)
    x = matrix @ (state.scale * state.graph["x"])
    own = {name: torch.nn.Parameter(value.clone()) for name, value in state.theta.items()}
    optimizer = torch.optim.SGD(own.values(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        h = matrix @ (x if backbone == "sgc" else (x @ own["hidden"].T).relu())
        F.cross_entropy(h @ own["output"].T, state.y).backward()
        optimizer.step()
    for name, value in method._descended(state).items():
        torch.testing.assert_close(value, own[name].detach(), atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_gcond_and_doscond_learn(parties):
    for method in (DosCond, GCond):
        found = run_of(method(rounds=60, every=60, ratio=0.2), parties).go()
        assert found.metrics["test_accuracy"] > 0.6
        assert found.graph["x"].size(0) == round(0.2 * 160)
