"""The synthetic graph: its edges, its gradients, and what is let out of it, against slow literal versions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from isthmus.nn import condensed
from isthmus.nn.draws import draws_of


@pytest.fixture
def source():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("symmetric", [True, False])
def test_edges_are_those_of_the_mlp_on_pairs_put_together(source, symmetric):
    x = torch.randn(5, 3, generator=source)
    edges = condensed.initial_edge_weights(3, 4, 5, draws_of(0))
    found = condensed.adjacency(x, edges, symmetric=symmetric)

    def score(i, j):
        hidden = F.linear(torch.cat([x[i], x[j]]), edges["edges/first"], edges["edges/first_bias"]).relu()
        return F.linear(hidden, edges["edges/second"], edges["edges/second_bias"]).squeeze()

    for i in range(5):
        for j in range(5):
            both = (score(i, j) + score(j, i)) / 2 if symmetric else score(i, j)
            due = torch.tensor(0.0) if i == j else both.sigmoid()
            torch.testing.assert_close(found[i, j], due)
    assert torch.equal(found, found.T) == symmetric
    assert 0.3 < float(found.sum(1).mean()) < 3, "a node starts with about one neighbour"


def test_propagation_is_that_of_a_gcn_on_the_graph_that_is_released(source):
    x = torch.randn(6, 4, generator=source)
    joined = condensed.adjacency(x, condensed.initial_edge_weights(4, 8, 6, draws_of(0)), symmetric=False)
    graph = condensed.to_data(x, torch.arange(6) % 2, joined, threshold=0.0)
    from torch_geometric.nn import SGConv

    layer = SGConv(4, 4, K=2, bias=False)
    layer.lin.weight = nn.Parameter(torch.eye(4))
    theirs = layer(graph.x, graph.edge_index, graph.edge_weight)
    torch.testing.assert_close(condensed.propagate(x, joined, 2), theirs, atol=1e-5, rtol=1e-4)
    assert torch.equal(condensed.propagate(x, None, 2), x)


def test_pairs_are_scored_some_at_a_time_with_the_same_gradient(source, monkeypatch):
    x = torch.randn(7, 3, generator=source, requires_grad=True)
    edges = condensed.initial_edge_weights(3, 4, 7, draws_of(0))
    found = []
    for pairs in (10**6, 15):
        monkeypatch.setattr(condensed, "PAIRS_AT_ONCE", pairs)
        joined = condensed.adjacency(x, edges, symmetric=True)
        found.append((joined.detach(), torch.autograd.grad(joined.square().sum(), x)[0]))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts)


def test_weak_edges_are_left_out(source):
    joined = torch.tensor([[0.0, 0.9, 0.005], [0.2, 0.0, 0.0], [0.0, 0.01, 0.0]])
    graph = condensed.to_data(torch.eye(3), torch.tensor([0, 1, 1]), joined, threshold=0.01)
    assert graph.edge_index.tolist() == [[1, 0, 1], [0, 1, 2]]
    torch.testing.assert_close(graph.edge_weight, torch.tensor([0.9, 0.2, 0.01]))
    ended = condensed.to_data(torch.eye(3), torch.zeros(3), 1e-9 * joined, 0.01)
    assert ended.edge_index.numel() == 0, "edges that weigh nothing beside a node itself are none"
    assert condensed.to_data(torch.eye(3), torch.zeros(3), None, 0.01).edge_index.shape == (2, 0)


def literal_slopes(h, y, weight, classes):
    """A class after another: autograd on the mean loss of its rows."""
    found = []
    for kind in range(classes):
        own = weight.clone().requires_grad_()
        rows = h[y == kind]
        loss = F.cross_entropy(rows @ own.T, y[y == kind]) if len(rows) else (own * 0).sum()
        found.append(torch.autograd.grad(loss, own)[0])
    return torch.stack(found)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_classes_are_autograds(seed):
    source = torch.Generator().manual_seed(seed)
    h, weight = torch.randn(20, 5, generator=source), torch.randn(4, 5, generator=source)
    y = torch.randint(3, (20,), generator=source)  # class 3 has no rows
    found = condensed.linear_gradients(h, y, weight, condensed.class_shares(y, 4))
    torch.testing.assert_close(found, literal_slopes(h, y, weight, 4))


def literal_gcn(hop, x, y, hidden, output, rows):
    """The mean loss of some rows of a GCN of two layers, and its gradients, by autograd."""
    own = [weight.clone().requires_grad_() for weight in (hidden, output)]
    logits = hop @ (hop @ x @ own[0].T).relu() @ own[1].T
    loss = F.cross_entropy(logits[rows], y[rows]) if bool(rows.any()) else sum((each * 0).sum() for each in own)
    return torch.autograd.grad(loss, own, create_graph=True)


@pytest.mark.parametrize("edges", [True, False])
def test_gradients_of_a_gcn_and_their_own_gradients_are_autograds(source, edges):
    x, raw = torch.randn(9, 5, generator=source), torch.rand(9, 9, generator=source)
    hidden, output = torch.randn(6, 5, generator=source), torch.randn(4, 6, generator=source)
    y = torch.arange(9) % 3  # class 3 has no rows
    found, due = [], []
    for literal, slopes in ((False, found), (True, due)):
        x_, matrix = x.clone().requires_grad_(), raw.clone().requires_grad_()
        if literal:
            looped = matrix * (1 - torch.eye(9)) + torch.eye(9)
            hop = looped / (looped.sum(1, keepdim=True) * looped.sum(1)).sqrt() if edges else torch.eye(9)
            by_class = [literal_gcn(hop, x_, y, hidden, output, y == kind) for kind in range(4)]
            both = [torch.stack(each) for each in zip(*by_class, strict=True)]
        else:
            joined = matrix * (1 - torch.eye(9)) if edges else None
            both = condensed.gcn_gradients(x_, joined, y, hidden, output, condensed.class_shares(y, 4))
        slopes += [*both, *torch.autograd.grad(sum(each.square().sum() for each in both), (x_, matrix)[: 1 + edges])]
    for mine, literal in zip(found, due, strict=True):
        torch.testing.assert_close(mine, literal, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("some", [True, False])
def test_gradients_of_a_gcn_of_all_parties_are_those_of_each_alone(source, some):
    sizes, classes = (12, 7, 5), 3
    x = torch.randn(sum(sizes), 5, generator=source)
    hidden, output = torch.randn(6, 5, generator=source), torch.randn(classes, 6, generator=source)
    starts = [0, 12, 19]
    drawn = [at + torch.randint(size, (2, 3 * size), generator=source) for at, size in zip(starts, sizes, strict=True)]
    index = torch.cat(drawn, dim=1)
    index = index[:, index[0] != index[1]].unique(dim=1)
    weight = torch.rand(index.size(1), generator=source)
    party = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    y = torch.randint(classes, (sum(sizes),), generator=source)
    y[party == 1] = 2
    at = torch.arange(0, sum(sizes), 2) if some else torch.arange(sum(sizes))
    at = at[party[at] != 2] if some else at  # party 2 has none
    found = condensed.PartyGcn(x, (index, weight), at, y[at], party[at], (3, classes)).gradients(hidden, output)
    matrix = torch.zeros(len(x), len(x))
    matrix[index[1], index[0]] = weight
    looped = matrix + torch.eye(len(x))
    hop = looped / (looped.sum(1, keepdim=True) * looped.sum(1)).sqrt()
    chosen = torch.zeros(len(x), dtype=torch.bool)
    chosen[at] = True
    for own in range(3):
        for kind in range(classes):
            due = literal_gcn(hop, x, y, hidden, output, chosen & (party == own) & (y == kind))
            for mine, literal in zip(found, due, strict=True):
                torch.testing.assert_close(mine[own, kind], literal.detach(), atol=1e-5, rtol=1e-4)


def test_gradients_of_all_parties_are_those_of_each_alone():
    source = torch.Generator().manual_seed(0)
    h, weight = torch.randn(30, 5, generator=source), torch.randn(3, 5, generator=source)
    y, party = torch.randint(3, (30,), generator=source), torch.arange(3).repeat_interleave(10)
    y[party == 1] = 2
    found = condensed.party_gradients(h, y, party, 4, weight)
    for at in range(4):
        torch.testing.assert_close(found[at], literal_slopes(h[party == at], y[party == at], weight, 3))


def test_distances_are_squares_and_the_cosines_of_7():
    source = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 4, generator=source), torch.randn(2, 3, 4, generator=source)
    squares = [sum(float((a[c, i, j] - b[c, i, j]) ** 2) for i in range(3) for j in range(4)) for c in range(2)]
    cosines = [sum(1 - float(a[c, i] @ b[c, i] / a[c, i].norm() / b[c, i].norm()) for i in range(3)) for c in range(2)]
    torch.testing.assert_close(condensed.DISTANCES["mse"](a, b), torch.tensor(squares))
    torch.testing.assert_close(condensed.DISTANCES["columns"](a, b), torch.tensor(cosines))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any), st.integers(1, 60))
def test_every_class_that_is_there_gets_a_share_near_its_own(counts, total):
    items = torch.tensor(counts, dtype=torch.float64)
    given = condensed.allot_nodes(items, total)
    here = items > 0
    assert int(given.sum()) == max(total, int(here.sum()))
    assert bool((given[here] >= 1).all())
    assert not bool(given[~here].any())
    if total >= sum(counts):  # large enough for all: nobody is more than one from its share
        assert bool(((given - items / items.sum() * total).abs() <= 1 + 1e-9).all())
