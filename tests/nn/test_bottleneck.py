import torch
from torch.nn import functional as F

from isthmus.nn.bottleneck import Bottleneck, divergence


def test_the_divergence_is_the_closed_form_of_torch():
    mean, deviation = torch.randn(5, 3), torch.rand(5, 3) + 0.1
    normal = torch.distributions.Normal
    each = torch.distributions.kl_divergence(normal(mean, deviation), normal(0.0, 1.0)).sum(1)
    due = torch.stack([each[:2].mean(), each[2:].mean(), torch.tensor(0.0)])
    torch.testing.assert_close(divergence(mean, deviation, (2, 3, 0)), due)


def test_a_deviation_of_zero_has_a_finite_divergence():
    assert bool(divergence(torch.zeros(1, 2), torch.zeros(1, 2), (1,)).isfinite().all())


def test_the_bottleneck_is_an_mlp_whose_outputs_are_propagated():
    source = torch.Generator().manual_seed(0)
    bottleneck = Bottleneck(3, 4)
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    x = torch.randn(3, 3, generator=source)
    mean, deviation = bottleneck(x, edges)
    hidden = (x @ bottleneck.first.weight.T).relu() @ bottleneck.second.weight.T
    degree = torch.tensor([2.0, 3.0, 2.0])
    for u in range(3):
        near = [u, *edges[0][edges[1] == u].tolist()]
        z = sum(hidden[v] / (degree[u] * degree[v]).sqrt() for v in near)
        torch.testing.assert_close(mean[u], z[:3])
        torch.testing.assert_close(deviation[u], F.softplus(z[3:]))
