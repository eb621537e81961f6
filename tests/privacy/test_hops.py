"""Noisy sums over neighbours: how much an edge changes them, and what noise they have."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from isthmus.privacy.account import gaussian_epsilon
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.options import EdgePrivacy
from isthmus.privacy.random_bits import NoiseKey


def plan(epsilon=4.0, hops=2):
    return HopPlan.of(EdgePrivacy(epsilon=epsilon), hops)


def ring(nodes):
    ends = torch.arange(nodes)
    one = torch.stack([ends, (ends + 1) % nodes])
    return torch.cat([one, one.flip(0)], dim=1)


def unit_rows(nodes, width):
    rows = torch.randn(nodes, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


def test_an_edge_changes_a_sum_by_as_much_as_the_noise_is_sized_for():
    h, edges, silent = unit_rows(12, 5), ring(12), replace(plan(), multiplier=1e-9)
    first, last = edges[:, 0].tolist()
    kept = ~(((edges[0] == first) & (edges[1] == last)) | ((edges[0] == last) & (edges[1] == first)))
    assert int(kept.sum()) == edges.size(1) - 2
    change = silent.total(h, edges, NoiseKey(0)) - silent.total(h, edges[:, kept], NoiseKey(0))
    assert float(change.norm()) == pytest.approx(math.sqrt(2), rel=1e-5)
    assert float(change.norm()) <= math.sqrt(2)
    assert (change.abs().sum(1) > 0.1).nonzero().flatten().tolist() == sorted([first, last])


def test_the_noise_is_that_of_the_account():
    found, edges = plan(), ring(2000)
    h = unit_rows(2000, 8)
    exact = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
    noise = found.total(h, edges, NoiseKey(0), "north", 1) - exact
    assert float(noise.std()) == pytest.approx(found.multiplier * math.sqrt(2), rel=0.02)
    assert float(noise.mean()) == pytest.approx(0.0, abs=4 * float(noise.std()) / math.sqrt(noise.numel()))
    both = gaussian_epsilon(found.multiplier / math.sqrt(2), 1e-5)  # two hops
    assert found.account().cost(1e-5, "edge").epsilon == pytest.approx(both, rel=1e-6)
    assert both == pytest.approx(4.0, rel=1e-6)


def test_more_hops_and_less_epsilon_need_more_noise():
    for found in ([plan(hops=each) for each in (1, 2, 5)], [plan(epsilon=each) for each in (8.0, 4.0, 1.0)]):
        assert all(less.multiplier < more.multiplier for less, more in pairwise(found))


def test_no_two_sums_have_the_same_noise():
    h, edges = unit_rows(20, 4), ring(20)
    secret = NoiseKey(bytes(32))

    def noise(h, *purpose, key=secret):
        exact = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        return plan().total(h, edges, key, *purpose) - exact

    one = noise(h, "north", 1)
    assert torch.equal(one, noise(h, "north", 1))
    others = noise(h, "south", 1), noise(h, "north", 2), noise(h, "north", 1, key=NoiseKey(bytes([1] * 32)))
    assert all(float((one - other).abs().max()) > 0.5 for other in (*others, noise(h * 0.999, "north", 1)))
