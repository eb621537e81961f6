"""Tables of node pairs against a loop over graphs."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.errors import IsthmusError
from isthmus.privacy.edges import NodePairs, PostProcessing
from isthmus.privacy.mechanisms import Laplace, RandomizedResponse
from isthmus.privacy.random_bits import SeededBits

sizes_of = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def listed(sizes):
    """All pairs, one after another."""
    found, first = [], 0
    for size in sizes:
        found += [(first + a, first + b) for a, b in itertools.combinations(range(size), 2)]
        first += size
    return found


@given(sizes=sizes_of, seed=st.integers(0, 99))
def test_every_pair_of_every_graph_is_there_once(sizes, seed):
    pairs, due = NodePairs.of_graphs(sizes), listed(sizes)
    assert list(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)) == due
    assert len(pairs) == sum(pairs.counts) == len(due)
    chosen = torch.rand(len(due), generator=torch.Generator().manual_seed(seed)) < 0.4
    edges = [pair for pair, on in zip(due, chosen.tolist(), strict=True) if on]
    both = [*edges, *[(b, a) for a, b in edges], *[(a, a) for a, _ in edges], *edges[:1]]
    edge_index = torch.tensor(both, dtype=torch.long).view(-1, 2).t()
    assert torch.equal(pairs.bits(edge_index), chosen.float())
    one_way = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    assert torch.equal(pairs.bits(one_way), chosen.float())
    index, weight = pairs.graph(pairs.bits(edge_index))
    assert sorted(zip(*index.tolist(), strict=True)) == sorted({*edges, *[(b, a) for a, b in edges]})
    assert (weight == 1).all()


def test_noise_is_drawn_once_for_both_ways():
    pairs = NodePairs.of_graphs([5, 3])
    index, weight = pairs.graph(torch.rand(len(pairs)) + 0.1)
    dense = torch.zeros(8, 8).index_put((index[0], index[1]), weight)
    assert torch.equal(dense, dense.t())
    assert (dense[:5, 5:] == 0).all()


@example(sizes=[7], degree=4.999999999999999, seed=0)
@given(sizes=sizes_of, degree=st.floats(0.1, 5), seed=st.integers(0, 99))
def test_the_largest_values_of_each_graph_are_kept(sizes, degree, seed):
    pairs = NodePairs.of_graphs(sizes)
    values = torch.randn(len(pairs), generator=torch.Generator().manual_seed(seed))
    kept = PostProcessing(clamp=False, degree=degree).apply(values, pairs)
    for size, part, left in zip(sizes, values.split(pairs.counts), kept.split(pairs.counts), strict=True):
        count = min(round(size * degree / 2), part.numel())
        due = torch.zeros_like(part)
        due[part.topk(count).indices] = part.topk(count).values
        assert torch.equal(left, due)


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({}, [0.0, 0.25, 1.0]),
        ({"clamp": False}, [-2.0, 0.25, 1.5]),
        ({"threshold": 0.25}, [0.0, 1.0, 1.0]),
        ({"threshold": 0.5, "degree": 1.4}, [0.0, 0.0, 1.0]),
        ({"degree": 0.6}, [0.0, 0.0, 1.0]),
    ],
)
def test_values_are_made_usable(options, due):
    assert PostProcessing(**options).apply(torch.tensor([-2.0, 0.25, 1.5]), NodePairs.of_graphs([3])).tolist() == due


def test_a_few_large_graphs_make_no_padding():
    pairs = NodePairs.of_graphs([400, *[10] * 1000])
    assert len(pairs) == 400 * 399 // 2 + 1000 * 45


@pytest.mark.parametrize("mechanism", [Laplace(epsilon=1.5), RandomizedResponse(epsilon=1.5)], ids=lambda one: one.name)
def test_a_graph_keeps_about_as_many_edges_as_it_has(mechanism):
    """Over many copies of a path of 12 nodes, which has 11 of 66 edges."""
    pairs = NodePairs.of_graphs([12] * 400)
    bits = pairs.bits(
        torch.tensor([[12 * g + i for g in range(400) for i in range(11)]] * 2) + torch.tensor([[0], [1]])
    )
    values = mechanism.release(bits, SeededBits(0))
    plain = PostProcessing(threshold=0.5).apply(values, pairs)
    kept = PostProcessing(threshold=0.5, keep="edges").apply(values, pairs, mechanism.unbiased(values))
    assert plain.sum() / 400 > 18, "most of what is released as an edge is none"
    for graph, part in zip(mechanism.unbiased(values).split(66), kept.split(66), strict=True):
        assert part.sum() <= max(0, round(float(graph.sum())))
    assert 9 < kept.sum() / 400 < 13
    if mechanism.name == "laplace":  # randomised response has only equal values to choose from
        assert (kept * bits).sum() / kept.sum() > (plain * bits).sum() / plain.sum()


@given(sizes=sizes_of, seed=st.integers(0, 99))
def test_kept_edges_are_the_largest_values_as_many_as_estimated(sizes, seed):
    """Graph by graph, as written out: the estimated number of edges, then the largest values one after another."""
    pairs, mechanism = NodePairs.of_graphs(sizes), Laplace(epsilon=1.0)
    values = mechanism.release(torch.zeros(len(pairs)), SeededBits(seed))
    values = values + (torch.rand(len(pairs), generator=torch.Generator().manual_seed(seed)) < 0.3)
    kept = PostProcessing(threshold=0.0, keep="edges").apply(values, pairs, mechanism.unbiased(values))
    for part, left in zip(values.split(pairs.counts), kept.split(pairs.counts), strict=True):
        due, rest = [0.0] * part.numel(), part.tolist()
        for _ in range(min(len(rest), max(0, round(sum(rest))))):
            at = rest.index(max(rest))
            due[at], rest[at] = float(rest[at] >= 0), -np.inf
        assert left.tolist() == due


def test_a_node_keeps_as_many_neighbours_as_estimated():
    mechanism, pairs = RandomizedResponse(epsilon=1.0), NodePairs.of_graphs([5, 4])
    values = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1])
    flip = 1 / (1 + np.e)
    due = torch.zeros(16)
    for at, (i, j) in enumerate(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)):
        shares = []
        for node in (i, j):
            own = [at for at in range(16) if node in (int(pairs.source[at]), int(pairs.target[at]))]
            released = sum(float(values[at]) for at in own)
            degree = (released - len(own) * flip) / (1 - 2 * flip)
            shares.append(min(1.0, max(0.0, degree / released)) if released else 0.0)
        due[at] = values[at] * sum(shares) / 2
    kept = PostProcessing(keep="degrees").apply(values, pairs, mechanism.unbiased(values))
    torch.testing.assert_close(kept, due)
    assert kept.sum() < values.sum()


def test_values_are_kept_in_one_way():
    with pytest.raises(IsthmusError, match="degree says how many values to keep"):
        PostProcessing(degree=2.0, keep="edges")
