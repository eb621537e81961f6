"""Contrast of a whole cohort against loops over parties, items and pairs."""

import math

import pytest
import torch
from torch.nn import functional as F

from isthmus.nn.contrast import Projection, contrast_views, mutual_information_loss, pad_rows

SIZES = (3, 0, 1, 5)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def literal_contrast(u, v, tau, unit=True):
    """(5) and (6) of one party, term by term."""
    u, v = (F.normalize(each, dim=1) if unit else each for each in (u, v))

    def one(a, own, others):
        total = sum(torch.exp(a @ z / tau) for z in others)
        return torch.log(total / torch.exp(a @ own / tau))

    loss = torch.tensor(0.0)
    for i in range(len(u)):
        both = [*u, *v]
        loss = loss + one(u[i], v[i], both[:i] + both[i + 1 :])
        loss = loss + one(v[i], u[i], both[: len(u) + i] + both[len(u) + i + 1 :])
    return loss / (2 * len(u)) if len(u) else loss


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("sizes", [SIZES, (4, 4), (1,)])
@pytest.mark.parametrize("unit", [True, False])
def test_contrast_between_views_is_the_papers_for_every_party_alone(sizes, tau, unit):
    u = drawn(sum(sizes), 2, 6)
    found = contrast_views(u, sizes, tau, unit=unit)
    due = [literal_contrast(part[:, 0], part[:, 1], tau, unit) for part in u.double().split(sizes)]
    due = [each.float() for each in due]
    torch.testing.assert_close(found, torch.stack(due), rtol=1e-5, atol=1e-5)


def test_contrast_keeps_gradients_finite_where_parties_have_none_or_one_item():
    u = drawn(sum(SIZES), 2, 6).requires_grad_()
    contrast_views(u, SIZES, 0.1).sum().backward()
    assert bool(u.grad.isfinite().all())
    assert bool((u.grad[3] == 0).all()), "a graph alone has nothing to be told from"


def test_embeddings_as_large_as_sums_are_do_not_overflow():
    for unit in (True, False):
        u = (1e6 * drawn(8, 2, 6)).requires_grad_()
        found = contrast_views(u, (8,), 0.05, unit=unit)
        found.sum().backward()
        assert bool(found.isfinite().all())
        assert bool(u.grad.isfinite().all())


def literal_information(h, u, graph):
    """Means over pairs inside and outside, as InfoGraph's code has them."""
    inside, outside = [], []
    for v in range(len(h)):
        for g in range(len(u)):
            t = float(h[v] @ u[g])
            if int(graph[v]) == g:
                inside.append(math.log(2) - math.log1p(math.exp(-t)))
            else:
                outside.append(math.log1p(math.exp(-t)) + t - math.log(2))
    return (sum(outside) / len(outside) if outside else 0.0) - (sum(inside) / len(inside) if inside else 0.0)


def test_mutual_information_is_that_of_every_party_alone():
    of_graph = [torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 0]), torch.empty(0, dtype=torch.long)]
    graphs = (3, 1, 0)
    h, u = drawn(8, 4), drawn(4, 4, seed=1)
    graph = torch.cat([of_graph[0], of_graph[1] + 3])
    found = mutual_information_loss(h, u, graph, (6, 2, 0), graphs)
    due = [
        literal_information(*each)
        for each in zip(h.split((6, 2, 0)), u.split(graphs), of_graph, strict=True)
    ]  # fmt: skip
    torch.testing.assert_close(found, torch.tensor(due), rtol=1e-5, atol=1e-6)


def test_padding_holds_every_row_once():
    values, there = pad_rows(drawn(9, 2), SIZES)
    assert values.shape == (4, 5, 2)
    assert there.sum(1).tolist() == list(SIZES)
    torch.testing.assert_close(values[there], drawn(9, 2))
    assert not values[~there].any()


def test_a_head_keeps_the_width_or_has_one_of_its_own():
    assert Projection(5)(drawn(3, 5)).shape == (3, 5)
    assert Projection(5, 2)(drawn(3, 5)).shape == (3, 2)
