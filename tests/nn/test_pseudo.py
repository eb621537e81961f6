"""Graphs from noise: features by class, edges between similar nodes, and a term for their diversity."""

import math

import pytest
import torch

from isthmus.nn.pseudo import NOISE, PseudoNodes, join_similar, sameness


def test_features_depend_on_noise_and_class():
    torch.manual_seed(0)
    make, z = PseudoNodes(features=5, classes=3), torch.randn(1, NOISE)
    one, other_class, other_noise = (
        make(noise, torch.tensor([c])) for noise, c in ((z, 0), (z, 1), (torch.randn(1, NOISE), 0))
    )
    assert not torch.allclose(one, other_class)
    assert not torch.allclose(one, other_noise)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_edges_join_the_most_similar_nodes_in_both_directions(count):
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    edges = set(map(tuple, join_similar(x, count).t().tolist()))
    due = {(i, i) for i in range(9)}
    for i in range(9):
        by_cosine = sorted(range(9), key=lambda j: -float(torch.cosine_similarity(x[i], x[j], dim=0)))
        due |= {pair for j in by_cosine[:count] for pair in ((i, j), (j, i))}
    assert edges == due


def test_sameness_is_one_for_equal_nodes_and_falls_as_they_differ():
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert float(sameness(z, torch.ones(2, 3))) == 1.0
    apart = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    assert float(sameness(z, apart)) == pytest.approx(math.exp(-(2 * 2.0 * 1.0) / 4))
