import pytest
import torch

from isthmus.nn.diffusion import Diffusion

NODES = 6
EDGES = torch.tensor([[0, 1, 2, 2, 4], [1, 2, 0, 4, 2]])
X = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(0))
WEIGHTS = (0.5, 0.25, 0.125)
over_weights = pytest.mark.parametrize("edge_weight", [None, torch.tensor([1.0, 0.5, 2.0, 1.5, 1.0])])


def literal_hops(diffusion, edge_weight):
    """All hops with dense matrices, written out."""
    a = torch.zeros(NODES, NODES)
    a[EDGES[1], EDGES[0]] = torch.ones(EDGES.size(1)) if edge_weight is None else edge_weight
    a = a + torch.eye(NODES)
    degree = a.sum(1)
    matrix = degree.pow(diffusion.left).diag() @ a @ degree.pow(diffusion.right).diag()
    hops = [X]
    for _ in range(diffusion.hops):
        hops.append((1 - diffusion.restart) * matrix @ hops[-1] + diffusion.restart * X)
    return hops


def weighted_sum(hops):
    return sum(weight * hop for weight, hop in zip(WEIGHTS, hops, strict=True))


@over_weights
@pytest.mark.parametrize(
    ("diffusion", "needs_all", "combine"),
    [
        (Diffusion(2), False, lambda hops: hops[-1]),
        (Diffusion(3, restart=0.2), False, lambda hops: hops[-1]),
        (Diffusion(2, left=-0.8, right=-0.2, weights=WEIGHTS), True, weighted_sum),
        (Diffusion(2, every=True), True, lambda hops: torch.cat(hops, dim=1)),
    ],
    ids=["sgc", "appnp", "gbp", "gprgnn"],
)
def test_features_are_diffused_as_by_dense_matrices(diffusion, needs_all, combine, edge_weight):
    due = combine(literal_hops(diffusion, edge_weight))
    torch.testing.assert_close(diffusion.diffuse(X, EDGES, edge_weight), due, rtol=1e-5, atol=1e-6)
    assert diffusion.needs_all_hops == needs_all


def test_no_hop_leaves_the_features_alone():
    assert torch.equal(Diffusion(0).diffuse(X, EDGES), X)
