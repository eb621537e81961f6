"""A graph from the gradient of a step on it: what lies in the spans, and what blocks make when they are glued."""

import math
from collections import Counter

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from isthmus.audit.gradients import Piece, Vocabulary, blocks_in, glued, kinds_in, span_of

WIDTH, TYPES = 48, 7
RING = [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)]
KINDS = [0, 1, 2, 3, 1, 4]


def graph():
    """A ring of four nodes with a tail."""
    edges = torch.tensor(RING).t()
    return F.one_hot(torch.tensor(KINDS), TYPES).float(), torch.cat([edges, edges.flip(0)], dim=1)


def vocabulary(degrees=4):
    """Every type with every degree."""
    x = torch.eye(TYPES).repeat_interleave(degrees, 0)
    return Vocabulary.of(x, torch.arange(1, degrees + 1).repeat(TYPES))


@pytest.fixture(scope="module")
def step():
    """The gradients of both layers, and the first layer."""
    torch.manual_seed(0)
    first, second, head = GCNConv(TYPES, WIDTH), GCNConv(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2)
    x, edges = graph()
    output = head(second(first(x, edges).relu(), edges).relu().mean(0))
    F.cross_entropy(output.unsqueeze(0), torch.tensor([1])).backward()
    return first, first.lin.weight.grad, second.lin.weight.grad


def truth(words):
    x, edges = graph()
    piece = Piece(words.kind_of(x, torch.bincount(edges[0])), [set() for _ in KINDS])
    for a, b in edges.t().tolist():
        piece.around[a].add(b)
    return piece


def blocks_of(piece):
    return {(kind, tuple(sorted(piece.kinds[each] for each in around)))
            for kind, around in zip(piece.kinds, piece.around, strict=True)}  # fmt: skip


def test_only_features_of_the_graph_are_in_the_first_span(step):
    words = vocabulary()
    found = {int(words.row[kind]) for kind in kinds_in(step[1], 1e-9, words)}
    types = {int(words.rows[row].argmax()) for row in found}
    assert types == set(KINDS)


def test_blocks_of_the_graph_are_in_the_second_span_and_few_others(step):
    words, (first, one, two) = vocabulary(), step
    kinds = kinds_in(one, 1e-9, words)
    found = blocks_in(two, 1e-9, first.lin.weight.detach(), first.bias.detach(), kinds, words)
    assert blocks_of(truth(words)) <= set(found)
    every = sum(math.comb(len(kinds) + degree - 1, degree) * len(kinds) // 4 for degree in range(1, 5))
    assert len(found) < every / 1000


def test_noise_leaves_no_span_and_a_full_span_leaves_everything(step):
    words, (first, one, _) = vocabulary(), step
    assert not kinds_in(one, 10.0, words)
    assert len(kinds_in(torch.randn(WIDTH, TYPES), 1e-9, words)) == len(words.row)
    many = vocabulary(degrees=9)
    everything = list(range(len(many.row)))
    assert blocks_in(one, 1e-9, first.lin.weight.detach(), None, everything, many) is None  # too many to compare


def test_the_span_has_the_rank_of_what_is_not_rounding():
    low = torch.randn(30, 3, dtype=torch.float64) @ torch.randn(3, 20, dtype=torch.float64)
    noisy = low + 1e-4 * torch.randn(30, 20, dtype=torch.float64)
    assert len(span_of(noisy, 1e-4)) == 3
    assert len(span_of(noisy, 1e-7)) == 20


def test_glued_blocks_give_the_graph_and_each_graph_once():
    words = vocabulary()
    whole = truth(words)
    found = list(glued(sorted(blocks_of(whole)), 3, 8, 2000))
    assert all(blocks_of(piece) <= blocks_of(whole) for piece in found)
    assert all(each in piece.whole for piece in found for each in range(len(piece.kinds)))
    assert Counter(piece.form() for piece in found).most_common(1)[0][1] == 1
    assert whole.form() in {piece.form() for piece in found}


def test_a_form_knows_no_order_and_sees_another_edge():
    words = vocabulary()
    piece = truth(words)
    order = [3, 5, 0, 1, 4, 2]
    place = {old: new for new, old in enumerate(order)}
    other = Piece([piece.kinds[old] for old in order], [{place[each] for each in piece.around[old]} for old in order])
    assert other.form() == piece.form()
    other.around[0].add(1)
    other.around[1].add(0)
    assert other.form() != piece.form()
